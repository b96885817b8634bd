#ifndef GPM_CLI_STRESS_STRESS_H_
#define GPM_CLI_STRESS_STRESS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/stress/arrays.h"
#include "cli/stress/round_plan.h"
#include "cli/stress/round_state.h"

namespace gpm::stress {

/// Rounds of batches on stores of all configurations, from several threads at once, each answer
/// checked; see round_plan.h, batch_plan.h, answer_check.h and round_end.h for what is drawn and
/// what is checked. Each round has a temporary pool, which has no name once it is made.
///
/// Thread safety: Run by one thread, Interrupt by any, also in a signal handler.
class Stress {
 public:
  explicit Stress(const StressOptions& options);
  ~Stress();

  /// @param told of each round's number before it begins
  /// @return empty, or a report of what was wrong, with the seed that begins with that round
  std::string Run(const std::function<void(std::uint64_t round)>& progress = {});
  void Interrupt() { interrupted_ = true; }
  bool interrupted() const { return interrupted_; }

  const Totals& totals() const { return totals_; }

 private:
  void RunRound(const RoundPlan& plan);
  std::string Report() const;

  const StressOptions options_;
  Totals totals_;
  Findings findings_;
  std::vector<std::unique_ptr<LaneMemory>> memory_;  ///< by lane
  std::atomic<std::uint64_t> seed_;                  ///< of the round that is running
  std::atomic<bool> interrupted_{false};
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_STRESS_H_
