#ifndef GPM_ENGINE_CUDA_KERNELS_KEY_ROWS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_KEY_ROWS_CUH_

#include "engine/cuda/context.cuh"
#include "table/key_rows.h"

namespace gpm {

/// Pads a batch's keys, a thread for each word. (Bytes are read one by one, since rows may begin
/// anywhere; those of a warp are side by side, and come from few lines.)
/// @param rows of key_size bytes @param words count * KeyWords(key_size)
__global__ void __launch_bounds__(kBlockThreads)
    PadKeys(const std::byte* rows, std::uint32_t key_size, std::uint32_t count,
            std::uint64_t* words) {
  const std::uint32_t of_key = KeyWords(key_size);
  const std::uint64_t all = std::uint64_t{count} * of_key;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < all;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const auto first = 8 * static_cast<std::uint32_t>(i % of_key);
    words[i] = PaddedWord(rows + i / of_key * key_size + first, key_size - first);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_KEY_ROWS_CUH_
