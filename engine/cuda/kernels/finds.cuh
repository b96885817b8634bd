#ifndef GPM_ENGINE_CUDA_KERNELS_FINDS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_FINDS_CUH_

#include "engine/cuda/io/reads.cuh"

namespace gpm {

/// The kernels of batches that are finds alone. Finds are looked up in the order in which they
/// came, in the directory. (Without one they come here only if they are not to be combined:
/// AccessOptions.)

/// Blocks of FindKeys that a multiprocessor runs at once.
inline constexpr unsigned kFindingBlocks = 4;
/// Of those that begin together, while the cache is refreshed: that many leave two blocks of a
/// refresh the registers that they have, so that a batch does not wait until they end.
inline constexpr unsigned kFindingBesideRefresh = 3;

/// Puts a value that was read for a find into the cache, by its tile.
/// @param read cell << 32 | operation
__device__ inline void KeepRead(const TileOperations& operations, const DeviceBatch& batch,
                                std::uint64_t read) {
  const TableView& table = operations.table();
  const auto i = static_cast<std::uint32_t>(read);
  const std::uint64_t* const key = batch.KeyOf(i, table.key_words);
  const Candidates candidates = operations.Locate(key);
  const Outcome outcome = operations.Find(candidates, key, 0);
  if (!outcome.present || operations.CellOf(outcome.reference) != read >> 32) return;
  operations.Keep(candidates, outcome, batch.FoundOf(i, table.value_size));
}

/// A small batch: a tile looks up each find, and copies the value if the cache has it. If `reads`
/// is enabled, other values are queued there, and read when all finds were looked up: all blocks
/// then begin at once (KernelGraph), one or more for each multiprocessor. If reads are shared, one
/// find reads for all that want its value, and these copy it from there at the end. What was read
/// stays in the cache, where that opens.
__global__ void __launch_bounds__(kBlockThreads, kFindingBlocks)
    FindKeys(const __grid_constant__ TableContext context,
             const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
             const __grid_constant__ Reporter reporter) {
  __shared__ BlockCounts counts;
  __shared__ FewItemsConsumer<std::uint64_t> items;
  __shared__ std::uint32_t planned_in_all;
  counts.Clear();
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TableView& table = context.table;
  const TileOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  group, CudaMedia(context.dirty));
  const bool stuck = batch.IsStuck(table);
  for (std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes; i < batch.count;
       i += gridDim.x * kTilesPerBlock) {
    TileOperations::CachedValue cached = operations.BeginFind();
    const std::uint64_t* key = batch.KeyOf(i, table.key_words);
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Find(candidates, key, 1, nullptr, &cached);
    ReadPlan plan;
    bool hit = context.accelerators.directory.enabled();
    if (outcome.present && batch.found != nullptr) {
      std::byte* const row = batch.FoundOf(i, table.value_size);
      if (!reads.enabled()) {
        hit = operations.ReadFound(candidates, outcome, row);
      } else if (hit = operations.ReadCached(cached, row); !hit && group.IsLeader()) {
        plan = reads.Plan(operations.CellOf(outcome.reference), i);
      }
    }
    if (group.IsLeader()) {
      if (reads.sharing.enabled()) reads.plans[i] = plan;
      if (plan.Is(ReadPlan::kCopy)) atomicAdd(&counts.reads_shared, 1u);
      batch.results[i] = stuck ? Result::kNoSpace : ResultOf(Op::kFind, outcome.present);
      if (outcome.present) counts.CountFound(hit);
    }
  }
  counts.AddTo(batch.sums);
  if (!reads.enabled()) {
    ReportWhenLast(context, reporter);
    return;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) ClearNextSums(reporter);
  if (threadIdx.x == 0 && reporter.outputs_on_host) reporter.Fence();  // (AddTo has synced)
  const GridBarrier barrier{batch.sums->blocks_arrived};
  const std::uint32_t planned = barrier.ArriveAndWait(
      1, counts.found - counts.cache_hits - counts.reads_shared, &planned_in_all);
  const bool may_report = threadIdx.x < 32 && reporter.words != nullptr && !reads.sharing.enabled();
  std::uint32_t half = 0;  // of the report, which counts no reads: ready before them
  if (may_report) half = HalfOfReport(context, reporter);
  bool reports = blockIdx.x == 0;
  if (planned != 0) {
    items.Begin(reads.queues, planned);
    std::uint64_t item = 0;
    for (bool has_one = false; items.Next<kTilesPerBlock>(reads.queues, &item, &has_one);) {
      if (!has_one) continue;
      ReadOne(table, batch, item);
      if (reporter.outputs_on_host) reporter.Fence();
      if (context.accelerators.cache.opens()) KeepRead(operations, batch, item);
    }
    reports = items.IsLast();
    if (reports) reads.queues.Clear();
  }
  __syncthreads();
  if (!reads.sharing.enabled()) {
    if (reports && may_report) Send(half, reporter);
    return;
  }
  barrier.ArriveAndWait(2, 0, &planned_in_all);
  for (std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes; i < batch.count;
       i += gridDim.x * kTilesPerBlock) {
    const ReadPlan plan = reads.plans[i];
    if (!plan.Is(ReadPlan::kCopy)) continue;
    CopyBytes(group, batch.FoundOf(i, table.value_size),
              batch.FoundOf(plan.number(), table.value_size), table.value_size);
  }
  ReportWhenLast(context, reporter);
}

/// Blocks of FindLongValues for each multiprocessor.
inline constexpr unsigned kLongFindingBlocks = 4;

/// A few finds of long values: a block for each, as a tile alone would be busy for long. What was
/// read stays in the cache, where that opens.
__global__ void __launch_bounds__(kBlockThreads, kLongFindingBlocks)
    FindLongValues(const __grid_constant__ TableContext context,
                   const __grid_constant__ DeviceBatch batch,
                   const __grid_constant__ Reporter reporter) {
  __shared__ BlockCounts counts;
  __shared__ Outcome found;
  counts.Clear();
  const CudaTile tile(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TableView& table = context.table;
  const CudaMedia media(context.dirty);
  const TableProbe<CudaTile, CudaMedia> search(table, context.accelerators, tile, media);
  const TableProbe<BlockGroup<kBlockThreads>, CudaMedia> read(table, context.accelerators, {},
                                                              media);
  const bool stuck = batch.IsStuck(table);
  for (std::uint32_t i = blockIdx.x; i < batch.count; i += gridDim.x) {
    const std::uint64_t* const key = batch.KeyOf(i, table.key_words);
    const Candidates candidates = search.Locate(key);
    if (threadIdx.x < kTileLanes) {
      const Outcome outcome = search.Find(candidates, key);
      if (threadIdx.x == 0) found = outcome;
    }
    __syncthreads();
    const Outcome outcome = found;
    const bool hit = outcome.present &&
                     read.ReadAndKeep(candidates, outcome, batch.FoundOf(i, table.value_size));
    if (threadIdx.x == 0) {
      batch.results[i] = stuck ? Result::kNoSpace : ResultOf(Op::kFind, outcome.present);
      if (outcome.present) counts.CountFound(hit);
    }
    __syncthreads();
  }
  counts.AddTo(batch.sums);
  ReportWhenLast(context, reporter);
}

/// Of the finds of a large batch that the cache answers, one in so many counts for all of them:
/// single additions to the counts of the few hottest buckets would take longer than the searches.
inline constexpr std::uint32_t kCountedShare = 4;

/// A large batch: a thread looks up each find, and plans how its value is read, or copies it from
/// the cache.
__global__ void __launch_bounds__(kBlockThreads)
    SearchKeys(const __grid_constant__ TableContext context,
               const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
               const __grid_constant__ Reporter reporter) {
  LetNextKernelBegin();
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty));
  const std::uint32_t i = reads.first + blockIdx.x * kBlockThreads + threadIdx.x;
  bool present = false;
  bool hit = false;
  bool copies = false;
  ReadPlan plan;
  CacheOfLane::Value cached = operations.BeginFind();
  if (i < reads.last) {
    const std::uint64_t* key = batch.KeyOf(i, table.key_words);
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Find(candidates, key, 0, nullptr, &cached);
    std::uint32_t uses = 1;
    present = outcome.present;
    batch.results[i] = batch.IsStuck(table) ? Result::kNoSpace : ResultOf(Op::kFind, present);
    if (!reads.has_plans()) {
      hit = present && context.accelerators.directory.enabled() &&
            (batch.found == nullptr || table.inline_values());
      if (present && batch.found != nullptr) {
        operations.ReadValue(outcome.reference, batch.FoundOf(i, table.value_size));
      }
    } else {
      if (present) {
        const std::uint32_t cell = operations.CellOf(outcome.reference);
        copies = reads.copies_cached && cached.bytes != nullptr;
        if (copies || (cached.bytes != nullptr && cached.at < ReadPlan::kCopy)) {
          if (!copies) {
            plan = ReadPlan{cell, ReadPlan::kCached | static_cast<std::uint32_t>(cached.at)};
          }
          const bool counted = (i + context.accelerators.cache.clock) % kCountedShare == 0;
          uses = counted ? kCountedShare : 0;
        } else {
          plan = reads.Plan(cell, i);
        }
      }
      if (!reads.copies_cached) reads.plans[i] = plan;
    }
    if (present && uses != 0) operations.CountUses(candidates, outcome, uses);
  }
  if (reads.copies_cached) {
    if (__any_sync(~0u, copies)) {
      hit = CopyFromCache(context, cached, copies ? batch.FoundOf(i, table.value_size) : nullptr);
    }
    if (i < reads.last && reads.order.enabled()) reads.plans[i] = plan;
  }
  if (reads.has_plans()) {
    AddCopies(reads, plan.Is(ReadPlan::kCopy), plan.number(), i);
    const bool planned = __syncthreads_or(plan.Is(ReadPlan::kCached)) != 0;
    if (threadIdx.x == 0 && planned) reads.flags[Reads::kCached] = 1;
  }
  const int found = __syncthreads_count(present);
  const int hits = __syncthreads_count(hit);
  if (threadIdx.x == 0 && found != 0) {
    AtomicAdd(&batch.sums->found, static_cast<std::uint64_t>(found));
    AtomicAdd(&batch.sums->cache_hits, static_cast<std::uint64_t>(hits));
  }
  ReportWhenLast(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_FINDS_CUH_
