#ifndef GPM_ENGINE_CUDA_KERNELS_BINS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_BINS_CUH_

#include <cub/block/block_scan.cuh>

#include "engine/cuda/kernels/run_effects.cuh"

namespace gpm {

/// How GroupByKey puts a batch's operations into bins, which are ranges of hashes, a bin for each
/// block, and the operations of a bin in the order of their keys.

inline constexpr unsigned kGroupThreads = 512;
/// Operations that a block puts into bins: so many for each thread, in turns.
inline constexpr std::uint32_t kGroupTurns = 2;
/// Operations of a bin that each thread has in hand at once.
inline constexpr std::uint32_t kInHand = 4;
inline constexpr std::uint32_t kInHands = kInHand * kGroupThreads;  ///< of a block

/// Where GroupByKey works. A trivially copyable view of GPU memory.
struct KeyGroups {
  static constexpr std::uint32_t kMaxBins = 256;  ///< and blocks: each has a bin
  static constexpr std::uint32_t kOperationBits = 18;
  static_assert(kMaxBins * kGroupTurns * kGroupThreads == 1u << kOperationBits);
  static_assert(KindBits::kAll < 1u << (32 - kOperationBits));

  std::uint32_t* firsts;  ///< where each position's run begins; becomes DeviceBatch::hashes
  std::uint32_t* order;   ///< becomes DeviceBatch::order
  // Until the kernel has ended:
  std::uint16_t* counts;      ///< operations in each bin, of each block: kMaxBins for each bin
  std::uint32_t* operations;  ///< bin by bin; above kOperationBits, KindBits::OfWithAdds of each
  std::uint64_t* digests;     ///< of those (DigestKey); then of large bins, what each does
  std::uint32_t* ranks;       ///< of those, among the operations on their key; and their place
  // Words that the kernels behind it want to be 0:
  std::uint64_t* clear;
  std::uint32_t clear_words;
};

/// Which operations of a bin are on which key; in shared memory. All threads of a block call all
/// functions.
struct BinTable {
  static constexpr std::uint32_t kPlaceBits = 11;  ///< a bin has half as many operations or fewer,
  static constexpr std::uint32_t kPlaces = 1u << kPlaceBits;  ///< or several on a key
  static constexpr std::uint32_t kPerThread = kPlaces / kGroupThreads;
  static constexpr std::uint64_t kNobody = 0x9B1D3A6F52C8E047ull;  ///< marks a free place
  using Scan = cub::BlockScan<std::uint32_t, kGroupThreads>;

  std::uint64_t digests[kPlaces];
  /// Operations so far; then where they begin. Behind the last place: of keys that found none.
  std::uint32_t counts[kPlaces + 1];
  bool is_shared;  ///< keys of different digests may have the same place
  Scan::TempStorage storage;

  __device__ void Clear() {
    for (std::uint32_t k = threadIdx.x; k < kPlaces; k += kGroupThreads) {
      digests[k] = kNobody;
      counts[k] = 0;
    }
    if (threadIdx.x == 0) {
      counts[kPlaces] = 0;
      is_shared = false;
    }
    __syncthreads();
  }
  /// The place of a digest; kPlaces when there is none left.
  __device__ std::uint32_t PlaceOf(std::uint64_t digest) {
    if (digest == kNobody) {
      digest = ~digest;
      is_shared = true;
    }
    std::uint32_t at =
        static_cast<std::uint32_t>(digest ^ digest >> 32) * 0x9E3779B1u >> (32 - kPlaceBits);
    for (std::uint32_t tries = 0; tries < kPlaces; ++tries) {
      std::uint64_t there = *const_cast<volatile std::uint64_t*>(&digests[at]);
      if (there == kNobody) {
        there = atomicCAS(reinterpret_cast<unsigned long long*>(&digests[at]), kNobody, digest);
      }
      if (there == kNobody || there == digest) return at;
      at = (at + 1) % kPlaces;
    }
    is_shared = true;
    return kPlaces;
  }
  /// Counts operations, in the order of HeldBy.
  /// @param places of the thread's operations; becomes how many each place had before them
  /// @param count operations of the block
  __device__ void Count(std::uint32_t (&places)[kInHand], std::uint32_t count) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t warp = threadIdx.x / 32;
    std::uint32_t same[kInHand];
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      if (HeldBy(k) >= count) places[k] = ~0u;
      same[k] = __match_any_sync(~0u, places[k]);
    }
    for (std::uint32_t w = 0; w * 32 * kInHand < count; ++w) {  // one after the other
      if (warp == w) {
#pragma unroll
        for (std::uint32_t k = 0; k < kInHand; ++k) {
          const bool has_one = places[k] <= kPlaces;
          const std::uint32_t before = has_one ? counts[places[k]] : 0;
          __syncwarp();
          if (has_one && lane == LowestBit(same[k])) {
            counts[places[k]] = before + PopCount(same[k]);
          }
          __syncwarp();  // the next ones may read what other lanes have written
          places[k] = before + PopCount(same[k] & ((1u << lane) - 1));
        }
      }
      __syncthreads();
    }
  }
  /// Which of the operations that a block has in hand is the k-th of this thread: a warp has
  /// neighbours, and so do its lanes each time.
  __device__ static std::uint32_t HeldBy(std::uint32_t k) {
    return threadIdx.x / 32 * 32 * kInHand + k * 32 + threadIdx.x % 32;
  }
  /// Turns counts into where the operations of each place begin.
  __device__ void MakeBegins() {
    std::uint32_t own[kPerThread];
    for (std::uint32_t k = 0; k < kPerThread; ++k) own[k] = counts[threadIdx.x * kPerThread + k];
    std::uint32_t all = 0;
    Scan(storage).ExclusiveSum(own, own, all);
    for (std::uint32_t k = 0; k < kPerThread; ++k) counts[threadIdx.x * kPerThread + k] = own[k];
    if (threadIdx.x == 0) counts[kPlaces] = all;
    __syncthreads();
  }
};

/// How many of a block's operations are in each bin; in shared memory. All threads of a block call
/// all functions.
struct BinCounts {
  static constexpr std::uint32_t kWarps = kGroupThreads / 32;
  using Scan = cub::BlockScan<std::uint32_t, kGroupThreads>;

  std::uint16_t of_warp[kWarps][KeyGroups::kMaxBins];  ///< in a turn; then of those before it
  std::uint32_t of_block[KeyGroups::kMaxBins];         ///< then where the block's own begin
  std::uint32_t of_all[KeyGroups::kMaxBins];
  Scan::TempStorage storage;

  /// Counts an operation of each thread, in the order of threads.
  /// @param bin ~0: the thread has none @return how many the bin had before it
  __device__ std::uint32_t Count(std::uint32_t bin, std::uint32_t bins) {
    static_assert(kGroupTurns * kGroupThreads <= 0xFFFF);
    for (std::uint32_t k = threadIdx.x; k < sizeof(of_warp) / 4; k += kGroupThreads) {
      reinterpret_cast<std::uint32_t*>(of_warp)[k] = 0;
    }
    __syncthreads();
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t same = __match_any_sync(~0u, bin);
    std::uint16_t* const own = of_warp[threadIdx.x / 32];
    if (bin < bins && lane == LowestBit(same))
      own[bin] = static_cast<std::uint16_t>(PopCount(same));
    __syncthreads();
    if (threadIdx.x < bins) {
      std::uint32_t before = of_block[threadIdx.x];
      for (std::uint32_t w = 0; w < kWarps; ++w) {
        const std::uint32_t count = of_warp[w][threadIdx.x];
        of_warp[w][threadIdx.x] = static_cast<std::uint16_t>(before);
        before += count;
      }
      of_block[threadIdx.x] = before;
    }
    __syncthreads();
    const std::uint32_t before = bin < bins ? own[bin] : 0;
    __syncthreads();
    return before + PopCount(same & ((1u << lane) - 1));
  }
  /// Turns the counts into places, when all blocks have counted.
  /// @param counts KeyGroups::counts @param end set to where the block's own bin ends
  /// @return where it begins
  __device__ std::uint32_t MakeBegins(const std::uint16_t* counts, std::uint32_t* end) {
    constexpr std::uint32_t kOfWarp = KeyGroups::kMaxBins / kWarps;
    constexpr std::uint32_t kOfLane = sizeof(uint4) / sizeof(std::uint16_t);
    static_assert(KeyGroups::kMaxBins == 32 * kOfLane);
    const std::uint32_t bins = gridDim.x;
    const std::uint32_t lane = threadIdx.x % 32;
    uint4 counted[kOfWarp];  // all in flight at once
#pragma unroll
    for (std::uint32_t k = 0; k < kOfWarp; ++k) {
      const std::uint32_t bin = k * kWarps + threadIdx.x / 32;
      counted[k] = uint4{};
      if (bin >= bins || lane * kOfLane >= bins) continue;
      counted[k] =
          __ldcg(reinterpret_cast<const uint4*>(counts + bin * KeyGroups::kMaxBins) + lane);
    }
    const uint4 of_blocks = FirstHalves(bins, lane * kOfLane);
    const uint4 of_blocks_before = FirstHalves(blockIdx.x, lane * kOfLane);
#pragma unroll
    for (std::uint32_t k = 0; k < kOfWarp; ++k) {
      const std::uint32_t bin = k * kWarps + threadIdx.x / 32;
      const std::uint32_t before =
          __reduce_add_sync(~0u, SumOfHalves(counted[k], of_blocks_before));
      const std::uint32_t all = __reduce_add_sync(~0u, SumOfHalves(counted[k], of_blocks));
      if (lane == 0 && bin < bins) {
        of_block[bin] = before;
        of_all[bin] = all;
      }
    }
    __syncthreads();
    std::uint32_t begin = threadIdx.x < bins ? of_all[threadIdx.x] : 0;
    Scan(storage).ExclusiveSum(begin, begin);
    if (threadIdx.x < bins) of_block[threadIdx.x] += begin;
    __syncthreads();
    if (threadIdx.x == blockIdx.x) {
      *end = begin + of_all[threadIdx.x];
      of_all[0] = begin;
    }
    __syncthreads();
    return of_all[0];
  }

 private:
  /// Masks for eight halves of words, which have numbers from `first` on: those below `end`.
  __device__ static uint4 FirstHalves(std::uint32_t end, std::uint32_t first) {
    const auto word = [&](std::uint32_t k) {
      const std::uint32_t number = first + 2 * k;
      return (number < end ? 0xFFFFu : 0) | (number + 1 < end ? 0xFFFF0000u : 0);
    };
    return uint4{word(0), word(1), word(2), word(3)};
  }
  /// (At most kGroupTurns * kGroupThreads each, so that a half holds the sum of four.)
  __device__ static std::uint32_t SumOfHalves(const uint4& halves, const uint4& mask) {
    static_assert(4 * kGroupTurns * kGroupThreads <= 0xFFFF);
    const std::uint32_t both =
        (halves.x & mask.x) + (halves.y & mask.y) + (halves.z & mask.z) + (halves.w & mask.w);
    return (both & 0xFFFF) + (both >> 16);
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_BINS_CUH_
