#ifndef GPM_PM_GPU_HOST_H_
#define GPM_PM_GPU_HOST_H_

#include <cstddef>
#include <string>

struct CUstream_st;

namespace gpm {

/// Mapping host memory into the GPU's address space. Built without CUDA, there are no GPUs, and
/// those that need one throw Error(kUnsupported). Thread safety: any thread.

/// True when this library was built with CUDA.
bool BuiltWithCuda();

/// Number of usable CUDA devices; 0 when there is none or no driver.
int GpuCount();

/// What the driver calls a device; "none" when there is none of that number.
std::string GpuName(int device);

/// Its place on the PCI bus, as the system names it, such as "0000:3b:00.0"; "" when there is none
/// of that number.
std::string GpuBusId(int device);

/// Makes a device current in the calling thread.
void UseGpu(int device);

/// Makes [address, address + bytes) readable and writable by kernels, at the same address.
/// Takes its turn at the driver (DriverTurns).
/// @param address page-aligned host memory
/// @throws Error(kUnsupported) when the memory can't be registered, naming what can
void RegisterHostMemory(void* address, std::size_t bytes);

/// Whether only a GPU, and not the host, can read what is at an address. Never throws.
bool IsGpuMemory(const void* address) noexcept;

/// The device of IsGpuMemory; -1 of other memory. Never throws.
int GpuOf(const void* address) noexcept;

/// Lets copies between the memory of two devices go straight, in both directions, where the machine
/// can; else they go by way of the host. Never throws.
void ConnectGpus(int device, int other) noexcept;

/// Whether kernels of a device can use the memory of all others, once they are connected.
bool ReachesAllGpus(int device) noexcept;

/// Enqueues a copy on a stream; each array is memory of the host or of any device.
/// @throws Error(kGpu)
void CopyByGpu(void* to, const void* from, std::size_t bytes, CUstream_st* stream);

/// Waits for what is on a stream. @throws Error(kGpu)
void AwaitGpu(CUstream_st* stream);

/// Undoes RegisterHostMemory of exactly that range. Never throws.
void UnregisterHostMemory(void* address) noexcept;

}  // namespace gpm

#endif  // GPM_PM_GPU_HOST_H_
