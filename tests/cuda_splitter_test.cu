// Batches are divided on a GPU as on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "shard/splitter.h"
#include "tests/cuda_shard_test_util.cuh"

namespace gpm {
namespace {

using test::Placed;

class SplitterTest : public test::PoolTest {
 protected:
  void SetUp() override {
    test::PoolTest::SetUp();
    if (IsSkipped()) return;
    splitter_ = MakeGpuSplitter(0, 1);
  }

  /// Keys of some numbers, at an address that is a word's or not.
  std::vector<std::byte> SomeKeys(std::size_t n, std::uint32_t key_size, std::uint64_t numbers) {
    std::vector<std::byte> keys;
    for (std::size_t i = 0; i < n; ++i) {
      const std::string key = test::MakeKey(random_() % numbers, key_size);
      for (const char c : key) keys.push_back(static_cast<std::byte>(c));
    }
    return keys;
  }
  std::vector<std::byte> SomeBytes(std::size_t bytes) {
    std::vector<std::byte> some(bytes);
    for (std::byte& byte : some) byte = static_cast<std::byte>(random_());
    return some;
  }
  /// The host's splitter divides keys in host memory.
  void DivideOnHost(std::span<const std::byte> keys, std::uint32_t key_size,
                    const Partition& partition) {
    host_->Begin();
    host_->Divide(keys, key_size, partition, false);
  }
  /// The order of the host's last Divide.
  std::vector<std::uint32_t> HostOrder(std::size_t n) {
    std::vector<std::uint32_t> numbers(n), order(n);
    std::iota(numbers.begin(), numbers.end(), 0u);
    host_->Gather(std::as_bytes(std::span(numbers)), 4, std::as_writable_bytes(std::span(order)));
    return order;
  }
  /// The order of the last Divide, of all operations that it has.
  std::vector<std::uint32_t> Order(std::size_t n, std::size_t divided) {
    std::vector<std::uint32_t> numbers(n);
    std::iota(numbers.begin(), numbers.end(), 0u);
    Placed rows(Placed::kDevice, numbers);
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // (Begin was called before)
    const std::span<std::byte> gathered = splitter_->Take(4 * divided);
    splitter_->Gather(rows.bytes(), 4, gathered);
    splitter_->Finish();
    std::vector<std::uint32_t> order(divided);
    CheckCuda(cudaMemcpy(order.data(), gathered.data(), gathered.size(), cudaMemcpyDefault),
              "cudaMemcpy");
    return order;
  }

  std::mt19937_64 random_{test::TestSeed()};
  ThreadPool threads_{2};
  std::unique_ptr<Splitter> host_ = MakeHostSplitter(threads_);
  std::unique_ptr<Splitter> splitter_;
};

TEST_F(SplitterTest, DividesAsTheHostDoes) {
  for (const std::uint32_t key_size : {1u, 8u, 12u, 16u, 36u, 255u}) {
    for (const std::uint32_t shards : {1u, 2u, 3u, 7u, 64u, 256u, 1024u}) {
      for (const std::size_t n : {0u, 1u, 2u, 31u, 5001u}) {
        SCOPED_TRACE(testing::Message() << n << " keys of " << key_size << ", " << shards);
        const Partition partition{{random_(), random_()}, shards};
        const std::vector<std::byte> keys = SomeKeys(n, key_size, 3000);
        DivideOnHost(keys, key_size, partition);
        std::vector<std::byte> behind_a_byte(keys.size() + 1);
        std::copy(keys.begin(), keys.end(), behind_a_byte.begin() + 1);
        for (const std::size_t first : {0u, 1u}) {
          Placed rows(Placed::kDevice, first == 0 ? keys : behind_a_byte);
          splitter_->Begin();
          splitter_->Divide(rows.bytes().subspan(n == 0 ? 0 : first, keys.size()), key_size,
                            partition, false);
          EXPECT_EQ(splitter_->Starts(), host_->Starts());
          EXPECT_EQ(Order(n, n), HostOrder(n));
        }
      }
    }
  }
}

TEST_F(SplitterTest, LargeBatchesAndOneHotKey) {
  const Partition partition{{3, 4}, 5};
  for (const std::uint64_t numbers : {std::uint64_t{1}, std::uint64_t{1} << 40}) {
    const std::size_t n = 1'000'003;
    const std::vector<std::byte> keys = SomeKeys(n, 8, numbers);
    DivideOnHost(keys, 8, partition);
    Placed rows(Placed::kDevice, keys);
    splitter_->Begin();
    splitter_->Divide(rows.bytes(), 8, partition, false);
    EXPECT_EQ(splitter_->Starts(), host_->Starts());
    EXPECT_TRUE(Order(n, n) == HostOrder(n));
  }
}

TEST_F(SplitterTest, OneOperationForEachKeyAndItsAnswerForAll) {
  for (const std::uint32_t key_size : {8u, 13u, 32u}) {
    for (const std::uint64_t numbers : {1u, 40u, 100'000u}) {
      SCOPED_TRACE(testing::Message() << key_size << " bytes, " << numbers << " numbers");
      constexpr std::size_t kKeys = 20'011;
      const Partition partition{{random_(), random_()}, 7};
      const std::vector<std::byte> keys = SomeKeys(kKeys, key_size, numbers);
      Placed rows(Placed::kDevice, keys);
      Placed back(Placed::kDevice, keys.size());
      splitter_->Begin();
      splitter_->Divide(rows.bytes(), key_size, partition, true);
      const std::vector<std::uint64_t> starts = splitter_->Starts();
      std::set<std::string> distinct;
      const auto key = [&](std::size_t i) {
        return test::AsString(std::span(keys).subspan(i * key_size, key_size));
      };
      for (std::size_t i = 0; i < kKeys; ++i) distinct.insert(key(i));
      ASSERT_EQ(starts.back(), distinct.size());
      const std::vector<std::uint32_t> order = Order(kKeys, starts.back());
      std::set<std::string> divided;
      for (std::uint32_t shard = 0; shard < partition.shards; ++shard) {
        for (std::uint64_t j = starts[shard]; j < starts[shard + 1]; ++j) {
          EXPECT_TRUE(divided.insert(key(order[j])).second);
          EXPECT_EQ(partition.Of(keys.data() + order[j] * key_size, key_size), shard);
          if (j > starts[shard]) {
            EXPECT_LT(order[j - 1], order[j]);
          }
        }
      }
      EXPECT_EQ(divided, distinct);
      // The answer to a key is the key.
      const std::span<std::byte> answers = splitter_->Take(starts.back() * key_size);
      splitter_->Gather(rows.bytes(), key_size, answers);
      splitter_->Scatter(answers, key_size, back.bytes());
      splitter_->Finish();
      EXPECT_TRUE(back.Contents<std::byte>() == keys);
    }
  }
}

TEST_F(SplitterTest, RowsOfAllSizesFromAndToAnywhere) {
  const Partition partition{{1, 2}, 3};
  for (const std::size_t n : {1u, 7u, 4099u}) {
    const std::vector<std::byte> keys = SomeKeys(n, 8, 1000);
    DivideOnHost(keys, 8, partition);
    Placed key_rows(Placed::kPageable, keys);
    for (const std::size_t row_bytes : {1u, 2u, 4u, 5u, 8u, 12u, 16u, 24u, 100u, 128u, 1040u}) {
      const std::vector<std::byte> rows = SomeBytes(n * row_bytes);
      std::vector<std::byte> expected(rows.size());
      host_->Gather(rows, row_bytes, expected);
      for (int where = 0; where < Placed::kWays; ++where) {
        SCOPED_TRACE(testing::Message() << n << " rows of " << row_bytes << " in " << where);
        Placed from(static_cast<Placed::Where>(where), rows);
        Placed to(static_cast<Placed::Where>((where + 1) % Placed::kWays), rows.size());
        splitter_->Begin();
        splitter_->Divide(key_rows.bytes(), 8, partition, false);
        const std::span<std::byte> gathered = splitter_->Take(rows.size());
        splitter_->Gather(from.bytes(), row_bytes, gathered);
        splitter_->Scatter(gathered, row_bytes, to.bytes());
        splitter_->Finish();
        std::vector<std::byte> seen(rows.size());
        CheckCuda(cudaMemcpy(seen.data(), gathered.data(), seen.size(), cudaMemcpyDefault), "copy");
        EXPECT_TRUE(seen == expected);
        EXPECT_TRUE(to.Contents<std::byte>() == rows);
      }
    }
  }
}

TEST_F(SplitterTest, RowsThatAreNotWantedStay) {
  constexpr std::size_t kKeys = 5003;
  const Partition partition{{1, 2}, 3};
  std::vector<std::byte> rows = SomeBytes(kKeys * 24);
  for (const bool once : {false, true}) {
    const std::vector<std::byte> keys = SomeKeys(kKeys, 8, once ? 900 : 1 << 30);
    std::vector<Op> ops;
    std::vector<Result> results;
    for (std::size_t i = 0; i < kKeys; ++i) {
      // Operations on one key are alike: it is once that one of them counts for all.
      std::uint64_t key = 0;
      std::memcpy(&key, keys.data() + 8 * i, 8);
      ops.push_back(static_cast<Op>(key % (kOpKinds + 1)));
      results.push_back(static_cast<Result>(key / 16 % 5));
      for (std::size_t b = 0; b < 24; ++b) rows[24 * i + b] = static_cast<std::byte>(key + b);
    }
    for (int where = 0; where < Placed::kWays; ++where) {
      SCOPED_TRACE(testing::Message() << "in " << where << (once ? ", once" : ""));
      Placed key_rows(Placed::kDevice, keys), from(Placed::kDevice, rows);
      Placed kinds(static_cast<Placed::Where>(where), ops);
      Placed outcomes(static_cast<Placed::Where>(where), results);
      const std::vector<std::byte> poison(rows.size(), std::byte{0xA5});
      Placed to(Placed::kDevice, poison);
      Batch batch;
      batch.ops = {reinterpret_cast<const Op*>(kinds.data()), kKeys};
      batch.results = {reinterpret_cast<Result*>(outcomes.data()), kKeys};
      splitter_->Begin();
      splitter_->Divide(key_rows.bytes(), 8, partition, once);
      const std::uint64_t divided = splitter_->Starts().back();
      const std::vector<std::uint32_t> order = Order(kKeys, divided);
      const std::span<std::byte> values = splitter_->Take(divided * 24);
      const std::span<std::byte> all = splitter_->Take(divided * 24);
      CheckCuda(cudaMemset(values.data(), 0xA5, values.size()), "cudaMemset");
      CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // (Begin was called before)
      splitter_->Gather(from.bytes(), 24, values, WantedRows::Written(batch));
      splitter_->Gather(from.bytes(), 24, all);
      splitter_->Scatter(all, 24, to.bytes(), WantedRows::Found(batch));
      splitter_->Finish();
      std::vector<std::byte> gathered(values.size());
      CheckCuda(cudaMemcpy(gathered.data(), values.data(), values.size(), cudaMemcpyDefault), "");
      for (std::size_t j = 0; j < divided; ++j) {
        const std::byte* const expected =
            Writes(ops[order[j]]) ? rows.data() + 24 * order[j] : poison.data();
        ASSERT_EQ(std::memcmp(&gathered[24 * j], expected, 24), 0) << j;
      }
      const auto found = to.Contents<std::byte>();
      for (std::size_t i = 0; i < kKeys; ++i) {
        const std::byte* const expected =
            HasFound(ops[i], results[i]) ? rows.data() + 24 * i : poison.data();
        ASSERT_EQ(std::memcmp(&found[24 * i], expected, 24), 0) << i;
      }
    }
  }
}

TEST_F(SplitterTest, KindsSamplesAndZeros) {
  Splitter::KindMap as{};
  std::iota(as.begin(), as.end(), std::uint8_t{0});
  as[2] = 0xFF;
  std::vector<Op> ops;
  for (int i = 0; i < 1000; ++i) ops.push_back(static_cast<Op>(i % 11));
  Placed placed(Placed::kDevice, ops);
  const std::vector<std::byte> rows = SomeBytes(5000 * 8);
  Placed of_rows(Placed::kDevice, rows);
  splitter_->Begin();
  const std::span<std::byte> mapped = splitter_->Take(ops.size());
  splitter_->MapKinds(std::span(reinterpret_cast<const Op*>(placed.data()), ops.size()), Op{}, as,
                      mapped);
  const std::span<std::byte> same = splitter_->Take(100);
  splitter_->MapKinds({}, Op::kErase, as, same);
  const std::span<std::byte> zeros = splitter_->Take(77);
  splitter_->Clear(zeros);
  const std::vector<std::byte> sample = splitter_->Sample(of_rows.bytes(), 8, 100);
  splitter_->Finish();
  ASSERT_EQ(sample.size(), 800u);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(std::memcmp(&sample[8 * i], &rows[8 * 50 * i], 8), 0);
  }
  std::vector<std::byte> bytes(1000);
  const auto read = [&](std::span<std::byte> from) {
    CheckCuda(cudaMemcpy(bytes.data(), from.data(), from.size(), cudaMemcpyDefault), "copy");
  };
  read(mapped);
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(bytes[i], static_cast<std::byte>(i % 11 == 2 ? 0xFF : i % 11));
  }
  read(same);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(bytes[i], static_cast<std::byte>(Op::kErase));
  read(zeros);
  for (std::size_t i = 0; i < 77; ++i) EXPECT_EQ(bytes[i], std::byte{0});
}

}  // namespace
}  // namespace gpm
