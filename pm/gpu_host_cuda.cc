#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "gpmstore/error.h"
#include "pm/driver_turns.h"
#include "pm/gpu_host.h"
#include "pm/relaxed_capture.h"

namespace gpm {
namespace {

/// Also takes the error out of the runtime, where the next, unrelated call would find it.
std::string Reason(cudaError_t error) {
  cudaGetLastError();
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace

bool BuiltWithCuda() { return true; }

int GpuCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::string GpuName(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) return properties.name;
  cudaGetLastError();
  return "none";
}

std::string GpuBusId(int device) {
  char id[32] = {};
  if (cudaDeviceGetPCIBusId(id, sizeof id, device) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::string bus = id;
  std::transform(bus.begin(), bus.end(), bus.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return bus;
}

void UseGpu(int device) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("device {} can't be used: {}", device, Reason(error)));
  }
  // What this thread asks of the driver has nothing to do with what others capture.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) cudaGetLastError();
}

void RegisterHostMemory(void* address, std::size_t bytes) {
  if (GpuCount() == 0) {
    throw Error(
        ErrorCode::kUnsupported,
        "no CUDA device or driver, so no memory can be mapped into a GPU; use executor cpu");
  }
  const RelaxedCapture relaxed;
  const cudaError_t error = [&] {
    const DriverTurns::Registering turn;
    return cudaHostRegister(address, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  }();
  if (error != cudaSuccess) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("the CUDA runtime can't register {} bytes of the pool: {}; it registers "
                    "tmpfs, DAX or host-pinned memory, as far as physical memory and the "
                    "limit on locked memory (ulimit -l) allow",
                    bytes, Reason(error)));
  }
  // Offsets and addresses are the same on both sides; a device that maps host memory elsewhere
  // would need translated pointers, which the table does not have.
  void* device_address = nullptr;
  const cudaError_t mapped = cudaHostGetDevicePointer(&device_address, address, 0);
  if (mapped == cudaSuccess && device_address == address) return;
  const std::string reason =
      mapped == cudaSuccess ? "it maps host memory at another address" : Reason(mapped);
  UnregisterHostMemory(address);
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("the GPU can't use host addresses: {}; a 64-bit Linux system with unified "
                  "virtual addressing is needed",
                  reason));
}

bool IsGpuMemory(const void* address) noexcept { return GpuOf(address) >= 0; }

int GpuOf(const void* address) noexcept {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess) {
    return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
  }
  cudaGetLastError();
  return -1;
}

void ConnectGpus(int device, int other) noexcept {
  if (device == other) return;
  int before = 0;
  cudaGetDevice(&before);
  for (const auto& [from, to] : {std::pair(device, other), std::pair(other, device)}) {
    int can = 0;
    cudaDeviceCanAccessPeer(&can, from, to);
    if (can != 0 && cudaSetDevice(from) == cudaSuccess) cudaDeviceEnablePeerAccess(to, 0);
  }
  cudaSetDevice(before);
  cudaGetLastError();  // (they may be connected already)
}

bool ReachesAllGpus(int device) noexcept {
  const int count = GpuCount();
  bool all = device < count;
  for (int other = 0; other < count && all; ++other) {
    int can = 1;
    if (other != device && cudaDeviceCanAccessPeer(&can, device, other) != cudaSuccess) {
      cudaGetLastError();
      can = 0;
    }
    all = can != 0;
  }
  return all;
}

void CopyByGpu(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  if (error != cudaSuccess) throw Error(ErrorCode::kGpu, "cudaMemcpyAsync: " + Reason(error));
}

void AwaitGpu(CUstream_st* stream) {
  const cudaError_t error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) throw Error(ErrorCode::kGpu, "cudaStreamSynchronize: " + Reason(error));
}

void UnregisterHostMemory(void* address) noexcept {
  const RelaxedCapture relaxed;
  const DriverTurns::Registering turn;
  if (cudaHostUnregister(address) != cudaSuccess) cudaGetLastError();
}

}  // namespace gpm
