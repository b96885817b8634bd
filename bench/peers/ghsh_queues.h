#ifndef GPM_BENCH_PEERS_GHSH_QUEUES_H_
#define GPM_BENCH_PEERS_GHSH_QUEUES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "bench/peers/ghsh_table.h"

/// What GHSH does for many items or queries at once, which are brought into the order of their
/// buckets first (Ren et al. 2021, sections 4.1.1, 4.2 and 5).
namespace gpm::bench::peers::ghsh {

inline constexpr std::uint32_t kNoList = ~0u;

/// The subspaces that attributes are in: of those that queries asked for, the ones asked for most
/// together (section 5). An attribute that nobody asked for has none, unless nobody asked for any.
/// @param asked queries of each attribute @return attributes of each subspace, in their order
inline std::vector<std::vector<std::uint32_t>> GroupsOf(std::span<const std::uint64_t> asked) {
  std::vector<std::uint32_t> attributes(asked.size());
  std::iota(attributes.begin(), attributes.end(), 0u);
  std::stable_sort(attributes.begin(), attributes.end(),
                   [&](std::uint32_t x, std::uint32_t y) { return asked[x] > asked[y]; });
  const bool none = std::all_of(asked.begin(), asked.end(), [](auto count) { return count == 0; });
  std::vector<std::vector<std::uint32_t>> groups;
  for (std::size_t first = 0; first < attributes.size(); first += kMaxDimensions) {
    if (asked[attributes[first]] == 0 && !none) break;
    const std::size_t last = std::min<std::size_t>(first + kMaxDimensions, attributes.size());
    std::vector<std::uint32_t> group(attributes.begin() + static_cast<std::ptrdiff_t>(first),
                                     attributes.begin() + static_cast<std::ptrdiff_t>(last));
    std::sort(group.begin(), group.end());
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Items that are in the order of their buckets in a subspace.
struct SortedItems {
  const std::uint64_t* keys;
  const std::uint32_t* references;
  const std::uint32_t* buckets;  ///< in that order
  const std::uint32_t* order;    ///< which item is at each place of it
  std::uint64_t n;
};

/// The bucket that an item is sorted by; behind all buckets, for reserved keys.
GPM_HD inline std::uint32_t BucketOfItem(const Table& table, const Space& space, std::uint64_t key,
                                         std::uint32_t reference) {
  return static_cast<std::uint32_t>(Table::IsReserved(key)
                                        ? space.Buckets()
                                        : space.BucketOf(table.CopyOf(space, key, reference)));
}

/// Whether place i begins something: a run of equal ids, or, with `length`, each length-th part of
/// such a run.
GPM_HD inline bool IsStart(const std::uint32_t* ids, std::uint64_t i, std::uint64_t length) {
  if (i == 0 || ids[i - 1] != ids[i]) return true;
  if (length == 0) return false;
  std::uint64_t least = 0, most = i;  // where the run begins
  while (least < most) {
    const std::uint64_t middle = (least + most) / 2;
    if (ids[middle] < ids[i]) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return (i - least) % length == 0;
}

/// Makes a super node of the items from a start on, 31 at most of one bucket, and links it (section
/// 4.2.1, bulk-build: the first 31 lanes fill it, one thread links it in front of the chain).
template <class Warp>
GPM_HD void BuildNode(const Warp& warp, const Table& table, const Space& space,
                      const SortedItems& items, std::uint64_t start) {
  const std::uint32_t bucket = items.buckets[start];
  if (bucket >= space.Buckets()) return;  // reserved keys
  const std::uint32_t number = warp.Leader([&] { return space.nodes.Take(); });
  const SuperNode node = space.NodeAt(number);
  warp.Each(kSlots, [&](std::uint32_t lane) {
    if (start + lane >= items.n || items.buckets[start + lane] != bucket) return;
    const std::uint32_t item = items.order[start + lane];
    space.Write(node, lane, table.CopyOf(space, items.keys[item], items.references[item]));
    StoreWord(&node.keys()[lane], items.keys[item]);
  });
  warp.Leader([&] {
    for (;;) {
      const std::uint32_t first = LoadWord(&space.heads[bucket]);
      space.Chain(node, first);
      Fence();
      if (Cas(&space.heads[bucket], first, number)) return true;
    }
  });
}

/// The list of the queries that have the same attribute, and the same coordinate on its dimension.
/// All buckets with that coordinate have these queries in their queues: so there is one list for
/// all of them, and a bucket's queue is the lists of its coordinates, each of one attribute.
GPM_HD inline std::uint32_t ListOf(const Table& table, std::uint32_t attribute,
                                   std::uint32_t number) {
  const Space& space = table.spaces[table.space_of[attribute]];
  return attribute << 29 | static_cast<std::uint32_t>(Coordinate(number, attribute, space.side));
}

/// Queries that are in the order of their lists.
struct SortedQueries {
  const std::uint32_t* lists;    ///< in that order; kNoList: queries that nothing answers
  const std::uint32_t* order;    ///< which query is at each place of it
  const std::uint32_t* numbers;  ///< of queries
  std::uint64_t n;
};

/// Answers a list's queries from the i-th bucket that it goes to (WPDS): walks the nodes of the
/// attribute alone, and looks at keys where a number matches.
/// @param start where the list begins @param found found(query, keys, lanes)
template <class Warp, class Found>
GPM_HD void SearchBucket(const Warp& warp, const Table& table, const SortedQueries& queries,
                         std::uint64_t start, std::uint64_t i, const Found& found) {
  const std::uint32_t list = queries.lists[start];
  if (list == kNoList) return;
  const std::uint32_t attribute = list >> 29;
  const Space& space = table.spaces[table.space_of[attribute]];
  if (i >= space.BucketsOfSearch()) return;
  const std::uint32_t dimension = table.dimension_of[attribute];
  const std::uint64_t bucket = space.BucketOfSearch(dimension, list & (kNoList >> 3), i);
  std::uint32_t number = warp.Leader([&] { return LoadWord(&space.heads[bucket]); });
  while (number != 0) {
    Fence();
    const SuperNode node = space.NodeAt(number);
    const auto words = warp.Load(node.numbers(dimension));
    for (std::uint64_t at = start; at < queries.n && queries.lists[at] == list; ++at) {
      const std::uint32_t query = queries.order[at];
      std::uint32_t lanes = warp.Match(words, queries.numbers[query]);
      if (lanes == 0) continue;
      const auto keys = warp.Load(node.keys());
      lanes &=
          ~(warp.Match(keys, kEmpty) | warp.Match(keys, kClaimed));  // erased, or not yet there
      if (lanes != 0) found(query, keys, lanes);
    }
    number = warp.At(words, kNextLane);
  }
}

}  // namespace gpm::bench::peers::ghsh

#endif  // GPM_BENCH_PEERS_GHSH_QUEUES_H_
