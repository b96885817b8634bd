#ifndef GPM_ENGINE_CUDA_KERNELS_SORT_CUH_
#define GPM_ENGINE_CUDA_KERNELS_SORT_CUH_

#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cuda/std/functional>
#include <cuda/version>

#include "engine/cuda/memory.h"

namespace gpm {

/// CUB's sorts, as batches use them.

/// CUB also returns the runtime's last error, which may be an old one of the store's user. So that
/// is taken out first.
template <class Call>
void CallCub(const char* name, const Call& call) {
  cudaGetLastError();
  CheckCuda(call(), name);
}

// CUB's merge sort of CCCL 2.8 to 3.0 lets its kernels begin before the one before has ended
// (programmatic dependent launch), and the one that merges reads where its tiles begin before it
// waits for the kernel that writes that (NVIDIA/cccl, issue 5297 and pull request 5456). While
// other streams keep the GPU busy it then merges by what an earlier sort left there: operations are
// lost from the order or stand twice in it, and addresses beyond the arrays are read.
#if CCCL_VERSION >= 2008000 && CCCL_VERSION < 3001000

/// Launches each kernel when the one before it on the stream has ended.
struct OneAfterTheOther : cub::detail::TripleChevronFactory {
  auto operator()(dim3 blocks, dim3 threads, std::size_t shared_bytes, cudaStream_t stream,
                  bool /*dependent*/ = false) const {
    return TripleChevronFactory::operator()(blocks, threads, shared_bytes, stream, false);
  }
};

/// Sorts pairs in place by key, stably; or, with no storage, says how much it takes.
/// @param keys, items device memory, `count` of each
inline void MergeSortPairs(void* storage, std::size_t* storage_bytes, std::uint32_t* keys,
                           std::uint32_t* items, std::uint32_t count, cudaStream_t stream) {
  using Less = ::cuda::std::less<>;
  using Sort = cub::DispatchMergeSort<
      std::uint32_t*, std::uint32_t*, std::uint32_t*, std::uint32_t*, std::uint32_t, Less,
      cub::detail::merge_sort::policy_hub<std::uint32_t*>,
      cub::detail::merge_sort::DeviceMergeSortKernelSource<
          cub::detail::merge_sort::policy_hub<std::uint32_t*>::MaxPolicy, std::uint32_t*,
          std::uint32_t*, std::uint32_t*, std::uint32_t*, std::uint32_t, Less>,
      OneAfterTheOther>;
  CallCub("DeviceMergeSort", [&] {
    return Sort::Dispatch(storage, *storage_bytes, keys, items, keys, items, count, Less{}, stream);
  });
}

#else

inline void MergeSortPairs(void* storage, std::size_t* storage_bytes, std::uint32_t* keys,
                           std::uint32_t* items, std::uint32_t count, cudaStream_t stream) {
  CallCub("DeviceMergeSort", [&] {
    return cub::DeviceMergeSort::StableSortPairs(storage, *storage_bytes, keys, items, count,
                                                 ::cuda::std::less<>{}, stream);
  });
}

#endif

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
