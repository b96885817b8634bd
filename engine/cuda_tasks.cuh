#ifndef GPM_ENGINE_CUDA_TASKS_CUH_
#define GPM_ENGINE_CUDA_TASKS_CUH_

#include "engine/cuda_reads.cuh"

namespace gpm {

/// How runs are carried out, by the tiles of a block together, in batches of any size.

/// Carries out the operations of a run from position record->next on one by one.
/// @param last the run's last position
/// @param after after(p) is the run's next position after p
template <class After>
__device__ GPM_SELDOM void RunOneByOne(const TableContext& context, const DeviceBatch& batch,
                                       RunRecord* record, std::uint32_t last, bool give_up,
                                       BlockCounts* counts, After after) {
  const TableView& table = context.table;
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  group, CudaMedia(context.dirty));
  std::int64_t items_added = 0;
  std::uint64_t carried_out = 0;
  group.Sync();
  std::uint32_t p = record->next;
  Lack lack = Lack::kNothing;
  group.Sync();
  for (; p <= last; p = after(p), ++carried_out) {
    const std::uint32_t i = batch.OperationAt(p);
    const Op op = batch.KindOf(i);
    const std::uint64_t* key = batch.KeyOf(i, table.key_words);
    const Plan plan = PlanOf(op, batch.ValueOf(i, table.value_size));
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Apply(candidates, key, plan);
    lack = outcome.lack;
    items_added += ItemsAdded(plan, outcome);
    if (lack != Lack::kNothing && !give_up) break;
    bool hit = true;
    if (op == Op::kFind && outcome.present && batch.found != nullptr) {
      hit = operations.ReadFound(candidates, outcome, batch.FoundOf(i, table.value_size));
    }
    if (group.IsLeader()) {
      if (op == Op::kFind && outcome.present) counts->CountFound(hit);
      batch.results[i] = lack != Lack::kNothing
                             ? Result::kNoSpace
                             : ResultOf(op, outcome.present, batch.values != nullptr);
    }
  }
  if (!group.IsLeader()) return;
  AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(items_added));
  AtomicAdd(&batch.sums->carried_out, carried_out);
  record->next = p;
  if (p > last) {
    record->status = RunStatus::kSequential;
  } else {
    AtomicAdd(lack == Lack::kSlot ? &batch.sums->lack_slots : &batch.sums->lack_cells, 1);
    for (; p <= last; p = after(p)) batch.results[batch.OperationAt(p)] = Result::kNoSpace;
  }
}

/// All threads of a team: what they wrote to persistent memory persists, and is seen, before what
/// any of them writes from then on. One fence for all, since fences are cumulative: it orders what
/// its thread has seen, which the barrier lets it see. REQUIRES: a barrier of the team comes before
/// it.
template <class Team>
__device__ inline void FenceTeam() {
  if (Team::Rank() == 0) __threadfence_system();
  Team::Sync();
}

/// Applies the operations of a team's tiles (Operations::Apply), step by step together. Nobody
/// waits for a key's lock, which another tile of the team might hold: it is tried again in the next
/// round.
/// @param active whether this tile has one
/// @param begins whether there is a first round also when no tile has one
/// @param read_old read_old(is_first) is called by a tile whose operation has begun, in the first
///        round or a later one, again if it has to begin again: reads what it wants of the item as
///        it was
/// @param begun called by one thread when the first round's operations have begun
template <class Team, class ReadOld, class Begun>
__device__ inline void ApplyTogether(const TileOperations& operations, TileOperations::Work* work,
                                     bool active, bool begins, const ReadOld& read_old,
                                     const Begun& begun) {
  for (bool is_first = true; Team::Or(active) || (is_first && begins); is_first = false) {
    const bool has_begun = active && operations.TryBegin(work);
    bool changes = has_begun && work->change != TileOperations::Change::kNothing;
    if (has_begun) {
      active = changes;
      read_old(is_first);
    }
    const bool any = Team::Or(changes);
    if (is_first && begins && Team::Rank() == Team::Size() - 1) begun();
    if (!any) continue;
    FenceTeam<Team>();
    if (changes) {
      operations.TellCache(*work);
      changes = operations.Commit(work);
    }
    Team::Sync();
    FenceTeam<Team>();
    if (!changes) continue;
    operations.Finish(work);
    active = false;
  }
}

/// A run was answered while it was carried out, and not by what came of it (CorrectAnswers).
__device__ inline void AddSurprise(const DeviceBatch& batch, std::uint32_t first) {
  batch.surprises[AtomicAdd(&batch.sums->surprises, 1)] = first;
}

/// A run that a tile carries out.
struct RunTask {
  RunEffect effect;  ///< of all of it
  RunRecord* record;
  std::uint32_t last;     ///< its last operation
  std::uint32_t uses;     ///< operations
  bool reads_old;         ///< its first find meets the value as it was before the run
  std::uint32_t cell;     ///< that has a value already; 0: none
  std::uint32_t written;  ///< the operation whose value it is
};

/// Where the tiles of a block take cells from; in shared memory.
struct BlockCells {
  using Lists = PartLists<std::uint32_t>;

  const Lists* lists;
  PartCursor<std::uint32_t> at;
  std::uint32_t wanted;
  bool is_dry;  ///< no cells are left
  bool is_last;

  /// By all threads of a block, before anything else.
  /// @param dealt free cells by part (DealCells)
  __device__ void Begin(const Lists& dealt) {
    if (threadIdx.x == 0) {
      lists = &dealt;
      if (dealt.enabled()) at.Begin(dealt);
      is_dry = false;
    }
    __syncthreads();
  }
  /// Gives the operations of the block's tiles cells of the multiprocessor's own part, as far as
  /// there are any; all threads of the block come here. What gets none takes it from the grant.
  /// @param wants whether this tile's operation is expected to need one
  __device__ void Give(const TileOperations& operations, const CudaTile& group, bool wants,
                       TileOperations::Work* work) {
    if (!lists->enabled() || is_dry) return;
    __syncthreads();
    if (threadIdx.x == 0) wanted = 0;
    __syncthreads();
    std::uint32_t own = 0;
    if (wants && group.IsLeader()) own = atomicAdd(&wanted, 1u);
    own = group.Broadcast(own);
    __syncthreads();
    const std::uint32_t all = wanted;
    for (std::uint32_t given = 0; given < all;) {
      const std::uint32_t some = at.TakeSome(*lists, all - given);
      if (some == 0) {
        if (threadIdx.x == 0) is_dry = true;
        __syncthreads();
        return;
      }
      if (wants && own >= given && own < given + some) {
        operations.GiveCell(work, at.At(*lists, at.first + own - given));
      }
      given += some;
    }
  }
  /// By all blocks of a kernel, at its end: the last one queues what nobody took again.
  __device__ void Return(const Reclaim& reclaim) {
    if (!lists->enabled()) return;
    if (!IsLastBlock(&lists->counts[Lists::kBlocksDone], &is_last)) return;
    while (const std::uint32_t some = at.TakeSome(*lists, kBlockThreads)) {
      if (threadIdx.x < some) reclaim.RetireCell(at.At(*lists, at.first + threadIdx.x));
    }
    __syncthreads();
    lists->Clear();
  }
};

/// Carries out the runs of a team's tiles; all of them come here.
/// @param begins, begun as for ApplyTogether
/// @param read_apart read_apart(cell, reader) is called in the first round, if `begins`, by a tile
///        that wants a value for an operation: to be read by others, by whom `begun` lets it be
///        read
/// @param cells to take; not null: SearchRuns came first, and what it planned is being read; if
///        `reads` has copies, the batch is answered meanwhile by what was found then
/// @param active whether this tile has one
template <class Team, class ReadApart, class Begun>
__device__ inline void CarryOutTasks(const TileOperations& operations, const CudaTile& group,
                                     const TableView& table, const DeviceBatch& batch,
                                     const Reads& reads, const RunTask& task, BlockCells* cells,
                                     bool active, bool begins, const ReadApart& read_apart,
                                     const Begun& begun) {
  const bool searched = cells != nullptr;
  TileOperations::Work work;
  std::byte* row = nullptr;  // of the run's first find, which reads the value; others copy from it
  std::uint32_t reader = 0;
  bool hit = false;
  if (active) {
    const std::uint64_t* key = batch.KeyOf(task.last, table.key_words);
    const Plan plan = PlanOfRun(task.effect, [&](std::uint32_t position) {
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
        !reads.plans[reader].Is(ReadPlan::kByWriter)) {  // others write the row
      row = nullptr;
      hit = false;
    }
  }
  if (searched) {
    const bool was_present = active && task.record->present != 0;
    const Action action = was_present ? work.plan.if_present : work.plan.if_absent;
    cells->Give(operations, group, active && action == Action::kWrite, &work);
  }
  const Outcome& outcome = work.outcome;
  const bool at_once = reads.plans == nullptr || searched || table.inline_values();
  ApplyTogether<Team>(
      operations, &work, active, begins,
      [&](bool is_first) {
        if (row == nullptr || !outcome.present || outcome.lack != Lack::kNothing) return;
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
  const bool found = outcome.present && outcome.lack == Lack::kNothing;
  if (row != nullptr && found && !hit && !at_once) {
    reads.plans[reader] = reads.PlanFirst(operations.CellOf(outcome.reference), reader);
  }
  if (const int added = ItemsAdded(work.plan, outcome); added != 0) {
    AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(std::int64_t{added}));
  }
  if (outcome.lack != Lack::kNothing) {
    AtomicAdd(outcome.lack == Lack::kSlot ? &batch.sums->lack_slots : &batch.sums->lack_cells, 1);
    if (searched && reads.copies != nullptr) AddSurprise(batch, task.effect.first);
    return;
  }
  if (!searched || reads.copies == nullptr) {
    task.record->present = outcome.present ? 1 : 0;
    task.record->hit = hit ? 1 : 0;
  } else if (outcome.present != (task.record->present != 0)) {
    if (outcome.present) task.record->next = operations.CellOf(outcome.reference);
    AddSurprise(batch, task.effect.first);
  }
  task.record->status = RunStatus::kDone;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_TASKS_CUH_
