#ifndef GPM_ENGINE_CUDA_STRATEGY_H_
#define GPM_ENGINE_CUDA_STRATEGY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "gpmstore/options.h"

namespace gpm {

/// Where the strategies of the cuda executor end and begin, in operations of a batch. Times are of
/// an H200 with 16 M items of 8 + 128 bytes.
struct StrategyThresholds {
  /// A batch of up to so many operations is small: each operation is compared with all others, and
  /// one kernel does everything.
  static constexpr std::uint64_t kSmallUpTo = 4096;
  /// The same with tiles of half as many lanes, but for what accumulates, as such a tile adds half
  /// as fast. (2^13 operations with one write in 20 take 48 us so, in two parts 63, and grouped by
  /// key 79; 4352 inserts take 48, in two parts 60.)
  static constexpr std::uint64_t kHalfTilesUpTo = 2 * kSmallUpTo;
  /// Beyond, a batch that only writes is carried out part by part, if it has up to so many parts.
  /// (Parts of 2^13 with tiles of half as many lanes take as long at 8448 operations, and longer
  /// at 12288.)
  static constexpr std::uint64_t kSmallWritingParts = 4;
  /// Up to here a batch is small, too, that adds long runs of rows (AddLongRuns; a tile of a small
  /// batch adds one row after the other, 2 M/s). (Beyond, 4096 rows for one key take 130 us instead
  /// of 1900, those of Zipf 0.99 110 instead of 200, but uniform ones 100 instead of 60.)
  static constexpr std::uint64_t kAddingSmallUpTo = 1024;
  /// From here on a small batch deals out its reads. (With one write in 20, 1024 operations take
  /// 37 us dealt out and 35 if each reads at once; 4096 take 39 and 47.)
  static constexpr std::uint64_t kDealtFrom = 2048;
  /// From here on each find has a thread, below a tile. (2^14 - 1 finds take 14 to 53 us with a
  /// tile each; 2^14 take 30 to 73 with a thread each.)
  static constexpr std::uint64_t kThreadsFrom = (std::uint64_t{1} << 14) + 1;
  /// A small batch writes values of up to so many bytes ahead, before it is known which are wanted.
  /// (Others of 4096 bytes would take 90 us for each 1024 that are not.)
  static constexpr std::uint64_t kAheadUpToBytes = 1024;
  /// From here on tiles share reads where that pays (FindHistory). Below, few want the same value.
  static constexpr std::uint64_t kSharedFrom = 1024;
  /// Up to here one kernel groups operations by key: it takes 15 us for 2^14 and 19 for 2^15, a
  /// sort's and a scan's eleven kernels some 60 however few they sort.
  static constexpr std::uint64_t kGroupedUpTo = std::uint64_t{1} << 17;
  /// The same for each tile: blocks of the kernel have room for that much.
  static constexpr std::uint64_t kGroupedPerTile = 32;
  /// Fewer than kSharedFrom finds have a block each where values have so many bytes. (A tile copies
  /// 64 KiB in 100 to 200 us.)
  static constexpr std::uint64_t kLongFromBytes = 4096;
  /// From here on a batch is cut in two slices, unless the cache answers nearly all finds: the
  /// first is read while the second is looked up.
  static constexpr std::uint64_t kSlicedFrom = std::uint64_t{1} << 18;
  /// Share of the first slice: one in so many. (The reads of a smaller one end before the second
  /// slice is looked up.)
  static constexpr std::uint64_t kFirstSliceOfFinds = 3;
  static constexpr std::uint64_t kFirstSliceOfKeyRuns = 4;
  /// Finds whose values go to the host are cut in chunks of so many, or in kMostChunks if that is
  /// more: one is copied while the next is looked up and read. (128 MiB take 2.5 ms over the link.)
  static constexpr std::uint64_t kChunk = std::uint64_t{1} << 17;
  static constexpr std::uint64_t kMostChunks = 8;
  /// From so many reads on, as far as can be told, the host makes some of those that are put in
  /// order. (The GPU takes 0.2 ms for them; to begin on the host takes 0.1.)
  static constexpr std::uint64_t kByHostFrom = std::uint64_t{1} << 13;
  /// The same of values of up to so many bytes. (Of longer ones the GPU waits for the link.)
  static constexpr std::uint64_t kByHostUpToBytes = 512;
  /// The host writes the values of a batch, if they are in pinned memory, to cells from so many
  /// operations on, up to so many (its list of cells), and where values have up to
  /// kByHostUpToBytes. (2^16 updates of rows of 128 bytes take 0.6 ms either way, 2^18 1.5 and 2.1,
  /// 2^20 5.4 and 7.2.)
  static constexpr std::uint64_t kHostWritesFrom = std::uint64_t{1} << 17;
  static constexpr std::uint64_t kHostWritesUpTo = std::uint64_t{1} << 22;
  /// Numbers of reads in a bin have so many bits (ReadPlan): a batch beyond plans none.
  static constexpr std::uint64_t kPlannedUpTo = std::uint64_t{1} << 30;
};

/// What the last batches have shown of what comes. Thread safety: any thread; batches that
/// end together may forget each other.
class FindHistory {
 public:
  /// Finds from which a batch says something.
  static constexpr std::uint64_t kTelling = StrategyThresholds::kSharedFrom;
  /// Sharing pays if it saves one read in so many. (With a tile each, 4096 uniform finds take 28 us
  /// and 4096 of Zipf 0.99, if none is cached, 118: all that want a hot key's value wait for one
  /// place behind the link.)
  static constexpr std::uint64_t kPayingShare = 16;
  /// The cache answers nearly all finds if fewer than one in so many is read.
  static constexpr std::uint64_t kCachedShare = 32;
  /// Where it does not, one batch in so many tries again.
  static constexpr std::uint32_t kUntilNextTry = 64;
  /// Small batches are not carried out as such (kAddingSmallUpTo) if one row in so many is of a
  /// long run.
  static constexpr std::uint64_t kLongShare = 8;

  /// A batch of finds has ended that queues its reads, with a tile for each find.
  /// @param found, hits, shared its finds that found their key, of those what the cache answered,
  ///        and what another find read for them
  /// @param may_share whether it shared what it could
  void Add(std::uint64_t finds, std::uint64_t found, std::uint64_t hits, bool may_share,
           std::uint64_t shared) {
    if (finds < kTelling) return;
    const std::uint64_t reads = found - (hits < found ? hits : found);
    if (2 * reads < finds) {
      wait_ = kFewReads;
    } else if (may_share) {
      wait_ = shared * kPayingShare < reads ? kUntilNextTry : 0;
    } else if (wait_ == kFewReads) {
      wait_ = 0;
    }
  }
  /// The same, of a batch of any size and of any kinds, whose finds gave back values.
  void AddHits(std::uint64_t found, std::uint64_t hits) {
    if (found < kTelling) return;
    const std::uint64_t reads = found - (hits < found ? hits : found);
    mostly_cached_ = reads * kCachedShare < found;
    read_share_ = static_cast<float>(reads) / static_cast<float>(found);
  }
  /// A batch has been answered while it was carried out. @param left something was not
  /// (FinishAnswers)
  void AddAnswers(bool left) { leaves_answers_ = left; }
  /// Whether the next such batch should expect that of itself.
  bool LeavesAnswers() const { return leaves_answers_; }
  /// A batch that accumulates has ended. @param rows of it, in long runs
  void AddLongRuns(std::uint64_t operations, std::uint64_t rows) {
    if (operations >= kTelling) adds_long_runs_ = rows * kLongShare >= operations;
  }
  /// Whether the next such batch should expect that of itself.
  bool AddsLongRuns() const { return adds_long_runs_; }
  /// A large batch that only writes has ended. @param cells that it took: keys that it wrote, about
  void AddWrites(std::uint64_t operations, std::uint64_t cells) {
    writes_most_ = cells * 4 >= operations * 3;
  }
  /// Whether most operations of such a batch write a value that stays.
  bool WritesMost() const { return writes_most_; }
  /// Whether the cache answers nearly all finds.
  bool MostlyCached() const { return mostly_cached_; }
  /// Of finds that find, which share the cache does not answer; 1 until it is known.
  float ReadShare() const { return read_share_; }
  /// Whether the next batch should share reads.
  bool Shares() {
    const std::uint32_t wait = wait_;
    if (wait != 0 && wait != kFewReads) wait_ = wait - 1;
    return wait == 0;
  }

 private:
  static constexpr std::uint32_t kFewReads = ~0u;  ///< most finds are cached, or find nothing

  std::atomic<std::uint32_t> wait_{0};  ///< batches that do not share, from now on
  std::atomic<bool> mostly_cached_{false};
  std::atomic<bool> leaves_answers_{true};
  std::atomic<bool> adds_long_runs_{false};
  std::atomic<bool> writes_most_{false};
  std::atomic<float> read_share_{1};
};

/// What a strategy is chosen by.
struct StrategyInputs {
  std::uint64_t operations = 0;
  bool finds_only = false;
  bool writes_only = false;     ///< all operations are of one kind, which writes values
  bool accumulates = false;     ///< and which accumulates
  bool adds_long_runs = false;  ///< many rows are added to the same values (FindHistory)
  bool host_can_write = false;  ///< values are in pinned memory, and the host can write cells
  bool writes_most = false;     ///< of the operations, most write a value that stays (FindHistory)
  bool to_host = false;         ///< values that are found go to host memory
  bool reads_cells = false;     ///< finds give back values, and values lie in cells
  bool has_directory = false;
  bool has_cache = false;
  bool mostly_cached = false;  ///< the cache answers nearly all finds (FindHistory)
  float read_share = 1;        ///< of finds (FindHistory)
  bool shares = false;         ///< finds want the same values from persistent memory (FindHistory)
  std::uint64_t tiles = 0;     ///< that run at once, one block to a multiprocessor
  std::uint64_t pool_bytes = 0;
  std::uint64_t value_size = 0;
  AccessOptions access;  ///< `dealt_up_to` is not 0
};

/// Whether it matters if finds want the same values (StrategyInputs::shares), as far as can be told
/// by size.
inline bool MayShare(const StrategyInputs& in) {
  return in.finds_only && in.reads_cells && in.operations >= StrategyThresholds::kSharedFrom &&
         in.operations < StrategyThresholds::kThreadsFrom;
}

/// Whether the host makes some of the reads of batches with many of them, by the pool and its
/// values.
inline bool MayReadByHost(const StrategyInputs& in) {
  return in.access.by_host && in.reads_cells && in.pool_bytes > in.access.dealt_up_to &&
         in.value_size <= StrategyThresholds::kByHostUpToBytes;
}

/// How the cuda executor carries out a batch.
struct Strategy {
  enum class Kernels : std::uint8_t {
    kFindTiles,    ///< FindKeys: finds alone, a tile each
    kFindLong,     ///< FindLongValues: the same, a block each
    kFindThreads,  ///< SearchKeys, then the planned reads: finds alone, a thread each
    kSmall,        ///< ApplySmallBatch, for one part or several
    kSearched,     ///< SearchKeyRuns, then ApplyQueuedKeyRuns beside the planned reads, or
                   ///< CarryOutSearched (one_kernel)
    kUnsearched,   ///< ApplyKeyRuns
  };
  Kernels kernels = Kernels::kUnsearched;
  bool queues_reads = false;     ///< values are read together; else each operation reads its own
  bool plans_reads = false;      ///< how each operation gets its value is noted first
  bool orders_reads = false;     ///< in the order of addresses; else dealt out by address
  bool reads_by_host = false;    ///< some of those in order, if the host is free for it
  bool shares_reads = false;     ///< several finds of a value read it once
  bool copies_rows = false;      ///< rows that several operations want are copied last, by a kernel
  bool copies_cached = false;    ///< who looks up a find copies what the cache has; else ReadValues
  bool tells_of_writes = false;  ///< its writes say something of those to come (FindHistory)
  bool writes_by_host = false;   ///< the host writes the values, if it is free for it (HostWriter)
  std::uint32_t small_part = 0;  ///< of kSmall: operations of a part, but for the last one
  bool half_tiles = false;       ///< of kSmall: tiles of half as many lanes, for twice as many
  bool groups = false;           ///< GroupByKey finds the key runs; else a radix sort, and a scan
  std::uint32_t first_slice = 0;  ///< operations of the first of two slices; 0: there is one
  std::uint32_t chunk = 0;        ///< operations of a chunk, but for the last one; 0: there is one

  bool finds() const {
    return kernels == Kernels::kFindTiles || kernels == Kernels::kFindLong ||
           kernels == Kernels::kFindThreads;
  }
  bool searches() const { return kernels == Kernels::kSearched; }
  /// Whether key runs are found by kernels of their own.
  bool by_key_runs() const { return searches() || kernels == Kernels::kUnsearched; }
  /// Whether one kernel carries out what was searched, reads and answers.
  bool one_kernel() const { return searches() && groups && !orders_reads; }
};

/// Chooses how a batch is carried out. What is left of it after growth takes the same kernels, but
/// ApplyKeyRuns for kSearched.
inline Strategy ChooseStrategy(const StrategyInputs& in) {
  using T = StrategyThresholds;
  using Kernels = Strategy::Kernels;
  const std::uint64_t n = in.operations;
  const bool by_address = in.reads_cells && n <= T::kPlannedUpTo && in.access.by_address;
  const bool threads = n >= T::kThreadsFrom && (by_address || !in.reads_cells);
  // Several finds of a key are one key run where that saves reads: without a directory, and where
  // values are neither read together nor cached.
  const bool apart = (by_address && n >= T::kSharedFrom) || !in.reads_cells || in.has_cache;
  Strategy s;
  if (in.finds_only && (!in.access.combine || (in.has_directory && apart))) {
    const bool is_long = in.reads_cells && in.value_size >= T::kLongFromBytes && n < T::kSharedFrom;
    if (is_long) {
      s.kernels = Kernels::kFindLong;
      return s;
    }
    s.kernels = threads ? Kernels::kFindThreads : Kernels::kFindTiles;
  } else if (const std::uint64_t most = std::min(T::kSmallUpTo, in.tiles);
             n <= (in.adds_long_runs ? std::min(T::kAddingSmallUpTo, most)
                   : in.writes_only  ? T::kSmallWritingParts * most
                                     : std::min(T::kHalfTilesUpTo, 2 * in.tiles))) {
    s.kernels = Kernels::kSmall;
    s.half_tiles = n > most && n <= 2 * most && !in.accumulates;
    const std::uint64_t parts = s.half_tiles ? 1 : (n + most - 1) / most;
    s.small_part = static_cast<std::uint32_t>((n + parts - 1) / parts);
  } else if (in.has_directory && n <= T::kPlannedUpTo && (by_address || !in.reads_cells)) {
    s.kernels = Kernels::kSearched;
  }
  s.groups = s.by_key_runs() && n <= std::min(T::kGroupedUpTo, T::kGroupedPerTile * in.tiles);
  s.tells_of_writes = s.by_key_runs() && n >= T::kHostWritesFrom && in.writes_only;
  s.writes_by_host = s.searches() && s.tells_of_writes && in.host_can_write && in.writes_most &&
                     in.access.by_host && n <= T::kHostWritesUpTo &&
                     in.value_size <= T::kByHostUpToBytes;
  s.queues_reads = by_address && (s.kernels != Kernels::kSmall || n >= T::kDealtFrom);
  if (!s.queues_reads) return s;
  const bool finds_share = s.kernels == Kernels::kFindThreads ||
                           (s.kernels == Kernels::kFindTiles && in.shares && MayShare(in));
  s.shares_reads = finds_share && in.access.combine;
  s.plans_reads = s.kernels == Kernels::kFindThreads || s.shares_reads || s.by_key_runs();
  s.orders_reads = n >= T::kThreadsFrom && in.pool_bytes > in.access.dealt_up_to;
  s.reads_by_host = s.orders_reads && MayReadByHost(in) &&
                    static_cast<double>(n) * in.read_share >= T::kByHostFrom;
  s.copies_rows = s.searches() || (s.shares_reads && s.kernels == Kernels::kFindThreads);
  const bool mostly_cached = in.has_cache && in.mostly_cached;
  s.copies_cached = s.kernels == Kernels::kFindThreads && mostly_cached;
  if (in.to_host && s.kernels == Kernels::kFindThreads && !s.orders_reads && n > T::kChunk) {
    const std::uint64_t share = (n + T::kMostChunks - 1) / T::kMostChunks;
    s.chunk = static_cast<std::uint32_t>(std::max(T::kChunk, share));
  } else if ((s.finds() || s.searches()) && !s.orders_reads && !mostly_cached &&
             n >= T::kSlicedFrom) {
    s.first_slice = static_cast<std::uint32_t>(
        n / (s.finds() ? T::kFirstSliceOfFinds : T::kFirstSliceOfKeyRuns));
  }
  return s;
}

/// Operations of each block that carries out a small batch, or part (Kernels::kSmall).
/// @param blocks that there are at least; more if they have no room
/// @param of_warp operations of a warp: a block gets those of whole ones
/// @param most that a block has room for
inline std::uint32_t OperationsOfBlock(std::uint32_t operations, std::uint32_t blocks,
                                       std::uint32_t of_warp, std::uint32_t most) {
  const std::uint32_t even = (operations + blocks - 1) / blocks;
  return std::min((even + of_warp - 1) / of_warp * of_warp, most);
}

/// The blocks of ReadValues.
struct ReadingBlocks {
  unsigned all;
  unsigned readers;  ///< those that begin with reads; of these, each has its share of all reads

  /// @param ordered reads are in the order of addresses
  /// @param copies they also copy what the cache has: two a multiprocessor, beside which another
  ///        kernel has room
  static ReadingBlocks Of(bool ordered, bool copies, unsigned multiprocessors) {
    constexpr unsigned kOrdered = 64;  // few, so that few pages are in use
    const unsigned readers = ordered ? kOrdered : multiprocessors;  // enough for a few reads
    return {copies ? std::max(2 * multiprocessors, readers) : readers, readers};
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_STRATEGY_H_
