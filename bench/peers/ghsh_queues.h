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
/// together (section 5). An attribute that nobody asked for has none, unless nobody asked for any:
/// it would multiply the buckets that a search of the others goes to.
/// @param asked queries of each attribute @return attributes of each subspace, in their order
inline std::vector<std::vector<std::uint32_t>> GroupsOf(std::span<const std::uint64_t> asked) {
  std::vector<std::uint32_t> attributes(asked.size());
  std::iota(attributes.begin(), attributes.end(), 0u);
  std::stable_sort(attributes.begin(), attributes.end(),
                   [&](std::uint32_t x, std::uint32_t y) { return asked[x] > asked[y]; });
  const auto asked_for = std::count_if(asked.begin(), asked.end(), [](auto n) { return n != 0; });
  if (asked_for > 0) attributes.resize(static_cast<std::size_t>(asked_for));
  std::vector<std::vector<std::uint32_t>> groups;
  for (std::size_t first = 0; first < attributes.size(); first += kMaxDimensions) {
    const std::size_t last = std::min<std::size_t>(first + kMaxDimensions, attributes.size());
    std::vector<std::uint32_t> group(attributes.begin() + static_cast<std::ptrdiff_t>(first),
                                     attributes.begin() + static_cast<std::ptrdiff_t>(last));
    std::sort(group.begin(), group.end());
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Items that are in the order of their buckets in a subspace.
template <class Key>
struct SortedItems {
  const Key* keys;
  const std::uint32_t* references;
  const std::uint32_t* buckets;  ///< in that order
  const std::uint32_t* order;    ///< which item is at each place of it
  std::uint64_t n;
};

/// The bucket that an item is sorted by; behind all buckets, for reserved keys.
template <class Key>
GPM_HD std::uint32_t BucketOfItem(const Table<Key>& table, const Space<Key>& space, Key key,
                                  std::uint32_t reference) {
  return static_cast<std::uint32_t>(Table<Key>::IsReserved(key)
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
template <class Warp, class Key>
GPM_HD void BuildNode(const Warp& warp, const Table<Key>& table, const Space<Key>& space,
                      const SortedItems<Key>& items, std::uint64_t start) {
  const std::uint32_t bucket = items.buckets[start];
  if (bucket >= space.Buckets()) return;  // reserved keys
  const std::uint32_t number = warp.Leader([&] { return space.nodes.Take(); });
  const SuperNode<Key> node = space.NodeAt(number);
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
template <class Key>
GPM_HD std::uint32_t ListOf(const Table<Key>& table, std::uint32_t attribute,
                            std::uint32_t number) {
  const Space<Key>& space = table.spaces[table.space_of[attribute]];
  return attribute << 29 | static_cast<std::uint32_t>(Coordinate(number, attribute, space.side));
}

/// Queries that are in the order of their lists.
struct SortedQueries {
  const std::uint32_t* lists;    ///< kNoList: queries that nothing answers
  const std::uint32_t* order;    ///< which query is at each place
  const std::uint32_t* numbers;  ///< that they want
  std::uint64_t n;
};

/// Buckets that a warp searches side by side, so that the latencies of their nodes do not add up.
inline constexpr std::uint32_t kBucketsAtOnce = 8;

/// Answers a list's queries from kBucketsAtOnce of the buckets that it goes to, if there are as
/// many (WPDS): walks the nodes of the attribute alone, lets each lane compare all numbers of a
/// node with those that its query wants, and looks at keys where one matches.
/// @param start where the list begins @param first of the buckets, in the list's order of them
/// @param found found(query, keys, lanes)
template <class Warp, class Key, class Found>
GPM_HD void SearchBuckets(const Warp& warp, const Table<Key>& table, const SortedQueries& queries,
                          std::uint64_t start, std::uint64_t first, const Found& found) {
  const std::uint32_t list = queries.lists[start];
  if (list == kNoList) return;
  const std::uint32_t attribute = list >> 29;
  const Space<Key>& space = table.spaces[table.space_of[attribute]];
  const std::uint32_t dimension = table.dimension_of[attribute];
  const std::uint64_t buckets = space.BucketsOfSearch();
  std::uint32_t nodes[kBucketsAtOnce];  // by number; 0: none
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (std::uint32_t b = 0; b < kBucketsAtOnce; ++b) {
    nodes[b] =
        first + b >= buckets
            ? 0
            : LoadWord(
                  &space.heads[space.BucketOfSearch(dimension, list & (kNoList >> 3), first + b)]);
  }
  Fence();
  for (bool some = true; some;) {
    decltype(warp.Load(queries.lists)) words[kBucketsAtOnce]{};
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (std::uint32_t b = 0; b < kBucketsAtOnce; ++b) {
      if (nodes[b] != 0) words[b] = warp.Load(space.NodeAt(nodes[b]).numbers(dimension));
    }
    for (std::uint64_t at = start; at < queries.n; at += 32) {
      const std::uint64_t rest = queries.n - at;
      const auto left = static_cast<std::uint32_t>(rest < 32 ? rest : 32);
      // The list's are the first ones of these.
      const auto others = warp.Map(warp.LoadSome(&queries.lists[at], left),
                                   [&](std::uint32_t other) { return list ^ other; });
      const std::uint32_t behind = warp.Some(others);
      const std::uint32_t count = behind == 0                ? left
                                  : LowestBit(behind) < left ? LowestBit(behind)
                                                             : left;
      if (count == 0) break;
      const auto wanted = warp.LoadSome(&queries.numbers[at], count);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (std::uint32_t b = 0; b < kBucketsAtOnce; ++b) {
        if (nodes[b] == 0) continue;
        const auto slots = warp.MatchEach(words[b], wanted, count);
        std::uint32_t lanes = warp.Some(slots);
        if (lanes == 0) continue;
        const auto keys = warp.Load(space.NodeAt(nodes[b]).keys());
        const std::uint32_t none = warp.Match(keys, kEmpty<Key>) | warp.Match(keys, kClaimed<Key>);
        for (; lanes != 0; lanes &= lanes - 1) {
          const std::uint32_t lane = LowestBit(lanes);
          const std::uint32_t matching = warp.At(slots, lane) & ~none;
          if (matching != 0) found(queries.order[at + lane], keys, matching);
        }
      }
      if (count < 32) break;
    }
    some = false;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (std::uint32_t b = 0; b < kBucketsAtOnce; ++b) {
      if (nodes[b] == 0) continue;
      nodes[b] = warp.At(words[b], kNextLane);
      some = some || nodes[b] != 0;
    }
  }
}

}  // namespace gpm::bench::peers::ghsh

#endif  // GPM_BENCH_PEERS_GHSH_QUEUES_H_
