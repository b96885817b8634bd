#ifndef GPM_ENGINE_CUDA_GRAPHS_H_
#define GPM_ENGINE_CUDA_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <type_traits>

#include "engine/cuda/memory.h"

namespace gpm {

/// A kernel to be launched, with its arguments, which it refers to.
class KernelCall {
 public:
  template <class... Parameters>
  KernelCall(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
             const std::type_identity_t<Parameters>&... arguments)
      : arguments_{const_cast<void*>(static_cast<const void*>(&arguments))...} {
    static_assert(sizeof...(Parameters) <= kMaxArguments);
    node_.func = reinterpret_cast<void*>(kernel);
    node_.gridDim = dim3(blocks);
    node_.blockDim = dim3(threads);
  }
  /// The same with so many bytes of dynamic shared memory for each block.
  KernelCall WithSharedMemory(unsigned bytes) const {
    KernelCall call = *this;
    call.node_.sharedMemBytes = bytes;
    return call;
  }
  cudaKernelNodeParams Node() const {
    cudaKernelNodeParams node = node_;
    node.kernelParams = const_cast<void**>(arguments_.data());
    return node;
  }

 private:
  static constexpr std::size_t kMaxArguments = 8;

  std::array<void*, kMaxArguments> arguments_;
  cudaKernelNodeParams node_{};
};

/// A kernel that is launched again and again with other arguments. All its blocks begin together (a
/// cooperative launch), so that they may wait for each other. It is a graph of its own because
/// small batches wait for the host: launching a graph takes 2.1 to 2.5 us (1.1 to 1.9 if it were
/// not cooperative) and setting its arguments 0.6 to 0.9, launching a kernel 2.8 to 4.6 (machines
/// with an H200, CUDA 13.0). Thread safety: one thread at a time.
class KernelGraph {
 public:
  KernelGraph() = default;
  KernelGraph(const KernelGraph&) = delete;
  KernelGraph& operator=(const KernelGraph&) = delete;
  ~KernelGraph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  /// @param call of the same kernel each time
  /// @throws Error(kGpu); then nothing was launched
  void Launch(const KernelCall& call, cudaStream_t stream) {
    const cudaKernelNodeParams parameters = call.Node();
    if (executable_ == nullptr) {
      Make(parameters);
    } else {
      CheckCuda(cudaGraphExecKernelNodeSetParams(executable_, node_, &parameters),
                "cudaGraphExecKernelNodeSetParams");
    }
    CheckCuda(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  void Make(const cudaKernelNodeParams& parameters) {
    if (graph_ == nullptr) CheckCuda(cudaGraphCreate(&graph_, 0), "cudaGraphCreate");
    if (node_ == nullptr) {
      CheckCuda(cudaGraphAddKernelNode(&node_, graph_, nullptr, 0, &parameters),
                "cudaGraphAddKernelNode");
    } else {  // an attempt that failed behind this left its own arguments
      CheckCuda(cudaGraphKernelNodeSetParams(node_, &parameters), "cudaGraphKernelNodeSetParams");
    }
    cudaKernelNodeAttrValue together{};
    together.cooperative = 1;
    CheckCuda(cudaGraphKernelNodeSetAttribute(node_, cudaKernelNodeAttributeCooperative, &together),
              "cudaGraphKernelNodeSetAttribute");
    CheckCuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphNode_t node_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_GRAPHS_H_
