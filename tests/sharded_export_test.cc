// Exports of a store over several shards: one instant, and nobody waits for who waits for him.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "gpmstore/sharded_store.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::AsString;
using test::Bytes;
using test::ErrorOf;
using test::MakeKey;
using test::Model;
using test::Numbers;
using test::Shape;
using test::TestBatch;
using test::TestOpenOptions;

constexpr std::uint32_t kValueSize = 24;

class ShardedExportTest : public test::PoolTest,
                          public ::testing::WithParamInterface<std::uint32_t> {
 protected:
  ShardedStore NewStore() {
    return ShardedStore::Create(NewPath(), Shape(8, kValueSize), {.shards = GetParam()},
                                TestOpenOptions());
  }
  static void Apply(ShardedStore& store, Op kind, const std::vector<std::uint64_t>& numbers,
                    std::uint64_t tag) {
    TestBatch batch(8, kValueSize);
    for (const std::uint64_t number : numbers) batch.Add(kind, number, tag);
    batch.ApplySingle(store, kind);
  }
  /// What is left of an export, by pages of `rows`.
  static Model Rest(Exporter exporter, std::uint64_t rows) {
    Model rest;
    Bytes keys(8 * rows);
    Bytes values(kValueSize * rows);
    for (std::uint64_t filled = rows; filled == rows;) {
      filled = exporter.Next(keys, values);
      for (std::uint64_t i = 0; i < filled; ++i) {
        const bool is_new =
            rest.emplace(AsString(std::span(keys).subspan(i * 8, 8)),
                         AsString(std::span(values).subspan(i * kValueSize, kValueSize)))
                .second;
        EXPECT_TRUE(is_new);
      }
    }
    EXPECT_EQ(exporter.items(), 0u);
    return rest;
  }
};

INSTANTIATE_TEST_SUITE_P(Shards, ShardedExportTest, ::testing::Values(1u, 2u, 5u));

TEST_P(ShardedExportTest, HasTheStateOfTheInstant) {
  ShardedStore store = NewStore();
  EXPECT_TRUE(Rest(store.Export(), 3).empty());
  Apply(store, Op::kInsert, Numbers(0, 1000), 1);
  Model then;
  store.ForEach([&](auto key, auto value) { then.emplace(AsString(key), AsString(value)); });
  ASSERT_EQ(then.size(), 1000u);
  for (const std::uint64_t rows : {1u, 7u, 400u, 5000u}) {
    Exporter exporter = store.Export();
    EXPECT_EQ(exporter.items(), 1000u);
    Apply(store, Op::kUpdate, Numbers(0, 500), rows + 1);
    Apply(store, Op::kErase, Numbers(500, 100), 0);
    Apply(store, Op::kInsert, Numbers(2000, 100), 0);
    EXPECT_EQ(Rest(std::move(exporter), rows), then) << rows;
    Apply(store, Op::kErase, Numbers(2000, 100), 0);
    Apply(store, Op::kUpsert, Numbers(0, 1000), 1);
  }
  EXPECT_EQ(ErrorOf([&] { store.Export({.changed_since = NewPath()}).items(); }),
            ErrorCode::kInvalidArgument);
}

TEST_P(ShardedExportTest, SeesABatchInAllShardsOrInNone) {
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 300), 0);
  std::atomic<bool> stop{false};
  std::thread beside([&] {
    for (std::uint64_t round = 1; !stop; ++round) Apply(store, Op::kUpsert, Numbers(0, 300), round);
  });
  for (int round = 0; round < 50; ++round) {
    std::set<std::string> values;
    const Model rest = Rest(store.Export(), 64);
    EXPECT_EQ(rest.size(), 300u);
    for (const auto& [key, value] : rest) values.insert(value.substr(0, 8));  // which is the tag
    EXPECT_EQ(values.size(), 1u);
  }
  stop = true;
  beside.join();
}

TEST_P(ShardedExportTest, WhoHasItOpenWaitsForNothing) {
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 500), 1);
  {
    Exporter exporter = store.Export();
    const auto busy = [&](const auto& call) { EXPECT_EQ(ErrorOf(call), ErrorCode::kBusy); };
    const std::vector<Query> all = {{}};
    busy([&] { store.Compact(); });
    busy([&] { store.Reserve(100'000); });
    TestBatch more(8, kValueSize);
    for (const std::uint64_t number : Numbers(3000, 10)) more.Add(Op::kInsert, number, 1);
    const Batch load = more.Mixed();
    busy([&] { store.BulkLoad(load.keys, load.values, load.results); });
    busy([&] { store.Snapshot(NewPath()); });
    busy([&] { store.Search(all); });
    busy([&] { store.EraseWhere(all[0]); });
    busy([&] { store.Export().items(); });
    busy([&] { store.Close(); });
    Apply(store, Op::kUpsert, Numbers(0, 3000), 7);
    Exporter moved = std::move(exporter);
    exporter = std::move(moved);
    busy([&] { store.Compact(); });
  }
  store.Compact();
  store.Reserve(10'000);
  store.Snapshot(NewPath());
  EXPECT_EQ(store.Stats().items, 3000u);
  store.Close();
}

/// Somebody waits to be alone, for an export whose thread goes on with batches before it ends it.
TEST_P(ShardedExportTest, OthersWaitForItsEndAndBatchesGoOn) {
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 500), 1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  const auto again = [&](const auto& call) {
    others.emplace_back([&stop, call] {
      while (!stop) call();
    });
  };
  again([&] { store.Compact(); });
  again([&] { store.Reserve(5000); });
  again([&] { store.ForEach([](auto, auto) {}); });
  again([&] { EXPECT_GE(Rest(store.Export(), 100).size(), 500u); });
  const std::string snapshot = NewPath();
  again([&] {
    store.Snapshot(snapshot);
    std::filesystem::remove_all(snapshot);
  });
  for (std::uint64_t round = 0; round < 4; ++round) {
    Exporter exporter = store.Export();
    Apply(store, Op::kUpsert, Numbers(0, 500), round);
    Apply(store, Op::kInsert, Numbers(1000 + round * 10, 10), round);
    EXPECT_EQ(Rest(std::move(exporter), 90).size(), 500 + 10 * round);
  }
  stop = true;
  for (std::thread& other : others) other.join();
  store.Close();
}

TEST_P(ShardedExportTest, AChildOfTheProcessLetsGoOfIt) {
  if (test::TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "forks lose the GPU";
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 100), 1);
  auto exporter = std::make_unique<Exporter>(store.Export());
  const pid_t child = test::Fork();
  if (child == 0) {
    alarm(200);
    Bytes keys(8 * 10);
    const bool refused = ErrorOf([&] { exporter->Next(keys, {}); }) == ErrorCode::kUnsupported;
    exporter.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Rest(std::move(*exporter), 10).size(), 100u);
  store.Compact();
}

/// A thread that comes later, and may have the std::thread::id of the one that began the export.
TEST_P(ShardedExportTest, WhoComesWhenItsThreadHasEndedWaits) {
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 100), 1);
  Exporter exporter;
  std::thread([&] { exporter = store.Export(); }).join();
  std::thread later([&] { EXPECT_NO_THROW(store.Compact()); });
  while (!test::OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(Rest(std::move(exporter), 7).size(), 100u);
  later.join();
}

/// Calls that keep exports out, and overlap, do not do so for ever; nor do exports keep them out.
TEST_P(ShardedExportTest, NeitherSideStarves) {
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 100), 1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  std::atomic<std::uint64_t> searches{0};
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      const std::vector<Query> all = {{}};
      for (; !stop; ++searches) EXPECT_EQ(store.Search(all).counts[0], 100u);
    });
  }
  for (int round = 0; round < 40; ++round) EXPECT_EQ(Rest(store.Export(), 64).size(), 100u);
  stop = true;
  for (std::thread& other : others) other.join();
  others.clear();
  stop = false;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!stop) EXPECT_EQ(Rest(store.Export(), 64).size(), 100u);
    });
  }
  for (int round = 0; round < 40; ++round) store.Reserve(100);
  stop = true;
  for (std::thread& other : others) other.join();
}

TEST_P(ShardedExportTest, AChildDoesNotWaitForThoseWhoWait) {
  if (test::TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "forks lose the GPU";
  ShardedStore store = NewStore();
  Apply(store, Op::kInsert, Numbers(0, 100), 1);
  auto exporter = std::make_unique<Exporter>(store.Export());
  std::thread waits([&] { store.Compact(); });
  while (!test::OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const pid_t child = test::Fork();
  if (child == 0) {
    alarm(200);
    store.Close();
    exporter.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  exporter.reset();
  waits.join();
}

/// What the shards say is told where the store holds no lock, so that it may be called then.
TEST_P(ShardedExportTest, TheLogMayCallTheStore) {
  ShardedStore* called = nullptr;
  std::uint64_t told = 0;
  OpenOptions open = TestOpenOptions();
  open.log = [&](LogLevel, std::string_view message) {
    ++told;
    EXPECT_FALSE(message.empty());
    if (called == nullptr) return;
    Bytes value(kValueSize);
    const std::string key = MakeKey(0, 8);
    static_cast<void>(called->Get(std::as_bytes(std::span(key)), value));
    EXPECT_GE(Rest(called->Export(), 1000).size(), 1u);
    const std::vector<Query> all = {{}};
    EXPECT_EQ(called->Search(all).counts[0], called->Stats().items);
  };
  ShardedStore store =
      ShardedStore::Create(NewPath(), Shape(8, kValueSize), {.shards = GetParam()}, open);
  called = &store;
  Apply(store, Op::kInsert, Numbers(0, 3000), 1);
  const std::uint64_t told_by_apply = told;
  TestBatch batches[3] = {{8, kValueSize}, {8, kValueSize}, {8, kValueSize}};
  std::vector<Ticket> tickets;
  for (std::uint64_t i = 0; i < 3; ++i) {
    for (const std::uint64_t number : Numbers(10'000 * (i + 1), 9000)) {
      batches[i].Add(Op::kInsert, number, 1);
    }
    tickets.push_back(store.ApplyAsync(batches[i].Mixed()));
  }
  tickets.clear();
  if (GetParam() > 1) {  // what one shard says of such a batch is told at the next call
    EXPECT_GT(told, told_by_apply);
  }
  const std::uint64_t told_by_batches = told;
  store.Compact();
  EXPECT_GT(told, told_by_batches);
  called = nullptr;
}

}  // namespace
}  // namespace gpm
