#ifndef GPM_ENGINE_BATCH_EXECUTOR_H_
#define GPM_ENGINE_BATCH_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "engine/epochs.h"
#include "engine/item_ranks.h"
#include "gpmstore/batch.h"
#include "gpmstore/options.h"
#include "gpmstore/store.h"
#include "recovery/slot_scan.h"
#include "table/displacing.h"

namespace gpm {

/// What a batch has done so far.
struct Progress {
  std::int64_t items_added = 0;      ///< in the phase that just ended
  std::uint64_t short_of_slots = 0;  ///< operations (or groups of them on one key) left for want of
                                     ///< a slot; none of theirs was applied
  std::uint64_t short_of_cells = 0;  ///< the same, for want of a value cell
  /// Operations carried out in this phase by a batch that was left over; not counted otherwise.
  std::uint64_t carried_out = 0;
  std::uint64_t found = 0;            ///< operations of this phase that found their key
  std::uint64_t cache_hits = 0;       ///< of those, in the cache
  std::uint64_t read_by_host = 0;     ///< values, for the GPU
  std::uint64_t written_by_host = 0;  ///< the same, to cells that items have now
  std::uint64_t cells_left = 0;       ///< at the end of its grant, not taken nor queued again
  std::uint64_t cells_unneeded = 0;   ///< others of those assigned to it, queued again
  bool drained = false;               ///< the buckets that it was to drain are empty
  ReclaimPositions positions;
  /// The operations were carried out as this says, but what they gave back could not be brought to
  /// the caller's memory.
  std::exception_ptr copy_failure;

  std::uint64_t shortages() const { return short_of_slots + short_of_cells; }
};

/// Buckets [first, last) of the level that is being drained beside batches (engine/draining.h).
struct BucketRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  std::uint64_t count() const { return last - first; }
};

/// When all that a batch gives back has to be there.
enum class Answers : std::uint8_t {
  kOnStream,     ///< for later work on its stream
  kWhenAwaited,  ///< when BatchTask::Await has returned
};

/// Throws Error(kInvalidArgument) for an array of a batch that host code can't read.
void RequireHostMemory(const void* array, std::size_t bytes, const char* name);

/// A batch in an executor. Thread safety: one thread at a time.
class BatchTask {
 public:
  virtual ~BatchTask() = default;
  /// Gives back the slots, drains the buckets and starts the batch, which may take the cells
  /// granted. Called once. REQUIRES: where the grant is filled, BatchExecutor::FillCells did so,
  /// and the batch, of inserts alone, has kFewestFilled operations at least.
  /// @param drain none where no level is being drained beside batches
  /// @throws Error(kGpu), std::bad_alloc
  virtual void Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
                     const BucketRange& drain) = 0;
  /// When Start or Resume has thrown: whether anything of what it was given, slots or cells, may
  /// have been used, or the batch have been applied in part.
  virtual bool Touched() const { return true; }
  /// Whether all its work was given to the executor, so that any thread may wait for it.
  virtual bool Complete() const { return true; }
  /// Whether a host can read the results where the batch has them.
  virtual bool ResultsOnHost() const { return true; }
  /// Waits for the phase that was started last. Idempotent. @throws Error(kGpu)
  virtual Progress Await() = 0;
  /// Whether Await would not wait.
  virtual bool Done() { return true; }
  /// Makes durable what the batch's results may rest on: writes of batches that ran at the same
  /// time, visible to it and perhaps not flushed yet. Does nothing where visible is durable; and
  /// nothing on executor cuda, with which a store promises nothing about power loss elsewhere.
  /// REQUIRES: Await was called.
  virtual void PersistObserved() {}
  /// Frees slots for what was left and lacks one (table/displacing.h), while no other batch runs.
  /// @param most so many at most @param room none where more inserts are left than this, if the
  ///        executor has not counted them (Progress::short_of_slots) @throws as Resume
  virtual SlotsMade MakeSlots(std::uint64_t /*most*/, std::uint64_t /*room*/) { return {}; }
  /// Runs what was left, to the end, while no other batch runs.
  /// @param final_attempt what still finds no room gets Result::kNoSpace
  /// @param grant cells that it may take, not filled; what was left of the former is queued again
  /// @throws as Start; the batch is then not resumed again
  virtual Progress Resume(bool final_attempt, const CellGrant& grant) = 0;
};

/// Room for results, where an executor writes them fastest: perhaps not where the host can read.
class ResultArray {
 public:
  virtual ~ResultArray() = default;
  std::span<Result> results;
};
struct HostResults : ResultArray {
  explicit HostResults(std::uint64_t count) : array(count) { results = array; }
  std::vector<Result> array;
};

/// Values on their way to cells. Waits for that when it is destroyed.
class CellFilling {
 public:
  virtual ~CellFilling() = default;
  /// Returns when all are there. @throws Error(kGpu)
  virtual void Await() = 0;
};

/// Runs batches on a table.
///
/// Thread safety: SortCells by one thread at a time; everything else by any thread, while batches
/// run.
class BatchExecutor {
 public:
  virtual ~BatchExecutor() = default;

  virtual ExecutorKind kind() const = 0;
  virtual unsigned threads() const = 0;
  virtual int device() const { return -1; }  ///< the CUDA device; -1 of executor cpu

  /// Whether batches of inserts take filled grants, and of how many operations at least.
  virtual bool TakesFilledCells() const { return false; }
  static constexpr std::uint64_t kFewestFilled = std::uint64_t{1} << 15;
  /// Begins to copy rows of values to cells, in order, beside batches that run: without their
  /// threads. REQUIRES: the cells, as many, were granted, and nobody takes them
  /// @return null where batches are to write their values themselves @throws Error(kGpu)
  virtual std::unique_ptr<CellFilling> FillCells(std::span<const std::byte> /*values*/,
                                                 CellRange /*cells*/) {
    return nullptr;
  }

  /// Makes a batch ready to start.
  /// @throws Error(kInvalidArgument) for an array that this executor can't reach, kGpu
  virtual std::shared_ptr<BatchTask> Prepare(const Batch& batch, Stream stream,
                                             Answers answers) = 0;

  /// An array of a batch that has ended, or that has not begun, where the host can read it: itself,
  /// or a copy. @throws Error(kGpu), std::bad_alloc
  virtual const std::byte* OnHost(const void* array, std::size_t /*bytes*/,
                                  std::vector<std::byte>* /*copy*/) {
    return static_cast<const std::byte*>(array);
  }

  /// Room for the results of a batch of which its counts say enough. @throws Error(kGpu),
  /// std::bad_alloc
  virtual std::unique_ptr<ResultArray> MakeResults(std::uint64_t count) {
    return std::make_unique<HostResults>(count);
  }

  /// Ranks of the items, by this executor's own kernels; null where it has none. The executor
  /// outlives them. @throws Error(kGpu), std::bad_alloc
  virtual std::unique_ptr<ItemRanks> MakeItemRanks(const RankedItems& /*items*/) { return nullptr; }

  /// Waits for what a stream has, on which a search is to run.
  /// @throws Error kInvalidArgument (a search can't be there), kGpu
  virtual void AwaitStream(Stream /*stream*/) {}
  /// Copies from host memory to an array in the memory of this executor's GPU. @throws Error(kGpu)
  virtual void CopyToGpu(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {}

  /// Gives back erased slots: from then on they are empty.
  virtual void RecycleSlots(const Epochs::SlotRange& slots) = 0;
  /// How far the queues have come.
  virtual ReclaimPositions Positions() = 0;
  /// Queues again what a batch left of its grant.
  virtual ReclaimPositions ReturnCells(const CellGrant& cells) = 0;
  /// Sorts free cells in the queue that nobody was granted yet, where that pays; batches that are
  /// started afterwards take them in that order. @throws Error(kGpu)
  virtual void SortCells(const CellGrant& cells) = 0;
  /// Whether that ever pays: SortCells does something.
  virtual bool SortsCells() const = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_BATCH_EXECUTOR_H_
