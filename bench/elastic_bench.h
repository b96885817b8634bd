#ifndef GPM_BENCH_ELASTIC_BENCH_H_
#define GPM_BENCH_ELASTIC_BENCH_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gpmstore/store.h"

namespace gpm::bench {

/// When a run of the workload ends.
enum class ElasticEnd : std::uint8_t {
  kShrunk,   ///< after both halves
  kGrown,    ///< after the first half
  kResized,  ///< the same, or when the table has grown for the first time
};

/// How a store grows and shrinks under DyHash's dynamic workload ("Dynamic Hash Tables on GPUs",
/// section 6): each step of the first half is a batch of inserts, one of as many finds, and
/// one of `erases` times as many erases; in the second half inserts and erases change places.
struct ElasticOptions {
  std::string pool;  ///< file, which must not exist and is removed
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  std::uint64_t batch = 1'000'000;
  unsigned steps = 20;  ///< of both halves, an even number
  double erases = 0.4;
  ElasticEnd end = ElasticEnd::kShrunk;
  std::vector<double> growths;  ///< OpenOptions::growth, one run each
  double growth_pause = OpenOptions{}.growth_pause;
  double grow_above = OpenOptions{}.grow_above;
  Geometry geometry;
  std::uint64_t initial_capacity = 0;  ///< items
  double compact_below = 0;            ///< the load factor below which Store::Compact is called
  std::uint64_t seed = 1;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;  ///< 0: all cores
  bool gpu_arrays = false;
};

/// Runs it, for each growth, from an empty pool.
/// @return a report: rows of `steps`, of each growth's run as a whole (`runs`), and what loading
///         the items that there are at most into a new pool takes (`rebuild`; only if it shrinks
///         then)
/// @throws Error, as Store; kDamaged for wrong results
nlohmann::json MeasureElastic(const ElasticOptions& options);

}  // namespace gpm::bench

#endif  // GPM_BENCH_ELASTIC_BENCH_H_
