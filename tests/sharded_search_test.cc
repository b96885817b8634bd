// Searches of a store over several shards give what one store with the same items would.

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpmstore/sharded_store.h"
#include "shard/merge_matches.h"
#include "tests/searched_items.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ApplyTo;
using test::ErrorOf;
using test::ExpectSame;
using test::kSearchedValueSize;
using test::Numbers;
using test::SearchedShape;
using test::SomeQueries;
using test::TestOpenOptions;

class ShardedSearchTest : public test::PoolTest,
                          public ::testing::WithParamInterface<std::uint32_t> {
 protected:
  ShardedStore NewSharded(std::uint32_t key_size, const OpenOptions& open = TestOpenOptions()) {
    return ShardedStore::Create(NewPath(), SearchedShape(key_size), {.shards = GetParam()}, open);
  }
};

INSTANTIATE_TEST_SUITE_P(Shards, ShardedSearchTest, ::testing::Values(1u, 2u, 3u, 7u));

TEST_P(ShardedSearchTest, GivesWhatOneStoreDoes) {
  for (const std::uint32_t key_size : {8u, 13u}) {
    ShardedStore sharded = NewSharded(key_size);
    Store one = Store::Create(NewPath(), SearchedShape(key_size), TestOpenOptions());
    EXPECT_EQ(sharded.attributes(), one.attributes());
    const std::vector<Query> queries = SomeQueries(one.attributes());
    for (const std::uint64_t items : {0u, 3u, 2500u}) {
      ApplyTo(sharded, Op::kUpsert, Numbers(100, items));
      ApplyTo(one, Op::kUpsert, Numbers(100, items));
      for (const SearchOptions& options :
           {SearchOptions{}, SearchOptions{.keys = false}, SearchOptions{.values = true},
            SearchOptions{.limit = 5, .values = true}, SearchOptions{.limit = 0}}) {
        ExpectSame(sharded.Search(queries, options), one.Search(queries, options));
      }
      ExpectSame(sharded.Search({}, {}), one.Search({}, {}));
    }
    for (const Query& query : queries) {
      EXPECT_EQ(sharded.EraseWhere(query), one.EraseWhere(query));
      ExpectSame(sharded.Search(queries), one.Search(queries));
    }
    EXPECT_EQ(sharded.Stats().items, 0u) << "one query matches all";
  }
}

TEST_P(ShardedSearchTest, UpdatesWhatOneStoreDoes) {
  ShardedStore sharded = NewSharded(8);
  Store one = Store::Create(NewPath(), SearchedShape(8), TestOpenOptions());
  const std::vector<Query> queries = SomeQueries(one.attributes());
  ApplyTo(sharded, Op::kUpsert, Numbers(100, 2500));
  ApplyTo(one, Op::kUpsert, Numbers(100, 2500));
  const auto next_model = [](std::span<const std::byte>, std::span<std::byte> value) {
    value[4] = static_cast<std::byte>((static_cast<unsigned>(value[4]) + 1) % 7);
    value[20] ^= std::byte{0xFF};
  };
  const auto next_models = [&](std::span<const std::byte> keys, std::span<std::byte> values) {
    for (std::size_t i = 0; i < keys.size() / 8; ++i) {
      next_model({}, values.subspan(i * kSearchedValueSize, kSearchedValueSize));
    }
  };
  for (const Query& query : queries) {
    const std::uint64_t matching = one.Search({&query, 1}).counts[0];
    EXPECT_EQ(sharded.UpdateWhere(query, next_model), matching);
    EXPECT_EQ(one.UpdateWhere(query, next_model), matching);
    ExpectSame(sharded.Search(queries, {.values = true}), one.Search(queries, {.values = true}));
    EXPECT_EQ(sharded.UpdateRowsWhere(query, next_models), one.UpdateWhere(query, next_model));
    ExpectSame(sharded.Search(queries, {.values = true}), one.Search(queries, {.values = true}));
  }
}

/// What the editor throws ends it: the shards that it did not come to are as they were.
TEST_P(ShardedSearchTest, AnUpdateThatThrowsGoesToNoOtherShard) {
  ShardedStore store = NewSharded(8);
  ApplyTo(store, Op::kInsert, Numbers(0, 500));
  std::vector<std::string> keys;
  const std::uint64_t enough = store.ShardStats(0).items + 1;  // the first one of shard 1
  const auto change = [&](std::span<const std::byte> key, std::span<std::byte> value) {
    keys.push_back(test::AsString(key));
    value[23] = std::byte{0xAA};
    if (keys.size() == enough) throw std::runtime_error("enough");
  };
  if (GetParam() == 1) {
    EXPECT_EQ(store.UpdateWhere({}, change), 500u);
  } else {
    EXPECT_THROW(store.UpdateWhere({}, change), std::runtime_error);
    std::set<std::uint32_t> shards;
    for (const std::string& key : keys) shards.insert(store.ShardOf(std::as_bytes(std::span(key))));
    EXPECT_EQ(shards, (std::set<std::uint32_t>{0, 1}));
  }
  std::uint64_t changed = 0;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    const bool has = value[23] == std::byte{0xAA};
    changed += has ? 1 : 0;
    EXPECT_EQ(has, store.ShardOf(key) == 0);
  });
  EXPECT_EQ(changed, store.ShardStats(0).items);
  EXPECT_EQ(ErrorOf([&] { store.UpdateWhere({{.attribute = 9}}, change); }),
            ErrorCode::kInvalidArgument);
  const Exporter open = store.Export();
  EXPECT_EQ(ErrorOf([&] { store.UpdateWhere({}, change); }), ErrorCode::kBusy);
}

TEST_P(ShardedSearchTest, AnIndexIsDividedAndGivesTheSame) {
  OpenOptions open = TestOpenOptions();
  open.search_index_bytes = std::uint64_t{8} << 20;
  ShardedStore sharded = NewSharded(8, open);
  ApplyTo(sharded, Op::kInsert, Numbers(1, 3000));
  const std::vector<Query> queries = SomeQueries(sharded.attributes());
  const SearchResult scanned = sharded.Search(queries);
  for (int again = 0; again < 3; ++again) ExpectSame(sharded.Search(queries), scanned);
  const StoreStats stats = sharded.Stats();
  EXPECT_LT(stats.search_scans, stats.searches);
  EXPECT_GT(stats.search_index_bytes, 0u);
  EXPECT_LE(stats.search_index_bytes, open.search_index_bytes);
}

/// Less than a byte for each shard: too little for an index, and no error, as of one store.
TEST_P(ShardedSearchTest, AnIndexMayHaveNoRoom) {
  OpenOptions open = TestOpenOptions();
  open.search_index_bytes = 1;
  open.search_indexed = {SearchedShape(8).attributes.front().name};
  ShardedStore sharded = NewSharded(8, open);
  ApplyTo(sharded, Op::kInsert, Numbers(1, 100));
  const std::vector<Query> all = {{}};
  for (int again = 0; again < 3; ++again) EXPECT_EQ(sharded.Search(all).counts[0], 100u);
  EXPECT_EQ(sharded.Stats().search_indexes_made, 0u);
}

TEST_P(ShardedSearchTest, BesideBatches) {
  ShardedStore store = NewSharded(8);
  // The items that stay match throughout; others come and go.
  ApplyTo(store, Op::kInsert, Numbers(1, 2000));
  const std::vector<Query> queries = {ParseQuery("session = 7", store.attributes())};
  const SearchResult right = store.Search(queries);
  std::atomic<bool> stop{false};
  std::thread beside([&] {
    for (std::uint64_t round = 0; !stop; ++round) {
      ApplyTo(store, round % 2 == 0 ? Op::kUpsert : Op::kErase, Numbers(10'000, 2000));
    }
  });
  for (int round = 0; round < 30; ++round) {
    const SearchResult found = store.Search(queries, {.values = true});
    EXPECT_GE(found.counts[0], right.counts[0]);
    EXPECT_LE(found.counts[0], 2 * right.counts[0]);
    std::uint64_t there = 0;
    for (std::uint64_t row = 0; row < found.counts[0]; ++row) {
      std::uint32_t session = 0;
      std::memcpy(&session, found.values.data() + row * kSearchedValueSize, sizeof session);
      ASSERT_EQ(session, 7u);
      const auto key = std::span(found.keys).subspan(row * 8, 8);
      for (std::uint64_t i = 0; i < right.counts[0]; ++i) {
        there += std::ranges::equal(key, std::span(right.keys).subspan(i * 8, 8));
      }
    }
    ASSERT_EQ(there, right.counts[0]);
  }
  stop = true;
  beside.join();
}

TEST_P(ShardedSearchTest, BadQueriesAreRefused) {
  ShardedStore store = NewSharded(8);
  ApplyTo(store, Op::kInsert, Numbers(1, 100));
  const std::vector<Query> unknown = {{{.attribute = 2}}};
  EXPECT_EQ(ErrorOf([&] { store.Search(unknown); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { store.EraseWhere(unknown[0]); }), ErrorCode::kInvalidArgument);
  const std::vector<Query> all = {{}};
  EXPECT_EQ(ErrorOf([&] { store.Search(all, {.keys = false, .values = true}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.Search(all).counts[0], 100u);
  CreateOptions other = SearchedShape(8);
  other.attributes.pop_back();
  const std::string folder = NewPath();
  ShardedStore::OpenOrCreate(folder, SearchedShape(8), {.shards = GetParam()}).Close();
  EXPECT_EQ(ErrorOf([&] { ShardedStore::OpenOrCreate(folder, other, {.shards = GetParam()}); }),
            ErrorCode::kInvalidArgument);
  store.Close();
  EXPECT_EQ(ErrorOf([&] { store.Search(all); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace gpm
