// GPU memory at addresses that stay, and caches whose values are in it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/cuda/backed_memory.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::OnDevice;
using test::Value;
using test::ValueOf;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class BackedMemoryTest : public test::CudaTest {
 protected:
  void ExpectBytes(const BackedMemory& memory, std::uint64_t from, std::uint64_t count, int byte) {
    std::vector<unsigned char> bytes(count);
    CheckCuda(cudaMemcpy(bytes.data(), memory.data() + from, count, cudaMemcpyDeviceToHost),
              "cudaMemcpy");
    for (const unsigned char each : bytes) ASSERT_EQ(each, byte);
  }
  static void Set(const BackedMemory& memory, std::uint64_t from, std::uint64_t count, int byte) {
    CheckCuda(cudaMemset(memory.data() + from, byte, count), "cudaMemset");
  }

  DeviceMemory device_{0, true};
};

TEST_F(BackedMemoryTest, GrowsInPlace) {
  BackedMemory memory(&device_);
  EXPECT_EQ(memory.data(), nullptr);
  memory.Reserve(kMiB, false);
  std::byte* const place = memory.data();
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(memory.backed(), 0u);
  EXPECT_EQ(device_.bytes(), 0u);
  std::uint64_t before = 0;
  for (const std::uint64_t bytes : {std::uint64_t{1}, 3 * kMiB, 40 * kMiB, 40 * kMiB + 1}) {
    memory.Back(bytes);
    EXPECT_GE(memory.backed(), bytes);
    EXPECT_LT(memory.backed(), bytes + 4 * kMiB);
    EXPECT_EQ(device_.bytes(), memory.backed());
    EXPECT_TRUE(memory.HasNoMoreThan(bytes));
    EXPECT_FALSE(memory.HasNoMoreThan(bytes - bytes / 2 - 1));
    Set(memory, before, memory.backed() - before, 7);
    before = memory.backed();
  }
  memory.Back(kMiB);  // is there
  memory.Reserve(std::uint64_t{1} << 50, false);
  EXPECT_EQ(memory.data(), place);
  ExpectBytes(memory, 0, memory.backed(), 7);
  BackedMemory other(&device_);
  other = std::move(memory);
  EXPECT_EQ(other.data(), place);
  other = BackedMemory(&device_);
}

TEST_F(BackedMemoryTest, GivesBackWhatItHas) {
  {
    BackedMemory memory(&device_);
    memory.Reserve(kMiB, false);
    memory.Back(8 * kMiB);
    BackedMemory whole(&device_);
    whole.Reserve(1000, true);
    EXPECT_EQ(whole.backed(), 1000u);
    EXPECT_FALSE(whole.HasNoMoreThan(1000));
    EXPECT_EQ(device_.bytes(), memory.backed() + 1000);
    Set(whole, 0, 1000, 3);
    ExpectBytes(whole, 0, 1000, 3);
  }
  EXPECT_EQ(device_.bytes(), 0u);
}

TEST_F(BackedMemoryTest, MoreThanThereIsIsRefused) {
  BackedMemory memory(&device_);
  memory.Reserve(kMiB, false);
  memory.Back(kMiB);
  const std::uint64_t before = memory.backed();
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  EXPECT_THROW(memory.Back(2 * all_bytes), Error);
  EXPECT_THROW(memory.Back(all_bytes), Error);
  EXPECT_EQ(memory.backed(), before);
  EXPECT_EQ(device_.bytes(), before);
  Set(memory, 0, before, 1);
  ExpectBytes(memory, 0, before, 1);
}

TEST_F(BackedMemoryTest, ACacheGrowsWithItsTable) {
  constexpr std::uint64_t kItems = 200'000;
  Store store = Make();
  std::vector<std::uint64_t> keys(kItems);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<Value> values;
  for (const std::uint64_t key : keys) values.push_back(ValueOf(key));
  const OnDevice<std::uint64_t> on_keys(keys);
  const OnDevice<Value> on_values(values);
  const OnDevice<Result> results(kItems);
  const auto insert = [&](std::uint64_t first, std::uint64_t count) {
    store.Insert(on_keys.In().subspan(first * 8, count * 8),
                 on_values.In().subspan(first * sizeof(Value), count * sizeof(Value)),
                 {results.data() + first, count});
  };
  const auto find = [&](std::uint64_t count) {
    const OnDevice<Value> found(count);
    store.Find(on_keys.In().first(count * 8), found.Out(), {results.data(), count});
    const std::vector<Value> rows = found.Host();
    const std::vector<Result> its = results.Host();
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(its[i], Result::kOk) << i;
      ASSERT_EQ(rows[i], values[i]) << i;
    }
  };
  constexpr std::uint64_t kBatch = 1000;
  for (std::uint64_t i = 0; i < kItems / 4; i += kBatch) insert(i, kBatch);
  ASSERT_GT(store.Stats().cache.frames, 0u);
  store.RefreshCache().Wait();
  EXPECT_GT(store.Stats().gpu_bytes, kItems / 4 * sizeof(Value));
  find(kItems / 4);
  const StoreStats before = store.Stats();
  find(kItems / 4);
  EXPECT_EQ(store.Stats().cache.hits - before.cache.hits, kItems / 4);
  for (std::uint64_t i = kItems / 4; i < kItems; i += kBatch) insert(i, kBatch);
  ASSERT_GT(store.Stats().resizes, before.resizes);
  find(kItems);
  store.RefreshCache().Wait();
  find(kItems);
  const StoreStats grown = store.Stats();
  find(kItems);
  EXPECT_EQ(store.Stats().cache.hits - grown.cache.hits, kItems);
}

/// A bulk load makes a cache anew, in the memory of the one that there was: nothing of what that
/// held is found any more.
TEST_F(BackedMemoryTest, ABulkLoadBeginsAnew) {
  constexpr std::uint64_t kItems = 200'000;
  CreateOptions create;
  create.value_size = test::kValueSize;
  create.initial_capacity = kItems;
  Store store = Store::Create(PoolPath(), create, test::TestOpenOptions());
  std::vector<std::uint64_t> keys(kItems);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<Result> results(kItems);
  std::vector<Value> found(kItems);
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<Value> values;
    for (const std::uint64_t key : keys) values.push_back(ValueOf(key + round * kItems));
    EXPECT_EQ(
        store.BulkLoad(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), results),
        0u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(found)),
                           results),
                0u);
      EXPECT_TRUE(found == values);
      store.RefreshCache().Wait();
    }
    const StoreStats before = store.Stats();
    store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(found)), results);
    EXPECT_TRUE(found == values);
    EXPECT_EQ(store.Stats().cache.hits - before.cache.hits, kItems);
    EXPECT_EQ(store.Erase(std::as_bytes(std::span(keys)), results), 0u);
  }
}

/// Where there is no memory for frames, there are none, and everything is found; later there is.
TEST_F(BackedMemoryTest, ACacheIsAsLargeAsThereIsMemoryFor) {
  constexpr std::uint64_t kItems = 100'000;
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  DeviceArray<std::byte> others;
  others.Reserve(free_bytes - all_bytes / 16);
  OpenOptions open = test::TestOpenOptions();
  open.cache.fraction = 1.0;
  CreateOptions create;
  create.value_size = test::kValueSize;
  Store store = Store::Create(PoolPath(), create, open);
  std::vector<std::uint64_t> keys(kItems);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<Value> values;
  for (const std::uint64_t key : keys) values.push_back(ValueOf(key));
  const auto insert_and_find = [&](std::uint64_t first, std::uint64_t count) {
    std::vector<Result> results(count);
    std::vector<Value> found(count);
    const auto its_keys = std::as_bytes(std::span(keys).subspan(first, count));
    const std::span<Value> its_values = std::span(values).subspan(first, count);
    EXPECT_EQ(store.Insert(its_keys, std::as_bytes(its_values), results), 0u);
    store.RefreshCache().Wait();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(store.Find(its_keys, std::as_writable_bytes(std::span(found)), results), 0u);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), its_values.begin()));
    }
  };
  insert_and_find(0, 2000);
  EXPECT_EQ(store.Stats().cache.frames, 0u);
  EXPECT_EQ(store.Stats().cache.hits, 0u);
  others = DeviceArray<std::byte>();
  insert_and_find(2000, kItems - 2000);  // for which the table grows
  EXPECT_GT(store.Stats().cache.frames, 0u);
  EXPECT_GT(store.Stats().cache.hits, 0u);
}

}  // namespace
}  // namespace gpm
