#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "engine/attribute_column.h"
#include "engine/pair_wishes.h"
#include "tests/search_test_util.h"

/// Pairs of attributes in the index of searches: which there are, that they follow what changes,
/// and that they never change what a search finds.
namespace gpm::test {
namespace {

Condition Equal(std::uint32_t attribute, std::uint64_t number) {
  return {.attribute = attribute, .least = number, .most = number};
}

class PairIndexTest : public SearchTest {
 protected:
  static OpenOptions IndexedOptions(std::vector<std::string> fixed = {},
                                    std::uint64_t bytes = std::uint64_t{1} << 30) {
    OpenOptions open = TestOpenOptions();
    open.search_index_bytes = bytes;
    open.search_indexed = std::move(fixed);
    return open;
  }
  static std::uint64_t PairsOf(const Store& store) { return store.Stats().search_pairs; }

  static constexpr std::uint64_t kItems = 20'000;
  static constexpr std::uint64_t kSessions = 20;
  /// Of each session and model one item: `kItems / kSessions` models.
  static Store MakeGrid(const std::string& path, const OpenOptions& open) {
    Store store = Store::Create(path, SearchedShape(8, 24), open);
    TestBatch batch(8, 24);
    for (std::uint64_t i = 0; i < kItems; ++i) {
      batch.Add(Op::kInsert, i, Tag(i % kSessions, i / kSessions));
    }
    EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
    return store;
  }
  /// Queries that have one match each. @param turned the other condition first
  std::vector<Query> OneOfGrid(std::size_t count, bool turned) {
    std::vector<Query> queries(count);
    for (Query& query : queries) {
      query = {Equal(kSession, Random(kSessions)), Equal(kModel, Random(kItems / kSessions))};
      if (turned) std::swap(query[0], query[1]);
    }
    return queries;
  }
  static void ExpectOneEach(Store& store, const std::vector<Query>& queries, bool keys) {
    const SearchResult result = store.Search(queries, {.keys = keys});
    for (std::size_t q = 0; q < queries.size(); ++q) {
      ASSERT_EQ(result.counts[q], 1u);
      if (!keys) continue;
      std::uint64_t session = 0;
      std::uint64_t model = 0;
      for (const Condition& condition : queries[q]) {
        (condition.attribute == kSession ? session : model) = condition.least;
      }
      ASSERT_EQ(KeyNumber(std::span(result.keys).subspan(8 * q, 8)), model * kSessions + session);
    }
  }
};

TEST_F(PairIndexTest, FollowsTheQueries) {
  for (const bool keys : {false, true}) {
    for (const bool turned : {false, true}) {
      Store store = MakeGrid(NewPath(), IndexedOptions());
      const auto search = [&](std::size_t queries) {
        ExpectOneEach(store, OneOfGrid(queries, turned), keys);
      };
      for (int i = 0; i < 2; ++i) search(1);  // the second one makes the index
      for (int i = 0; i < 10; ++i) search(1);
      EXPECT_EQ(PairsOf(store), 0u) << "it pays for none of so few";
      search(2000);
      EXPECT_EQ(PairsOf(store), 0u);
      search(2000);
      EXPECT_EQ(PairsOf(store), 1u);
      for (int i = 0; i < 3; ++i) search(2000);
      const StoreStats stats = store.Stats();
      EXPECT_EQ(stats.search_pairs, 1u);
      EXPECT_EQ(stats.search_scans, 2u);
      EXPECT_EQ(stats.search_indexes_made, 1u);
      // The partner's condition may be any, and each attribute may be asked for alone.
      const auto counts = [&](const Query& query) {
        return store.Search(std::vector<Query>{query}, {.keys = keys}).counts[0];
      };
      const std::uint64_t models = kItems / kSessions;
      EXPECT_EQ(counts({Equal(kModel, 7), {kSession, 3, 5}}), 3u);
      EXPECT_EQ(counts({Equal(kModel, 7), {kSession, 5, 3}}), 0u);
      EXPECT_EQ(counts({Equal(kSession, 7), {kModel, 3, 500}}), 498u);
      EXPECT_EQ(counts({{kSession, 3, 5}, {kModel, 7, 8}}), 6u);
      EXPECT_EQ(counts({Equal(kModel, 7)}), kSessions);
      EXPECT_EQ(counts({Equal(kSession, 7)}), models);
      EXPECT_EQ(counts({Equal(kSession, kSessions), Equal(kModel, 7)}), 0u);
      EXPECT_EQ(counts({Equal(kSession, 7), Equal(kModel, models)}), 0u);
      if (HasFatalFailure()) return;
    }
  }
}

/// What queries look at in vain is nothing of a pair's where they want ranges of both, or where all
/// that they look at matches.
TEST_F(PairIndexTest, NoneOfWhatNoneHelps) {
  Store store = MakeGrid(NewPath(), IndexedOptions());
  const std::vector<std::vector<Query>> searches = {
      std::vector<Query>(50, {{kSession, 3, 5}, {kModel, 100, 200}}),
      std::vector<Query>(50, {Equal(kModel, 7), {.attribute = kSession, .most = 90}}),
      std::vector<Query>(50, {Equal(kSession, 7)}),
      std::vector<Query>(50, {Equal(kSession, 7), Equal(kSession, 8)})};
  for (int i = 0; i < 20; ++i) {
    for (const std::vector<Query>& queries : searches) (void)store.Search(queries);
  }
  EXPECT_EQ(PairsOf(store), 0u);
}

/// A condition that all items meet, on the partner of an attribute, spares a query nothing: the
/// pair with a third attribute comes.
TEST_F(PairIndexTest, AConditionThatAllMeetNarrowsNothing) {
  for (const std::uint64_t most : {kAllOnes, kAllOnes >> 32}) {
    CreateOptions create = Shape(8, 24);
    create.attributes = {{"a", 0, 4}, {"b", 4, 4}, {"c", 8, 4}};
    Store store = Store::Create(NewPath(), create, IndexedOptions({"a+b", "c"}));
    TestBatch batch(8, 24);
    std::set<std::string> right;
    for (std::uint64_t i = 0; i < kItems; ++i) {
      std::string value = MakeValue(Tag(i % 100, i / 100), 24);
      const auto c = static_cast<std::uint32_t>(i % 60);
      std::memcpy(value.data() + 8, &c, sizeof c);
      batch.Add(Op::kInsert, MakeKey(i, 8), value);
      if (i % 100 == 7 && c == 27) right.insert(MakeKey(i, 8));
    }
    EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
    const std::vector<Query> queries(
        200, {Equal(0, 7), {.attribute = 1, .least = 0, .most = most}, Equal(2, 27)});
    for (int i = 0; i < 4; ++i) {
      const SearchResult result = store.Search(queries, {.limit = 3});
      EXPECT_EQ(result.counts, std::vector<std::uint64_t>(200, right.size()));
      EXPECT_EQ(AsString(std::span(result.keys).first(16)),
                *right.begin() + *std::next(right.begin()));
    }
    EXPECT_EQ(PairsOf(store), 2u);
  }
}

/// Rows of the first attribute of a pair alone, which are in the order of its partner's numbers.
TEST_F(PairIndexTest, TheFirstOfAPairAlone) {
  ModelledStore store(NewPath(), SearchedShape(8, 24), IndexedOptions({"session+model"}));
  constexpr std::uint64_t kSessionRows = 500;  // so many that they are sorted by their digits
  TestBatch first = store.NewBatch();
  for (std::uint64_t i = 0; i < kItems; ++i) {
    first.Add(Op::kInsert, 3 * i, Tag(i % (kItems / kSessionRows), Random(100)));
  }
  store.Apply(first);
  for (int round = 0; round < 3; ++round) {
    for (const std::uint64_t limit : {std::uint64_t{10}, kSessionRows - 100, kAllOnes}) {
      ExpectMatches(store, {{Equal(kSession, 7)}, {Equal(kSession, 8)}}, {.limit = limit});
      ExpectMatches(store, {{Equal(kSession, 7), {kModel, 10, 90}}}, {.limit = limit});
    }
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 500; ++i) {
      batch.Add(Random(3) == 0 ? Op::kErase : Op::kUpsert, Random(3 * kItems),
                Tag(7 + Random(2), Random(100)));
    }
    store.Apply(batch);
  }
  EXPECT_EQ(PairsOf(store.store()), 1u);
  EXPECT_EQ(store.store().Stats().search_scans, 1u);
}

TEST_F(PairIndexTest, AnIndexThatIsMadeAnewHasThem) {
  Store store = MakeGrid(NewPath(), IndexedOptions());
  for (int i = 0; i < 4; ++i) ExpectOneEach(store, OneOfGrid(2000, false), true);
  EXPECT_EQ(PairsOf(store), 1u);
  (void)store.Search(std::vector<Query>{{Equal(kBoth, 7)}});
  (void)store.Search(std::vector<Query>{{Equal(kBoth, 7)}});  // makes one of all three
  EXPECT_EQ(store.Stats().search_indexes_made, 2u);
  EXPECT_EQ(PairsOf(store), 1u);
  ExpectOneEach(store, OneOfGrid(2000, false), true);
}

/// Batches, growth, and levels drained beside batches.
TEST_F(PairIndexTest, FollowsWhatChanges) {
  const std::vector<std::vector<std::string>> kinds = {
      {"session+model"}, {"model+session", "both+session"}, {"session+both", "model+both"}, {}};
  for (const std::vector<std::string>& fixed : kinds) {
    OpenOptions open = IndexedOptions(fixed);
    if (Random(2) == 0) open.growth_pause = 0;
    open.growth = 1.25;
    const std::uint32_t key_size = Random(2) == 0 ? 8 : 19;
    ModelledStore store(NewPath(), SearchedShape(key_size, 40), open);
    TestBatch first = store.NewBatch();
    for (int i = 0; i < 200; ++i) first.Add(Op::kUpsert, Random(3000), RandomTag());
    store.Apply(first);
    const std::vector<Query> all{{Equal(kSession, 7)}, {Equal(kModel, 3)}, {Equal(kBoth, 5)}};
    for (int i = 0; i < 2; ++i) ExpectMatches(store, all, {});
    std::uint64_t keys = 200;
    for (int round = 0; round < 60; ++round) {
      keys += Random(200);
      TestBatch batch = RandomBatch(store, 1 + Random(Random(4) == 0 ? 900 : 60), keys);
      store.Apply(batch);
      if (Random(8) == 0) store.store().Compact();
      if (Random(4) == 0) continue;
      std::vector<Query> queries(Random(2) == 0 ? 3 : 80);
      for (Query& query : queries) {
        query = RandomQuery();
        if (Random(2) == 0) query.push_back(Equal(kSession, Random(2) == 0 ? 7 : Random(40)));
        if (Random(2) == 0) query.push_back(Equal(kModel, Random(5)));
      }
      ExpectMatches(store, queries,
                    {.limit = Random(2) == 0 ? Random(30) : kAllOnes, .keys = Random(4) != 0});
      if (HasFatalFailure()) return;
    }
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.search_indexes_made, 1u);
    if (fixed
            .empty()) {  // (On a GPU one query of each search is looked at: by chance, none helps.)
      EXPECT_TRUE(stats.search_pairs > 0 || TestExecutor() == ExecutorKind::kCuda);
    } else {
      // Attributes that are the first of no pair may have got a partner.
      EXPECT_GE(stats.search_pairs, fixed.size());
    }
  }
}

/// Of some ten thousand items, so that a column has many blocks.
TEST_F(PairIndexTest, FollowsInALargerStore) {
  ModelledStore store(NewPath(), SearchedShape(8, 24),
                      IndexedOptions({"model+session", "session+model"}));
  constexpr std::uint64_t kKeys = 40'000;
  TestBatch first = store.NewBatch();
  for (std::uint64_t i = 0; i < kKeys; ++i) first.Add(Op::kInsert, 3 * i, Tag(i % 5000, i % 3));
  store.Apply(first);
  for (int round = 0; round < 12; ++round) {
    std::vector<Query> queries;
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t session = Random(5000);
      queries.push_back({{.attribute = kSession, .least = session, .most = session + Random(90)},
                         Equal(kModel, Random(3))});
      queries.push_back({Equal(kModel, Random(3)), Equal(kSession, session)});
      queries.push_back({Equal(kSession, session)});
    }
    queries.push_back({Equal(kModel, Random(3))});
    ExpectMatches(store, queries, {.limit = Random(2) == 0 ? 1 + Random(60) : kAllOnes});
    if (HasFatalFailure()) return;
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 1500; ++i) {
      static constexpr Op kKinds[] = {Op::kUpsert, Op::kUpsert, Op::kUpdate, Op::kErase};
      batch.Add(kKinds[Random(4)], Random(3 * kKeys), Tag(Random(5000), Random(3)));
    }
    store.Apply(batch);
  }
  EXPECT_EQ(store.store().Stats().search_scans, 1u);
  EXPECT_EQ(PairsOf(store.store()), 2u);
}

TEST_F(PairIndexTest, AreMadeBesideBatchesAndSearches) {
  Store store = MakeGrid(NewPath(), IndexedOptions());
  const auto search = [&](bool turned) {
    for (int i = 0; i < 25; ++i) {
      ExpectOneEach(store, OneOfGrid(1500, turned), true);
      if (HasFatalFailure()) return;
    }
  };
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    // Sessions beyond those that are asked for come and go.
    for (std::uint64_t number = 0; !stop; ++number) {
      TestBatch batch(8, 24);
      for (std::uint64_t i = 0; i < 50; ++i) {
        batch.Add(number % 2 == 0 ? Op::kUpsert : Op::kErase, kItems + i, Tag(100 + i, number));
      }
      (void)store.Apply(batch.Mixed());
    }
  });
  for (int i = 0; i < 2; ++i) ExpectOneEach(store, OneOfGrid(3, false), true);
  std::thread other([&] {
    std::mt19937_64 random(TestSeed());
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t session = random() % kSessions;
      const SearchResult result = store.Search(
          std::vector<Query>{{Equal(kSession, session)},
                             {Equal(kSession, session), {kModel, 10, 19}},
                             {Equal(kModel, 20 + random() % 100), {kSession, 0, kSessions - 1}}},
          {.keys = i % 2 == 0});
      EXPECT_EQ(result.counts, (std::vector<std::uint64_t>{kItems / kSessions, 10, kSessions}));
    }
  });
  search(false);
  search(true);
  other.join();
  stop = true;
  writer.join();
  EXPECT_GE(PairsOf(store), 1u);
}

/// A search by the index waits for nobody, and so does one that makes a pair.
TEST_F(PairIndexTest, AreMadeBesideAnExport) {
  Store store = MakeGrid(NewPath(), IndexedOptions());
  for (int i = 0; i < 2; ++i) ExpectOneEach(store, OneOfGrid(2000, false), true);
  {
    const Exporter held = store.Export();
    EXPECT_EQ(PairsOf(store), 0u);
    ExpectOneEach(store, OneOfGrid(2000, false), true);
    EXPECT_EQ(PairsOf(store), 1u);
  }
  ExpectOneEach(store, OneOfGrid(2000, false), true);
}

TEST_F(PairIndexTest, GoesWithItsAttributes) {
  for (const std::string fixed : {"model+session", "session+model"}) {
    const auto load = [&](ModelledStore& store) {
      TestBatch batch = store.NewBatch();
      for (std::uint64_t i = 0; i < 6000; ++i) batch.Add(Op::kInsert, i, Tag(i % 1000, i % 7));
      store.Apply(batch);
    };
    const std::vector<Query> both{{Equal(kSession, 3), Equal(kModel, 3)}};
    const std::vector<Query> model{{Equal(kModel, 4)}, {{.attribute = kModel, .least = 2}}};
    std::uint64_t bytes = 0;
    {
      ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions({fixed}));
      load(store);
      ExpectMatches(store, both, {});
      bytes = store.store().Stats().search_index_bytes;
    }
    ModelledStore store(NewPath(), SearchedShape(8, 40), IndexedOptions({fixed}, bytes + 3000));
    load(store);
    ExpectMatches(store, both, {});
    EXPECT_EQ(PairsOf(store.store()), 1u);
    ExpectMatches(store, model, {});
    store.Apply(Op::kInsert, Numbers(10'000, 500));
    ExpectMatches(store, model, {});  // which leaves that alone
    EXPECT_EQ(PairsOf(store.store()), 0u);
    ExpectMatches(store, model, {});
    EXPECT_EQ(store.store().Stats().search_scans, 1u);
    ExpectMatches(store, both, {});
    EXPECT_EQ(store.store().Stats().search_scans, 2u);
    store.Apply(Op::kErase, Numbers(10'000, 500));
    for (int i = 0; i < 3; ++i) ExpectMatches(store, both, {});
    EXPECT_EQ(PairsOf(store.store()), 1u);
    store.Apply(Op::kUpdate, Numbers(0, 200), Tag(3, 3));
    ExpectMatches(store, both, {});
    ExpectMatches(store, model, {});
  }
}

TEST_F(PairIndexTest, RefusesBadPairs) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"session+mode"}, "no attribute 'mode'"},
      {{"sess+model"}, "no attribute 'sess'"},
      {{"session+"}, "no attribute ''"},
      {{"+session"}, "no attribute ''"},
      {{"session + model"}, "no attribute 'session '"},
      {{"session+model+both"}, "no attribute 'model+both'"},
      {{"session+session"}, "'session+session' names one attribute twice"},
      {{"session+model", "session+both"}, "session is the first of two pairs"}};
  for (const auto& [fixed, message] : bad) {
    try {
      Store::Create(NewPath(), SearchedShape(8, 40), IndexedOptions(fixed));
      ADD_FAILURE() << fixed.back();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(ErrorOf([&] {
              Store::Create(NewPath(), SearchedShape(8, 40), IndexedOptions({"session+model"}, 0));
            }),
            ErrorCode::kInvalidArgument);
  const std::vector<std::string> good{"session+model", "model", "model+session", "both+session",
                                      "session+model"};
  Store store = MakeGrid(NewPath(), IndexedOptions(good));
  ExpectOneEach(store, OneOfGrid(30, true), true);
  EXPECT_EQ(store.Stats().search_indexes_made, 1u);
  EXPECT_EQ(PairsOf(store), 3u);
}

/// Which pairs are made of what was in vain.
class PairWishesTest : public testing::Test {
 protected:
  using Met = PairWishes::Met;
  static constexpr std::uint64_t kItems = 1000;

  static Met Wants(std::uint32_t attribute, std::uint64_t rows) {
    return {Equal(attribute, 5), rows};
  }
  static Met Range(std::uint32_t attribute, std::uint64_t rows) {
    return {{.attribute = attribute, .least = 5, .most = 6}, rows};
  }
  /// The pair that is due when so many rows were in vain, if one is.
  static std::optional<AttributePair> After(PairWishes& wishes, const std::vector<Met>& query,
                                            std::uint64_t rows) {
    wishes.Note(query, rows, kItems);
    const bool is_due = wishes.DueItems() != 0;
    const auto pair = wishes.Take();
    EXPECT_EQ(is_due, pair.has_value());
    EXPECT_EQ(wishes.DueItems(), 0u);
    return pair;
  }
};

TEST_F(PairWishesTest, OnceAsManyRowsAsItemsWereInVain) {
  PairWishes wishes({});
  const std::vector<Met> query{Wants(0, 100), Wants(1, 200)};
  EXPECT_EQ(After(wishes, query, 999), std::nullopt);
  EXPECT_EQ(After(wishes, query, 1), (AttributePair{0, 1}));
  EXPECT_EQ(wishes.chosen().PartnerOf(0), 1u);
  EXPECT_EQ(After(wishes, query, kAllOnes), std::nullopt)
      << "an index that could not get it is not to try again";
}

TEST_F(PairWishesTest, TheFewestRowsOfAnEquality) {
  const std::vector<std::pair<std::vector<Met>, std::optional<AttributePair>>> right = {
      {{Wants(0, 9), Wants(1, 8), Wants(2, 7)}, AttributePair{2, 1}},
      {{Range(0, 7), Wants(1, 8), Wants(2, 9)}, AttributePair{1, 0}},
      {{Range(0, 7), Wants(1, 800)}, AttributePair{1, 0}},
      {{Wants(1, 8), Range(0, 100), Range(2, 90)}, AttributePair{1, 2}},
      {{Range(0, 7), Range(1, 8)}, std::nullopt},
      {{Wants(0, 7)}, std::nullopt},
      {{Wants(0, 7), Range(0, 8)}, std::nullopt},
      {{Wants(0, 7), Range(1, kItems)}, std::nullopt}};
  for (const auto& [query, pair] : right) {
    PairWishes wishes({});
    EXPECT_EQ(After(wishes, query, kItems), pair);
  }
}

TEST_F(PairWishesTest, WhatHasNoPartnerYetComesFirst) {
  PairWishes wishes({});
  EXPECT_EQ(After(wishes, {Wants(0, 10), Wants(1, 20)}, kItems), (AttributePair{0, 1}));
  EXPECT_EQ(After(wishes, {Wants(0, 10), Wants(2, 20)}, kItems), (AttributePair{2, 0}));
  EXPECT_EQ(After(wishes, {Wants(1, 10), Wants(2, 20)}, kItems), (AttributePair{1, 2}));
}

TEST_F(PairWishesTest, FixedOnesStay) {
  AttributePairs fixed;
  fixed.Set(0, 1);
  PairWishes wishes(fixed);
  EXPECT_EQ(After(wishes, {Wants(0, 10), Range(2, 20)}, kAllOnes), std::nullopt);
  EXPECT_EQ(After(wishes, {Wants(0, 10), Wants(2, 20)}, kItems), (AttributePair{2, 0}));
  EXPECT_EQ(wishes.chosen().PartnerOf(0), 1u);
}

TEST_F(PairWishesTest, APartnerThatAllItemsMeetNarrowsNothing) {
  AttributePairs fixed;
  fixed.Set(0, 1);
  PairWishes wishes(fixed);
  EXPECT_EQ(After(wishes, {Wants(0, 10), Range(1, kItems - 1), Wants(2, 20)}, kAllOnes),
            std::nullopt);
  EXPECT_EQ(After(wishes, {Wants(0, 10), Range(1, kItems), Wants(2, 20)}, kItems),
            (AttributePair{2, 0}));
}

TEST_F(PairWishesTest, RowsInOrderCountAgainstTheFirstPartner) {
  PairWishes wishes({});
  const std::vector<Met> query{Wants(0, 100), Range(1, 200)};
  for (int i = 0; i < 5; ++i) {
    wishes.NoteInOrder(0, kItems + 1);
    wishes.NoteInOrder(1, kAllOnes / 8);
    EXPECT_EQ(After(wishes, query, kItems), std::nullopt);
  }
  wishes.NoteInOrder(0, kItems);
  EXPECT_EQ(After(wishes, query, kItems), (AttributePair{0, 1}));
  wishes.NoteInOrder(0, 9 * kItems);
  EXPECT_EQ(After(wishes, {Wants(0, 100), Range(2, 200)}, 2 * kItems), (AttributePair{0, 2}))
      << "they are to be sorted anyway";
}

TEST_F(PairWishesTest, ASampleForASixteenthOfTheItems) {
  PairWishes wishes({});
  EXPECT_EQ(wishes.RowsToSample(60, 1600), 0u);
  EXPECT_EQ(wishes.RowsToSample(50, 1600), 110u);
  EXPECT_EQ(wishes.RowsToSample(99, 1600), 0u);
  EXPECT_EQ(wishes.RowsToSample(1, 1600), 100u);
}

TEST_F(PairWishesTest, QueriesThatAlternateCostLittle) {
  PairWishes wishes({});
  std::uint64_t in_vain = 0;
  std::uint64_t sorts = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::uint32_t other = 1 + i % 2;
    if (wishes.chosen().PartnerOf(0) == other) continue;
    in_vain += 100;
    if (After(wishes, {Wants(0, 100), Range(other, 300)}, 100)) ++sorts;
  }
  EXPECT_GT(sorts, 3u);
  EXPECT_GE(in_vain >> (sorts - 1), kItems) << sorts << " sorts";
}

/// A column with a partner, against a set of triples.
TEST(PairColumnTest, KeepsRowsInOrder) {
  std::mt19937_64 random(TestSeed());
  for (const std::uint32_t bytes : {4u, 8u}) {
    const std::uint64_t most = ~std::uint64_t{0} >> (64 - 8 * bytes);
    AttributeColumn partner(12 - bytes);
    const std::uint64_t partner_most = ~std::uint64_t{0} >> (8 * bytes - 32);
    AttributeColumn column(bytes);
    using Entry = std::array<std::uint64_t, 3>;
    std::set<Entry> right;
    const auto draw = [&](std::uint64_t numbers, std::uint64_t largest) {
      const std::uint64_t number = random() % numbers;
      return number == 1 ? largest : number;
    };
    std::uint32_t rows = 3000;
    const auto set = [&](std::uint32_t row) {
      column.SetNumber(row, draw(4, most));
      partner.SetNumber(row, draw(50, partner_most));
    };
    const auto entry = [&](std::uint32_t row) {
      return Entry{column.NumberOf(row), partner.NumberOf(row), row};
    };
    for (AttributeColumn* each : {&column, &partner}) each->SetRows(rows);
    for (std::uint32_t row = 0; row < rows; ++row) set(row);
    ThreadPool threads(2);
    column.PutAll(&threads);
    // Some rows are vacant when it gets a partner.
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (random() % 8 == 0) {
        column.Take(row);
      } else {
        right.insert(entry(row));
      }
    }
    column.SetPartner(&partner, &threads);
    const auto count = [&](AttributeColumn::Place first, AttributeColumn::Place last) {
      std::uint64_t visited = 0;
      column.ForEach(first, last, [&](std::uint32_t) { ++visited; });
      EXPECT_EQ(column.Between(first, last), visited);
      return visited;
    };
    const auto check = [&] {
      std::vector<std::uint32_t> there;
      column.ForEach(column.First(0), column.Behind(~std::uint64_t{0}),
                     [&](std::uint32_t row) { there.push_back(row); });
      ASSERT_EQ(there.size(), right.size());
      auto row = there.begin();
      for (const Entry& each : right) ASSERT_EQ(*row++, each[2]);
      for (int i = 0; i < 60; ++i) {
        const std::uint64_t number = draw(5, most);
        const std::uint64_t least = i % 7 == 0 ? 0 : draw(60, partner_most);
        const std::uint64_t last =
            i % 5 == 0 ? ~std::uint64_t{0} : std::max(least, draw(60, partner_most));
        const auto between = [&](const Entry& from, const Entry& to) {
          return static_cast<std::uint64_t>(
              std::distance(right.lower_bound(from), right.upper_bound(to)));
        };
        ASSERT_EQ(count(column.FirstOfPair(number, least), column.BehindPair(number, last)),
                  between({number, least, 0}, {number, last, kAllOnes}));
        ASSERT_EQ(count(column.First(number), column.Behind(number)),
                  between({number, 0, 0}, {number, kAllOnes, kAllOnes}));
      }
    };
    check();
    for (const double puts : {.8, .5, .1}) {
      for (int step = 0; step < 6000; ++step) {
        if (static_cast<double>(random() % 1000) < 1000 * puts) {
          auto row = static_cast<std::uint32_t>(random() % rows);
          if (right.contains(entry(row))) {
            row = rows++;
            for (AttributeColumn* each : {&column, &partner}) each->SetRows(rows);
          }
          set(row);
          column.Put(row);
          right.insert(entry(row));
        } else if (!right.empty()) {
          auto gone = right.lower_bound({draw(4, most), random() % 50, random() % rows});
          if (gone == right.end()) gone = right.begin();
          column.Take(static_cast<std::uint32_t>((*gone)[2]));
          right.erase(gone);
        }
      }
      check();
      if (testing::Test::HasFatalFailure()) return;
    }
    // Without it the rows of a number are in order by themselves.
    column.SetPartner(nullptr, &threads);
    std::uint64_t last_number = 0;
    std::uint32_t last_row = 0;
    std::uint64_t visited = 0;
    column.ForEach(column.First(0), column.Behind(~std::uint64_t{0}), [&](std::uint32_t row) {
      if (visited++ > 0) {
        EXPECT_TRUE(last_number < column.NumberOf(row) ||
                    (last_number == column.NumberOf(row) && last_row < row));
      }
      last_number = column.NumberOf(row);
      last_row = row;
    });
    EXPECT_EQ(visited, right.size());
  }
}

}  // namespace
}  // namespace gpm::test
