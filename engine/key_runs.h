#ifndef GPM_ENGINE_KEY_RUNS_H_
#define GPM_ENGINE_KEY_RUNS_H_

#include <cstddef>
#include <cstdint>

#include "engine/combining.h"
#include "table/protocol.h"

namespace gpm {

/// How the tiles of a block carry out key runs together. Written once for the GPU and for its
/// explorer (docs/CRASH_CONSISTENCY.md), which has threads, queues and batches of other types.

/// What became of a key run: of the operations of a batch on one key.
enum class KeyRunStatus : std::uint32_t {
  kPending,     ///< not carried out: no slot or cell was free, or not reached yet
  kCollided,    ///< the same, of a searched run of several keys: carried out one by one
  kDone,        ///< carried out with one write; its operations' results follow from the record
  kSequential,  ///< carried out operation by operation, results and all
};

struct KeyRunRecord {
  std::uint16_t present;  ///< whether the key was there before
  std::uint16_t hit;      ///< and its value in GPU memory, or wanted by nobody
  KeyRunStatus status;
  union {
    std::uint32_t next;      ///< of a run that is carried out one by one: the first position left
    std::uint32_t old_cell;  ///< of a misprediction: the cell that the item had before the run
  };
};

/// A key run that a tile carries out.
struct KeyRunTask {
  bool active = false;  ///< the tile has one
  KeyRunEffect effect;  ///< of all of it
  KeyRunRecord* record = nullptr;
  std::uint32_t last = 0;               ///< its last operation
  std::uint32_t uses = 0;               ///< operations
  bool reads_old = false;               ///< its first find meets the value as it was before the run
  bool was_present = false;             ///< as the search found, if there was one
  std::uint32_t cell = 0;               ///< for it; 0: none
  std::uint32_t written = kNoPosition;  ///< the operation whose value the cell has already
  const std::uint64_t* made_of = nullptr;  ///< as in Addends
  RowsOfKey members{};                     ///< of a small batch: its operations
};

/// Where the tiles of a block take cells from; in memory that they share.
/// @tparam Threads the threads of the block: Rank(), Size() and Sync()
/// @tparam Cursor takes from lists of free cells (SmQueueCursor)
template <class Threads, class Cursor>
struct BlockCells {
  using Lists = typename Cursor::Lists;

  const Lists* lists;
  Cursor at;
  std::uint32_t wanted;
  bool is_dry;  ///< no cells are left

  /// By all threads of a block, before anything else.
  /// @param dealt free cells, queued by address (DealCells)
  GPM_HD void Begin(const Threads& threads, const Lists& dealt) {
    if (threads.Rank() == 0) {
      lists = &dealt;
      if (dealt.enabled()) at.Begin(dealt);
      is_dry = false;
    }
    threads.Sync();
  }
  /// What a thread knows from Ask to Give.
  struct Asked {
    std::uint32_t all;  ///< cells that the block's operations want; 0: nothing was asked for
    std::uint32_t own;  ///< which of them is for this tile
    std::uint32_t answer;
  };
  /// Asks for cells for the operations of the block's tiles, of the multiprocessor's own queue
  /// first, to be given later. All threads of the block call it.
  /// @param wants whether this tile's operation is expected to need a cell
  template <class Group>
  GPM_HD Asked Ask(const Threads& threads, const Group& group, bool wants) {
    Asked asked{0, kNoPosition, 0};
    if (!lists->enabled() || is_dry) return asked;
    threads.Sync();
    if (threads.Rank() == 0) wanted = 0;
    threads.Sync();
    std::uint32_t own = 0;
    if (wants && group.IsLeader()) own = AtomicNext(&wanted);
    own = group.Broadcast(own);
    if (wants) asked.own = own;
    threads.Sync();
    asked.all = wanted;
    if (asked.all != 0) asked.answer = at.Ask(*lists, asked.all);
    return asked;
  }
  /// By all threads that called Ask.
  /// @return number of the cell for this tile's operation; 0: it takes one from the grant if it
  ///         needs one
  GPM_HD std::uint32_t Give(const Threads& threads, const Asked& asked) {
    std::uint32_t cell = 0;
    for (std::uint32_t given = 0; given < asked.all;) {
      const std::uint32_t more = asked.all - given;
      const std::uint32_t answer = given == 0 ? asked.answer : at.Ask(*lists, more);
      const std::uint32_t some = at.TakeSome(*lists, more, answer);
      if (some == 0) {
        if (threads.Rank() == 0) is_dry = true;
        threads.Sync();
        break;
      }
      if (asked.own >= given && asked.own < given + some) {
        cell = at.At(*lists, at.first + asked.own - given);
      }
      given += some;
    }
    return cell;
  }
  /// Returns the cells that nobody took, by the last block of a kernel, when the others take none
  /// any more.
  GPM_HD void ReturnLeft(const Threads& threads, const Reclaim& reclaim) {
    if (!lists->enabled()) return;
    while (at.HasMore(*lists)) {
      const std::uint32_t some = at.TakeSome(*lists, threads.Size());
      if (threads.Rank() < some) reclaim.RetireCell(at.At(*lists, at.first + threads.Rank()));
    }
    threads.Sync();
    lists->Clear();
  }
};

/// Gives the tiles of a block the cells that were asked for, behind a search. By all of its
/// threads.
template <class Cells, class Threads>
struct CellsAsked {
  static constexpr bool kSearched = true;
  Cells* cells;
  Threads threads;
  typename Cells::Asked asked;

  GPM_HD std::uint32_t Give() const { return cells->Give(threads, asked); }
};
/// In its place where key runs were not searched, so that it is not known how many cells they need.
struct NoCells {
  static constexpr bool kSearched = false;
};

/// Who reads the values that key runs want as they were before: here the runs' own tiles. Another
/// type in its place, if it is enabled, has them read by others, who wait for the first round.
struct NobodyReadsApart : NobodyWaits {
  /// Called by a tile in the first round: others are to read this cell's value for operation
  /// `reader`.
  GPM_HD void ReadApart(std::uint32_t, std::uint32_t) const {}
};

/// Notes that a key run was answered wrongly while it was carried out (FixMispredicted).
template <class Batch>
GPM_HD inline void AddMisprediction(const Batch& batch, std::uint32_t first) {
  batch.mispredictions[AtomicAdd(&batch.sums->mispredictions, 1)] = first;
}

/// What a key run adds that accumulates.
template <class Batch>
GPM_HD inline Addends AddendsOf(const Batch& batch, const KeyRunTask& task,
                                std::uint32_t value_size) {
  Addends addends = batch.AddendsFor(task.last, value_size);
  addends.made_of = task.made_of;
  addends.rows = batch.ValueOf(0, value_size);
  if (task.uses == 1) {
    addends.rows = batch.ValueOf(task.last, value_size);
  } else if (task.members.owners != nullptr) {
    addends.of_key = task.members;
  } else {
    addends.order = batch.order + task.effect.first;
    addends.count = task.uses;
  }
  return addends;
}

/// Carries out the key runs of a team's tiles. All tiles call it.
/// @param cells CellsAsked: SearchKeyRuns came first, and the reads that it planned are being made;
///        if `reads` answers early, too, the batch is being answered by what the search found. Or
///        NoCells
/// @param apart who reads old values, such as NobodyReadsApart
template <class Team, class Operations, class Batch, class Reads, class Cells, class Apart>
GPM_HD inline void ApplyKeyRunTasks(const Team& team, const Operations& operations,
                                    const Batch& batch, const Reads& reads, const Cells& cells,
                                    const KeyRunTask& task, const Apart& apart) {
  constexpr bool kSearched = Cells::kSearched;
  const TableView& table = operations.table();
  const auto& group = operations.group();
  typename Operations::Work work;
  Addends addends;           // of a run that accumulates
  std::byte* row = nullptr;  // of the run's first find, which reads the value; other finds copy it
  std::uint32_t reader = 0;
  bool hit = false;
  if (task.active) {
    const std::uint64_t* key = batch.KeyOf(task.last, table.key_words);
    Plan plan = PlanOfKeyRun(task.effect, [&](std::uint32_t position) {
      return batch.ValueOf(batch.OperationAt(position), table.value_size);
    });
    if (plan.if_present == Action::kAdd) {
      addends = AddendsOf(batch, task, table.value_size);
      plan.addends = &addends;
    }
    work = operations.Start(operations.Locate(key), key, plan, task.uses);
    if (task.cell != 0) {
      operations.GiveCell(
          &work, task.cell,
          task.written == kNoPosition ? nullptr : batch.ValueOf(task.written, table.value_size));
    }
    hit = work.covered;  // unless a value is wanted that is not cached
    if (batch.found != nullptr && task.reads_old) {
      reader = batch.OperationAt(task.effect.first_find());
      row = batch.FoundOf(reader, table.value_size);
    }
    if (row != nullptr && kSearched && reads.has_plans()) {  // others write the row
      row = nullptr;
      hit = false;
    }
  }
  if constexpr (kSearched) {
    const std::uint32_t cell = cells.Give();
    if (cell != 0) operations.GiveCell(&work, cell);
  }
  const Outcome& outcome = work.outcome;
  const bool at_once = !reads.has_plans() || kSearched || table.inline_values();
  GroupCommit(team, operations, &work, task.active, apart, [&](bool is_first) {
    if (row == nullptr || !outcome.present || outcome.shortage != Shortage::kNothing) return;
    hit = operations.ReadCached(work.candidates, outcome, row);
    if (hit || !at_once) return;
    // (Only an operation without a directory may have to begin again, and so read once more.)
    if (is_first && apart.enabled() && work.covered) {
      apart.ReadApart(operations.CellOf(outcome.reference), reader);
    } else {
      operations.ReadValue(outcome.reference, row);
      hit = table.inline_values() && work.covered;
    }
  });
  if (!task.active || !group.IsLeader()) return;
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
    if (kSearched && reads.answers_early()) AddMisprediction(batch, task.effect.first);
    return;
  }
  if (!kSearched || !reads.answers_early()) {
    task.record->present = outcome.present ? 1 : 0;
    task.record->hit = hit ? 1 : 0;
  } else if (outcome.present != task.was_present) {
    if (outcome.present) task.record->old_cell = operations.CellOf(outcome.reference);
    AddMisprediction(batch, task.effect.first);
  }
  task.record->status = KeyRunStatus::kDone;
}

}  // namespace gpm

#endif  // GPM_ENGINE_KEY_RUNS_H_
