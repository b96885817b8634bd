#ifndef GPM_ENGINE_CUDA_LAUNCH_H_
#define GPM_ENGINE_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <new>
#include <optional>
#include <type_traits>

#include "engine/cuda/memory.h"
#include "pm/relaxed_capture.h"

namespace gpm {

// How a kernel begins (LaunchWith).

/// All its blocks begin together, so that they may wait for each other.
inline cudaLaunchAttribute BeginsTogether() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return attribute;
}
/// It may begin before the kernel in front of it ends, from when that one lets it on
/// (LetNextKernelBegin), and has to wait by itself then (AwaitKernelBefore).
inline cudaLaunchAttribute BeginsEarly() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}
/// An event is recorded when all its blocks have begun.
inline cudaLaunchAttribute RecordsBegin(cudaEvent_t event) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeLaunchCompletionEvent;
  attribute.val.launchCompletionEvent.event = event;
  return attribute;
}

/// A block of a kernel. (A number stands for so many threads, as a rule.)
struct BlockShape {
  BlockShape(unsigned of_threads, unsigned of_shared_bytes = 0)  // NOLINT
      : threads(of_threads), shared_bytes(of_shared_bytes) {}
  unsigned threads;
  unsigned shared_bytes;  ///< dynamic shared memory
};

/// Shared memory that a block of a batch's kernels takes at the most, bytes, where all blocks begin
/// together. (A multiprocessor where somebody else's kernel runs may have no more than 32 KiB for
/// it.)
inline constexpr unsigned kMostSharedOfBatch = 30 << 10;

/// Launches a kernel. What the launch itself returns says whether it failed: the runtime's last
/// error may be an old one of the store's user.
/// @param attribute how it begins; none: when those before it have ended
/// @param name of the kernel, for the error
/// @throws Error(kGpu); then it was not launched
template <class... Parameters>
void LaunchWith(std::optional<cudaLaunchAttribute> attribute, const char* name,
                void (*kernel)(Parameters...), std::uint64_t blocks, const BlockShape& block,
                cudaStream_t stream, const std::type_identity_t<Parameters>&... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(block.threads);
  launch.dynamicSmemBytes = block.shared_bytes;
  launch.stream = stream;
  launch.attrs = attribute ? &*attribute : nullptr;
  launch.numAttrs = attribute ? 1 : 0;
  CheckCuda(cudaLaunchKernelExC(&launch, reinterpret_cast<const void*>(kernel), pointers), name);
}
template <class... Parameters>
void Launch(const char* name, void (*kernel)(Parameters...), std::uint64_t blocks,
            const BlockShape& block, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... arguments) {
  LaunchWith(std::nullopt, name, kernel, blocks, block, stream, arguments...);
}

/// Makes a device current in this thread while it lives; at its end, the one before is again. What
/// others capture is not touched meanwhile.
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
  const RelaxedCapture relaxed_;
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_LAUNCH_H_
