#ifndef GPM_ENGINE_KEY_RUNS_H_
#define GPM_ENGINE_KEY_RUNS_H_

#include <cstddef>
#include <cstdint>

#include "engine/combining.h"
#include "table/protocol.h"

namespace gpm {

/// How the tiles of a block carry out runs together, written once for the GPU and for its explorer
/// (docs/CRASH_CONSISTENCY.md), whose threads, lists and batches are of other types.

/// What became of a run of operations on one key.
enum class KeyRunStatus : std::uint32_t {
  kPending,     ///< not carried out: no slot or cell was free, or not reached yet
  kMixed,       ///< the same, of a searched run that has to be carried out operation by operation
  kDone,        ///< carried out with one write; its operations' results follow from the record
  kSequential,  ///< carried out operation by operation, results and all
};

struct KeyRunRecord {
  std::uint16_t present;  ///< whether the key was there before
  std::uint16_t hit;      ///< and its value in GPU memory, or wanted by nobody
  KeyRunStatus status;
  /// First position not carried out, of a run that is done one by one; of
  /// DeviceBatch::mispredictions, the cell that the item had before the run.
  std::uint32_t next;
};

/// A run that a tile carries out.
struct KeyRunTask {
  KeyRunEffect effect;  ///< of all of it
  KeyRunRecord* record;
  std::uint32_t last;     ///< its last operation
  std::uint32_t uses;     ///< operations
  bool reads_old;         ///< its first find meets the value as it was before the run
  std::uint32_t cell;     ///< that has a value already; 0: none
  std::uint32_t written;  ///< the operation whose value it is
};

/// Where the tiles of a block take cells from; in memory that they share.
/// @tparam Threads the threads of the block: Rank(), Size(), Sync(), and IsLastBlock(counter, flag)
/// @tparam Cursor takes from lists of free cells (SmQueueCursor)
template <class Threads, class Cursor>
struct BlockCells {
  using Lists = typename Cursor::Lists;

  const Lists* lists;
  Cursor at;
  std::uint32_t wanted;
  bool is_dry;  ///< no cells are left
  bool is_last;

  /// By all threads of a block, before anything else.
  /// @param dealt free cells by part (DealCells)
  GPM_HD void Begin(const Threads& threads, const Lists& dealt) {
    if (threads.Rank() == 0) {
      lists = &dealt;
      if (dealt.enabled()) at.Begin(dealt);
      is_dry = false;
    }
    threads.Sync();
  }
  /// Gives the operations of the block's tiles cells of the multiprocessor's own part, as far as
  /// there are any; all threads of the block come here. What gets none takes it from the grant.
  /// @param wants whether this tile's operation is expected to need one
  template <class Operations, class Group, class Work>
  GPM_HD void Give(const Threads& threads, const Operations& operations, const Group& group,
                   bool wants, Work* work) {
    if (!lists->enabled() || is_dry) return;
    threads.Sync();
    if (threads.Rank() == 0) wanted = 0;
    threads.Sync();
    std::uint32_t own = 0;
    if (wants && group.IsLeader()) own = AtomicNext(&wanted);
    own = group.Broadcast(own);
    threads.Sync();
    const std::uint32_t all = wanted;
    for (std::uint32_t given = 0; given < all;) {
      const std::uint32_t some = at.TakeSome(*lists, all - given);
      if (some == 0) {
        if (threads.Rank() == 0) is_dry = true;
        threads.Sync();
        return;
      }
      if (wants && own >= given && own < given + some) {
        operations.GiveCell(work, at.At(*lists, at.first + own - given));
      }
      given += some;
    }
  }
  /// By all blocks of a kernel, at its end: the last one queues what nobody took again.
  GPM_HD void Return(const Threads& threads, const Reclaim& reclaim) {
    if (!lists->enabled()) return;
    if (!threads.IsLastBlock(&lists->counts[Lists::kBlocksDone], &is_last)) return;
    while (const std::uint32_t some = at.TakeSome(*lists, threads.Size())) {
      if (threads.Rank() < some) reclaim.RetireCell(at.At(*lists, at.first + threads.Rank()));
    }
    threads.Sync();
    lists->Clear();
  }
};

/// For who does not take cells so.
struct NoCells {
  template <class... Arguments>
  GPM_HD void Give(const Arguments&...) {}
};

/// A run was answered while it was carried out, and not by what came of it (FixMispredicted).
template <class Batch>
GPM_HD inline void AddMisprediction(const Batch& batch, std::uint32_t first) {
  batch.mispredictions[AtomicAdd(&batch.sums->mispredictions, 1)] = first;
}

/// Carries out the runs of a team's tiles; all of them come here.
/// @param begins, begun as for GroupCommit
/// @param read_apart read_apart(cell, reader) is called in the first round, if `begins`, by a tile
///        that wants a value for an operation: to be read by others, by whom `begun` lets it be
///        read
/// @param cells to take; not null: SearchKeyRuns came first, and what it planned is being read; if
///        `reads` has copies, the batch is answered meanwhile by what was found then
/// @param active whether this tile has one
template <class Team, class Operations, class Group, class Batch, class Reads, class Cells,
          class ReadApart, class Begun>
GPM_HD inline void ApplyKeyRunTasks(const Team& team, const Operations& operations,
                                    const Group& group, const TableView& table, const Batch& batch,
                                    const Reads& reads, const KeyRunTask& task, Cells* cells,
                                    bool active, bool begins, const ReadApart& read_apart,
                                    const Begun& begun) {
  const bool searched = cells != nullptr;
  typename Operations::Work work;
  std::byte* row = nullptr;  // of the run's first find, which reads the value; others copy from it
  std::uint32_t reader = 0;
  bool hit = false;
  if (active) {
    const std::uint64_t* key = batch.KeyOf(task.last, table.key_words);
    const Plan plan = PlanOfKeyRun(task.effect, [&](std::uint32_t position) {
      return batch.ValueOf(batch.OperationAt(position), table.value_size);
    });
    work = operations.Start(operations.Locate(key), key, plan, task.uses);
    if (task.cell != 0) {
      operations.GiveCell(&work, task.cell, batch.ValueOf(task.written, table.value_size));
    }
    hit = work.covered;  // unless a value is wanted that is not cached
    if (batch.found != nullptr && task.reads_old) {
      reader = batch.OperationAt(task.effect.first_find());
      row = batch.FoundOf(reader, table.value_size);
    }
    if (row != nullptr && searched && reads.plans != nullptr &&
        !reads.plans[reader].IsByWriter()) {  // others write the row
      row = nullptr;
      hit = false;
    }
  }
  if (searched) {
    const bool was_present = active && task.record->present != 0;
    const Action action = was_present ? work.plan.if_present : work.plan.if_absent;
    cells->Give(team.threads(), operations, group, active && action == Action::kWrite, &work);
  }
  const Outcome& outcome = work.outcome;
  const bool at_once = reads.plans == nullptr || searched || table.inline_values();
  GroupCommit(
      team, operations.media(), operations, &work, active, begins,
      [&](bool is_first) {
        if (row == nullptr || !outcome.present || outcome.shortage != Shortage::kNothing) return;
        hit = operations.ReadCached(work.candidates, outcome, row);
        if (hit || !at_once) return;
        // (What has to begin again, which nothing does that is covered, may read another value.)
        if (is_first && begins && work.covered) {
          read_apart(operations.CellOf(outcome.reference), reader);
        } else {
          operations.ReadValue(outcome.reference, row);
          hit = table.inline_values() && work.covered;
        }
      },
      begun);
  if (!active || !group.IsLeader()) return;
  const bool found = outcome.present && outcome.shortage == Shortage::kNothing;
  if (row != nullptr && found && !hit && !at_once) {
    reads.plans[reader] = reads.PlanFirst(operations.CellOf(outcome.reference), reader);
  }
  if (const int added = ItemsAdded(work.plan, outcome); added != 0) {
    AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(std::int64_t{added}));
  }
  if (outcome.shortage != Shortage::kNothing) {
    AtomicAdd(outcome.shortage == Shortage::kSlot ? &batch.sums->short_of_slots
                                                  : &batch.sums->short_of_cells,
              1);
    if (searched && reads.copies != nullptr) AddMisprediction(batch, task.effect.first);
    return;
  }
  if (!searched || reads.copies == nullptr) {
    task.record->present = outcome.present ? 1 : 0;
    task.record->hit = hit ? 1 : 0;
  } else if (outcome.present != (task.record->present != 0)) {
    if (outcome.present) task.record->next = operations.CellOf(outcome.reference);
    AddMisprediction(batch, task.effect.first);
  }
  task.record->status = KeyRunStatus::kDone;
}

}  // namespace gpm

#endif  // GPM_ENGINE_KEY_RUNS_H_
