// A process is killed in the middle of the batches of a store over several pools.

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "gpmstore/sharded_store.h"
#include "shard/manifest.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::Model;
using test::TestBatch;
using test::TestOpenOptions;

constexpr std::uint32_t kValueSize = 40;
constexpr std::uint32_t kShards = 3;
/// Batches that may have begun beyond the last one that was acknowledged: two in flight, and one
/// that is being divided.
constexpr std::uint64_t kBegun = 3;

class ShardKillTest : public test::PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    folder_ = NewPath();
  }

  using State = std::optional<std::string>;  ///< the value, if there is an item

  /// A batch of the child, from its number alone.
  static TestBatch BatchOf(std::uint64_t number) {
    std::mt19937_64 random(test::TestSeed() ^ number * 0x9E3779B97F4A7C15);
    TestBatch batch(8, kValueSize);
    const std::uint64_t operations = 16 + random() % 1500;
    const std::uint64_t keys = number % 4 == 0 ? 10 : 200 * (number + 10);  // so that tables grow
    for (std::uint64_t i = 0; i < operations; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), random() % keys, random());
    }
    return batch;
  }

  ShardedStore Open() const {
    return ShardedStore::OpenOrCreate(folder_, test::Shape(8, kValueSize), {.shards = kShards},
                                      TestOpenOptions());
  }

  /// Has two batches in flight, and writes the number of each that was acknowledged, for ever.
  void RunChild(std::uint64_t number, int acknowledged) const {
    ShardedStore store = Open();
    TestBatch before(8, kValueSize);
    Ticket ticket_before;
    for (;; ++number) {
      TestBatch batch = BatchOf(number);
      Ticket ticket = store.ApplyAsync(batch.Mixed());
      ticket_before.Wait();
      const std::uint64_t done = number - 1;
      if (before.size() > 0 && write(acknowledged, &done, sizeof done) != sizeof done) return;
      std::swap(before, batch);
      std::swap(ticket_before, ticket);
    }
  }

  /// Starts a child, and kills it some time after it has acknowledged `least` batches.
  /// @param next number of its first batch @return number of the first that was not acknowledged
  std::uint64_t KillOne(std::uint64_t next, std::uint64_t least, unsigned microseconds) const {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = test::Fork();
    if (child == 0) {
      close(ends[0]);
      if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(3);
      try {
        RunChild(next, ends[1]);
      } catch (...) {
      }
      _exit(2);
    }
    close(ends[1]);
    std::uint64_t done = 0;
    const auto read_one = [&] {
      if (read(ends[0], &done, sizeof done) != sizeof done) return false;
      EXPECT_EQ(done, next);
      next = done + 1;
      return true;
    };
    for (std::uint64_t i = 0; i < least && read_one(); ++i) {
    }
    usleep(microseconds);
    kill(child, SIGKILL);
    while (read_one()) {
    }
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
    return next;
  }

  std::string folder_;
};

TEST_F(ShardKillTest, WhatWasAcknowledgedIsThereAndShardsAreSound) {
  if (test::TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "forks lose the GPU";
  std::mt19937_64 random(test::TestSeed());
  Model model;
  std::uint64_t next = 1;
  std::uint64_t recovered = 0;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t first = next;
    // The first one is killed at its creation.
    const std::uint64_t least = round == 0 ? 0 : 1 + random() % 20;
    next = KillOne(next, least, static_cast<unsigned>(random() % 3000));
    ASSERT_GE(next, first + least);
    for (std::uint64_t number = first; number < next; ++number) {
      const TestBatch batch = BatchOf(number);
      for (std::size_t i = 0; i < batch.size(); ++i) batch.ApplyOne(model, i);
    }
    // What each key may be beside what the model says.
    std::map<std::string, std::set<State>> others;
    Model later = model;
    for (std::uint64_t i = 0; i < kBegun; ++i) {
      const TestBatch batch = BatchOf(next++);
      for (std::size_t j = 0; j < batch.size(); ++j) {
        const std::string key = test::AsString(batch.key(j));
        batch.ApplyOne(later, j);
        const auto item = later.find(key);
        others[key].insert(item == later.end() ? State() : State(item->second));
      }
    }
    ShardedStore store = Open();
    recovered += store.Stats().recovery.was_clean ? 0 : 1;
    Model there;
    store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      EXPECT_TRUE(there.emplace(test::AsString(key), test::AsString(value)).second);
    });
    std::set<std::string> keys;
    for (const auto& [key, value] : model) keys.insert(key);
    for (const auto& [key, value] : there) keys.insert(key);
    std::uint64_t wrong = 0;
    for (const std::string& key : keys) {
      const auto state_in = [&](const Model& items) {
        const auto item = items.find(key);
        return item == items.end() ? State() : State(item->second);
      };
      const auto other = others.find(key);
      wrong += state_in(there) != state_in(model) &&
               (other == others.end() || other->second.count(state_in(there)) == 0);
    }
    ASSERT_EQ(wrong, 0u) << "of " << keys.size() << " keys; batches from " << first << " to "
                         << next;
    model = there;
    store.Close();
    std::uint64_t items = 0;
    for (std::uint32_t shard = 0; shard < kShards; ++shard) {
      const std::string pool = folder_ + "/" + PoolFileName(1, shard);
      const std::uint64_t of_shard = CheckPool(pool).items;
      test::ExpectSound(pool, of_shard);
      items += of_shard;
    }
    EXPECT_EQ(items, model.size());
  }
  EXPECT_GE(recovered, 11u);  // all were killed while they had the store open
}

}  // namespace
}  // namespace gpm
