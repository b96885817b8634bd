#ifndef GPM_ENGINE_CUDA_KERNELS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_CUH_

#include <cooperative_groups.h>

#include "cache/cache_loader.h"
#include "engine/cuda_types.cuh"
#include "recovery/slot_pass.h"

namespace gpm {

/// The kernels of the cuda executor, which alone includes this file. A batch goes through
/// HashKeys, a sort, MakeEffects, a scan, CarryOutRuns, AnswerOperations, ReturnCells,
/// ReportBatch.

/// Gives back erased slots.
__global__ void GiveBackSlots(const __grid_constant__ TableContext context,
                              Epochs::SlotRange slots) {
  const std::uint64_t thread = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  const LaneOperations operations(context.table, context.reclaim, context.locks, context.cache,
                                  ThreadGroup{}, CudaMedia(context.dirty));
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

/// By the leader of a tile: `uses` operations on a key came to this outcome.
__device__ inline void CountUses(BlockCounts* counts, const Outcome& outcome, std::uint32_t uses) {
  if (outcome.present) atomicAdd(&counts->found, uses);
  if (outcome.cached) atomicAdd(&counts->cache_hits, uses);
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
    const Outcome outcome = operations.Apply(operations.Locate(key), key, plan);
    lack = outcome.lack;
    items_added += ItemsAdded(plan, outcome);
    if (lack != Lack::kNothing && !give_up) break;
    if (op == Op::kFind && outcome.present && batch.found != nullptr) {
      operations.ReadFound(outcome, batch.FoundOf(i, table.value_size));
    }
    if (group.IsLeader()) {
      CountUses(counts, outcome, 1);
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

/// Carries out the run that ends at sorted position p, if one does and it is pending.
__device__ inline void CarryOutRun(const TableContext& context, const DeviceBatch& batch,
                                   const CudaTile& group, std::uint32_t p, bool give_up,
                                   BlockCounts* counts) {
  if (p >= batch.count) return;
  if (p + 1 < batch.count && batch.hashes[p + 1] == batch.hashes[p]) return;
  const RunEffect effect = batch.effects[p];
  RunRecord* record = &batch.records[effect.first];
  if (record->status != RunStatus::kPending) return;
  const TableView& table = context.table;
  const TileOperations operations(table, context.reclaim, context.locks, context.cache, group,
                                  CudaMedia(context.dirty));
  if (effect.mixed() || give_up) {
    RunOneByOne(operations, group, table, batch, record, p, give_up, counts);
    return;
  }
  const std::uint64_t* key = batch.keys + std::uint64_t{batch.order[p]} * table.key_words;
  const Plan plan = PlanOfRun(effect, [&](std::uint32_t position) {
    return batch.ValueOf(batch.order[position], table.value_size);
  });
  const std::uint32_t uses = p - effect.first + 1;
  const Outcome outcome = operations.Apply(operations.Locate(key), key, plan, uses);
  if (const int added = ItemsAdded(plan, outcome); added != 0 && group.IsLeader()) {
    AtomicAdd(&batch.sums->items_added, static_cast<std::uint64_t>(std::int64_t{added}));
  }
  if (outcome.lack != Lack::kNothing) {
    if (group.IsLeader()) {
      AtomicAdd(outcome.lack == Lack::kSlot ? &batch.sums->lack_slots : &batch.sums->lack_cells, 1);
    }
    return;
  }
  const std::uint32_t find = effect.first_find();
  if (outcome.present && batch.found != nullptr && find != kNoPosition &&
      batch.effects[find].if_present == kUnchanged) {
    // The run's first find reads from persistent memory; the others copy from its row.
    operations.ReadFound(outcome, batch.FoundOf(batch.order[find], table.value_size));
  }
  if (group.IsLeader()) {
    CountUses(counts, outcome, uses);
    record->present = outcome.present ? 1 : 0;
    record->status = RunStatus::kDone;
  }
}

/// Carries out the runs that are pending: a tile for each sorted position.
/// @param give_up go through pending runs one by one; what lacks room gets kNoSpace
__global__ void __launch_bounds__(kBlockThreads)
    CarryOutRuns(const __grid_constant__ TableContext context,
                 const __grid_constant__ DeviceBatch batch, bool give_up) {
  __shared__ BlockCounts counts;
  if (threadIdx.x == 0) counts = BlockCounts{};
  __syncthreads();
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const std::uint32_t p = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
  CarryOutRun(context, batch, group, p, give_up, &counts);
  __syncthreads();
  if (threadIdx.x == 0 && counts.found > 0) {
    AtomicAdd(&batch.sums->found, counts.found);
    AtomicAdd(&batch.sums->cache_hits, counts.cache_hits);
  }
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
    if (p == effect.first_find()) return;  // read from persistent memory already
    source = batch.FoundOf(batch.order[effect.first_find()], value_size);
  } else {
    source = batch.ValueOf(batch.order[before], value_size);
  }
  CopyBytes(CudaTile(tile), batch.FoundOf(i, value_size), source, value_size);
}

// The steps of loading the cache (cache/cache_loader.h).

__global__ void CountCacheBuckets(const __grid_constant__ CacheLoad load) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.buckets;
       i += gridDim.x * blockDim.x) {
    load.CountBucket(i);
  }
}

__global__ void ChooseCacheThreshold(const __grid_constant__ CacheLoad load) {
  load.ChooseThresholds();
}

__global__ void EvictCopies(const __grid_constant__ CacheLoad load) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.cache.size;
       i += gridDim.x * blockDim.x) {
    load.EvictCold(CudaMedia(DirtyLog{}), i);
  }
}

__global__ void FreeBlocks(const __grid_constant__ CacheLoad load) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.state->blocks.size;
       i += gridDim.x * blockDim.x) {
    load.FreeBlock(i);
  }
}

__global__ void AssignCopies(const __grid_constant__ CacheLoad load) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < load.buckets;
       i += gridDim.x * blockDim.x) {
    load.AssignHot(CudaMedia(DirtyLog{}), i);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    FillCopies(const __grid_constant__ TableView table, const __grid_constant__ CacheLoad load) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(DirtyLog{});
  const CacheAccess<CudaTile, CudaMedia> access(load.cache, table, group, media);
  for (std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
       i < load.state->pending; i += gridDim.x * kTilesPerBlock) {
    load.FillPending(access, i);
  }
}

/// Tells the host how a batch went.
__global__ void ReportBatch(const __grid_constant__ TableContext context, BatchSums* sums,
                            BatchReport* report) {
  report->sums = *sums;
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
  const LaneOperations operations(context.table, context.reclaim, context.locks, context.cache,
                                  ThreadGroup{}, media);
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
  const TileOperations operations(context.table, context.reclaim, context.locks, context.cache,
                                  group, media);
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
