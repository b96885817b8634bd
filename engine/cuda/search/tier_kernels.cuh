#ifndef GPM_ENGINE_CUDA_SEARCH_TIER_KERNELS_CUH_
#define GPM_ENGINE_CUDA_SEARCH_TIER_KERNELS_CUH_

#include "engine/cuda/kernels/grid_stride.cuh"
#include "engine/search_tiers.h"

namespace gpm {

/// The kernels that make tiers: grid-stride loops of one thread a thing.

/// Makes the ordered words of keys.
__global__ void OrderWords(const std::uint64_t* keys, std::uint64_t words, std::uint64_t* ordered) {
  for (std::uint64_t i = FirstOfGrid(); i < words; i += GridStep())
    ordered[i] = OrderedWord(keys[i]);
}

/// One word of the keys of some rows, to sort by.
__global__ void TakeWord(const std::uint64_t* keys, std::uint32_t words, std::uint32_t word,
                         const std::uint32_t* rows, std::uint32_t count, std::uint64_t* taken) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    taken[i] = keys[std::uint64_t{rows[i]} * words + word];
  }
}

/// Flags those of sorted rows whose key the one before does not have.
__global__ void FlagFirstOfKey(const std::uint64_t* keys, std::uint32_t words,
                               const std::uint32_t* rows, std::uint32_t count,
                               std::uint8_t* flags) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    flags[i] = i == 0 || CompareOrdered(keys + std::uint64_t{rows[i]} * words,
                                        keys + std::uint64_t{rows[i - 1]} * words, words) != 0;
  }
}

/// Copies rows of some words. @param rows of `from`, in the order in which they are wanted
__global__ void GatherKeys(const std::uint64_t* from, std::uint32_t words,
                           const std::uint32_t* rows, std::uint64_t count, std::uint64_t* to) {
  for (std::uint64_t i = FirstOfGrid(); i < count * words; i += GridStep()) {
    to[i] = from[std::uint64_t{rows[i / words]} * words + i % words];
  }
}
template <class From, class To>
__global__ void GatherNumbers(const From* from, const std::uint32_t* rows, std::uint64_t count,
                              To* to) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    to[i] = static_cast<To>(from[rows == nullptr ? i : rows[i]]);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SEARCH_TIER_KERNELS_CUH_
