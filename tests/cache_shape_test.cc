// How large the directory and the cache are.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/cache_shapes.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::CountedArray;
using test::Defaults;
using test::Fraction;
using test::TableOf;

/// What a shape takes in all.
std::uint64_t BytesOf(const CacheShape& shape) {
  return shape.directory_bytes() + shape.cache_bytes();
}

constexpr std::uint32_t kReserved = TableView::kReservedBuckets;

TEST(CacheOptions, PolicyNames) {
  for (const CachePolicy policy : {CachePolicy::kOff, CachePolicy::kTinyLfu, CachePolicy::kLfu,
                                   CachePolicy::kLru, CachePolicy::kRandom}) {
    EXPECT_EQ(CachePolicyOf(CachePolicyName(policy)), policy);
  }
  EXPECT_EQ(CachePolicyName(CachePolicy::kLfu), "lfu");
  for (const char* name : {"", "LFU", "lf", "lfu "}) {
    std::string message;
    EXPECT_EQ(test::ErrorOf([&] { CachePolicyOf(name); }, &message), ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("random"), std::string::npos) << message;
  }
}

TEST(CacheShape, HasTheValuesOfAFractionOfTheAddressableBuckets) {
  for (const Geometry geometry :
       {Geometry{2, 2, 8}, Geometry{1, 2, 16}, Geometry{4, 2, 4}, Geometry{2, 4, 1}}) {
    for (const std::uint32_t top : {std::uint32_t{3}, std::uint32_t{10}, std::uint32_t{20}}) {
      const TableView table = TableOf(8, 9, top, geometry);
      const LevelSizes sizes = test::LevelsFrom(geometry, std::uint64_t{1} << top);
      const std::uint64_t buckets = kReserved + SlotsOf(geometry, sizes) / geometry.slots;
      for (const double fraction : {0.0, 0.01, 0.25, 0.5, 1.0}) {
        SCOPED_TRACE(fraction);
        const CacheShape shape = ShapeCache(Fraction(fraction), Defaults(), table);
        EXPECT_EQ(shape.buckets, buckets);
        EXPECT_EQ(shape.frames, std::floor(fraction * static_cast<double>(buckets)));
        EXPECT_GT(shape.directory_bytes(), 0u);
        if (shape.frames == 0) {
          EXPECT_EQ(shape.cache_bytes(), 0u);
        }
      }
      const CacheShape half = ShapeCache(Fraction(0.5), Defaults(), table);
      EXPECT_EQ(ShapeCache(Fraction({}), Defaults(half.cache_bytes()), table).frames, buckets / 2);
      EXPECT_EQ(ShapeCache(Fraction({}), Defaults(half.cache_bytes() - 1), table).frames,
                half.frames - 1);
      EXPECT_EQ(ShapeCache(Fraction({}), Defaults(), table).frames, buckets);
      EXPECT_EQ(ShapeCache(Fraction({}), Defaults(0), table).frames, 0u);
      EXPECT_EQ(ShapeCache(Fraction({}), {}, table).frames, 0u);
      CacheOptions off = Fraction(1.0, 1 << 29);
      off.policy = CachePolicy::kOff;
      EXPECT_EQ(ShapeCache(off, Defaults(), table).frames, 0u);
      EXPECT_EQ(ShapeCache(off, Defaults(), table).buckets, buckets);
    }
  }
}

TEST(CacheShape, ThereIsNoCacheWithoutADirectory) {
  const TableView table = TableOf(8, 100, 6);
  for (const std::uint64_t bytes : {0, 1 << 20}) {
    CacheOptions options = Fraction(1.0, bytes);
    options.directory = {};
    EXPECT_EQ(ShapeCache(options, Defaults(), table).frames, 96u + kReserved);
    for (const CacheDefaults& defaults : {Defaults(1 << 30, false), CacheDefaults{}}) {
      EXPECT_EQ(BytesOf(ShapeCache(options, defaults, table)), 0u);
      EXPECT_EQ(ShapeCache(options, defaults, table).buckets, 0u);
    }
    options.directory = false;
    EXPECT_EQ(ShapeCache(options, Defaults(), table).buckets, 0u);
    EXPECT_EQ(ShapeCache(options, Defaults(), table).frames, 0u);
  }
}

TEST(CacheShape, NoDirectoryWhereIndicesOfBucketsWouldBeTooLarge) {
  EXPECT_EQ(ShapeCache(Fraction(0), {}, TableOf(8, 8, 30)).buckets, (3u << 29) + kReserved);
  EXPECT_EQ(ShapeCache(Fraction(0), {}, TableOf(8, 8, 30, {31, 1, 1})).buckets,
            ~0u / 2 + kReserved);
  EXPECT_EQ(ShapeCache(Fraction(0), {}, TableOf(8, 8, 31)).buckets, 0u);
}

TEST(CacheShape, OfKeysAndValues) {
  for (const std::uint32_t key_size : {8u, 16u, 32u}) {
    for (const std::uint32_t value_size : {1u, 7u, 8u, 9u, 100u, 65536u}) {
      SCOPED_TRACE(value_size);
      const CacheShape all = ShapeCache(Fraction(1.0), {}, TableOf(key_size, value_size, 6));
      EXPECT_EQ(all.key_words, key_size / 8);
      EXPECT_EQ(all.slots, 8u);
      // A fingerprint, a cell and a tag, or the value itself, and a key.
      const std::uint64_t slot_bytes = 2 + 8 + key_size;
      EXPECT_EQ(all.directory_bytes(), (96 + kReserved) * 8 * slot_bytes);
      if (InlineValues(value_size)) {
        EXPECT_EQ(all.value_stride, 0u);
        EXPECT_EQ(all.frames, 0u);
      } else {
        EXPECT_GE(all.value_stride, value_size);
        EXPECT_LT(all.value_stride, value_size + 16);
        EXPECT_EQ(all.value_stride % 16, 0u);
        EXPECT_EQ(all.frames, all.buckets);
        EXPECT_GE(all.bytes_per_frame(), 8 * all.value_stride);
      }
    }
  }
  // A search reads four fingerprints at once.
  EXPECT_EQ(ShapeCache(Fraction(0), {}, TableOf(8, 8, 6, {2, 4, 1})).stride, 4u);
  EXPECT_EQ(ShapeCache(Fraction(0), {}, TableOf(8, 8, 6, {1, 1, 32})).stride, 32u);
}

TEST(CacheShape, NeverExceedsABudgetAndUsesIt) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t key_size : {8u, 16u}) {
    for (const std::uint32_t value_size : {8u, 9u, 128u}) {
      SCOPED_TRACE(value_size);
      const TableView table = TableOf(key_size, value_size, 10);
      const CacheShape all = ShapeCache(Fraction(1.0), {}, table);
      CacheShape least_shape = all;
      if (key_size > 8) least_shape.key_words = 0;
      const std::uint64_t least = least_shape.directory_bytes();
      for (int i = 0; i < 2000; ++i) {
        const std::uint64_t budget = 1 + random() % (BytesOf(all) + BytesOf(all) / 8);
        SCOPED_TRACE(budget);
        const CacheShape shape = ShapeCache(Fraction({}, budget), Defaults(1000), table);
        ASSERT_LE(BytesOf(shape), budget);
        ASSERT_LE(shape.frames, all.frames);
        ASSERT_EQ(shape.buckets != 0, budget >= least) << "the directory comes first";
        if (shape.frames > 0 && shape.frames < all.frames) {
          ASSERT_LT(budget - BytesOf(shape), all.bytes_per_frame()) << "more fits";
        }
        if (all.frames > 0 &&
            budget >= all.directory_bytes() + all.fixed_bytes() + all.bytes_per_frame()) {
          ASSERT_GT(shape.frames, 0u);
        }
        const double fraction = static_cast<double>(random() % 1000) / 1000;
        const CacheShape both = ShapeCache(Fraction(fraction, budget), Defaults(), table);
        ASSERT_LE(BytesOf(both), budget);
        ASSERT_EQ(both.frames,
                  std::min(shape.frames, ShapeCache(Fraction(fraction), {}, table).frames));
      }
      EXPECT_EQ(ShapeCache(Fraction({}, least - 1), {}, table).buckets, 0u);
      EXPECT_EQ(ShapeCache(Fraction({}, least), {}, table).buckets, all.buckets);
      EXPECT_EQ(BytesOf(ShapeCache(Fraction({}, BytesOf(all)), {}, table)), BytesOf(all));
      EXPECT_EQ(ShapeCache(Fraction(0.0, BytesOf(all)), {}, table).frames, 0u);
      if (all.frames == 0) continue;
      const std::uint64_t one = all.directory_bytes() + all.fixed_bytes() + all.bytes_per_frame();
      EXPECT_EQ(ShapeCache(Fraction({}, one - 1), {}, table).frames, 0u);
      EXPECT_EQ(ShapeCache(Fraction({}, one), {}, table).frames, 1u);
      EXPECT_EQ(BytesOf(ShapeCache(Fraction({}, one), {}, table)), one);
    }
  }
}

TEST(CacheShape, WhatFillsFramesIsPartOfTheBudget) {
  std::mt19937_64 random(test::TestSeed());
  const TableView table = TableOf(8, 128, 10);
  CacheDefaults defaults = Defaults();
  defaults.fill = {.frames_at_once = 300, .bytes_per_slot = 16};
  const CacheShape all = ShapeCache(Fraction(1.0), defaults, table);
  EXPECT_EQ(all.slots_at_once(), 300u * 8);
  EXPECT_EQ(all.cache_bytes(),
            ShapeCache(Fraction(1.0), Defaults(), table).cache_bytes() + 300 * 8 * 16);
  CacheShape at_once = all;
  at_once.frames = 300;
  for (int i = 0; i < 2000; ++i) {
    // About the border, too, from which on frames need no more to be filled.
    const std::uint64_t budget = i % 4 == 0 ? BytesOf(at_once) - 2000 + random() % 4000
                                            : 1 + random() % (BytesOf(all) + 1000);
    SCOPED_TRACE(budget);
    const CacheShape shape = ShapeCache(Fraction({}, budget), defaults, table);
    ASSERT_LE(BytesOf(shape), budget);
    if (shape.frames == 0 || shape.frames == all.frames) continue;
    CacheShape more = shape;
    ++more.frames;
    ASSERT_GT(BytesOf(more), budget) << "more fits";
  }
  EXPECT_EQ(ShapeCache(Fraction({}, BytesOf(all)), defaults, table).frames, all.frames);
}

TEST(CacheShape, CountsAllOfItsMemory) {
  for (const Geometry geometry : {Geometry{2, 2, 8}, Geometry{2, 4, 1}, Geometry{1, 1, 32}}) {
    for (const std::uint32_t key_size : {8u, 32u}) {
      for (const std::uint32_t value_size : {8u, 100u}) {
        for (const double fraction : {0.0, 0.002, 0.5, 1.0}) {
          const CacheShape shape =
              ShapeCache(Fraction(fraction), {}, TableOf(key_size, value_size, 9, geometry));
          std::atomic<std::uint64_t> total{0};
          CacheMemory<CountedArray> memory(&total);
          memory.Reserve(shape, CachePolicy::kLfu);
          EXPECT_EQ(total, BytesOf(shape));
        }
      }
    }
  }
  std::atomic<std::uint64_t> total{0};
  CacheMemory<CountedArray> memory(&total);
  memory.Reserve(CacheShape{}, CachePolicy::kLfu);
  EXPECT_EQ(total, 0u);
  EXPECT_FALSE(memory.View().directory.enabled());
  EXPECT_FALSE(memory.View().cache.enabled());
}

TEST(CacheShape, RefusesWhatIsNoFraction) {
  const TableView table = TableOf(8, 8, 6);
  for (const double fraction : {-0.1, 1.0001, 20.0, std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::infinity()}) {
    for (const std::uint64_t bytes : {0, 1 << 20}) {
      for (const bool directory : {false, true}) {
        CacheOptions options = Fraction(fraction, bytes);
        options.directory = directory;
        EXPECT_EQ(test::ErrorOf([&] { ShapeCache(options, Defaults(), table); }),
                  ErrorCode::kInvalidArgument)
            << fraction;
      }
    }
  }
}

TEST(TableView, IndexCountsTheBucketsOfTheReservedLevelAndTheAddressableOnes) {
  Superblock superblock{};
  superblock.key_size = superblock.value_size = 8;
  superblock.geometry = {4, 2, 4};
  LayLevels(&superblock, {130, 62, 62, 2, 16}, 1 << 20);
  const TableView table = MakeTableView(nullptr, superblock);
  for (std::uint32_t number = 0; number < kReserved; ++number) {
    ASSERT_EQ(table.BucketAt(number), table.ReservedBucket(number));
  }
  std::uint32_t next = kReserved;
  for (std::uint32_t level = 4; level-- > 0;) {
    for (std::uint64_t number = 0; number < superblock.levels[level].buckets; ++number) {
      ASSERT_EQ(table.BucketIndex(level, number), next);
      ASSERT_EQ(table.LevelOf(next), level);
      ASSERT_EQ(table.BucketAt(next), table.Bucket(level, number));
      ++next;
    }
  }
  EXPECT_EQ(next, ShapeCache(Fraction(1.0), {}, table).buckets);
}

TEST(DirectoryView, PrintsAreNoMarks) {
  for (std::uint64_t g = 0; g < 1 << 17; ++g) {
    const std::uint16_t fingerprint = DirectoryView::FingerprintOf(KeyHash{0, g});
    ASSERT_GT(fingerprint, DirectoryView::kTaken);
    ASSERT_GT(fingerprint, DirectoryView::kEmpty);
  }
}

}  // namespace
}  // namespace gpm
