#ifndef GPM_ENGINE_CUDA_SEARCH_ASKING_KERNELS_CUH_
#define GPM_ENGINE_CUDA_SEARCH_ASKING_KERNELS_CUH_

#include <cooperative_groups.h>

#include <cub/block/block_reduce.cuh>

#include "engine/cuda/context.cuh"
#include "engine/cuda/kernels/grid_stride.cuh"
#include "engine/cuda/search/asking.h"
#include "engine/cuda/sync/barriers.cuh"
#include "engine/search_tiers.h"

namespace gpm {

/// The kernels that ask tiers: grid-stride loops of one thread a thing. @tparam kPairs whether some
/// conditions are of a pair (TierQueries::pairs)

inline constexpr std::uint32_t kNoRow = ~std::uint32_t{0};

/// Where rows go.
struct RowsOut {
  std::uint32_t* rows = nullptr;  ///< if they are wanted themselves
  std::byte* keys = nullptr;      ///< if keys are
  std::uint64_t room = 0;         ///< keys that there is room for
  std::uint32_t key_size = 8;

  __device__ void Put(const SearchTiers& tiers, std::uint64_t at, std::uint32_t row) const {
    if (rows != nullptr) rows[at] = row;
    if (keys == nullptr || at >= room) return;
    const std::uint64_t* const key = tiers.KeyOf(row);
    std::byte* const to = keys + at * key_size;
    if (key_size % 8 == 0 && reinterpret_cast<std::uintptr_t>(keys) % 8 == 0) {
      for (std::uint32_t w = 0; w < key_size / 8; ++w) {
        reinterpret_cast<std::uint64_t*>(to)[w] = OrderedWord(key[w]);
      }
      return;
    }
    for (std::uint32_t b = 0; b < key_size; ++b) {
      to[b] = static_cast<std::byte>(key[b / 8] >> (56 - 8 * (b % 8)));
    }
  }
};

/// Finds out what each query looks at, and looks, where that is one row. All threads of a block
/// stay together.
/// @param single the row, where there is one, and it matches; else kNoRow
/// @param counts candidates, or, where there was one, whether it matches
template <bool kPairs>
__global__ void __launch_bounds__(kStrideThreads)
    FindCandidates(const __grid_constant__ SearchTiers tiers,
                   const __grid_constant__ TierQueries queries, std::uint64_t count,
                   TierCandidates* candidates, std::uint32_t* single, std::uint64_t* counts,
                   SearchSums* sums) {
  using Reduce = cub::BlockReduce<std::uint64_t, kStrideThreads>;
  __shared__ typename Reduce::TempStorage storage;
  std::uint64_t total = 0;
  bool many = false;
  bool unordered = false;
  for (std::uint64_t q = FirstOfGrid(); q < count; q += GridStep()) {
    const TierCandidates its = tiers.CandidatesOf<kPairs>(queries, q);
    std::uint64_t n = its.count();
    std::uint32_t row = kNoRow;
    if (n == 1) {
      row = tiers.CandidateAt(its, 0);
      if (!tiers.IsMatch(queries, q, row)) {
        row = kNoRow;
        n = 0;
      }
    }
    candidates[q] = its;
    single[q] = row;
    counts[q] = n;
    total += n;
    many |= n > 1;
    unordered |= n > 1 && (!its.ordered || (its.base_count > 0 && its.delta_count > 0));
  }
  total = Reduce(storage).Sum(total);
  many = __syncthreads_or(many) != 0;
  unordered = __syncthreads_or(unordered) != 0;
  if (threadIdx.x != 0) return;
  if (total > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&sums->candidates),
              static_cast<unsigned long long>(total));
  }
  if (many) sums->many = 1;
  if (unordered) sums->unordered = 1;
}

/// The answer, if no query has several candidates. @param begins sums of counts up to each query
__global__ void AnswerSingles(const __grid_constant__ SearchTiers tiers, std::uint64_t count,
                              const std::uint32_t* single, const std::uint64_t* begins,
                              const SearchSums* sums, std::uint64_t* counts, std::uint64_t* offsets,
                              const __grid_constant__ RowsOut out) {
  if (sums->many != 0) return;
  for (std::uint64_t q = FirstOfGrid(); q < count; q += GridStep()) {
    const std::uint32_t row = single[q];
    counts[q] = row == kNoRow ? 0 : 1;
    if (offsets == nullptr) continue;
    if (q == 0) offsets[0] = 0;
    offsets[q + 1] = begins[q + 1];
    if (row != kNoRow) out.Put(tiers, begins[q], row);
  }
}

/// Queries that a block of AnswerFew answers: a tile each.
inline constexpr std::uint32_t kFewOfBlock = kStrideThreads / kTileLanes;
static_assert(kFewOfBlock == 32);

/// The lanes of a tile, which search together.
template <class Tile>
struct TileLanes {
  static constexpr std::uint32_t kLanes = kTileLanes;
  const Tile& tile;

  template <class Test>
  __device__ std::uint32_t Count(const Test& test) const {
    return static_cast<std::uint32_t>(__popc(tile.ballot(test(tile.thread_rank()))));
  }
};

/// Where AnswerFew puts what FindCandidates and the sums of its counts would, and its answers.
struct FewPlaces {
  TierCandidates* candidates;
  std::uint32_t* single;
  std::uint64_t* begins;
  std::uint64_t* counts;
  std::uint64_t* offsets;
  FewTold* told;
  SearchSums* sums;  ///< in pinned memory: set at the end
};

/// FindCandidates, the sums of its counts, and AnswerSingles in one, for few queries: their time is
/// that of steps that wait for each other.
template <bool kPairs>
__global__ void __launch_bounds__(kStrideThreads)
    AnswerFew(const __grid_constant__ SearchTiers tiers,
              const __grid_constant__ TierQueries queries, std::uint32_t count,
              const __grid_constant__ FewPlaces places, const __grid_constant__ RowsOut out) {
  __shared__ std::uint64_t sums[kFewOfBlock];  // up to each query of the block
  __shared__ std::uint64_t before;             // those of the blocks before
  __shared__ std::uint64_t total;
  __shared__ bool is_last;
  __shared__ std::uint32_t nothing;
  const auto tile =
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block());
  const std::uint32_t own = threadIdx.x / kTileLanes;
  const std::uint32_t q = blockIdx.x * kFewOfBlock + own;
  const bool leads = tile.thread_rank() == 0;
  std::uint64_t n = 0;
  std::uint32_t row = kNoRow;
  bool unordered = false;
  if (q < count) {
    const TierCandidates its =
        tiers.CandidatesOf<kPairs>(queries, q, TileLanes<decltype(tile)>{tile});
    n = its.count();
    if (n == 1) {
      row = tiers.CandidateAt(its, 0);
      if (!tiers.IsMatch(queries, q, row)) {
        row = kNoRow;
        n = 0;
      }
    }
    unordered = n > 1 && (!its.ordered || (its.base_count > 0 && its.delta_count > 0));
    if (leads) {
      places.candidates[q] = its;
      places.single[q] = row;
    }
  }
  if (leads) sums[own] = n;
  const bool many = __syncthreads_or(n > 1) != 0;
  unordered = __syncthreads_or(unordered) != 0;
  if (threadIdx.x < 32) {
    std::uint64_t sum = sums[threadIdx.x];
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const std::uint64_t other = __shfl_up_sync(~0u, sum, distance);
      if (threadIdx.x >= distance) sum += other;
    }
    sums[threadIdx.x] = sum;
    if (threadIdx.x == 31) places.told->totals[blockIdx.x] = sum;
  }
  if (threadIdx.x == 0) {
    if (many) atomicExch(&places.told->many, 1u);
    if (unordered) atomicExch(&places.told->unordered, 1u);
  }
  const GridBarrier barrier{&places.told->arrived};
  barrier.ArriveAndWait(1, 0, &nothing);
  if (threadIdx.x < 32) {
    std::uint64_t less = 0;
    std::uint64_t all = 0;
    for (std::uint32_t b = threadIdx.x; b < gridDim.x; b += 32) {
      const std::uint64_t its = __ldcg(&places.told->totals[b]);
      all += its;
      if (b < blockIdx.x) less += its;
    }
    for (unsigned distance = 16; distance > 0; distance /= 2) {
      less += __shfl_xor_sync(~0u, less, distance);
      all += __shfl_xor_sync(~0u, all, distance);
    }
    if (threadIdx.x == 0) {
      before = less;
      total = all;
    }
  }
  const bool any_has_many = AtomicLoad32(&places.told->many) != 0;
  __syncthreads();
  if (leads && q < count) {
    const std::uint64_t end = before + sums[own];
    if (q == 0) places.begins[0] = 0;
    places.begins[q + 1] = end;
    if (!any_has_many) {
      places.counts[q] = n;
      if (places.offsets != nullptr) {
        if (q == 0) places.offsets[0] = 0;
        places.offsets[q + 1] = end;
        if (row != kNoRow) out.Put(tiers, end - 1, row);
      }
    }
  }
  if (!IsLastBlock(&places.told->done, &is_last)) return;
  if (threadIdx.x != 0) return;
  *places.sums = SearchSums{total, places.told->many, places.told->unordered, 0, 0, 0};
  places.told->arrived = 0;
  places.told->done = places.told->many = places.told->unordered = 0;
}

/// A group of queries whose candidates are looked at together.
struct QueryGroup {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  const std::uint64_t* begins = nullptr;  ///< of all queries, and one more: their candidates
  const TierCandidates* candidates = nullptr;
  const std::uint32_t* single = nullptr;

  /// The query of a candidate, or of a row, by what of `sums` it is in. @return from 0 on
  static __device__ std::uint64_t At(const std::uint64_t* sums, std::uint64_t queries,
                                     std::uint64_t at) {
    return PartitionPoint(static_cast<std::uint32_t>(queries),
                          [&](std::uint32_t i) { return sums[i + 1] <= at; });
  }
  /// @return the row of a candidate, if it matches, else kNoRow. @param q set to its query, from 0
  __device__ std::uint32_t Look(const SearchTiers& tiers, const TierQueries& queries,
                                std::uint64_t candidate, std::uint64_t* q) const {
    *q = At(begins + first, count, candidate);
    const std::uint64_t query = first + *q;
    if (single[query] != kNoRow) return single[query];
    const std::uint32_t row = tiers.CandidateAt(candidates[query], candidate - begins[query]);
    return tiers.IsMatch(queries, query, row) ? row : kNoRow;
  }
};

/// Counts the matches of each query of a group. @param counts 0 at first
__global__ void CountMatches(const __grid_constant__ SearchTiers tiers,
                             const __grid_constant__ TierQueries queries,
                             const __grid_constant__ QueryGroup group, std::uint64_t first,
                             std::uint64_t candidates, std::uint64_t* counts) {
  for (std::uint64_t i = FirstOfGrid(); i < candidates; i += GridStep()) {
    std::uint64_t q = 0;
    if (group.Look(tiers, queries, first + i, &q) == kNoRow) continue;
    // Neighbours are mostly of one query: one of them counts for those that are.
    namespace cg = cooperative_groups;
    const auto same = cg::labeled_partition(cg::coalesced_threads(), static_cast<unsigned>(q));
    if (same.thread_rank() == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&counts[group.first + q]),
                static_cast<unsigned long long>(same.size()));
    }
  }
}

/// Takes a sample of all queries of an answer, once their matches are counted. A thread for each
/// condition. @param candidates in all @param sample in pinned memory
__global__ void SampleQuery(const __grid_constant__ SearchTiers tiers,
                            const __grid_constant__ TierQueries queries,
                            const __grid_constant__ QueryGroup all, std::uint64_t candidates,
                            const std::uint64_t* counts, QuerySample* sample) {
  const std::uint64_t q = QueryGroup::At(all.begins, all.count, candidates / 2);
  if (threadIdx.x == 0) {
    sample->candidates = all.begins[q + 1] - all.begins[q];
    sample->matches = counts[q];
  }
  if (threadIdx.x >= queries.conditions) return;
  const std::uint64_t* const bounds = queries.BoundsOf(q) + 2 * threadIdx.x;
  sample->bounds[2 * threadIdx.x] = bounds[0];
  sample->bounds[2 * threadIdx.x + 1] = bounds[1];
  sample->rows[threadIdx.x] =
      bounds[0] > bounds[1] ? 0 : tiers.Meeting(queries.attributes[threadIdx.x], bounds).count();
}

/// A match as a number to sort by: the query, from 0 on, and the row's place.
/// @param flags whether each candidate is one
__global__ void LookAtCandidates(const __grid_constant__ SearchTiers tiers,
                                 const __grid_constant__ TierQueries queries,
                                 const __grid_constant__ QueryGroup group, std::uint64_t first,
                                 std::uint64_t candidates, std::uint64_t* matches,
                                 std::uint8_t* flags) {
  for (std::uint64_t i = FirstOfGrid(); i < candidates; i += GridStep()) {
    std::uint64_t q = 0;
    const std::uint32_t row = group.Look(tiers, queries, first + i, &q);
    flags[i] = row != kNoRow;
    if (row != kNoRow) matches[i] = q << 32 | tiers.PlaceOf(row);
  }
}

/// Where the matches of each query of a group begin, and how many rows it gets.
/// @param starts, counts of each query
/// @param capped rows, and those of the queries before the group for its first one
__global__ void FindStarts(const std::uint64_t* matches, std::uint64_t matched,
                           std::uint64_t queries, std::uint64_t limit, std::uint64_t before,
                           std::uint64_t* starts, std::uint64_t* counts, std::uint64_t* capped) {
  const auto start_of = [&](std::uint64_t q) {
    return PartitionPoint(static_cast<std::uint32_t>(matched),
                          [&](std::uint32_t i) { return matches[i] >> 32 < q; });
  };
  for (std::uint64_t q = FirstOfGrid(); q < queries; q += GridStep()) {
    const std::uint64_t start = start_of(q);
    const std::uint64_t n = start_of(q + 1) - start;
    starts[q] = start;
    counts[q] = n;
    capped[q] = (n < limit ? n : limit) + (q == 0 ? before : 0);
  }
}

/// Puts the rows of a group. @param offsets of the group's queries, and one more
__global__ void PutRows(const __grid_constant__ SearchTiers tiers, const std::uint64_t* matches,
                        const std::uint64_t* starts, const std::uint64_t* offsets,
                        std::uint64_t queries, std::uint64_t first, std::uint64_t rows,
                        const __grid_constant__ RowsOut out) {
  for (std::uint64_t i = FirstOfGrid(); i < rows; i += GridStep()) {
    const std::uint64_t at = first + i;
    const std::uint64_t q = QueryGroup::At(offsets, queries, at);
    const std::uint64_t match = matches[starts[q] + (at - offsets[q])];
    out.Put(tiers, at, tiers.RowAt(static_cast<std::uint32_t>(match)));
  }
}

/// The keys of rows, one behind the other.
__global__ void PutKeys(const __grid_constant__ SearchTiers tiers, const std::uint32_t* rows,
                        std::uint64_t count, const __grid_constant__ RowsOut out) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) out.Put(tiers, i, rows[i]);
}

/// How many queries' rows there is room for. One thread.
__global__ void CountAnswered(const std::uint64_t* offsets, std::uint64_t queries,
                              std::uint64_t room, SearchSums* sums) {
  sums->answered = PartitionPoint(static_cast<std::uint32_t>(queries),
                                  [&](std::uint32_t i) { return offsets[i + 1] <= room; });
  sums->given = offsets[sums->answered];
}
__global__ void CutOffsets(std::uint64_t* offsets, std::uint64_t first, std::uint64_t end) {
  // What is behind the last query that was answered gives no row.
  const std::uint64_t last = offsets[first];
  for (std::uint64_t i = first + 1 + FirstOfGrid(); i <= end; i += GridStep()) offsets[i] = last;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_SEARCH_ASKING_KERNELS_CUH_
