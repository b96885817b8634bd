#ifndef GPM_BENCH_CONTEST_H_
#define GPM_BENCH_CONTEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/peer_phases.h"
#include "gpmstore/options.h"

namespace gpm::bench {

/// Who is measured.
struct Contestant {
  std::string name;
  Capabilities can{};
  /// @param items that it will hold @param batch operations of its largest batch @param fill as
  ///        PeerSpec
  std::function<std::unique_ptr<KvAdapter>(std::uint64_t items, std::uint64_t batch, double fill)>
      make{};
};

/// What the store and peers do, one after the other, and who they are.
struct ContestOptions {
  std::uint64_t records = 0;
  std::uint64_t operations = 0;  ///< of each workload behind the inserts
  std::vector<std::uint64_t> batches;
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  std::vector<double> fills = {0.8};  ///< PeerSpec::fill, a run for each
  double theta = 0.99;
  std::uint64_t seed = 1;
  unsigned repeats = 3;
  std::vector<PeerPhase::Kind> kinds;  ///< beside inserts, which are always measured
  std::vector<std::string> peers;
  std::vector<Contestant> others;  ///< beside those
  bool store = true;
  OpenOptions open;  ///< of the store; its executor, not auto, says whose peers there are
  std::string pool;  ///< of the store; empty: a temporary place in memory
};

/// The name of our store among those that are measured.
inline constexpr const char* kStoreName = "gpmstore";

/// The executor that auto is. @throws Error(kUnsupported) for cuda without a GPU
ExecutorKind ResolveExecutor(ExecutorKind executor);
/// Where the batches of an executor's contestants are. REQUIRES: not auto.
ycsb::Memory MemoryOf(ExecutorKind executor);

/// Measures all workloads that a contestant can do, each contestant from an empty container on: it
/// inserts the records, then it meets the kinds in their order. Of one that has caches, before the
/// uniform finds and before what is skewed, finds of the same distribution are made without being
/// counted, and the caches loaded.
///
/// @param report gets `contestants` with their capabilities, `left_out` (who does what not, and
///        why), `rows` by contestant, workload, batch and fill, and the `store`'s facts
/// @throws Error(kInvalidArgument) for a peer that there is not or that can't have such items, for
///         a batch that is larger than records or operations, and when nobody is measured;
///         Error(kDamaged) naming who gave a wrong answer; as contestants
void MeasureContest(const ContestOptions& wanted, nlohmann::json& report);

}  // namespace gpm::bench

#endif  // GPM_BENCH_CONTEST_H_
