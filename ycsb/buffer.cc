#include "ycsb/buffer.h"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "gpmstore/error.h"

#ifdef GPM_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace gpm::ycsb {
namespace {

constexpr std::align_val_t kAlignment{4096};

/// What pinned and device memory are needed for.
#ifdef GPM_HAVE_CUDA
void Check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw Error(ErrorCode::kGpu, std::string(what) + ": " + cudaGetErrorString(status));
  }
}
std::byte* AllocateForGpu(Memory memory, std::uint64_t bytes) {
  void* address = nullptr;
  if (memory == Memory::kDevice) {
    Check(cudaMalloc(&address, bytes), "allocating GPU memory for the operations");
  } else {
    Check(cudaMallocHost(&address, bytes), "allocating pinned memory for the operations");
  }
  return static_cast<std::byte*>(address);
}
void FreeForGpu(Memory memory, std::byte* address) noexcept {
  if (memory == Memory::kDevice) {
    cudaFree(address);
  } else {
    cudaFreeHost(address);
  }
}
void ZeroDevice(std::byte* address, std::uint64_t bytes) {
  Check(cudaMemset(address, 0, bytes), "clearing GPU memory");
  Check(cudaDeviceSynchronize(), "clearing GPU memory");
}
void Copy(std::byte* target, const std::byte* source, std::uint64_t bytes) {
  Check(cudaMemcpy(target, source, bytes, cudaMemcpyDefault), "copying operations");
  // (From pageable memory it returns when bytes are on their way, which other streams overtake.)
  Check(cudaStreamSynchronize(nullptr), "copying operations");
}
#else
std::byte* AllocateForGpu(Memory, std::uint64_t) {
  throw Error(ErrorCode::kUnsupported,
              "arrays in pinned or device memory: this build has no CUDA; use --memory host");
}
void FreeForGpu(Memory, std::byte*) noexcept {}
void ZeroDevice(std::byte*, std::uint64_t) {}
void Copy(std::byte* target, const std::byte* source, std::uint64_t bytes) {
  std::memcpy(target, source, bytes);
}
#endif

}  // namespace

Buffer::Buffer(Memory memory, std::uint64_t bytes) : Buffer(Untouched(memory, bytes)) { Zero(); }

Buffer Buffer::Untouched(Memory memory, std::uint64_t bytes) {
  Buffer buffer;
  buffer.memory_ = memory;
  if (bytes == 0) return buffer;
  std::byte* address = memory == Memory::kHost
                           ? static_cast<std::byte*>(::operator new(bytes, kAlignment))
                           : AllocateForGpu(memory, bytes);
  buffer.bytes_ = {address, bytes};
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(other.memory_), bytes_(std::exchange(other.bytes_, {})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (bytes_.empty()) return;
  if (memory_ == Memory::kHost) {
    ::operator delete(bytes_.data(), kAlignment);
  } else {
    FreeForGpu(memory_, bytes_.data());
  }
}

void Buffer::Zero() {
  if (bytes_.empty()) return;
  if (memory_ == Memory::kDevice) {
    ZeroDevice(bytes_.data(), bytes_.size());
  } else {
    std::memset(bytes_.data(), 0, bytes_.size());
  }
}

void Buffer::CopyFrom(std::span<const std::byte> source, std::uint64_t at) {
  if (source.empty()) return;
  if (memory_ == Memory::kDevice) {
    Copy(bytes_.data() + at, source.data(), source.size());
  } else {
    std::memcpy(bytes_.data() + at, source.data(), source.size());
  }
}

void Buffer::CopyTo(std::span<std::byte> target, std::uint64_t at) const {
  if (target.empty()) return;
  if (memory_ == Memory::kDevice) {
    Copy(target.data(), bytes_.data() + at, target.size());
  } else {
    std::memcpy(target.data(), bytes_.data() + at, target.size());
  }
}

}  // namespace gpm::ycsb
