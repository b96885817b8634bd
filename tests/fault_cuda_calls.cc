// CUDA runtime calls that can be made to fail, as fault_system_calls.cc does it with the system's.

#include <cuda_runtime_api.h>

#include "tests/fault_injection.h"

namespace {

constexpr cudaError_t kFailure = cudaErrorMemoryAllocation;
/// What cudaGetLastError is to say in this thread.
thread_local cudaError_t last_error = cudaSuccess;

bool CudaCallFails(const char* call) {
  if (!gpm::test::FailsNow(gpm::test::FaultKind::kCudaCall, call)) return false;
  last_error = kFailure;
  return true;
}

}  // namespace

// NOLINTBEGIN: the names are the linker's
#define GPM_WRAP(name, parameters, arguments)  \
  cudaError_t __real_##name parameters;        \
  cudaError_t __wrap_##name parameters {       \
    if (CudaCallFails(#name)) return kFailure; \
    return __real_##name arguments;            \
  }
/// Of what releases something, or waits: after a failure, too, that has happened.
#define GPM_WRAP_AFTER(name, parameters, arguments)     \
  cudaError_t __real_##name parameters;                 \
  cudaError_t __wrap_##name parameters {                \
    const cudaError_t status = __real_##name arguments; \
    return CudaCallFails(#name) ? kFailure : status;    \
  }

extern "C" {

cudaError_t __real_cudaGetLastError();
cudaError_t __wrap_cudaGetLastError() {
  const cudaError_t status = __real_cudaGetLastError();
  const cudaError_t injected = last_error;
  last_error = cudaSuccess;
  return injected != cudaSuccess ? injected : status;
}
cudaError_t __real_cudaPeekAtLastError();
cudaError_t __wrap_cudaPeekAtLastError() {
  return last_error != cudaSuccess ? last_error : __real_cudaPeekAtLastError();
}

// Devices.
GPM_WRAP(cudaGetDevice, (int* device), (device))
GPM_WRAP(cudaSetDevice, (int device), (device))
GPM_WRAP(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr attribute, int device),
         (value, attribute, device))
GPM_WRAP(cudaGetDriverEntryPointByVersion,
         (const char* name, void** function, unsigned version, unsigned long long flags,
          cudaDriverEntryPointQueryResult* found),
         (name, function, version, flags, found))
GPM_WRAP(cudaFuncGetAttributes, (cudaFuncAttributes * attributes, const void* function),
         (attributes, function))
GPM_WRAP(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
         (int* blocks, const void* function, int threads, std::size_t bytes, unsigned flags),
         (blocks, function, threads, bytes, flags))

// Memory.
GPM_WRAP(cudaMemGetInfo, (std::size_t * free, std::size_t* total), (free, total))
GPM_WRAP(cudaMalloc, (void** memory, std::size_t bytes), (memory, bytes))
GPM_WRAP_AFTER(cudaFree, (void* memory), (memory))
GPM_WRAP(cudaMemPoolCreate, (cudaMemPool_t * pool, const cudaMemPoolProps* properties),
         (pool, properties))
GPM_WRAP_AFTER(cudaMemPoolDestroy, (cudaMemPool_t pool), (pool))
GPM_WRAP(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value),
         (pool, attribute, value))
GPM_WRAP(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value),
         (pool, attribute, value))
GPM_WRAP_AFTER(cudaMemPoolTrimTo, (cudaMemPool_t pool, std::size_t bytes), (pool, bytes))
GPM_WRAP(cudaMallocFromPoolAsync,
         (void** memory, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
         (memory, bytes, pool, stream))
GPM_WRAP_AFTER(cudaFreeAsync, (void* memory, cudaStream_t stream), (memory, stream))
GPM_WRAP_AFTER(cudaDeviceSynchronize, (), ())
GPM_WRAP(cudaFuncSetAttribute, (const void* function, cudaFuncAttribute attribute, int value),
         (function, attribute, value))
GPM_WRAP(cudaHostAlloc, (void** memory, std::size_t bytes, unsigned flags), (memory, bytes, flags))
GPM_WRAP_AFTER(cudaFreeHost, (void* memory), (memory))
GPM_WRAP(cudaHostRegister, (void* memory, std::size_t bytes, unsigned flags),
         (memory, bytes, flags))
GPM_WRAP_AFTER(cudaHostUnregister, (void* memory), (memory))
GPM_WRAP(cudaHostGetDevicePointer, (void** device, void* host, unsigned flags),
         (device, host, flags))
GPM_WRAP(cudaPointerGetAttributes, (cudaPointerAttributes * attributes, const void* memory),
         (attributes, memory))
GPM_WRAP(cudaMemcpy, (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind),
         (to, from, bytes, kind))
GPM_WRAP(cudaMemcpyAsync,
         (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
         (to, from, bytes, kind, stream))
GPM_WRAP(cudaMemsetAsync, (void* memory, int byte, std::size_t bytes, cudaStream_t stream),
         (memory, byte, bytes, stream))

// Streams and events.
GPM_WRAP(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags))
GPM_WRAP_AFTER(cudaStreamDestroy, (cudaStream_t stream), (stream))
GPM_WRAP_AFTER(cudaStreamSynchronize, (cudaStream_t stream), (stream))
GPM_WRAP(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
         (stream, event, flags))
GPM_WRAP(cudaStreamGetId, (cudaStream_t stream, unsigned long long* id), (stream, id))
GPM_WRAP(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
GPM_WRAP_AFTER(cudaEventDestroy, (cudaEvent_t event), (event))
GPM_WRAP(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
GPM_WRAP(cudaEventQuery, (cudaEvent_t event), (event))
GPM_WRAP(cudaEventElapsedTime, (float* milliseconds, cudaEvent_t from, cudaEvent_t to),
         (milliseconds, from, to))
GPM_WRAP_AFTER(cudaEventSynchronize, (cudaEvent_t event), (event))

// Launches.
GPM_WRAP(cudaLaunchKernel,
         (const void* function, dim3 grid, dim3 block, void** arguments, std::size_t bytes,
          cudaStream_t stream),
         (function, grid, block, arguments, bytes, stream))
GPM_WRAP(cudaLaunchKernelExC,
         (const cudaLaunchConfig_t* config, const void* function, void** arguments),
         (config, function, arguments))
#if CUDART_VERSION >= 13000  // what a launch by <<<>>> compiles to
GPM_WRAP(__cudaLaunchKernel,
         (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t bytes,
          cudaStream_t stream),
         (kernel, grid, block, arguments, bytes, stream))
#endif
GPM_WRAP(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data),
         (stream, function, data))
GPM_WRAP(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status),
         (stream, status))
GPM_WRAP(cudaGraphKernelNodeSetParams,
         (cudaGraphNode_t node, const cudaKernelNodeParams* parameters), (node, parameters))
GPM_WRAP(cudaGraphCreate, (cudaGraph_t * graph, unsigned flags), (graph, flags))
GPM_WRAP_AFTER(cudaGraphDestroy, (cudaGraph_t graph), (graph))
GPM_WRAP(cudaGraphInstantiate,
         (cudaGraphExec_t * executable, cudaGraph_t graph, unsigned long long flags),
         (executable, graph, flags))
GPM_WRAP_AFTER(cudaGraphExecDestroy, (cudaGraphExec_t executable), (executable))
GPM_WRAP(cudaGraphExecKernelNodeSetParams,
         (cudaGraphExec_t executable, cudaGraphNode_t node, const cudaKernelNodeParams* parameters),
         (executable, node, parameters))
GPM_WRAP(cudaGraphKernelNodeSetAttribute,
         (cudaGraphNode_t node, cudaLaunchAttributeID id, const cudaLaunchAttributeValue* value),
         (node, id, value))
GPM_WRAP(cudaGraphLaunch, (cudaGraphExec_t executable, cudaStream_t stream), (executable, stream))

}  // extern "C"
// NOLINTEND
