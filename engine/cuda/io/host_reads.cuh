#ifndef GPM_ENGINE_CUDA_IO_HOST_READS_CUH_
#define GPM_ENGINE_CUDA_IO_HOST_READS_CUH_

#include "engine/cuda/io/reads.cuh"

namespace gpm {

/// The kernels of reads that the host makes (HostReader).

/// Names the cells to the host, one behind the other.
static __global__ void __launch_bounds__(kBlockThreads)
    ListHostReads(const __grid_constant__ Reads reads) {
  const std::uint32_t all = reads.flags[Reads::kAll];
  const std::uint32_t rows = reads.by_host.RowsOf(all);
  const std::uint32_t first = blockIdx.x * kBlockThreads + threadIdx.x;
  if (first == 0) *reads.by_host.count = rows;
  for (std::uint32_t i = first; i < rows; i += gridDim.x * kBlockThreads) {
    reads.by_host.cells[i] = static_cast<std::uint32_t>(reads.queues.items[i] >> 32);
  }
}

/// Takes the rows of a part to where they are wanted.
static __global__ void __launch_bounds__(kBlockThreads)
    TakeHostRows(const __grid_constant__ TableContext context,
                 const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
                 std::uint32_t part) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const std::uint32_t value_size = context.table.value_size;
  const std::uint32_t rows = reads.by_host.RowsOf(reads.flags[Reads::kAll]);
  const std::uint32_t end = HostReads::BeginOf(part + 1, rows);
  for (std::uint32_t i =
           HostReads::BeginOf(part, rows) + blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
       i < end; i += gridDim.x * kTilesPerBlock) {
    CopyBytes(group, batch.FoundOf(static_cast<std::uint32_t>(reads.queues.items[i]), value_size),
              reads.by_host.staged + std::uint64_t{i} * reads.by_host.row_bytes, value_size);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_HOST_READS_CUH_
