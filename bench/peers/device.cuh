#ifndef GPM_BENCH_PEERS_DEVICE_CUH_
#define GPM_BENCH_PEERS_DEVICE_CUH_

#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "bench/peers/shared_words.h"
#include "bench/peers/tiles.h"
#include "engine/cuda/memory.h"

/// What peers in GPU memory, and on PM that a GPU reaches, share.
namespace gpm::bench::peers {

namespace cg = cooperative_groups;

inline constexpr unsigned kBlockThreads = 256;

/// Kernel: a tile of kLanes lanes carries out an operation, by table.Apply(tile, batch, i), which
/// all lanes call and which returns the same to all.
template <unsigned kLanes, class Table>
__global__ void __launch_bounds__(kBlockThreads) ApplyByTiles(Table table, KernelBatch batch) {
  const auto tile = cg::tiled_partition<kLanes>(cg::this_thread_block());
  const std::uint64_t i = (blockIdx.x * std::uint64_t{kBlockThreads} + threadIdx.x) / kLanes;
  if (i >= batch.n) return;
  const Result result = table.Apply(tile, batch, i);
  if (tile.thread_rank() == 0) batch.results[i] = result;
}

inline unsigned BlocksFor(std::uint64_t threads) {
  return static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads);
}

/// Warps that the current GPU runs at once at most.
inline std::uint64_t ResidentWarps() {
  int device = 0;
  int multiprocessors = 0;
  int threads = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  CheckCuda(cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device),
            "cudaDeviceGetAttribute");
  return static_cast<std::uint64_t>(multiprocessors) * static_cast<unsigned>(threads) /
         kWarpThreads;
}

/// Operations of a warp that carries out one after the other: as the papers have it up to 32, each
/// handed in by a thread, but only when there are so many that fewer would leave warps in a queue.
inline unsigned OperationsPerWarp(std::uint64_t n) {
  static const std::uint64_t resident = ResidentWarps();
  return static_cast<unsigned>(
      std::clamp<std::uint64_t>((n + resident - 1) / resident, 1, kWarpThreads));
}

/// Carries out a batch by tiles, and waits. @throws Error(kGpu)
template <unsigned kLanes, class Table>
void ApplyAndWait(const Table& table, const KernelBatch& batch, cudaStream_t stream) {
  if (batch.n == 0) return;
  ApplyByTiles<kLanes><<<BlocksFor(batch.n * kLanes), kBlockThreads, 0, stream>>>(table, batch);
  CheckCuda(cudaGetLastError(), "ApplyByTiles");
  CheckCuda(cudaStreamSynchronize(stream), "ApplyByTiles");
}

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_DEVICE_CUH_
