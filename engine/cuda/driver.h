#ifndef GPM_ENGINE_CUDA_DRIVER_H_
#define GPM_ENGINE_CUDA_DRIVER_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace gpm {

/// A function of the driver, which the library is not linked with; null if it has none.
template <class Function>
Function* DriverFunction(const char* name) {
  constexpr unsigned kVersion = 12040;  // of CUDA, which has all that are asked for
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Function*>(function)
             : nullptr;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_DRIVER_H_
