#ifndef GPM_ENGINE_CUDA_SYNC_BARRIERS_CUH_
#define GPM_ENGINE_CUDA_SYNC_BARRIERS_CUH_

#include <cstdint>

#include "pm/steps.h"
#include "table/volatile_ops.h"

namespace gpm {

/// Threads of a block, and blocks of a kernel, that wait for each other.

/// A kernel launched so that it may begin early (BeginsEarly) waits here until the one before it
/// has ended, whose writes it then sees.
__device__ inline void AwaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may begin, if it was launched so, where there is room when all blocks have come
/// here.
__device__ inline void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Whether this is the last of some blocks of a kernel to come here; all its threads call it. The
/// last block sees what the others wrote before. `is_last` is in shared memory. REQUIRES: a barrier
/// before it is used again.
/// @param blocks of which this is one
__device__ inline bool IsLastBlock(std::uint32_t* blocks_done, bool* is_last,
                                   std::uint32_t blocks = gridDim.x) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    *is_last = atomicAdd(blocks_done, 1u) + 1 == blocks;
    __threadfence();
  }
  __syncthreads();
  return *is_last;
}

/// Threads of a block that wait for each other: all of them.
struct WholeBlock {
  __device__ static std::uint32_t Rank() { return threadIdx.x; }
  __device__ static std::uint32_t Size() { return blockDim.x; }
  __device__ static void Sync(Step = Step::kOther) { __syncthreads(); }
  /// Syncs. @return whether the bit of any thread is set
  __device__ static bool Or(bool bit) { return __syncthreads_or(bit ? 1 : 0) != 0; }
};
/// The same for `kThreads` threads from `kFirst` on, both multiples of kThreads.
template <std::uint32_t kFirst, std::uint32_t kThreads>
struct BlockSlice {
  static_assert(kFirst % kThreads == 0 && kThreads % 32 == 0);
  static constexpr std::uint32_t kBarrier = kFirst / kThreads + 1;  // 0 is the whole block's

  __device__ static std::uint32_t Rank() { return threadIdx.x - kFirst; }
  __device__ static std::uint32_t Size() { return kThreads; }
  __device__ static void Sync(Step = Step::kOther) {
    asm volatile("barrier.sync %0, %1;" : : "n"(kBarrier), "n"(kThreads) : "memory");
  }
  __device__ static bool Or(bool bit) {
    std::uint32_t any = 0;
    asm volatile(
        "{\n"
        " .reg .pred mine, all;\n"
        " setp.ne.u32 mine, %1, 0;\n"
        " barrier.red.or.pred all, %2, %3, mine;\n"
        " selp.u32 %0, 1, 0, all;\n"
        "}"
        : "=r"(any)
        : "r"(bit ? 1u : 0u), "n"(kBarrier), "n"(kThreads)
        : "memory");
    return any != 0;
  }
};

/// A barrier for the blocks of a kernel, which all begin together (KernelGraph, BeginsTogether). It
/// can be passed several times, by numbers from 1 on. One thread of each block arrives; threads
/// that wait see what a block's threads did before they synced with the one that arrived.
struct GridBarrier {
  /// 0 before the kernel: blocks that arrived, and above them the sum of what they brought.
  std::uint64_t* arrived;

  __device__ void Arrive(std::uint32_t amount) const {
    __threadfence();
    AtomicAdd(arrived, std::uint64_t{amount} << 32 | 1);
  }
  /// @return the sum so far: nobody arrives for the next time before all have read it, or nobody
  ///         brings anything then
  __device__ std::uint32_t Wait(std::uint32_t number) const {
    std::uint64_t all = 0;
    do {
      all = AtomicLoad(arrived);
    } while (static_cast<std::uint32_t>(all) < number * gridDim.x);
    __threadfence();
    return static_cast<std::uint32_t>(all >> 32);
  }
  /// By all threads of all blocks. @param sum in shared memory @return the sum so far
  __device__ std::uint32_t ArriveAndWait(std::uint32_t number, std::uint32_t amount,
                                         std::uint32_t* sum) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      Arrive(amount);
      *sum = Wait(number);
    }
    __syncthreads();
    return *sum;
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SYNC_BARRIERS_CUH_
