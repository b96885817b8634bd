#ifndef GPM_ENGINE_CUDA_IO_ADDRESS_ORDER_CUH_
#define GPM_ENGINE_CUDA_IO_ADDRESS_ORDER_CUH_

#include <cub/block/block_scan.cuh>

#include "engine/cuda/io/read_plans.cuh"

namespace gpm {

/// The kernels that put planned reads in the order of addresses (AddressOrder).

/// Threads of the one block of PlaceBins.
inline constexpr std::uint32_t kPlacingThreads = 1024;

/// Turns the numbers of reads in the bins into the places where each bin's reads begin.
static __global__ void __launch_bounds__(kPlacingThreads)
    PlaceBins(const __grid_constant__ Reads reads) {
  using Scan = cub::BlockScan<std::uint32_t, kPlacingThreads>;
  constexpr std::uint32_t kPerThread = AddressOrder::kBins / kPlacingThreads;
  __shared__ Scan::TempStorage storage;
  alignas(16) std::uint32_t counts[kPerThread];
  auto* const own = reinterpret_cast<uint4*>(reads.order.bins + threadIdx.x * kPerThread);
  for (std::uint32_t k = 0; k < kPerThread / 4; ++k) {
    reinterpret_cast<uint4*>(counts)[k] = own[k];
  }
  std::uint32_t total = 0;
  Scan(storage).ExclusiveSum(counts, counts, total);
  for (std::uint32_t k = 0; k < kPerThread / 4; ++k) {
    own[k] = reinterpret_cast<const uint4*>(counts)[k];
  }
  if (threadIdx.x == 0) reads.flags[Reads::kAll] = total;
}

/// Puts the reads in order.
static __global__ void __launch_bounds__(kBlockThreads)
    PlaceReads(const __grid_constant__ Reads reads, std::uint32_t operations) {
  if (reads.flags[Reads::kAll] == 0) return;
  for (std::uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x; i < operations;
       i += gridDim.x * kBlockThreads) {
    const ReadPlan plan = reads.plans[i];
    if (!plan.Is(ReadPlan::kRead)) continue;
    reads.queues.items[reads.order.bins[plan.cell >> reads.order.bin_shift] + plan.number()] =
        std::uint64_t{plan.cell} << 32 | i;
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_ADDRESS_ORDER_CUH_
