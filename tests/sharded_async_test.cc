// Batches of a store over several pools that are in flight.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <deque>
#include <future>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "gpmstore/sharded_store.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::Bytes;
using test::ErrorOf;
using test::MakeKey;
using test::MakeValue;
using test::Model;
using test::Shape;
using test::TestBatch;
using test::TestOpenOptions;

constexpr std::uint32_t kValueSize = 24;

class ShardedAsyncTest : public test::PoolTest {
 protected:
  ShardedStore NewStore(std::uint32_t shards) {
    return ShardedStore::Create(NewPath(), Shape(8, kValueSize), {.shards = shards},
                                TestOpenOptions());
  }
  static TestBatch Upserts(std::uint64_t keys, std::uint64_t tag) {
    TestBatch batch(8, kValueSize);
    for (std::uint64_t i = 0; i < keys; ++i) batch.Add(Op::kUpsert, i, i + tag);
    return batch;
  }
};

/// Is alone in a store, by a visit of its one item, until it is let go.
class Holder {
 public:
  explicit Holder(ShardedStore& store)
      : thread_([this, &store] {
          store.ForEach([&](auto, auto) {
            begun_.set_value();
            let_go_.get_future().wait();
          });
        }) {
    begun_.get_future().wait();
  }
  void LetGo() { let_go_.set_value(); }

 private:
  std::promise<void> begun_;
  std::promise<void> let_go_;
  std::jthread thread_;
};

TEST_F(ShardedAsyncTest, BatchesInFlightAreSequential) {
  for (const std::uint32_t shards : {1u, 2u, 3u, 7u}) {
    SCOPED_TRACE(shards);
    ShardedStore store = NewStore(shards);
    std::mt19937_64 random(test::TestSeed() + shards);
    std::deque<TestBatch> batches;
    std::vector<Ticket> tickets;
    for (int i = 0; i < 25; ++i) {
      TestBatch& batch = batches.emplace_back(8, kValueSize);
      const std::uint64_t operations = random() % 2000;
      for (std::uint64_t j = 0; j < operations; ++j) {
        batch.Add(static_cast<Op>(random() % kOpKinds), random() % 300, random());
      }
      tickets.push_back(store.ApplyAsync(batch.Mixed()));
      if (random() % 4 == 0) tickets[random() % tickets.size()].Wait();
    }
    for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
      ticket->Wait();
      ticket->Wait();  // idempotent
      EXPECT_TRUE(ticket->Done());
    }
    Model model;
    for (const TestBatch& batch : batches) batch.Compare(model);
    test::ExpectContents(store, model);
  }
}

TEST_F(ShardedAsyncTest, CallsComeBehindWhatIsInFlight) {
  ShardedStore store = NewStore(3);
  for (std::uint64_t round = 0; round < 20; ++round) {
    TestBatch batch = Upserts(3000, round * 10'000);
    Model model;
    TestBatch finds(8, kValueSize);
    for (std::uint64_t i = 0; i < 3000; ++i) {
      model[MakeKey(i, 8)] = MakeValue(i + round * 10'000, kValueSize);
      finds.Add(Op::kFind, i, 0);
    }
    Ticket ticket = store.ApplyAsync(batch.Mixed());
    switch (round % 3) {
      case 0: {
        Bytes found(kValueSize);
        const std::string key = MakeKey(2999, 8);
        ASSERT_TRUE(store.Get(std::as_bytes(std::span(key)), found));
        EXPECT_EQ(test::AsString(found), model[key]);
        break;
      }
      case 1:
        EXPECT_EQ(store.Apply(finds.Mixed()), 0u);
        finds.Compare(model);
        break;
      default:
        test::ExpectContents(store, model);  // it is alone
    }
    ticket.Wait();
  }
}

TEST_F(ShardedAsyncTest, TwoAreInFlightAndAThirdWaits) {
  ShardedStore store = NewStore(2);
  TestBatch one = Upserts(1, 7);
  store.Apply(one.Mixed());
  Holder holder(store);
  TestBatch first = Upserts(500, 1);
  TestBatch second = Upserts(700, 2);
  TestBatch third = Upserts(900, 3);
  Ticket first_ticket = store.ApplyAsync(first.Mixed());
  Ticket second_ticket = store.ApplyAsync(second.Mixed());
  EXPECT_FALSE(first_ticket.Done());
  EXPECT_FALSE(second_ticket.Done());
  std::atomic<bool> begun{false};
  std::jthread beginner([&] {
    Ticket ticket = store.ApplyAsync(third.Mixed());
    begun = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(begun);
  holder.LetGo();
  beginner.join();
  EXPECT_TRUE(first_ticket.Done());  // since the third one was begun
  second_ticket.Wait();
  Model model;
  one.Compare(model);
  first.Compare(model);
  second.Compare(model);
  third.Compare(model);
  test::ExpectContents(store, model);
}

TEST_F(ShardedAsyncTest, TicketsWaitWhenDestroyedAndOutliveTheStore) {
  ShardedStore store = NewStore(3);
  Model model;
  TestBatch first = Upserts(5000, 1);
  { const Ticket dropped = store.ApplyAsync(first.Mixed()); }
  first.Compare(model);
  TestBatch second = Upserts(6000, 2);
  TestBatch third = Upserts(4000, 3);
  Ticket second_ticket = store.ApplyAsync(second.Mixed());
  Ticket third_ticket = store.ApplyAsync(third.Mixed());
  ShardedStore moved = std::move(store);
  moved.Close();
  EXPECT_TRUE(second_ticket.Done());
  second_ticket.Wait();
  second.Compare(model);
  TestBatch fourth = Upserts(6000, 4);
  EXPECT_EQ(ErrorOf([&] { static_cast<void>(moved.ApplyAsync(fourth.Mixed())); }),
            ErrorCode::kInvalidArgument);
  third_ticket = Ticket();
  third.Compare(model);
}

TEST_F(ShardedAsyncTest, BatchesOfSeveralThreadsInFlight) {
  ShardedStore store = NewStore(3);
  constexpr std::uint64_t kThreads = 3;
  std::vector<Model> models(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(test::TestSeed() + t);
        std::optional<TestBatch> before;
        Ticket ticket;
        for (int round = 0; round < 20; ++round) {
          TestBatch batch(8, kValueSize);
          for (int i = 0; i < 300; ++i) {  // keys of its own
            batch.Add(static_cast<Op>(random() % kOpKinds), random() % 100 * kThreads + t,
                      random());
          }
          // (A long string stays where it is when it is moved.)
          Ticket next = store.ApplyAsync(batch.Mixed());
          ticket.Wait();
          if (before) before->Compare(models[t]);
          before = std::move(batch);
          ticket = std::move(next);
        }
        ticket.Wait();
        before->Compare(models[t]);
      });
    }
  }
  Model all;
  for (Model& model : models) all.merge(model);
  test::ExpectContents(store, all);
}

TEST_F(ShardedAsyncTest, BadBatchesAreRefusedAtOnce) {
  for (const std::uint32_t shards : {1u, 3u}) {
    ShardedStore store = NewStore(shards);
    const Bytes keys(80);
    const Bytes values(10 * kValueSize);
    std::vector<Result> results(10);
    for (const Batch& bad :
         {Batch{.op = Op::kUpsert, .keys = keys, .results = results},
          Batch{.op = Op::kUpsert,
          .keys = std::span(keys).first(79),
          .values = values,
          .results = results},
          Batch{.op = Op::kAccumulate, .keys = keys, .values = values, .results = results}}) {
      EXPECT_EQ(ErrorOf([&] { static_cast<void>(store.ApplyAsync(bad)); }),
                ErrorCode::kInvalidArgument);
    }
    Ticket nothing = store.ApplyAsync({});
    EXPECT_TRUE(nothing.Done());
    nothing.Wait();
    EXPECT_EQ(store.Stats().items, 0u);
  }
}

TEST_F(ShardedAsyncTest, AChildOfTheProcessWaitsForNothing) {
  if (test::TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "forks lose the GPU";
  ShardedStore store = NewStore(2);
  TestBatch one = Upserts(1, 7);
  store.Apply(one.Mixed());
  TestBatch batch = Upserts(1000, 1);
  Holder holder(store);
  Ticket ticket = store.ApplyAsync(batch.Mixed());
  const pid_t child = test::Fork();
  if (child == 0) {
    const bool refused = ErrorOf([&] { ticket.Wait(); }) == ErrorCode::kUnsupported &&
                         ErrorOf([&] { ticket.Done(); }) == ErrorCode::kUnsupported;
    ticket = Ticket();
    store.Close();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  holder.LetGo();
  ticket.Wait();
  Model model;
  one.Compare(model);
  batch.Compare(model);
  test::ExpectContents(store, model);
}

}  // namespace
}  // namespace gpm
