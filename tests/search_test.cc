#include "gpmstore/search.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "gpmstore/pool_reader.h"
#include "tests/search_test_util.h"

/// Searches by attributes, against a plain scan of what the store should hold.
namespace gpm::test {
namespace {

TEST_F(SearchTest, FindsWhatAPlainScanDoes) {
  for (const auto& [key_size, value_size] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {8, 40}, {32, 8}, {5, 24}, {19, 8}, {16, 100}}) {
    OpenOptions open = TestOpenOptions();
    if (Random(2) == 0) open.growth_pause = 0;  // levels are drained beside batches
    ModelledStore store(NewPath(), SearchedShape(key_size, value_size), open);
    for (int round = 0; round < 6; ++round) {
      TestBatch batch = RandomBatch(store, 700);
      store.Apply(batch);
      std::vector<Query> queries(round % 2 == 0 ? 3 : 150);
      for (Query& query : queries) query = RandomQuery();
      const bool keys = Random(4) != 0;
      ExpectMatches(store, queries,
                    {.limit = Random(2) == 0 ? Random(30) : kAllOnes,
                     .keys = keys,
                     .values = keys && Random(2) == 0});
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(store.store().Stats().searches, 6u);
    store.Reopen();
    EXPECT_EQ(store.store().attributes(), TestAttributes());
    ExpectMatches(store, {{{.attribute = kSession, .least = 7, .most = 7}}}, {.values = true});
  }
}

TEST_F(SearchTest, AnArrayOfQueriesFindsAsTheyDo) {
  for (const std::uint64_t index_bytes : {0, 1 << 20}) {
    OpenOptions open = TestOpenOptions();
    open.search_index_bytes = index_bytes;
    ModelledStore store(NewPath(), SearchedShape(19, 40), open);
    for (const std::uint64_t count : {0, 1, 3, 40, 700}) {
      TestBatch batch = RandomBatch(store, 700);
      store.Apply(batch);
      std::vector<Query> queries(count);
      for (Query& query : queries) query = RandomQuery();
      ExpectMatchesOfArray(store, queries, {});
      ExpectMatchesOfArray(store, queries, {.limit = Random(30), .values = true});
      ExpectMatchesOfArray(store, queries, {.keys = false});
      ExpectMatchesOfArray(store, queries, {.limit = Random(3)});
    }
    EXPECT_EQ(store.store().Stats().search_indexes_made > 0, index_bytes > 0);
  }
}

TEST_F(SearchTest, AnArrayOfQueriesOfABadShape) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 10));
  const std::vector<std::uint64_t> bounds{0, ~std::uint64_t{0}, 0, 5};
  std::vector<std::uint64_t> counts{99};
  const auto search = [&](const std::vector<std::uint32_t>& attributes, std::size_t numbers) {
    Matches matches{.counts = counts};
    store.store().Search({.attributes = attributes, .bounds = std::span(bounds).first(numbers)},
                         kAllOnes, &matches);
  };
  EXPECT_EQ(ErrorOf([&] { search({}, 0); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { search({3}, 2); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { search({0}, 3); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { search({0}, 4); }), ErrorCode::kInvalidArgument);  // two, of one count
  EXPECT_EQ(ErrorOf([&] { search(std::vector<std::uint32_t>(9), 0); }),
            ErrorCode::kInvalidArgument);
  // (Nothing of an array that is too long is looked at.)
  const std::vector<std::uint32_t> one{0};
  Matches matches{.counts = counts};
  EXPECT_EQ(ErrorOf([&] {
              store.store().Search(
                  {.attributes = one, .bounds = {bounds.data(), std::size_t{1} << 32}}, kAllOnes,
                  &matches);
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(counts[0], 99u);
  search({kSession, kSession}, 4);  // both have to be met
  EXPECT_EQ(counts[0], PlainScan({{.attribute = kSession, .most = 5}}, store.store().attributes(),
                                 store.model())
                           .size());
}

TEST_F(SearchTest, MoreItemsThanAThreadTakes) {
  ModelledStore store(NewPath(), SearchedShape(8, 8), TestOpenOptions());
  TestBatch batch = store.NewBatch();
  for (std::uint64_t i = 0; i < 150'000; ++i) batch.Add(Op::kInsert, i, Tag(i % 1000, i % 3));
  store.Apply(batch);
  std::vector<Query> queries;
  for (std::uint64_t i = 0; i < 5; ++i) {
    queries.push_back({{.attribute = kSession, .least = 10 * i, .most = 10 * i},
                       {.attribute = kModel, .least = 1, .most = i % 2}});
  }
  queries.push_back({});
  ExpectMatches(store, queries, {});
  ExpectMatches(store, queries, {.limit = 7, .values = true});
}

TEST_F(SearchTest, OfNothing) {
  OpenOptions open = TestOpenOptions();
  open.search_index_bytes = 1 << 20;
  ModelledStore store(NewPath(), SearchedShape(8, 40), open);
  ExpectMatches(store, {{}, {{.attribute = kModel}}}, {.values = true});
  for (int i = 0; i < 3; ++i) {  // the last one by an index
    ExpectMatches(store, {{}, {{.attribute = kModel}}}, {});
    ExpectMatches(store, {}, {});
  }
  EXPECT_LT(store.store().Stats().search_scans, store.store().Stats().searches);
  store.Apply(Op::kInsert, Numbers(0, 100));
  ExpectMatches(store, {}, {.values = true});
  ExpectMatches(store, {{{.attribute = kBoth, .least = 5, .most = 4}}}, {});
}

TEST_F(SearchTest, ArraysThatAreTooSmallAreSaid) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), TestOpenOptions());
  TestBatch batch = store.NewBatch();
  for (std::uint64_t i = 0; i < 300; ++i) batch.Add(Op::kInsert, i, Tag(i % 3, i % 2));
  store.Apply(batch);
  std::vector<Query> queries;
  for (std::uint64_t i = 0; i < 3; ++i) {
    queries.push_back({{.attribute = kSession, .least = i, .most = i}});
  }
  const SearchResult right = store.store().Search(queries, {.values = true});
  for (const auto& [room, answered] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 0}, {99, 0}, {100, 1}, {250, 2}, {300, 3}, {400, 3}}) {
    std::vector<std::uint64_t> counts(3);
    std::vector<std::uint64_t> offsets(4);
    Bytes keys(room * 8);
    Bytes values(room * 40);
    Matches matches{.counts = counts, .offsets = offsets, .keys = keys, .values = values};
    store.store().Search(queries, kAllOnes, &matches);
    EXPECT_EQ(counts, right.counts);
    EXPECT_EQ(matches.rows, 300u);
    EXPECT_EQ(matches.answered, answered);
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(offsets[i], 100 * std::min(i, answered));
    const std::uint64_t rows = 100 * answered;
    EXPECT_TRUE(std::equal(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(rows * 8),
                           right.keys.begin()));
    EXPECT_TRUE(std::equal(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rows * 40),
                           right.values.begin()));
  }
  std::vector<std::uint64_t> counts(3);
  Matches alone{.counts = counts};
  store.store().Search(queries, kAllOnes, &alone);
  EXPECT_EQ(counts, right.counts);
  EXPECT_EQ(alone.answered, 3u);

  // Counts alone are wanted, though there is room for rows.
  Bytes bytes(80);
  for (const bool as_array : {false, true}) {
    Bytes room(40);
    Matches no_offsets{
        .counts = counts, .keys = std::span(bytes).first(8), .values = std::span(room)};
    std::fill(counts.begin(), counts.end(), 0);
    if (as_array) {
      store.store().Search(QueryRows(queries).array(), kAllOnes, &no_offsets);
    } else {
      store.store().Search(queries, kAllOnes, &no_offsets);
    }
    EXPECT_EQ(counts, right.counts);
    EXPECT_EQ(no_offsets.answered, 3u);
  }
  std::vector<std::uint64_t> two(2);
  for (Matches matches :
       {Matches{.counts = two}, Matches{.counts = counts, .offsets = two},
        Matches{.counts = counts, .keys = std::span(bytes).first(9)},
        Matches{
            .counts = counts, .keys = std::span(bytes).first(16), .values = std::span(bytes)}}) {
    matches.values = matches.values.first(matches.values.empty() ? 0 : 79);
    EXPECT_EQ(ErrorOf([&] { store.store().Search(queries, kAllOnes, &matches); }),
              ErrorCode::kInvalidArgument);
  }
}

/// Every batch gives all of its keys one number, so that an instant has one alone.
TEST_F(SearchTest, SeesOneInstantBesideAThreadThatWrites) {
  OpenOptions open = TestOpenOptions();
  if (Random(2) == 0) open.search_index_bytes = 1 << 20;
  Store store = Store::Create(NewPath(), SearchedShape(8, 40), open);
  constexpr std::uint64_t kKeys = 2000;
  const auto put = [&](std::uint64_t number) {
    TestBatch batch(8, 40);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      batch.Add(Op::kUpsert, key, Tag(number, key < 500 ? 3 : 4));
    }
    EXPECT_EQ(batch.CallFor(store, Op::kUpsert), 0u);
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
  const std::vector<Query> queries{{{.attribute = kModel, .least = 3, .most = 3}}, {}};
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = ended;
    const SearchResult result = store.Search(queries, {.values = true});
    EXPECT_EQ(result.counts, (std::vector<std::uint64_t>{500, kKeys}));
    std::set<std::uint64_t> numbers;
    for (std::uint64_t row = 0; row < result.offsets.back(); ++row) {
      const auto tag = ValueTag(std::span(result.values).subspan(row * 40, 40));
      ASSERT_TRUE(tag) << "a torn value";
      numbers.insert(*tag & 0xFFFFFFFF);
      const std::uint64_t key = KeyNumber(std::span(result.keys).subspan(row * 8, 8));
      EXPECT_EQ(*tag >> 32, key < 500 ? 3u : 4u);
    }
    ASSERT_EQ(numbers.size(), 1u);
    EXPECT_GE(*numbers.begin(), before) << "a batch that had ended is not seen";
  }
  stop = true;
  writer.join();
}

TEST_F(SearchTest, ErasesWhatMatches) {
  for (const auto& [key_size, value_size] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{8, 40}, {32, 8}, {5, 2048}}) {
    OpenOptions open = TestOpenOptions();
    if (Random(2) == 0) open.growth_pause = 0;
    ModelledStore store(NewPath(), SearchedShape(key_size, value_size), open);
    for (int round = 0; round < 5; ++round) {
      TestBatch batch = RandomBatch(store, 800);
      store.Apply(batch);
      const Query query = RandomQuery();
      const Rows rows = PlainScan(query, store.store().attributes(), store.model());
      EXPECT_EQ(store.store().EraseWhere(query), rows.size());
      for (const auto& [key, value] : rows) store.model().erase(key);
      store.ExpectContents();
    }
    store.Reopen();
    EXPECT_EQ(store.store().EraseWhere({}), store.model().size());
    store.model().clear();
    store.Apply(Op::kInsert, Numbers(0, 3000));  // their room is used again
    store.Reopen();
  }
}

/// Items leave what is erased, one batch after the other, meanwhile: none of them goes.
TEST_F(SearchTest, ErasesNothingThatDoesNotMatchAnyMore) {
  const std::string path = NewPath();
  Store store = Store::Create(path, SearchedShape(8, 40), TestOpenOptions());
  constexpr std::uint64_t kKeys = 40'000;
  TestBatch all(8, 40);
  for (std::uint64_t key = 0; key < kKeys; ++key) all.Add(Op::kInsert, key, Tag(1, key));
  ASSERT_EQ(all.CallFor(store, Op::kInsert), 0u);
  std::vector<std::uint64_t> order = Numbers(0, kKeys);
  for (std::uint64_t i = kKeys - 1; i > 0; --i) std::swap(order[i], order[Random(i + 1)]);
  std::set<std::uint64_t> moved;
  std::set<std::uint64_t> gone;
  std::atomic<bool> stop{false};
  std::atomic<bool> begun{false};
  std::thread writer([&] {
    for (std::uint64_t first = 0; first < kKeys && !stop; first += 50) {
      TestBatch batch(8, 40);
      for (std::uint64_t i = first; i < first + 50; ++i) {
        batch.Add(Op::kUpdate, order[i], Tag(2, order[i]));
      }
      batch.CallFor(store, Op::kUpdate);
      for (std::uint64_t i = 0; i < 50; ++i) {
        (batch.result(i) == Result::kOk ? moved : gone).insert(order[first + i]);
      }
      begun = true;
    }
    begun = true;
  });
  while (!begun) std::this_thread::yield();
  const std::uint64_t erased = store.EraseWhere({{.attribute = kSession, .least = 1, .most = 1}});
  stop = true;
  writer.join();
  EXPECT_EQ(erased + moved.size(), kKeys) << "those that did not move were erased";
  std::set<std::uint64_t> there;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    there.insert(KeyNumber(key));
    EXPECT_EQ(ValueTag(value).value_or(0) & 0xFFFFFFFF, 2u);
  });
  EXPECT_EQ(there, moved);
  for (const std::uint64_t key : gone) EXPECT_FALSE(moved.contains(key));
  store.Close();
  ExpectSound(path, moved.size());
}

/// Gives an item the value with a tag.
Store::ValueEditor PutTag(std::uint64_t tag) {
  return [tag](std::span<const std::byte>, std::span<std::byte> value) {
    const std::string put = MakeValue(tag, static_cast<std::uint32_t>(value.size()));
    std::memcpy(value.data(), put.data(), value.size());
  };
}

TEST_F(SearchTest, UpdatesWhatMatches) {
  for (const auto& [key_size, value_size] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{8, 40}, {32, 8}, {5, 2048}}) {
    OpenOptions open = TestOpenOptions();
    if (Random(2) == 0) open.growth_pause = 0;
    if (Random(2) == 0) open.search_index_bytes = 1 << 20;
    ModelledStore store(NewPath(), SearchedShape(key_size, value_size), open);
    for (int round = 0; round < 5; ++round) {
      TestBatch batch = RandomBatch(store, 800);
      store.Apply(batch);
      const Query query = RandomQuery();
      const Rows rows = PlainScan(query, store.store().attributes(), store.model());
      const std::uint64_t tag = RandomTag();
      Rows seen;
      const std::uint64_t updated = store.store().UpdateWhere(
          query, [&](std::span<const std::byte> key, std::span<std::byte> value) {
            seen.emplace(AsString(key), AsString(value));
            PutTag(tag)(key, value);
          });
      EXPECT_EQ(updated, rows.size());
      EXPECT_EQ(seen, rows);
      for (const auto& [key, value] : rows) store.model()[key] = MakeValue(tag, value_size);
      store.ExpectContents();
      ExpectMatches(store, {RandomQuery(), RandomQuery()}, {});
    }
    store.Reopen();
  }
}

/// A pool that can't grow has few cells to spare: all items are updated, or it is said.
TEST_F(SearchTest, UpdatesAFullPool) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), TestOpenOptions(1 << 20));
  for (std::uint64_t first = 0;; first += 500) {
    TestBatch batch = store.NewBatch();
    for (std::uint64_t key = first; key < first + 500; ++key) batch.Add(Op::kInsert, key, key);
    const bool full = batch.CallFor(store.store(), Op::kInsert) > 0;
    batch.Compare(store.model(), true);
    if (full) break;
  }
  std::uint64_t updated = 0;
  const std::optional<ErrorCode> error =
      ErrorOf([&] { updated = store.store().UpdateWhere({}, PutTag(Tag(7, 7))); });
  EXPECT_TRUE(error ? error == ErrorCode::kNoSpace : updated == store.model().size());
  const std::string put = MakeValue(Tag(7, 7), 40);
  std::uint64_t items = 0;
  std::uint64_t with_new = 0;
  store.store().ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    ++items;
    const std::string its = AsString(value);
    with_new += its == put ? 1 : 0;
    EXPECT_TRUE(its == put || its == store.model().at(AsString(key)));
  });
  EXPECT_EQ(items, store.model().size());
  EXPECT_EQ(with_new == items, !error);
  store.store().Close();
  ExpectSound(store.path(), items);
}

/// One cell alone, so that none is kept for updates, and it has an item: that can't be updated.
TEST_F(SearchTest, AnUpdateWithoutAnyFreeCellSaysSo) {
  constexpr std::uint32_t kLarge = 512 << 10;
  ModelledStore store(NewPath(), SearchedShape(8, kLarge), TestOpenOptions(1 << 20));
  store.Apply(Op::kInsert, {0});
  ASSERT_EQ(store.store().Stats().value_cells, 1u) << "one is kept for updates";
  std::string message;
  ASSERT_EQ(ErrorOf([&] { store.store().UpdateWhere({}, PutTag(Tag(7, 7))); }, &message),
            ErrorCode::kNoSpace);
  EXPECT_NE(message.find("new values of 1 items; 0 were changed"), std::string::npos) << message;
  store.ExpectContents();
  store.Apply(Op::kErase, {0});  // whose cell does for another
  store.Apply(Op::kInsert, {1});
  store.Reopen();
}

/// Few cells, all but one with items: that one does for all.
TEST_F(SearchTest, AFullPoolOfFewCellsIsUpdated) {
  constexpr std::uint32_t kLarge = 32 << 10;
  ModelledStore store(NewPath(), SearchedShape(8, kLarge), TestOpenOptions(1 << 20));
  for (bool full = false; !full;) {
    TestBatch batch = store.NewBatch();
    batch.Add(Op::kInsert, store.model().size(), 1);
    store.Apply(batch, true);
    full = batch.result(0) == Result::kNoSpace;
  }
  ASSERT_LT(store.store().Stats().value_cells, 64u);
  const std::uint64_t items = store.model().size();
  EXPECT_EQ(store.store().Stats().value_cells, items + 1);
  store.Apply(Op::kUpdate, {0}, 5);
  store.Apply(Op::kUpsert, {1}, 5);
  store.Apply(Op::kUpdate, Numbers(0, items), 6);
  EXPECT_EQ(store.store().UpdateWhere({}, PutTag(Tag(7, 7))), items);
  for (auto& [key, value] : store.model()) value = MakeValue(Tag(7, 7), kLarge);
  store.Reopen();
}

/// What the editor throws is thrown; the items it was called for stay as they were.
TEST_F(SearchTest, AnUpdateThatThrowsChangesNothing) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 300));
  int calls = 0;
  EXPECT_THROW(store.store().UpdateWhere({},
                                         [&](auto key, auto value) {
                                           PutTag(9)(key, value);
                                           if (++calls == 200) throw std::runtime_error("enough");
                                         }),
               std::runtime_error);
  EXPECT_EQ(calls, 200);
  store.ExpectContents();
  EXPECT_EQ(ErrorOf([&] { store.store().UpdateWhere({{.attribute = 3}}, PutTag(1)); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.store().UpdateWhere({{.attribute = kBoth, .least = 5, .most = 4}}, PutTag(1)),
            0u);
  store.Apply(Op::kUpdate, Numbers(0, 300), 7);
  store.Reopen();
}

/// Rows of n items at a time: those that match, each once; what it throws changes none of the rows.
TEST_F(SearchTest, UpdatesRows) {
  for (const std::uint32_t key_size : {8u, 13u}) {
    ModelledStore store(NewPath(), SearchedShape(key_size, 40), TestOpenOptions());
    for (std::uint64_t first = 0; first < 6000; first += 1000) {
      store.Apply(Op::kInsert, Numbers(first, 1000), first);
    }
    const Query query = RandomQuery();
    const Rows rows = PlainScan(query, store.store().attributes(), store.model());
    Rows seen;
    std::uint64_t calls = 0;
    const auto edit = [&](std::span<const std::byte> keys, std::span<std::byte> values) {
      ++calls;
      ASSERT_GE(keys.size(), key_size);
      ASSERT_EQ(keys.size() / key_size, values.size() / 40);
      for (std::uint64_t i = 0; i < keys.size() / key_size; ++i) {
        const auto value = values.subspan(i * 40, 40);
        seen.emplace(AsString(keys.subspan(i * key_size, key_size)), AsString(value));
        PutTag(77)({}, value);
      }
    };
    EXPECT_EQ(store.store().UpdateRowsWhere(query, edit), rows.size());
    EXPECT_EQ(seen, rows);
    EXPECT_LE(calls, 1 + rows.size() / 1000);
    for (const auto& [key, value] : rows) store.model()[key] = MakeValue(77, 40);
    EXPECT_THROW(store.store().UpdateRowsWhere({},
                                               [&](auto keys, auto values) {
                                                 seen.clear();
                                                 edit(keys, values);
                                                 throw std::runtime_error("no");
                                               }),
                 std::runtime_error);
    store.ExpectContents();
  }
}

/// An item that another batch takes out of what is updated meanwhile stays as that left it.
TEST_F(SearchTest, UpdatesNothingThatDoesNotMatchAnyMore) {
  const std::string path = NewPath();
  Store store = Store::Create(path, SearchedShape(8, 40), TestOpenOptions());
  constexpr std::uint64_t kKeys = 40'000;
  TestBatch all(8, 40);
  for (std::uint64_t key = 0; key < kKeys; ++key) all.Add(Op::kInsert, key, Tag(1, key));
  ASSERT_EQ(all.CallFor(store, Op::kInsert), 0u);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> moved{0};
  std::thread writer([&] {
    for (std::uint64_t key = kKeys; key > 0 && !stop; key -= 50) {
      TestBatch batch(8, 40);
      for (std::uint64_t i = 1; i <= 50; ++i) batch.Add(Op::kUpdate, key - i, Tag(2, key - i));
      batch.CallFor(store, Op::kUpdate);
      moved += 50;
    }
  });
  while (moved == 0) std::this_thread::yield();
  std::set<std::uint64_t> updated;
  const std::uint64_t count = store.UpdateWhere(
      {{.attribute = kSession, .least = 1, .most = 1}}, [&](auto key, auto value) {
        EXPECT_EQ(ValueTag(value).value_or(0) & 0xFFFFFFFF, 1u);
        updated.insert(KeyNumber(key));
        PutTag(Tag(3, KeyNumber(key)))(key, value);
      });
  stop = true;
  writer.join();
  EXPECT_EQ(count, updated.size());
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    const std::uint64_t session = ValueTag(value).value_or(0) & 0xFFFFFFFF;
    const bool was_moved = KeyNumber(key) >= kKeys - moved;
    EXPECT_TRUE(session == 2 ? was_moved : session == 3 && updated.contains(KeyNumber(key)));
  });
  store.Close();
  ExpectSound(path, kKeys);
}

TEST_F(SearchTest, ErasesInAStoreWithACapacity) {
  OpenOptions open = TestOpenOptions();
  open.capacity.items = 1000;
  open.capacity.policy = EvictionPolicy::kLru;
  ModelledStore store(NewPath(), SearchedShape(8, 40), open);
  TestBatch batch = store.NewBatch();
  for (std::uint64_t i = 0; i < 1000; ++i) batch.Add(Op::kInsert, i, Tag(i % 4, 0));
  store.Apply(batch);
  EXPECT_EQ(store.store().EraseWhere({{.attribute = kSession, .least = 2, .most = 2}}), 250u);
  for (std::uint64_t i = 2; i < 1000; i += 4) store.model().erase(MakeKey(i, 8));
  store.Apply(Op::kInsert, Numbers(5000, 250));  // for which there is room again
  EXPECT_EQ(store.store().Stats().evicted, 0u);
  store.ExpectContents();
}

TEST_F(SearchTest, ExportsWhatMatches) {
  ModelledStore store(NewPath(), SearchedShape(16, 24), TestOpenOptions());
  TestBatch batch = RandomBatch(store, 2000);
  store.Apply(batch);
  const Query query{{.attribute = kSession, .least = 7, .most = 7},
                    {.attribute = kModel, .least = 1, .most = 3}};
  Exporter exporter = store.store().Export({.where = query});
  Rows rows;
  Bytes keys(10 * 16);
  Bytes values(10 * 24);
  while (const std::uint64_t n = exporter.Next(keys, values)) {
    for (std::uint64_t i = 0; i < n; ++i) {
      rows.emplace(AsString(std::span(keys).subspan(i * 16, 16)),
                   AsString(std::span(values).subspan(i * 24, 24)));
    }
  }
  EXPECT_EQ(rows, PlainScan(query, store.store().attributes(), store.model()));
  EXPECT_FALSE(rows.empty());
  EXPECT_EQ(ErrorOf([&] { (void)store.store().Export({.where = {{.attribute = 3}}}); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SearchTest, WaitsForNobodyWhoWaitsForIt) {
  Store store = Store::Create(NewPath(), SearchedShape(8, 40), TestOpenOptions());
  Exporter exporter = store.Export();
  Bytes key(8);
  EXPECT_EQ(exporter.Next(key, {}), 0u);  // it has ended
  EXPECT_EQ(store.Search(std::vector<Query>{{}}).counts[0], 0u);
  TestBatch batch(8, 40);
  batch.Add(Op::kInsert, 1, 1);
  batch.Add(Op::kInsert, 2, 1);
  EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  exporter = store.Export();
  EXPECT_EQ(ErrorOf([&] { (void)store.Search(std::vector<Query>{{}}); }), ErrorCode::kBusy);
  EXPECT_EQ(ErrorOf([&] { store.EraseWhere({}); }), ErrorCode::kBusy);
  exporter = {};
  EXPECT_EQ(store.EraseWhere({}), 2u);
}

TEST_F(SearchTest, RefusesBadQueries) {
  Store store = Store::Create(NewPath(), SearchedShape(8, 40), TestOpenOptions());
  const auto code = [&](const std::vector<Query>& queries, const SearchOptions& options = {}) {
    return ErrorOf([&] { (void)store.Search(queries, options); });
  };
  EXPECT_EQ(code({{}, {{.attribute = 0}, {.attribute = 3}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({{}}, {.keys = false, .values = true}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { store.EraseWhere({{.attribute = 8}}); }), ErrorCode::kInvalidArgument);
  Store without = Store::Create(NewPath(), Shape(8, 40), TestOpenOptions());
  EXPECT_TRUE(without.attributes().empty());
  EXPECT_EQ(ErrorOf([&] { (void)without.Search(std::vector<Query>{{{.attribute = 0}}}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(without.Search(std::vector<Query>{{}}).counts[0], 0u);
  without.Close();
  EXPECT_EQ(ErrorOf([&] { (void)without.Search(std::vector<Query>{{}}); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SearchTest, RefusesBadAttributes) {
  const auto refused = [&](const std::vector<Attribute>& attributes, const std::string& why) {
    CreateOptions create = Shape(8, 40);
    create.attributes = attributes;
    std::string message;
    const std::string path = NewPath();
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, create, TestOpenOptions()); }, &message),
              ErrorCode::kInvalidArgument)
        << why;
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  refused({{"", 0, 4}}, "name");
  refused({{"1st", 0, 4}}, "name");
  refused({{"and", 0, 4}}, "name");
  refused({{"a b", 0, 4}}, "name");
  refused({{"\xC3\xA9", 0, 4}}, "name");
  refused({{std::string("a\0b", 3), 0, 4}}, "name");
  refused({{"sixteen_letters_", 0, 4}}, "name");
  refused({{"a", 0, 4}, {"b", 0, 4}, {"a", 8, 4}}, "two attributes");
  for (const std::uint32_t bytes : {0u, 1u, 2u, 5u, 16u, 260u}) {
    refused({{"a", 0, bytes}}, "4 or 8");
  }
  refused({{"a", 33, 8}}, "not within values of 40 bytes");
  refused({{"a", 0xFFFF'FFFC, 8}}, "not within");
  std::vector<Attribute> many;
  for (std::uint32_t i = 0; i < 9; ++i) many.push_back({"a" + std::to_string(i), i, 4});
  refused(many, "9 attributes");
  many.pop_back();
  many.back().name = "fifteen_letters";
  CreateOptions create = Shape(8, 40);
  create.attributes = many;
  const std::string path = NewPath();
  Store::Create(path, create, TestOpenOptions()).Close();
  EXPECT_EQ(PoolReader(path).Stats().attributes, many);
  EXPECT_EQ(Store::OpenOrCreate(path, create, TestOpenOptions()).attributes(), many);
  EXPECT_EQ(Store::OpenOrCreate(path, Shape(8, 40), TestOpenOptions()).attributes(), many);
  create.attributes.pop_back();
  EXPECT_EQ(ErrorOf([&] { Store::OpenOrCreate(path, create, TestOpenOptions()); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(SearchTest, AttributesGoWhereThePoolGoes) {
  ModelledStore store(NewPath(), SearchedShape(8, 40), TestOpenOptions());
  TestBatch batch = RandomBatch(store, 3000);
  store.Apply(batch);
  store.store().Compact();
  const std::string whole = NewPath();
  store.store().Snapshot(whole);
  store.Apply(Op::kUpsert, Numbers(0, 10));
  const std::string increment = NewPath();
  store.store().Snapshot(increment, {.base = whole});
  const std::string restored = NewPath();
  Store again =
      Store::Restore(std::vector<std::string>{whole, increment}, restored, TestOpenOptions());
  EXPECT_EQ(again.attributes(), TestAttributes());
  EXPECT_EQ(again.Stats().attributes, TestAttributes());
  const std::vector<Query> queries{{{.attribute = kSession, .least = 7, .most = 7}}};
  EXPECT_EQ(again.Search(queries).keys, store.store().Search(queries).keys);
}

TEST(QueryTextTest, IsRead) {
  const std::vector<Attribute> attributes = TestAttributes();
  const auto read = [&](const std::string& text) { return ParseQuery(text, attributes); };
  EXPECT_EQ(read(""), Query{});
  EXPECT_EQ(read(" \t\n"), Query{});
  EXPECT_EQ(read("session = 7 and model < 3"),
            (Query{{.attribute = kSession, .least = 7, .most = 7},
                   {.attribute = kModel, .least = 0, .most = 2}}));
  EXPECT_EQ(read("both>=0x10 and both<=20"),
            (Query{{.attribute = kBoth, .least = 16}, {.attribute = kBoth, .most = 20}}));
  EXPECT_EQ(read("  model>5"), (Query{{.attribute = kModel, .least = 6}}));
  EXPECT_EQ(read("both = 18446744073709551615"),
            (Query{{.attribute = kBoth, .least = kAllOnes, .most = kAllOnes}}));
  for (const char* const none : {"model < 0", "both > 0xffffffffffffffff"}) {
    const Query query = read(none);
    ASSERT_EQ(query.size(), 1u);
    EXPECT_GT(query[0].least, query[0].most);
  }
}

TEST(QueryTextTest, ThatIsWrongIsRefused) {
  const std::vector<Attribute> attributes = TestAttributes();
  const auto refused = [&](const std::string& text, const std::string& why) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { ParseQuery(text, attributes); }, &message), ErrorCode::kInvalidArgument)
        << text;
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refused("sesion = 7", "no attribute 'sesion'; the pool has session, model, both");
  refused("session", "one of = < <= > >= is expected at the end");
  refused("session 7", "is expected at '7'");
  refused("session == 7", "is expected at '== 7'");
  refused("session != 7", "is expected at '!= 7'");
  refused("session =", "a whole number from 0 to 2^64 - 1 is expected at the end");
  refused("session = -1", "a whole number");
  refused("session = 7x", "a whole number");
  refused("session = 0x", "a whole number");
  refused("session = 1.5", "\"and\" or the end is expected at '.5'");
  refused("session = 18446744073709551616", "a whole number");
  refused("session = 7 model = 3", "\"and\" or the end is expected at 'model = 3'");
  refused("session = 7 and", "the name of an attribute is expected at the end");
  refused("and session = 7", "no attribute 'and'");
  refused("session = 7 or model = 3", "\"and\" or the end");
  refused("(session = 7)", "the name of an attribute is expected at '(session");
  refused("session = 7\x1b[2J", "expected at '?[2J'");
  std::string message;
  EXPECT_TRUE(ErrorOf([&] { ParseQuery("a = 1", {}); }, &message));
  EXPECT_NE(message.find("the pool has none"), std::string::npos);
}

}  // namespace
}  // namespace gpm::test
