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
  Lanes<Word> LoadSome(const Word* row, std::uint32_t n) const {
    Lanes<Word> words{};
    std::copy(row, row + n, words.begin());
    return words;
  }
  template <class Word, class F>
  auto Map(const Lanes<Word>& words, const F& f) const {
    Lanes<decltype(f(words[0]))> mapped;
    for (unsigned lane = 0; lane < 32; ++lane) mapped[lane] = f(words[lane]);
    return mapped;
  }
  template <class Word>
  void Set(Lanes<Word>* words, unsigned lane, Word word) const {
    (*words)[lane] = word;
  }
  Lanes<std::uint32_t> MatchEach(const Lanes<std::uint32_t>& words,
                                 const Lanes<std::uint32_t>& wanted, std::uint32_t n) const {
    Lanes<std::uint32_t> matching{};
    for (unsigned lane = 0; lane < n; ++lane) matching[lane] = Match(words, wanted[lane]);
    return matching;
  }
  std::uint32_t Some(const Lanes<std::uint32_t>& words) const {
    std::uint32_t lanes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      lanes |= static_cast<std::uint32_t>(words[lane] != 0) << lane;
    }
    return lanes;
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

using LongKey = std::uint64_t;

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
    Space<LongKey>& space = table.spaces[table.space_count];
    space = {};
    space.side = side;
    space.dimensions = dimensions;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      space.attributes[d] = attributes[d];
      table.space_of[attributes[d]] = table.space_count;
      table.dimension_of[attributes[d]] = d;
    }
    nodes.push_back(std::make_unique<HostCells>(SuperNode<LongKey>::Bytes(dimensions), room));
    heads.push_back(std::vector<std::uint32_t>(space.Buckets()));
    space.nodes = nodes.back()->view;
    space.heads = heads.back().data();
    ++table.space_count;
  }

  /// Operations with values, as batches have them.
  std::uint32_t NewValue(const Value& value) const {
    const std::uint32_t cell = table.values.Take();
    auto* const to = reinterpret_cast<std::uint64_t*>(table.values.AddressOf(cell));
    std::uint64_t words[sizeof(Value) / 8];
    std::memcpy(words, &value, sizeof value);
    for (std::size_t i = 0; i < std::size(words); ++i) StoreWord(&to[i], words[i]);
    return cell;
  }
  void Insert(std::uint64_t key, const Value& value) const {
    table.Insert(HostWarp{}, key, NewValue(value));
  }
  bool Update(std::uint64_t key, const Value& value) const {
    std::uint32_t freed = 0;
    const bool there = table.Update(HostWarp{}, key, NewValue(value), &freed);
    EXPECT_NE(freed, 0);
    table.values.Give(freed);
    return there;
  }
  bool Erase(std::uint64_t key) const {
    std::uint32_t freed = 0;
    const bool there = table.Erase(HostWarp{}, key, &freed);
    EXPECT_EQ(freed != 0, there);
    if (there) table.values.Give(freed);
    return there;
  }
  bool Find(std::uint64_t key, Value* found) const {
    const std::uint32_t* const reference = table.Find(HostWarp{}, key);
    const std::uint32_t cell = reference == nullptr ? 0 : Table<LongKey>::Refer(reference);
    if (cell == 0) return false;
    const auto* const from = reinterpret_cast<const std::uint64_t*>(table.values.AddressOf(cell));
    std::uint64_t words[sizeof(Value) / 8];
    for (std::size_t i = 0; i < std::size(words); ++i) words[i] = LoadWord(&from[i]);
    std::memcpy(found, words, sizeof words);
    return true;
  }

  /// Keys in a subspace, each once, in the bucket of its numbers, with its value's cell.
  std::map<std::uint64_t, std::uint32_t> CopiesIn(const Space<LongKey>& space) const {
    std::map<std::uint64_t, std::uint32_t> copies;
    for (std::uint64_t bucket = 0; bucket < space.Buckets(); ++bucket) {
      for (std::uint32_t number = space.heads[bucket]; number != 0;) {
        const SuperNode<LongKey> node = space.NodeAt(number);
        for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
          const std::uint64_t key = node.keys()[slot];
          EXPECT_NE(key, kClaimed<LongKey>);
          if (key == kEmpty<LongKey>) continue;
          const std::uint32_t cell = node.references()[slot];
          EXPECT_TRUE(copies.emplace(key, cell).second) << "a second copy of " << key;
          const Copy<LongKey> copy = table.CopyOf(space, key, cell);
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
  Table<LongKey> table{};
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

  /// Queries of all indexed attributes, as a search has them, against a look at all items: so many
  /// that lists have more than a warp's lanes, and some that have few.
  void ExpectSearches(const HostTable& host, const Model& model) {
    constexpr std::uint32_t kQueries = 1500;
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
    std::vector<std::uint32_t> sorted_numbers;
    for (const std::uint32_t q : order) sorted_numbers.push_back(numbers[q]);
    const SortedQueries queries{sorted.data(), order.data(), sorted_numbers.data(), kQueries};
    std::vector<std::vector<std::uint64_t>> found(kQueries);
    std::uint64_t most = 0;
    for (const Space<LongKey>& space : host.table.spaces)
      most = std::max(most, space.BucketsOfSearch());
    for (std::uint64_t at = 0; at < kQueries; ++at) {
      if (!IsStart(sorted.data(), at, 0)) continue;
      for (std::uint64_t i = 0; i < most; i += kBucketsAtOnce) {
        SearchBuckets(HostWarp{}, host.table, queries, at, i,
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
  for (int operation = 0; operation < 20'000; ++operation) {
    const std::uint64_t key = Random(3000);
    const Value value = RandomValue();
    Value found{};
    switch (Random(4)) {
      case 0:
        if (!model.contains(key)) {
          host.Insert(key, value);
          model[key] = value;
        }
        break;
      case 1:
        ASSERT_EQ(host.Update(key, value), model.contains(key));
        if (model.contains(key)) model[key] = value;
        break;
      case 2:
        ASSERT_EQ(host.Erase(key), model.erase(key) == 1) << operation;
        break;
      default:
        ASSERT_EQ(host.Find(key, &found), model.contains(key));
        if (model.contains(key)) {
          EXPECT_EQ(std::memcmp(&found, &model[key], sizeof found), 0);
        }
    }
  }
  ExpectItems(host, model);
  ExpectSearches(host, model);
}

/// An index of keys alone, of keys and values of 4 bytes in its nodes, or of 8 with values in
/// cells.
template <class Key>
class GhshKeysTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kBuckets = 50, kNodes = 20'000;

  GhshKeysTest() : nodes_(SuperNode<Key>::Bytes(0), kNodes), heads_(kBuckets) {
    table_.value_bytes = sizeof(Key);
    table_.space_count = 1;
    table_.spaces[0].heads = heads_.data();
    table_.spaces[0].nodes = nodes_.view;
    table_.spaces[0].side = kBuckets;
  }
  std::uint32_t Find(Key key) const {
    const std::uint32_t* const reference = table_.Find(HostWarp{}, key);
    return reference == nullptr ? 0 : Table<Key>::Refer(reference);
  }

  HostCells nodes_;
  std::vector<std::uint32_t> heads_;
  Table<Key> table_{};
  std::mt19937_64 random_{test::TestSeed()};
};
using KeyTypes = testing::Types<std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(GhshKeysTest, KeyTypes);

TYPED_TEST(GhshKeysTest, DoesWhatAMapDoes) {
  using Key = TypeParam;
  const HostWarp warp;
  std::map<Key, std::uint32_t> model;  // references: any, as nobody looks behind them
  for (int operation = 0; operation < 20'000; ++operation) {
    const auto key = static_cast<Key>(this->random_() % 3000);
    const auto reference = static_cast<std::uint32_t>(this->random_() % 1000 + 1);
    const bool there = model.contains(key);
    std::uint32_t freed = 0;
    switch (this->random_() % 4) {
      case 0:
        if (there) break;
        this->table_.Insert(warp, key, reference);
        model[key] = reference;
        break;
      case 1:
        ASSERT_EQ(this->table_.Update(warp, key, reference, &freed), there);
        if (!Table<Key>::kInPlace) {
          ASSERT_EQ(freed, there ? model[key] : reference);
        }
        if (there) model[key] = reference;
        break;
      case 2:
        ASSERT_EQ(this->table_.Erase(warp, key, &freed), there);
        if (there && !Table<Key>::kInPlace) {
          ASSERT_EQ(freed, model[key]);
        }
        model.erase(key);
        break;
      default:
        ASSERT_EQ(this->Find(key), there ? model[key] : 0);
    }
  }
  for (std::uint32_t count = 1; count <= 32; ++count) {
    HostWarp::Lanes<Key> keys;
    for (Key& key : keys) key = static_cast<Key>(this->random_() % 3100);
    if (count % 4 == 0) keys[count / 2] = kEmpty<Key>;
    const auto references = this->table_.FindEach(warp, keys, count);
    for (std::uint32_t lane = 0; lane < count; ++lane) {
      ASSERT_EQ(references[lane] != nullptr, model.contains(keys[lane])) << lane;
      if (references[lane] != nullptr) {
        ASSERT_EQ(Table<Key>::Refer(references[lane]), model[keys[lane]]);
      }
    }
  }
}

/// Each reference that an update wrote is freed by another one, or is there at the end.
TYPED_TEST(GhshKeysTest, UpdatesOfAKeyAtOnceLoseNoReference) {
  using Key = TypeParam;
  constexpr std::uint32_t kThreads = 4, kUpdates = 3000;
  const Key key = 5;
  this->table_.Insert(HostWarp{}, key, 1);
  std::vector<std::uint32_t> freed[kThreads];
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < kUpdates; ++i) {
        EXPECT_TRUE(
            this->table_.Update(HostWarp{}, key, 2 + t * kUpdates + i, &freed[t].emplace_back()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint32_t> all{this->Find(key)};
  if (!Table<Key>::kInPlace) {
    for (const auto& list : freed) all.insert(list.begin(), list.end());
    EXPECT_EQ(all.size(), kThreads * kUpdates + 1);
  }
  EXPECT_TRUE(*all.rbegin() <= kThreads * kUpdates + 1 && *all.begin() >= 1);
}

TEST_F(GhshTest, BulkBuildAndInsertionsMakeTheSame) {
  HostTable host(6, 20'000);
  Model model;
  std::vector<std::uint64_t> keys;
  std::vector<std::uint32_t> cells;
  for (std::uint64_t key = 0; key < 5000; ++key) {
    const Value value = model[key] = RandomValue();
    keys.push_back(key);
    cells.push_back(host.NewValue(value));
  }
  keys.push_back(kEmpty<LongKey>);  // a reserved one, which nobody gets
  cells.push_back(cells.back());
  for (std::uint32_t s = 0; s < host.table.space_count; ++s) {
    const Space<LongKey>& space = host.table.spaces[s];
    std::vector<std::uint32_t> buckets, order(keys.size()), sorted;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      buckets.push_back(BucketOfItem(host.table, space, keys[i], cells[i]));
    }
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t x, std::uint32_t y) { return buckets[x] < buckets[y]; });
    for (const std::uint32_t i : order) sorted.push_back(buckets[i]);
    const SortedItems<LongKey> items{keys.data(), cells.data(), sorted.data(), order.data(),
                                     keys.size()};
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
    host.Insert(key, model[key] = RandomValue());
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
      host.Insert(shared(i), Value{{0, 0, 0, 0}, 0});
    }
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t, seed = random_()] {
        std::mt19937_64 random(seed);
        for (int operation = 0; operation < 900; ++operation) {
          const auto number = static_cast<std::uint32_t>(random() % 50);
          const Value value{{number, number, number, number}, number};
          const std::uint64_t key = t * 1000 + random() % kKeys;
          if (operation % 4 == 0) {
            Value found{};
            const std::uint64_t other = shared(random() % 3);
            EXPECT_TRUE(host.Update(other, value));
            EXPECT_TRUE(host.Find(other, &found));
            EXPECT_TRUE(found.numbers[0] == found.rest && found.numbers[3] == found.rest);
          } else if (!models[t].contains(key)) {
            host.Insert(key, value);
            models[t][key] = value;
          } else if (random() % 3 == 0) {
            EXPECT_TRUE(host.Erase(key));
            EXPECT_FALSE(host.Erase(key));
            models[t].erase(key);
          } else {
            EXPECT_TRUE(host.Update(key, value));
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
      ASSERT_TRUE(host.Find(shared(i), &found));
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
      host.Insert(key, RandomValue());
    }
    std::atomic<int> erased[kKeys]{};
    Model inserted;  // into the slots that come free
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < kKeys; ++i) {
          if (host.Erase(i)) ++erased[i];
          if (t != 0) continue;
          const Value value{{1, 1, 1, 1}, i};
          host.Insert(1000 + i, value);
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
  Space<LongKey> space{};
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
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{5, 9, 0, 7}), (Groups{{1, 3}, {0}}));
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{5, 0, 0, 7}), (Groups{{0, 3}}));
  EXPECT_EQ(GroupsOf(std::vector<std::uint64_t>{0, 1}), (Groups{{1}}));
}

}  // namespace
}  // namespace gpm::bench::peers::ghsh
