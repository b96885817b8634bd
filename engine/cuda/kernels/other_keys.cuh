#ifndef GPM_ENGINE_CUDA_KERNELS_OTHER_KEYS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_OTHER_KEYS_CUH_

#include "engine/cuda/context.cuh"
#include "table/rows_of_key.h"

namespace gpm {

/// Whether operations that have the same digest are on the same key.

/// Whether two operations are on different keys.
__device__ inline bool HaveOtherKeys(const DeviceBatch& batch, std::uint32_t key_words,
                                     std::uint32_t i, std::uint32_t other) {
  const std::uint64_t* key = batch.KeyOf(i, key_words);
  const std::uint64_t* other_key = batch.KeyOf(other, key_words);
  bool differs = false;
  for (std::uint32_t w = 0; w < key_words; ++w) differs |= key[w] != other_key[w];
  return differs;
}

/// Whether some operations are on another key than operation i, by a warp.
/// @param on_key the operations to compare, in kWords words
template <std::uint32_t kWords>
__device__ GPM_NOINLINE bool MeetsOtherKeys(const DeviceBatch& batch, std::uint32_t key_words,
                                            std::uint32_t i, RowsOfKey on_key) {
  constexpr std::uint32_t kAtOnce = 4;  // words, of which a thread compares an operation each
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t* const key = batch.KeyOf(i, key_words);
  bool differs = false;
#pragma unroll 1
  for (std::uint32_t first = 0; first < kWords; first += 32) {
    const std::uint32_t own = on_key.Word(first + lane);
#pragma unroll 1
    for (std::uint32_t words = __ballot_sync(~0u, own != 0); words != 0;) {
      const std::uint64_t* other[kAtOnce];
#pragma unroll
      for (std::uint32_t k = 0; k < kAtOnce; ++k) {
        const std::uint32_t word = LowestBit(words) % 32;  // any, if there is none
        const std::uint32_t bits = __shfl_sync(~0u, own, static_cast<int>(word));
        const bool has_one = words != 0 && (bits >> lane & 1) != 0;
        other[k] = has_one ? batch.KeyOf(32 * (first + word) + lane, key_words) : key;
        words &= words - 1;
      }
#pragma unroll 1
      for (std::uint32_t w = 0; w < key_words; ++w) {
#pragma unroll
        for (std::uint32_t k = 0; k < kAtOnce; ++k) differs |= other[k][w] != key[w];
      }
    }
  }
  return __any_sync(~0u, differs) != 0;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_OTHER_KEYS_CUH_
