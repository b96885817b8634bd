#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "engine/attribute_column.h"
#include "tests/search_test_util.h"

/// The index that searches keep (OpenOptions::search_index_bytes): when it is made, that it follows
/// what changes, and that it never changes what a search finds.
namespace gpm::test {
namespace {

class SearchIndexTest : public SearchTest {
 protected:
  static OpenOptions IndexedOptions(std::uint64_t bytes = std::uint64_t{1} << 30) {
    OpenOptions open = TestOpenOptions();
    open.search_index_bytes = bytes;
    return open;
  }
  static std::vector<Query> AllAttributes() {
    return {{{.attribute = kSession, .least = 7, .most = 7}},
            {{.attribute = kModel, .least = 1, .most = 3}},
            {{.attribute = kBoth, .most = Tag(7, 2)}}};
  }
  std::vector<Query> RandomQueries(std::size_t count) {
    std::vector<Query> queries(count);
    for (Query& query : queries) query = RandomQuery();
    return queries;
  }
  void ExpectRandomMatches(ModelledStore& store, std::size_t queries) {
    ExpectMatches(store, RandomQueries(queries),
                  {.limit = Random(2) == 0 ? Random(30) : kAllOnes, .keys = Random(4) != 0});
  }
  /// Two searches of all attributes that look at all items.
  static void MakeIndex(ModelledStore& store) {
    const StoreStats before = store.store().Stats();
    for (int i = 0; i < 2; ++i) ExpectMatches(store, AllAttributes(), {});
    const StoreStats after = store.store().Stats();
    ASSERT_EQ(after.search_indexes_made, before.search_indexes_made + 1);
    ASSERT_EQ(after.search_scans, before.search_scans + 2);
  }
};

TEST_F(SearchIndexTest, FindsWhatAPlainScanDoes) {
  for (const auto& [key_size, value_size] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{8, 40}, {32, 8}, {5, 24}}) {
    ModelledStore store(NewPath(), SearchedShape(key_size, value_size), IndexedOptions());
    std::uint64_t scans = 0;
    for (int round = 0; round < 6; ++round) {
      TestBatch batch = RandomBatch(store, 700);
      store.Apply(batch);
      if (round == 3) {
        const Query query = AllAttributes()[0];
        const Rows rows = PlainScan(query, store.store().attributes(), store.model());
        for (const auto& [key, value] : rows) store.model().erase(key);
        EXPECT_EQ(store.store().EraseWhere(query), rows.size());
        scans = store.store().Stats().search_scans;
      }
      if (round == 0) {
        MakeIndex(store);
        scans += 2;
      }
      for (const std::size_t queries : {3, 150, 3}) {
        ExpectRandomMatches(store, queries);
        if (HasFatalFailure()) return;
        EXPECT_EQ(store.store().Stats().search_scans, scans);
      }
      EXPECT_GT(store.store().Stats().search_index_bytes, 0u);
      ExpectMatches(store, {RandomQuery()}, {.values = true});  // which are found by key
      EXPECT_EQ(store.store().Stats().search_scans, scans);
      store.store().Compact();  // moves items, and changes none
      ExpectRandomMatches(store, 3);
      EXPECT_EQ(store.store().Stats().search_scans, scans);
    }
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.search_indexes_made, 1u);
    EXPECT_EQ(stats.search_index_updates, 6u);
  }
}

/// Batches, growth, levels drained beside batches, increments of snapshots, erases by query.
TEST_F(SearchIndexTest, FollowsWhatChanges) {
  for (const auto& [key_size, value_size] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{8, 40}, {19, 8}, {16, 100}}) {
    OpenOptions open = IndexedOptions();
    if (Random(2) == 0) open.growth_pause = 0;
    open.growth = 1.25;
    ModelledStore store(NewPath(), SearchedShape(key_size, value_size), open);
    MakeIndex(store);
    std::vector<std::string> chain;
    std::uint64_t keys = 200;
    for (int round = 0; round < 60; ++round) {
      keys += Random(200);
      TestBatch batch = RandomBatch(store, 1 + Random(Random(4) == 0 ? 900 : 60), keys);
      store.Apply(batch);
      switch (Random(8)) {
        case 0: {
          const std::string file = NewPath();
          store.store().Snapshot(file, {.base = chain.empty() ? "" : chain.back()});
          chain.push_back(file);
          break;
        }
        case 1: {
          const Query query = RandomQuery();
          const Rows rows = PlainScan(query, store.store().attributes(), store.model());
          if (rows.size() > store.model().size() / 4) break;
          EXPECT_EQ(store.store().EraseWhere(query), rows.size());
          for (const auto& [key, value] : rows) store.model().erase(key);
          break;
        }
        case 2:
          store.store().Compact();
          break;
        default:
          ExpectRandomMatches(store, Random(2) == 0 ? 3 : 80);
      }
      if (HasFatalFailure()) return;
    }
    ExpectRandomMatches(store, 100);
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.search_indexes_made, 1u);
    EXPECT_EQ(stats.search_scans, 2u);
    if (!chain.empty()) {
      const std::string last = NewPath();
      store.store().Snapshot(last, {.base = chain.back()});
      chain.push_back(last);
      Store restored = Store::Restore(chain, NewPath(), TestOpenOptions());
      ExpectContents(restored, store.model());
    }
    store.Reopen();
    EXPECT_EQ(store.store().Stats().search_index_bytes, 0u);
    MakeIndex(store);
  }
}

/// Of some ten thousand items, so that a column has many blocks, and rows come and go in all.
/// Of so many queries that several threads write rows; nothing is written behind the room.
TEST_F(SearchIndexTest, RoomForLessThanManyQueriesFind) {
  constexpr std::uint64_t kQueries = 3000;
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
  TestBatch batch = store.NewBatch();
  for (std::uint64_t i = 0; i < 4 * kQueries; ++i) batch.Add(Op::kInsert, i, Tag(i % kQueries, 0));
  store.Apply(batch);
  MakeIndex(store);
  std::vector<Query> queries;
  for (std::uint64_t i = 0; i < kQueries; ++i) {
    queries.push_back({{.attribute = kSession, .least = i, .most = i}});
  }
  const SearchResult right = store.store().Search(queries, {});
  for (const std::uint64_t room : {0, 1, 102, 5000, 11999}) {
    for (const bool as_array : {false, true}) {
      std::vector<std::uint64_t> counts(kQueries), offsets(kQueries + 1);
      Bytes keys(8 * 4 * kQueries, std::byte{9});
      Matches matches{
          .counts = counts, .offsets = offsets, .keys = std::span(keys).first(8 * room)};
      if (as_array) {
        store.store().Search(QueryRows(queries).array(), kAllOnes, &matches);
      } else {
        store.store().Search(queries, kAllOnes, &matches);
      }
      EXPECT_EQ(counts, right.counts);
      EXPECT_EQ(matches.answered, room / 4);
      EXPECT_EQ(matches.rows, 4 * kQueries);
      const auto rows_end = keys.begin() + static_cast<std::ptrdiff_t>(8 * (room / 4 * 4));
      EXPECT_TRUE(std::equal(keys.begin(), rows_end, right.keys.begin()));
      const auto room_end = keys.begin() + static_cast<std::ptrdiff_t>(8 * room);
      EXPECT_EQ(std::count(room_end, keys.end(), std::byte{9}), keys.end() - room_end);
    }
  }
}

TEST_F(SearchIndexTest, FollowsInALargerStore) {
  ModelledStore store(NewPath(), SearchedShape(8, 24), IndexedOptions());
  constexpr std::uint64_t kKeys = 40'000;
  TestBatch first = store.NewBatch();
  for (std::uint64_t i = 0; i < kKeys; ++i) first.Add(Op::kInsert, 3 * i, Tag(i % 5000, i % 3));
  store.Apply(first);
  MakeIndex(store);
  for (int round = 0; round < 12; ++round) {
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 1500; ++i) {
      static constexpr Op kKinds[] = {Op::kUpsert, Op::kUpsert, Op::kUpdate, Op::kErase};
      batch.Add(kKinds[Random(4)], Random(3 * kKeys), Tag(Random(5000), Random(3)));
    }
    store.Apply(batch);
    std::vector<Query> queries;
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t session = Random(5000);
      queries.push_back({{.attribute = kSession, .least = session, .most = session + Random(90)},
                         {.attribute = kModel, .least = 1}});
      queries.push_back({{.attribute = kSession, .least = session, .most = session}});
    }
    queries.push_back({{.attribute = kModel, .most = Random(3)}});
    ExpectMatches(store, queries, {.limit = Random(2) == 0 ? 1 + Random(60) : kAllOnes});
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(store.store().Stats().search_scans, 2u);
  ExpectMatches(store, {{{.attribute = kSession, .most = 900}}}, {.values = true});
  ExpectMatches(store, {{}, {}}, {.limit = 100, .values = true});
  EXPECT_EQ(store.store().Stats().search_scans, 2u);
  ExpectMatches(store, {{}}, {.values = true});  // too many to be found while batches wait
  EXPECT_EQ(store.store().Stats().search_scans, 3u);
  ExpectMatches(store, {{}}, {});
  EXPECT_EQ(store.store().Stats().search_scans, 3u) << "the index is still there";
}

/// More changes than are logged; then few again.
TEST_F(SearchIndexTest, IsMadeAnewWhereMuchHasChanged) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
  store.Apply(Op::kInsert, Numbers(0, 8000));
  MakeIndex(store);
  store.Apply(Op::kUpsert, Numbers(4000, 8000), 5);  // 4596 are logged
  MakeIndex(store);                                  // as the first time
  const std::uint64_t scans = store.store().Stats().search_scans;
  // The same keys again and again are not many.
  for (std::uint64_t i = 1; i <= 20; ++i) store.Apply(Op::kUpdate, Numbers(100, 1000), i);
  ExpectRandomMatches(store, 20);
  EXPECT_EQ(store.store().Stats().search_scans, scans);
}

/// Two searches between which too much changes each time make none: nobody could use it.
TEST_F(SearchIndexTest, IsNotMadeWhereItCouldNotFollow) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
  for (std::uint64_t round = 0; round < 4; ++round) {
    store.Apply(Op::kUpsert, Numbers(0, 6000), round);
    ExpectMatches(store, AllAttributes(), {});
  }
  EXPECT_EQ(store.store().Stats().search_scans, 4u);
  EXPECT_EQ(store.store().Stats().search_indexes_made, 0u);
}

/// A search counts the items before its own instant, and so the room of what it begins.
TEST_F(SearchIndexTest, ABatchIsInFlightWhenTheLogBegins) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
  store.Apply(Op::kInsert, Numbers(0, 160'000));
  ExpectMatches(store, AllAttributes(), {});
  TestBatch erased = store.NewBatch();
  for (std::uint64_t i = 60'000; i < 160'000; ++i) {
    erased.Add(Op::kErase, i, 0);
    store.model().erase(MakeKey(i, 8));
  }
  Ticket ticket = store.store().ApplyAsync(erased.Mixed());
  ExpectMatches(store, AllAttributes(), {});
  ticket.Wait();
  store.Apply(Op::kUpdate, Numbers(0, 14'000), 3);
  ExpectMatches(store, AllAttributes(), {});
  ExpectMatches(store, AllAttributes(), {});
}

/// Items that come and go leave rows behind, and late ones.
TEST_F(SearchIndexTest, IsMadeAnewWhenItIsWorn) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
  store.Apply(Op::kInsert, Numbers(0, 4000));
  MakeIndex(store);
  const std::uint64_t bytes = store.store().Stats().search_index_bytes;
  constexpr std::uint64_t kRounds = 30;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    store.Apply(Op::kErase, Numbers(500 * round, 500));
    store.Apply(Op::kInsert, Numbers(500 * round + 4000, 500));
    ExpectRandomMatches(store, 20);
    if (HasFatalFailure()) return;
    EXPECT_LT(store.store().Stats().search_index_bytes, 4 * bytes);
  }
  const StoreStats stats = store.store().Stats();
  EXPECT_GT(stats.search_indexes_made, 1u);
  EXPECT_LT(stats.search_indexes_made, kRounds / 3);
  EXPECT_EQ(stats.search_scans, 1 + stats.search_indexes_made) << "it is made at once";
  EXPECT_EQ(stats.search_index_updates + stats.search_indexes_made, 1 + kRounds);
}

TEST_F(SearchIndexTest, SeesOneInstantBesideThreadsThatWriteAndSearch) {
  Store store = Store::Create(NewPath(), SearchedShape(8, 40), IndexedOptions());
  constexpr std::uint64_t kKeys = 400;
  const auto put = [&](std::uint64_t number) {
    TestBatch batch(8, 40);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      // Every second key comes and goes: a batch leaves as many as the one before.
      batch.Add(Op::kUpsert, 2 * key + number % 2, Tag(number, key < 100 ? 3 : 4));
      batch.Add(Op::kErase, 2 * key + 1 - number % 2, 0);
    }
    (void)store.Apply(batch.Mixed());
  };
  put(0);
  std::atomic<std::uint64_t> ended{0};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t number = 1; !stop; ++number) {
      put(number);
      ended = number;
    }
  });
  const auto search = [&] {
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t before = ended;
      std::vector<Query> queries{{{.attribute = kModel, .least = 3, .most = 3}}, {}};
      for (std::uint64_t number = before; number < before + 6; ++number) {
        queries.push_back({{.attribute = kSession, .least = number, .most = number}});
      }
      queries.push_back({{.attribute = kSession, .most = before - 1}});
      if (before == 0) queries.back() = {{.attribute = kSession, .least = 1, .most = 0}};
      const SearchResult result = store.Search(queries);
      EXPECT_EQ(result.counts[0], 100u);
      EXPECT_EQ(result.counts[1], kKeys);
      EXPECT_EQ(result.counts.back(), 0u) << "a batch that had ended is not seen";
      for (std::size_t q = 2; q + 1 < queries.size(); ++q) {
        EXPECT_TRUE(result.counts[q] == 0 || result.counts[q] == kKeys)
            << "a batch is seen in part";
      }
      const std::uint64_t parity =
          KeyNumber(std::span(result.keys).subspan(result.offsets[1] * 8, 8)) % 2;
      for (std::uint64_t row = result.offsets[1]; row < result.offsets[2]; ++row) {
        EXPECT_EQ(KeyNumber(std::span(result.keys).subspan(row * 8, 8)) % 2, parity);
      }
    }
  };
  std::thread other(search);
  search();
  other.join();
  stop = true;
  writer.join();
  put(ended + 1);
  EXPECT_EQ(store.Search(std::vector<Query>{{}}).counts[0], kKeys);
  EXPECT_GT(store.Stats().search_index_updates, 0u);
}

/// Batches come in between, each after some searches of one state.
TEST_F(SearchIndexTest, IsOfTheStateThatIsSearched) {
  Store store = Store::Create(NewPath(), SearchedShape(8, 40), IndexedOptions());
  constexpr std::uint64_t kKeys = 500;
  constexpr std::uint64_t kBatches = 60;
  std::atomic<std::uint64_t> ended{0};
  std::atomic<std::uint64_t> searches{0};
  const auto put = [&](std::uint64_t number) {
    TestBatch batch(8, 40);
    for (std::uint64_t key = 0; key < kKeys; ++key) batch.Add(Op::kUpsert, key, Tag(number, 0));
    EXPECT_EQ(batch.CallFor(store, Op::kUpsert), 0u);
    ended = number;
  };
  put(1);
  std::thread writer([&] {
    for (std::uint64_t number = 2; number <= kBatches; ++number) {
      for (const std::uint64_t before = searches; searches < before + 4;) std::this_thread::yield();
      put(number);
    }
  });
  while (ended < kBatches) {
    const auto seen = static_cast<std::uint64_t>(ended);
    const std::vector<Query> queries{{{.attribute = kSession, .least = seen}},
                                     {{.attribute = kSession, .least = seen, .most = seen}},
                                     {{.attribute = kSession, .least = seen + 1}}};
    const SearchResult result = store.Search(queries);
    EXPECT_EQ(result.counts[0], kKeys) << "a batch that had ended is not seen";
    EXPECT_EQ(result.counts[1] == 0, result.counts[2] == kKeys);
    EXPECT_EQ(result.counts[1] + result.counts[2], kKeys);
    ++searches;
  }
  writer.join();
  const StoreStats stats = store.Stats();
  EXPECT_LT(stats.search_scans, stats.searches) << "no index was used";
}

/// What it takes: beside key, hash table and log, the attribute's bytes and little more than 4.
class SearchIndexBytesTest : public SearchIndexTest {
 protected:
  static constexpr std::uint64_t kItems = 50'000;

  /// Of a store of which so many attributes, of 8 bytes, are indexed. @param churn changes them
  std::uint64_t IndexBytes(std::uint32_t attributes, bool churn) {
    CreateOptions create = Shape(8, 32);
    for (std::uint32_t a = 0; a < 4; ++a) create.attributes.push_back({{"a"}, 8 * a, 8});
    for (std::uint32_t a = 0; a < 4; ++a) create.attributes[a].name += std::to_string(a);
    Store store = Store::Create(NewPath(), create, IndexedOptions());
    Query query;
    for (std::uint32_t a = 0; a < attributes; ++a) query.push_back({.attribute = a, .most = a});
    const auto put = [&](Op op, std::uint64_t first, std::uint64_t count, std::uint64_t tag) {
      TestBatch batch(8, 32);
      for (std::uint64_t key = first; key < first + count; ++key) batch.Add(op, key, key + tag);
      batch.CallFor(store, op);
    };
    const auto search = [&] { (void)store.Search({&query, 1}, {.keys = false}); };
    put(Op::kInsert, 0, kItems, 0);
    search();
    search();
    for (std::uint64_t round = 0; churn && round < 20; ++round) {
      put(Op::kUpdate, round * 2500, 2500, 1'000'000 * (round + 1));
      search();
      put(Op::kErase, round * 300, 300, 0);
      put(Op::kInsert, kItems + round * 300, 300, 0);
      search();
    }
    EXPECT_EQ(store.Stats().search_indexes_made, 1u);
    EXPECT_EQ(store.Stats().items, kItems);
    return store.Stats().search_index_bytes;
  }
};

TEST_F(SearchIndexBytesTest, AreFewForEachAttribute) {
  const double most = 14.0 * kItems;
  const std::uint64_t one = IndexBytes(1, false);
  EXPECT_LE(static_cast<double>(IndexBytes(4, false) - one), 3 * 12.1 * kItems);
  // With all that goes with it: 8 bytes of key, 4 and some of the hash table, and the log.
  EXPECT_LE(static_cast<double>(IndexBytes(4, false)), 4 * 1.2 * most);
  if (TestExecutor() == ExecutorKind::kCuda) return;  // what changed much, it makes anew
  const std::uint64_t changed = IndexBytes(1, true);
  EXPECT_LE(static_cast<double>(IndexBytes(4, true) - changed), 3 * most);
}

/// Which attributes are indexed follows the queries, as far as there is room.
class SearchIndexBudgetTest : public SearchIndexTest {
 protected:
  static constexpr std::uint64_t kItems = 6000;

  static Query Of(std::uint32_t attribute) {
    return {{.attribute = attribute, .least = 1, .most = 9}};
  }
  /// @return whether the search looked at all items
  static bool Scans(ModelledStore& store, const Query& query) {
    const std::uint64_t scans = store.store().Stats().search_scans;
    ExpectMatches(store, {query}, {});
    return store.store().Stats().search_scans > scans;
  }
  static void Load(ModelledStore& store) {
    TestBatch batch = store.NewBatch();
    for (std::uint64_t i = 0; i < kItems; ++i) batch.Add(Op::kInsert, i, Tag(i % 1000, i % 7));
    store.Apply(batch);
  }
  /// What an index of these takes.
  std::uint64_t BytesOf(const Query& query) {
    ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
    Load(store);
    for (int i = 0; i < 2; ++i) ExpectMatches(store, {query}, {});
    EXPECT_EQ(store.store().Stats().search_indexes_made, 1u);
    return store.store().Stats().search_index_bytes;
  }
};

TEST_F(SearchIndexBudgetTest, NoMoreThanIsAskedFor) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions());
  Load(store);
  EXPECT_TRUE(Scans(store, Of(kSession)));
  EXPECT_TRUE(Scans(store, Of(kSession)));
  const std::uint64_t one = store.store().Stats().search_index_bytes;
  EXPECT_FALSE(Scans(store, Of(kSession)));
  EXPECT_FALSE(Scans(store, {}));
  EXPECT_TRUE(Scans(store, Of(kModel)));
  EXPECT_FALSE(Scans(store, Of(kSession))) << "the index is still there";
  EXPECT_EQ(store.store().Stats().search_index_bytes, one);
  EXPECT_TRUE(Scans(store, Of(kModel)));  // and makes an index of both
  EXPECT_FALSE(Scans(store, Of(kModel)));
  EXPECT_FALSE(Scans(store, Of(kSession)));
  EXPECT_GT(store.store().Stats().search_index_bytes, one);
  EXPECT_EQ(store.store().Stats().search_indexes_made, 2u);
}

TEST_F(SearchIndexBudgetTest, AnIndexThatHasNoRoomIsNotMade) {
  const std::uint64_t bytes = BytesOf(Of(kSession));
  for (const bool fits : {false, true}) {
    ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions(bytes - (fits ? 0 : 1)));
    Load(store);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Scans(store, Of(kSession)), !fits || i < 2);
    EXPECT_EQ(store.store().Stats().search_index_bytes, fits ? bytes : 0u);
  }
}

TEST_F(SearchIndexBudgetTest, AnAttributeIsFixed) {
  OpenOptions open = IndexedOptions();
  open.search_indexed = {"model", "session"};
  {
    ModelledStore store(NewPath(), SearchedShape(8, 40), open);
    Load(store);
    EXPECT_TRUE(Scans(store, Of(kModel)));  // makes an index of both
    EXPECT_FALSE(Scans(store, Of(kModel)));
    EXPECT_FALSE(Scans(store, Of(kSession)));
    EXPECT_TRUE(Scans(store, Of(kBoth)));
    EXPECT_TRUE(Scans(store, Of(kBoth)));  // makes one of all three
    EXPECT_FALSE(Scans(store, Of(kBoth)));
    EXPECT_FALSE(Scans(store, Of(kSession)));
    EXPECT_EQ(store.store().Stats().search_indexes_made, 2u);
  }
  // It has room before what is asked for more.
  open.search_indexed = {"model"};
  open.search_index_bytes = BytesOf({Of(kModel)[0], Of(kSession)[0]});
  {
    ModelledStore store(NewPath(), SearchedShape(8, 40), open);
    Load(store);
    EXPECT_TRUE(Scans(store, Of(kSession)));
    EXPECT_TRUE(Scans(store, Of(kSession)));
    EXPECT_FALSE(Scans(store, Of(kSession)));
    EXPECT_FALSE(Scans(store, Of(kModel)));
  }
  open.search_indexed = {"model", "mode"};
  const std::string path = NewPath();
  EXPECT_EQ(ErrorOf([&] { Store::Create(path, SearchedShape(8, 40), open); }),
            ErrorCode::kInvalidArgument);
  open.search_indexed = {"model"};
  open.search_index_bytes = 0;
  EXPECT_EQ(ErrorOf([&] { Store::Create(NewPath(), SearchedShape(8, 40), open); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SearchIndexBudgetTest, WhatWasAskedForTheLongestAgoHasNoRoom) {
  Query two = Of(kSession);
  two.push_back(Of(kModel)[0]);
  CreateOptions create = Shape(8, 40);
  create.attributes = {{"a", 0, 4}, {"b", 4, 4}, {"c", 8, 4}};
  ModelledStore store(NewPath(), create, IndexedOptions(BytesOf(two)));
  Load(store);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Scans(store, two), i < 2);
  EXPECT_FALSE(Scans(store, Of(1)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Scans(store, Of(2)), i < 2);
  EXPECT_FALSE(Scans(store, Of(1)));
  EXPECT_TRUE(Scans(store, Of(0)));
}

TEST_F(SearchIndexBudgetTest, WhatWasAskedForTheLongestAgoGoes) {
  Query two = Of(kSession);
  two.push_back(Of(kModel)[0]);
  ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions(BytesOf(two) + 3000));
  Load(store);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Scans(store, two), i < 2);
  EXPECT_FALSE(Scans(store, Of(kModel)));
  store.Apply(Op::kInsert, Numbers(10'000, 500));
  EXPECT_FALSE(Scans(store, Of(kModel)));  // which leaves that alone
  EXPECT_FALSE(Scans(store, Of(kModel)));
  EXPECT_TRUE(Scans(store, Of(kSession)));
  store.Apply(Op::kInsert, Numbers(20'000, 3000));
  EXPECT_FALSE(Scans(store, Of(kModel)));  // it takes too much now
  store.Apply(Op::kInsert, Numbers(30'000, 10));
  EXPECT_TRUE(Scans(store, Of(kModel)));
  EXPECT_TRUE(Scans(store, Of(kModel)));
}

/// A column, against a set of pairs.
TEST(AttributeColumnTest, KeepsRowsInOrder) {
  std::mt19937_64 random(TestSeed());
  for (const std::uint32_t bytes : {4u, 8u}) {
    for (const std::uint64_t numbers : {std::uint64_t{3}, std::uint64_t{1} << 20}) {
      AttributeColumn column(bytes);
      std::uint32_t rows = 3000;
      column.SetRows(rows);
      std::set<std::pair<std::uint64_t, std::uint32_t>> right;
      const auto draw = [&] {
        const std::uint64_t number = random() % numbers;
        return number == 1 ? ~std::uint64_t{0} >> (64 - 8 * bytes) : number;
      };
      for (std::uint32_t row = 0; row < rows; ++row) {
        column.SetNumber(row, draw());
        right.emplace(column.NumberOf(row), row);
      }
      ThreadPool threads(2);
      column.PutAll(&threads);
      const auto check = [&] {
        std::vector<std::uint32_t> there;
        column.ForEach(column.First(0), column.Behind(~std::uint64_t{0}),
                       [&](std::uint32_t row) { there.push_back(row); });
        ASSERT_EQ(there.size(), right.size());
        auto row = there.begin();
        for (const auto& entry : right) ASSERT_EQ(*row++, entry.second);
        for (int i = 0; i < 20; ++i) {
          const std::uint64_t least = draw();
          const std::uint64_t most = std::max(least, draw());
          const auto first = right.lower_bound({least, 0});
          const auto last = right.upper_bound({most, ~std::uint32_t{0}});
          std::uint64_t count = 0;
          column.ForEach(column.First(least), column.Behind(most), [&](std::uint32_t) { ++count; });
          ASSERT_EQ(count, static_cast<std::uint64_t>(std::distance(first, last)));
          ASSERT_EQ(column.Between(column.First(least), column.Behind(most)), count);
        }
      };
      check();
      for (const double puts : {.8, .5, .1}) {  // it grows, changes, and shrinks to nothing
        for (int step = 0; step < 6000; ++step) {
          if (static_cast<double>(random() % 1000) < 1000 * puts) {
            std::uint32_t row = static_cast<std::uint32_t>(random() % rows);
            if (right.contains({column.NumberOf(row), row})) {
              row = rows++;
              column.SetRows(rows);
            }
            column.SetNumber(row, draw());
            column.Put(row);
            right.emplace(column.NumberOf(row), row);
          } else if (!right.empty()) {
            auto entry = right.lower_bound({draw(), static_cast<std::uint32_t>(random() % rows)});
            if (entry == right.end()) entry = right.begin();
            column.Take(entry->second);
            right.erase(entry);
          }
        }
        check();
        if (testing::Test::HasFatalFailure()) return;
        EXPECT_LE(column.bytes(),
                  1.4 * rows * bytes + 6.0 * static_cast<double>(right.size()) + 9000);
      }
      while (!right.empty()) {
        column.Take(right.begin()->second);
        right.erase(right.begin());
      }
      check();
    }
  }
}

}  // namespace
}  // namespace gpm::test
