// What the kernels of HashGraph do (bench/peers/hashgraph_table.h), carried out on the host: tiles
// whose lanes are threads, and two of them at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/hashgraph_table.h"
#include "tests/host_hashgraph.h"
#include "tests/peer_batches.h"

namespace gpm::bench::peers::hashgraph {
namespace {

using Keys = std::vector<std::uint64_t>;

/// How a table is built and asked.
template <Layout kRows, bool kSorts, bool kOrders, unsigned kTileLanes>
struct Variant {
  using Graph = HostHashGraph<kRows, kSorts, kTileLanes>;
  static constexpr Layout kLayout = kRows;
  static constexpr bool kOrdered = kOrders;
  static std::string Name() {
    const std::string name = kRows == Layout::kEllpack  ? "ellpack"
                             : kRows == Layout::kSliced ? "sliced"
                             : kOrders                  ? "ordered"
                             : kSorts                   ? "v2"
                                                        : "v1";
    return name + "_" + std::to_string(kTileLanes);
  }
};

template <class Variant>
class HashGraphTest : public testing::Test {
 protected:
  /// A table for so many items, and nothing in it.
  void Make(std::uint64_t items) {
    graph_ = std::make_unique<typename Variant::Graph>(items);
    version_of_.clear();
  }
  /// Builds a batch in, and looks at each row.
  void Build(const Keys& keys) {
    version_ += 1000000;
    const auto answers =
        Apply(Op::kInsert, keys, [&](const KernelBatch& batch) { graph_->Build(batch); });
    ExpectAll(answers, Result::kOk);
    version_of_.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) version_of_.emplace(keys[i], version_ + i);
    ASSERT_NO_FATAL_FAILURE(ExpectRows());
  }
  void MakeAndBuild(const Keys& keys) {
    Make(keys.size());
    Build(keys);
  }
  /// Finds all that was built in, in another order, and does not find others.
  void ExpectFinds(const Keys& others) {
    Keys keys = others;
    for (const auto& item : version_of_) keys.push_back(item.first);
    std::ranges::shuffle(keys, source_.random);
    const auto answers = Find(keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto [first, last] = version_of_.equal_range(keys[i]);
      const bool there = first != last;
      ASSERT_EQ(ResultName(answers.results[i]), ResultName(there ? Result::kOk : Result::kNotFound))
          << keys[i];
      if (!there) continue;
      const auto version = VersionOf(keys[i], answers.found[i]);
      ASSERT_TRUE(std::any_of(first, last, [&](const auto& item) {
        return item.second == version;
      })) << keys[i];
    }
  }
  Answers<Value> Find(const Keys& keys, Op op = Op::kFind) {
    return Apply(op, keys, [&](const KernelBatch& batch) {
      Variant::kOrdered ? graph_->ApplyOrdered(batch) : graph_->Apply(batch);
    });
  }
  /// New keys of one bucket.
  Keys NewOf(std::uint32_t bucket, std::size_t n) {
    Keys keys;
    while (keys.size() < n) {
      const std::uint64_t key = source_.New(1)[0];
      if (graph_->table.BucketOf(key) == bucket) keys.push_back(key);
    }
    return keys;
  }
  std::uint32_t BucketOf(std::uint64_t key) const { return graph_->table.BucketOf(key); }

  std::unique_ptr<typename Variant::Graph> graph_;
  KeySource<std::uint64_t> source_;

 private:
  template <class F>
  Answers<Value> Apply(Op op, const Keys& keys, const F& f) {
    return WithBatch(
        {op}, keys, RowsOf<Value>(keys, version_),
        [&](const KernelBatch& batch) {
          std::fill_n(batch.results, batch.n, Result::kNoSpace);  // nobody answers so
          f(batch);
        },
        keys.size());
  }
  /// Rows lie one behind the other. Each has exactly the items of its bucket, then free places, as
  /// many as its layout wants.
  void ExpectRows() {
    const auto& table = graph_->table;
    using Items = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
    std::vector<Items> items(table.buckets);
    for (const auto& item : version_of_) items[table.BucketOf(item.first)].push_back(item);
    const auto widest = [&](std::uint64_t first, std::uint64_t last) {
      std::size_t width = 0;
      for (std::uint64_t b = first; b < std::min(last, table.buckets); ++b) {
        width = std::max(width, items[b].size());
      }
      return width;
    };
    const std::size_t widest_of_all = widest(0, table.buckets);
    std::size_t widest_of_slice = 0;
    std::uint64_t end = 0;
    for (std::uint32_t b = 0; b < table.buckets; ++b) {
      if (b % 32 == 0) widest_of_slice = widest(b, b + 32);
      const auto row = table.RowOf(b);
      ASSERT_EQ(row.first, end) << "row " << b;
      ASSERT_EQ(row.places, Variant::kLayout == Layout::kCsr       ? items[b].size()
                            : Variant::kLayout == Layout::kEllpack ? widest_of_all
                                                                   : widest_of_slice)
          << "row " << b;
      end = row.first + row.places;
      ASSERT_LE(end, graph_->places);
      Items there;
      for (std::uint64_t place = row.first; place < row.first + items[b].size(); ++place) {
        const std::uint64_t key = graph_->keys[place];
        there.emplace_back(key, VersionOf(key, graph_->values[place]));
      }
      std::ranges::sort(there);
      std::ranges::sort(items[b]);
      ASSERT_EQ(there, items[b]) << "row " << b;
      for (std::uint64_t place = row.first + items[b].size(); place < end; ++place) {
        ASSERT_NE(table.BucketOf(graph_->keys[place]), b) << "of a free place";
      }
    }
    const bool whole_slices = Variant::kLayout == Layout::kSliced;
    ASSERT_EQ(graph_->places, end + (whole_slices ? -table.buckets % 32 * widest_of_slice : 0));
  }

  std::multimap<std::uint64_t, std::uint64_t> version_of_;  ///< of what was built in
  std::uint64_t version_ = 0;                               ///< of a batch's first row
};

using Variants = testing::Types<
    Variant<Layout::kCsr, false, false, 1>, Variant<Layout::kCsr, false, false, 8>,
    Variant<Layout::kCsr, true, false, 1>, Variant<Layout::kCsr, true, false, 8>,
    Variant<Layout::kCsr, true, true, 1>, Variant<Layout::kCsr, true, true, 8>,
    Variant<Layout::kEllpack, false, false, 1>, Variant<Layout::kEllpack, false, false, 8>,
    Variant<Layout::kSliced, false, false, 1>, Variant<Layout::kSliced, false, false, 8>>;
struct VariantName {
  template <class Variant>
  static std::string GetName(int) {
    return Variant::Name();
  }
};
TYPED_TEST_SUITE(HashGraphTest, Variants, VariantName);

TYPED_TEST(HashGraphTest, WhatIsBuiltInIsFoundAndNothingElse) {
  for (const std::size_t n : {1u, 31u, 1000u, 20000u}) {
    ASSERT_NO_FATAL_FAILURE(this->MakeAndBuild(this->source_.New(n))) << n << " items";
    ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(this->source_.New(n / 4 + 40))) << n << " items";
  }
}

TYPED_TEST(HashGraphTest, EachItemOfAKeyIsInItsRow) {
  const Keys some = this->source_.New(60);
  Keys keys = this->source_.New(100);
  for (int i = 0; i < 300; ++i) keys.push_back(some[this->source_.random() % some.size()]);
  std::ranges::shuffle(keys, this->source_.random);
  ASSERT_NO_FATAL_FAILURE(this->MakeAndBuild(keys));
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(this->source_.New(100)));
  // And of one key alone.
  ASSERT_NO_FATAL_FAILURE(this->MakeAndBuild(Keys(50, some[0])));
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(this->source_.New(100)));
}

TYPED_TEST(HashGraphTest, OfEmptyRowsNothingIsFound) {
  this->Make(1000);
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(this->source_.New(100)));
  ASSERT_NO_FATAL_FAILURE(this->Build(this->source_.New(20)));
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(this->source_.New(300)));
}

/// Rows that a tile goes through in one step or several, some of them full, and some of the last
/// slice, which has fewer buckets.
TYPED_TEST(HashGraphTest, RowsMayHaveManyItems) {
  constexpr std::uint32_t kBuckets = 75;
  this->Make(kBuckets);
  const std::pair<std::uint32_t, std::size_t> sizes[] = {
      {0, 7}, {1, 8}, {31, 9}, {32, 1}, {40, 16}, {63, 3}, {64, 2}, {kBuckets - 1, 17}};
  Keys keys, others;
  for (const auto& [bucket, items] : sizes) {
    const Keys here = this->NewOf(bucket, items);
    const Keys not_here = this->NewOf(bucket, 3);
    keys.insert(keys.end(), here.begin(), here.end());
    others.insert(others.end(), not_here.begin(), not_here.end());
  }
  std::ranges::shuffle(keys, this->source_.random);
  ASSERT_NO_FATAL_FAILURE(this->Build(keys));
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(others));
  // All in one.
  ASSERT_NO_FATAL_FAILURE(this->Build(this->NewOf(33, kBuckets)));
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(others));
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(this->NewOf(33, 3)));
}

/// The keys that tell free places are keys like others.
TYPED_TEST(HashGraphTest, KeysOfFreePlacesMayBeBuiltIn) {
  for (const std::size_t n : {2u, 100u}) {
    this->Make(n);
    const std::uint64_t no_key = this->graph_->table.no_key;
    const std::uint64_t other_no_key = this->graph_->table.other_no_key;
    // Each has free places beside it, or a row that is full.
    for (const std::uint64_t full : {no_key, other_no_key}) {
      Keys filling = this->NewOf(this->BucketOf(full), n == 2 ? 1 : 9);
      ASSERT_NO_FATAL_FAILURE(this->Build(filling));
      ASSERT_NO_FATAL_FAILURE(this->ExpectFinds({no_key, other_no_key}));
      for (const std::uint64_t key : {no_key, other_no_key}) {
        filling.back() = key;
        ASSERT_NO_FATAL_FAILURE(this->Build(filling));
        ASSERT_NO_FATAL_FAILURE(this->ExpectFinds({no_key, other_no_key}));
      }
    }
  }
}

TYPED_TEST(HashGraphTest, WhatIsBuiltAgainHasTheLastItemsAlone) {
  this->Make(500);
  Keys before;
  for (const std::size_t n : {500u, 100u, 400u}) {
    const Keys keys = this->source_.New(n);
    ASSERT_NO_FATAL_FAILURE(this->Build(keys)) << n << " items";
    ASSERT_NO_FATAL_FAILURE(this->ExpectFinds(before)) << n << " items";
    before = keys;
  }
}

TYPED_TEST(HashGraphTest, OtherOperationsAreInvalid) {
  const Keys keys = this->source_.New(10);
  ASSERT_NO_FATAL_FAILURE(this->MakeAndBuild(keys));
  for (const Op op : {Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase}) {
    ExpectAll(this->Find(keys, op), Result::kInvalid);
  }
  ASSERT_NO_FATAL_FAILURE(this->ExpectFinds({}));
}

using HashGraphOrderedTest = HashGraphTest<Variant<Layout::kCsr, true, true, 8>>;

/// Of a bin's buckets, items come in any order.
TEST_F(HashGraphOrderedTest, ABinMayHaveManyBuckets) {
  constexpr std::uint64_t kItems = 1u << 18;
  Make(kItems);
  const auto bin_of = [](std::uint32_t bucket) { return bucket >> BinsOf(kItems).first; };
  const std::uint32_t bin = bin_of(kItems / 3);
  ASSERT_EQ(bin_of(kItems / 3 ^ 1), bin);
  Keys keys = source_.New(500);
  while (keys.size() < 540) {
    const std::uint64_t key = source_.random();
    if (bin_of(BucketOf(key)) == bin) keys.push_back(key);
  }
  ASSERT_NO_FATAL_FAILURE(Build(keys));
  EXPECT_TRUE(std::ranges::is_sorted(graph_->buckets, {}, bin_of));
  EXPECT_FALSE(std::ranges::is_sorted(graph_->buckets));
  ASSERT_NO_FATAL_FAILURE(ExpectFinds(source_.New(200)));
}

TEST(HashGraphNumbersTest, BinsAreAllBucketsAndNotTooMany) {
  for (const std::uint64_t buckets : {2ull, 3ull, 31ull, 32767ull, 32768ull, 32769ull, 1ull << 20,
                                      (1ull << 20) + 1, 100000000ull, 0xFFFFFFFFull}) {
    const BinBits bits = BinsOf(buckets);
    EXPECT_EQ((buckets - 1) >> bits.end, 0u) << buckets;
    EXPECT_LE(bits.end - bits.first, 15) << buckets;
    EXPECT_TRUE(bits.first == 0 || bits.end - bits.first == 15) << buckets;
    EXPECT_LE(bits.end, 32) << buckets;
  }
}

TEST(HashGraphNumbersTest, TablesHaveTwoBucketsAndTheirKeysOfFreePlacesTwo) {
  for (std::uint64_t items = 0; items < 2000; ++items) {
    HashGraphTable<Layout::kEllpack> table{};
    table.SetBuckets(items);
    ASSERT_EQ(table.buckets, std::max<std::uint64_t>(items, 2));
    for (std::uint32_t bucket = 0; bucket < table.buckets; ++bucket) {
      ASSERT_NE(table.BucketOf(table.NoKeyOf(bucket)), bucket) << items;
    }
  }
}

}  // namespace
}  // namespace gpm::bench::peers::hashgraph
