#ifndef GPM_ENGINE_CUDA_KERNELS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_CUH_

#include <cooperative_groups.h>

#include "cache/cache_loader.h"
#include "engine/cuda_types.cuh"
#include "recovery/slot_pass.h"

namespace gpm {

/// The kernels of the cuda executor, which alone includes this file. Finds alone go through
/// FindKeys, or FindShortKeys, a sort, ReadDeferred, CopyDeferred; then ReportBatch. Any other
/// batch goes through HashKeys, a sort, MakeEffects, a scan, CarryOutRuns, AnswerOperations,
/// ReturnCells, ReportBatch.

/// Gives back erased slots.
__global__ void GiveBackSlots(const __grid_constant__ TableContext context,
                              Epochs::SlotRange slots) {
  const std::uint64_t thread = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  const LaneOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, ThreadGroup{}, CudaMedia(context.dirty));
  for (std::uint64_t i = slots.from + thread; i < slots.to;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    operations.GiveBackSlot(context.reclaim.slot_ring[i & context.reclaim.slot_mask]);
  }
}

/// Queues what is left of a batch's cells again.
__global__ void ReturnCells(const __grid_constant__ TableContext context) {
  context.reclaim.ReturnCells(blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x,
                              std::uint64_t{gridDim.x} * blockDim.x);
}

/// Hashes the keys; the high bits order the batch by address in every level.
__global__ void HashKeys(const __grid_constant__ TableContext context, DeviceBatch batch,
                         std::uint32_t* hashes, std::uint32_t* order) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch.count) return;
  const std::uint32_t words = context.table.key_words;
  const KeyHash hash =
      HashKey(context.table.hash_seed, batch.keys + std::uint64_t{i} * words, words);
  hashes[i] = static_cast<std::uint32_t>(hash.h >> 32);
  order[i] = i;
}

/// The effects of the single operations, in sorted order, to be scanned.
__global__ void MakeEffects(std::uint32_t key_words, DeviceBatch batch) {
  const std::uint32_t p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p >= batch.count) return;
  const bool begins_run = p == 0 || batch.hashes[p - 1] != batch.hashes[p];
  const std::uint32_t i = batch.order[p];
  bool other_key = false;
  if (!begins_run) {
    const std::uint64_t* key = batch.keys + std::uint64_t{i} * key_words;
    const std::uint64_t* before = batch.keys + std::uint64_t{batch.order[p - 1]} * key_words;
    for (std::uint32_t w = 0; w < key_words; ++w) other_key |= key[w] != before[w];
  }
  batch.effects[p] = EffectOf(batch.KindOf(i), batch.values != nullptr, p, begins_run, other_key);
  batch.records[p].status = RunStatus::kPending;
  batch.records[p].next = p;
}

/// What the threads of a block count together, to be added to a batch's sums once.
struct BlockCounts {
  std::uint32_t found;
  std::uint32_t cache_hits;
};

/// By the leader of a tile: `uses` finds found their key.
__device__ inline void CountFound(BlockCounts* counts, bool hit, std::uint32_t uses) {
  atomicAdd(&counts->found, uses);
  if (hit) atomicAdd(&counts->cache_hits, uses);
}
/// When the threads of a block are done.
__device__ inline void AddCounts(const BlockCounts& counts, BatchSums* sums) {
  __syncthreads();
  if (threadIdx.x != 0 || counts.found == 0) return;
  AtomicAdd(&sums->found, counts.found);
  AtomicAdd(&sums->cache_hits, counts.cache_hits);
}

/// Carries out operations [record->next, last] of a run one by one.
__device__ inline void RunOneByOne(const TileOperations& operations, const CudaTile& group,
                                   const TableView& table, const DeviceBatch& batch,
                                   RunRecord* record, std::uint32_t last, bool give_up,
                                   BlockCounts* counts) {
  std::int64_t items_added = 0;
  std::uint32_t p = record->next;
  Lack lack = Lack::kNothing;
  group.Sync();
  for (; p <= last; ++p) {
    const std::uint32_t i = batch.order[p];
    const Op op = batch.KindOf(i);
    const std::uint64_t* key = batch.keys + std::uint64_t{i} * table.key_words;
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
      if (op == Op::kFind && outcome.present) CountFound(counts, hit, 1);
      batch.results[i] = lack != Lack::kNothing
                             ? Result::kNoSpace
                             : ResultOf(op, outcome.present, batch.values != nullptr);
    }
  }
  if (!group.IsLeader()) return;
  AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(items_added));
  AtomicAdd(&batch.sums->carried_out, p - record->next);
  record->next = p;
  if (p > last) {
    record->status = RunStatus::kSequential;
  } else {
    AtomicAdd(lack == Lack::kSlot ? &batch.sums->lack_slots : &batch.sums->lack_cells, 1);
  }
}

/// All threads of a block: what they wrote to persistent memory persists, and is seen, before what
/// any of them writes from then on. One fence for all, since fences are cumulative: it orders what
/// its thread has seen, which the barrier lets it see. (A fence of each tile's own would be the
/// most costly part of most batches.) REQUIRES: a barrier of the block comes before it.
__device__ inline void FenceBlock() {
  if (threadIdx.x == 0) __threadfence_system();
  __syncthreads();
}

/// Applies the operations of a block's tiles (Operations::Apply), step by step together. Nobody
/// waits for a key's lock, which another tile of the block might hold: it is tried again in the
/// next round.
/// @param active whether this tile has one
__device__ inline void ApplyTogether(const TileOperations& operations, TileOperations::Work* work,
                                     bool active) {
  using Change = TileOperations::Change;
  while (__syncthreads_or(active)) {
    bool changes = false;
    if (active && operations.TryBegin(work)) active = changes = work->change != Change::kNothing;
    if (!__syncthreads_or(changes)) continue;
    FenceBlock();
    changes = changes && operations.Commit(work);
    __syncthreads();
    FenceBlock();
    if (!changes) continue;
    operations.Finish(work);
    active = false;
  }
}

/// Carries out the runs that are pending: a tile for each sorted position, which carries out the
/// run that ends there, if one does.
/// @param give_up go through pending runs one by one; what lacks room gets kNoSpace
__global__ void __launch_bounds__(kBlockThreads)
    CarryOutRuns(const __grid_constant__ TableContext context,
                 const __grid_constant__ DeviceBatch batch, bool give_up) {
  __shared__ BlockCounts counts;
  if (threadIdx.x == 0) counts = BlockCounts{};
  __syncthreads();
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TableView& table = context.table;
  const TileOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  group, CudaMedia(context.dirty));
  const std::uint32_t p = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
  bool active = p < batch.count && (p + 1 == batch.count || batch.hashes[p + 1] != batch.hashes[p]);
  RunEffect effect{};
  RunRecord* record = nullptr;
  if (active) {
    effect = batch.effects[p];
    record = &batch.records[effect.first];
    active = record->status == RunStatus::kPending;
  }
  if (active && (effect.mixed() || give_up)) {
    RunOneByOne(operations, group, table, batch, record, p, give_up, &counts);
    active = false;
  }
  TileOperations::Work work;
  std::byte* row = nullptr;  // of the run's first find, which reads the value; others copy from it
  bool was_read = false;
  bool hit = false;
  const std::uint32_t uses = p - effect.first + 1;
  if (active) {
    const std::uint64_t* key = batch.keys + std::uint64_t{batch.order[p]} * table.key_words;
    const Plan plan = PlanOfRun(effect, [&](std::uint32_t position) {
      return batch.ValueOf(batch.order[position], table.value_size);
    });
    work = operations.Start(operations.Locate(key), key, plan, uses);
    const std::uint32_t find = effect.first_find();
    if (batch.found != nullptr && find != kNoPosition &&
        batch.effects[find].if_present == kUnchanged) {
      row = batch.FoundOf(batch.order[find], table.value_size);
    }
    if (row != nullptr && work.covered && plan.if_present != Action::kKeep) {
      // The cache has the value as it was only until the run changes it.
      const Outcome before = operations.Find(work.candidates, key);
      was_read = before.present;
      if (was_read) hit = operations.ReadFound(work.candidates, before, row);
    }
  }
  ApplyTogether(operations, &work, active);
  if (active) {
    const Outcome& outcome = work.outcome;
    if (outcome.lack == Lack::kNothing && outcome.present && row != nullptr) {
      if (!was_read) hit = operations.ReadFound(work.candidates, outcome, row);
      // Of a run that also writes, its operations up to the end are taken for finds: an estimate.
      if (group.IsLeader()) CountFound(&counts, hit, uses);
    }
    if (group.IsLeader()) {
      if (const int added = ItemsAdded(work.plan, outcome); added != 0) {
        AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(std::int64_t{added}));
      }
      if (outcome.lack != Lack::kNothing) {
        AtomicAdd(outcome.lack == Lack::kSlot ? &batch.sums->lack_slots : &batch.sums->lack_cells,
                  1);
      } else {
        record->present = outcome.present ? 1 : 0;
        record->status = RunStatus::kDone;
      }
    }
  }
  AddCounts(counts, batch.sums);
}

/// Finds, each by a tile, in the order in which they came.
__global__ void __launch_bounds__(kBlockThreads)
    FindKeys(const __grid_constant__ TableContext context,
             const __grid_constant__ DeviceBatch batch) {
  __shared__ BlockCounts counts;
  if (threadIdx.x == 0) counts = BlockCounts{};
  __syncthreads();
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
  if (i < batch.count) {
    const TileOperations operations(context.table, context.reclaim, context.locks,
                                    context.accelerators, group, CudaMedia(context.dirty));
    const std::uint64_t* key = batch.keys + std::uint64_t{i} * context.table.key_words;
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Find(candidates, key);
    bool hit = true;
    if (outcome.present && batch.found != nullptr) {
      hit = operations.ReadFound(candidates, outcome, batch.FoundOf(i, context.table.value_size));
    }
    if (group.IsLeader()) {
      batch.results[i] = ResultOf(Op::kFind, outcome.present);
      if (outcome.present) CountFound(&counts, hit, 1);
    }
  }
  AddCounts(counts, batch.sums);
}

/// Answers the operations of runs that were carried out with one write: a tile for each.
__global__ void __launch_bounds__(kBlockThreads)
    AnswerOperations(std::uint32_t value_size, const __grid_constant__ DeviceBatch batch) {
  const auto tile =
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block());
  const std::uint32_t p = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
  if (p >= batch.count) return;
  const RunEffect effect = batch.effects[p];
  const RunRecord record = batch.records[effect.first];
  if (record.status != RunStatus::kDone) return;
  const bool present_before = record.present != 0;
  std::uint32_t before = kUnchanged;
  if (p != effect.first) {
    const RunEffect& prefix = batch.effects[p - 1];
    before = present_before ? prefix.if_present : prefix.if_absent;
  }
  const bool present = PresentAfter(before, present_before);
  const std::uint32_t i = batch.order[p];
  const Op op = batch.KindOf(i);
  if (tile.thread_rank() == 0) {
    batch.results[i] = ResultOf(op, present, batch.values != nullptr);
  }
  if (op != Op::kFind || !present || batch.found == nullptr) return;
  const std::byte* source;
  if (before == kUnchanged) {
    if (p == effect.first_find()) return;  // read already
    source = batch.FoundOf(batch.order[effect.first_find()], value_size);
  } else {
    source = batch.ValueOf(batch.order[before], value_size);
  }
  CopyBytes(CudaTile(tile), batch.FoundOf(i, value_size), source, value_size);
}

/// Copies a value for each thread of a warp that has one to be copied, a tile for four of them in
/// turn. All threads of the warp take part.
/// @param source 16-byte aligned; null: this thread has none
__device__ inline void CopyValues(const std::byte* source, std::byte* target,
                                  std::uint32_t value_size) {
  constexpr std::uint32_t kTilesOfWarp = 32 / kTileLanes;
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t at = 16 * (lane % kTileLanes); at < RoundUp(value_size, 16 * kTileLanes);
       at += 16 * kTileLanes) {
    uint4 chunk[kTileLanes];
    for (std::uint32_t r = 0; r < kTileLanes; ++r) {
      const auto from = reinterpret_cast<const std::byte*>(__shfl_sync(
          ~0u, reinterpret_cast<std::uintptr_t>(source), r * kTilesOfWarp + lane / kTileLanes));
      if (from != nullptr && at < value_size) {
        chunk[r] = __ldcv(reinterpret_cast<const uint4*>(from + at));
      }
    }
    for (std::uint32_t r = 0; r < kTileLanes; ++r) {
      const std::uint32_t owner = r * kTilesOfWarp + lane / kTileLanes;
      const bool any = __shfl_sync(~0u, source != nullptr ? 1 : 0, owner) != 0;
      const auto to = reinterpret_cast<std::byte*>(
          __shfl_sync(~0u, reinterpret_cast<std::uintptr_t>(target), owner));
      if (any && at < value_size) StoreChunk(to + at, chunk[r], value_size - at);
    }
  }
}

/// A find that was left to be read in the order of the cells, or none.
inline constexpr std::uint32_t kNotDeferred = ~0u;

/// Finds of 8-byte keys, a thread for each, in the order in which they came. With `deferred`,
/// values that are not cached are left for ReadDeferred.
/// @param deferred, order null, or for each operation the cell that it is to read, or kNotDeferred,
///        and its number
__global__ void __launch_bounds__(kBlockThreads)
    FindShortKeys(const __grid_constant__ TableContext context,
                  const __grid_constant__ DeviceBatch batch, std::uint32_t* deferred,
                  std::uint32_t* order) {
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty));
  const std::uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  Outcome outcome;
  CacheAccess<ThreadGroup, CudaMedia>::Value cached;
  bool hit = false;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint32_t cell = kNotDeferred;
  if (i < batch.count) {
    const Candidates candidates = operations.Locate(batch.keys + i);
    outcome = operations.Find(candidates, batch.keys + i);
    batch.results[i] = ResultOf(Op::kFind, outcome.present);
    hit = outcome.present && batch.found == nullptr;
    if (outcome.present && batch.found != nullptr) {
      target = batch.FoundOf(i, table.value_size);
      hit = operations.FindCached(candidates, outcome, &cached);
      if (table.inline_values()) {
        operations.ReadValue(outcome.reference, target);
        hit = candidates.reserved < 0;
      } else if (hit) {
        source = cached.bytes;
      } else if (deferred != nullptr && operations.CellOf(outcome.reference) != kNotDeferred) {
        cell = operations.CellOf(outcome.reference);
      } else {
        source = table.Cell(outcome.reference);
      }
    }
  }
  CopyValues(source, target, table.value_size);
  __syncwarp();
  if (hit && source != nullptr && !operations.cache().IsCurrent(cached)) {
    operations.ReadValue(outcome.reference, target);
    hit = false;
  }
  if (deferred != nullptr && i < batch.count) {
    deferred[i] = cell;
    order[i] = i;
  }
  const int found = __syncthreads_count(outcome.present);
  const int hits = __syncthreads_count(hit);
  if (threadIdx.x != 0 || found == 0) return;
  AtomicAdd(&batch.sums->found, static_cast<std::uint64_t>(found));
  AtomicAdd(&batch.sums->cache_hits, static_cast<std::uint64_t>(hits));
}

/// Reads what finds left, in the order of the cells; each cell once.
/// @param deferred cells, sorted: those of kNotDeferred last
/// @param order of each, the operation
__global__ void __launch_bounds__(kBlockThreads)
    ReadDeferred(const __grid_constant__ TableView table, const __grid_constant__ DeviceBatch batch,
                 const std::uint32_t* deferred, const std::uint32_t* order) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(DirtyLog{});
  for (std::uint32_t p = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes; p < batch.count;
       p += gridDim.x * kTilesPerBlock) {
    const std::uint32_t cell = deferred[p];
    if (cell == kNotDeferred) break;
    if (p > 0 && deferred[p - 1] == cell) continue;
    media.ReadCell(group, batch.FoundOf(order[p], table.value_size),
                   table.Cell(cell * table.cell_bytes), table.value_size);
  }
}

/// Copies values that several finds left from the first of them.
__global__ void __launch_bounds__(kBlockThreads)
    CopyDeferred(std::uint32_t value_size, const __grid_constant__ DeviceBatch batch,
                 const std::uint32_t* deferred, const std::uint32_t* order) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  for (std::uint32_t p = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes; p < batch.count;
       p += gridDim.x * kTilesPerBlock) {
    const std::uint32_t cell = deferred[p];
    if (cell == kNotDeferred) break;
    if (p == 0 || deferred[p - 1] != cell) continue;
    std::uint32_t first = 0;  // of this cell: among [first, last)
    for (std::uint32_t last = p; first < last;) {
      const std::uint32_t middle = first + (last - first) / 2;
      if (deferred[middle] < cell) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    CopyBytes(group, batch.FoundOf(order[p], value_size), batch.FoundOf(order[first], value_size),
              value_size);
  }
}

/// Makes the directory, a tile for each bucket.
__global__ void __launch_bounds__(kBlockThreads)
    BuildDirectory(const __grid_constant__ TableContext context, std::uint32_t buckets) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(DirtyLog{}));
  for (std::uint64_t i = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       i < buckets; i += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    operations.directory().Build(static_cast<std::uint32_t>(i));
  }
}

// The steps of loading the cache (cache/cache_loader.h).

__global__ void CountCacheBuckets(const __grid_constant__ CacheLoad load) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.buckets;
       i += gridDim.x * blockDim.x) {
    load.CountBucket(i);
  }
}

__global__ void ChooseCacheThreshold(const __grid_constant__ CacheLoad load) {
  load.ChooseThreshold();
}

__global__ void EvictBlocks(const __grid_constant__ TableView table,
                            const __grid_constant__ CacheLoad load) {
  const CudaMedia media(DirtyLog{});
  const ThreadGroup group;
  const CacheAccess<ThreadGroup, CudaMedia> access(load.cache, table, group, media);
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.cache.size;
       i += gridDim.x * blockDim.x) {
    load.EvictCold(access, media, i);
  }
}

__global__ void AssignBlocks(const __grid_constant__ CacheLoad load) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.buckets;
       i += gridDim.x * blockDim.x) {
    load.AssignHot(CudaMedia(DirtyLog{}), i);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FillBlocks(const __grid_constant__ TableView table,
               const __grid_constant__ DirectoryView directory,
               const __grid_constant__ CacheLoad load) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(DirtyLog{});
  const CacheAccess<CudaTile, CudaMedia> access(load.cache, table, group, media);
  for (std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
       i < load.state->pending; i += gridDim.x * kTilesPerBlock) {
    access.Fill(directory, load.pending[i]);
  }
}

/// Tells the host how a batch went.
__global__ void ReportBatch(const __grid_constant__ TableContext context, BatchSums* sums,
                            BatchReport* report) {
  report->sums = *sums;
  *sums = BatchSums{};
  report->positions.cells_tail = AtomicLoad(&context.reclaim.counters->cells_tail);
  report->positions.slots_tail = AtomicLoad(&context.reclaim.counters->slots_tail);
  report->dirty_lines = context.dirty.count == nullptr ? 0 : AtomicLoad(context.dirty.count);
  __threadfence_system();
}

/// Visits `slots` slots from `first_bucket` on, a thread each.
__global__ void VisitSlots(const __grid_constant__ TableContext context,
                           const __grid_constant__ PassView pass, PassMode mode, bool addressable,
                           std::byte* first_bucket, std::uint64_t slots) {
  const CudaMedia media(context.dirty);
  const LaneOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, ThreadGroup{}, media);
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < slots;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const Slot slot{first_bucket + (i >> context.table.slot_bits) * context.table.bucket_bytes,
                    static_cast<std::uint32_t>(i & (context.table.slots - 1))};
    VisitSlot(context.table, operations, media, pass, mode, addressable, slot);
  }
}

/// Drains `buckets` buckets from `first_bucket` on, a tile each.
__global__ void __launch_bounds__(kBlockThreads)
    DrainBuckets(const __grid_constant__ TableContext context, std::byte* first_bucket,
                 std::uint64_t buckets, std::uint64_t* left) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(context.dirty);
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, media);
  for (std::uint64_t b = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       b < buckets; b += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    const std::uint64_t stayed = DrainBucket(context.table, operations, group, media,
                                             first_bucket + b * context.table.bucket_bytes);
    if (stayed > 0 && group.IsLeader()) AtomicAdd(left, stayed);
  }
}

/// Frees the unused cells of a range, a thread for each 32.
__global__ void FreeCells(const __grid_constant__ TableContext context, const std::uint32_t* used,
                          CellRange range) {
  const std::uint64_t words = (range.last + 31) / 32 - range.first / 32;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < words;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    FreeUnusedCells(context.reclaim, used, range.first / 32 + i, range);
  }
}

/// Copies ring positions [from, to) into a larger ring.
template <class T>
__global__ void MoveRing(T* larger, std::uint64_t larger_mask, const T* ring, std::uint64_t mask,
                         std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t i = from + blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < to;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    larger[i & larger_mask] = ring[i & mask];
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_CUH_
