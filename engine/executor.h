#ifndef GPM_ENGINE_EXECUTOR_H_
#define GPM_ENGINE_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/sizing.h"
#include "gpmstore/batch.h"
#include "engine/epochs.h"
#include "gpmstore/options.h"
#include "gpmstore/store.h"
#include "table/layout.h"
#include "table/free_queues.h"
#include "pm/mapping.h"
#include "recovery/slot_scan.h"

namespace gpm {

/// What a batch has done so far.
struct Progress {
  std::int64_t items_added = 0;  ///< in the phase that just ended
  std::uint64_t lack_slots = 0;  ///< operations (or groups of them on one key) left for want of a
                                 ///< slot; none of theirs was applied
  std::uint64_t lack_cells = 0;  ///< the same, for want of a value cell
  /// Operations carried out in this phase by a batch that was left over; not counted otherwise.
  std::uint64_t carried_out = 0;
  std::uint64_t found = 0;       ///< operations of this phase that found their key
  std::uint64_t cache_hits = 0;  ///< of those, in the cache
  std::uint64_t cells_left = 0;  ///< at the end of its grant, not taken nor queued again
  ReclaimPositions positions;

  std::uint64_t lacking() const { return lack_slots + lack_cells; }
};

/// One batch in an executor. Thread safety: one thread at a time.
class Run {
 public:
  virtual ~Run() = default;
  /// Gives back the slots and starts the batch, which may take the cells granted. Called once.
  /// @throws Error(kGpu), std::bad_alloc
  virtual void Start(const Epochs::SlotRange& give_back, const CellGrant& grant) = 0;
  /// When Start or Resume has thrown: whether anything of what it was given, slots or cells, may
  /// have been used, or the batch have been applied in part.
  virtual bool Touched() const { return true; }
  /// Whether all its work was given to the executor, so that any thread may wait for it.
  virtual bool Complete() const { return true; }
  /// Waits for the phase that was started last. Idempotent. @throws Error(kGpu)
  virtual Progress Await() = 0;
  /// Makes durable what the batch's results may rest on: writes of batches that ran at the same
  /// time, visible to it and perhaps not flushed yet. Does nothing where visible is durable; and
  /// nothing on executor cuda, with which a store promises nothing about power loss elsewhere.
  /// REQUIRES: Await was called.
  virtual void Settle() {}
  /// Runs what was left, to the end, while no other batch runs.
  /// @param give_up what still finds no room gets Result::kNoSpace
  /// @param grant cells that it may take; what was left of the former grant is queued again
  /// @throws as Start; the batch is then not resumed again
  virtual Progress Resume(bool give_up, const CellGrant& grant) = 0;
};

/// Runs batches on a table, and the passes of recovery and resizing.
///
/// Thread safety: Prepare and the Runs it makes may be used by several threads at once; everything
/// else only while nothing runs (the store sees to it).
class Executor {
 public:
  virtual ~Executor() = default;

  virtual ExecutorKind kind() const = 0;
  virtual unsigned threads() const = 0;
  /// GPU memory that this executor allocated, bytes: but for the workspaces of batches, and those.
  virtual std::uint64_t gpu_bytes() const = 0;
  virtual std::uint64_t workspace_bytes() const = 0;

  /// The table changed: levels, tops.
  /// @param keep the addressable levels are the same: directory and cache stay. Else there is
  ///        neither from then on
  virtual void SetTable(const TableView& table, bool keep) = 0;
  /// Makes the queues hold `cells` value cells and `slots` erased slots; what is in them, cells
  /// from position `head` on, stays. @throws Error(kGpu), std::bad_alloc; nothing is lost then
  virtual void GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) = 0;
  virtual std::uint64_t slot_queue_room() const = 0;

  /// One pass over all physical levels and the reserved level. kTrust and kInspect leave behind
  /// which cells are in use, for FreeUnusedCells.
  virtual PassCounters Pass(PassMode mode, const std::vector<CellRange>& ranges) = 0;
  /// What the last pass left behind, a bit for each cell, by number.
  virtual std::vector<std::uint32_t> UsedCells() = 0;
  /// Frees the cells of the ranges that the last pass did not find in use.
  virtual void FreeUnused(const std::vector<CellRange>& ranges) = 0;
  /// Frees all cells of a range just added.
  virtual void FreeAll(CellRange range) = 0;
  /// Moves the items of a level that is not addressed any more up. @return items left in it
  virtual std::uint64_t DrainLevel(std::uint32_t level) = 0;
  /// Gives back erased slots. Any thread, while batches run.
  virtual void GiveBack(const Epochs::SlotRange& slots) = 0;
  virtual ReclaimPositions Positions() = 0;
  /// Queues again what a batch left of its grant. Any thread, while batches run.
  virtual ReclaimPositions QueueAgain(const CellGrant& cells) = 0;
  /// Sorts free cells in the queue that nobody was granted yet, where that pays; batches that are
  /// started afterwards take them in that order. While batches run. @throws Error(kGpu)
  virtual void SortCells(const CellGrant& cells) = 0;
  /// Counts the value cells that are not exactly one thing: one item's, or once in the queue, from
  /// position `head` on. REQUIRES: every erased slot was given back. For tests.
  /// @throws Error(kUnsupported) on executor cuda
  virtual std::uint64_t CountMisplacedCells(const std::vector<CellRange>& ranges,
                                            std::uint64_t head) = 0;

  /// Makes a directory of this shape from the table as it is now, and an empty cache; none where
  /// the shape has none. Ends a loading under way.
  /// @throws Error(kGpu), std::bad_alloc; there are none then
  /// @param used buckets, by index: all slots of those behind them are empty
  virtual void SetAccelerators(const CacheShape& shape, CachePolicy policy, std::uint32_t used) = 0;
  // Loading the cache, while batches run (cache/refresh.h). One thread at a time.
  virtual void LoadCache() = 0;  ///< begins it @throws Error(kGpu)
  virtual bool CacheLoadEnded() = 0;
  virtual void AwaitCacheLoad() = 0;  ///< @throws Error(kGpu)

  /// Makes a batch ready to start. Any thread.
  /// @throws Error(kInvalidArgument) for an array that this executor can't reach, kGpu
  virtual std::shared_ptr<Run> Prepare(const Batch& batch, Stream stream) = 0;
};

/// A tracer that has an executor of its own.
class ExecutorSource {
 public:
  virtual ~ExecutorSource() = default;
  virtual std::unique_ptr<Executor> MakeExecutor(unsigned threads, const Mapping& mapping) = 0;
};

/// @param mapping of the pool; outlives the executor. When it has a tracer, that carries out all
///        accesses and runs the threads, or makes the executor (ExecutorSource).
std::unique_ptr<Executor> MakeCpuExecutor(unsigned threads, const Mapping& mapping);

/// @throws Error(kUnsupported) when this build or machine has no CUDA, kGpu
std::unique_ptr<Executor> MakeCudaExecutor(const OpenOptions& open, const Mapping& mapping);

}  // namespace gpm

#endif  // GPM_ENGINE_EXECUTOR_H_
