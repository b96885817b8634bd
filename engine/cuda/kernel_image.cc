#include "engine/cuda/kernel_image.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gpmstore/error.h"

namespace gpm {
namespace {

bool MeansNoKernelImage(cudaError_t error) {
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return true;
    default:
      return false;
  }
}

}  // namespace

void RequireKernelImage(cudaError_t error, const KernelTarget& target) {
  if (!MeansNoKernelImage(error)) return;
  const int architecture = 10 * target.major + target.minor;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("CUDA device {} has architecture {}, and this library has code for {} "
                          "({}); build it with -DCMAKE_CUDA_ARCHITECTURES={}, or use executor cpu",
                          target.device, architecture, fmt::join(target.compiled_for, ", "),
                          cudaGetErrorName(error), architecture));
}

}  // namespace gpm
