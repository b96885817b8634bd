// Stores with a capacity on executor cuda, whose kernels choose what goes: the same items, in the
// same order, as host threads choose on executor cpu.

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/cuda_test_util.cuh"

namespace gpm::test {
namespace {

constexpr std::uint32_t kBytesOfValue = 40;
constexpr std::uint32_t kScoreAt = 13;  // across two words

/// A store on each executor, which get the same batches.
class BothExecutors {
 public:
  BothExecutors(const std::string& path, std::uint32_t key_size, const Capacity& capacity)
      : key_size_(key_size),
        host_(Make(path + ".cpu", capacity, ExecutorKind::kCpu)),
        device_(Make(path + ".cuda", capacity, ExecutorKind::kCuda)) {}

  /// @param where the arrays of the cuda executor's are
  void Apply(TestBatch& batch, Placed::Where where, bool one_kind) {
    const std::uint64_t rows = device_.Stats().capacity_items;
    Batch call = batch.Mixed();
    const std::vector<Op> ops(call.ops.begin(), call.ops.end());
    if (one_kind) call.op = ops[0];
    Placed keys(where, std::vector<std::byte>(call.keys.begin(), call.keys.end()));
    Placed values(where, std::vector<std::byte>(call.values.begin(), call.values.end()));
    Placed kinds(where, ops), found(where, call.found.size()), results(where, ops.size());
    Batch on_device = call;
    on_device.keys = keys.bytes();
    on_device.values = values.bytes();
    on_device.ops = {reinterpret_cast<const Op*>(kinds.data()), ops.size()};
    on_device.found = found.bytes();
    on_device.results = {reinterpret_cast<Result*>(results.data()), ops.size()};
    if (one_kind) call.ops = on_device.ops = {};
    Bytes host_keys(rows * key_size_), device_keys(rows * key_size_);
    Bytes host_values(rows * kBytesOfValue), device_values(rows * kBytesOfValue);
    Evicted of_host{.keys = host_keys, .values = host_values};
    Evicted of_device{.keys = device_keys, .values = device_values};
    host_.ApplyAndEvict(call, &of_host);
    device_.ApplyAndEvict(on_device, &of_device);
    ASSERT_EQ(of_device.count, of_host.count);
    EXPECT_EQ(device_keys, host_keys);
    EXPECT_EQ(device_values, host_values);
    EXPECT_EQ(results.Contents<Result>(),
              std::vector<Result>(call.results.begin(), call.results.end()));
    evicted_ += of_host.count;
  }
  std::uint64_t evicted() const { return evicted_; }

 private:
  Store Make(const std::string& path, const Capacity& capacity, ExecutorKind executor) const {
    OpenOptions open = TestOpenOptions();
    open.executor = executor;
    open.threads = executor == ExecutorKind::kCpu ? 4 : 0;
    open.capacity = capacity;
    return Store::Create(path, Shape(key_size_, kBytesOfValue), open);
  }

  const std::uint32_t key_size_;
  Store host_;
  Store device_;
  std::uint64_t evicted_ = 0;
};

using CudaCapacityTest = CudaTest;

TEST_F(CudaCapacityTest, EvictsWhatTheCpuDoes) {
  const std::uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  int turn = 0;
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kLfu,
                                      EvictionPolicy::kOldest, EvictionPolicy::kScore}) {
    for (const std::uint32_t key_size : {8u, 36u}) {
      const auto where = static_cast<Placed::Where>(turn++ % Placed::kWays);
      SCOPED_TRACE(testing::Message() << EvictionPolicyName(policy) << ", keys of " << key_size
                                      << ", arrays " << where << ", seed " << seed);
      const std::uint64_t items = 3000 + random() % 30'000;
      BothExecutors stores(NewPath(), key_size,
                           {.items = items,
                            .policy = policy,
                            .score_offset = kScoreAt,
                            .score_bytes = key_size == 8 ? 4u : 8u});
      for (int round = 0; round < 40 && !HasFailure(); ++round) {
        TestBatch batch(key_size, kBytesOfValue);
        const bool one_kind = round % 2 == 0;
        const Op kinds[] = {Op::kInsert, Op::kFind,         Op::kUpsert, Op::kErase,
                            Op::kUpdate, Op::kFindOrInsert, Op::kInsert};
        const Op one = kinds[random() % 7];
        const std::uint64_t n = 1 + random() % (items / 2);
        for (std::uint64_t i = 0; i < n; ++i) {
          // A few keys come often, also within the batch, and with what erases and adds them.
          const std::uint64_t key = random() % 4 == 0 ? random() % 20 : random() % (3 * items);
          batch.Add(one_kind ? one : kinds[random() % 7], key, random());
        }
        stores.Apply(batch, where, one_kind);
      }
      EXPECT_GT(stores.evicted(), 0u);
      if (HasFailure()) return;
    }
  }
}

/// Items that come once and go, many times as many as stay, and finds of some that stay, more in a
/// batch than there are items: what is known of them outlives the places that are made anew.
TEST_F(CudaCapacityTest, WhatIsUsedOutlivesManyTurnovers) {
  constexpr std::uint64_t kItems = 20'000;
  constexpr std::uint64_t kUsed = 500;
  BothExecutors stores(NewPath(), 8, {.items = kItems, .policy = EvictionPolicy::kLfu});
  TestBatch used(8, kBytesOfValue);
  for (std::uint64_t key = 0; key < kUsed; ++key) used.Add(Op::kInsert, key, key);
  stores.Apply(used, Placed::kDevice, true);
  for (std::uint64_t first = kUsed; first < 20 * kItems && !HasFailure(); first += kItems / 5) {
    TestBatch batch(8, kBytesOfValue);
    for (std::uint64_t key = 0; key < kUsed; ++key) batch.Add(Op::kFind, key, 0);
    for (std::uint64_t key = first; key < first + kItems / 5; ++key) {
      batch.Add(Op::kInsert, key, key);
    }
    stores.Apply(batch, Placed::kDevice, false);
    for (std::uint64_t i = 0; i < kUsed; ++i) ASSERT_EQ(batch.result(i), Result::kOk);
    if (first % (5 * kItems) != kUsed) continue;
    TestBatch finds(8, kBytesOfValue);
    for (std::uint64_t i = 0; i < 10 * kItems; ++i) finds.Add(Op::kFind, i % (2 * kUsed), 0);
    stores.Apply(finds, Placed::kDevice, true);
  }
  EXPECT_GT(stores.evicted(), 15 * kItems);
}

/// Threads with streams of their own find and add items, in device arrays, while others are
/// evicted.
TEST_F(CudaCapacityTest, StreamsKeepWithinIt) {
  constexpr std::uint64_t kItems = 5000;
  constexpr std::uint64_t kBatch = 1000;
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kScore}) {
    OpenOptions open = TestOpenOptions();
    open.executor = ExecutorKind::kCuda;
    open.capacity = {.items = kItems, .policy = policy};
    const std::string path = NewPath();
    Store store = Store::Create(path, Shape(8, kBytesOfValue), open);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const CudaStream stream;
        std::mt19937_64 random(t);
        for (int round = 0; round < 30; ++round) {
          TestBatch batch(8, kBytesOfValue);
          const bool finds = (static_cast<std::uint64_t>(round) + t) % 2 == 0;
          for (std::uint64_t i = 0; i < kBatch; ++i) {
            batch.Add(finds ? Op::kFind : Op::kUpsert, random() % (4 * kItems), random());
          }
          const Batch call = batch.Mixed();
          const OnDevice<std::byte> keys(Bytes(call.keys.begin(), call.keys.end()));
          const OnDevice<std::byte> values(Bytes(call.values.begin(), call.values.end()));
          const OnDevice<std::byte> found(call.found.size());
          const OnDevice<Result> results(kBatch);
          store
              .ApplyAsync({.op = finds ? Op::kFind : Op::kUpsert,
                           .keys = keys.In(),
                           .values = finds ? std::span<const std::byte>() : values.In(),
                           .found = finds ? found.Out() : std::span<std::byte>(),
                           .results = {results.data(), kBatch}},
                          stream)
              .Wait();
          for (const Result result : results.Host()) {
            EXPECT_TRUE(result == Result::kOk || (finds && result == Result::kNotFound));
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const StoreStats stats = store.Stats();
    EXPECT_LE(stats.items, kItems);
    EXPECT_GT(stats.evictions, 0u);
    store.Close();
    ExpectSound(path, stats.items);
  }
}

}  // namespace
}  // namespace gpm::test
