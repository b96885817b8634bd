#ifndef GPM_ENGINE_CUDA_KERNELS_GRID_STRIDE_CUH_
#define GPM_ENGINE_CUDA_KERNELS_GRID_STRIDE_CUH_

#include <algorithm>

#include "engine/cuda/executor.h"
#include "engine/cuda/kernels/sort.cuh"
#include "engine/cuda/launch.h"

namespace gpm {

/// Grid-stride kernels of one thread a thing, and how they are launched.

inline constexpr unsigned kStrideThreads = 256;

__device__ inline std::uint64_t FirstOfGrid() {
  return blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
}
__device__ inline std::uint64_t GridStep() { return std::uint64_t{gridDim.x} * blockDim.x; }

/// 0, 1, 2, ...
template <class T>
__global__ void CountUp(T* numbers, T count) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) numbers[i] = static_cast<T>(i);
}

/// Launches a grid-stride kernel for so many things, if there are any.
template <class... Parameters>
void LaunchFor(const char* name, std::uint64_t things, cudaStream_t stream,
               void (*kernel)(Parameters...),
               const std::type_identity_t<Parameters>&... arguments) {
  if (things == 0) return;
  const std::uint64_t blocks =
      std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(things, kStrideThreads));
  Launch(name, kernel, blocks, kStrideThreads, stream, arguments...);
}

/// Calls CUB twice: call(storage, bytes) says how much storage it takes, and then has it.
template <class Call>
void CallCubWith(DeviceArray<std::byte>* library, const char* name, const Call& call) {
  std::size_t bytes = 0;
  CallCub(name, [&] { return call(nullptr, bytes); });
  library->Reserve(std::max<std::size_t>(bytes, 1));
  CallCub(name, [&] { return call(library->data(), bytes); });
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_GRID_STRIDE_CUH_
