#ifndef GPM_ENGINE_CUDA_RUNS_CUH_
#define GPM_ENGINE_CUDA_RUNS_CUH_

#include "engine/cuda_reads.cuh"

namespace gpm {

/// The kernels of batches that write: the operations on each key are a *run*, which is carried out
/// with at most one write. Runs of a large batch are found by HashKeys, a sort, and a scan of their
/// effects; with a directory, SearchRuns carries out those that change nothing, and CarryOutParts
/// the others, while what SearchRuns planned is read and the operations are answered. Runs of a
/// small batch are found and carried out by CarryOutSmall (cuda_small.cuh), and answered afterwards
/// (cuda_answers.cuh).

/// Hashes the keys; the high bits order the batch by address in every level. Makes all runs
/// pending.
__global__ void HashKeys(const __grid_constant__ TableContext context, DeviceBatch batch,
                         std::uint32_t* hashes, std::uint32_t* order) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch.count) return;
  const std::uint32_t words = context.table.key_words;
  const KeyHash hash = HashKey(context.table.hash_seed, batch.KeyOf(i, words), words);
  hashes[i] = static_cast<std::uint32_t>(hash.h >> 32);
  order[i] = i;
  batch.records[i] = RunRecord{0, 0, RunStatus::kPending, i};
}

/// The effects of the single operations, in sorted order, to be scanned.
struct SingleEffects {
  DeviceBatch batch;
  std::uint32_t key_words;

  __device__ RunEffect operator()(std::uint32_t p) const {
    const bool begins_run = p == 0 || batch.hashes[p - 1] != batch.hashes[p];
    const std::uint32_t i = batch.order[p];
    bool other_key = false;
    if (!begins_run) {
      const std::uint64_t* key = batch.KeyOf(i, key_words);
      const std::uint64_t* before = batch.KeyOf(batch.order[p - 1], key_words);
      for (std::uint32_t w = 0; w < key_words; ++w) other_key |= key[w] != before[w];
    }
    return EffectOf(batch.KindOf(i), batch.values != nullptr, p, begins_run, other_key);
  }
};

/// Carries out the operations of a run from position record->next on one by one.
/// @param last the run's last position
/// @param after after(p) is the run's next position after p
template <class After>
__device__ void RunOneByOne(const TileOperations& operations, const CudaTile& group,
                            const TableView& table, const DeviceBatch& batch, RunRecord* record,
                            std::uint32_t last, bool give_up, BlockCounts* counts,
                            const After& after) {
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
  }
}

/// All threads of a block: what they wrote to persistent memory persists, and is seen, before what
/// any of them writes from then on. One fence for all, since fences are cumulative: it orders what
/// its thread has seen, which the barrier lets it see. REQUIRES: a barrier of the block comes
/// before it.
__device__ inline void FenceBlock() {
  if (threadIdx.x == 0) __threadfence_system();
  __syncthreads();
}

/// Applies the operations of a block's tiles (Operations::Apply), step by step together. Nobody
/// waits for a key's lock, which another tile of the block might hold: it is tried again in the
/// next round.
/// @param active whether this tile has one
/// @param meanwhile called by a tile whose operation has begun, again if it has to begin again:
///        what it wants to know of the item as it was, while the first warp's fence is under way
template <class Meanwhile>
__device__ inline void ApplyTogether(const TileOperations& operations, TileOperations::Work* work,
                                     bool active, const Meanwhile& meanwhile) {
  while (__syncthreads_or(active)) {
    const bool begun = active && operations.TryBegin(work);
    bool changes = begun && work->change != TileOperations::Change::kNothing;
    if (begun) active = changes;
    const bool any = __syncthreads_or(changes) != 0;
    if (any && threadIdx.x == 0) __threadfence_system();  // FenceBlock, but for its barrier
    if (begun) meanwhile();
    if (!any) continue;
    __syncthreads();
    if (changes) {
      operations.TellCache(*work);
      changes = operations.Commit(work);
    }
    __syncthreads();
    FenceBlock();
    if (!changes) continue;
    operations.Finish(work);
    active = false;
  }
}

/// A run that a tile carries out.
struct RunTask {
  RunEffect effect;  ///< of all of it
  RunRecord* record;
  std::uint32_t last;  ///< its last operation
  std::uint32_t uses;  ///< operations
  bool reads_old;      ///< its first find meets the value as it was before the run
  std::uint32_t cell;  ///< that has the value of the last operation already; 0: none
};

/// Whether a run ends at a sorted position.
__device__ inline bool EndsRun(const DeviceBatch& batch, std::uint32_t p) {
  return p < batch.count && (p + 1 == batch.count || batch.hashes[p + 1] != batch.hashes[p]);
}
/// Whether the first find of the run that ends with this effect meets the value as it was before.
__device__ inline bool ReadsOld(const DeviceBatch& batch, const RunEffect& effect) {
  const std::uint32_t find = effect.first_find();
  return find != kNoPosition && batch.effects[find].if_present == kUnchanged;
}

/// Looks up the keys of runs. Carries out those that change nothing; puts the others into lists, by
/// the address of the slot that they change, as far as that is known now, and asks for the cells
/// that they need. Plans how values are
/// read, of cells, as they were: what was looked up is not written again before the batch ends,
/// whatever becomes of the key, and those who want it come before the run's first change. A thread
/// for each sorted position in [reads.first, reads.last). With a directory.
__global__ void __launch_bounds__(kBlockThreads)
    SearchRuns(const __grid_constant__ TableContext context,
               const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
               const __grid_constant__ PartLists<std::uint32_t> pending,
               const __grid_constant__ PartLists<std::uint32_t> cells) {
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty));
  const std::uint32_t p = reads.first + blockIdx.x * kBlockThreads + threadIdx.x;
  bool writes = false;
  if (p < reads.last && EndsRun(batch, p)) {
    const RunEffect effect = batch.effects[p];
    const bool changes =
        effect.mixed() || effect.if_absent != kUnchanged || effect.if_present != kUnchanged;
    const bool wants = batch.found != nullptr && !effect.mixed() && ReadsOld(batch, effect);
    const std::uint64_t* key = batch.KeyOf(batch.order[p], table.key_words);
    const Candidates candidates = operations.Locate(key);
    std::uint32_t empty = 0;
    const Outcome outcome =
        operations.Find(candidates, key, changes ? 0 : p - effect.first + 1, &empty);
    bool hit = candidates.reserved < 0 && context.accelerators.directory.enabled();
    if (wants && (reads.plans != nullptr || !changes)) {
      const std::uint32_t reader = batch.order[effect.first_find()];
      CacheAccess<ThreadGroup, CudaMedia>::Value cached;
      ReadPlan plan;
      if (outcome.present && reads.plans == nullptr) {
        operations.ReadValue(outcome.reference, batch.FoundOf(reader, table.value_size));
      } else if (outcome.present) {
        const std::uint32_t cell = operations.CellOf(outcome.reference);
        hit = operations.FindCached(candidates, outcome, &cached) && cached.at < ReadPlan::kCopy;
        if (!hit) {
          plan = reads.PlanFirst(cell, reader);
        } else if (changes) {  // afterwards the cache has it no more
          plan = ReadPlan{cell, ReadPlan::kByWriter};
        } else {
          plan = ReadPlan{cell, ReadPlan::kCached | static_cast<std::uint32_t>(cached.at)};
        }
      }
      if (reads.plans != nullptr) reads.plans[reader] = plan;
    }
    if (changes) {
      const Plan change = PlanOfRun(effect, [](std::uint32_t) { return nullptr; });
      writes = !effect.mixed() &&
               (outcome.present ? change.if_present : change.if_absent) == Action::kWrite;
      const int place =
          outcome.present ? static_cast<int>(outcome.position) : operations.PlaceFor(empty);
      const std::uint32_t bucket =
          place < 0 ? 0 : static_cast<std::uint32_t>(place) >> table.slot_bits;
      const std::byte* const address = operations.BucketAt(candidates, bucket);
      pending.Add(address == nullptr ? 0 : static_cast<std::uint64_t>(address - table.base), p);
    }
    batch.records[effect.first] = RunRecord{static_cast<std::uint16_t>(outcome.present ? 1 : 0),
                                            static_cast<std::uint16_t>(hit ? 1 : 0),
                                            effect.mixed() ? RunStatus::kMixed
                                            : changes      ? RunStatus::kPending
                                                           : RunStatus::kDone,
                                            effect.first};
  }
  const int writing = __syncthreads_count(writes);
  if (threadIdx.x == 0 && writing != 0 && cells.enabled()) {
    atomicAdd(&cells.counts[PartLists<std::uint32_t>::kAsked], static_cast<std::uint32_t>(writing));
  }
}

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

/// Carries out the runs of a block's tiles; all of them come here.
/// @param cells to take; not null: SearchRuns came first, and what it planned is being read; if
///        `reads` has copies, the batch is answered meanwhile by what was found then
/// @param active whether this tile has one
__device__ inline void CarryOutTasks(const TileOperations& operations, const CudaTile& group,
                                     const TableView& table, const DeviceBatch& batch,
                                     const Reads& reads, const RunTask& task, BlockCells* cells,
                                     bool active) {
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
      operations.GiveCell(&work, task.cell, batch.ValueOf(task.last, table.value_size));
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
  ApplyTogether(operations, &work, active, [&] {
    if (row == nullptr || !outcome.present || outcome.lack != Lack::kNothing) return;
    hit = operations.ReadCached(work.candidates, outcome, row);
    if (hit || !at_once) return;
    operations.ReadValue(outcome.reference, row);
    hit = table.inline_values() && work.covered;
  });
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
    return;
  }
  if (!searched || reads.copies == nullptr) {
    task.record->present = outcome.present ? 1 : 0;
    task.record->hit = hit ? 1 : 0;
  } else if (outcome.present != (task.record->present != 0)) {
    if (outcome.present) task.record->next = operations.CellOf(outcome.reference);
    batch.surprises[AtomicAdd(&batch.sums->surprises, 1)] = task.effect.first;
  }
  task.record->status = RunStatus::kDone;
}

/// Carries out the runs that end at some sorted positions, a tile each; all tiles of a block come
/// here.
/// @param p the position
/// @param active whether this tile has one
/// @param cells, give_up as for CarryOutTasks and CarryOutRuns
__device__ inline void CarryOutAt(const TileOperations& operations, const CudaTile& group,
                                  const TableView& table, const DeviceBatch& batch,
                                  const Reads& reads, std::uint32_t p, bool active,
                                  BlockCells* cells, bool give_up, BlockCounts* counts) {
  RunTask task{};
  if (active) {
    task.effect = batch.effects[p];
    task.record = &batch.records[task.effect.first];
    const RunStatus status = task.record->status;
    active = status == RunStatus::kPending || status == RunStatus::kMixed;
    if (active && (task.effect.mixed() || give_up)) {
      RunOneByOne(operations, group, table, batch, task.record, p, give_up, counts,
                  [](std::uint32_t before) { return before + 1; });
      active = false;
    }
    task.last = batch.order[p];
    task.uses = p - task.effect.first + 1;
    task.reads_old = ReadsOld(batch, task.effect);
  }
  CarryOutTasks(operations, group, table, batch, reads, task, cells, active);
}

/// Deals out as many free cells of the grant as runs are expected to need, as a multiprocessor
/// writes to those of its own part.
__global__ void DealCells(const __grid_constant__ TableContext context, BatchSums* sums,
                          const __grid_constant__ PartLists<std::uint32_t> cells) {
  const std::uint32_t asked = AtomicLoad32(&cells.counts[PartLists<std::uint32_t>::kAsked]);
  const std::uint64_t count = min(std::uint64_t{asked}, context.reclaim.grant.count);
  for (std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * kBlockThreads) {
    std::uint32_t cell = 0;
    context.reclaim.CellAt(i, &cell);
    cells.Add(cell * context.table.cell_bytes, cell);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) AtomicAdd(&sums->cells_taken, count);
}

/// Carries out what SearchRuns left, while what that planned is read.
__global__ void __launch_bounds__(kBlockThreads, 3)
    CarryOutParts(const __grid_constant__ TableContext context,
                  const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                  const __grid_constant__ PartLists<std::uint32_t> pending,
                  const __grid_constant__ PartLists<std::uint32_t> free_cells) {
  __shared__ BlockCounts counts;
  __shared__ BlockCells cells;
  __shared__ PartItems<std::uint32_t> items;
  counts.Clear();
  cells.Begin(free_cells);
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(context.dirty));
  const auto carry_out = [&](std::uint32_t p, bool has_one) {
    CarryOutAt(operations, group, context.table, batch, reads, p, has_one, &cells, false, &counts);
  };
  items.ForEach<kTilesPerBlock>(pending, carry_out);
  cells.Return(context.reclaim);
  counts.AddTo(batch.sums);
}

/// Carries out the runs that are pending: a block those that end among `span` sorted positions, as
/// many at a time as it has tiles.
/// @param span a multiple of 32, at most kBlockThreads
/// @param give_up go through pending runs one by one; what lacks room gets kNoSpace
__global__ void __launch_bounds__(kBlockThreads, 3)
    CarryOutRuns(const __grid_constant__ TableContext context,
                 const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                 std::uint32_t span, bool give_up) {
  __shared__ BlockCounts counts;
  __shared__ std::uint32_t ends[kBlockThreads];
  __shared__ std::uint32_t total;
  if (threadIdx.x == 0) total = 0;
  counts.Clear();
  const std::uint32_t position = blockIdx.x * span + threadIdx.x;
  const bool ends_run = threadIdx.x < span && EndsRun(batch, position);
  // The order of warps does not matter much: it is that of addresses within each.
  const std::uint32_t of_warp = __ballot_sync(~0u, ends_run);
  std::uint32_t at = 0;
  if (threadIdx.x % 32 == 0 && of_warp != 0) at = atomicAdd(&total, PopCount(of_warp));
  at = __shfl_sync(~0u, at, 0) + PopCount(of_warp & ((1u << threadIdx.x % 32) - 1));
  if (ends_run) ends[at] = position;
  __syncthreads();

  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(context.dirty));
  for (std::uint32_t first = 0; first < total; first += kTilesPerBlock) {
    const std::uint32_t own = first + threadIdx.x / kTileLanes;
    const bool active = own < total;
    CarryOutAt(operations, group, context.table, batch, reads, active ? ends[own] : 0, active,
               nullptr, give_up, &counts);
  }
  counts.AddTo(batch.sums);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_RUNS_CUH_
