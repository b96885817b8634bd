#ifndef GPM_ENGINE_CUDA_KERNELS_GROUP_BY_KEY_CUH_
#define GPM_ENGINE_CUDA_KERNELS_GROUP_BY_KEY_CUH_

#include <cub/warp/warp_scan.cuh>

#include "engine/cuda/kernels/bins.cuh"
#include "engine/cuda/kernels/other_keys.cuh"
#include "engine/cuda/kernels/small_key_runs.cuh"
#include "engine/cuda/sync/barriers.cuh"

namespace gpm {

/// How the key runs of batches of middle size are found: one kernel brings the operations on each
/// key together, batch order kept, and composes their effects.

/// Whether the operation at a position is on another key than the one before it.
__device__ inline bool IsOnOtherKey(const DeviceBatch& batch, std::uint32_t key_words,
                                    std::uint32_t p) {
  return HaveOtherKeys(batch, key_words, batch.order[p], batch.order[p - 1]);
}

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
  constexpr std::uint32_t kWarps = kGroupThreads / 32;
  using EffectScan = cub::WarpScan<KeyRunEffect, kWarps>;
  __shared__ union {
    BinCounts counts;
    BinTable table;
    struct {
      KeyRunEffect of_warps[kWarps];
      EffectScan::TempStorage scan;
    } effects;
  } shared;
  __shared__ std::uint8_t kinds_here[kInHands];
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
      const Op op = batch.KindOf(i);
      kind[turn] = KindBits::OfWithAdds(op, batch.HasValueFor(op));
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
  // For each position twice KindBits::OfWithAdds, and one more where a run begins. (Nobody wants
  // the bin's digests any more.)
  std::uint8_t* const kinds =
      is_one_hand ? kinds_here : reinterpret_cast<std::uint8_t*>(groups.digests + begin);
  static_assert(2 * KindBits::kAll + 1 <= 0xFF);
  const auto put = [&](std::uint32_t of_kind, std::uint32_t placed, std::uint32_t rank_in_run) {
    const std::uint32_t run = begin + table.counts[placed];
    const std::uint32_t p = run + rank_in_run;
    groups.order[p] = of_kind & ((1u << KeyGroups::kOperationBits) - 1);
    groups.firsts[p] = run;
    const std::uint32_t bits = of_kind >> KeyGroups::kOperationBits;
    kinds[p - begin] = static_cast<std::uint8_t>(2 * bits + (rank_in_run == 0 ? 1 : 0));
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
  const bool compares = words > 1 || table.is_shared;
  __syncthreads();
  const std::uint32_t count = end - begin;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t share_of_warp = (count + kGroupThreads - 1) / kGroupThreads * 32;
  const std::uint32_t first_of_warp = begin + warp * share_of_warp;
  const std::uint32_t end_of_warp = min(first_of_warp + share_of_warp, end);
  RunSoFar so_far;
  for (std::uint32_t at = first_of_warp; at < end_of_warp; at += 32) {
    const std::uint32_t p = at + lane;
    LaneOperation own;
    if (p < end_of_warp) {
      const std::uint32_t of_it = kinds[p - begin];
      own.bits = of_it / 2;
      own.begins = of_it % 2 != 0;
      own.other_key = compares && !own.begins && IsOnOtherKey(batch, words, p);
    }
    const KeyRunEffect effect = EffectUpTo(own, at, &so_far);
    if (p < end_of_warp) batch.effects[p] = effect;
  }
  // Where a warp's share begins, a run may go on: there the effect of what was before is missing.
  // (The bin's first operation begins a run: the scan's initial value, which would not be neutral,
  // is composed with nothing that goes on.)
  if (lane == 0) shared.effects.of_warps[warp] = so_far.effect;
  __syncthreads();
  if (threadIdx.x < kWarps) {
    const KeyRunEffect own = shared.effects.of_warps[threadIdx.x];
    KeyRunEffect before;
    EffectScan(shared.effects.scan).ExclusiveScan(own, before, RunSoFar{}.effect, ComposeEffects{});
    shared.effects.of_warps[threadIdx.x] = before;
  }
  __syncthreads();
  const KeyRunEffect before_warp = shared.effects.of_warps[warp];
  constexpr std::uint32_t kAtOnce = 4;
  bool goes_on = warp > 0;
  for (std::uint32_t p = first_of_warp + lane; __any_sync(~0u, goes_on && p < end_of_warp);
       p += 32 * kAtOnce) {
    KeyRunEffect effects[kAtOnce];
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      if (p + 32 * k < end_of_warp) effects[k] = batch.effects[p + 32 * k];
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      goes_on = goes_on && p + 32 * k < end_of_warp && effects[k].first == kNoPosition;
      if (goes_on) batch.effects[p + 32 * k] = ComposeEffects{}(before_warp, effects[k]);
    }
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_GROUP_BY_KEY_CUH_
