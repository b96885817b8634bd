#ifndef GPM_BENCH_PEERS_CELLS_CUH_
#define GPM_BENCH_PEERS_CELLS_CUH_

#include <cstddef>
#include <cstdint>

#include "bench/peers/cells.h"
#include "bench/peers/device.cuh"

namespace gpm::bench::peers {

/// Copies the values that the operations of a warp found, all of them in flight together, eight
/// lanes each. What several of them found is read once: so it is where each thread reads its own,
/// as a warp's accesses to one address are one.
/// @param first operation of the warp; lane k has the k-th @param cell this lane's operation found,
///        or 0 @param batch has rows for them
template <class Warp>
__device__ void CopyFound(const Warp& warp, const Cells& cells, const KernelBatch& batch,
                          std::uint64_t first, std::uint64_t cell) {
  constexpr unsigned kLanes = 8;
  constexpr unsigned kAtOnce = kWarpThreads / kLanes;
  constexpr unsigned kRounds = kWarpThreads / kAtOnce;
  const unsigned lane = warp.thread_rank();
  const unsigned sharers = __match_any_sync(~0u, cell);
  const unsigned readers = warp.ballot(cell != 0 && FirstOf(sharers) == lane);
  for (std::uint32_t at = lane % kLanes;
       at < (batch.value_bytes / 16 + kLanes - 1) / kLanes * kLanes; at += kLanes) {
    const bool in_value = at < batch.value_bytes / 16;
    uint4 chunks[kRounds];
    unsigned targets[kRounds];  // operations, as bits
#pragma unroll
    for (unsigned round = 0; round < kRounds; ++round) {
      const unsigned reader =
          __fns(readers, 0, static_cast<int>(round * kAtOnce + lane / kLanes + 1));
      const bool some = reader < kWarpThreads;
      const std::uint64_t from = warp.shfl(cell, some ? reader : 0);
      const unsigned to = warp.shfl(sharers, some ? reader : 0);
      targets[round] = some && in_value ? to : 0;
      if (targets[round] != 0) {
        const auto* const chunk = reinterpret_cast<const uint4*>(cells.AddressOf(from)) + at;
        const auto counted = CountPm(PmPlace::kValues, PmAccess::kRead, chunk, sizeof *chunk);
        chunks[round] = *chunk;
        counted.End(chunks[round].x);
      }
    }
#pragma unroll
    for (unsigned round = 0; round < kRounds; ++round) {
      for (unsigned to = targets[round]; to != 0; to &= to - 1) {
        reinterpret_cast<uint4*>(batch.FoundOf(first + FirstOf(to)))[at] = chunks[round];
      }
    }
  }
}

/// Kernel: a warp carries out `per_warp` operations, one after the other, by
/// table.Apply(warp, batch, i, &cell), which says in which cell a find found its value, or leaves
/// 0; then the values are copied. REQUIRES: per_warp <= 32.
template <class Table>
__global__ void __launch_bounds__(kBlockThreads)
    ApplyByWarps(Table table, KernelBatch batch, unsigned per_warp) {
  const auto warp = cg::tiled_partition<kWarpThreads>(cg::this_thread_block());
  const std::uint64_t thread = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  const std::uint64_t first = thread / kWarpThreads * per_warp;
  std::uint64_t found = 0;  // by this lane's operation
  for (unsigned k = 0; k < per_warp && first + k < batch.n; ++k) {
    std::uint64_t cell = 0;
    const Result result = table.Apply(warp, batch, first + k, &cell);
    if (warp.thread_rank() == 0) batch.results[first + k] = result;
    if (warp.thread_rank() == k) found = cell;
  }
  if (batch.found != nullptr) CopyFound(warp, table.cells, batch, first, found);
}

/// Carries out a batch by warps, and waits. REQUIRES: per_warp <= 32. @throws Error(kGpu)
template <class Table>
void ApplyByWarpsAndWait(const Table& table, const KernelBatch& batch, unsigned per_warp,
                         cudaStream_t stream) {
  if (batch.n == 0) return;
  const std::uint64_t warps = (batch.n + per_warp - 1) / per_warp;
  ApplyByWarps<<<BlocksFor(warps * kWarpThreads), kBlockThreads, 0, stream>>>(table, batch,
                                                                              per_warp);
  CheckCuda(cudaGetLastError(), "ApplyByWarps");
  CheckCuda(cudaStreamSynchronize(stream), "ApplyByWarps");
}

static __global__ void FillRing(Cells cells, std::uint64_t count) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i < count) cells.ring[i] = static_cast<std::uint32_t>(i + 1);
  if (i == 0) cells.counters[0] = 0;
  if (i == 0) cells.counters[1] = count;
}

/// Owns the ring of cells for values that slots only refer to, in GPU memory. There are as many
/// cells as slots, and those of a batch more: so nobody finds another value in a cell that he was
/// referred to, within a batch. Thread safety: none.
class CellRing {
 public:
  /// How many cells a table needs. @param max_batch operations of the largest batch
  static std::uint64_t CountOf(std::uint64_t slots, std::uint64_t max_batch) {
    return slots + max_batch;
  }
  /// @param memory of the cells, 16-byte aligned
  CellRing(std::byte* memory, std::uint64_t cell_bytes, std::uint64_t slots,
           std::uint64_t max_batch, cudaStream_t stream) {
    max_batch_ = max_batch;
    const std::uint64_t count = CountOf(slots, max_batch);
    // So large that what is put in never meets what is being taken.
    const std::uint64_t ring_size = count + max_batch;
    ring_.Reserve(ring_size);
    counters_.Reserve(2);
    cells_ = {memory, cell_bytes, ring_.data(), ring_size, counters_.data()};
    FillRing<<<BlocksFor(count), kBlockThreads, 0, stream>>>(cells_, count);
    CheckCuda(cudaGetLastError(), "FillRing");
  }
  const Cells& cells() const { return cells_; }

  /// @throws Error(kInvalidArgument) for a batch that is larger than was said
  void RequireRoomFor(const Batch& batch) const {
    if (batch.results.size() <= max_batch_) return;
    throw Error(ErrorCode::kInvalidArgument, "a batch is larger than PeerSpec::max_batch");
  }

 private:
  DeviceArray<std::uint32_t> ring_;
  DeviceArray<std::uint64_t> counters_;
  Cells cells_{};
  std::uint64_t max_batch_ = 0;
};

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_CELLS_CUH_
