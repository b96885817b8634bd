#ifndef GPM_BENCH_PEERS_GHSH_POOL_CUH_
#define GPM_BENCH_PEERS_GHSH_POOL_CUH_

#include <utility>

#include "bench/peers/cells.h"
#include "bench/peers/device.cuh"

namespace gpm::bench::peers::ghsh {

/// Kernel: brings the free cells, and new ones behind them, to another ring.
static __global__ void FillRing(Cells from, Cells to, std::uint64_t free, std::uint64_t count,
                                std::uint64_t more) {
  const std::uint64_t i = blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x;
  if (i < free) {
    to.ring[i] = from.ring[(from.counters[0] + i) % from.ring_size];
  } else if (i < free + more) {
    to.ring[i] = static_cast<std::uint32_t>(count + i - free + 1);
  }
  if (i == 0) to.counters[0] = 0;
  if (i == 0) to.counters[1] = free + more;
}

/// Owns cells in GPU memory, whose bytes are 0xFF at first, and makes more of them between batches.
/// Thread safety: none.
class Pool {
 public:
  /// @param max_takes of a batch
  Pool(std::uint64_t cell_bytes, std::uint64_t count, std::uint64_t max_takes, cudaStream_t stream)
      : max_takes_(max_takes), stream_(stream) {
    cells_.cell_bytes = cell_bytes;
    Grow(count + max_takes);
  }
  const Cells& cells() const { return cells_; }
  std::uint64_t count() const { return count_; }

  /// Sees to it that the next batch can take so many, max_takes at most. @return whether cells
  /// moved
  bool Require(std::uint64_t takes) {
    const bool few = free_ < takes && (free_ = Free()) < takes;
    if (few) Grow(std::max(count_ / 2, takes));
    free_ -= takes;
    return few;
  }
  std::uint64_t Used() const { return count_ - Free(); }

 private:
  std::uint64_t Free() const {
    std::uint64_t counters[2] = {};
    CheckCuda(cudaMemcpyAsync(counters, cells_.counters, sizeof counters, cudaMemcpyDeviceToHost,
                              stream_),
              "cudaMemcpy");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaMemcpy");
    return counters[1] - counters[0];
  }
  void Grow(std::uint64_t more) {
    const std::uint64_t free = count_ == 0 ? 0 : Free();
    const std::uint64_t bytes = (count_ + more) * cells_.cell_bytes;
    const std::uint64_t old_bytes = count_ * cells_.cell_bytes;
    DeviceArray<std::byte> memory;
    DeviceArray<std::uint32_t> ring;
    DeviceArray<std::uint64_t> counters;
    memory.Reserve(bytes);
    counters.Reserve(2);
    // So large that what is put in never meets what is being taken.
    ring.Reserve(count_ + more + max_takes_);
    if (old_bytes > 0) {
      CheckCuda(cudaMemcpyAsync(memory.data(), cells_.memory, old_bytes, cudaMemcpyDeviceToDevice,
                                stream_),
                "cudaMemcpy");
    }
    CheckCuda(cudaMemsetAsync(memory.data() + old_bytes, 0xFF, bytes - old_bytes, stream_),
              "cudaMemset");
    const Cells cells{memory.data(), cells_.cell_bytes, ring.data(), count_ + more + max_takes_,
                      counters.data()};
    FillRing<<<BlocksFor(free + more), kBlockThreads, 0, stream_>>>(cells_, cells, free, count_,
                                                                    more);
    CheckCuda(cudaGetLastError(), "FillRing");
    CheckCuda(cudaStreamSynchronize(stream_), "FillRing");
    memory_ = std::move(memory);
    ring_ = std::move(ring);
    counters_ = std::move(counters);
    cells_ = cells;
    count_ += more;
    free_ = free + more;
  }

  const std::uint64_t max_takes_;
  const cudaStream_t stream_;
  std::uint64_t count_ = 0;
  std::uint64_t free_ = 0;  ///< at least
  Cells cells_{};
  DeviceArray<std::byte> memory_;
  DeviceArray<std::uint32_t> ring_;
  DeviceArray<std::uint64_t> counters_;
};

}  // namespace gpm::bench::peers::ghsh

#endif  // GPM_BENCH_PEERS_GHSH_POOL_CUH_
