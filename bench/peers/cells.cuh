#ifndef GPM_BENCH_PEERS_CELLS_CUH_
#define GPM_BENCH_PEERS_CELLS_CUH_

#include <cstddef>
#include <cstdint>

#include "bench/peers/device.cuh"

namespace gpm::bench::peers {

/// Cells for values that slots only refer to, by number from 1 on; 0 is none. Which are free is
/// kept in GPU memory, in a ring: who wants one takes it from the front, and cells that are given
/// back come to the end. There are as many cells as slots, and those of a batch more: so none of
/// those that a batch gives back is taken before it ends, and nobody finds another value in a cell
/// that he was referred to; and there is always one.

/// What kernels see of them.
struct Cells {
  std::byte* memory;  ///< of all cells: GPU memory or PM
  std::uint64_t cell_bytes;
  std::uint32_t* ring;
  std::uint64_t ring_size;
  unsigned long long* counters;  ///< how many were taken, and were put into the ring, ever

  __device__ std::byte* AddressOf(std::uint64_t cell) const {
    return memory + (cell - 1) * cell_bytes;
  }
  /// By one thread.
  __device__ std::uint64_t Take() const { return ring[atomicAdd(&counters[0], 1ull) % ring_size]; }
  __device__ void Give(std::uint64_t cell) const {
    ring[atomicAdd(&counters[1], 1ull) % ring_size] = static_cast<std::uint32_t>(cell);
  }
};

static __global__ void FillRing(Cells cells, std::uint64_t count) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i < count) cells.ring[i] = static_cast<std::uint32_t>(i + 1);
  if (i == 0) cells.counters[0] = 0;
  if (i == 0) cells.counters[1] = count;
}

/// Owns the ring. Thread safety: none.
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
  DeviceArray<unsigned long long> counters_;
  Cells cells_{};
  std::uint64_t max_batch_ = 0;
};

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_CELLS_CUH_
