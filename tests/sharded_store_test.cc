// A store over several pools: the same answers as a model's, whatever the number of shards.

#include "gpmstore/sharded_store.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "shard/manifest.h"
#include "shard/options.h"
#include "shard/sum_stats.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::Bytes;
using test::ErrorOf;
using test::MakeKey;
using test::MakeValue;
using test::Model;
using test::Numbers;
using test::Shape;
using test::TestBatch;
using test::TestOpenOptions;

constexpr std::uint32_t kValueSize = 24;

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class ShardedStoreTest : public test::PoolTest {
 protected:
  static void Apply(ShardedStore& store, Model& model, Op kind,
                    const std::vector<std::uint64_t>& numbers, std::uint64_t tag = 0) {
    TestBatch batch(store.key_size(), store.value_size());
    for (const std::uint64_t number : numbers) batch.Add(kind, number, number + tag);
    batch.ApplySingle(store, kind);
    batch.Compare(model);
  }
  /// All pools of a store that is closed are sound, and have so many items in all.
  static void ExpectPoolsSound(const std::string& folder, std::uint32_t shards,
                               std::uint64_t generation, std::uint64_t items) {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < shards; ++i) {
      const std::string path = folder + "/" + PoolFileName(generation, i);
      sum += CheckPool(path).items;
      test::ExpectSound(path, CheckPool(path).items);
    }
    EXPECT_EQ(sum, items);
  }
};

/// Shards, bytes of a key.
class ShardedModelTest
    : public ShardedStoreTest,
      public ::testing::WithParamInterface<std::tuple<std::uint32_t, std::uint32_t>> {};

INSTANTIATE_TEST_SUITE_P(Shards, ShardedModelTest,
                         ::testing::Combine(::testing::Values(1u, 2u, 3u, 4u, 7u),
                                            ::testing::Values(8u, 16u, 36u)));

TEST_P(ShardedModelTest, BatchesEqualAModel) {
  const auto [shards, key_size] = GetParam();
  const std::string folder = NewPath();
  std::mt19937_64 random(test::TestSeed());
  OpenOptions open = TestOpenOptions();
  open.threads = 4;
  ShardedStore store =
      ShardedStore::Create(folder, Shape(key_size, kValueSize), {.shards = shards}, open);
  EXPECT_EQ(store.shards(), shards);
  Model model;
  for (int round = 0; round < 30; ++round) {
    // Few keys, so that one comes often in a batch, or many; and twice a large batch, which several
    // threads divide.
    const std::uint64_t keys = round % 3 == 0 ? 5 : 3000;
    const std::size_t n = round / 2 == 5 ? 50'001 : round % 5 == 0 ? random() % 3 : random() % 6000;
    const bool single = round % 2 == 1;
    const auto kind = static_cast<Op>(random() % kOpKinds);
    TestBatch batch(key_size, kValueSize);
    for (std::size_t i = 0; i < n; ++i) {
      batch.Add(single ? kind : static_cast<Op>(random() % kOpKinds), random() % keys, random());
    }
    if (single) {
      batch.ApplySingle(store, kind);
    } else {
      store.Apply(batch.Mixed());
    }
    batch.Compare(model);
    if (round == 20) {
      test::ExpectContents(store, model);
      store.Close();
      ExpectPoolsSound(folder, shards, 1, model.size());
      store = ShardedStore::Open(folder, TestOpenOptions());
      EXPECT_TRUE(store.Stats().recovery.was_clean);
    }
  }
  test::ExpectContents(store, model);
  store.Close();
  ExpectPoolsSound(folder, shards, 1, model.size());
}

TEST_P(ShardedModelTest, ManyItemsAtOnceAreSpreadOverAllShards) {
  const auto [shards, key_size] = GetParam();
  constexpr std::uint64_t kItems = 20'000;
  ShardedStore store = ShardedStore::Create(NewPath(), Shape(key_size, kValueSize),
                                            {.shards = shards}, TestOpenOptions());
  Bytes keys;
  Bytes values;
  Model model;
  for (std::uint64_t i = 0; i < kItems; ++i) {
    const std::string key = MakeKey(i, key_size);
    const std::string value = MakeValue(i, kValueSize);
    for (const std::byte byte : AsBytes(key)) keys.push_back(byte);
    for (const std::byte byte : AsBytes(value)) values.push_back(byte);
    model[key] = value;
  }
  std::vector<Result> results(kItems);
  EXPECT_EQ(store.BulkLoad(keys, values, results), 0u);
  test::ExpectContents(store, model);
  std::uint64_t items = 0;
  for (std::uint32_t i = 0; i < shards; ++i) {
    items += store.ShardStats(i).items;
    EXPECT_GT(store.ShardStats(i).items, kItems / shards * 3 / 4);
  }
  EXPECT_EQ(items, kItems);
  EXPECT_EQ(store.BulkLoad(keys, values, results), kItems);  // they exist
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.key_size, key_size);
  EXPECT_EQ(stats.operations[static_cast<std::size_t>(Op::kInsert)], 2 * kItems);
}

TEST_F(ShardedStoreTest, VisitsItemsUntilItIsEnough) {
  ShardedStore store =
      ShardedStore::Create(NewPath(), Shape(8, kValueSize), {.shards = 3}, TestOpenOptions());
  TestBatch batch(8, kValueSize);
  for (std::uint64_t i = 0; i < 100; ++i) batch.Add(Op::kInsert, i, i);
  batch.ApplySingle(store, Op::kInsert);
  for (const std::uint64_t enough : {1u, 60u, 100u, 101u}) {
    std::set<std::string> seen;
    const bool all = store.ForEach([&](auto key, auto) {
      seen.insert(test::AsString(key));
      return seen.size() < enough;
    });
    EXPECT_EQ(seen.size(), std::min<std::uint64_t>(enough, 100));
    EXPECT_EQ(all, enough > 100);
  }
}

TEST_F(ShardedStoreTest, SingleOperations) {
  ShardedStore store =
      ShardedStore::Create(NewPath(), Shape(16, kValueSize), {.shards = 3}, TestOpenOptions());
  Bytes found(kValueSize);
  for (std::uint64_t i = 0; i < 50; ++i) {
    const std::string key = MakeKey(i, 16);
    EXPECT_FALSE(store.Get(AsBytes(key), found));
    EXPECT_FALSE(store.Delete(AsBytes(key)));
    EXPECT_EQ(store.Put(AsBytes(key), AsBytes(MakeValue(i, kValueSize))), Result::kOk);
    ASSERT_TRUE(store.Get(AsBytes(key), found));
    EXPECT_EQ(test::AsString(found), MakeValue(i, kValueSize));
    EXPECT_EQ(store.ShardStats(store.ShardOf(AsBytes(key))).items > 0, true);
  }
  EXPECT_EQ(store.Stats().items, 50u);
  EXPECT_TRUE(store.Delete(AsBytes(MakeKey(7, 16))));
  EXPECT_FALSE(store.Get(AsBytes(MakeKey(7, 16)), found));
  const std::string short_key(8, 'k');
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { static_cast<void>(store.Get(AsBytes(short_key), found)); },
           [&] { static_cast<void>(store.Put(AsBytes(short_key), found)); },
           [&] { store.Delete(AsBytes(short_key)); }, [&] { store.ShardOf(AsBytes(short_key)); },
           [&] {
             static_cast<void>(
                 store.Get(AsBytes(MakeKey(1, 16)), std::span(found).first(kValueSize - 1)));
           }}) {
    EXPECT_EQ(ErrorOf(call), ErrorCode::kInvalidArgument);
  }
}

TEST_F(ShardedStoreTest, RoomIsMadeAndGivenBack) {
  const std::string folder = NewPath();
  Model model;
  ShardedStore store =
      ShardedStore::Create(folder, Shape(8, 600), {.shards = 4}, TestOpenOptions());
  store.Reserve(20'000);
  EXPECT_GE(store.Stats().capacity_slots, 20'000u);
  const std::uint64_t resizes = store.Stats().resizes;
  Apply(store, model, Op::kInsert, Numbers(0, 20'000));
  EXPECT_EQ(store.Stats().resizes, resizes);
  Apply(store, model, Op::kErase, Numbers(100, 19'900));
  store.Close();
  store = ShardedStore::Open(folder, TestOpenOptions());
  const std::uint64_t before = store.Stats().pm_bytes;
  store.Compact();
  EXPECT_LT(store.Stats().pm_bytes, before);
  EXPECT_EQ(store.Stats().pm_bytes_given_back, before - store.Stats().pm_bytes);
  test::ExpectContents(store, model);
}

TEST_F(ShardedStoreTest, WantOfSpaceIsAResult) {
  ShardedStore store = ShardedStore::Create(NewPath(), Shape(8, 1000), {.shards = 2},
                                            TestOpenOptions(std::uint64_t{2} << 20));
  TestBatch batch(8, 1000);
  for (std::uint64_t i = 0; i < 5000; ++i) batch.Add(Op::kInsert, i, i);
  Model model;
  const std::uint64_t not_ok = store.Apply(batch.Mixed());
  EXPECT_GT(not_ok, 0u);
  batch.Compare(model, true);
  EXPECT_EQ(model.size(), 5000 - not_ok);
  test::ExpectContents(store, model);
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_LE(store.ShardStats(i).pm_bytes, 1u << 20);
}

TEST_F(ShardedStoreTest, BadBatchesAreRefusedAndChangeNothing) {
  for (const std::uint32_t shards : {1u, 3u}) {
    ShardedStore store =
        ShardedStore::Create(NewPath(), Shape(8, 8), {.shards = shards}, TestOpenOptions());
    const Bytes rows(80);
    std::vector<Result> results(10);
    const auto refused = [&](const Batch& batch) {
      std::string message;
      EXPECT_EQ(ErrorOf([&] { store.Apply(batch); }, &message), ErrorCode::kInvalidArgument);
      EXPECT_EQ(message.rfind("batch", 0), 0u) << message;
    };
    const std::span<const std::byte> all = rows;
    refused({.op = Op::kUpsert, .keys = all.first(79), .values = all, .results = results});
    refused({.op = Op::kUpsert, .keys = all, .results = results});
    refused({.op = Op::kUpsert, .keys = all, .values = all.first(72), .results = results});
    refused({.op = Op::kAccumulate, .keys = all, .values = all, .results = results});
    EXPECT_EQ(store.Stats().items, 0u);
    // Kinds that are none are results, as Store's.
    const std::vector<Op> ops(10, static_cast<Op>(99));
    EXPECT_EQ(store.Apply({.ops = ops, .keys = all, .values = all, .results = results}), 10u);
    EXPECT_EQ(results, std::vector<Result>(10, Result::kInvalid));
  }
}

TEST_F(ShardedStoreTest, ThreadsHaveABound) {
  EXPECT_EQ(ThreadsToDivide({.threads = 7}, 1), 7u);
  EXPECT_EQ(ThreadsToDivide({.threads = 4'000'000'000}, 1), 256u);
}

TEST_F(ShardedStoreTest, BatchesOfSeveralThreads) {
  ShardedStore store =
      ShardedStore::Create(NewPath(), Shape(8, kValueSize), {.shards = 3}, TestOpenOptions());
  constexpr int kThreads = 4;
  std::vector<Model> models(kThreads);
  std::atomic<int> visits{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(test::TestSeed() + static_cast<std::uint64_t>(t));
        for (int round = 0; round < 20; ++round) {
          TestBatch batch(8, kValueSize);
          for (int i = 0; i < 500; ++i) {  // keys of its own
            batch.Add(static_cast<Op>(random() % kOpKinds),
                      random() % 300 * kThreads + static_cast<std::uint64_t>(t), random());
          }
          store.Apply(batch.Mixed());
          batch.Compare(models[static_cast<std::size_t>(t)]);
        }
      });
    }
    threads.emplace_back([&] {  // who is alone gets a turn
      for (int i = 0; i < 5; ++i) store.ForEach([&](auto, auto) { ++visits; });
    });
  }
  Model all;
  for (Model& model : models) all.merge(model);
  test::ExpectContents(store, all);
}

TEST_F(ShardedStoreTest, OptionsOfAllShardsAreDivided) {
  const std::string folder = NewPath();
  OpenOptions open = TestOpenOptions();
  open.executor = ExecutorKind::kCpu;
  open.threads = 8;
  CreateOptions create = Shape(8, kValueSize, 30'000);
  create.hash_seed = 17;
  ShardedStore store = ShardedStore::Create(folder, create, {.shards = 4}, open);
  EXPECT_EQ(store.Stats().threads, 8u);
  EXPECT_EQ(store.ShardStats(3).threads, 2u);
  EXPECT_GE(store.Stats().capacity_slots, 30'000u);
  EXPECT_LT(store.ShardStats(0).capacity_slots, 30'000u);
  // The same seed makes the same store.
  ShardedStore again = ShardedStore::Create(NewPath(), create, {.shards = 4}, open);
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(store.ShardOf(AsBytes(MakeKey(i, 8))), again.ShardOf(AsBytes(MakeKey(i, 8))));
  }
}

TEST_F(ShardedStoreTest, WhatShardsCantDoIsRefused) {
  const std::string folder = NewPath();
  const auto refused = [&](const OpenOptions& open, std::uint32_t shards) {
    EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(folder, Shape(8, 8), {.shards = shards}, open); }),
              ErrorCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(folder));
  };
  refused(TestOpenOptions(), 0);
  refused(TestOpenOptions(), kMaxShards + 1);
  OpenOptions open = TestOpenOptions();
  open.capacity.items = 1000;
  refused(open, 2);
  open = TestOpenOptions();
  open.capacity.bytes = std::uint64_t{64} << 20;
  refused(open, 2);
  open = TestOpenOptions();
  open.snapshot.path = NewPath();
  refused(open, 2);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Create(folder, Shape(0, 8), {.shards = 2}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder)) << "what was made of it has to go";
}

TEST_F(ShardedStoreTest, EmptyStores) {
  const std::string folder = NewPath();
  ShardedStore store;
  EXPECT_FALSE(store);
  store.Close();
  EXPECT_EQ(ErrorOf([&] { store.Stats(); }), ErrorCode::kInvalidArgument);
  store = ShardedStore::Create(folder, Shape(8, 8), {.shards = 2}, TestOpenOptions());
  ShardedStore moved = std::move(store);
  EXPECT_EQ(ErrorOf([&] { store.key_size(); }), ErrorCode::kInvalidArgument);  // NOLINT
  EXPECT_TRUE(moved);
  moved.Close();
  EXPECT_FALSE(moved);
  EXPECT_EQ(ErrorOf([&] { moved.Apply({}); }), ErrorCode::kInvalidArgument);
  store = ShardedStore::Open(folder, TestOpenOptions());
}

TEST_F(ShardedStoreTest, AChildOfTheProcessLeavesTheShardsAlone) {
  if (test::TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "forks lose the GPU";
  const std::string folder = NewPath();
  Model model;
  ShardedStore store =
      ShardedStore::Create(folder, Shape(8, kValueSize), {.shards = 2}, TestOpenOptions());
  Apply(store, model, Op::kInsert, Numbers(0, 100));
  const pid_t child = test::Fork();
  if (child == 0) {
    const bool refused = ErrorOf([&] { store.Stats(); }) == ErrorCode::kUnsupported;
    store.Close();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Open(folder); }), ErrorCode::kBusy);
  test::ExpectContents(store, model);
}

TEST_F(ShardedStoreTest, ClosingLetsGoOfTheFolderWhileAChildHasItOpen) {
  if (test::TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "forks lose the GPU";
  const std::string folder = NewPath();
  ShardedStore store =
      ShardedStore::Create(folder, Shape(8, kValueSize), {.shards = 2}, TestOpenOptions());
  const pid_t child = test::Fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  store.Close();
  EXPECT_EQ(ErrorOf([&] { ShardedStore::Open(folder, TestOpenOptions()).Close(); }), std::nullopt);
  kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

TEST(SumStatsTest, SumsAndLongest) {
  StoreStats a;
  a.items = 3;
  a.capacity_slots = 10;
  a.level_buckets = {4, 2};
  a.resize_seconds = 1;
  a.operations[0] = 5;
  a.threads = 2;
  a.recovery.seconds = 3;
  StoreStats b = a;
  b.items = 4;
  b.level_buckets = {4, 2, 1};
  b.resize_seconds = 2;
  b.recovery.was_clean = false;
  const StoreStats shards[] = {a, b};
  const StoreStats sum = SumStats(shards);
  EXPECT_EQ(sum.items, 7u);
  EXPECT_DOUBLE_EQ(sum.load_factor, 7.0 / 20);
  EXPECT_EQ(sum.level_buckets, (std::vector<std::uint64_t>{8, 4, 1}));
  EXPECT_EQ(sum.resize_seconds, 2);
  EXPECT_EQ(sum.operations[0], 10u);
  EXPECT_EQ(sum.threads, 4u);
  EXPECT_FALSE(sum.recovery.was_clean);
  EXPECT_EQ(sum.recovery.seconds, 3);
}

}  // namespace
}  // namespace gpm
