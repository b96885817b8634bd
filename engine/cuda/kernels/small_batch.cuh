#ifndef GPM_ENGINE_CUDA_KERNELS_SMALL_BATCH_CUH_
#define GPM_ENGINE_CUDA_KERNELS_SMALL_BATCH_CUH_

#include "engine/cuda/kernels/key_runs.cuh"
#include "engine/cuda/kernels/resolve.cuh"
#include "engine/cuda/kernels/small_key_runs.cuh"

namespace gpm {

/// Batches that write and are so small that each operation is compared with all others, or with
/// those of its part. One kernel finds their key runs, carries them out, and answers their
/// operations; of somewhat larger ones, one for each part, behind each other. A part waits for room
/// for those before it: its operations may be on the same keys.

/// Answers the operation of a tile, and counts what it found. REQUIRES: all key
/// runs are carried out, and the values that they wanted are read.
/// @param i the tile's operation
/// @param before the effect of those before it in its run
template <class Group>
__device__ void ResolveSmall(const Group& group, const TableView& table, const DeviceBatch& batch,
                             std::uint32_t i, const KeyRunEffect& before, BlockCounts* counts) {
  const KeyRunRecord record = batch.records[before.first];
  if (record.status != KeyRunStatus::kDone) {
    if (group.IsLeader()) ResolvePending(batch, record, i, i);
    return;
  }
  const std::uint32_t find = before.first_find();
  const bool is_first = i == before.first;
  const ResultQuery query{i,
                          i,
                          before.first,
                          find,
                          is_first ? kUnchanged : before.if_absent,
                          is_first ? kUnchanged : before.if_present,
                          batch.KindOf(i)};
  const Resolved answer = ResolveResult(batch, query, record.present != 0);
  if (!answer.gives) return;
  const bool is_old = answer.writer == kUnchanged;
  if (answer.found && group.IsLeader()) counts->CountFound(!is_old || record.hit != 0);
  if (batch.found == nullptr || (is_old && i == find)) return;
  CopyBytes(group, batch.FoundOf(i, table.value_size),
            is_old ? batch.FoundOf(find, table.value_size)
                   : batch.ValueOf(answer.writer, table.value_size),
            table.value_size);
}

// The halves of a block of ApplySmallBatch.
using Workers = BlockSlice<0, kBlockThreads>;
using Readers = BlockSlice<kBlockThreads, kBlockThreads>;

/// Values that a block's key runs want as they were before; in shared memory.
struct OldValues {
  FewItemsConsumer<std::uint64_t, Readers> items;
  std::uint32_t planned;  ///< reads, by the block's key runs
  std::uint32_t in_all;

  /// By all threads of a block; a barrier follows.
  __device__ void Clear() {
    if (threadIdx.x == 0) planned = 0;
  }
  /// Reads what all blocks have planned, by the readers of all blocks.
  /// @param begun the time that a block passes the barrier when it has planned its reads
  __device__ void Read(const TableView& table, const DeviceBatch& batch, const Reads& reads,
                       const GridBarrier& barrier, std::uint32_t begun) {
    if (Readers::Rank() == 0) in_all = barrier.Wait(begun);
    Readers::Sync();
    if (in_all == 0) return;
    items.Begin(reads.queues, in_all);
    std::uint64_t item = 0;
    for (bool has_one = false; items.Next<kTilesPerBlock>(reads.queues, &item, &has_one);) {
      if (has_one) ReadOne(table, batch, item);
    }
    if (items.IsLast()) reads.queues.Clear<Readers>();
  }
};

/// Old values are read by the readers of all blocks.
template <class Group>
struct ReadersReadApart {
  bool deals;
  const Group& group;
  const Reads& reads;
  const GridBarrier& barrier;
  OldValues* old_values;

  __device__ bool enabled() const { return deals; }
  __device__ void ReadApart(std::uint32_t cell, std::uint32_t reader) const {
    if (!group.IsLeader()) return;
    reads.PlanFirst(cell, reader);
    atomicAdd(&old_values->planned, 1u);
  }
  __device__ void Begun() const { barrier.Arrive(old_values->planned); }
};

/// Makes the task of a key run, by the tile of its last operation. All tiles that have an operation
/// call it. The task is active if the run is to be carried out with one write.
/// @param task of the tile: it may have a cell
/// @return whether the run's operations have to be carried out one by one
template <class Shape, class TableOperations>
__device__ bool MakeTask(const TableOperations& operations, const DeviceBatch& batch,
                         const BlockKeyRuns<Shape>& runs, std::uint32_t tile,
                         const Attempt& attempt, KeyRunTask* task) {
  const auto& group = operations.group();
  const OperationInKeyRun& run = runs.own[tile];
  task->effect = run.before;
  task->effect.if_absent = run.if_absent;
  task->effect.if_present = run.if_present;
  task->last = runs.first + tile;
  task->uses = run.uses;
  task->reads_old = run.reads_old;
  if (!run.is_last) return false;
  task->record = &batch.records[task->effect.first];
  if (attempt.again) {
    if (task->record->status != KeyRunStatus::kPending) return false;
  } else if (group.IsLeader()) {
    *task->record = KeyRunRecord{0, 0, KeyRunStatus::kPending, task->effect.first};
  }
  const bool one_by_one = attempt.final || run.before.collided() || run.collides;
  task->active = !one_by_one;
  task->members = runs.OnKeyOf(tile);
  return one_by_one;
}

/// Finds the key runs of a small batch, or part, carries them out, and answers their operations.
/// Each operation has a tile, which carries out the run that ends with it, if one does. A block has
/// kSmallThreads threads: the first kBlockThreads are the tiles, the others help to find runs, and
/// read. All blocks begin at once (KernelGraph), one or more for each multiprocessor, so a batch is
/// spread over them (OperationsOfBlock). Each has dynamic shared memory for its BlockKeyRuns.
template <class Shape>
__global__ void __launch_bounds__(kSmallThreads + kBesideTogether, 1)
    ApplySmallBatch(const __grid_constant__ TableContext context,
                    const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                    Attempt attempt, SmallPart part, const __grid_constant__ Reporter reporter) {
  extern __shared__ uint4 dynamic[];
  __shared__ BlockCounts counts;
  __shared__ OldValues old_values;
  __shared__ std::uint64_t first_cell;
  __shared__ std::uint32_t unused;
  __shared__ bool waits;
  auto& runs = *reinterpret_cast<BlockKeyRuns<Shape>*>(dynamic);
  const GridBarrier barrier{&batch.sums->blocks_arrived[part.number]};
  old_values.Clear();
  if (threadIdx.x == 0) {
    // At first it waits if there was no room for a part before it. (When a block of this part finds
    // none meanwhile, others may wait as well.)
    waits = part.waits || batch.IsStuck(context.table) ||
            (!attempt.again && part.number > 0 &&
             (AtomicLoad(&batch.sums->short_of_slots) != 0 ||
              AtomicLoad(&batch.sums->short_of_cells) != 0));
  }
  counts.Clear();
  const TableView& table = context.table;
  const auto group = Shape::ThisTile();
  const Operations<typename Shape::Group, CudaMedia> operations(
      table, context.reclaim, context.locks, context.accelerators, group,
      CudaMedia(context.dirty, !context.table.composed));
  const std::uint32_t tile_number = threadIdx.x / Shape::kLanes;
  const std::uint32_t first = blockIdx.x * part.of_block;
  const std::uint32_t i = first + tile_number;
  const bool has_one = tile_number < part.of_block && i < batch.count;
  // Mostly they are found: few cells are needed, and reads are many.
  const bool only_finds_or_inserts = batch.ops == nullptr && batch.op == Op::kFindOrInsert;
  // Values are written ahead, while runs are found and searched, if there is a cell for each
  // operation and no run can need a second one (a run of several keys could, and one that mixes
  // what accumulates with other operations). A batch that only
  // writes does so at once, since most values are needed; any other when it knows which are. Cells
  // that are not needed are retired.
  const bool ahead = !attempt.again && batch.values != nullptr && !table.inline_values() &&
                     table.key_words == 1 && context.reclaim.unkept() >= part.operations &&
                     table.value_size <= StrategyThresholds::kAheadUpToBytes &&
                     !only_finds_or_inserts && (batch.ops == nullptr || batch.added == nullptr);
  const bool at_once =
      ahead && batch.ops == nullptr && Writes(batch.op) && batch.op != Op::kAccumulate;
  KeyRunTask task{};
  if (at_once) {
    if (threadIdx.x == 0 && first < batch.count) {
      first_cell = AtomicAdd(context.reclaim.taken, min(batch.count - first, part.of_block));
    }
    __syncthreads();
    if (has_one && context.reclaim.CellAt(first_cell + tile_number, &task.cell)) {
      task.written = i;
      operations.WriteAhead(task.cell, batch.ValueOf(i, table.value_size));
    }
  }
  // Each block makes the digests of its own longer keys, for all blocks.
  const bool makes_digests = table.key_words > 1;
  if (makes_digests) {
    const std::uint32_t own = first + threadIdx.x;
    if (threadIdx.x < part.of_block && own < batch.count) {
      batch.digests[own] =
          DigestKey(table.hash_seed, batch.KeyOf(own, table.key_words), table.key_words);
    }
    barrier.ArriveAndWait(1, 0, &unused);
  }
  runs.Make(batch, makes_digests ? batch.digests : batch.keys, part.of_block);
  std::uint64_t cells = 0;  // in flight while runs are found
  const bool takes = ahead && !at_once && threadIdx.x == 0 && first < batch.count;
  if (takes) cells = AtomicAdd(context.reclaim.taken, runs.WritersBefore(part.of_block));
  runs.FindKeyRuns(batch, table.key_words);
  if (takes) first_cell = cells;
  __syncthreads();
  // Reads that are dealt out wait for all blocks. That takes longer where many operations write
  // (half of them in YCSB A). It is expected to where keys have to be read from persistent memory
  // first, which was not measured.
  const bool deals = reads.enabled() && context.accelerators.directory.has_keys() &&
                     (runs.writers_in_all < batch.count / 4 || only_finds_or_inserts);
  bool one_by_one = false;
  if (has_one) {
    one_by_one = MakeTask(operations, batch, runs, tile_number, attempt, &task);
    if (waits) task.active = one_by_one = false;
    if (task.active && task.effect.accumulates() && task.uses >= LongSum::kFewest &&
        group.IsLeader()) {
      AtomicAdd(&batch.sums->long_run_rows, task.uses);
    }
    const std::uint32_t writer =
        task.effect.if_present < kRemoved ? task.effect.if_present : task.effect.if_absent;
    const bool needs_cell = task.active && writer < kRemoved;
    if (ahead && !at_once && runs.Writes(tile_number) &&
        context.reclaim.CellAt(first_cell + runs.WritersBefore(tile_number), &task.cell) &&
        needs_cell && !task.effect.accumulates() && batch.KindOf(writer) != Op::kFindOrInsert) {
      task.written = writer;
      operations.WriteAhead(task.cell, batch.ValueOf(writer, table.value_size));
    }
    if (task.cell != 0 && !needs_cell) {
      if (group.IsLeader()) context.reclaim.RetireCell(task.cell);
      task.cell = 0;
    }
  }
  // While the first half of the block carries out runs, the second half makes the reads that were
  // dealt out. It waits until the runs of all blocks have begun, and these wait for no lock.
  const std::uint32_t begun = makes_digests ? 2 : 1;
  if (threadIdx.x < kBlockThreads) {
    ApplyKeyRunTasks(
        TeamOfTiles<Workers>(), operations, batch, Reads{}, NoCells{}, task,
        ReadersReadApart<typename Shape::Group>{deals, group, reads, barrier, &old_values});
    if (one_by_one) {  // now that no tile of the block has a lock
      const RowsOfKey on_key = runs.OnKeyOf(tile_number);
      ApplyOneByOne<Shape::kLanes>(
          context, batch, OneByOne{task.record, i, attempt.final}, &counts,
          [on_key, i](std::uint32_t position) { return on_key.After(position, i); });
    }
  } else if (deals) {
    old_values.Read(table, batch, reads, barrier, begun);
  }
  const std::uint32_t done = begun + (deals ? 1 : 0);
  barrier.ArriveAndWait(done, 0, &unused);
  if (has_one) ResolveSmall(group, table, batch, i, runs.own[tile_number].before, &counts);
  counts.AddTo(batch.sums);
  ReportWhenLast(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_SMALL_BATCH_CUH_
