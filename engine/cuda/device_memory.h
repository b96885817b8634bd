#ifndef GPM_ENGINE_CUDA_DEVICE_MEMORY_H_
#define GPM_ENGINE_CUDA_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace gpm {

/// GPU memory of which arrays are made (DeviceArray), and the count of it. One that keeps has what
/// was freed ready for the next arrays, up to a 512th of the device's memory: a table that grows
/// frees and allocates a dozen arrays, and the driver takes 0.1 ms for one of a few megabytes, and
/// a few microseconds for one that was kept.
///
/// Thread safety: any thread. It outlives its arrays.
class DeviceMemory {
 public:
  DeviceMemory(int device, bool keeps) : device_(device), keeps_(keeps) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Any stream may use it at once. REQUIRES: the device is current.
  cudaError_t Allocate(void** memory, std::uint64_t bytes) noexcept;
  /// Waits for all that the device does, as cudaFree. @param idle nothing there uses it any more:
  /// if it keeps, it waits for nothing
  void Free(void* memory, std::uint64_t bytes, bool idle) noexcept;
  /// Counts what was taken, or given back, in another way.
  void Count(std::int64_t bytes) noexcept { bytes_ += static_cast<std::uint64_t>(bytes); }
  int device() const { return device_; }
  /// Gives back what is kept.
  void GiveBack() noexcept;
  std::uint64_t bytes() const { return bytes_; }  ///< of arrays
  std::uint64_t kept_bytes() const noexcept;      ///< that it has beside those

 private:
  void MakePool() noexcept;
  void Trim(std::uint64_t kept) noexcept;

  const int device_;
  const bool keeps_;  ///< if the device can
  std::atomic<std::uint64_t> bytes_{0};
  std::once_flag made_;  ///< the pool, before the first array, or it could not be made
  std::atomic<cudaMemPool_t> pool_{nullptr};
  cudaStream_t stream_ = nullptr;  ///< on which it is allocated and freed
  std::uint64_t most_kept_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_DEVICE_MEMORY_H_
