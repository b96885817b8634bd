#ifndef GPM_ENGINE_CUDA_KERNELS_KEY_RUNS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_KEY_RUNS_CUH_

#include "engine/cuda/io/reads.cuh"

namespace gpm {

/// What kernels for large and for small batches share to carry out key runs.

/// Which attempt at a batch a kernel is.
struct Attempt {
  bool again;  ///< the batch was left over: its pending runs are carried out
  bool final;  ///< operations are carried out one by one; what lacks room gets kNoSpace
};

/// Where a part of a small batch is in it, and how it is dealt out.
struct SmallPart {
  std::uint32_t of_block;    ///< operations of each block, in order
  std::uint32_t number;      ///< below BatchSums::kParts
  std::uint32_t operations;  ///< of all parts
  bool waits;                ///< for room for a part before it, whether that lacks any now or not
};

/// A key run to be carried out one by one, from position record->next on.
struct OneByOne {
  KeyRunRecord* record;
  std::uint32_t last;  ///< position
  bool final_attempt;
};

/// Carries out the operations of a key run one by one, by a tile.
/// @param after after(p) is the run's next position after p
template <std::uint32_t kLanes, class After>
__device__ GPM_NOINLINE void ApplyOneByOne(const TableContext& context, const DeviceBatch& batch,
                                           OneByOne run, BlockCounts* counts, After after) {
  KeyRunRecord* const record = run.record;
  const std::uint32_t last = run.last;
  const TableView& table = context.table;
  const TileGroup<kLanes> group(
      cooperative_groups::tiled_partition<kLanes>(cooperative_groups::this_thread_block()));
  const Operations<TileGroup<kLanes>, CudaMedia> operations(
      table, context.reclaim, context.locks, context.accelerators, group,
      CudaMedia(context.dirty, !context.table.composed));
  std::int64_t items_added = 0;
  std::uint64_t carried_out = 0;
  group.Sync();
  std::uint32_t p = record->next;
  Shortage shortage = Shortage::kNothing;
  group.Sync();
  for (; p <= last; p = after(p), ++carried_out) {
    const std::uint32_t i = batch.OperationAt(p);
    const Op op = batch.KindOf(i);
    const std::uint64_t* key = batch.KeyOf(i, table.key_words);
    const std::byte* const value =
        batch.HasValueFor(op) ? batch.ValueOf(i, table.value_size) : nullptr;
    Plan plan = PlanOf(op, value);
    Addends addends;
    if (plan.if_present == Action::kAdd) {
      addends = batch.AddendsFor(i, table.value_size);
      addends.rows = value;
      plan.addends = &addends;
    }
    const Candidates candidates = operations.Locate(key);
    auto work = operations.Start(candidates, key, plan, 1);
    if (const CellGrant& grant = context.reclaim.grant; grant.filled()) {
      operations.GiveCell(&work, grant.filled_from + i, value);
    } else if (grant.assigned != 0) {
      std::uint32_t cell = 0;
      if (group.IsLeader()) cell = context.reclaim.TakeAssigned(i);
      operations.GiveCell(&work, group.Broadcast(cell), value);
    }
    operations.ApplyAlone(&work);
    const Outcome& outcome = work.outcome;
    shortage = outcome.shortage;
    items_added += ItemsAdded(plan, outcome);
    if (shortage != Shortage::kNothing && !run.final_attempt) break;
    bool hit = true;
    const bool finds = GivesValue(op, value != nullptr) && outcome.present;
    if (finds && batch.found != nullptr) {
      hit = operations.ReadFound(candidates, outcome, batch.FoundOf(i, table.value_size));
    } else if (op == Op::kFindOrInsert && value != nullptr && batch.found != nullptr) {
      CopyBytes(group, batch.FoundOf(i, table.value_size), value, table.value_size);
    }
    if (group.IsLeader()) {
      if (finds) counts->CountFound(hit);
      batch.results[i] = shortage != Shortage::kNothing
                             ? Result::kNoSpace
                             : ResultOf(op, outcome.present, batch.HasValueFor(op));
    }
  }
  if (!group.IsLeader()) return;
  AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(items_added));
  AtomicAdd(&batch.sums->carried_out, carried_out);
  record->next = p;
  if (p > last) {
    record->status = KeyRunStatus::kSequential;
  } else {
    AtomicAdd(
        shortage == Shortage::kSlot ? &batch.sums->short_of_slots : &batch.sums->short_of_cells, 1);
    for (; p <= last; p = after(p)) batch.results[batch.OperationAt(p)] = Result::kNoSpace;
  }
}

/// Where the tiles of a block take cells from; in shared memory.
using CudaBlockCells = BlockCells<WholeBlock, SmQueueCursor<std::uint32_t>>;

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_KEY_RUNS_CUH_
