#ifndef GPM_ENGINE_KERNEL_GRAPH_H_
#define GPM_ENGINE_KERNEL_GRAPH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "engine/cuda_memory.h"

namespace gpm {

/// How a kernel begins.
enum class KernelStart {
  kAlone,
  /// Put on the multiprocessors when all blocks of the kernel before it have called
  /// cudaTriggerProgrammaticLaunchCompletion or ended; it waits for that kernel's end, and sees
  /// what it wrote, by cudaGridDependencySynchronize.
  kEarly,
  /// All blocks at once (a cooperative launch): they may wait for each other.
  kTogether,
};

/// A kernel to be launched, with its arguments, which it refers to.
class KernelCall {
 public:
  template <class... Parameters>
  KernelCall(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, KernelStart start,
             const std::type_identity_t<Parameters>&... arguments)
      : start_(start), arguments_{const_cast<void*>(static_cast<const void*>(&arguments))...} {
    static_assert(sizeof...(Parameters) <= kMaxArguments);
    node_.func = reinterpret_cast<void*>(kernel);
    node_.gridDim = dim3(blocks);
    node_.blockDim = dim3(threads);
  }
  KernelStart start() const { return start_; }
  const void* function() const { return node_.func; }
  cudaKernelNodeParams Node() const {
    cudaKernelNodeParams node = node_;
    node.kernelParams = const_cast<void**>(arguments_.data());
    return node;
  }

 private:
  static constexpr std::size_t kMaxArguments = 8;

  KernelStart start_;
  std::array<void*, kMaxArguments> arguments_;
  cudaKernelNodeParams node_{};
};

/// Kernels, one after the other, that the host launches at once: a graph whose arguments are set
/// anew each time. Launching one takes the host 1.1 to 1.9 us and setting arguments 0.6 us a
/// kernel, where launching a kernel takes it 2.8 to 4.6 us (two machines with an H200, CUDA 13.0);
/// small batches wait for that. For one thread at a time.
class KernelGraph {
 public:
  KernelGraph() = default;
  KernelGraph(const KernelGraph&) = delete;
  KernelGraph& operator=(const KernelGraph&) = delete;
  ~KernelGraph() { Clear(); }

  /// @throws Error(kGpu); then nothing was launched
  void Launch(std::initializer_list<KernelCall> calls, cudaStream_t stream) {
    if (!Fits(calls)) Make(calls);
    auto node = nodes_.begin();
    for (const KernelCall& call : calls) {
      const cudaKernelNodeParams parameters = call.Node();
      CheckCuda(cudaGraphExecKernelNodeSetParams(executable_, *node++, &parameters),
                "cudaGraphExecKernelNodeSetParams");
    }
    CheckCuda(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  bool Fits(std::initializer_list<KernelCall> calls) const {
    return executable_ != nullptr &&
           std::equal(calls.begin(), calls.end(), functions_.begin(), functions_.end(),
                      [](const KernelCall& call, const void* function) {
                        return call.function() == function;
                      });
  }

  void Make(std::initializer_list<KernelCall> calls) {
    Clear();
    CheckCuda(cudaGraphCreate(&graph_, 0), "cudaGraphCreate");
    for (const KernelCall& call : calls) {
      const cudaKernelNodeParams parameters = call.Node();
      cudaGraphNode_t node = nullptr;
      CheckCuda(cudaGraphAddKernelNode(&node, graph_, nullptr, 0, &parameters),
                "cudaGraphAddKernelNode");
      if (!nodes_.empty()) {
        cudaGraphEdgeData edge{};
        if (call.start() == KernelStart::kEarly) {
          edge.from_port = cudaGraphKernelNodePortProgrammatic;
          edge.type = cudaGraphDependencyTypeProgrammatic;
        }
        CheckCuda(cudaGraphAddDependencies(graph_, &nodes_.back(), &node, &edge, 1),
                  "cudaGraphAddDependencies");
      }
      if (call.start() == KernelStart::kTogether) {
        cudaKernelNodeAttrValue together{};
        together.cooperative = 1;
        CheckCuda(
            cudaGraphKernelNodeSetAttribute(node, cudaKernelNodeAttributeCooperative, &together),
            "cudaGraphKernelNodeSetAttribute");
      }
      nodes_.push_back(node);
      functions_.push_back(call.function());
    }
    CheckCuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }

  void Clear() noexcept {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    executable_ = nullptr;
    graph_ = nullptr;
    nodes_.clear();
    functions_.clear();
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<cudaGraphNode_t> nodes_;  ///< one for each call
  std::vector<const void*> functions_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_KERNEL_GRAPH_H_
