#ifndef GPM_ENGINE_CUDA_MEMORY_H_
#define GPM_ENGINE_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/device_memory.h"
#include "gpmstore/error.h"
#include "pm/relaxed_capture.h"

namespace gpm {

/// @throws Error(kGpu) naming the call that failed
inline void CheckCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report this one again
  throw Error(ErrorCode::kGpu, std::string(call) + ": " + cudaGetErrorString(status));
}

/// An event of the current device, without a time.
class CudaEvent {
 public:
  explicit CudaEvent(unsigned flags = cudaEventDisableTiming) {
    CheckCuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT: it stands for one

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream of the current device that does not wait for the legacy default stream.
class CudaStream {
 public:
  CudaStream() {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() {
    const RelaxedCapture relaxed;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: it stands for one

 private:
  cudaStream_t stream_ = nullptr;
};

/// Waits for a stream when it goes, whatever was thrown: where memory that kernels on it use is
/// freed, or handed back, next.
class AwaitAtEnd {
 public:
  explicit AwaitAtEnd(cudaStream_t stream) : stream_(stream) {}
  ~AwaitAtEnd() {
    const RelaxedCapture relaxed;
    cudaStreamSynchronize(stream_);
  }
  AwaitAtEnd(const AwaitAtEnd&) = delete;
  AwaitAtEnd& operator=(const AwaitAtEnd&) = delete;

 private:
  const cudaStream_t stream_;
};

/// What is waited for before GPU memory is freed. It outlives the memory.
class LastUse {
 public:
  /// All that the GPU does, as a refresh of the cache, which takes long.
  LastUse() = default;
  /// @param event recorded behind all that uses the memory, whenever it is freed
  LastUse(const CudaEvent* event) : event_(event) {}  // NOLINT: it stands for one
  /// @param stream on which alone it is used
  LastUse(const CudaStream* stream) : stream_(stream) {}  // NOLINT: it stands for one
  /// Who has the memory waits before it is freed.
  static LastUse Awaited() {
    LastUse use;
    use.awaited_ = true;
    return use;
  }
  /// @return false: who calls has to wait for all
  bool Await() const noexcept {
    if (awaited_) return true;
    if (event_ == nullptr && stream_ == nullptr) return false;
    const RelaxedCapture relaxed;
    cudaError_t status = cudaErrorNotReady;
    if (event_ != nullptr) status = cudaEventSynchronize(*event_);
    if (stream_ != nullptr) status = cudaStreamSynchronize(*stream_);
    if (status != cudaSuccess)
      cudaGetLastError();  // so that the next call does not report this one
    return status == cudaSuccess;
  }

 private:
  const CudaEvent* event_ = nullptr;
  const CudaStream* stream_ = nullptr;
  bool awaited_ = false;
};

/// GPU memory that grows, by half at least if there is room, and never shrinks: freeing what is too
/// small waits for what uses it. Movable.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  /// @param memory that it is of, and counted in
  explicit DeviceArray(DeviceMemory* memory, LastUse last_use = {})
      : memory_(memory), last_use_(last_use) {}
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        memory_(other.memory_),
        last_use_(other.last_use_) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(memory_, other.memory_);
    std::swap(last_use_, other.last_use_);
    return *this;
  }
  ~DeviceArray() { Clear(); }

  T* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  /// Makes room for `size` elements; the contents are lost when it has to allocate.
  void Reserve(std::uint64_t size) {
    if (size <= size_) return;
    const std::uint64_t more = size_ + size_ / 2;
    Clear();
    if (more > size && TryAllocate(more) == cudaSuccess) return;
    CheckCuda(TryAllocate(size), "cudaMalloc");
  }

  /// Gives back what it has.
  void Clear() noexcept {
    if (data_ == nullptr) return;
    if (memory_ != nullptr) {
      memory_->Free(data_, size_ * sizeof(T), last_use_.Await());
    } else {
      cudaFree(data_);
    }
    data_ = nullptr;
    size_ = 0;
  }

 private:
  cudaError_t TryAllocate(std::uint64_t size) {
    const std::uint64_t bytes = size * sizeof(T);
    auto** const data = reinterpret_cast<void**>(&data_);
    const cudaError_t status =
        memory_ != nullptr ? memory_->Allocate(data, bytes) : cudaMalloc(data, bytes);
    if (status != cudaSuccess) {
      cudaGetLastError();  // so that the next call does not report this one
      data_ = nullptr;
      return status;
    }
    size_ = size;
    return status;
  }
  T* data_ = nullptr;
  std::uint64_t size_ = 0;
  DeviceMemory* memory_ = nullptr;
  LastUse last_use_;
};

/// One object in pinned host memory that kernels can write.
template <class T>
class PinnedBox {
 public:
  PinnedBox() {
    CheckCuda(cudaHostAlloc(reinterpret_cast<void**>(&object_), sizeof(T), cudaHostAllocMapped),
              "cudaHostAlloc");
    *object_ = T{};
  }
  ~PinnedBox() {
    const RelaxedCapture relaxed;
    cudaFreeHost(object_);
  }
  PinnedBox(const PinnedBox&) = delete;
  PinnedBox& operator=(const PinnedBox&) = delete;
  T* get() const { return object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
};

/// Bytes of pinned host memory. What has become too small is kept until it goes: to give that back
/// waits for all that the GPU does.
class PinnedArray {
 public:
  PinnedArray() = default;
  ~PinnedArray() {
    const RelaxedCapture relaxed;
    for (std::byte* const data : all_) cudaFreeHost(data);
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  std::byte* data() const { return all_.empty() ? nullptr : all_.back(); }

  /// Makes room for `size` bytes; the contents are lost when it has to allocate.
  /// @throws Error(kGpu), std::bad_alloc
  void Reserve(std::uint64_t size) {
    if (size <= size_) return;
    size = std::max(size, 2 * size_);
    all_.reserve(all_.size() + 1);
    std::byte* data = nullptr;
    CheckCuda(cudaHostAlloc(reinterpret_cast<void**>(&data), size, cudaHostAllocDefault),
              "cudaHostAlloc");
    all_.push_back(data);
    size_ = size;
  }

 private:
  std::vector<std::byte*> all_;  ///< the last one is in use
  std::uint64_t size_ = 0;       ///< of that
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_MEMORY_H_
