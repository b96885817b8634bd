#ifndef GPM_ENGINE_CUDA_IO_READ_KERNELS_CUH_
#define GPM_ENGINE_CUDA_IO_READ_KERNELS_CUH_

#include "engine/cuda/io/reads.cuh"

namespace gpm {

/// The kernels of reads that batches have planned.

/// Copies values that were planned to be taken from the cache, kBlockThreads operations at a time.
/// All threads of some blocks call it. @return how many the cache still had
__device__ inline std::uint32_t CopyCached(const TableContext& context, const DeviceBatch& batch,
                                           const Reads& reads) {
  __shared__ std::uint32_t ticket;
  std::uint32_t hits = 0;
  for (;;) {
    if (threadIdx.x == 0) ticket = atomicAdd(&reads.flags[Reads::kTickets], 1u);
    __syncthreads();
    const std::uint64_t i = reads.first + std::uint64_t{ticket} * kBlockThreads + threadIdx.x;
    __syncthreads();
    if (i - threadIdx.x >= reads.last) return hits;
    ReadPlan plan;
    if (i < reads.last) plan = reads.plans[i];
    std::byte* target = nullptr;
    if (plan.Is(ReadPlan::kCached)) {
      target = batch.FoundOf(static_cast<std::uint32_t>(i), context.table.value_size);
    }
    hits += CopyPlanned(context, plan, target) ? 1 : 0;
  }
}

/// Makes the planned reads, and copies what the cache has.
/// @param readers blocks that begin with reads; the others begin with copies. Where reads are in
///        the order of addresses the others read nothing, so that few pages are in use
/// @param hits_sum what the cache had is added to it; null: another kernel copies from the cache
__global__ void __launch_bounds__(kBlockThreads, 5)  // so that others fit beside
    ReadValues(const __grid_constant__ TableContext context,
               const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
               std::uint32_t readers, std::uint64_t* hits_sum) {
  __shared__ SmQueueConsumer<std::uint64_t> items;
  AwaitKernelBefore();
  const TableView& table = context.table;
  const auto read = [&](std::uint64_t item, bool has_one) {
    if (has_one) ReadOne(table, batch, item);
  };
  const bool copies = hits_sum != nullptr && reads.flags[Reads::kCached] != 0;
  const bool reads_first = blockIdx.x < readers;
  for (const bool reads_now : {reads_first, !reads_first}) {
    if (!reads_now) {
      if (!copies) continue;
      std::uint32_t hits = CopyCached(context, batch, reads);
      for (int step = 16; step > 0; step /= 2) hits += __shfl_xor_sync(~0u, hits, step);
      if (threadIdx.x % 32 == 0 && hits != 0) AtomicAdd(hits_sum, hits);
    } else if (!reads.order.enabled()) {
      items.ForEach<kTilesPerBlock>(reads.queues, read);
      if (items.IsLast(reads.queues)) reads.queues.Clear();
    } else if (reads_first) {
      const std::uint32_t total = reads.flags[Reads::kAll];
      std::uint32_t p =
          reads.by_host.RowsOf(total) + blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
      std::uint64_t next = p < total ? reads.queues.items[p] : 0;
      for (const std::uint32_t step = readers * kTilesPerBlock; p < total; p += step) {
        const std::uint64_t item = next;
        if (p + step < total) next = reads.queues.items[p + step];  // in flight meanwhile
        ReadOne(table, batch, item);
      }
    }
  }
}

/// Copies what several operations wanted from the one that read it.
__global__ void __launch_bounds__(kBlockThreads)
    CopyReads(const __grid_constant__ TableContext context,
              const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
              const __grid_constant__ Reporter reporter) {
  AwaitKernelBefore();
  const std::uint32_t value_size = context.table.value_size;
  const std::uint32_t count = *reads.copies.count;
  for (std::uint32_t first = blockIdx.x * kBlockThreads + threadIdx.x / 32 * 32; first < count;
       first += gridDim.x * kBlockThreads) {
    const std::uint32_t k = first + threadIdx.x % 32;
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    if (k < count) {
      const std::uint64_t copy = reads.copies.rows[k];
      source = batch.FoundOf(static_cast<std::uint32_t>(copy >> 32), value_size);
      target = batch.FoundOf(static_cast<std::uint32_t>(copy), value_size);
    }
    CopyValues<false>(source, target, value_size);
  }
  ReportWhenLast(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_READ_KERNELS_CUH_
