// Batches in flight of a store that several ranks have open together.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "tests/distributed_test.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ErrorOf;
using test::Model;
using test::TestBatch;

constexpr std::uint32_t kKeySize = 16;
constexpr std::uint32_t kValueSize = 40;

class DistributedAsyncTest : public test::DistributedTest {
 protected:
  DistributedAsyncTest() : DistributedTest({.key_size = kKeySize, .value_size = kValueSize}) {}

  static TestBatch Inserts(std::uint64_t first, std::uint64_t count) {
    TestBatch batch(kKeySize, kValueSize);
    for (std::uint64_t i = first; i < first + count; ++i) batch.Add(Op::kInsert, i, i);
    return batch;
  }
};

TEST_F(DistributedAsyncTest, BatchesInFlightAreSequential) {
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    SCOPED_TRACE(ranks);
    std::mt19937_64 random(test::TestSeed() + ranks);
    ExpectNoErrors(Open(NewPath(), ranks, 4, true));
    constexpr int kBatches = 40;
    std::vector<bool> only_finds(kBatches);
    for (int i = 0; i < kBatches; ++i) only_finds[i] = random() % 3 == 0;
    std::vector<std::deque<TestBatch>> parts(ranks);  // of each rank
    std::vector<std::vector<Batch>> batches(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (int i = 0; i < kBatches; ++i) {
        TestBatch& part = parts[rank].emplace_back(kKeySize, kValueSize);
        for (std::uint64_t j = random() % 600; j > 0; --j) {
          const auto op = static_cast<Op>(random() % kOpKinds);
          part.Add(only_finds[i] ? Op::kFind : op, random() % 300, random());
        }
        batches[rank].push_back(part.Mixed());
        if (only_finds[i]) batches[rank].back().ops = {};
      }
    }
    ExpectNoErrors(OnAll([&](std::uint32_t rank) {
      std::vector<Ticket> tickets;
      std::mt19937_64 of_rank(rank);
      for (const Batch& batch : batches[rank]) {
        if (of_rank() % 6 == 0) {  // which the other ranks need not do
          stores_[rank].Apply(batch);
          continue;
        }
        tickets.push_back(stores_[rank].ApplyAsync(batch));
        if (of_rank() % 4 == 0) tickets[of_rank() % tickets.size()].Wait();
      }
      for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
        ticket->Wait();
        ticket->Wait();
        EXPECT_TRUE(ticket->Done());
      }
    }));
    Model model;
    for (int i = 0; i < kBatches; ++i) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) parts[rank][i].Compare(model);
    }
    const std::vector<Query> all = {{}};
    ExpectNoErrors(OnAll(
        [&](std::uint32_t rank) { EXPECT_EQ(stores_[rank].Search(all).counts[0], model.size()); }));
  }
}

TEST_F(DistributedAsyncTest, CallsComeBehindWhatIsInFlight) {
  ExpectNoErrors(Open(NewPath(), 2, 3, true));
  std::vector<TestBatch> parts;
  for (std::uint64_t rank = 0; rank < 2; ++rank) parts.push_back(Inserts(4000 * rank, 4000));
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    DistributedStore& store = stores_[rank];
    Ticket ticket = store.ApplyAsync(parts[rank].Mixed());
    const std::vector<Query> all = {{}};
    EXPECT_EQ(store.Search(all).counts[0], 8000u);
    EXPECT_TRUE(ticket.Done());
    store.EraseWhere({});
    ticket = store.ApplyAsync(parts[rank].Mixed());
    EXPECT_GT(store.Stats().items, 2000u);  // of one or two shards of three
    EXPECT_EQ(store.Exchanged().asked, 8000u);
    store.EraseWhere({});
    ticket = store.ApplyAsync(parts[rank].Mixed());
    std::uint64_t seen = 0;
    store.ForEach([&](auto, auto) { ++seen; });
    EXPECT_EQ(seen, store.Stats().items);
    store.EraseWhere({});
    ticket = store.ApplyAsync(parts[rank].Mixed());
    store.Close();
    ticket.Wait();
  }));
  for (const TestBatch& part : parts) {
    Model model;
    part.Compare(model);
  }
}

TEST_F(DistributedAsyncTest, ATicketThrowsWhatApplyWould) {
  ExpectNoErrors(Open(NewPath(), 2, 3, true));
  std::vector<TestBatch> parts;
  std::vector<TestBatch> more;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    parts.push_back(Inserts(50 * rank, 50));
    more.push_back(Inserts(1000 + 50 * rank, 50));
  }
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    Batch wrong = parts[rank].Mixed();
    if (rank == 1) wrong.keys = wrong.keys.subspan(1);
    Ticket first = stores_[rank].ApplyAsync(wrong);
    Ticket second = stores_[rank].ApplyAsync(more[rank].Mixed());
    EXPECT_EQ(ErrorOf([&] { first.Wait(); }), ErrorCode::kInvalidArgument);
    second.Wait();
    const std::vector<Query> all = {{}};
    EXPECT_EQ(stores_[rank].Search(all).counts[0], 100u);
  }));
  // A rank that is gone.
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    if (rank == 1) return stores_[1].Close();
    Ticket first = stores_[0].ApplyAsync(parts[0].Mixed());
    Ticket second = stores_[0].ApplyAsync(more[0].Mixed());
    EXPECT_EQ(ErrorOf([&] { first.Wait(); }), ErrorCode::kIo);
    EXPECT_EQ(ErrorOf([&] { second.Wait(); }), ErrorCode::kIo);
    EXPECT_EQ(ErrorOf([&] { stores_[0].Apply(parts[0].Mixed()); }), ErrorCode::kIo);
  }));
}

/// An exchange of which a twin is used, or left, before the first batch of its own has ended.
class BesideItsTwin final : public Exchange {
 public:
  enum class Fails { kNone, kTwin, kFirst };
  /// Of a rank.
  struct Meeting {
    Fails fails = Fails::kNone;            ///< once
    int calls_of_twins = 1;                ///< that the first batch's keys wait for,
    std::chrono::milliseconds lingers{0};  ///< and for how long then
    std::mutex mutex{};
    std::condition_variable changed{};
    int calls = 0;      ///< of twins
    bool late = false;  ///< they had not come, while the first batch waited
  };

  BesideItsTwin(std::unique_ptr<Exchange> exchange, Meeting& meeting, bool is_twin = false)
      : exchange_(std::move(exchange)), meeting_(meeting), is_twin_(is_twin) {}
  std::uint32_t rank() const override { return exchange_->rank(); }
  std::uint32_t ranks() const override { return exchange_->ranks(); }
  void AllToAll(Send send, Receive receive) override {
    std::unique_lock lock(meeting_.mutex);
    // The last call of opening, terms, counts, keys.
    const bool has_keys = !is_twin_ && opened_ && call_++ == 3;
    if (is_twin_) {
      ++meeting_.calls;
      meeting_.changed.notify_all();
    } else if (has_keys) {
      meeting_.late |= !meeting_.changed.wait_for(lock, std::chrono::seconds(20), [&] {
        return meeting_.calls >= meeting_.calls_of_twins;
      });
      lock.unlock();
      std::this_thread::sleep_for(meeting_.lingers);
      lock.lock();
    }
    const Fails fails = is_twin_ ? Fails::kTwin : has_keys ? Fails::kFirst : Fails::kNone;
    if (fails != Fails::kNone && meeting_.fails == fails) {
      meeting_.fails = Fails::kNone;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      throw std::bad_alloc();
    }
    lock.unlock();
    exchange_->AllToAll(send, receive);
  }
  /// (The last that is called when a store is opened, but for how many there are.)
  std::unique_ptr<Exchange> Twin() override {
    opened_ = true;
    return std::make_unique<BesideItsTwin>(exchange_->Twin(), meeting_, true);
  }
  void Leave(const std::string& why) override { exchange_->Leave(why); }

 private:
  const std::unique_ptr<Exchange> exchange_;
  Meeting& meeting_;
  const bool is_twin_;
  bool opened_ = false;
  int call_ = 0;
};

class DistributedTwinsTest : public DistributedAsyncTest {
 protected:
  using Fails = BesideItsTwin::Fails;

  /// Two ranks.
  void Create(const std::string& folder) {
    auto exchanges = MakeThreadExchanges(2);
    ranks_ = 2;
    stores_.clear();
    stores_.resize(2);
    ExpectNoErrors(OnAll([&](std::uint32_t rank) {
      stores_[rank] = DistributedStore::Create(
          folder, std::make_unique<BesideItsTwin>(std::move(exchanges[rank]), meetings_[rank]),
          {.key_size = kKeySize, .value_size = kValueSize}, {.shards = 2}, test::TestOpenOptions());
    }));
  }

  /// Inserts of each rank, and then others of each.
  static std::vector<TestBatch> TwoBatches() {
    std::vector<TestBatch> parts;
    for (std::uint64_t i = 0; i < 4; ++i) parts.push_back(Inserts(400 * i, 400));
    return parts;
  }

  std::array<BesideItsTwin::Meeting, 2> meetings_;
};

TEST_F(DistributedTwinsTest, BatchesAreUnderWayAtOnce) {
  Create(NewPath());
  std::vector<TestBatch> parts;
  std::vector<TestBatch> finds;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    parts.push_back(Inserts(400 * rank, 400));
    finds.emplace_back(kKeySize, kValueSize);
    for (std::uint64_t i = 0; i < 800; ++i) finds.back().Add(Op::kFind, i, 0);
  }
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    Ticket first = stores_[rank].ApplyAsync(parts[rank].Mixed());
    Batch second_batch = finds[rank].Mixed();
    second_batch.ops = {};
    Ticket second = stores_[rank].ApplyAsync(second_batch);
    first.Wait();
    second.Wait();
  }));
  for (const auto& meeting : meetings_) EXPECT_FALSE(meeting.late);
  Model model;
  for (const TestBatch& part : parts) part.Compare(model);
  for (const TestBatch& part : finds) part.Compare(model);
}

TEST_F(DistributedTwinsTest, ManyThatAreRefusedBehindASlowOne) {
  for (auto& meeting : meetings_) {
    meeting.calls_of_twins = 5;
    meeting.lingers = std::chrono::milliseconds(100);
  }
  Create(NewPath());
  std::vector<TestBatch> parts = TwoBatches();
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    DistributedStore& store = stores_[rank];
    Ticket first = store.ApplyAsync(parts[rank].Mixed());
    Batch wrong = parts[2 + rank].Mixed();
    wrong.keys = wrong.keys.subspan(1);
    std::vector<Ticket> refused;
    for (int i = 0; i < 20; ++i) refused.push_back(store.ApplyAsync(wrong));
    first.Wait();
    for (Ticket& ticket : refused) {
      EXPECT_EQ(ErrorOf([&] { ticket.Wait(); }), ErrorCode::kInvalidArgument);
    }
    store.Apply(parts[2 + rank].Mixed());
  }));
  Model model;
  for (const TestBatch& part : parts) part.Compare(model);
}

TEST_F(DistributedTwinsTest, ARankThatLeavesOneHasLeftAll) {
  meetings_[1].fails = Fails::kTwin;
  Create(NewPath());
  std::vector<TestBatch> parts = TwoBatches();
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    Ticket first = stores_[rank].ApplyAsync(parts[rank].Mixed());
    Ticket second = stores_[rank].ApplyAsync(parts[2 + rank].Mixed());
    EXPECT_ANY_THROW(second.Wait());
    static_cast<void>(ErrorOf([&] { first.Wait(); }));  // it may have ended before
    EXPECT_EQ(ErrorOf([&] { stores_[rank].Apply(parts[rank].Mixed()); }), ErrorCode::kIo);
  }));
}

TEST_F(DistributedTwinsTest, NothingIsCarriedOutBehindABatchThatIsLost) {
  const std::string folder = NewPath();
  meetings_[0].fails = Fails::kFirst;
  for (auto& meeting : meetings_) meeting.calls_of_twins = 5;  // the second batch has all its rows
  Create(folder);
  std::vector<TestBatch> parts = TwoBatches();
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    Ticket first = stores_[rank].ApplyAsync(parts[rank].Mixed());
    Ticket second = stores_[rank].ApplyAsync(parts[2 + rank].Mixed());
    EXPECT_ANY_THROW(first.Wait());
    EXPECT_EQ(ErrorOf([&] { second.Wait(); }), ErrorCode::kIo);
  }));
  for (const auto& meeting : meetings_) EXPECT_FALSE(meeting.late);
  stores_.clear();
  ExpectNoErrors(Open(folder, 2));
  EXPECT_EQ(stores_[0].Stats().items + stores_[1].Stats().items, 0u);
}

TEST_F(DistributedAsyncTest, TheLogMayCallTheStoreWhenATicketWasWaitedFor) {
  DistributedStore store;
  std::vector<std::uint64_t> items;
  OpenOptions open = test::TestOpenOptions();
  open.log = [&](LogLevel, std::string_view) {
    if (store) items.push_back(store.Stats().items);
  };
  store = DistributedStore::Create(NewPath(), std::move(MakeThreadExchanges(1)[0]),
                                   {.key_size = kKeySize, .value_size = kValueSize}, {.shards = 3},
                                   open);
  TestBatch part = Inserts(0, 20'000);  // which growing tells of
  Ticket ticket = store.ApplyAsync(part.Mixed());
  ticket.Wait();
  ASSERT_FALSE(items.empty());
  EXPECT_EQ(items.back(), 20'000u);
}

TEST_F(DistributedAsyncTest, ATicketOutlivesItsStore) {
  ExpectNoErrors(Open(NewPath(), 2, 3, true));
  std::vector<TestBatch> parts;
  for (std::uint64_t rank = 0; rank < 2; ++rank) parts.push_back(Inserts(500 * rank, 500));
  ExpectNoErrors(OnAll([&](std::uint32_t rank) {
    Ticket ticket = stores_[rank].ApplyAsync(parts[rank].Mixed());
    { const DistributedStore gone = std::exchange(stores_[rank], DistributedStore()); }
    ticket.Wait();
  }));
  for (const TestBatch& part : parts) {
    Model model;
    part.Compare(model);
  }
}

/// One thread's exchange.
class OneThread final : public Exchange {
 public:
  explicit OneThread(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  std::uint32_t rank() const override { return exchange_->rank(); }
  std::uint32_t ranks() const override { return exchange_->ranks(); }
  bool AnyThread() const override { return false; }
  void AllToAll(Send send, Receive receive) override { exchange_->AllToAll(send, receive); }
  void Leave(const std::string& why) override { exchange_->Leave(why); }

 private:
  const std::unique_ptr<Exchange> exchange_;
};

TEST_F(DistributedAsyncTest, WithAnExchangeOfOneThreadItEndsAtOnce) {
  auto exchange = std::make_unique<OneThread>(std::move(MakeThreadExchanges(1)[0]));
  DistributedStore store = DistributedStore::Create(
      NewPath(), std::move(exchange), {.key_size = kKeySize, .value_size = kValueSize},
      {.shards = 2}, test::TestOpenOptions());
  TestBatch part = Inserts(0, 30);
  Ticket ticket = store.ApplyAsync(part.Mixed());
  EXPECT_TRUE(ticket.Done());
  ticket.Wait();
  Model model;
  part.Compare(model);
  Batch wrong = part.Mixed();
  wrong.keys = wrong.keys.subspan(1);
  ticket = store.ApplyAsync(wrong);
  EXPECT_EQ(ErrorOf([&] { ticket.Wait(); }), ErrorCode::kInvalidArgument);
}

TEST_F(DistributedAsyncTest, AChildOfTheProcessLeavesBatchesInFlightAlone) {
  ExpectNoErrors(Open(NewPath(), 1, 2, true));
  TestBatch part = Inserts(0, 2000);
  TestBatch large = Inserts(2000, 200'000);  // for whose turn the one behind it waits
  Ticket first = stores_[0].ApplyAsync(large.Mixed());
  Ticket ticket = stores_[0].ApplyAsync(part.Mixed());
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const pid_t child = test::Fork();
  if (child == 0) {
    alarm(20);  // it may wait for threads that are not there
    const bool refused = ErrorOf([&] { ticket.Wait(); }) == ErrorCode::kUnsupported;
    stores_[0].Close();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  first.Wait();
  ticket.Wait();
  EXPECT_EQ(stores_[0].Stats().items, 202'000u);
}

}  // namespace
}  // namespace gpm
