#ifndef GPM_ENGINE_CUDA_REPORT_CUH_
#define GPM_ENGINE_CUDA_REPORT_CUH_

#include "engine/cuda_types.cuh"

namespace gpm {

/// Where a batch tells the host how it went.
struct Reporter {
  BatchSums* sums = nullptr;
  BatchReport* report = nullptr;  ///< null: another kernel reports
  std::uint64_t number = 0;       ///< of the report
};

/// What a report says, but for its number. By one thread, when all that the sums count is in them.
__device__ inline BatchReport MakeReport(const TableContext& context, const Reporter& reporter) {
  BatchReport report;
  const auto* const from = reinterpret_cast<const std::uint64_t*>(reporter.sums);
  auto* const to = reinterpret_cast<std::uint64_t*>(&report.sums);
#pragma unroll
  for (std::size_t i = 0; i < sizeof(BatchSums) / 8; ++i) to[i] = AtomicLoad(from + i);
  report.positions.cells_tail = AtomicLoad(&context.reclaim.counters->cells_tail);
  report.positions.slots_tail = AtomicLoad(&context.reclaim.counters->slots_tail);
  report.dirty_lines = context.dirty.count == nullptr ? 0 : AtomicLoad(context.dirty.count);
  return report;
}
/// Tells the host how a batch went, and counts from 0 again. By one thread.
__device__ inline void Send(const BatchReport& report, const Reporter& reporter) {
  reporter.report->sums = report.sums;
  reporter.report->positions = report.positions;
  reporter.report->dirty_lines = report.dirty_lines;
  *reporter.sums = BatchSums{};
  __threadfence_system();
  *const_cast<volatile std::uint64_t*>(&reporter.report->number) = reporter.number;
}
__device__ inline void Report(const TableContext& context, const Reporter& reporter) {
  Send(MakeReport(context, reporter), reporter);
}

/// The same, by the last block of a kernel to come here: all threads of all blocks do. Saves a
/// kernel, which is what a small batch's time is made of.
__device__ inline void ReportWhenLast(const TableContext& context, const Reporter& reporter) {
  if (reporter.report == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();  // what the block wrote is seen before it counts as done
  if (AtomicAdd(&reporter.sums->blocks_done, 1) + 1 != gridDim.x) return;
  __threadfence();
  Report(context, reporter);
}

/// What the threads of a block count together, to be added to a batch's sums once. In shared
/// memory.
struct BlockCounts {
  std::uint32_t found;
  std::uint32_t cache_hits;

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
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_REPORT_CUH_
