#ifndef GPM_ENGINE_CUDA_KERNELS_GROUP_BY_KEY_CUH_
#define GPM_ENGINE_CUDA_KERNELS_GROUP_BY_KEY_CUH_

#include <cub/block/block_scan.cuh>

#include "engine/cuda/context.cuh"
#include "engine/cuda/kernels/small_key_runs.cuh"
#include "engine/cuda/sync/barriers.cuh"

namespace gpm {

/// How the key runs of batches of middle size are found: one kernel brings the operations on each
/// key together, batch order kept, and composes their effects.

inline constexpr unsigned kGroupThreads = 512;
/// Operations that a block puts into bins: so many for each thread, in turns.
inline constexpr std::uint32_t kGroupTurns = 2;
/// Operations of a bin that each thread has in hand at once.
inline constexpr std::uint32_t kInHand = 4;
inline constexpr std::uint32_t kInHands = kInHand * kGroupThreads;  ///< of a block

/// Whether the operation at a position is on another key than the one before it.
__device__ inline bool IsOnOtherKey(const DeviceBatch& batch, std::uint32_t key_words,
                                    std::uint32_t p) {
  const std::uint64_t* key = batch.KeyOf(batch.order[p], key_words);
  const std::uint64_t* before = batch.KeyOf(batch.order[p - 1], key_words);
  bool differs = false;
  for (std::uint32_t w = 0; w < key_words; ++w) differs |= key[w] != before[w];
  return differs;
}

/// Where GroupByKey works. A trivially copyable view of GPU memory.
struct KeyGroups {
  static constexpr std::uint32_t kMaxBins = 256;  ///< and blocks: each has a bin
  static constexpr std::uint32_t kOperationBits = 18;
  static_assert(kMaxBins * kGroupTurns * kGroupThreads == 1u << kOperationBits);
  static_assert(2 * kOpKinds + 1 <= 0xFF);

  std::uint32_t* firsts;  ///< where each position's run begins; becomes DeviceBatch::hashes
  std::uint32_t* order;   ///< becomes DeviceBatch::order
  // Until the kernel has ended:
  std::uint16_t* counts;      ///< operations in each bin, of each block: kMaxBins for each bin
  std::uint32_t* operations;  ///< bin by bin; above kOperationBits, of which kind each is
  std::uint64_t* digests;     ///< of those (DigestKey)
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
          const std::uint32_t leader = LowestBit(same[k]);
          std::uint32_t before = 0;
          if (places[k] <= kPlaces && lane == leader) {
            before = counts[places[k]];
            counts[places[k]] = before + PopCount(same[k]);
          }
          __syncwarp();  // the next ones may read what other lanes have written
          before = __shfl_sync(~0u, before, leader);
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

/// What the effects before come to, for a scan of those that a block has in hand.
struct EffectsSoFar {
  KeyRunEffect so_far{kUnchanged, kUnchanged, kNoPosition, kNoPosition};

  __device__ KeyRunEffect operator()(const KeyRunEffect& of_turn) {
    const KeyRunEffect before = so_far;
    so_far = ComposeEffects{}(before, of_turn);
    return before;
  }
};

/// Brings the operations on each key together, in batch order, and composes their effects; makes
/// all key runs pending. Bins are ranges of hashes, thus of addresses in every level. The blocks
/// put the batch into bins, and meet; then each brings the operations of one bin together, by a
/// hash table of their keys' digests. Operations whose keys have no room there become one run of
/// several keys. All blocks begin at once (BeginsTogether); each looks at kGroupTurns *
/// kGroupThreads operations at most.
static __global__ void __launch_bounds__(kGroupThreads + kBesideTogether, 1)
    GroupByKey(const __grid_constant__ TableContext context,
               const __grid_constant__ DeviceBatch batch,
               const __grid_constant__ KeyGroups groups) {
  using EffectScan = cub::BlockScan<KeyRunEffect, kGroupThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ union {
    BinCounts counts;
    BinTable table;
    EffectScan::TempStorage scan;
  } shared;
  __shared__ std::uint8_t kinds[kInHands];  ///< twice the kind; one more where a run begins
  __shared__ std::uint32_t end;
  __shared__ std::uint32_t unused;
  LetNextKernelBegin();
  const GridBarrier barrier{batch.sums->blocks_arrived};
  const std::uint32_t bins = gridDim.x;
  for (std::uint32_t k = blockIdx.x * kGroupThreads + threadIdx.x; k < groups.clear_words;
       k += bins * kGroupThreads) {
    groups.clear[k] = 0;
  }
  const std::uint32_t words = context.table.key_words;
  const std::uint32_t share = (batch.count + bins - 1) / bins;
  const std::uint32_t first = min(blockIdx.x * share, batch.count);
  const std::uint32_t last = min(first + share, batch.count);
  std::uint64_t digest[kGroupTurns];
  std::uint32_t bin[kGroupTurns];
  std::uint32_t kind[kGroupTurns];
  std::uint32_t rank[kGroupTurns];
  if (threadIdx.x < bins) shared.counts.of_block[threadIdx.x] = 0;
#pragma unroll
  for (std::uint32_t turn = 0; turn < kGroupTurns; ++turn) {
    const std::uint32_t i = first + turn * kGroupThreads + threadIdx.x;
    bin[turn] = ~0u;
    if (i < last) {
      const std::uint64_t* const key = batch.KeyOf(i, words);
      const KeyHash hash = HashKey(context.table.hash_seed, key, words);
      bin[turn] = __umulhi(static_cast<std::uint32_t>(hash.h >> 32), bins);
      // (Any byte may come as a kind; of those that are none one is as good as another.)
      kind[turn] = min(static_cast<std::uint32_t>(batch.KindOf(i)), std::uint32_t{kOpKinds});
      digest[turn] = DigestKey(context.table.hash_seed, key, words);
      batch.records[i] = KeyRunRecord{0, 0, KeyRunStatus::kPending, i};
    }
    if (turn == 0 || turn * kGroupThreads < share) {
      rank[turn] = shared.counts.Count(bin[turn], bins);
    }
  }
  if (threadIdx.x < bins) {
    groups.counts[threadIdx.x * KeyGroups::kMaxBins + blockIdx.x] =
        static_cast<std::uint16_t>(shared.counts.of_block[threadIdx.x]);
  }
  barrier.ArriveAndWait(1, 0, &unused);
  const std::uint32_t begin = shared.counts.MakeBegins(groups.counts, &end);
#pragma unroll
  for (std::uint32_t turn = 0; turn < kGroupTurns; ++turn) {
    if (bin[turn] >= bins) continue;
    const std::uint32_t at = shared.counts.of_block[bin[turn]] + rank[turn];
    groups.digests[at] = digest[turn];
    const std::uint32_t i = first + turn * kGroupThreads + threadIdx.x;
    groups.operations[at] = kind[turn] << KeyGroups::kOperationBits | i;
  }
  __syncthreads();
  if (threadIdx.x == 0) barrier.Arrive(0);
  BinTable& table = shared.table;
  table.Clear();
  if (threadIdx.x == 0) barrier.Wait(2);
  __syncthreads();

  constexpr std::uint32_t kPlaceMask = 2 * BinTable::kPlaces - 1;
  constexpr std::uint32_t kRankShift = BinTable::kPlaceBits + 1;
  const bool is_one_hand = end - begin <= kInHands;  // mostly
  std::uint32_t operation[kInHand];
  std::uint32_t place[kInHand];
  std::uint32_t before[kInHand];
  for (std::uint32_t in_hand = begin; in_hand < end; in_hand += kInHands) {
    std::uint64_t of[kInHand];
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      const std::uint32_t own = in_hand + BinTable::HeldBy(k);
      of[k] = own < end ? __ldcg(&groups.digests[own]) : 0;
      operation[k] = own < end ? __ldcg(&groups.operations[own]) : 0;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      const bool has_one = in_hand + BinTable::HeldBy(k) < end;
      before[k] = place[k] = has_one ? table.PlaceOf(of[k]) : 0;
    }
    table.Count(before, min(end - in_hand, kInHands));
    if (is_one_hand) break;
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      const std::uint32_t own = in_hand + BinTable::HeldBy(k);
      if (own < end) groups.ranks[own] = before[k] << kRankShift | place[k];
    }
  }
  table.MakeBegins();
  const bool compares = words > 1 || table.is_shared;
  const auto put = [&](std::uint32_t of_kind, std::uint32_t placed, std::uint32_t rank_in_run) {
    const std::uint32_t run = begin + table.counts[placed];
    const std::uint32_t p = run + rank_in_run;
    groups.order[p] = of_kind & ((1u << KeyGroups::kOperationBits) - 1);
    groups.firsts[p] = run;
    if (!is_one_hand) return;
    const std::uint32_t kind = of_kind >> KeyGroups::kOperationBits;
    kinds[p - begin] = static_cast<std::uint8_t>(2 * kind + (rank_in_run == 0 ? 1 : 0));
  };
  if (is_one_hand) {
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      if (begin + BinTable::HeldBy(k) < end) put(operation[k], place[k], before[k]);
    }
  } else {
#pragma unroll kInHand
    for (std::uint32_t own = begin + threadIdx.x; own < end; own += kGroupThreads) {
      const std::uint32_t placed = groups.ranks[own];
      put(__ldcg(&groups.operations[own]), placed & kPlaceMask, placed >> kRankShift);
    }
  }
  __syncthreads();
  EffectsSoFar so_far;
  for (std::uint32_t in_hand = begin; in_hand < end; in_hand += kInHands) {
    const std::uint32_t own = in_hand + threadIdx.x * kInHand;
    KeyRunEffect effects[kInHand];
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      const std::uint32_t p = own + k;
      effects[k] = KeyRunEffect{kUnchanged, kUnchanged, kNoPosition, kNoPosition};
      if (p >= end) continue;
      const std::uint32_t kind = is_one_hand ? kinds[p - begin] : 0;
      const Op op = is_one_hand ? static_cast<Op>(kind / 2) : batch.KindOf(batch.order[p]);
      const bool begins_run = is_one_hand ? kind % 2 != 0 : batch.hashes[p] == p;
      effects[k] = EffectOf(op, batch.HasValueFor(op), p, begins_run,
                            compares && !begins_run && IsOnOtherKey(batch, words, p));
    }
    EffectScan(shared.scan).InclusiveScan(effects, effects, ComposeEffects{}, so_far);
#pragma unroll
    for (std::uint32_t k = 0; k < kInHand; ++k) {
      if (own + k < end) batch.effects[own + k] = effects[k];
    }
    __syncthreads();
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_GROUP_BY_KEY_CUH_
