#ifndef GPM_ENGINE_CUDA_KERNELS_COLLIDED_RUNS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_COLLIDED_RUNS_CUH_

#include <cub/block/block_scan.cuh>

#include "engine/cuda/kernels/group_by_key.cuh"
#include "engine/cuda/kernels/other_keys.cuh"

namespace gpm {

/// A large batch is sorted by 32 bits of its keys' hashes, so that a run of equal ones may be of
/// several keys: of a million keys some two hundred are in such a run. It would be carried out one
/// by one, a hot key's thousands of operations, too, at 5 to 10 us each. So runs of more than a few
/// operations are parted by key, and combined like all others.

/// What the effects before come to, for a scan of those that a block has in hand.
struct EffectsSoFar {
  KeyRunEffect so_far{kUnchanged, kUnchanged, kNoPosition, kNoPosition};

  __device__ KeyRunEffect operator()(const KeyRunEffect& of_turn) {
    const KeyRunEffect before = so_far;
    so_far = ComposeEffects{}(before, of_turn);
    return before;
  }
};

/// Where operations on two keys with equal hashes meet in the order.
struct KeyMeeting {
  std::uint32_t position;  ///< of the second one
  std::uint32_t hash;
};

/// The order of a batch, and what is needed to part runs of it; arrays in GPU memory.
struct CollidedRuns {
  std::uint32_t* hashes;   ///< DeviceBatch::hashes
  std::uint32_t* order;    ///< DeviceBatch::order
  std::uint32_t* scratch;  ///< as large
  KeyMeeting* meetings;    ///< BatchSums::meetings of them, as far as there is room
  std::uint32_t room;

  /// Of one position maybe several times.
  __device__ void Note(BatchSums* sums, std::uint32_t p) const {
    const std::uint64_t at = AtomicAdd(&sums->meetings, 1);
    if (at < room) meetings[at] = KeyMeeting{p, hashes[p]};
  }
};

inline constexpr unsigned kPartBlocks = 16;
inline constexpr unsigned kPartThreads = 256;
/// A run of up to so many operations is carried out one by one about as soon as it would be parted.
inline constexpr std::uint32_t kFewOfRun = 4;
/// Runs that a block parts, at most, and keys that it takes out of a run: what comes beyond stays
/// as it is, or one run.
inline constexpr std::uint32_t kMostRunsOfBlock = 1024;
inline constexpr std::uint32_t kMostParts = 8;

/// What a block parts a run with; in shared memory. All threads call all functions.
struct RunParter {
  using Ranks = cub::BlockScan<std::uint32_t, kPartThreads>;
  using EffectScan = cub::BlockScan<KeyRunEffect, kPartThreads, cub::BLOCK_SCAN_WARP_SCANS>;

  union {
    Ranks::TempStorage ranks;
    EffectScan::TempStorage effects;
  };

  /// @return the position behind the run that begins at `first`
  static __device__ std::uint32_t EndOf(const CollidedRuns& runs, std::uint32_t first,
                                        std::uint32_t count) {
    for (std::uint32_t at = first + 1;; at += kPartThreads) {
      const std::uint32_t p = at + threadIdx.x;
      const bool within = p < count && runs.hashes[p] == runs.hashes[first];
      const auto more = static_cast<std::uint32_t>(__syncthreads_count(within));
      if (more < kPartThreads) return at + more;
    }
  }

  /// Puts the operations of [begin, end) on the key of the first one in front of the others, batch
  /// order kept among both. @return where the others begin
  __device__ std::uint32_t PutFirst(const DeviceBatch& batch, std::uint32_t key_words,
                                    const CollidedRuns& runs, std::uint32_t begin,
                                    std::uint32_t end) {
    const std::uint32_t first = runs.order[begin];
    const auto is_same = [&](std::uint32_t p) {
      return p < end && !HaveOtherKeys(batch, key_words, first, runs.order[p]);
    };
    std::uint32_t same = 0;
    for (std::uint32_t at = begin; at < end; at += kPartThreads) {
      same += static_cast<std::uint32_t>(__syncthreads_count(is_same(at + threadIdx.x)));
    }
    if (same == end - begin) return end;
    std::uint32_t placed = 0;  // of the same
    for (std::uint32_t at = begin; at < end; at += kPartThreads) {
      const std::uint32_t p = at + threadIdx.x;
      const bool own = is_same(p);
      std::uint32_t before = 0;
      std::uint32_t all = 0;
      Ranks(ranks).ExclusiveSum(own ? 1u : 0u, before, all);
      const std::uint32_t others = p - begin - placed - before;
      if (p < end) {
        runs.scratch[own ? begin + placed + before : begin + same + others] = runs.order[p];
      }
      placed += all;
      __syncthreads();
    }
    for (std::uint32_t p = begin + threadIdx.x; p < end; p += kPartThreads) {
      runs.order[p] = runs.scratch[p];
    }
    __syncthreads();
    return begin + same;
  }

  /// Makes a run one for each of its keys: in the order, by hashes between its own and the next
  /// one's, and in the effects.
  __device__ void Part(const DeviceBatch& batch, std::uint32_t key_words, const CollidedRuns& runs,
                       std::uint32_t first) {
    const std::uint32_t end = EndOf(runs, first, batch.count);
    std::uint32_t hash = runs.hashes[first];
    const std::uint32_t most = end < batch.count ? runs.hashes[end] - 1 : ~0u;
    for (std::uint32_t begin = first, part = 0; part < kMostParts && hash != most; ++part) {
      const std::uint32_t others = PutFirst(batch, key_words, runs, begin, end);
      if (others == end) break;
      ++hash;
      for (std::uint32_t p = others + threadIdx.x; p < end; p += kPartThreads) {
        runs.hashes[p] = hash;
      }
      __syncthreads();
      begin = others;
    }
    EffectsSoFar so_far;
    for (std::uint32_t at = first; at < end; at += kPartThreads) {
      const std::uint32_t p = at + threadIdx.x;
      KeyRunEffect effect{kUnchanged, kUnchanged, kNoPosition, kNoPosition};
      if (p < end) {
        const Op op = batch.KindOf(runs.order[p]);
        const bool begins = p == first || runs.hashes[p - 1] != runs.hashes[p];
        effect = EffectOf(op, batch.HasValueFor(op), p, begins,
                          !begins && IsOnOtherKey(batch, key_words, p));
      }
      EffectScan(effects).InclusiveScan(effect, effect, ComposeEffects{}, so_far);
      if (p < end) batch.effects[p] = effect;
      __syncthreads();
    }
  }
};

/// Parts the runs in which keys have met, but for short ones. Each hash belongs to one block. Other
/// blocks may read a run's hashes while it is parted: the first one stays, and none ever equals
/// that of another run.
static __global__ void __launch_bounds__(kPartThreads)
    PartCollidedRuns(const __grid_constant__ TableContext context,
                     const __grid_constant__ DeviceBatch batch,
                     const __grid_constant__ CollidedRuns runs) {
  __shared__ RunParter parter;
  __shared__ std::uint32_t firsts[kMostRunsOfBlock];
  __shared__ std::uint32_t found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const std::uint64_t meetings = min(batch.sums->meetings, std::uint64_t{runs.room});
  for (std::uint64_t k = threadIdx.x; k < meetings; k += kPartThreads) {
    const KeyMeeting meeting = runs.meetings[k];
    if (meeting.hash % kPartBlocks != blockIdx.x) continue;
    const std::uint32_t first = batch.effects[meeting.position].first;
    const std::uint32_t beyond = first + kFewOfRun;
    if (beyond >= batch.count || runs.hashes[beyond] != meeting.hash) continue;
    std::uint32_t* const next =
        &batch.records[first].next;  // which is not `first` once it is noted
    if (*next != first || atomicCAS(next, first, ~first) != first) continue;
    const std::uint32_t own = atomicAdd(&found, 1u);
    if (own < kMostRunsOfBlock) {
      firsts[own] = first;
    } else {
      *next = first;
    }
  }
  __syncthreads();
  for (std::uint32_t k = 0; k < min(found, kMostRunsOfBlock); ++k) {
    parter.Part(batch, context.table.key_words, runs, firsts[k]);
    if (threadIdx.x == 0) batch.records[firsts[k]].next = firsts[k];
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_COLLIDED_RUNS_CUH_
