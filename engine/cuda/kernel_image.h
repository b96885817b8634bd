#ifndef GPM_ENGINE_CUDA_KERNEL_IMAGE_H_
#define GPM_ENGINE_CUDA_KERNEL_IMAGE_H_

#include <cuda_runtime_api.h>

#include <vector>

namespace gpm {

/// A device, and what the library's kernels were compiled for.
struct KernelTarget {
  int device = 0;
  int major = 0;  ///< compute capability
  int minor = 0;
  std::vector<int> compiled_for{};  ///< such as 90
};

/// @param error what CUDA says when the device is asked for a kernel
/// @throws Error(kUnsupported), with which executor auto takes the cpu, when there is no code that
///         the device runs: neither its own nor some (PTX) that the driver can compile for it
void RequireKernelImage(cudaError_t error, const KernelTarget& target);

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNEL_IMAGE_H_
