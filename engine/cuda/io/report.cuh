#ifndef GPM_ENGINE_CUDA_IO_REPORT_CUH_
#define GPM_ENGINE_CUDA_IO_REPORT_CUH_

#include <cstddef>

#include "engine/cuda/context.cuh"

namespace gpm {

/// Where a phase of a batch tells the host how it went.
struct Reporter {
  BatchSums* sums = nullptr;
  BatchSums* next = nullptr;     ///< of the next phase: made 0 by who reports
  ReportWords* words = nullptr;  ///< null: another kernel reports
  std::uint32_t number = 0;      ///< of the report
  bool outputs_on_host = false;  ///< kernels write the batch's outputs to host memory

  /// By a thread, before it tells others, of whom one reports: what it, and those of its block that
  /// it has synced with, wrote is seen by who sees that.
  __device__ void Fence() const {
    if (outputs_on_host) {
      __threadfence_system();
    } else {
      __threadfence();
    }
  }
};

/// By a thread of the kernel that reports, before its block counts as done.
__device__ inline void ClearNextSums(const Reporter& reporter) {
  if (reporter.words != nullptr) *reporter.next = BatchSums{};
}
/// What a report says, a half of a word in each lane of a warp. REQUIRES: everything was counted.
__device__ inline std::uint32_t HalfOfReport(const TableContext& context,
                                             const Reporter& reporter) {
  static_assert(ReportWords::kHalves <= 32);
  static_assert(offsetof(BatchReport, positions) == sizeof(BatchTotals) &&
                offsetof(BatchReport, dirty_lines) == sizeof(BatchTotals) + 16 &&
                offsetof(ReclaimPositions, slots_tail) == 8);
  constexpr std::uint32_t kSums = sizeof(BatchTotals) / 8;
  const std::uint32_t word = threadIdx.x % 32 / 2;
  const std::uint64_t* const from =
      word < kSums
          ? reinterpret_cast<const std::uint64_t*>(static_cast<const BatchTotals*>(reporter.sums)) +
                word
      : word == kSums     ? &context.reclaim.counters->cells_tail
      : word == kSums + 1 ? &context.reclaim.counters->slots_tail
      : word == kSums + 2 ? context.dirty.count
                          : nullptr;
  const std::uint64_t value = from == nullptr ? 0 : AtomicLoad(from);
  return static_cast<std::uint32_t>(value >> 32 * (threadIdx.x % 2));
}
/// Sends it, by the same lanes.
__device__ inline void Send(std::uint32_t half, const Reporter& reporter) {
  const std::uint32_t lane = threadIdx.x % 32;
  if (lane >= ReportWords::kHalves) return;
  auto* const to = const_cast<volatile std::uint64_t*>(&reporter.words->halves[lane]);
  *to = std::uint64_t{reporter.number} << 32 | half;
}

/// Tells the host how the batch went, by all threads of the one block that knows that everything
/// was done and counted, and sees it.
__device__ inline void Report(const TableContext& context, const Reporter& reporter) {
  if (reporter.words == nullptr || threadIdx.x >= 32) return;
  Send(HalfOfReport(context, reporter), reporter);
}
/// The last block to come here, of the kernel that reports, tells the host how the batch went. All
/// threads of all blocks call it. It saves a kernel: a small batch's time is made of their
/// launches.
__device__ inline void ReportWhenLast(const TableContext& context, const Reporter& reporter) {
  if (reporter.words == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  bool is_last = false;
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) ClearNextSums(reporter);
    reporter.Fence();  // what the block wrote is seen before it counts as done
    is_last = AtomicAdd(&reporter.sums->blocks_done, 1) + 1 == gridDim.x;
    __threadfence();
  }
  if (__shfl_sync(~0u, is_last ? 1 : 0, 0) != 0) Report(context, reporter);
}

/// What the threads of a block count together, to be added to a batch's sums once. In shared
/// memory.
struct BlockCounts {
  std::uint32_t found;
  std::uint32_t cache_hits;
  std::uint32_t reads_shared;

  /// By all threads of a block, before anything is counted.
  __device__ void Clear() {
    if (threadIdx.x == 0) *this = BlockCounts{};
    __syncthreads();
  }
  /// By one thread: a find found its key.
  __device__ void CountFound(bool hit) {
    atomicAdd(&found, 1u);
    if (hit) atomicAdd(&cache_hits, 1u);
  }
  /// By all threads of a block, when everything is counted.
  __device__ void AddTo(BatchSums* sums) const {
    __syncthreads();
    if (threadIdx.x != 0 || found == 0) return;
    AtomicAdd(&sums->found, found);
    AtomicAdd(&sums->cache_hits, cache_hits);
    if (reads_shared != 0) AtomicAdd(&sums->reads_shared, reads_shared);
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_REPORT_CUH_
