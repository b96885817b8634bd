#ifndef GPM_ENGINE_CUDA_LOAD_KERNELS_H_
#define GPM_ENGINE_CUDA_LOAD_KERNELS_H_

namespace gpm {

/// Loads all kernels that were compiled in one file with this one, on the current device. A kernel
/// is otherwise loaded when it is launched first, and waits until nothing runs on the GPU: a
/// batch would wait for a refresh of the cache (CUDA C++ Programming Guide, "Lazy Loading").
/// @return false where the driver can't: they are loaded when they are launched then
bool LoadKernelsBeside(const void* kernel);

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_LOAD_KERNELS_H_
