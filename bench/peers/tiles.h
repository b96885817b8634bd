#ifndef GPM_BENCH_PEERS_TILES_H_
#define GPM_BENCH_PEERS_TILES_H_

#include <cstddef>
#include <cstdint>

#include "gpmstore/batch.h"
#include "pm/annotate.h"
#ifdef __CUDACC__
#include "pm/count_pm.cuh"
#endif
#include "table/volatile_ops.h"

/// What the lanes of a tile do together. Written for a `Tile` with thread_rank(), size(), sync(),
/// ballot(), any() and shfl(), which are those of cooperative groups in kernels, and of threads of
/// the host in tests.
namespace gpm::bench::peers {

inline constexpr unsigned kWarpThreads = 32;

/// A Batch as kernels see it.
struct KernelBatch {
  const Op* ops;  ///< or null: all are `op`
  Op op;
  const std::byte* keys;
  const std::byte* values;
  std::byte* found;
  Result* results;
  std::uint64_t n;
  std::uint32_t value_bytes;

  KernelBatch(const Batch& batch, std::uint32_t bytes)
      : ops(batch.ops.empty() ? nullptr : batch.ops.data()),
        op(batch.op),
        keys(batch.keys.data()),
        values(batch.values.data()),
        found(batch.found.data()),
        results(batch.results.data()),
        n(batch.results.size()),
        value_bytes(bytes) {}

  GPM_HD Op KindOf(std::uint64_t i) const { return ops == nullptr ? op : ops[i]; }
  template <class Key>
  GPM_HD Key KeyOf(std::uint64_t i) const {
    return reinterpret_cast<const Key*>(keys)[i];
  }
  GPM_HD const std::byte* ValueOf(std::uint64_t i) const { return values + i * value_bytes; }
  GPM_HD std::byte* FoundOf(std::uint64_t i) const { return found + i * value_bytes; }
};

/// A number in [0, n) from the high bits of a hash.
GPM_HD inline std::uint64_t Reduce(std::uint64_t hash, std::uint64_t n) {
#ifdef __CUDA_ARCH__
  return __umul64hi(hash, n);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(hash) * n >> 64);
#endif
}

/// Copies a value by all lanes of a tile. REQUIRES: rows that are 16-byte aligned and a multiple of
/// 16 bytes.
template <class Tile>
GPM_HD void CopyValue(const Tile& tile, std::byte* to, const std::byte* from, std::uint32_t bytes) {
  struct alignas(16) Chunk {
    std::uint64_t words[2];
  };
  for (std::uint32_t at = tile.thread_rank(); at < bytes / 16; at += tile.size()) {
#ifdef __CUDA_ARCH__
    const auto read = CountPm(PmPlace::kValues, PmAccess::kRead, from + 16 * at, sizeof(Chunk));
#endif
    const Chunk chunk = reinterpret_cast<const Chunk*>(from)[at];
#ifdef __CUDA_ARCH__
    read.End(chunk.words[0]);
    const auto written = CountPm(PmPlace::kValues, PmAccess::kWrite, to + 16 * at, sizeof(Chunk));
#endif
    reinterpret_cast<Chunk*>(to)[at] = chunk;
#ifdef __CUDA_ARCH__
    written.End();
#endif
  }
}

/// Adds what each lane of a warp has to a word, by all of them.
GPM_HD inline void AddByWarp(std::uint64_t* word, unsigned amount) {
#ifdef __CUDA_ARCH__
  const unsigned sum = __reduce_add_sync(~0u, amount);
  if (threadIdx.x % kWarpThreads == 0 && sum != 0) AtomicAdd(word, sum);
#else
  if (amount != 0) AtomicAdd(word, amount);
#endif
}

/// The first lane of those that voted. REQUIRES: one did.
GPM_HD inline unsigned FirstOf(unsigned votes) { return LowestBit(votes); }

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_TILES_H_
