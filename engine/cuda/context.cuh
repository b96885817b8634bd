#ifndef GPM_ENGINE_CUDA_CONTEXT_CUH_
#define GPM_ENGINE_CUDA_CONTEXT_CUH_

#include <cstring>

#include "engine/combining.h"
#include "engine/cuda/strategy.h"
#include "engine/epochs.h"
#include "engine/key_runs.h"
#include "table/media/cuda.cuh"
#include "table/protocol.h"

namespace gpm {

/// Lanes of the tile that works on one operation. 8 lanes read the 8 states of a 2L-2H-8S bucket as
/// one 64-byte line each, and copy a 128-byte value in one step; 4 operations share a warp.
inline constexpr std::uint32_t kTileLanes = 8;
inline constexpr unsigned kBlockThreads = 256;
inline constexpr unsigned kTilesPerBlock = kBlockThreads / kTileLanes;

using CudaTile = TileGroup<kTileLanes>;
using TileOperations = Operations<CudaTile, CudaMedia>;
using LaneOperations = Operations<ThreadGroup, CudaMedia>;

/// A block that works on one operation.
template <std::uint32_t kThreads>
class BlockGroup {
 public:
  static constexpr std::uint32_t kSize = kThreads;

  __device__ std::uint32_t Lane() const { return threadIdx.x; }
  __device__ bool IsLeader() const { return threadIdx.x == 0; }
  __device__ void Sync() const { __syncthreads(); }
  template <class Word>
  __device__ Word Broadcast(Word value) const {
    __shared__ Word of_leader;
    __syncthreads();
    if (threadIdx.x == 0) of_leader = value;
    __syncthreads();
    return of_leader;
  }
};

/// What every kernel that works on the table gets, by value.
struct TableContext {
  TableView table;
  Reclaim reclaim;
  KeyLocks locks;
  Accelerators accelerators;
  DirtyLog dirty;  ///< empty in passes, after which the host flushes the whole pool
};

/// What a batch came to.
struct BatchTotals {
  std::uint64_t items_added;  ///< two's complement
  std::uint64_t short_of_slots;
  std::uint64_t short_of_cells;
  std::uint64_t carried_out;     ///< one by one
  std::uint64_t cells_taken;     ///< asked for, of the batch's grant; of assigned ones, needed
  std::uint64_t found;           ///< finds that found their key
  std::uint64_t cache_hits;      ///< of those, with the value in GPU memory
  std::uint64_t reads_shared;    ///< of those of FindKeys, whose value another find read
  std::uint64_t long_run_rows;   ///< of long key runs that accumulate (LongSum)
  std::uint64_t mispredictions;  ///< runs in DeviceBatch::mispredictions
  std::uint64_t row_copies;      ///< asked for, of a batch that is answered while it is carried out
  // Of DrainBesideBatches:
  std::uint64_t stuck;      ///< operations for whose keys' items there is no slot above
  std::uint64_t undrained;  ///< items left in the buckets that it was to drain
};

/// Sums over a batch, in GPU memory. They begin at 0.
struct BatchSums : BatchTotals {
  /// At GridBarrier, of each kernel of which all blocks begin together.
  static constexpr std::uint32_t kParts = StrategyThresholds::kSmallWritingParts;
  std::uint64_t blocks_arrived[kParts];
  std::uint64_t blocks_done;  ///< of the kernels that report
  std::uint64_t meetings;     ///< of keys with equal hashes, at least (CollidedRuns)
};

/// What the host is told when a batch has ended.
struct BatchReport {
  BatchTotals sums;
  ReclaimPositions positions;
  std::uint64_t dirty_lines;
};

/// How it is told, in pinned host memory: each half of each word beside the report's number, so
/// that no fence has to order them.
struct ReportWords {
  static constexpr std::uint32_t kHalves = sizeof(BatchReport) / 4;

  std::uint64_t halves[kHalves];

  /// @return whether the report with this number has come
  bool Read(std::uint32_t number, BatchReport* report) const {
    std::uint32_t values[kHalves];
    for (std::uint32_t k = 0; k < kHalves; ++k) {
      const std::uint64_t half = __atomic_load_n(&halves[k], __ATOMIC_ACQUIRE);
      if (half >> 32 != number) return false;
      values[k] = static_cast<std::uint32_t>(half);
    }
    std::memcpy(report, values, sizeof(values));
    return true;
  }
};

/// What AddLongRuns has made of a key run that adds many rows.
struct alignas(16) LongSum {
  static constexpr std::uint32_t kFewest = 32;  ///< operations of such a run
  /// The same in a batch of so many. (Of shorter runs a large batch has enough for all tiles: by
  /// blocks of AddLongRuns, 528 of which run at once, they would take longer.)
  GPM_HD static std::uint32_t From(std::uint32_t operations) {
    constexpr std::uint32_t kOneIn = 8192;
    return operations / kOneIn > kFewest ? operations / kOneIn : kFewest;
  }
  /// Whether a kernel can add rows a word at a time. (Others are added by who carries out the run.)
  GPM_HD static bool CanAdd(Element element, std::uint64_t value_size, const void* rows) {
    const std::uint32_t word = element == Element::kUInt64 ? 8 : 4;
    return value_size % word == 0 && reinterpret_cast<std::uintptr_t>(rows) % word == 0;
  }

  std::uint64_t reference;  ///< of the value that the rows were added to
  std::uint32_t begin;      ///< the position behind the one where the run begins; 0: none was made
};

/// A batch as the kernels see it: arrays in GPU memory.
struct DeviceBatch {
  std::uint32_t count;
  Op op;
  Element element;
  const Op* ops;  ///< null: all are `op`
  const std::uint64_t* keys;
  const std::byte* values;  ///< null: none
  std::byte* found;         ///< null: not wanted
  Result* results;
  // Positions are those of the batch in the order of key runs; in a small batch those of the
  // operations.
  const std::uint32_t* hashes;    ///< equal within a key run, and nowhere else
  const std::uint32_t* order;     ///< position -> operation; null: of a small batch
  KeyRunEffect* effects;          ///< up to each position, including it; not of a small batch
  KeyRunRecord* records;          ///< by the position where the run begins
  std::uint64_t* digests;         ///< of a small batch, DigestKey of keys of several words
  std::uint32_t* mispredictions;  ///< where key runs begin that were answered before they were
                                  ///< carried out, and wrongly, or that found no room
  std::byte* added;    ///< rows for the sums of operations that accumulate; null: there are none
  LongSum* long_sums;  ///< by where the run begins, / LongSum::kFewest; null: none are made
  BatchSums* sums;

  /// Some operations of a small batch, as a batch.
  DeviceBatch Part(std::uint32_t first, std::uint32_t operations, const TableView& table) const {
    DeviceBatch part = *this;
    const auto advance = [first](auto& array, std::uint64_t row) {
      if (array != nullptr) array += first * row;
    };
    part.count = operations;
    advance(part.ops, 1);
    advance(part.keys, table.key_words);
    advance(part.values, table.value_size);
    advance(part.found, table.value_size);
    advance(part.results, 1);
    advance(part.records, 1);
    advance(part.digests, 1);
    advance(part.added, table.value_size);
    return part;
  }

  /// Whether nothing can be carried out in this phase, since an item is where operations do not
  /// look for it: all of the batch is left over then.
  __device__ bool IsStuck(const TableView& table) const {
    return table.draining() && AtomicLoad(&sums->stuck) != 0;
  }
  __device__ std::uint32_t OperationAt(std::uint32_t p) const {
    return order == nullptr ? p : order[p];
  }
  __device__ const std::uint64_t* KeyOf(std::uint32_t i, std::uint32_t key_words) const {
    return keys + std::uint64_t{i} * key_words;
  }
  __device__ Op KindOf(std::uint32_t i) const { return ops == nullptr ? op : ops[i]; }
  __device__ const std::byte* ValueOf(std::uint32_t i, std::uint32_t value_size) const {
    return values == nullptr ? nullptr : values + std::uint64_t{i} * value_size;
  }
  /// Whether there is what an operation of this kind writes.
  __device__ bool HasValueFor(Op kind) const {
    return values != nullptr && (kind != Op::kAccumulate || added != nullptr);
  }
  /// How an operation accumulates, but for the rows.
  __device__ Addends AddendsFor(std::uint32_t i, std::uint32_t value_size) const {
    Addends addends;
    addends.element = element;
    addends.sum = added + std::uint64_t{i} * value_size;
    return addends;
  }
  /// As Addends::made_of, of a run of so many operations.
  __device__ const std::uint64_t* MadeOf(std::uint32_t first, std::uint32_t uses) const {
    if (long_sums == nullptr || uses < LongSum::kFewest) return nullptr;
    const LongSum& made = long_sums[first / LongSum::kFewest];
    return made.begin == first + 1 ? &made.reference : nullptr;
  }
  __device__ std::byte* FoundOf(std::uint32_t i, std::uint32_t value_size) const {
    return found + std::uint64_t{i} * value_size;
  }
};

/// What SearchKeyRuns queues of a key run: so much that who carries it out need not load one thing
/// to find the next.
struct alignas(8) PendingRun {
  std::uint32_t end;   ///< sorted position at which it ends; kBit: it is expected to need a cell
  std::uint32_t last;  ///< its last operation; kBit: its key was there
  static constexpr std::uint32_t kBit = 1u << 31;  // (a batch has fewer operations)

  __device__ std::uint32_t position() const { return end & ~kBit; }
  __device__ std::uint32_t last_operation() const { return last & ~kBit; }
  __device__ bool needs_cell() const { return (end & kBit) != 0; }
  __device__ bool was_present() const { return (last & kBit) != 0; }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_CONTEXT_CUH_
