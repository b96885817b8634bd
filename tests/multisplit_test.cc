#include "shard/multisplit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
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

/// Zeros at an address that is a line's, or some bytes behind one.
class Rows {
 public:
  Rows(std::size_t bytes, std::size_t behind) : memory_(bytes + 64 + behind) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    rows_ = std::span(memory_).subspan((64 - address % 64) % 64 + behind, bytes);
  }
  std::span<std::byte> bytes() const { return rows_; }

 private:
  test::Bytes memory_;
  std::span<std::byte> rows_;
};

/// Numbers of operations in the order of the last Divide.
std::vector<std::uint32_t> OrderOf(Multisplit& split, std::size_t n) {
  std::vector<std::uint32_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::vector<std::uint32_t> order(split.starts().back());
  const auto to = std::as_writable_bytes(std::span(order));
  split.Gather(std::as_bytes(std::span(numbers)), 4, Multisplit::Parts(&to, 1));
  return order;
}

/// The split is what a loop over the batch for each shard finds.
void ExpectSplit(Multisplit& split, const std::string& keys, std::uint32_t key_size,
                 const Partition& partition) {
  const std::size_t n = keys.size() / key_size;
  SCOPED_TRACE(testing::Message() << n << " keys of " << key_size << " bytes, " << partition.shards
                                  << " shards");
  const auto bytes = std::as_bytes(std::span(keys));
  split.Divide(bytes, key_size, partition, false);
  std::vector<std::vector<std::uint32_t>> expected(partition.shards);
  for (std::size_t i = 0; i < n; ++i) {
    expected[partition.Of(bytes.data() + i * key_size, key_size)].push_back(
        static_cast<std::uint32_t>(i));
  }
  std::vector<std::uint64_t> starts{0};
  std::vector<std::uint32_t> order;
  for (const std::vector<std::uint32_t>& shard : expected) {
    order.insert(order.end(), shard.begin(), shard.end());
    starts.push_back(order.size());
  }
  EXPECT_EQ(split.starts(), starts);
  EXPECT_EQ(OrderOf(split, n), order);
}

TEST(MultisplitTest, KeepsBatchOrderWithinEachShard) {
  for (const unsigned threads : {1u, 3u}) {
    ThreadPool pool(threads);
    Multisplit split(pool);  // one for all, so that some batches are smaller than the one before
    for (const std::uint32_t key_size : {1u, 8u, 12u, 16u, 36u, 255u}) {
      const std::string keys = SomeKeys(70'001, key_size, 5000);
      for (const std::uint32_t shards : {1u, 2u, 3u, 7u, 64u}) {
        ExpectSplit(split, keys, key_size, PartitionOf(shards));
        ExpectSplit(split, keys.substr(0, 13'001 * key_size), key_size, PartitionOf(shards));
      }
    }
  }
}

TEST(MultisplitTest, TakesNoKeysAndFewerKeysThanShards) {
  ThreadPool pool(2);
  Multisplit split(pool);
  for (const std::size_t n : {0u, 1u, 2u}) {
    ExpectSplit(split, SomeKeys(n, 8, 100), 8, PartitionOf(1));
    ExpectSplit(split, SomeKeys(n, 8, 100), 8, PartitionOf(7));
  }
}

TEST(MultisplitTest, OneHotKeyGoesToOneShardInOrder) {
  ThreadPool pool(3);
  Multisplit split(pool);
  ExpectSplit(split, SomeKeys(100'000, 16, 1), 16, PartitionOf(4));
}

TEST(MultisplitTest, EachKeyOnceAndItsAnswerForAll) {
  ThreadPool pool(4);
  Multisplit split(pool);
  for (const std::uint32_t key_size : {8u, 13u, 32u}) {
    for (const std::size_t n : {90'001u, 501u, 0u}) {
      for (const std::uint64_t numbers : {1u, 40u, 100'000u}) {
        SCOPED_TRACE(testing::Message()
                     << n << " keys of " << key_size << " bytes, of " << numbers);
        const Partition partition = PartitionOf(7);
        const std::string keys = SomeKeys(n, key_size, numbers);
        const auto bytes = std::as_bytes(std::span(keys));
        split.Divide(bytes, key_size, partition, true);
        const auto key = [&](std::size_t i) { return keys.substr(i * key_size, key_size); };
        std::set<std::string> distinct;
        for (std::size_t i = 0; i < n; ++i) distinct.insert(key(i));
        const std::vector<std::uint32_t> order = OrderOf(split, n);
        ASSERT_EQ(order.size(), distinct.size());
        for (std::uint32_t shard = 0; shard < partition.shards; ++shard) {
          for (std::uint64_t j = split.starts()[shard]; j < split.starts()[shard + 1]; ++j) {
            EXPECT_EQ(distinct.erase(key(order[j])), 1u);
            EXPECT_EQ(partition.Of(bytes.data() + order[j] * key_size, key_size), shard);
            if (j > split.starts()[shard]) {
              EXPECT_LT(order[j - 1], order[j]);
            }
          }
        }
        // The answer to a key is the key.
        test::Bytes answers(order.size() * key_size);
        const std::span<std::byte> all = answers;
        split.Gather(bytes, key_size, Multisplit::Parts(&all, 1));
        std::string back(keys.size(), '?');
        split.Scatter(Multisplit::Parts(&all, 1), key_size,
                      std::as_writable_bytes(std::span(back)));
        EXPECT_TRUE(back == keys);
      }
    }
  }
}

TEST(MultisplitTest, RowsThatAreNotWantedStay) {
  ThreadPool pool(3);
  Multisplit split(pool);
  constexpr std::size_t kKeys = 9001;
  for (const bool once : {false, true}) {
    const std::string keys = SomeKeys(kKeys, 8, once ? 900 : 1'000'000);
    std::vector<Op> ops;
    std::vector<Result> results;
    for (std::size_t i = 0; i < kKeys; ++i) {
      // Operations on one key are alike: it is once that one of them counts for all.
      std::uint64_t key = 0;
      std::memcpy(&key, &keys[8 * i], 8);
      ops.push_back(static_cast<Op>(key % (kOpKinds + 1)));
      results.push_back(static_cast<Result>(key / 16 % 5));
    }
    Batch batch;
    batch.ops = ops;
    batch.results = results;
    split.Divide(std::as_bytes(std::span(keys)), 8, PartitionOf(7), once);
    const std::vector<std::uint32_t> order = OrderOf(split, kKeys);
    // The last rows are of whole lines.
    for (const std::size_t row_bytes : {1u, 24u, 128u}) {
      const test::Bytes rows(kKeys * row_bytes, std::byte{1});
      test::Bytes gathered(order.size() * row_bytes, std::byte{2});
      test::Bytes back(rows.size(), std::byte{3});
      const std::span<std::byte> all = gathered;
      split.Gather(rows, row_bytes, Multisplit::Parts(&all, 1), WantedRows::Written(batch));
      split.Scatter(Multisplit::Parts(&all, 1), row_bytes, back, WantedRows::Found(batch));
      const auto written = [&](std::size_t i) {
        return std::byte{Writes(ops[i]) ? std::uint8_t{1} : std::uint8_t{2}};
      };
      const auto is_row = [&](const test::Bytes& of, std::size_t at, std::byte value) {
        return of[at * row_bytes] == value && of[(at + 1) * row_bytes - 1] == value;
      };
      for (std::size_t j = 0; j < order.size(); ++j) {
        ASSERT_TRUE(is_row(gathered, j, written(order[j]))) << j;
      }
      for (std::size_t i = 0; i < kKeys; ++i) {
        const bool found = HasFound(ops[i], results[i]);
        ASSERT_TRUE(is_row(back, i, found ? written(i) : std::byte{3})) << i;
      }
    }
  }
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

TEST(MultisplitTest, RowsOfAllSizesGoThereAndBack) {
  ThreadPool pool(3);
  Multisplit split(pool);
  const Partition partition = PartitionOf(7);
  struct Case {
    std::size_t n, row_bytes;
  };
  // The last two are of more than 32 MiB.
  for (const auto [n, row_bytes] :
       {Case{0, 8}, Case{1, 128}, Case{9001, 5}, Case{9001, 8}, Case{400'001, 1}, Case{70'001, 24},
        Case{1201, 1040}, Case{280'001, 128}, Case{35'001, 1008}}) {
    const std::string keys = SomeKeys(n, 8, 1'000'000);
    split.Divide(std::as_bytes(std::span(keys)), 8, partition, false);
    const std::vector<std::uint32_t> order = OrderOf(split, n);
    for (const std::size_t behind : {0u, 16u, 1u}) {
      SCOPED_TRACE(testing::Message()
                   << n << " rows of " << row_bytes << " bytes, " << behind << " behind a line");
      const Rows from(n * row_bytes, behind), gathered(n * row_bytes, behind),
          back(n * row_bytes, behind);
      std::uint64_t word = test::TestSeed();
      for (std::byte& byte : from.bytes()) {
        word = word * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(word >> 56);
      }
      // In parts of two shards, none and one, three, and one.
      std::vector<std::span<std::byte>> parts;
      std::uint32_t first = 0;
      for (const std::uint32_t end : {2u, 2u, 3u, 6u, 7u}) {
        const std::uint64_t begin = split.starts()[first];
        parts.push_back(
            gathered.bytes().subspan(begin * row_bytes, (split.starts()[end] - begin) * row_bytes));
        first = end;
      }
      split.Gather(from.bytes(), row_bytes, parts);
      for (std::size_t j = 0; j < n; ++j) {
        ASSERT_EQ(std::memcmp(gathered.bytes().data() + j * row_bytes,
                              from.bytes().data() + order[j] * row_bytes, row_bytes),
                  0);
      }
      split.Scatter(parts, row_bytes, back.bytes());
      EXPECT_TRUE(std::equal(back.bytes().begin(), back.bytes().end(), from.bytes().begin()));
    }
  }
}

}  // namespace
}  // namespace gpm
