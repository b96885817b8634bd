// Searches of a store over several shards give what one store with the same items would.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gpmstore/sharded_store.h"
#include "shard/merge_matches.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ErrorOf;
using test::Numbers;
using test::TestBatch;
using test::TestOpenOptions;

constexpr std::uint32_t kValueSize = 24;

CreateOptions SearchedShape(std::uint32_t key_size) {
  CreateOptions create = test::Shape(key_size, kValueSize);
  create.attributes = {{"session", 0, 4}, {"model", 4, 4}};
  return create;
}
std::uint64_t Tag(std::uint64_t session, std::uint64_t model) { return session | model << 32; }

/// @param kind of items with these numbers, in sessions and models that follow from them
template <class AnyStore>
void ApplyTo(AnyStore& store, Op kind, const std::vector<std::uint64_t>& numbers) {
  TestBatch batch(store.key_size(), store.value_size());
  for (const std::uint64_t i : numbers) batch.Add(kind, i, Tag(i % 40, i % 7));
  batch.ApplySingle(store, kind);
}

std::vector<Query> Queries(const std::vector<Attribute>& attributes) {
  std::vector<Query> queries;
  for (const char* text : {"session = 7", "model < 3", "session = 7 and model = 0", "session > 50",
                           "", "session >= 38 and model > 1"}) {
    queries.push_back(ParseQuery(text, attributes));
  }
  return queries;
}

void ExpectSame(const SearchResult& a, const SearchResult& b) {
  EXPECT_EQ(a.counts, b.counts);
  EXPECT_EQ(a.offsets, b.offsets);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.values, b.values);
}

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
    const std::vector<Query> queries = Queries(one.attributes());
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

TEST_P(ShardedSearchTest, AnIndexIsDividedAndGivesTheSame) {
  OpenOptions open = TestOpenOptions();
  open.search_index_bytes = std::uint64_t{8} << 20;
  ShardedStore sharded = NewSharded(8, open);
  ApplyTo(sharded, Op::kInsert, Numbers(1, 3000));
  const std::vector<Query> queries = Queries(sharded.attributes());
  const SearchResult scanned = sharded.Search(queries);
  for (int again = 0; again < 3; ++again) ExpectSame(sharded.Search(queries), scanned);
  const StoreStats stats = sharded.Stats();
  EXPECT_LT(stats.search_scans, stats.searches);
  EXPECT_GT(stats.search_index_bytes, 0u);
  EXPECT_LE(stats.search_index_bytes, open.search_index_bytes);
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
      std::memcpy(&session, found.values.data() + row * kValueSize, sizeof session);
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
