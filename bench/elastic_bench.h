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
  kFull,     ///< the same, or when an insert finds no slot
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
  /// What is measured in the store's place; empty: the store. Of what the options say of stores a
  /// peer has initial_capacity alone: the items that it is made for.
  std::string peer;
  double peer_fill = 0.8;             ///< PeerSpec::fill
  std::vector<double> peer_bounds{};  ///< PeerSpec::shrink_below and grow_above; or none
};

/// Runs it, for each growth, from an empty pool.
/// @return a report: rows of `steps`, of each growth's run as a whole (`runs`), and what loading
///         the items that there are at most into a new pool takes (`rebuild`; only if it shrinks
///         then)
///         Of a peer: `steps` alone, each with its throughputs, the slowest batch, items, slots and
///         load factor; a step in which the table was full is left out
/// @throws Error, as Store; kDamaged for wrong results; of a peer kInvalidArgument when there is no
///         such one, when it can't have such items or does not say how many slots it has, and
///         kNoSpace when it is full and the end is not kFull
nlohmann::json MeasureElastic(const ElasticOptions& options);

}  // namespace gpm::bench

#endif  // GPM_BENCH_ELASTIC_BENCH_H_
