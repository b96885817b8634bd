#ifndef GPM_ENGINE_CUDA_KERNELS_SORT_CUH_
#define GPM_ENGINE_CUDA_KERNELS_SORT_CUH_

#include <cub/device/device_radix_sort.cuh>

#include "engine/cuda/memory.h"

namespace gpm {

/// CUB's sort, as batches use it.

/// CUB also returns the runtime's last error, which may be an old one of the store's user. So that
/// is taken out first.
template <class Call>
void CallCub(const char* name, const Call& call) {
  cudaGetLastError();
  CheckCuda(call(), name);
}

struct SortPairs {
  std::uint32_t* keys;
  std::uint32_t* items;
};

/// Sorts pairs by key, stably, into other arrays; or, with no storage, says how much it takes.
inline void RadixSortPairs(void* storage, std::size_t* storage_bytes, const SortPairs& from,
                           const SortPairs& to, std::uint32_t count, cudaStream_t stream) {
  CallCub("DeviceRadixSort", [&] {
    return cub::DeviceRadixSort::SortPairs(storage, *storage_bytes,
                                           static_cast<const std::uint32_t*>(from.keys), to.keys,
                                           static_cast<const std::uint32_t*>(from.items), to.items,
                                           static_cast<int>(count), 0, 32, stream);
  });
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_SORT_CUH_
