#ifndef GPM_ENGINE_CUDA_STRATEGY_H_
#define GPM_ENGINE_CUDA_STRATEGY_H_

#include <algorithm>
#include <cstdint>

#include "gpmstore/options.h"

namespace gpm {

/// Where the strategies of the cuda executor end and begin, in operations of a batch. Times are of
/// an H200 with 16 M items of 8 + 128 bytes.
struct StrategyThresholds {
  /// A batch of up to so many operations is small: each operation is compared with all others, and
  /// one kernel does everything. No more have room in a block's shared memory.
  static constexpr std::uint64_t kSmallUpTo = 4096;
  /// From here on a small batch deals out its reads. (With one write in 20, 1024 operations take
  /// 37 us dealt out and 35 if each reads at once; 4096 take 39 and 47.)
  static constexpr std::uint64_t kDealtFrom = 2048;
  /// From here on each find has a thread, below a tile. (2^14 - 1 finds take 14 to 53 us with a
  /// tile each; 2^14 take 30 to 73 with a thread each.)
  static constexpr std::uint64_t kThreadsFrom = (std::uint64_t{1} << 14) + 1;
  /// The same where the cache answers few finds, or there is none: threads share reads, tiles do
  /// not, and all that want the value of one hot key wait for one place behind the link.
  static constexpr std::uint64_t kColdThreadsFrom = std::uint64_t{1} << 11;
  /// Up to here a merge sort is faster: a radix sort's passes take some 12 us however few they
  /// sort.
  static constexpr std::uint64_t kMergedUpTo = std::uint64_t{1} << 17;
  /// From here on a batch is cut in two slices: the first is read while the second is looked up.
  static constexpr std::uint64_t kSlicedFrom = std::uint64_t{1} << 18;
  /// Share of the first slice: one in so many. (The reads of a smaller one end before the second
  /// slice is looked up.)
  static constexpr std::uint64_t kFirstSliceOfFinds = 3;
  static constexpr std::uint64_t kFirstSliceOfKeyRuns = 4;
  /// Numbers of reads in a bin have so many bits (ReadPlan): a batch beyond plans none.
  static constexpr std::uint64_t kPlannedUpTo = std::uint64_t{1} << 30;
};

/// What a strategy is chosen by.
struct StrategyInputs {
  std::uint64_t operations = 0;
  bool finds_only = false;
  bool reads_cells = false;  ///< finds give back values, and values lie in cells
  bool has_directory = false;
  bool has_cache = false;
  bool is_warm = false;     ///< the cache answers most finds
  std::uint64_t tiles = 0;  ///< that run at once, one block to a multiprocessor
  std::uint64_t pool_bytes = 0;
  AccessOptions access;  ///< `dealt_up_to` is not 0
};

/// How the cuda executor carries out a batch.
struct Strategy {
  enum class Kernels : std::uint8_t {
    kFindTiles,    ///< FindKeys: finds alone, a tile each
    kFindThreads,  ///< SearchKeys, then the planned reads: finds alone, a thread each
    kSmall,        ///< ApplySmallBatch
    kSearched,     ///< sorted; SearchKeyRuns, then ApplyQueuedKeyRuns beside the planned reads
    kSorted,       ///< sorted; ApplyKeyRuns
  };
  Kernels kernels = Kernels::kSorted;
  bool queues_reads = false;  ///< values are read together; else each operation reads its own
  bool plans_reads = false;   ///< how each operation gets its value is noted first
  bool orders_reads = false;  ///< in the order of addresses; else dealt out by address
  bool shares_reads = false;  ///< several finds of a value read it once
  bool copies_rows = false;   ///< rows that several operations want are copied last, by a kernel
  bool merge_sorts = false;   ///< else a radix sort
  std::uint32_t first_slice = 0;  ///< operations of the first of two slices; 0: there is one

  bool finds() const { return kernels == Kernels::kFindTiles || kernels == Kernels::kFindThreads; }
  bool searches() const { return kernels == Kernels::kSearched; }
  bool sorts() const { return searches() || kernels == Kernels::kSorted; }
};

/// Chooses how a batch is carried out. What is left of it after growth takes the same kernels, but
/// ApplyKeyRuns for kSearched.
inline Strategy ChooseStrategy(const StrategyInputs& in) {
  using T = StrategyThresholds;
  using Kernels = Strategy::Kernels;
  const std::uint64_t n = in.operations;
  const bool by_address = in.reads_cells && n <= T::kPlannedUpTo && in.access.by_address;
  const std::uint64_t threads_from =
      by_address && !in.is_warm ? T::kColdThreadsFrom : T::kThreadsFrom;
  const bool threads = n >= threads_from && (by_address || !in.reads_cells);
  // Several finds of a key are one key run where that saves reads: without a directory, and where
  // values are neither read together nor cached.
  const bool apart = (by_address && threads) || !in.reads_cells || in.has_cache;
  Strategy s;
  if (in.finds_only && (!in.access.combine || (in.has_directory && apart))) {
    s.kernels = threads ? Kernels::kFindThreads : Kernels::kFindTiles;
  } else if (n <= std::min(T::kSmallUpTo, in.tiles)) {
    s.kernels = Kernels::kSmall;
  } else if (in.has_directory && n <= T::kPlannedUpTo && (by_address || !in.reads_cells)) {
    s.kernels = Kernels::kSearched;
  }
  s.merge_sorts = n <= T::kMergedUpTo;
  s.queues_reads = by_address && (s.kernels != Kernels::kSmall || n >= T::kDealtFrom);
  if (!s.queues_reads) return s;
  s.plans_reads = s.kernels == Kernels::kFindThreads || s.sorts();
  s.orders_reads = n >= T::kThreadsFrom && in.pool_bytes > in.access.dealt_up_to;
  s.shares_reads = s.kernels == Kernels::kFindThreads && in.access.combine;
  s.copies_rows = s.shares_reads || s.searches();
  if ((s.finds() || s.searches()) && !s.orders_reads && n >= T::kSlicedFrom) {
    s.first_slice = static_cast<std::uint32_t>(
        n / (s.finds() ? T::kFirstSliceOfFinds : T::kFirstSliceOfKeyRuns));
  }
  return s;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_STRATEGY_H_
