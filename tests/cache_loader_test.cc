// The cache's parts that stand alone: how large it is, and which buckets a loading chooses.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache/cache_memory.h"
#include "cache/cache_shape.h"
#include "engine/table/media_direct.h"
#include "engine/thread_pool.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

TableView TableOf(std::uint32_t key_size, std::uint32_t value_size, std::uint32_t top,
                  Geometry geometry = {2, 2, 8}) {
  Superblock superblock{};
  superblock.key_size = key_size;
  superblock.value_size = value_size;
  superblock.geometry = geometry;
  superblock.top = top;
  superblock.bottom = top + 1 - geometry.levels;
  return MakeTableView(nullptr, superblock);
}

/// An array that counts what it allocates.
template <class T>
class CountedArray {
 public:
  CountedArray() = default;
  explicit CountedArray(std::atomic<std::uint64_t>* total_bytes) : total_bytes_(total_bytes) {}
  void Reserve(std::uint64_t count) {
    elements_ = std::make_unique<T[]>(count);
    if (total_bytes_ != nullptr) *total_bytes_ += count * sizeof(T);
  }
  T* data() const { return elements_.get(); }

 private:
  std::atomic<std::uint64_t>* total_bytes_ = nullptr;
  std::unique_ptr<T[]> elements_;
};

CacheOptions Fraction(std::optional<double> fraction, std::uint64_t bytes = 0) {
  return CacheOptions{.fraction = fraction, .bytes = bytes};
}

TEST(CacheOptions, PolicyNames) {
  for (const CachePolicy policy :
       {CachePolicy::kOff, CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom}) {
    EXPECT_EQ(CachePolicyOf(CachePolicyName(policy)), policy);
  }
  EXPECT_EQ(CachePolicyName(CachePolicy::kLfu), "lfu");
  for (const char* name : {"", "LFU", "lf", "lfu "}) {
    std::string message;
    EXPECT_EQ(test::ErrorOf([&] { CachePolicyOf(name); }, &message), ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("random"), std::string::npos) << message;
  }
}

TEST(CacheShape, IsAFractionOfTheAddressableBuckets) {
  for (const Geometry geometry : {Geometry{2, 2, 8}, Geometry{1, 2, 16}, Geometry{4, 2, 4}}) {
    for (const std::uint32_t top : {std::uint32_t{3}, std::uint32_t{10}, std::uint32_t{20}}) {
      const TableView table = TableOf(8, 8, top, geometry);
      const std::uint64_t buckets = CapacityAt(geometry, top) / geometry.slots;
      for (const double fraction : {0.0, 0.01, 0.25, 0.5, 1.0}) {
        SCOPED_TRACE(fraction);
        const CacheShape shape = ShapeCache(Fraction(fraction), 0.7, table);
        EXPECT_EQ(shape.buckets, buckets);
        EXPECT_EQ(shape.copies, std::floor(fraction * static_cast<double>(buckets)));
        EXPECT_EQ(shape.blocks, 0u);
        if (shape.copies == 0) {
          EXPECT_EQ(shape.bytes(), 0u);
        }
      }
      EXPECT_EQ(ShapeCache(Fraction({}), 0.5, table).copies, buckets / 2);  // the default
      EXPECT_EQ(ShapeCache(Fraction({}), 0.0, table).copies, 0u);
      CacheOptions off = Fraction(1.0, 1 << 20);
      off.policy = CachePolicy::kOff;
      EXPECT_EQ(ShapeCache(off, 0.5, table).copies, 0u);
    }
  }
}

TEST(CacheShape, ValuesHaveBlocksOfTheirOwn) {
  for (const std::uint32_t key_size : {8u, 32u}) {
    for (const std::uint32_t value_size : {1u, 7u, 8u, 9u, 100u, 65536u}) {
      SCOPED_TRACE(value_size);
      const TableView table = TableOf(key_size, value_size, 6);
      const CacheShape all = ShapeCache(Fraction(1.0), 0, table);
      EXPECT_EQ(all.copy_bytes, table.bucket_bytes);
      EXPECT_EQ(all.copies, all.buckets);
      if (InlineValues(value_size)) {
        EXPECT_EQ(all.value_stride, 0u);
        EXPECT_EQ(all.blocks, 0u);
      } else {
        EXPECT_GE(all.value_stride, value_size);
        EXPECT_LT(all.value_stride, value_size + 16);
        EXPECT_EQ(all.value_stride % 16, 0u);
        EXPECT_EQ(all.block_bytes, 8 * all.value_stride);
        EXPECT_EQ(all.blocks, all.buckets);
      }
      // A fraction takes that part of the bytes.
      const CacheShape half = ShapeCache(Fraction(0.5), 0, table);
      const std::uint64_t variable = all.bytes() - all.fixed_bytes();
      EXPECT_LE(half.bytes() - half.fixed_bytes(), variable / 2);
      EXPECT_GT(half.bytes() - half.fixed_bytes() + all.bytes_per_copy() + all.bytes_per_block(),
                variable / 2);
      EXPECT_LE(half.blocks, half.copies);
    }
  }
}

TEST(CacheShape, NeverExceedsABudgetAndUsesIt) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t value_size : {8u, 9u, 128u}) {
    SCOPED_TRACE(value_size);
    const TableView table = TableOf(16, value_size, 10);
    const CacheShape all = ShapeCache(Fraction(1.0), 0, table);
    const std::uint64_t least =
        all.bytes_per_copy() + (all.value_stride == 0 ? 0 : all.bytes_per_block());
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t budget = 1 + random() % (all.bytes() + all.bytes() / 8);
      SCOPED_TRACE(budget);
      const CacheShape shape = ShapeCache(Fraction({}, budget), 0.01, table);
      ASSERT_LE(shape.bytes(), budget);
      ASSERT_LE(shape.copies, all.buckets);
      ASSERT_LE(shape.blocks, shape.copies);
      if (shape.copies > 0 && shape.bytes() < all.bytes()) {
        ASSERT_LT(budget - shape.bytes(), least) << "more fits";
      }
      if (budget >= all.fixed_bytes() + 3 * least) {
        ASSERT_GT(shape.copies, 0u);
      }
      const double fraction = static_cast<double>(random() % 1000) / 1000;
      const CacheShape both = ShapeCache(Fraction(fraction, budget), 0.5, table);
      ASSERT_LE(both.bytes(), budget);
      ASSERT_LE(both.bytes(), ShapeCache(Fraction(fraction), 0, table).bytes());
    }
    EXPECT_EQ(
        ShapeCache(Fraction({}, all.fixed_bytes() + all.bytes_per_copy() - 1), 0, table).copies,
        0u);
    EXPECT_EQ(ShapeCache(Fraction({}, all.bytes()), 0, table).copies, all.buckets);
    EXPECT_EQ(ShapeCache(Fraction(0.0, all.bytes()), 0, table).copies, 0u);
  }
}

TEST(CacheShape, CountsAllOfItsMemory) {
  for (const std::uint32_t value_size : {8u, 100u}) {
    for (const double fraction : {0.002, 0.5, 1.0}) {
      const CacheShape shape = ShapeCache(Fraction(fraction), 0, TableOf(32, value_size, 9));
      ASSERT_GT(shape.copies, 0u);
      std::atomic<std::uint64_t> total{0};
      CacheMemory<CountedArray> memory(&total);
      memory.Reserve(shape, CachePolicy::kLfu);
      EXPECT_EQ(total, shape.bytes());
    }
  }
}

TEST(CacheShape, RefusesWhatIsNoFraction) {
  const TableView table = TableOf(8, 8, 6);
  for (const double fraction : {-0.1, 1.0001, 20.0, std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::infinity()}) {
    for (const std::uint64_t bytes : {0, 1 << 20}) {
      EXPECT_EQ(test::ErrorOf([&] { ShapeCache(Fraction(fraction, bytes), 0.2, table); }),
                ErrorCode::kInvalidArgument)
          << fraction;
    }
  }
}

TEST(CacheView, IndexCountsTheAddressableBuckets) {
  const TableView table = TableOf(8, 8, 7, {4, 2, 4});
  CacheMemory<CountedArray> memory;
  memory.Reserve(ShapeCache(Fraction(1.0), 0, table), CachePolicy::kLfu);
  const CacheView view = memory.View(table, 1);
  std::uint32_t next = 0;
  for (std::uint32_t level = 4; level <= 7; ++level) {
    for (std::uint64_t number = 0; number < std::uint64_t{1} << level; ++number) {
      ASSERT_EQ(view.Index(level, number), next++);
    }
  }
  EXPECT_EQ(next, memory.shape.buckets);
}

/// A cache of which only the choice of buckets is looked at: a loading here ends when copies and
/// blocks are assigned, and versions and block_of then say that they are filled. Steps run on
/// several threads.
class CacheLoaderTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kTop = 8;
  static constexpr std::uint32_t kBuckets = 384;  ///< of levels 8 and 7

  void Make(CachePolicy policy, std::uint32_t copies, std::uint32_t blocks = 0) {
    table_ = TableOf(8, blocks == 0 ? 8 : 16, kTop);
    CacheShape shape = ShapeCache(Fraction(1.0), 0, table_);
    ASSERT_EQ(shape.buckets, kBuckets);
    shape.copies = copies;
    shape.blocks = blocks;
    memory_.Reserve(shape, policy);
    std::fill_n(memory_.bucket_of.data(), copies, CacheView::kNoBucket);
    std::fill_n(memory_.versions.data(), copies, CacheView::kUnfilled);
    *memory_.state.data() = memory_.FirstState();
    cached_.clear();
    with_values_.clear();
  }

  std::uint32_t& score(std::uint32_t bucket) { return memory_.scores.data()[bucket]; }

  /// Loads and checks that what is kept of copies and blocks is consistent.
  /// @return the buckets with a copy
  std::set<std::uint32_t> Load(std::uint32_t clock = 1) {
    const CacheView view = memory_.View(table_, clock);
    const CacheLoad load = memory_.Load(view, ++seed_);
    const std::vector<std::uint32_t> versions(view.versions, view.versions + view.size);
    for (std::uint32_t i = 0; i < kBuckets; ++i) load.CountBucket(i);
    load.ChooseThresholds();
    for (std::uint32_t r = 0; r < CacheLoad::kRanks; ++r) EXPECT_EQ(load.histogram[r], 0u);
    InThreads(view.size, [&](std::uint32_t copy) { load.EvictCold(media_, copy); });
    InThreads(memory_.shape.blocks, [&](std::uint32_t block) { load.FreeBlock(block); });
    InThreads(kBuckets, [&](std::uint32_t bucket) { load.AssignHot(media_, bucket); });

    std::map<std::uint32_t, std::uint32_t> pending;  // copies, the blocks they get
    for (std::uint32_t i = 0; i < load.state->pending; ++i) {
      EXPECT_TRUE(pending.emplace(load.pending[i].copy, load.pending[i].block).second) << "twice";
    }
    std::set<std::uint32_t> now;
    std::set<std::uint32_t> values_now;
    std::set<std::uint32_t> blocks;
    new_ = 0;
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      if (view.slot_of[bucket] == 0) continue;
      now.insert(bucket);
      const std::uint32_t copy = view.slot_of[bucket] - 1;
      EXPECT_LT(copy, view.size);
      EXPECT_EQ(view.bucket_of[copy], bucket);
      const bool stays = cached_.contains(bucket);
      const bool had_values = with_values_.contains(bucket);
      if (stays) {
        EXPECT_EQ(view.versions[copy] & 3, 0u);
        if (had_values == (view.block_of[copy] != 0)) {
          EXPECT_EQ(view.versions[copy], versions[copy]) << "it was touched";
        }
        if (pending.contains(copy)) {
          EXPECT_NE(pending[copy], 0u) << "for nothing";
          EXPECT_EQ(view.block_of[copy], 0u) << "it can't hold values yet";
        }
      } else {
        ++new_;
        EXPECT_TRUE(pending.contains(copy)) << "bucket " << bucket;
        EXPECT_EQ(view.versions[copy] & 3, CacheView::kUnfilled) << "it can't be filled yet";
        EXPECT_EQ(view.block_of[copy], 0u);
      }
      // As if filled.
      view.versions[copy] &= ~CacheView::kUnfilled;
      if (pending.contains(copy) && pending[copy] != 0) view.block_of[copy] = pending[copy];
      if (view.block_of[copy] == 0) continue;
      values_now.insert(bucket);
      EXPECT_LE(view.block_of[copy], memory_.shape.blocks);
      EXPECT_TRUE(blocks.insert(view.block_of[copy]).second) << "two copies have a block";
      EXPECT_EQ(load.owner_of[view.block_of[copy] - 1], copy + 1);
    }
    std::uint32_t taken = 0;
    for (std::uint32_t copy = 0; copy < view.size; ++copy) {
      taken += view.bucket_of[copy] != CacheView::kNoBucket;
    }
    EXPECT_EQ(taken, now.size());
    cached_ = now;
    with_values_ = values_now;
    return now;
  }

  template <class Step>
  void InThreads(std::uint32_t count, const Step& step) {
    pool_.Run(count, [&](std::size_t i) { step(static_cast<std::uint32_t>(i)); });
  }

  /// The buckets with a copy (or a block) are those with the highest ranks; equal ones any.
  /// @param least_rank none of a lower one has any: 0 for copies, 1 for blocks
  void ExpectBest(const std::set<std::uint32_t>& cached, const std::vector<std::uint32_t>& ranks,
                  std::uint32_t copies, std::uint32_t least_rank = 0) {
    std::vector<std::uint32_t> sorted;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(sorted),
                 [&](std::uint32_t rank) { return rank >= least_rank; });
    std::sort(sorted.rbegin(), sorted.rend());
    const std::size_t expected = std::min<std::size_t>(copies, sorted.size());
    EXPECT_EQ(cached.size(), expected);
    const std::uint32_t least = expected == 0 ? 1 : sorted[expected - 1];
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      if (ranks[bucket] > least) {
        EXPECT_TRUE(cached.contains(bucket)) << bucket;
      }
      if (ranks[bucket] < least) {
        EXPECT_FALSE(cached.contains(bucket)) << bucket;
      }
    }
  }

  const DirectMedia media_{Persist()};
  ThreadPool pool_{4};
  TableView table_{};
  CacheMemory<CountedArray> memory_;
  std::set<std::uint32_t> cached_;
  std::set<std::uint32_t> with_values_;  ///< of those, the ones that have a block too
  std::uint32_t seed_ = 0;
  std::size_t new_ = 0;  ///< buckets that got a copy in the last loading
};

TEST_F(CacheLoaderTest, LfuChoosesThoseUsedMost) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t copies : {1u, 10u, 100u, 383u, kBuckets}) {
    for (const std::uint32_t range : {2u, 5u, 300u, 3000u}) {  // few different counts: ties
      SCOPED_TRACE(copies * 10000 + range);
      Make(CachePolicy::kLfu, copies);
      for (int load = 0; load < 6; ++load) {
        std::vector<std::uint32_t> ranks(kBuckets);
        for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
          if (random() % 2 == 0) score(bucket) += random() % range;
          ranks[bucket] = std::min(score(bucket), CacheLoad::kRanks - 1);
        }
        ExpectBest(Load(), ranks, copies);
      }
    }
  }
}

TEST_F(CacheLoaderTest, TheHottestHaveTheirValuesToo) {
  std::mt19937_64 random(test::TestSeed());
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom}) {
    for (const auto& [copies, blocks] : {std::pair(100u, 30u), std::pair(60u, 60u),
                                         std::pair(kBuckets, 1u), std::pair(kBuckets, kBuckets)}) {
      SCOPED_TRACE(copies * 1000 + blocks);
      Make(policy, copies, blocks);
      for (std::uint32_t clock = 1000; clock < 1020; ++clock) {
        std::vector<std::uint32_t> ranks(kBuckets);
        for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
          if (policy == CachePolicy::kLfu && random() % 4 == 0) score(bucket) += random() % 50;
          if (policy == CachePolicy::kLru && random() % 4 == 0)
            score(bucket) = clock - random() % 3;
          ranks[bucket] = score(bucket);
          // Who has a block keeps it against one that is hardly hotter.
          if (policy == CachePolicy::kLfu && with_values_.contains(bucket)) {
            ranks[bucket] += ranks[bucket] / 4;
          }
        }
        Load(clock);
        if (policy == CachePolicy::kRandom) {
          EXPECT_EQ(cached_.size(), copies);
          EXPECT_EQ(with_values_.size(), blocks);
        } else {
          ExpectBest(cached_, ranks, copies);
          ExpectBest(with_values_, ranks, blocks, 1);
        }
      }
    }
  }
}

TEST_F(CacheLoaderTest, WhereThereIsRoomUnusedBucketsHaveACopyButNoBlock) {
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    Make(policy, 100, 50);
    EXPECT_EQ(Load().size(), 100u);
    EXPECT_TRUE(with_values_.empty());
    score(7) = 1;
    score(300) = 1;
    const std::set<std::uint32_t> cached = Load();
    EXPECT_EQ(cached.size(), 100u);
    EXPECT_TRUE(cached.contains(7) && cached.contains(300));
    EXPECT_EQ(with_values_, (std::set<std::uint32_t>{7, 300}));
  }
}

TEST_F(CacheLoaderTest, EquallyHotOnesAreLimitedByTheCopies) {
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    for (const std::uint32_t copies : {1u, 37u, kBuckets}) {
      Make(policy, copies);
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = 6;
      for (std::uint32_t bucket = 0; bucket < copies / 2; ++bucket) score(bucket * 2) = 7;
      const std::set<std::uint32_t> first = Load(8);
      EXPECT_EQ(first.size(), copies);
      for (std::uint32_t bucket = 0; bucket < copies / 2; ++bucket) {
        EXPECT_TRUE(first.contains(bucket * 2));
      }
      // All are equal to those that have a copy, which keep it.
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = 9;
      EXPECT_EQ(Load(10), first);
      EXPECT_EQ(new_, 0u);
    }
  }
}

TEST_F(CacheLoaderTest, CountsBeyondTheHistogramAreEqual) {
  Make(CachePolicy::kLfu, 50);
  for (std::uint32_t bucket = 0; bucket < 100; ++bucket) score(bucket) = 4000 + 1000 * bucket;
  score(200) = ~0u;
  const std::set<std::uint32_t> cached = Load();
  EXPECT_EQ(cached.size(), 50u);
  EXPECT_FALSE(cached.contains(0));  // 4000 is within it
}

TEST_F(CacheLoaderTest, LfuHalvesCountsAndForgets) {
  Make(CachePolicy::kLfu, 100);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = bucket;
  Load();
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    EXPECT_EQ(score(bucket), bucket / 2);
  }
  // Nobody uses any: the last counts fade away, and with them the blocks.
  for (int i = 0; i < 9; ++i) Load();
  Load();
  EXPECT_TRUE(with_values_.empty());
}

TEST_F(CacheLoaderTest, CopiesOfBucketsThatStayHotAreKept) {
  Make(CachePolicy::kLfu, 100);
  for (std::uint32_t bucket = 0; bucket < 100; ++bucket) score(bucket) = 1000;
  EXPECT_EQ(Load().size(), 100u);
  EXPECT_EQ(new_, 100u);
  // Ten others overtake.
  for (std::uint32_t bucket = 0; bucket < 90; ++bucket) score(bucket) = 1000;
  for (std::uint32_t bucket = 200; bucket < 210; ++bucket) score(bucket) = 2000;
  const std::set<std::uint32_t> cached = Load();
  EXPECT_EQ(new_, 10u);
  EXPECT_EQ(cached.size(), 100u);
  for (std::uint32_t bucket = 90; bucket < 100; ++bucket) EXPECT_FALSE(cached.contains(bucket));
}

TEST_F(CacheLoaderTest, LruChoosesThoseUsedLast) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t copies : {1u, 60u, kBuckets}) {
    Make(CachePolicy::kLru, copies);
    std::uint32_t clock = 1;
    for (int load = 0; load < 8; ++load) {
      SCOPED_TRACE(clock);
      for (int batch = 0; batch < 20; ++batch, ++clock) {
        for (int use = 0; use < 5; ++use) score(random() % kBuckets) = clock;
      }
      std::vector<std::uint32_t> ranks(kBuckets);
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) ranks[bucket] = score(bucket);
      ExpectBest(Load(clock), ranks, copies);
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
        EXPECT_EQ(score(bucket), ranks[bucket]) << "LRU forgets nothing";
      }
    }
  }
}

TEST_F(CacheLoaderTest, LruUsesLongAgoAreEqualButNotNone) {
  Make(CachePolicy::kLru, 10, 10);
  for (std::uint32_t bucket = 0; bucket < 5; ++bucket) score(bucket) = 1 + bucket;
  Load(1'000'000);
  EXPECT_EQ(with_values_.size(), 5u);
  for (std::uint32_t bucket = 100; bucket < 107; ++bucket) score(bucket) = 999'990;
  const std::set<std::uint32_t> cached = Load(1'000'001);
  EXPECT_EQ(cached.size(), 10u);
  for (std::uint32_t bucket = 100; bucket < 107; ++bucket) EXPECT_TRUE(cached.contains(bucket));
}

TEST_F(CacheLoaderTest, LruUsesByBatchesThatBeganAfterTheLoadingAreTheLast) {
  Make(CachePolicy::kLru, 2);
  score(1) = 90;
  score(2) = 99;
  score(3) = 102;
  score(4) = 103;
  EXPECT_EQ(Load(100), (std::set<std::uint32_t>{3, 4}));
}

TEST_F(CacheLoaderTest, RandomChoosesAllAlikeAndOthersEachTime) {
  constexpr std::uint32_t kCopies = 96;  // a quarter
  constexpr int kLoads = 400;
  Make(CachePolicy::kRandom, kCopies);
  std::map<std::uint32_t, int> times;
  std::set<std::uint32_t> last;
  std::size_t kept = 0;
  for (int load = 0; load < kLoads; ++load) {
    const std::set<std::uint32_t> cached = Load();
    EXPECT_EQ(cached.size(), kCopies);
    EXPECT_NE(cached, last);
    for (const std::uint32_t bucket : cached) {
      ++times[bucket];
      kept += last.contains(bucket);
    }
    last = cached;
  }
  // The choice depends on the loading's number alone, but for ties. Binomial: mean 100, standard
  // deviation 8.7; a quarter of 96 stays.
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    EXPECT_GT(times[bucket], 100 - 6 * 9) << bucket;
    EXPECT_LT(times[bucket], 100 + 6 * 9) << bucket;
  }
  EXPECT_NEAR(static_cast<double>(kept) / (kLoads - 1), 24, 3);
  Make(CachePolicy::kRandom, kBuckets);
  EXPECT_EQ(Load().size(), kBuckets);
}

}  // namespace
}  // namespace gpm
