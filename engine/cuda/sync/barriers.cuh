#ifndef GPM_ENGINE_CUDA_SYNC_BARRIERS_CUH_
#define GPM_ENGINE_CUDA_SYNC_BARRIERS_CUH_

#include <cstdint>

#include "pm/steps.h"
#include "table/volatile_ops.h"

namespace gpm {

/// Threads of a block, and blocks of a kernel, that wait for each other.

/// Whether this is the last block of a kernel to come here; all its threads call it. The last block
/// sees what the others wrote before. `is_last` is in shared memory. REQUIRES: a barrier before it
/// is used again.
__device__ inline bool IsLastBlock(std::uint32_t* blocks_done, bool* is_last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    *is_last = atomicAdd(blocks_done, 1u) + 1 == gridDim.x;
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
  __device__ static bool IsLastBlock(std::uint32_t* blocks_done, bool* is_last) {
    return gpm::IsLastBlock(blocks_done, is_last);
  }
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

/// A barrier of all blocks of a kernel that begin together (KernelGraph). One thread of each block
/// comes; a thread that waits sees what the blocks did before they synced and came, and so do those
/// that it syncs with afterwards.
/// @param meeting a counter that was 0 before the kernel; all its meetings use it
/// @param amount what this block adds to the kernel's sum
__device__ inline void ComeToMeeting(std::uint64_t* meeting, std::uint32_t amount) {
  __threadfence();
  AtomicAdd(meeting, std::uint64_t{amount} << 32 | 1);
}
/// @param number of the meeting, from 1 on
/// @return the sum so far. REQUIRES: nobody adds to it at the next meeting before all have read it
__device__ inline std::uint32_t AwaitMeeting(const std::uint64_t* meeting, std::uint32_t number) {
  std::uint64_t met = 0;
  do {
    met = AtomicLoad(meeting);
  } while (static_cast<std::uint32_t>(met) < number * gridDim.x);
  __threadfence();
  return static_cast<std::uint32_t>(met >> 32);
}
/// All threads of all blocks wait here for each other.
/// @param sum in shared memory
/// @return the sum so far
__device__ inline std::uint32_t MeetBlocks(std::uint64_t* meeting, std::uint32_t number,
                                           std::uint32_t amount, std::uint32_t* sum) {
  __syncthreads();
  if (threadIdx.x == 0) {
    ComeToMeeting(meeting, amount);
    *sum = AwaitMeeting(meeting, number);
  }
  __syncthreads();
  return *sum;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SYNC_BARRIERS_CUH_
