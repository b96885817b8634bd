#ifndef GPM_ENGINE_CUDA_KERNELS_INITIAL_VALUES_CUH_
#define GPM_ENGINE_CUDA_KERNELS_INITIAL_VALUES_CUH_

#include "engine/cuda/context.cuh"
#include "table/initial_rows.h"

namespace gpm {

/// Makes the initial values of a batch's kFindOrInsert, a tile for each.
/// @param values n rows, also of operations of other kinds, which keep theirs
/// @param constant the value of all; null: they are drawn
__global__ void __launch_bounds__(kBlockThreads)
    FillInitialValues(const __grid_constant__ TableContext context,
                      const __grid_constant__ DeviceBatch batch, std::byte* values,
                      const std::byte* constant, RowDrawer drawer) {
  const TableView& table = context.table;
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  for (std::uint32_t i = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes; i < batch.count;
       i += gridDim.x * kTilesPerBlock) {
    if (batch.KindOf(i) != Op::kFindOrInsert) continue;
    std::byte* const row = values + std::uint64_t{i} * table.value_size;
    if (constant != nullptr) {
      CopyBytes(group, row, constant, table.value_size);
    } else {
      DrawRow(group, drawer, batch.KeyOf(i, table.key_words), table.key_words, row,
              table.value_size);
    }
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_INITIAL_VALUES_CUH_
