#ifndef GPM_ENGINE_CUDA_LAUNCH_H_
#define GPM_ENGINE_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <new>
#include <type_traits>

#include "engine/cuda/memory.h"

namespace gpm {

/// Launches a kernel. What the launch itself returns says whether it failed: the runtime's last
/// error may be an old one of the store's user.
/// @param name of the kernel, for the error @throws Error(kGpu); then it was not launched
template <class... Parameters>
void Launch(const char* name, void (*kernel)(Parameters...), std::uint64_t blocks, unsigned threads,
            cudaStream_t stream, const std::type_identity_t<Parameters>&... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  CheckCuda(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(threads), pointers, 0, stream),
      name);
}

/// Makes a device current in this thread while it lives; at its end, the one before is again.
class CurrentDevice {
 public:
  /// @param is_only there is no other: nothing to do @throws Error(kGpu)
  CurrentDevice(int device, bool is_only) {
    if (is_only) return;
    CheckCuda(cudaGetDevice(&before_), "cudaGetDevice");
    changed_ = before_ != device;
    if (changed_) CheckCuda(cudaSetDevice(device), "cudaSetDevice");
  }
  /// For destructors: a failure shows in what is done there.
  CurrentDevice(int device, std::nothrow_t) noexcept {
    changed_ = cudaGetDevice(&before_) == cudaSuccess && before_ != device &&
               cudaSetDevice(device) == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_LAUNCH_H_
