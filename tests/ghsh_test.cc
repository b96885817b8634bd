// GHSH's nodes, operations and queues as its kernels have them (bench/peers/ghsh_table.h,
// ghsh_queues.h), carried out on the host: by a warp that is a loop over lanes, and by several of
// them in threads at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "bench/peers/ghsh_queues.h"
#include "tests/host_cells.h"
#include "tests/test_util.h"

namespace gpm::bench::peers::ghsh {
namespace {

/// 32 lanes, one after the other.
struct HostWarp {
  template <class Word>
  using Lanes = std::array<Word, 32>;

  template <class Word>
  Lanes<Word> Load(const Word* row) const {
    Lanes<Word> words;
    for (unsigned lane = 0; lane < 32; ++lane) words[lane] = LoadWord(&row[lane]);
    return words;
  }
  template <class Word>
  std::uint32_t Match(const Lanes<Word>& words, Word wanted) const {
    std::uint32_t lanes = 0;
    for (unsigned lane = 0; lane < kSlots; ++lane) lanes |= (words[lane] == wanted) << lane;
    return lanes;
  }
  template <class Word>
  Word At(const Lanes<Word>& words, unsigned lane) const {
    return words[lane];
  }
  template <class F>
  auto Leader(const F& f) const {
    return f();
  }
  template <class F>
  void Each(std::uint32_t n, const F& f) const {
    for (std::uint32_t i = 0; i < n; ++i) f(i);
    Fence();
  }
  template <class Word, class F>
  void EachOf(std::uint32_t lanes, const Lanes<Word>& words, const F& f) const {
    std::uint32_t nth = 0;
    for (; lanes != 0; lanes &= lanes - 1) f(words[LowestBit(lanes)], nth++);
  }
};

struct Value {
  std::uint32_t numbers[4];
  std::uint64_t rest;
};

/// A table of items with four attributes, in subspaces of 2, 1, and of keys; the last attribute has
/// none.
struct HostTable {
  explicit HostTable(std::uint64_t side, std::uint32_t room) : values(sizeof(Value), room) {
    table.value_bytes = sizeof(Value);
    table.values = values.view;
    for (std::uint32_t a = 0; a < 4; ++a) table.offsets[a] = 4 * a;
    Add({}, side * side, room);
    Add({0, 2}, side, room);
    Add({1}, side * side, room);
  }
  void Add(std::vector<std::uint32_t> attributes, std::uint64_t side, std::uint32_t room) {
    const auto dimensions = static_cast<std::uint32_t>(attributes.size());
    Space& space = table.spaces[table.space_count];
    space = {};
    space.side = side;
    space.dimensions = dimensions;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      space.attributes[d] = attributes[d];
      table.space_of[attributes[d]] = table.space_count;
      table.dimension_of[attributes[d]] = d;
    }
    nodes.push_back(std::make_unique<HostCells>(SuperNode::Bytes(dimensions), room));
    heads.push_back(std::vector<std::uint32_t>(space.Buckets()));
    space.nodes = nodes.back()->view;
    space.heads = heads.back().data();
    ++table.space_count;
  }

  /// Keys in a subspace, each once, in the bucket of its numbers, with its value's cell.
  std::map<std::uint64_t, std::uint32_t> CopiesIn(const Space& space) const {
    std::map<std::uint64_t, std::uint32_t> copies;
    for (std::uint64_t bucket = 0; bucket < space.Buckets(); ++bucket) {
      for (std::uint32_t number = space.heads[bucket]; number != 0;) {
        const SuperNode node = space.NodeAt(number);
        for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
          const std::uint64_t key = node.keys()[slot];
          EXPECT_NE(key, kClaimed);
          if (key == kEmpty) continue;
          const std::uint32_t cell = node.references()[slot];
          EXPECT_TRUE(copies.emplace(key, cell).second) << "a second copy of " << key;
          const Copy copy = table.CopyOf(space, key, cell);
          EXPECT_EQ(space.BucketOf(copy), bucket);
          for (std::uint32_t d = 0; d < space.dimensions; ++d) {
            EXPECT_EQ(node.numbers(d)[slot], copy.numbers[d]);
            EXPECT_EQ(node.numbers(d)[kNextLane], node.keys()[kNextLane]);
          }
        }
        number = static_cast<std::uint32_t>(node.keys()[kNextLane]);
      }
    }
    return copies;
  }

  HostCells values;
  Table table{};
  std::vector<std::unique_ptr<HostCells>> nodes;
  std::vector<std::vector<std::uint32_t>> heads;
};

using Model = std::map<std::uint64_t, Value>;

class GhshTest : public testing::Test {
 protected:
  std::uint64_t Random(std::uint64_t below) { return random_() % below; }
  Value RandomValue() {
    return {{static_cast<std::uint32_t>(Random(200)), static_cast<std::uint32_t>(Random(5)),
             static_cast<std::uint32_t>(Random(3)), 7},
            random_()};
  }
  static const std::byte* Bytes(const Value& value) {
    return reinterpret_cast<const std::byte*>(&value);
  }

  void ExpectItems(const HostTable& host, const Model& model) {
    for (std::uint32_t s = 0; s < host.table.space_count; ++s) {
      const auto copies = host.CopiesIn(host.table.spaces[s]);
      ASSERT_EQ(copies.size(), model.size()) << "subspace " << s;
      for (const auto& [key, cell] : copies) {
        ASSERT_TRUE(model.contains(key));
        ASSERT_EQ(std::memcmp(host.table.values.AddressOf(cell), &model.at(key), sizeof(Value)), 0);
      }
    }
    EXPECT_EQ(host.values.Used(), model.size());
  }

  /// Queries of all indexed attributes, as a search has them, against a look at all items.
  void ExpectSearches(const HostTable& host, const Model& model) {
    constexpr std::uint32_t kQueries = 300;
    std::vector<std::uint32_t> lists, numbers, order(kQueries), sorted;
    std::vector<std::uint32_t> attributes;
    for (std::uint32_t q = 0; q < kQueries; ++q) {
      attributes.push_back(static_cast<std::uint32_t>(Random(3)));
      numbers.push_back(static_cast<std::uint32_t>(Random(attributes[q] == 0 ? 220 : 6)));
      lists.push_back(q % 50 == 49 ? kNoList : ListOf(host.table, attributes[q], numbers[q]));
    }
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t x, std::uint32_t y) { return lists[x] < lists[y]; });
    for (const std::uint32_t q : order) sorted.push_back(lists[q]);
    const SortedQueries queries{sorted.data(), order.data(), numbers.data(), kQueries};
    std::vector<std::vector<std::uint64_t>> found(kQueries);
    std::uint64_t most = 0;
    for (const Space& space : host.table.spaces) most = std::max(most, space.BucketsOfSearch());
    for (std::uint64_t at = 0; at < kQueries; ++at) {
      if (!IsStart(sorted.data(), at, 0)) continue;
      for (std::uint64_t i = 0; i < most; ++i) {
        SearchBucket(HostWarp{}, host.table, queries, at, i,
                     [&](std::uint32_t query, const auto& keys, std::uint32_t lanes) {
                       HostWarp{}.EachOf(lanes, keys, [&](std::uint64_t key, std::uint32_t nth) {
                         EXPECT_LT(nth, PopCount(lanes));
                         found[query].push_back(key);
                       });
                     });
      }
    }
    for (std::uint32_t q = 0; q < kQueries; ++q) {
      std::vector<std::uint64_t> right;
      for (const auto& [key, value] : model) {
        if (lists[q] != kNoList && value.numbers[attributes[q]] == numbers[q]) right.push_back(key);
      }
      std::sort(found[q].begin(), found[q].end());
      ASSERT_EQ(found[q], right) << "query " << q;
    }
  }

  std::mt19937_64 random_{test::TestSeed()};
};

TEST_F(GhshTest, DoesWhatAMapDoes) {
  HostTable host(6, 40'000);
  Model model;
  const HostWarp warp;
  for (int operation = 0; operation < 20'000; ++operation) {
    const std::uint64_t key = Random(3000);
    const Value value = RandomValue();
    Value found{};
    switch (Random(4)) {
      case 0:
        if (!model.contains(key)) {
          host.table.Insert(warp, key, Bytes(value));
          model[key] = value;
        }
        break;
      case 1:
        ASSERT_EQ(host.table.Update(warp, key, Bytes(value)), model.contains(key));
        if (model.contains(key)) model[key] = value;
        break;
      case 2:
        ASSERT_EQ(host.table.Erase(warp, key), model.erase(key) == 1) << operation;
        break;
      default:
        ASSERT_EQ(host.table.Find(warp, key, reinterpret_cast<std::byte*>(&found)),
                  model.contains(key));
        if (model.contains(key)) {
          EXPECT_EQ(std::memcmp(&found, &model[key], sizeof found), 0);
        }
    }
  }
  ExpectItems(host, model);
  ExpectSearches(host, model);
}

TEST_F(GhshTest, BulkBuildAndInsertionsMakeTheSame) {
  HostTable host(6, 20'000);
  Model model;
  std::vector<std::uint64_t> keys;
  std::vector<std::uint32_t> cells;
  for (std::uint64_t key = 0; key < 5000; ++key) {
    const Value value = model[key] = RandomValue();
    keys.push_back(key);
    cells.push_back(host.table.NewValue(HostWarp{}, Bytes(value)));
  }
  keys.push_back(kEmpty);  // a reserved one, which nobody gets
  cells.push_back(cells.back());
  for (std::uint32_t s = 0; s < host.table.space_count; ++s) {
    const Space& space = host.table.spaces[s];
    std::vector<std::uint32_t> buckets, order(keys.size()), sorted;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      buckets.push_back(BucketOfItem(host.table, space, keys[i], cells[i]));
    }
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t x, std::uint32_t y) { return buckets[x] < buckets[y]; });
    for (const std::uint32_t i : order) sorted.push_back(buckets[i]);
    const SortedItems items{keys.data(), cells.data(), sorted.data(), order.data(), keys.size()};
    std::uint64_t built = 0;
    for (std::uint64_t at = 0; at < keys.size(); ++at) {
      if (!IsStart(sorted.data(), at, kSlots)) continue;
      BuildNode(HostWarp{}, host.table, space, items, at);
      ++built;
    }
    // All but the last node of a bucket are full.
    EXPECT_LE(built, space.Buckets() + keys.size() / kSlots + 1);
    EXPECT_EQ(host.nodes[s]->Used(), built - 1);
  }
  ExpectItems(host, model);
  ExpectSearches(host, model);
  for (std::uint64_t key = 5000; key < 6000; ++key) {
    host.table.Insert(HostWarp{}, key, Bytes(model[key] = RandomValue()));
  }
  ExpectItems(host, model);
  ExpectSearches(host, model);
}

/// Warps in threads, on one bucket in each subspace: so they meet. Each key has one writer but for
/// some, that all of them update; finds see whole values.
TEST_F(GhshTest, WarpsAtOnceLeaveEachItemOnce) {
  constexpr std::uint64_t kThreads = 4, kRounds = 25, kKeys = 150;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    HostTable host(round % 3 + 1, 20'000);
    Model models[kThreads];
    const auto shared = [](std::uint64_t i) { return 1'000'000 + i; };
    for (std::uint64_t i = 0; i < 3; ++i) {
      host.table.Insert(HostWarp{}, shared(i), Bytes(Value{{0, 0, 0, 0}, 0}));
    }
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t, seed = random_()] {
        std::mt19937_64 random(seed);
        const HostWarp warp;
        for (int operation = 0; operation < 900; ++operation) {
          const auto number = static_cast<std::uint32_t>(random() % 50);
          const Value value{{number, number, number, number}, number};
          const std::uint64_t key = t * 1000 + random() % kKeys;
          if (operation % 4 == 0) {
            Value found{};
            const std::uint64_t other = shared(random() % 3);
            EXPECT_TRUE(host.table.Update(warp, other, Bytes(value)));
            EXPECT_TRUE(host.table.Find(warp, other, reinterpret_cast<std::byte*>(&found)));
            EXPECT_TRUE(found.numbers[0] == found.rest && found.numbers[3] == found.rest);
          } else if (!models[t].contains(key)) {
            host.table.Insert(warp, key, Bytes(value));
            models[t][key] = value;
          } else if (random() % 3 == 0) {
            EXPECT_TRUE(host.table.Erase(warp, key));
            EXPECT_FALSE(host.table.Erase(warp, key));
            models[t].erase(key);
          } else {
            EXPECT_TRUE(host.table.Update(warp, key, Bytes(value)));
            models[t][key] = value;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    Model all;
    for (const Model& model : models) all.insert(model.begin(), model.end());
    for (std::uint64_t i = 0; i < 3; ++i) {
      Value found{};
      ASSERT_TRUE(host.table.Find(HostWarp{}, shared(i), reinterpret_cast<std::byte*>(&found)));
      all[shared(i)] = found;
    }
    ExpectItems(host, all);
    ExpectSearches(host, all);
  }
}

TEST_F(GhshTest, OneOfSeveralErasesAtOnceIsTheOne) {
  for (int round = 0; round < 50; ++round) {
    HostTable host(1, 2000);
    constexpr std::uint64_t kKeys = 60;
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      host.table.Insert(HostWarp{}, key, Bytes(RandomValue()));
    }
    std::atomic<int> erased[kKeys]{};
    Model inserted;  // into the slots that come free
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < kKeys; ++i) {
          if (host.table.Erase(HostWarp{}, i)) ++erased[i];
          if (t != 0) continue;
          const Value value{{1, 1, 1, 1}, i};
          host.table.Insert(HostWarp{}, 1000 + i, Bytes(value));
          inserted[1000 + i] = value;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::atomic<int>& count : erased) EXPECT_EQ(count, 1);
    ExpectItems(host, inserted);
  }
}

TEST_F(GhshTest, ASearchGoesToAllBucketsOfItsCoordinateOnce) {
  Space space{};
  space.side = 7;
  space.dimensions = 2;
  space.attributes[1] = 1;
  for (std::uint32_t dimension = 0; dimension < 2; ++dimension) {
    std::set<std::uint64_t> all;
    for (std::uint64_t coordinate = 0; coordinate < space.side; ++coordinate) {
      for (std::uint64_t i = 0; i < space.BucketsOfSearch(); ++i) {
        const std::uint64_t bucket = space.BucketOfSearch(dimension, coordinate, i);
        EXPECT_LT(bucket, space.Buckets());
        EXPECT_TRUE(all.insert(bucket).second);
        EXPECT_EQ(dimension == 0 ? bucket / 7 : bucket % 7, coordinate);
      }
    }
    EXPECT_EQ(all.size(), space.Buckets());
  }
}

TEST_F(GhshTest, SubspacesAreOfTheAttributesThatAreAskedForMost) {
  using Groups = std::vector<std::vector<std::uint32_t>>;
  EXPECT_EQ(GroupsOf({}), Groups{});
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{0, 0, 0}), (Groups{{0, 1}, {2}}));
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{5, 9, 0, 7}), (Groups{{1, 3}, {0, 2}}));
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{5, 0, 0, 7}), (Groups{{0, 3}}));
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{0, 1}), (Groups{{0, 1}}));
}

}  // namespace
}  // namespace gpm::bench::peers::ghsh
