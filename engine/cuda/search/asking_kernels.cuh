#ifndef GPM_ENGINE_CUDA_SEARCH_ASKING_KERNELS_CUH_
#define GPM_ENGINE_CUDA_SEARCH_ASKING_KERNELS_CUH_

#include <cooperative_groups.h>

#include <cub/block/block_reduce.cuh>

#include "engine/cuda/search/asking.h"
#include "engine/cuda/search/launches.cuh"
#include "engine/search_tiers.h"

namespace gpm {

/// The kernels that ask tiers: grid-stride loops of one thread a thing.

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
__global__ void __launch_bounds__(kSearchThreads)
    FindCandidates(const __grid_constant__ SearchTiers tiers,
                   const __grid_constant__ TierQueries queries, std::uint64_t count,
                   TierCandidates* candidates, std::uint32_t* single, std::uint64_t* counts,
                   SearchSums* sums) {
  using Reduce = cub::BlockReduce<std::uint64_t, kSearchThreads>;
  __shared__ typename Reduce::TempStorage storage;
  std::uint64_t total = 0;
  bool many = false;
  bool unordered = false;
  for (std::uint64_t q = FirstOfGrid(); q < count; q += GridStep()) {
    const TierCandidates its = tiers.CandidatesOf(queries, q);
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
