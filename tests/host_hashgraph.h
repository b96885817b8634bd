#ifndef GPM_TESTS_HOST_HASHGRAPH_H_
#define GPM_TESTS_HOST_HASHGRAPH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "bench/peers/hashgraph_table.h"
#include "bench/peers/tiles.h"
#include "tests/host_warp.h"
#include "tests/peer_batches.h"

namespace gpm::bench::peers::hashgraph {

/// A table of HashGraph in host memory, built in the steps of hashgraph.cu, of which sums, maxima
/// and sorting are the standard library's.
/// @tparam kSorts version 2 @tparam kTileLanes of a find, and of an item's placing
template <Layout kLayout, bool kSorts, unsigned kTileLanes>
struct HostHashGraph {
  explicit HostHashGraph(std::uint64_t items) {
    table.SetBuckets(items);
    counts.resize(table.buckets + 1);
    if constexpr (kLayout == Layout::kCsr) {
      rows.resize(table.buckets + 1);
      table.rows = rows.data();
    } else if constexpr (kLayout == Layout::kSliced) {
      sizes.resize(SlicesOf(table.buckets) + 1);
      slices.resize(SlicesOf(table.buckets) + 1);
      table.slices = slices.data();
    }
    if constexpr (!HashGraphTable<kLayout>::kPadded) ReservePlaces(items);
  }

  void Build(const KernelBatch& batch) {
    Hash(batch);
    if constexpr (kSorts) Sort();
    std::ranges::fill(counts, 0);
    ForAll<1>(batch.n, [&](const auto&, std::uint64_t i) { CountItem(buckets[i], counts.data()); });
    MakeRows();
    std::ranges::fill(counts, 0);
    const Items items{buckets.data(), kSorts ? numbers.data() : nullptr};
    ForAll<kTileLanes>(batch.n, [&](const auto& tile, std::uint64_t i) {
      PlaceItem(tile, table, batch, items, i, counts.data());
    });
  }
  void Apply(const KernelBatch& batch) const {
    ForAll<kTileLanes>(batch.n, [&](const auto& tile, std::uint64_t i) {
      const Result result = table.Apply(tile, batch, i);
      if (tile.thread_rank() == 0) batch.results[i] = result;
    });
  }
  /// Ordered probing.
  void ApplyOrdered(const KernelBatch& batch) {
    Hash(batch);
    Sort();
    ForAll<kTileLanes>(batch.n, [&](const auto& tile, std::uint64_t j) {
      ApplyInOrder(tile, table, batch, numbers.data(), j);
    });
  }

  HashGraphTable<kLayout> table{};
  std::vector<std::uint32_t> rows, counts;
  std::vector<std::uint64_t> sizes, slices;
  std::vector<std::uint64_t> keys;
  std::vector<Value> values;
  std::uint64_t places = 0;                     ///< of all rows
  std::vector<std::uint32_t> buckets, numbers;  ///< of items

 private:
  /// Calls f(tile, i) for each i below n, by two tiles at once.
  template <unsigned kLanes, class F>
  static void ForAll(std::uint64_t n, const F& f) {
    constexpr unsigned kTiles = 2;
    RunTiles<kLanes>(kTiles, [&](const auto& tile, unsigned number) {
      for (std::uint64_t i = number; i < n; i += kTiles) f(tile, i);
    });
  }
  /// What is in the places stays there, as in a GPU's memory.
  void ReservePlaces(std::uint64_t count) {
    keys.resize(std::max<std::size_t>(keys.size(), count));
    values.resize(keys.size());
    table.keys = keys.data();
    table.values = reinterpret_cast<std::byte*>(values.data());
  }
  void Hash(const KernelBatch& batch) {
    buckets.assign(batch.n, 0);
    numbers.assign(batch.n, 0);
    ForAll<1>(batch.n, [&](const auto&, std::uint64_t i) {
      HashItem(table, batch, i, buckets.data(), numbers.data());
    });
  }
  /// By bins alone: of a bin's buckets, items come as they were.
  void Sort() {
    const BinBits bits = BinsOf(table.buckets);
    const std::uint64_t mask = (std::uint64_t{1} << bits.end) - 1;
    const auto bin = [&](std::uint32_t i) { return (buckets[i] & mask) >> bits.first; };
    std::ranges::stable_sort(numbers, {}, bin);
    const auto unsorted = buckets;
    std::ranges::transform(numbers, buckets.begin(), [&](std::uint32_t i) { return unsorted[i]; });
  }
  void MakeRows() {
    if constexpr (kLayout == Layout::kCsr) {
      std::exclusive_scan(counts.begin(), counts.end(), rows.begin(), 0u);
      places = rows.back();
    } else if constexpr (kLayout == Layout::kEllpack) {
      table.width = *std::max_element(counts.begin(), counts.end() - 1);
      places = table.buckets * table.width;
    } else {
      std::ranges::fill(sizes, 0);
      ForAll<kWarpThreads>(SlicesOf(table.buckets), [&](const auto& warp, std::uint64_t slice) {
        const std::uint64_t bucket = slice * kSliceBuckets + warp.thread_rank();
        MeasureSlice(warp, counts.data(), table.buckets, bucket, sizes.data());
      });
      std::exclusive_scan(sizes.begin(), sizes.end(), slices.begin(), std::uint64_t{0});
      places = slices.back();
    }
    if constexpr (HashGraphTable<kLayout>::kPadded) {
      ReservePlaces(places);
      constexpr std::uint64_t kThreads = 2;
      RunTiles<1>(kThreads, [&](const auto&, unsigned thread) {
        ClearKeys(table, places, thread, kThreads);
      });
    }
  }
};

}  // namespace gpm::bench::peers::hashgraph

#endif  // GPM_TESTS_HOST_HASHGRAPH_H_
