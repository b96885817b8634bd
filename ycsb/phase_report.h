#ifndef GPM_YCSB_PHASE_REPORT_H_
#define GPM_YCSB_PHASE_REPORT_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "gpmstore/batch.h"
#include "ycsb/histogram.h"

namespace gpm::ycsb {

inline constexpr std::size_t kResults = 5;  ///< values of Result
/// What is counted by kind: the values of Op, and searches by an attribute behind those.
inline constexpr std::size_t kSearchKind = kOpKinds;
inline constexpr std::size_t kKinds = kOpKinds + 1;

/// What a load, a run or a replay did and how long it took. Thread safety: none.
struct PhaseReport {
  std::uint64_t operations = 0;        ///< a read-modify-write is one
  std::uint64_t store_operations = 0;  ///< a read-modify-write is two
  std::uint64_t batches = 0;
  double seconds = 0;       ///< sum of the batches' times; generating and verifying are not in it
  double wall_seconds = 0;  ///< from start to end, everything included
  /// outcomes[kind][result]: number of operations of a kind with a result. A search that finds
  /// nothing is kNotFound.
  std::array<std::array<std::uint64_t, kResults>, kKinds> outcomes = {};
  /// Batch completion times: of batches, of operations by kind (an operation takes as long as its
  /// batch), and of read-modify-writes.
  Histogram batch_latency;
  std::array<Histogram, kKinds> op_latency;
  Histogram read_modify_write_latency;
  std::uint64_t verified = 0;         ///< results that were compared with what they must be
  std::uint64_t values_compared = 0;  ///< of those, finds whose value was compared, too
  std::uint64_t wrong = 0;            ///< of those verified, the ones that were something else
  std::string first_wrong;            ///< says which, when wrong > 0

  /// Millions of operations a second, over the batches' times.
  double mops() const { return seconds > 0 ? static_cast<double>(operations) / seconds / 1e6 : 0; }

  /// Counts a batch that took `time`.
  /// @param pairs read-modify-writes among its operations
  /// @param searches that it had beside `ops`
  void AddBatch(std::chrono::nanoseconds time, std::span<const Op> ops, std::uint64_t pairs = 0,
                std::uint64_t searches = 0) {
    seconds += std::chrono::duration<double>(time).count();
    ++batches;
    store_operations += ops.size() + searches;
    const auto nanoseconds = static_cast<std::uint64_t>(time.count());
    batch_latency.Add(nanoseconds);
    std::array<std::uint64_t, kKinds> kinds = {};
    kinds[kSearchKind] = searches;
    for (const Op op : ops) ++kinds[static_cast<std::size_t>(op)];
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      op_latency[kind].Add(nanoseconds, kinds[kind]);
    }
    read_modify_write_latency.Add(nanoseconds, pairs);
  }

  void AddOutcomes(std::span<const Op> ops, std::span<const Result> results) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      ++outcomes[static_cast<std::size_t>(ops[i])][static_cast<std::size_t>(results[i])];
    }
  }

  /// Operations of all kinds with a result.
  std::uint64_t outcome(Result result) const {
    std::uint64_t sum = 0;
    for (const auto& kind : outcomes) sum += kind[static_cast<std::size_t>(result)];
    return sum;
  }
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_PHASE_REPORT_H_
