#include "gpmstore/distributed_store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "gpmstore/sharded_store.h"
#include "tests/distributed_test.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::Model;
using test::TestBatch;

constexpr std::uint32_t kKeySize = 16;
constexpr std::uint32_t kValueSize = 40;
constexpr CreateOptions kCreate{.key_size = kKeySize, .value_size = kValueSize};

class DistributedStoreTest : public test::DistributedTest {
 protected:
  DistributedStoreTest() : DistributedTest(kCreate) {}

  /// All ranks apply a random part of a batch.
  /// @param most operations of a part
  void ApplyRandom(std::mt19937_64& random, Model* model, std::uint64_t most = 400) {
    std::vector<TestBatch> parts;
    std::vector<Batch> batches;
    for (std::uint32_t i = 0; i < ranks_; ++i) {
      TestBatch& part = parts.emplace_back(kKeySize, kValueSize);
      for (std::uint64_t j = random() % most; j > 0; --j) {
        part.Add(static_cast<Op>(random() % kOpKinds), random() % (most + 100), random());
      }
    }
    for (TestBatch& part : parts) batches.push_back(part.Mixed());
    ExpectNoErrors(OnAll([&](std::uint32_t i) { stores_[i].Apply(batches[i]); }));
    for (const TestBatch& part : parts) part.Compare(*model);
  }
  void ExpectContents(const Model& model) {
    std::uint64_t visited = 0;
    std::uint64_t items = 0;
    for (DistributedStore& store : stores_) {
      store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
        const auto item = model.find(test::AsString(key));
        ASSERT_NE(item, model.end());
        EXPECT_EQ(test::AsString(value), item->second);
        ++visited;
      });
      items += store.Stats().items;
    }
    EXPECT_EQ(visited, model.size());
    EXPECT_EQ(items, model.size());
  }
};

TEST_F(DistributedStoreTest, OtherNumbersOfRanksFindTheSameStore) {
  std::mt19937_64 random(test::TestSeed());
  const std::string folder = NewPath();
  Model model;
  ExpectNoErrors(Open(folder, 2, 5, true));
  for (const std::uint32_t ranks : {2u, 5u, 1u, 3u}) {
    SCOPED_TRACE(ranks);
    if (ranks != 2) ExpectNoErrors(Open(folder, ranks));
    for (std::uint32_t i = 0; i < ranks; ++i) {
      EXPECT_EQ(stores_[i].rank(), i);
      EXPECT_EQ(stores_[i].ranks(), ranks);
      EXPECT_EQ(stores_[i].shards(), 5u);
    }
    ExpectContents(model);
    for (int round = 0; round < 8; ++round) ApplyRandom(random, &model);
    ApplyRandom(random, &model, 60'000);
    ExpectContents(model);
    for (DistributedStore& store : stores_) store.Close();
  }
  ShardedStore alone = ShardedStore::Open(folder, test::TestOpenOptions());
  EXPECT_EQ(alone.Stats().items, model.size());
}

TEST_F(DistributedStoreTest, BulkLoadReserveAndCompact) {
  ExpectNoErrors(Open(NewPath(), 3, 4, true));
  ExpectNoErrors(OnAll([&](std::uint32_t i) { stores_[i].Reserve(3000); }));
  std::vector<TestBatch> parts(3, TestBatch(kKeySize, kValueSize));
  for (std::uint64_t key = 0; key < 3000; ++key) parts[key % 3].Add(Op::kInsert, key, key);
  std::vector<Batch> batches;
  for (TestBatch& part : parts) batches.push_back(part.Mixed());
  ExpectNoErrors(OnAll([&](std::uint32_t i) {
    EXPECT_EQ(stores_[i].BulkLoad(batches[i].keys, batches[i].values, batches[i].results), 0u);
  }));
  Model model;
  for (const TestBatch& part : parts) part.Compare(model);
  ExpectNoErrors(OnAll([&](std::uint32_t i) { stores_[i].Compact(); }));
  ExpectContents(model);
}

TEST_F(DistributedStoreTest, ABulkLoadBesideABatchIsRefused) {
  ExpectNoErrors(Open(NewPath(), 3, 4, true));
  std::vector<TestBatch> parts(3, TestBatch(kKeySize, kValueSize));
  for (std::uint64_t key = 0; key < 40; ++key) parts[key % 2].Add(Op::kInsert, key, key);
  std::vector<Batch> batches;
  for (TestBatch& part : parts) batches.push_back(part.Mixed());
  // Also of a rank whose part is empty, the last one.
  for (const std::uint32_t loads : {0u, 1u, 2u}) {
    SCOPED_TRACE(loads);
    ExpectAll(ErrorCode::kInvalidArgument, OnAll([&](std::uint32_t i) {
                if (i != loads) return static_cast<void>(stores_[i].Apply(batches[i]));
                stores_[i].BulkLoad(batches[i].keys, batches[i].values, batches[i].results);
              }),
              "another call than rank 0");
  }
  Model model;
  ExpectContents(model);
  ExpectNoErrors(OnAll([&](std::uint32_t i) { stores_[i].Apply(batches[i]); }));
  for (const TestBatch& part : parts) part.Compare(model);
  ExpectContents(model);
}

/// Also of one rank, which sends nothing, and of a batch of no operations.
TEST_F(DistributedStoreTest, ABatchWithKeysAndNoResultsIsRefused) {
  const std::vector<std::byte> key(kKeySize);
  for (const std::uint32_t ranks : {1u, 2u}) {
    ExpectNoErrors(Open(NewPath(), ranks, 2, true));
    ExpectAll(ErrorCode::kInvalidArgument,
              OnAll([&](std::uint32_t i) { stores_[i].Apply({.op = Op::kFind, .keys = key}); }),
              "batch of 0 operations");
    ExpectAll(ErrorCode::kInvalidArgument, OnAll([&](std::uint32_t i) {
                stores_[i].ApplyAsync({.op = Op::kFind, .keys = key}).Wait();
              }),
              "batch of 0 operations");
  }
}

TEST_F(DistributedStoreTest, WhatCantBeOpened) {
  const std::string folder = NewPath();
  ExpectAll(ErrorCode::kNotFound, Open(folder, 2), folder);
  ExpectAll(ErrorCode::kInvalidArgument, Open(folder, 3, 2, true), "3 ranks");
  EXPECT_FALSE(std::filesystem::exists(folder));
  ExpectNoErrors(Open(folder, 2, 2, true));
  stores_.clear();
  ExpectAll(ErrorCode::kExists, Open(folder, 2, 2, true), folder);
  ExpectAll(ErrorCode::kInvalidArgument, Open(folder, 2, 3), "2 shards");
  for (const char* name : {"", ".other"}) {  // one that is there, and one that is not
    ranks_ = 2;
    auto exchanges = MakeThreadExchanges(2);
    ExpectNoErrors(OnAll([&](std::uint32_t i) {
      DistributedStore::OpenOrCreate(folder + name, std::move(exchanges[i]), kCreate, {.shards = 2},
                                     test::TestOpenOptions());
    }));
  }
  ExpectAll(ErrorCode::kInvalidArgument, Open(folder, 3), "3 ranks");
  {
    const ShardedStore other = ShardedStore::Open(folder, test::TestOpenOptions());
    ExpectAll(ErrorCode::kBusy, Open(folder, 2), folder);
  }
  // One that only rank 1 would open.
  std::filesystem::remove(folder + "/000001-0001.pool");
  ExpectAll(ErrorCode::kNotFound, Open(folder, 2), "000001-0001.pool");
  EXPECT_NE(messages_[1].find("rank 0"), std::string::npos);
}

TEST_F(DistributedStoreTest, NothingIsMadeThatARankCantOpen) {
  const std::string folder = NewPath();
  ranks_ = 2;
  const auto create = [&](std::uint32_t shards_of_last, const OpenOptions& open_of_last) {
    auto exchanges = MakeThreadExchanges(2);
    return OnAll([&](std::uint32_t i) {
      DistributedStore::Create(folder, std::move(exchanges[i]), kCreate,
                               {.shards = i == 0 ? 4 : shards_of_last},
                               i == 0 ? test::TestOpenOptions() : open_of_last);
    });
  };
  ExpectAll(ErrorCode::kInvalidArgument, create(3, test::TestOpenOptions()), "3 shards");
  EXPECT_FALSE(std::filesystem::exists(folder));
  OpenOptions open = test::TestOpenOptions();
  open.capacity.items = 5;
  ExpectAll(ErrorCode::kInvalidArgument, create(4, open), "capacity");
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(DistributedStoreTest, ASnapshotWithoutANameIsRefused) {
  ExpectNoErrors(Open(NewPath(), 2, 2, true));
  ExpectAll(ErrorCode::kNotFound, OnAll([&](std::uint32_t i) { stores_[i].Snapshot(""); }),
            "path is empty");
}

TEST_F(DistributedStoreTest, TheLogNamesShardsAsErrorsDo) {
  const std::string folder = NewPath();
  ExpectNoErrors(Open(folder, 2, 3, true));
  stores_.clear();
  std::vector<std::vector<std::string>> told(2);
  auto exchanges = MakeThreadExchanges(2);
  ExpectNoErrors(OnAll([&](std::uint32_t i) {
    OpenOptions open = test::TestOpenOptions();
    open.log = [&told, i](LogLevel, std::string_view message) { told[i].emplace_back(message); };
    DistributedStore::Open(folder, std::move(exchanges[i]), open);
  }));
  // Rank 0 has the first shard, rank 1 the other two; each tells how it was recovered.
  const auto tells = [&](std::uint32_t rank, const std::string& shard) {
    return std::any_of(told[rank].begin(), told[rank].end(), [&](const std::string& message) {
      return message.rfind(shard + ": ", 0) == 0;
    });
  };
  EXPECT_TRUE(tells(0, "shard 0"));
  EXPECT_FALSE(tells(1, "shard 0"));
  EXPECT_TRUE(tells(1, "shard 1"));
  EXPECT_TRUE(tells(1, "shard 2"));
}

TEST_F(DistributedStoreTest, WithoutAnExchangeItIsRefused) {
  const std::string folder = NewPath();
  const std::function<DistributedStore()> calls[] = {
      [&] { return DistributedStore::Create(folder, nullptr, kCreate, {.shards = 2}); },
      [&] { return DistributedStore::OpenOrCreate(folder, nullptr, kCreate, {.shards = 2}); },
      [&] { return DistributedStore::Open(folder, nullptr); },
      [&] { return DistributedStore::Restore(folder, folder + ".restored", nullptr); },
  };
  for (const auto& call : calls) {
    std::string message;
    EXPECT_EQ(test::ErrorOf([&] { call(); }, &message), ErrorCode::kInvalidArgument);
    EXPECT_EQ(message.rfind("exchange:", 0), 0u) << message;
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(DistributedStoreTest, WhenARankHasLeftTheOthersCallsThrow) {
  const std::string folder = NewPath();
  ExpectNoErrors(Open(folder, 3, 3, true));
  std::mt19937_64 random(test::TestSeed());
  Model model;
  ApplyRandom(random, &model);
  stores_[1].Close();
  TestBatch part(kKeySize, kValueSize);
  part.Add(Op::kInsert, 10000, 1);
  std::vector<Batch> batches(3, part.Mixed());
  const Errors errors = OnAll([&](std::uint32_t i) {
    if (i != 1) stores_[i].Apply(batches[i]);
  });
  for (const std::uint32_t i : {0u, 2u}) {
    EXPECT_EQ(errors[i], ErrorCode::kIo);
    EXPECT_NE(messages_[i].find("rank 1"), std::string::npos);
    stores_[i].Close();
  }
  EXPECT_EQ(test::ErrorOf([&] { stores_[1].Apply(batches[1]); }), ErrorCode::kInvalidArgument);
  ExpectNoErrors(Open(folder, 2));
  ExpectContents(model);
}

TEST_F(DistributedStoreTest, AVisitMayStop) {
  ExpectNoErrors(Open(NewPath(), 1, 3, true));
  TestBatch batch(kKeySize, kValueSize);
  for (std::uint64_t key = 0; key < 30; ++key) batch.Add(Op::kInsert, key, key);
  EXPECT_EQ(stores_[0].Apply(batch.Mixed()), 0u);
  for (const int stop : {1, 12, 30, 31}) {
    int seen = 0;
    EXPECT_EQ(stores_[0].ForEach([&](auto, auto) { return ++seen < stop; }), stop > 30);
    EXPECT_EQ(seen, std::min(stop, 30));
  }
}

TEST_F(DistributedStoreTest, AChildOfTheProcessLeavesTheShardsAlone) {
  const std::string folder = NewPath();
  auto exchanges = MakeThreadExchanges(1);
  DistributedStore store =
      DistributedStore::Create(folder, std::move(exchanges[0]), kCreate, {.shards = 2},
                               {.executor = ExecutorKind::kCpu, .threads = 3});
  TestBatch batch(kKeySize, kValueSize);
  for (std::uint64_t key = 0; key < 30; ++key) batch.Add(Op::kInsert, key, key);
  EXPECT_EQ(store.Apply(batch.Mixed()), 0u);
  const pid_t child = test::Fork();
  if (child == 0) {
    alarm(20);  // it may wait for threads that are not there
    const bool refused = test::ErrorOf([&] { store.Stats(); }) == ErrorCode::kUnsupported;
    store.Close();
    _exit(refused && !store ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(test::ErrorOf([&] { ShardedStore::Open(folder); }), ErrorCode::kBusy);
  EXPECT_EQ(store.Stats().items, 30u);
}

}  // namespace
}  // namespace gpm
