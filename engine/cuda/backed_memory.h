#ifndef GPM_ENGINE_CUDA_BACKED_MEMORY_H_
#define GPM_ENGINE_CUDA_BACKED_MEMORY_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/device_memory.h"
#include "pm/format.h"

namespace gpm {

/// GPU memory at addresses that stay: as many as the device has bytes, of which those at the front
/// are backed by memory, more of them from time to time, while kernels use what was there before.
/// To the allocator a table that grows would have to give its cache's values back, and take more.
///
/// Thread safety: one thread at a time, but for backed(). The device is current when memory is
/// taken.
class BackedMemory {
 public:
  static constexpr bool kStays = true;  ///< Reserve and Back leave what there is

  BackedMemory() = default;
  /// @param memory that it is counted in, and that outlives it
  explicit BackedMemory(DeviceMemory* memory) : memory_(memory) {}
  BackedMemory(BackedMemory&& other) noexcept { Swap(&other); }
  BackedMemory& operator=(BackedMemory&& other) noexcept {
    Swap(&other);
    return *this;
  }
  ~BackedMemory() { Free(); }

  std::byte* data() const { return data_; }
  std::uint64_t backed() const { return backed_; }  ///< bytes
  /// Whether it is in pieces, of which one that backs so many bytes has as many or more.
  bool HasNoMoreThan(std::uint64_t bytes) const {
    return addresses_ != 0 && backed_ <= RoundUp(bytes, piece_);
  }

  /// Takes addresses, if it has none. @param whole all of its memory, too, which has so many bytes
  /// exactly; else it is backed in pieces of some megabytes
  /// @throws Error(kGpu)
  void Reserve(std::uint64_t bytes, bool whole);
  /// Backs the first `bytes`. @throws Error(kGpu): no more than before are, then
  void Back(std::uint64_t bytes);

 private:
  void Swap(BackedMemory* other) noexcept;
  void Free() noexcept;

  /// Of the driver, which are to be had when there is something to give back.
  struct GiveBack {
    decltype(cuMemUnmap)* unmap = nullptr;
    decltype(cuMemRelease)* release = nullptr;
    decltype(cuMemAddressFree)* free_addresses = nullptr;
  };

  std::byte* data_ = nullptr;
  std::uint64_t addresses_ = 0;  ///< 0: it is whole
  GiveBack give_back_;
  std::atomic<std::uint64_t> backed_{0};
  std::uint64_t piece_ = 0;            ///< bytes of which those of pieces are multiples
  std::vector<std::uint64_t> pieces_;  ///< bytes of each, one behind the other
  DeviceMemory* memory_ = nullptr;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_BACKED_MEMORY_H_
