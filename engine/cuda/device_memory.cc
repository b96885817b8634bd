#include "engine/cuda/device_memory.h"

#include <algorithm>
#include <new>

#include "engine/cuda/launch.h"

namespace gpm {
namespace {

constexpr std::uint64_t kShareKept = 512;

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (pool_ == nullptr) return;
  const CurrentDevice current(device_, std::nothrow);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  cudaMemPoolDestroy(pool_);
}

/// Where it can't be made, memory is allocated piece by piece.
void DeviceMemory::MakePool() noexcept {
  int supported = 0;
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device_};
  std::uint64_t threshold = ~std::uint64_t{0};  // Trim decides
  cudaMemPool_t pool = nullptr;
  if (cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_) == cudaSuccess &&
      supported != 0 && cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess &&
      cudaMemPoolCreate(&pool, &properties) == cudaSuccess) {
    if (cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess &&
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess) {
      most_kept_ = all_bytes / kShareKept;
      pool_ = pool;
      return;
    }
    cudaMemPoolDestroy(pool);
  }
  cudaGetLastError();  // so that the next call does not report this one
}

cudaError_t DeviceMemory::Allocate(void** memory, std::uint64_t bytes) noexcept {
  if (keeps_) std::call_once(made_, [this] { MakePool(); });
  cudaError_t status = cudaSuccess;
  if (pool_ != nullptr) {
    status = cudaMallocFromPoolAsync(memory, bytes, pool_, stream_);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream_);
  } else {
    status = cudaMalloc(memory, bytes);
  }
  if (status == cudaSuccess) bytes_ += bytes;
  return status;
}

void DeviceMemory::Free(void* memory, std::uint64_t bytes, bool idle) noexcept {
  bytes_ -= bytes;
  const CurrentDevice current(device_, std::nothrow);
  if (pool_ == nullptr) {
    cudaFree(memory);
    return;
  }
  if (!idle && cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported) {
    // Somebody captures a stream, so that nobody knows who still uses the memory: it is lost.
    cudaGetLastError();
    bytes_ += bytes;
    return;
  }
  cudaFreeAsync(memory, stream_);
  Trim(most_kept_);
}

void DeviceMemory::Trim(std::uint64_t kept) noexcept {
  const std::uint64_t most = bytes_ + kept;
  std::uint64_t reserved = 0;
  cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved);
  if (reserved <= most) return;
  cudaStreamSynchronize(stream_);
  cudaMemPoolTrimTo(pool_, most);
}

void DeviceMemory::GiveBack() noexcept {
  if (pool_ == nullptr) return;
  const CurrentDevice current(device_, std::nothrow);
  Trim(0);
}

std::uint64_t DeviceMemory::kept_bytes() const noexcept {
  std::uint64_t reserved = 0;
  if (pool_ != nullptr) {
    const RelaxedCapture relaxed;
    cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved);
  }
  return reserved - std::min(reserved, bytes_.load());
}

}  // namespace gpm
