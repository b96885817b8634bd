#ifndef GPM_BENCH_PEERS_HASHGRAPH_TABLE_H_
#define GPM_BENCH_PEERS_HASHGRAPH_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/volatile_ops.h"

/// HashGraph's rows, and what threads do with them (what is left out: hashgraph.cu).
///
/// A batch is built in so: HashItem of each item; version 2 sorts the items by bins; CountItem of
/// each; rows are made from the counts (CSR: their sums; Ellpack: the largest; sliced Ellpack:
/// MeasureSlice, and the sums); padded rows are cleared; PlaceItem of each, with counts from 0.
namespace gpm::bench::peers::hashgraph {

enum class Layout { kCsr, kEllpack, kSliced };
inline constexpr std::uint64_t kSliceBuckets = kWarpThreads;

/// Slices of so many buckets.
constexpr std::uint64_t SlicesOf(std::uint64_t buckets) {
  return (buckets + kSliceBuckets - 1) / kSliceBuckets;
}

/// The bits [first, end) of a bucket's number that tell its bin.
struct BinBits {
  int first;
  int end;
};
/// There are up to 2^15 bins (the paper's version 2 has 32,000).
constexpr BinBits BinsOf(std::uint64_t buckets) {
  int bits = 1;
  while (bits < 32 && buckets >> bits != 0) ++bits;
  return {std::max(0, bits - 15), bits};
}

/// What threads see of a table. Places of a padded row behind its items have a key that is of
/// another bucket.
template <Layout kLayout>
struct HashGraphTable {
  static constexpr bool kPadded = kLayout != Layout::kCsr;

  std::uint32_t* rows;    ///< CSR: first item of each bucket, and the end
  std::uint64_t* slices;  ///< sliced Ellpack: first place of each slice, and the end
  std::uint32_t width;    ///< Ellpack: places of a row
  std::uint64_t* keys;    ///< of places
  std::byte* values;      ///< of places
  std::uint64_t buckets;
  std::uint64_t no_key, other_no_key;  ///< the latter in the bucket of the first one

  /// As many buckets as items (m = n), but two at least: else no key is of another bucket.
  void SetBuckets(std::uint64_t items) {
    buckets = std::max<std::uint64_t>(items, 2);
    no_key = 0;
    for (other_no_key = 1; BucketOf(other_no_key) == BucketOf(no_key);) ++other_no_key;
  }

  GPM_HD std::uint32_t BucketOf(std::uint64_t key) const {
    return static_cast<std::uint32_t>(Reduce(Scramble(key), buckets));
  }
  GPM_HD std::uint64_t NoKeyOf(std::uint32_t bucket) const {
    return bucket == BucketOf(no_key) ? other_no_key : no_key;
  }

  struct Row {
    std::uint64_t first;
    std::uint32_t places;
  };
  GPM_HD Row RowOf(std::uint32_t bucket) const {
    if constexpr (kLayout == Layout::kCsr) {
      return {rows[bucket], rows[bucket + 1] - rows[bucket]};
    } else if constexpr (kLayout == Layout::kEllpack) {
      return {std::uint64_t{bucket} * width, width};
    } else {
      const std::uint64_t* const slice = slices + bucket / kSliceBuckets;
      const auto places = static_cast<std::uint32_t>((slice[1] - slice[0]) / kSliceBuckets);
      return {slice[0] + bucket % kSliceBuckets * places, places};
    }
  }

  /// Finds a key, by lanes that look at as many places of its row at a time.
  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    if (batch.KindOf(i) != Op::kFind) return Result::kInvalid;
    const std::uint64_t key = batch.KeyOf<std::uint64_t>(i);
    const std::uint32_t bucket = BucketOf(key);
    const Row row = RowOf(bucket);
    const std::uint64_t no_key_here = kPadded ? NoKeyOf(bucket) : 0;
    for (std::uint32_t first = 0; first < row.places; first += tile.size()) {
      const std::uint32_t place = first + tile.thread_rank();
      const bool is_place = place < row.places;
      const std::uint64_t there = is_place ? keys[row.first + place] : 0;
      const unsigned match = tile.ballot(is_place && there == key);
      if (match != 0) {
        if (batch.found != nullptr) {
          CopyValue(tile, batch.FoundOf(i),
                    values + (row.first + first + FirstOf(match)) * batch.value_bytes,
                    batch.value_bytes);
        }
        return Result::kOk;
      }
      if (kPadded && tile.any(is_place && there == no_key_here)) break;
    }
    return Result::kNotFound;
  }
};

/// The items of a batch in the order in which threads take them.
struct Items {
  const std::uint32_t* buckets;
  const std::uint32_t* numbers;  ///< in the batch, or null: the same order
};

/// Writes the bucket of item i of a batch, and the item's number.
template <Layout kLayout>
GPM_HD void HashItem(const HashGraphTable<kLayout>& table, const KernelBatch& batch,
                     std::uint64_t i, std::uint32_t* buckets, std::uint32_t* numbers) {
  buckets[i] = table.BucketOf(batch.KeyOf<std::uint64_t>(i));
  numbers[i] = static_cast<std::uint32_t>(i);
}

/// Counts an item for its bucket.
GPM_HD inline void CountItem(std::uint32_t bucket, std::uint32_t* counts) {
  AtomicAdd32(&counts[bucket], 1);
}

/// The largest number of a warp's lanes, for all of them.
template <class Tile>
GPM_HD std::uint32_t LargestOfWarp([[maybe_unused]] const Tile& warp, std::uint32_t number) {
#ifdef __CUDA_ARCH__
  return __reduce_max_sync(~0u, number);
#else
  for (unsigned distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    number = std::max(number, warp.shfl(number, warp.thread_rank() ^ distance));
  }
  return number;
#endif
}

/// Writes how many places a slice has, by a warp: as many times its buckets as the fullest of those
/// has items. @param bucket this lane's, of which the last slice may have too many
template <class Tile>
GPM_HD void MeasureSlice(const Tile& warp, const std::uint32_t* counts, std::uint64_t buckets,
                         std::uint64_t bucket, std::uint64_t* places) {
  const std::uint32_t widest = LargestOfWarp(warp, bucket < buckets ? counts[bucket] : 0);
  if (bucket % kSliceBuckets == 0) places[bucket / kSliceBuckets] = kSliceBuckets * widest;
}

/// Gives every step-th of a table's places, from `first` on, a key that is not of its bucket.
template <Layout kLayout>
GPM_HD void ClearKeys(const HashGraphTable<kLayout>& table, std::uint64_t places,
                      std::uint64_t first, std::uint64_t step) {
  const auto row = table.RowOf(table.BucketOf(table.no_key));
  for (std::uint64_t i = first; i < places; i += step) {
    const bool in_row = i >= row.first && i < row.first + row.places;
    table.keys[i] = in_row ? table.other_no_key : table.no_key;
  }
}

/// Puts the i-th of a batch's items into its bucket's row, by the lanes of a tile.
/// @param places counts what each row has already
template <class Tile, Layout kLayout>
GPM_HD void PlaceItem(const Tile& tile, const HashGraphTable<kLayout>& table,
                      const KernelBatch& batch, const Items& items, std::uint64_t i,
                      std::uint32_t* places) {
  const std::uint32_t bucket = items.buckets[i];
  const std::uint64_t item = items.numbers == nullptr ? i : items.numbers[i];
  std::uint64_t place = 0;
  if (tile.thread_rank() == 0) {
    place = table.RowOf(bucket).first + AtomicNext(&places[bucket]);
    table.keys[place] = batch.KeyOf<std::uint64_t>(item);
    batch.results[item] = Result::kOk;
  }
  place = tile.shfl(place, 0);
  CopyValue(tile, table.values + place * batch.value_bytes, batch.ValueOf(item), batch.value_bytes);
}

/// Carries out the j-th operation of a batch in another order, and writes its result.
template <class Tile, Layout kLayout>
GPM_HD void ApplyInOrder(const Tile& tile, const HashGraphTable<kLayout>& table,
                         const KernelBatch& batch, const std::uint32_t* order, std::uint64_t j) {
  const std::uint64_t i = order[j];
  const Result result = table.Apply(tile, batch, i);
  if (tile.thread_rank() == 0) batch.results[i] = result;
}

}  // namespace gpm::bench::peers::hashgraph

#endif  // GPM_BENCH_PEERS_HASHGRAPH_TABLE_H_
