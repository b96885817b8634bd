#ifndef GPM_ENGINE_CUDA_KERNELS_MIDDLE_BATCH_CUH_
#define GPM_ENGINE_CUDA_KERNELS_MIDDLE_BATCH_CUH_

#include "engine/cuda/kernels/large_batch.cuh"
#include "engine/cuda/kernels/resolve.cuh"

namespace gpm {

/// Does behind SearchKeyRuns what ReadValues, ApplyQueuedKeyRuns and ResolveResults do for a larger
/// batch. One of middle size would spend a fifth of its time between one kernel and the next. It
/// may begin early (BeginsEarly).
/// @param helpers blocks that make the planned reads, and answer the operations, before they help
///        to carry out key runs: as many as there are multiprocessors, or 0 where nothing is
///        planned, which is then not answered here
/// @param reporter null words where something is left for another kernel
__global__ void __launch_bounds__(kBlockThreads, kApplyingBlocks)
    CarryOutSearched(const __grid_constant__ TableContext context,
                     const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                     const __grid_constant__ SmQueues<PendingRun> pending,
                     const __grid_constant__ SmQueues<std::uint32_t> free_cells,
                     std::uint32_t helpers, const __grid_constant__ Reporter reporter) {
  __shared__ SmQueueConsumer<std::uint64_t> planned;
  AwaitKernelBefore();
  LetNextKernelBegin();
  if (blockIdx.x == 0 && threadIdx.x == 0) ClearNextSums(reporter);
  if (blockIdx.x < helpers) {
    planned.ForEach<kTilesPerBlock>(reads.queues, [&](std::uint64_t read, bool has_one) {
      if (has_one) ReadOne(context.table, batch, read);
    });
    if (planned.IsLast(reads.queues, helpers)) reads.queues.Clear();
    for (std::uint32_t first = blockIdx.x * kBlockThreads; first < batch.count;
         first += helpers * kBlockThreads) {
      AnswerAt(context, batch, reads, first + threadIdx.x);
    }
  }
  if (!ApplyQueued(context, batch, reads, pending, free_cells)) return;
  __threadfence();  // what was returned is there when the host is told
  __syncthreads();
  Report(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_MIDDLE_BATCH_CUH_
