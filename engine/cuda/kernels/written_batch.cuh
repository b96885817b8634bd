#ifndef GPM_ENGINE_CUDA_KERNELS_WRITTEN_BATCH_CUH_
#define GPM_ENGINE_CUDA_KERNELS_WRITTEN_BATCH_CUH_

#include "engine/cuda/io/host_crew.h"
#include "engine/cuda/kernels/large_batch.cuh"

namespace gpm {

/// The kernels of a batch whose values the host writes to cells (CellGrant::assigned): of one kind
/// of operations, which write. The values come part by part, in the order of the operations, and so
/// do the key runs.

/// Threads of a block: few, since they wait for each other, and for each other's writes.
inline constexpr unsigned kWrittenThreads = 128;
/// Blocks that carry out key runs: a multiprocessor runs so many at once.
inline constexpr unsigned kWrittenBlocks = 6;
/// Positions of a block of ListWrittenRuns.
inline constexpr std::uint32_t kRunSpan = 4 * kBlockThreads;

/// Where the key runs are listed, part by part.
struct WrittenRuns {
  static constexpr std::uint32_t kMostParts = HostCrew::kMostParts;

  std::uint32_t* ends;    ///< positions at which they end: each part's from its first operation on
  std::uint32_t* apart;   ///< of those of several keys, which come last
  std::uint32_t* counts;  ///< of each part, and of those
  std::uint32_t parts;
  std::uint32_t begins[kMostParts + 1];  ///< operations with which the parts begin, and end

  GPM_HD static std::uint64_t Words(std::uint64_t operations) {
    return operations + operations / 2 + 1 + kMostParts + 1;
  }
  /// The part of an operation.
  __device__ std::uint32_t PartOf(std::uint32_t operation) const {
    std::uint32_t part = 0;
    while (part + 1 < parts && operation >= begins[part + 1]) ++part;
    return part;
  }
};

/// Lists the key runs: each with the part that has the operation whose value it writes, so that no
/// part has more than it has operations. A part's are in the order of addresses, about.
__global__ void __launch_bounds__(kBlockThreads)
    ListWrittenRuns(const __grid_constant__ TableContext context,
                    const __grid_constant__ DeviceBatch batch,
                    const __grid_constant__ WrittenRuns runs) {
  constexpr std::uint32_t kOfThread = kRunSpan / kBlockThreads;
  __shared__ std::uint32_t counts[WrittenRuns::kMostParts + 1];
  if (threadIdx.x <= WrittenRuns::kMostParts) counts[threadIdx.x] = 0;
  __syncthreads();
  std::uint32_t part[kOfThread], at[kOfThread];
  const bool stuck = batch.IsStuck(context.table);
  for (std::uint32_t k = 0; k < kOfThread; ++k) {
    const std::uint32_t p = blockIdx.x * kRunSpan + k * kBlockThreads + threadIdx.x;
    part[k] = kNoPosition;
    if (stuck || !EndsKeyRun(batch, p)) continue;
    const KeyRunEffect effect = batch.effects[p];
    part[k] =
        effect.collided() ? WrittenRuns::kMostParts : runs.PartOf(batch.order[effect.writer()]);
    at[k] = atomicAdd(&counts[part[k]], 1);
  }
  __syncthreads();
  if (threadIdx.x <= WrittenRuns::kMostParts && counts[threadIdx.x] != 0) {
    counts[threadIdx.x] = atomicAdd(&runs.counts[threadIdx.x], counts[threadIdx.x]);
  }
  __syncthreads();
  for (std::uint32_t k = 0; k < kOfThread; ++k) {
    if (part[k] == kNoPosition) continue;
    const bool apart = part[k] == WrittenRuns::kMostParts;
    std::uint32_t* const to = apart ? runs.apart : runs.ends + runs.begins[part[k]];
    to[counts[part[k]] + at[k]] = blockIdx.x * kRunSpan + k * kBlockThreads + threadIdx.x;
  }
}

/// Cells that the threads of a block retire together, as the queue's end is a line that all blocks
/// write. In shared memory.
struct RetiredOfBlock {
  std::uint32_t cells[kWrittenThreads];
  std::uint32_t count;
  std::uint64_t first;

  /// By all threads. @param own what this one retired, at most one
  __device__ void Queue(const Reclaim& reclaim, const RetiredCells& own) {
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    std::uint32_t at = 0;
    if (own.count != 0) at = atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.x == 0) first = AtomicAdd(&reclaim.counters->cells_tail, count);
    __syncthreads();
    if (own.count != 0) reclaim.cell_ring[(first + at) & reclaim.cell_mask] = own.cells[0];
  }
};

/// Carries out the key runs of a part, a thread each, as there is hardly anything to copy: so many
/// writes of slots are on their way at once that the link is the bound.
__global__ void __launch_bounds__(kWrittenThreads, kWrittenBlocks)
    ApplyWrittenRuns(const __grid_constant__ TableContext context,
                     const __grid_constant__ DeviceBatch batch,
                     const __grid_constant__ WrittenRuns runs, std::uint32_t part) {
  __shared__ RetiredOfBlock retired;
  const std::uint32_t own = blockIdx.x * kWrittenThreads + threadIdx.x;
  const std::uint32_t count = runs.counts[part];
  if (blockIdx.x * kWrittenThreads >= count) return;
  RetiredCells cells{&retired.cells[threadIdx.x], 0};
  Reclaim reclaim = context.reclaim;
  reclaim.retired = &cells;
  const LaneOperations operations(context.table, reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty, !context.table.composed));
  KeyRunTask task{};
  if (own < count) {
    const std::uint32_t p = runs.ends[runs.begins[part] + own];
    task.active = true;
    task.effect = batch.effects[p];
    task.record = &batch.records[task.effect.first];
    task.last = batch.order[p];
    task.uses = p - task.effect.first + 1;
    task.written = batch.order[task.effect.writer()];
    task.cell = context.reclaim.TakeAssigned(task.written);
  }
  ApplyKeyRunTasks(TeamOfTiles<WholeBlock>(), operations, batch, Reads{}, NoCells{}, task,
                   NobodyReadsApart{});
  if (cells.count != 0 && retired.cells[threadIdx.x] == task.cell) {  // of a run that wrote nothing
    context.reclaim.GiveBackAssigned(task.written, task.cell);
    cells.count = 0;
  }
  retired.Queue(context.reclaim, cells);
}

/// Carries out the key runs of several keys, a tile each.
__global__ void __launch_bounds__(kBlockThreads)
    ApplyRunsApart(const __grid_constant__ TableContext context,
                   const __grid_constant__ DeviceBatch batch,
                   const __grid_constant__ WrittenRuns runs) {
  __shared__ BlockCounts counts;
  counts.Clear();
  const std::uint32_t count = runs.counts[WrittenRuns::kMostParts];
  for (std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes; i < count;
       i += gridDim.x * kTilesPerBlock) {
    const std::uint32_t p = runs.apart[i];
    KeyRunRecord* const record = &batch.records[batch.effects[p].first];
    ApplyOneByOne<kTileLanes>(context, batch, OneByOne{record, p, false}, &counts,
                              [](std::uint32_t before) { return before + 1; });
  }
  counts.AddTo(batch.sums);
}

/// Queues the assigned cells that nobody took, and counts the others.
__global__ void __launch_bounds__(kBlockThreads)
    QueueAssignedLeft(const __grid_constant__ TableContext context,
                      const __grid_constant__ DeviceBatch batch) {
  __shared__ std::uint32_t taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  std::uint32_t own = 0;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
       i < context.reclaim.grant.assigned; i += std::uint64_t{gridDim.x} * kBlockThreads) {
    own += context.reclaim.ReturnAssigned(i) ? 1 : 0;
  }
  if (own != 0) atomicAdd(&taken, own);
  __syncthreads();
  if (threadIdx.x == 0 && taken != 0) {
    AtomicAdd(&batch.sums->cells_taken, std::uint64_t{taken});
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_WRITTEN_BATCH_CUH_
