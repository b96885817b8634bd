#ifndef GPM_SHARD_CUDA_SPLIT_KERNELS_CUH_
#define GPM_SHARD_CUDA_SPLIT_KERNELS_CUH_

#include <cstdint>
#include <type_traits>

#include "shard/partition.h"
#include "shard/splitter.h"
#include "shard/wanted_rows.h"

namespace gpm {

/// What a multisplit on a GPU consists of, beside the sort. All are grid-stride loops.

__device__ inline std::uint64_t FirstOfThread() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::uint64_t ThreadsInGrid() { return std::uint64_t{gridDim.x} * blockDim.x; }

/// Keys of a batch. @tparam kWords rows are whole words, at addresses of words
template <bool kWords>
struct KeyRows {
  const std::byte* rows;
  std::uint32_t key_size;

  __device__ const std::byte* Of(std::uint64_t i) const { return rows + i * key_size; }
  __device__ KeyHash HashOf(std::uint64_t i, const std::uint64_t* seed) const {
    if constexpr (kWords) {
      return HashKey(seed, reinterpret_cast<const std::uint64_t*>(Of(i)), key_size / 8);
    } else {
      std::uint64_t words[KeyWords(kMaxKeyBytes)];
      const std::uint32_t count = KeyWords(key_size);
      for (std::uint32_t w = 0; w < count; ++w) {
        words[w] = PaddedWord(Of(i) + 8 * w, key_size - 8 * w);
      }
      return HashKey(seed, words, count);
    }
  }
  __device__ bool AreEqual(std::uint64_t i, std::uint64_t j) const {
    using Part = std::conditional_t<kWords, std::uint64_t, std::byte>;
    const auto* const a = reinterpret_cast<const Part*>(Of(i));
    const auto* const b = reinterpret_cast<const Part*>(Of(j));
    for (std::uint32_t at = 0; at < key_size / sizeof(Part); ++at) {
      if (a[at] != b[at]) return false;
    }
    return true;
  }
};

/// Operations of which one for each key counts: `slots` is a hash table of their numbers.
struct TwinTable {
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;
  std::uint32_t* slots;  ///< all kEmpty
  std::uint32_t mask;    ///< a power of two less one, and more slots than operations

  /// The operation that counts for the key of operation i: the first that came here.
  template <bool kWords>
  __device__ std::uint32_t Find(const KeyRows<kWords>& keys, std::uint32_t i,
                                std::uint64_t hash) const {
    for (std::uint32_t at = static_cast<std::uint32_t>(hash) & mask;; at = (at + 1) & mask) {
      std::uint32_t other = *const_cast<volatile std::uint32_t*>(slots + at);
      if (other == kEmpty) other = atomicCAS(slots + at, kEmpty, i);
      if (other == kEmpty) return i;
      if (keys.AreEqual(i, other)) return other;
    }
  }
};

/// Numbers operations by shard, in batch order. With a table, those that another counts for are of
/// a shard behind the last one.
/// @param twins n: which operation counts for each; null: all do
template <bool kWords>
__global__ void NumberShards(KeyRows<kWords> keys, Partition partition, TwinTable table,
                             std::uint32_t n, std::uint16_t* shard_of, std::uint32_t* index,
                             std::uint32_t* twins) {
  for (std::uint64_t at = FirstOfThread(); at < n; at += ThreadsInGrid()) {
    const auto i = static_cast<std::uint32_t>(at);
    const KeyHash hash = keys.HashOf(i, partition.seed);
    std::uint32_t shard = partition.OfHash(hash);
    if (twins != nullptr) {
      twins[i] = table.Find(keys, i, hash.g);
      if (twins[i] != i) shard = partition.shards;
    }
    shard_of[i] = static_cast<std::uint16_t>(shard);
    index[i] = i;
  }
}

/// Where the operations of each shard begin, from their sorted shards; `starts` has one for each
/// and one for the end of the last. REQUIRES: n > 0
__global__ void FindStarts(const std::uint16_t* sorted, std::uint32_t n, std::uint32_t shards,
                           std::uint32_t* starts) {
  for (std::uint64_t j = FirstOfThread(); j <= n; j += ThreadsInGrid()) {
    const std::uint32_t from = j == 0 ? 0 : sorted[j - 1] + 1u;
    const std::uint32_t to = j == n ? shards : sorted[j];
    for (std::uint32_t shard = from; shard <= to; ++shard) {
      starts[shard] = static_cast<std::uint32_t>(j);
    }
  }
}

/// kTwins: a kGather to operations from those that count for them.
enum class Moving { kGather, kScatter, kTwins };

/// Moves rows by an order: row order[j] to row j, or, for kScatter, row j to row order[j]. A row
/// that stays where it is is left alone.
/// @tparam Word of which rows consist @param lanes_log2 threads that move a row together
/// @param wanted by the operations that `order` names, or, for kTwins, that are ordered
template <class Word, Moving kMoving>
__global__ void MoveRows(const Word* from, Word* to, std::uint32_t row_words,
                         const std::uint32_t* order, std::uint32_t rows, unsigned lanes_log2,
                         const __grid_constant__ WantedRows wanted) {
  const std::uint64_t lane = FirstOfThread() & ((1u << lanes_log2) - 1);
  for (std::uint64_t j = FirstOfThread() >> lanes_log2; j < rows;
       j += ThreadsInGrid() >> lanes_log2) {
    const std::uint64_t other = order[j];
    if (!wanted.Has(kMoving == Moving::kTwins ? j : other)) continue;
    constexpr bool kScatter = kMoving == Moving::kScatter;
    const Word* const source = from + (kScatter ? j : other) * row_words;
    Word* const target = to + (kScatter ? other : j) * row_words;
    if (source == target) continue;
    for (std::uint64_t w = lane; w < row_words; w += 1u << lanes_log2) target[w] = source[w];
  }
}

/// Copies each stride-th row. A thread for each byte.
__global__ void SampleRows(const std::byte* from, std::uint64_t row_bytes, std::uint64_t stride,
                           std::uint64_t bytes, std::byte* to) {
  for (std::uint64_t b = FirstOfThread(); b < bytes; b += ThreadsInGrid()) {
    to[b] = from[b / row_bytes * stride * row_bytes + b % row_bytes];
  }
}

/// Splitter::MapKinds.
__global__ void MapKindsOf(const Op* ops, Op op, Splitter::KindMap as, std::uint32_t n,
                           std::byte* to) {
  for (std::uint64_t i = FirstOfThread(); i < n; i += ThreadsInGrid()) {
    const auto kind = static_cast<std::uint8_t>(ops == nullptr ? op : ops[i]);
    to[i] = static_cast<std::byte>(kind < kOpKinds ? as[kind] : kind);
  }
}

}  // namespace gpm

#endif  // GPM_SHARD_CUDA_SPLIT_KERNELS_CUH_
