#ifndef GPM_ENGINE_CUDA_KERNELS_LARGE_BATCH_CUH_
#define GPM_ENGINE_CUDA_KERNELS_LARGE_BATCH_CUH_

#include "engine/cuda/kernels/collided_runs.cuh"
#include "engine/cuda/kernels/key_runs.cuh"

namespace gpm {

/// The kernels of large batches that write. The operations on each key are a *key run*, which is
/// carried out with at most one write. GroupByKey finds the runs, or in larger batches HashKeys, a
/// sort, a scan of effects, and PartCollidedRuns. With a directory, SearchKeyRuns carries out those
/// that change nothing, and ApplyQueuedKeyRuns the others. Meanwhile the values that SearchKeyRuns
/// planned are read, and the operations are answered (engine/cuda/kernels/resolve.cuh); of batches
/// of middle size one kernel does all that (CarryOutSearched). Without a directory, ApplyKeyRuns
/// carries out all.

/// Blocks that carry out key runs: a multiprocessor runs so many at once.
inline constexpr unsigned kApplyingBlocks = 3;
/// The same where another kernel answers operations meanwhile: there would be no room for it beside
/// three, and two keep the link as busy.
inline constexpr unsigned kApplyingBesideAnswers = 2;

/// Hashes the keys; the hashes' high bits order the batch by address in every level. Makes all key
/// runs pending.
__global__ void HashKeys(const __grid_constant__ TableContext context, DeviceBatch batch,
                         std::uint32_t* hashes, std::uint32_t* order) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch.count) return;
  const std::uint32_t words = context.table.key_words;
  const KeyHash hash = HashKey(context.table.hash_seed, batch.KeyOf(i, words), words);
  hashes[i] = static_cast<std::uint32_t>(hash.h >> 32);
  order[i] = i;
  batch.records[i] = KeyRunRecord{0, 0, KeyRunStatus::kPending, i};
}

/// The effects of the single operations, in sorted order, to be scanned. Notes where keys meet.
struct SingleEffects {
  DeviceBatch batch;
  std::uint32_t key_words;
  CollidedRuns collided;

  __device__ KeyRunEffect operator()(std::uint32_t p) const {
    const bool begins_run = p == 0 || batch.hashes[p - 1] != batch.hashes[p];
    const bool other_key = !begins_run && IsOnOtherKey(batch, key_words, p);
    if (other_key) collided.Note(batch.sums, p);
    const Op op = batch.KindOf(batch.order[p]);
    return EffectOf(op, batch.HasValueFor(op), p, begins_run, other_key);
  }
};

/// Whether a key run ends at a sorted position.
__device__ inline bool EndsKeyRun(const DeviceBatch& batch, std::uint32_t p) {
  return p < batch.count && (p + 1 == batch.count || batch.hashes[p + 1] != batch.hashes[p]);
}
/// Whether the first find of the run that ends with this effect meets the value as it was before.
__device__ inline bool ReadsOld(const DeviceBatch& batch, const KeyRunEffect& effect) {
  const std::uint32_t find = effect.first_find();
  return find != kNoPosition && batch.effects[find].if_present == kUnchanged;
}

/// Deals out the next free cells of the grant to the queues of the multiprocessors that write to
/// their addresses. All threads of a block call it, of whatever kernels are the first that take
/// cells of the grant.
/// @param wanted at most kBlockThreads
__device__ inline void DealCells(const Reclaim& reclaim, const TableView& table,
                                 const SmQueues<std::uint32_t>& cells, std::uint32_t wanted) {
  __shared__ std::uint64_t first;
  if (threadIdx.x == 0) {
    first = atomicAdd(&cells.counts[SmQueues<std::uint32_t>::kAsked], wanted);
    const std::uint64_t end = min(first + wanted, reclaim.unkept());
    if (first < end) AtomicAdd(reclaim.taken, end - first);
  }
  __syncthreads();
  const std::uint64_t own = first + threadIdx.x;
  std::uint32_t cell = 0;
  if (threadIdx.x < wanted && own < reclaim.unkept() && reclaim.CellAt(own, &cell)) {
    cells.Add(cell * table.cell_bytes, cell);
  }
}

/// Searches the keys of key runs, a thread for each sorted position in [reads.first, reads.last).
/// Carries out the runs that change nothing, since their key is there, or is not. Queues the others
/// by the address of the slot that they are expected to change, and deals out the cells that they
/// need.
///
/// Plans how the values that finds want are read. They want them as they were before the run's
/// first change, so they may be read at any time: a cell that was found is not written again before
/// the batch ends. Of a key that is about to change, what the cache has is copied here.
/// REQUIRES: there is a directory.
__global__ void __launch_bounds__(kBlockThreads)
    SearchKeyRuns(const __grid_constant__ TableContext context,
                  const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                  const __grid_constant__ SmQueues<PendingRun> pending,
                  const __grid_constant__ SmQueues<std::uint32_t> cells) {
  AwaitKernelBefore();
  LetNextKernelBegin();
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty, !context.table.composed));
  const std::uint32_t p = reads.first + blockIdx.x * kBlockThreads + threadIdx.x;
  bool writes = false;
  KeyRunEffect effect;
  std::uint32_t last = 0;
  if (p < reads.last) {  // whether a run ends here or not: all loads are in flight at once
    effect = batch.effects[p];
    last = batch.order[p];
  }
  if (p < reads.last && EndsKeyRun(batch, p) && !batch.IsStuck(table)) {
    const bool wants = batch.found != nullptr && !effect.collided() && ReadsOld(batch, effect);
    CacheOfLane::Value cached = operations.BeginFind();
    const std::uint64_t* key = batch.KeyOf(last, table.key_words);
    const Candidates candidates = operations.Locate(key);
    std::uint32_t empty = 0;
    const Outcome outcome =
        operations.Find(candidates, key, 0, &empty, wants && reads.has_plans() ? &cached : nullptr);
    const bool changes = effect.collided() || Changes(effect, outcome.present);
    if (!changes && outcome.present) {
      operations.CountUses(candidates, outcome, p - effect.first + 1);
    }
    bool hit = context.accelerators.directory.enabled();
    if (wants && (reads.has_plans() || !changes)) {
      const std::uint32_t reader = batch.order[effect.first_find()];
      ReadPlan plan;
      if (outcome.present && !reads.has_plans()) {
        operations.ReadValue(outcome.reference, batch.FoundOf(reader, table.value_size));
      } else if (outcome.present) {
        const std::uint32_t cell = operations.CellOf(outcome.reference);
        hit = cached.bytes != nullptr && cached.at < ReadPlan::kCopy;
        if (hit && changes) {  // when it is changed the cache has it no more
          hit = operations.ReadCached(cached, batch.FoundOf(reader, table.value_size));
        }
        if (!hit) {
          plan = reads.PlanFirst(cell, reader);
        } else if (changes) {
          plan = ReadPlan{cell, ReadPlan::kThere};
        } else {
          plan = ReadPlan{cell, ReadPlan::kCached | static_cast<std::uint32_t>(cached.at)};
        }
      }
      if (reads.has_plans()) reads.plans[reader] = plan;
    }
    if (changes) {
      const Plan change = PlanOfKeyRun(effect, [](std::uint32_t) { return nullptr; });
      writes =
          !effect.collided() && WritesValue(outcome.present ? change.if_present : change.if_absent);
      const int place =
          outcome.present ? static_cast<int>(outcome.position) : operations.PlaceFor(empty);
      const std::uint32_t bucket =
          place < 0 ? 0 : static_cast<std::uint32_t>(place) >> table.slot_bits;
      const std::byte* const address = operations.BucketAt(candidates, bucket);
      pending.Add(address == nullptr ? 0 : static_cast<std::uint64_t>(address - table.base),
                  PendingRun{p | (writes ? PendingRun::kBit : 0),
                             last | (outcome.present ? PendingRun::kBit : 0)});
    }
    batch.records[effect.first] = KeyRunRecord{static_cast<std::uint16_t>(outcome.present ? 1 : 0),
                                               static_cast<std::uint16_t>(hit ? 1 : 0),
                                               effect.collided() ? KeyRunStatus::kCollided
                                               : changes         ? KeyRunStatus::kPending
                                                                 : KeyRunStatus::kDone,
                                               effect.first};
  }
  const auto writing = static_cast<std::uint32_t>(__syncthreads_count(writes));
  if (writing != 0 && cells.enabled()) DealCells(context.reclaim, table, cells, writing);
}

/// Carries out key runs, a tile each.
struct KeyRunApplier {
  const TableContext& context;
  const TileOperations& operations;
  const DeviceBatch& batch;
  const Reads& reads;
  BlockCounts* counts;

  /// Those that SearchKeyRuns queued. All tiles of a block call it.
  /// @param active whether this tile has one
  __device__ void ApplySearched(const PendingRun& run, bool active, CudaBlockCells* cells) const {
    const auto asked = cells->Ask(WholeBlock{}, operations.group(), active && run.needs_cell());
    KeyRunTask task{};
    if (active) {
      task = TaskOf(run.position(), run.last_operation(), batch.effects[run.position()]);
      task.was_present = run.was_present();
    }
    Apply(task, run.position(), false, CellsAsked<CudaBlockCells, WholeBlock>{cells, {}, asked});
  }
  /// One that nobody has searched, if it is pending.
  /// @param p where it ends @param final_attempt as in Attempt
  __device__ void ApplyPending(std::uint32_t p, bool active, bool final_attempt) const {
    KeyRunTask task{};
    if (active) {
      task = TaskOf(p, batch.order[p], batch.effects[p]);
      const KeyRunStatus status = task.record->status;
      task.active = status == KeyRunStatus::kPending || status == KeyRunStatus::kCollided;
    }
    Apply(task, p, final_attempt, NoCells{});
  }

 private:
  __device__ KeyRunTask TaskOf(std::uint32_t p, std::uint32_t last,
                               const KeyRunEffect& effect) const {
    KeyRunTask task{};
    task.active = true;
    task.effect = effect;
    task.record = &batch.records[effect.first];
    task.last = last;
    task.uses = p - effect.first + 1;
    task.made_of = batch.MadeOf(effect.first, task.uses);
    return task;
  }
  template <class Cells>
  __device__ void Apply(KeyRunTask task, std::uint32_t p, bool final_attempt,
                        const Cells& cells) const {
    if (task.active && (task.effect.collided() || final_attempt)) {
      ApplyOneByOne<kTileLanes>(context, batch, OneByOne{task.record, p, final_attempt}, counts,
                                [](std::uint32_t before) { return before + 1; });
      task.active = false;
    }
    if (task.active) {
      task.reads_old = ReadsOld(batch, task.effect);
      if (const CellGrant& grant = context.reclaim.grant; grant.filled()) {
        task.written = batch.order[task.effect.if_absent];
        task.cell = grant.filled_from + task.written;
      }
    }
    ApplyKeyRunTasks(TeamOfTiles<WholeBlock>(), operations, batch, reads, cells, task,
                     NobodyReadsApart{});
  }
};

/// Carries out the key runs that SearchKeyRuns queued. All blocks of a kernel call it.
/// @param free_cells those that it dealt out
/// @return whether this is the last block: everything is done then, and what nobody took was
///         returned
__device__ inline bool ApplyQueued(const TableContext& context, const DeviceBatch& batch,
                                   const Reads& reads, const SmQueues<PendingRun>& pending,
                                   const SmQueues<std::uint32_t>& free_cells) {
  __shared__ BlockCounts counts;
  __shared__ CudaBlockCells cells;
  __shared__ SmQueueConsumer<PendingRun> runs;
  counts.Clear();
  cells.Begin(WholeBlock{}, free_cells);
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group,
                                  CudaMedia(context.dirty, !context.table.composed));
  const KeyRunApplier applier{context, operations, batch, reads, &counts};
  runs.ForEach<kTilesPerBlock>(pending, [&](const PendingRun& run, bool has_one) {
    applier.ApplySearched(run, has_one, &cells);
  });
  counts.AddTo(batch.sums);
  if (!runs.IsLast(pending)) return false;
  cells.ReturnLeft(WholeBlock{}, context.reclaim);
  pending.Clear();
  return true;
}

/// The same, while the values that were planned are read.
__global__ void __launch_bounds__(kBlockThreads, kApplyingBlocks)
    ApplyQueuedKeyRuns(const __grid_constant__ TableContext context,
                       const __grid_constant__ DeviceBatch batch,
                       const __grid_constant__ Reads reads,
                       const __grid_constant__ SmQueues<PendingRun> pending,
                       const __grid_constant__ SmQueues<std::uint32_t> free_cells) {
  ApplyQueued(context, batch, reads, pending, free_cells);
}

/// Carries out the key runs that are pending. A block takes those that end among `span` sorted
/// positions, as many at a time as it has tiles.
/// @param span a multiple of 32, at most kBlockThreads
/// @param final_attempt as in Attempt
__global__ void __launch_bounds__(kBlockThreads, kApplyingBlocks)
    ApplyKeyRuns(const __grid_constant__ TableContext context,
                 const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                 std::uint32_t span, bool final_attempt) {
  __shared__ BlockCounts counts;
  __shared__ std::uint32_t ends[kBlockThreads];
  __shared__ std::uint32_t total;
  if (threadIdx.x == 0) total = 0;
  counts.Clear();
  const std::uint32_t position = blockIdx.x * span + threadIdx.x;
  const bool ends_run =
      threadIdx.x < span && EndsKeyRun(batch, position) && !batch.IsStuck(context.table);
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
                                  context.accelerators, group,
                                  CudaMedia(context.dirty, !context.table.composed));
  const KeyRunApplier applier{context, operations, batch, reads, &counts};
  for (std::uint32_t first = 0; first < total; first += kTilesPerBlock) {
    const std::uint32_t own = first + threadIdx.x / kTileLanes;
    const bool active = own < total;
    applier.ApplyPending(active ? ends[own] : 0, active, final_attempt);
  }
  counts.AddTo(batch.sums);
}

/// Queues the cells of a filled grant whose values nobody inserted.
__global__ void QueueCellsLeft(const __grid_constant__ TableContext context,
                               const __grid_constant__ DeviceBatch batch) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < batch.count;
       i += gridDim.x * blockDim.x) {
    if (batch.results[i] == Result::kOk) continue;
    context.reclaim.RetireCell(context.reclaim.grant.filled_from + i);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_LARGE_BATCH_CUH_
