// Stores over several shards with arrays in GPU memory: the same answers as a model's. Shards are
// on all GPUs that there are, in turn, and several on one.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/sharded_store.h"
#include "tests/cuda_shard_test_util.cuh"
#include "tests/ranks.h"

namespace gpm {
namespace {

using test::Model;
using test::PlacedBatch;
using test::TestBatch;
using test::TestOpenOptions;

constexpr std::uint32_t kValueSize = 40;

std::vector<int> AllDevices() {
  std::vector<int> devices;
  for (int i = 0; i < GpuCount(); ++i) devices.push_back(i);
  return devices;
}

/// A batch of `n` operations, of all kinds or of one.
TestBatch SomeOperations(std::mt19937_64& random, std::uint32_t key_size, std::size_t n,
                         std::uint64_t keys, std::optional<Op> kind) {
  TestBatch batch(key_size, kValueSize);
  for (std::size_t i = 0; i < n; ++i) {
    batch.Add(kind ? *kind : static_cast<Op>(random() % kOpKinds), random() % keys, random());
  }
  return batch;
}

/// The batch of one kind with the arrays that it needs.
Batch Single(Batch batch, Op kind) {
  batch.op = kind;
  batch.ops = {};
  if (kind == Op::kFind || kind == Op::kErase) batch.values = {};
  if (kind != Op::kFind && kind != Op::kFindOrInsert) batch.found = {};
  return batch;
}

/// Shards, bytes of a key.
class CudaShardTest
    : public test::PoolTest,
      public ::testing::WithParamInterface<std::tuple<std::uint32_t, std::uint32_t>> {};

INSTANTIATE_TEST_SUITE_P(Shards, CudaShardTest,
                         ::testing::Combine(::testing::Values(1u, 2u, 3u, 7u),
                                            ::testing::Values(8u, 16u, 36u)));

TEST_P(CudaShardTest, BatchesInGpuMemoryEqualAModel) {
  const auto [shards, key_size] = GetParam();
  // One shard takes arrays of its own device alone.
  const std::vector<int> devices = shards == 1 ? std::vector<int>{0} : AllDevices();
  const std::string folder = NewPath();
  std::mt19937_64 random(test::TestSeed());
  ShardedStore store =
      ShardedStore::Create(folder, test::Shape(key_size, kValueSize),
                           {.shards = shards, .devices = devices}, TestOpenOptions());
  Model model;
  for (int round = 0; round < 60; ++round) {
    // Few keys, so that one comes often in a batch, or many; and once a large batch.
    const std::uint64_t keys = round % 3 == 0 ? 5 : 3000;
    const std::size_t n = round == 10 ? 70'001 : round % 5 == 0 ? random() % 3 : random() % 6000;
    const auto kind =
        round % 2 == 1 ? std::optional(static_cast<Op>(random() % kOpKinds)) : std::nullopt;
    TestBatch batch = SomeOperations(random, key_size, n, keys, kind);
    const Batch host = kind ? Single(batch.Mixed(), *kind) : batch.Mixed();
    const int device = shards == 1 ? 0 : static_cast<int>(random() % devices.size());
    PlacedBatch placed = round % 4 < 2 || shards == 1 ? PlacedBatch::OnDevice(host, device)
                                                      : PlacedBatch::Anywhere(host, random);
    const std::uint64_t not_ok = store.Apply(placed.batch());
    placed.CopyBack();
    if (IsGpuMemory(placed.batch().results.data())) {
      EXPECT_EQ(not_ok, kNotCounted);
    } else if (n > 0) {
      EXPECT_EQ(not_ok, static_cast<std::uint64_t>(
                            std::count_if(host.results.begin(), host.results.end(),
                                          [](Result result) { return result != Result::kOk; })));
    }
    batch.Compare(model);
    if (HasFailure()) break;
  }
  test::ExpectContents(store, model);
  store.Close();
  store = ShardedStore::Open(folder, TestOpenOptions(), {.devices = devices});
  test::ExpectContents(store, model);
}

TEST_P(CudaShardTest, ManyItemsAreLoadedFromGpuMemory) {
  const auto [shards, key_size] = GetParam();
  const std::vector<int> devices = shards == 1 ? std::vector<int>{0} : AllDevices();
  ShardedStore store =
      ShardedStore::Create(NewPath(), test::Shape(key_size, kValueSize),
                           {.shards = shards, .devices = devices}, TestOpenOptions());
  Model model;
  std::uint64_t first = 0;
  for (const bool bulk : {true, true, false}) {
    TestBatch batch(key_size, kValueSize);
    for (std::uint64_t i = 0; i < 30'011; ++i, ++first) batch.Add(Op::kInsert, first, first);
    PlacedBatch placed = PlacedBatch::OnDevice(Single(batch.Mixed(), Op::kInsert));
    const Batch& arrays = placed.batch();
    const std::uint64_t not_ok = bulk ? store.BulkLoad(arrays.keys, arrays.values, arrays.results)
                                      : store.Insert(arrays.keys, arrays.values, arrays.results);
    EXPECT_EQ(not_ok, kNotCounted);
    placed.CopyBack();
    batch.Compare(model);
  }
  test::ExpectContents(store, model);
}

using CudaShardsTest = test::PoolTest;

TEST_F(CudaShardsTest, WhatTheDefaultStreamStillWritesIsWaitedFor) {
  ShardedStore store =
      ShardedStore::Create(NewPath(), test::Shape(8, 8), {.shards = 3}, TestOpenOptions());
  constexpr std::size_t kKeys = 200'000;
  std::vector<std::uint64_t> numbers(kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) numbers[i] = i + 1;
  test::Placed from(test::Placed::kPinned, numbers);
  const test::OnDevice<std::uint64_t> keys(kKeys);
  const test::OnDevice<Result> results(kKeys);
  CheckCuda(cudaMemcpyAsync(keys.data(), from.data(), 8 * kKeys, cudaMemcpyHostToDevice, nullptr),
            "cudaMemcpyAsync");
  store.Insert(keys.In(), keys.In(), std::span(results.data(), kKeys));
  EXPECT_EQ(results.Host(), std::vector(kKeys, Result::kOk));
  EXPECT_EQ(store.Stats().items, kKeys);
}

TEST_F(CudaShardsTest, BatchesOfSeveralThreads) {
  ShardedStore store =
      ShardedStore::Create(NewPath(), test::Shape(8, kValueSize),
                           {.shards = 3, .devices = AllDevices()}, TestOpenOptions());
  constexpr std::size_t kThreads = 4;
  std::vector<Model> models(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(test::TestSeed() + t);
        for (int round = 0; round < 20; ++round) {
          TestBatch batch(8, kValueSize);
          for (int i = 0; i < 500; ++i) {  // keys of its own
            batch.Add(static_cast<Op>(random() % kOpKinds), random() % 300 * kThreads + t,
                      random());
          }
          PlacedBatch placed = PlacedBatch::Anywhere(batch.Mixed(), random);
          store.Apply(placed.batch());
          placed.CopyBack();
          batch.Compare(models[t]);
        }
      });
    }
  }
  Model all;
  for (Model& model : models) all.merge(model);
  test::ExpectContents(store, all);
}

TEST_F(CudaShardsTest, WantOfSpaceIsAResult) {
  ShardedStore store = ShardedStore::Create(NewPath(), test::Shape(8, 1000), {.shards = 2},
                                            TestOpenOptions(std::uint64_t{2} << 20));
  TestBatch batch(8, 1000);
  for (std::uint64_t i = 0; i < 5000; ++i) batch.Add(Op::kInsert, i, i);
  Model model;
  PlacedBatch placed = PlacedBatch::OnDevice(batch.Mixed());
  store.Apply(placed.batch());
  placed.CopyBack();
  batch.Compare(model, true);
  EXPECT_LT(model.size(), 5000u);
  test::ExpectContents(store, model);
}

TEST_F(CudaShardsTest, BadBatchesAreRefusedAndChangeNothing) {
  for (const ExecutorKind executor : {ExecutorKind::kCuda, ExecutorKind::kCpu}) {
    OpenOptions open = TestOpenOptions();
    open.executor = executor;
    ShardedStore store = ShardedStore::Create(NewPath(), test::Shape(8, 8), {.shards = 3}, open);
    const test::OnDevice<std::uint64_t> rows(10);
    const test::OnDevice<Result> results(10);
    const std::span<Result> outcomes(results.data(), 10);
    const auto code_of = [&](std::size_t bytes) {
      return test::ErrorOf([&] {
        store.Apply({.op = Op::kUpsert,
                     .keys = rows.In().first(bytes),
                     .values = rows.In(),
                     .results = outcomes});
      });
    };
    EXPECT_EQ(code_of(72), ErrorCode::kInvalidArgument);
    if (executor == ExecutorKind::kCpu) {
      EXPECT_EQ(code_of(80), ErrorCode::kUnsupported);
    }
    EXPECT_EQ(store.Stats().items, 0u);
  }
}

/// Ranks that are threads, each with the next GPU.
class CudaRanksTest : public test::PoolTest {
 protected:
  void Open(std::uint32_t ranks, std::uint32_t shards, std::uint32_t key_size,
            const std::vector<ExecutorKind>& executors = {ExecutorKind::kCuda}) {
    stores_.clear();
    stores_.resize(ranks);
    auto exchanges = MakeThreadExchanges(ranks);
    const std::string folder = NewPath();
    const auto errors = OnAll([&](std::uint32_t i) {
      OpenOptions open = TestOpenOptions();
      open.device = DeviceOfRank(i);
      open.executor = executors[i % executors.size()];
      stores_[i] =
          DistributedStore::Create(folder, std::move(exchanges[i]),
                                   test::Shape(key_size, kValueSize), {.shards = shards}, open);
    });
    for (std::uint32_t i = 0; i < ranks; ++i) ASSERT_FALSE(errors[i]) << messages_[i];
  }
  static int DeviceOfRank(std::uint32_t rank) {
    return static_cast<int>(rank % static_cast<unsigned>(GpuCount()));
  }
  std::vector<std::optional<ErrorCode>> OnAll(const std::function<void(std::uint32_t)>& action) {
    return test::OnAllRanks(static_cast<std::uint32_t>(stores_.size()), action, &messages_);
  }
  /// Applies all parts at once, each in the memory of its rank's GPU, or anywhere.
  void Apply(std::vector<TestBatch>& parts, const std::vector<Batch>& batches, bool anywhere,
             std::mt19937_64& random, Model* model) {
    std::vector<PlacedBatch> placed;
    for (std::uint32_t i = 0; i < parts.size(); ++i) {
      placed.push_back(anywhere ? PlacedBatch::Anywhere(batches[i], random)
                                : PlacedBatch::OnDevice(batches[i], DeviceOfRank(i)));
    }
    const auto errors = OnAll([&](std::uint32_t i) { stores_[i].Apply(placed[i].batch()); });
    for (std::uint32_t i = 0; i < parts.size(); ++i) {
      EXPECT_FALSE(errors[i]) << messages_[i];
      placed[i].CopyBack();
      parts[i].Compare(*model);
    }
  }
  void ExpectContents(const Model& model) {
    std::uint64_t items = 0;
    for (DistributedStore& store : stores_) {
      store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
        const auto item = model.find(test::AsString(key));
        ASSERT_NE(item, model.end());
        EXPECT_EQ(test::AsString(value), item->second);
        ++items;
      });
    }
    EXPECT_EQ(items, model.size());
  }

  std::vector<DistributedStore> stores_;
  std::vector<std::string> messages_;
};

TEST_F(CudaRanksTest, PartsInGpuMemoryAreOneBatch) {
  std::mt19937_64 random(test::TestSeed());
  using Counts = std::pair<std::uint32_t, std::uint32_t>;
  for (const auto& [ranks, shards] :
       {Counts{1, 1}, Counts{1, 3}, Counts{2, 2}, Counts{3, 7}, Counts{5, 5}}) {
    for (const std::uint32_t key_size : {8u, 36u}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << shards << ", " << key_size);
      Open(ranks, shards, key_size);
      if (HasFatalFailure()) return;
      Model model;
      for (int round = 0; round < 16; ++round) {
        std::vector<TestBatch> parts;
        std::vector<Batch> batches;
        const bool single = round % 3 == 1;
        for (std::uint32_t i = 0; i < ranks; ++i) {
          const std::size_t n = random() % 4 == 0 ? 0 : random() % 3000;
          const auto kind =
              single ? std::optional(static_cast<Op>(random() % kOpKinds)) : std::nullopt;
          parts.push_back(SomeOperations(random, key_size, n, round % 2 == 0 ? 1000 : 30, kind));
        }
        for (TestBatch& part : parts) {
          batches.push_back(single && part.size() > 0 ? Single(part.Mixed(), part.op(0))
                                                      : part.Mixed());
        }
        Apply(parts, batches, ranks > 1 && round % 4 == 3, random, &model);
        if (HasFailure()) return;
      }
      ExpectContents(model);
    }
  }
}

TEST_F(CudaRanksTest, FindsOfOneKeyAreSentOnce) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t key_size : {8u, 13u}) {
    Open(3, 3, key_size);
    if (HasFatalFailure()) return;
    Model model;
    std::vector<TestBatch> parts(3, TestBatch(key_size, kValueSize));
    std::vector<Batch> batches;
    for (std::uint64_t key = 0; key < 60; ++key) parts[key % 3].Add(Op::kInsert, key, key);
    for (TestBatch& part : parts) batches.push_back(Single(part.Mixed(), Op::kInsert));
    Apply(parts, batches, false, random, &model);
    // Rank 0 looks for 70 keys often, of which ten are not there; rank 1 for each once.
    const std::uint64_t before = stores_[0].Exchanged().sent + stores_[1].Exchanged().sent;
    parts.assign(3, TestBatch(key_size, kValueSize));
    for (std::uint64_t j = 0; j < 30'000; ++j) parts[0].Add(Op::kFind, random() % 70, 0);
    for (std::uint64_t j = 0; j < 70; ++j) {
      parts[0].Add(Op::kFind, j, 0);
      parts[1].Add(Op::kFind, j, 0);
    }
    batches.clear();
    for (TestBatch& part : parts) batches.push_back(Single(part.Mixed(), Op::kFind));
    Apply(parts, batches, false, random, &model);
    EXPECT_EQ(stores_[0].Exchanged().sent + stores_[1].Exchanged().sent, before + 70 + 70);
  }
}

TEST_F(CudaRanksTest, LargeBatchesOfFinds) {
  std::mt19937_64 random(test::TestSeed());
  Open(2, 2, 8);
  if (HasFatalFailure()) return;
  constexpr std::uint64_t kKeys = 50'000;
  std::vector<TestBatch> parts(2, TestBatch(8, kValueSize));
  std::vector<Batch> batches;
  for (std::uint64_t key = 0; key < kKeys; ++key) parts[key % 2].Add(Op::kInsert, key, key);
  for (TestBatch& part : parts) batches.push_back(Single(part.Mixed(), Op::kInsert));
  Model model;
  Apply(parts, batches, false, random, &model);
  for (const bool repeat : {false, true}) {
    parts.assign(2, TestBatch(8, kValueSize));
    for (std::uint64_t j = 0; j < 300'001; ++j) {
      parts[0].Add(Op::kFind, random() % (repeat ? 100 : 2 * kKeys), 0);
      if (j % 3 == 0) parts[1].Add(Op::kFind, random() % (2 * kKeys), 0);
    }
    batches.clear();
    for (TestBatch& part : parts) batches.push_back(Single(part.Mixed(), Op::kFind));
    Apply(parts, batches, repeat, random, &model);
  }
}

TEST_F(CudaRanksTest, LoadsAndWhatSomeRankCantTake) {
  std::mt19937_64 random(test::TestSeed());
  Open(2, 2, 16);
  if (HasFatalFailure()) return;
  std::vector<TestBatch> parts(2, TestBatch(16, kValueSize));
  for (std::uint64_t key = 0; key < 40'000; ++key) parts[key % 2].Add(Op::kInsert, key, key);
  std::vector<PlacedBatch> placed;
  for (std::uint32_t i = 0; i < 2; ++i) {
    placed.push_back(PlacedBatch::OnDevice(Single(parts[i].Mixed(), Op::kInsert), DeviceOfRank(i)));
  }
  Model model;
  OnAll([&](std::uint32_t i) {
    const Batch& mine = placed[i].batch();
    EXPECT_EQ(stores_[i].BulkLoad(mine.keys, mine.values, mine.results), kNotCounted);
  });
  for (std::uint32_t i = 0; i < 2; ++i) {
    placed[i].CopyBack();
    parts[i].Compare(model);
  }
  ExpectContents(model);
  // Rank 1 is on the cpu.
  Open(2, 2, 16, {ExecutorKind::kCuda, ExecutorKind::kCpu});
  if (HasFatalFailure()) return;
  const auto errors = OnAll([&](std::uint32_t i) {
    if (i == 0) {
      stores_[i].Apply(placed[0].batch());
    } else {
      stores_[i].Apply({});
    }
  });
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(errors[i], ErrorCode::kUnsupported);
    EXPECT_NE(messages_[i].find("rank 1"), std::string::npos) << messages_[i];
    EXPECT_EQ(stores_[i].Stats().items, 0u);
  }
}

}  // namespace
}  // namespace gpm
