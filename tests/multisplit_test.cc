#include "shard/multisplit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/test_util.h"

namespace gpm {
namespace {

using test::MakeKey;

constexpr std::uint64_t kSeed[2] = {0x0123456789ABCDEF, 0xFEDCBA9876543210};

Partition PartitionOf(std::uint32_t shards) { return {{kSeed[0], kSeed[1]}, shards}; }

/// Keys with numbers from a few up to many, so that keys come again.
std::string SomeKeys(std::size_t n, std::uint32_t key_size, std::uint64_t numbers) {
  std::mt19937_64 random(test::TestSeed());
  std::string keys;
  for (std::size_t i = 0; i < n; ++i) keys += MakeKey(random() % numbers, key_size);
  return keys;
}

/// The split is what a loop over the batch for each shard finds.
void ExpectSplit(const std::string& keys, std::uint32_t key_size, const Partition& partition,
                 unsigned threads) {
  SCOPED_TRACE(testing::Message() << keys.size() / key_size << " keys of " << key_size << " bytes, "
                                  << partition.shards << " shards, " << threads << " threads");
  const auto bytes = std::as_bytes(std::span(keys));
  ThreadPool pool(threads);
  const Split split = Multisplit(bytes, key_size, partition, pool);
  std::vector<std::uint64_t> starts;
  std::vector<std::uint32_t> order;
  for (std::uint32_t shard = 0; shard < partition.shards; ++shard) {
    starts.push_back(order.size());
    for (std::size_t i = 0; i < keys.size() / key_size; ++i) {
      if (partition.Of(bytes.data() + i * key_size, key_size) == shard) {
        order.push_back(static_cast<std::uint32_t>(i));
      }
    }
  }
  starts.push_back(order.size());
  EXPECT_EQ(split.starts, starts);
  EXPECT_EQ(split.order, order);
}

TEST(MultisplitTest, KeepsBatchOrderWithinEachShard) {
  for (const std::uint32_t key_size : {1u, 8u, 12u, 16u, 36u, 255u}) {
    for (const std::uint32_t shards : {1u, 2u, 3u, 7u, 64u}) {
      for (const unsigned threads : {1u, 3u}) {
        ExpectSplit(SomeKeys(13001, key_size, 5000), key_size, PartitionOf(shards), threads);
      }
    }
  }
}

TEST(MultisplitTest, TakesNoKeysAndFewerKeysThanShards) {
  for (const std::size_t n : {0u, 1u, 2u}) {
    ExpectSplit(SomeKeys(n, 8, 100), 8, PartitionOf(1), 2);
    ExpectSplit(SomeKeys(n, 8, 100), 8, PartitionOf(7), 2);
  }
}

TEST(MultisplitTest, OneHotKeyGoesToOneShardInOrder) {
  ExpectSplit(SomeKeys(20000, 16, 1), 16, PartitionOf(4), 3);
}

TEST(MultisplitTest, ShardsAreEven) {
  // Counting keys and multiples of a power of two: 6 standard deviations of a binomial one.
  constexpr std::uint32_t kShards = 7;
  constexpr std::uint64_t kKeys = 70000;
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{1} << 40}) {
    std::vector<std::uint64_t> counts(kShards);
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const std::uint64_t key = i * step;
      ++counts[PartitionOf(kShards).Of(reinterpret_cast<const std::byte*>(&key), 8)];
    }
    for (const std::uint64_t count : counts) {
      EXPECT_LT(std::abs(static_cast<double>(count) - 1.0 * kKeys / kShards),
                6 * std::sqrt(1.0 * kKeys / kShards));
    }
  }
}

TEST(MultisplitTest, AnotherSeedIsAnotherPartition) {
  const Partition other{{kSeed[1], kSeed[0]}, 4};
  int equal = 0;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    const auto* const row = reinterpret_cast<const std::byte*>(&key);
    equal += PartitionOf(4).Of(row, 8) == other.Of(row, 8);
  }
  EXPECT_GT(equal, 150);  // a quarter, by chance
  EXPECT_LT(equal, 350);
}

TEST(MultisplitTest, ScatterUndoesGather) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::size_t row_bytes : {1u, 5u, 8u, 128u}) {
    for (const std::size_t n : {0u, 1u, 9001u}) {
      std::vector<std::uint32_t> order(n);
      for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::uint32_t>(i);
      std::shuffle(order.begin(), order.end(), random);
      test::Bytes rows(n * row_bytes);
      for (std::byte& byte : rows) byte = static_cast<std::byte>(random());
      ThreadPool threads(3);
      test::Bytes gathered(rows.size());
      GatherRows(rows, row_bytes, order, gathered, threads);
      for (std::size_t j = 0; j < n; ++j) {
        ASSERT_EQ(std::memcmp(&gathered[j * row_bytes], &rows[order[j] * row_bytes], row_bytes), 0);
      }
      test::Bytes back(rows.size());
      ScatterRows(gathered, row_bytes, order, back, threads);
      EXPECT_EQ(back, rows);
    }
  }
}

}  // namespace
}  // namespace gpm
