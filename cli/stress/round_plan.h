#ifndef GPM_CLI_STRESS_ROUND_PLAN_H_
#define GPM_CLI_STRESS_ROUND_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/stress/rows.h"
#include "gpmstore/options.h"

namespace gpm::stress {

/// What is the same in all rounds of a run.
struct StressOptions {
  double seconds = 60;
  double round_seconds = 1.5;
  std::uint64_t seed = 1;  ///< of the first round; the next ones count up
  unsigned threads = 4;
  ExecutorKind executor = ExecutorKind::kCpu;  ///< kCpu or kCuda
  std::uint32_t max_batch = 1u << 20;          ///< operations
  double hang_seconds = 60;                    ///< without a batch that ends, all is given up

  bool gpu() const { return executor == ExecutorKind::kCuda; }
};
inline constexpr unsigned kMaxStressThreads = 30;

/// The configuration of a round: a store, and what is done with it. All of it follows from the
/// seed; 150 seeds in a row have every kind of key size with every one of value sizes and every
/// accelerator.
struct RoundPlan {
  std::uint64_t seed = 0;
  Shape shape;
  CreateOptions create;
  OpenOptions open;
  OpenOptions reopen;
  bool tight = false;  ///< the pool may not grow enough: operations may find no space
  unsigned lanes_per_thread = 1;
  bool shared_streams = false;     ///< the lanes of a thread use one stream
  std::uint32_t private_keys = 0;  ///< of each lane
  std::uint32_t shared_keys = 0;   ///< of all lanes
  std::uint32_t max_batch = 1;
  std::vector<std::uint32_t> batch_sizes;  ///< that are drawn, the larger the more seldom
  bool even_sizes = false;                 ///< each as often as any other
  bool loads_first = false;                ///< a lane's keys are loaded before all else
};

RoundPlan PlanRound(std::uint64_t seed, const StressOptions& options);

/// One line an aspect, for a failure's report.
std::string Describe(const RoundPlan& plan);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_ROUND_PLAN_H_
