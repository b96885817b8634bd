// Ranks that fail, leave or do not come: what the others are told, and when.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "shard/collective.h"
#include "tests/collective_fixture.h"
#include "tests/fault_injection.h"
#include "tests/ranks.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using namespace std::chrono_literals;
using test::kPartition;
using test::TestBatch;

using CollectiveFailureTest = test::CollectiveFixture;

TEST_F(CollectiveFailureTest, AnErrorOfOneRankIsToldToAll) {
  MakeRanks(3, 8, 16);
  std::vector<TestBatch> parts(3, TestBatch(8, 16));
  for (std::uint64_t key = 0; key < 60; ++key) parts[key % 3].Add(Op::kInsert, key, key);
  std::vector<Batch> batches;
  for (TestBatch& part : parts) batches.push_back(part.Mixed());
  const Collective::Local local = ranks_[1]->local;
  ranks_[1]->local = [](const Batch&) { throw Error(ErrorCode::kNoSpace, "the pool is full"); };
  auto errors = OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(errors[i], ErrorCode::kNoSpace);
  EXPECT_EQ(messages_[1], "the pool is full");
  EXPECT_EQ(messages_[0], "rank 1: the pool is full");
  ranks_[1]->local = [](const Batch&) { throw std::bad_alloc(); };
  OnAll([&](std::uint32_t i) {
    if (i == 1) {
      EXPECT_THROW(ranks_[i]->Apply(batches[i]), std::bad_alloc);
    } else {
      EXPECT_EQ(test::ErrorOf([&] { ranks_[i]->Apply(batches[i]); }), ErrorCode::kIo);
    }
  });
  ranks_[1]->local = local;
  errors = OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(errors[i]);
}

TEST_F(CollectiveFailureTest, ARankThatLeavesOrDoesNotComeEndsTheOthersCalls) {
  for (const bool leaves : {true, false}) {
    MakeRanks(3, 8, 16, leaves ? kExchangeTimeout : 2s);
    std::vector<TestBatch> parts(3, TestBatch(8, 16));
    std::vector<Batch> batches;
    for (TestBatch& part : parts) {
      part.Add(Op::kInsert, 1, 1);
      batches.push_back(part.Mixed());
    }
    const auto errors = OnAll([&](std::uint32_t i) {
      if (i != 2) {
        ranks_[i]->Apply(batches[i]);
      } else if (leaves) {
        ranks_[i]->exchange.reset();
      }
    });
    for (const std::uint32_t i : {0u, 1u}) {
      EXPECT_EQ(errors[i], ErrorCode::kIo);
      EXPECT_NE(messages_[i].find("rank 2"), std::string::npos) << messages_[i];
      EXPECT_EQ(test::ErrorOf([&] { ranks_[i]->Apply(batches[i]); }), ErrorCode::kIo);
    }
    if (!leaves) {  // it comes too late
      EXPECT_EQ(test::ErrorOf([&] { ranks_[2]->Apply(batches[2]); }), ErrorCode::kIo);
    }
    for (const auto& rank : ranks_) EXPECT_EQ(rank->store.Stats().items, 0u);
  }
}

/// Has no memory for one of its calls.
class FailingExchange final : public Exchange {
 public:
  FailingExchange(std::unique_ptr<Exchange> exchange, int call)
      : exchange_(std::move(exchange)), calls_(call) {}
  std::uint32_t rank() const override { return exchange_->rank(); }
  std::uint32_t ranks() const override { return exchange_->ranks(); }
  void AllToAll(Send send, Receive receive) override {
    if (calls_-- == 0) throw std::bad_alloc();
    exchange_->AllToAll(send, receive);
  }
  void Leave(const std::string& why) override { exchange_->Leave(why); }

 private:
  std::unique_ptr<Exchange> exchange_;
  int calls_;
};

TEST_F(CollectiveFailureTest, ARankThatFailsAmidABatchEndsTheOthersCalls) {
  // Agreeing, counts, keys, kinds, values, [the batch itself,] results, found values.
  for (const int call : {0, 1, 2, 3, 4, 6, 7}) {
    SCOPED_TRACE(call);
    MakeRanks(3, 8, 16);
    ranks_[1]->exchange = std::make_unique<FailingExchange>(std::move(ranks_[1]->exchange), call);
    ranks_[1]->collective =
        std::make_unique<Collective>(*ranks_[1]->exchange, kPartition, 8, 16, ranks_[1]->splitters);
    std::vector<TestBatch> parts(3, TestBatch(8, 16));
    for (std::uint64_t key = 0; key < 60; ++key) parts[key % 3].Add(Op::kInsert, key, key);
    std::vector<Batch> batches;
    for (TestBatch& part : parts) batches.push_back(part.Mixed());
    const auto errors = OnAll([&](std::uint32_t i) {
      if (i == 1) {
        EXPECT_THROW(ranks_[i]->Apply(batches[i]), std::bad_alloc);
      } else {
        ranks_[i]->Apply(batches[i]);
      }
    });
    for (const std::uint32_t i : {0u, 1u, 2u}) {
      if (i != 1) {
        EXPECT_EQ(errors[i], ErrorCode::kIo);
        EXPECT_NE(messages_[i].find("rank 1 has left"), std::string::npos) << messages_[i];
      }
      EXPECT_EQ(test::ErrorOf([&] { ranks_[i]->Apply(batches[i]); }), ErrorCode::kIo);
    }
  }
}

/// Has no memory for what it is to write into the others' arrays, once there are so many calls.
class FailingLender final : public Exchange {
 public:
  FailingLender(std::unique_ptr<Exchange> exchange, int call)
      : exchange_(std::move(exchange)), calls_(call) {}
  std::uint32_t rank() const override { return exchange_->rank(); }
  std::uint32_t ranks() const override { return exchange_->ranks(); }
  void AllToAll(Send send, Receive receive) override { exchange_->AllToAll(send, receive); }
  bool Lends(int device) const override { return exchange_->Lends(device); }
  void Lend(Receive mine, CUstream_st* stream, const Use& use) override {
    exchange_->Lend(mine, stream, [&](Receive lent) {
      if (calls_-- == 0) throw std::bad_alloc();
      use(lent);
    });
  }
  void Leave(const std::string& why) override { exchange_->Leave(why); }

 private:
  const std::unique_ptr<Exchange> exchange_;
  int calls_;
};

TEST_F(CollectiveFailureTest, WhatARankDidNotWriteIsNotCarriedOut) {
  constexpr std::uint64_t kItems = 200;
  for (const bool on_the_way_back : {false, true}) {
    MakeRanks(2, 8, 16);
    // A batch lends twice, for rows and for answers; the third one fails.
    ranks_[1]->exchange =
        std::make_unique<FailingLender>(std::move(ranks_[1]->exchange), on_the_way_back ? 5 : 4);
    ranks_[1]->collective =
        std::make_unique<Collective>(*ranks_[1]->exchange, kPartition, 8, 16, ranks_[1]->splitters);
    const auto apply = [&](Op op, std::uint64_t first) {
      std::vector<TestBatch> parts(2, TestBatch(8, 16));
      std::vector<Batch> batches;
      for (std::uint64_t key = 0; key < 2 * kItems; ++key) {
        parts[key / kItems].Add(op, first + key, 1);
      }
      for (TestBatch& part : parts) {
        batches.push_back(part.Mixed());
        batches.back().op = op;
        batches.back().ops = {};  // kinds are not sent: keys lie where those before lay
      }
      return OnAll([&](std::uint32_t i) {
        if (i == 1 && first > 0) {
          EXPECT_THROW(ranks_[i]->Apply(batches[i]), std::bad_alloc);
        } else {
          ranks_[i]->Apply(batches[i]);
        }
      });
    };
    // The keys that the owners' memory still has are erased ones.
    for (const Op op : {Op::kUpsert, Op::kErase}) {
      const auto errors = apply(op, 0);
      for (std::uint32_t i = 0; i < 2; ++i) EXPECT_FALSE(errors[i]) << messages_[i];
    }
    EXPECT_EQ(apply(Op::kUpsert, 1000)[0], ErrorCode::kIo);
    EXPECT_NE(messages_[0].find("rank 1"), std::string::npos) << messages_[0];
    std::uint64_t items = 0;
    for (const auto& rank : ranks_) items += rank->store.Stats().items;
    EXPECT_EQ(items, on_the_way_back ? 2 * kItems : 0);
  }
}

TEST_F(CollectiveFailureTest, NobodyWaitsForARankThatHasNoMemoryToSayWhy) {
  constexpr auto kTimeout = 5s;
  const std::string why = "longer than what a string has room for without memory";
  using Exchanges = std::vector<std::unique_ptr<Exchange>>;
  std::optional<test::Fault::Armed> armed;
  // What rank 1 does, so that rank 0 is to be told at once.
  const std::function<void(Exchanges&)> lends = [&](Exchanges& exchanges) {
    std::jthread failing([&] {
      EXPECT_ANY_THROW(exchanges[1]->Lend({}, nullptr, [&](Exchange::Receive) {
        armed.emplace();
        throw std::runtime_error(why);
      }));
    });
    EXPECT_ANY_THROW(exchanges[0]->Lend({}, nullptr, [](Exchange::Receive) {}));
  };
  const std::function<void(Exchanges&)> leaves = [&](Exchanges& exchanges) {
    armed.emplace();
    try {
      exchanges[1]->Leave(why);
    } catch (const std::bad_alloc&) {  // to tell twins that are made later
    }
  };
  const std::function<void(Exchanges&)> waits = [&](Exchanges& exchanges) {
    armed.emplace();
    EXPECT_ANY_THROW(exchanges[1]->Lend({}, nullptr, [](Exchange::Receive) {}));
  };
  alarm(120);  // else it is a test that waits for ever
  for (const auto* fails : {&lends, &leaves, &waits}) {
    bool hit = true;
    std::uint64_t hits = 0;
    for (std::uint64_t k = 1; hit; ++k) {
      SCOPED_TRACE(k);
      auto exchanges = MakeThreadExchanges(2, fails == &waits ? 20ms : kTimeout);
      const test::Fault fault(test::FaultKind::kAllocation, k);
      (*fails)(exchanges);
      armed.reset();
      hit = fault.hit();
      hits += hit ? 1 : 0;
      const auto begun = std::chrono::steady_clock::now();
      EXPECT_EQ(test::ErrorOf([&] { exchanges[0]->Lend({}, nullptr, [](auto) {}); }),
                ErrorCode::kIo);
      EXPECT_LT(std::chrono::steady_clock::now() - begun, kTimeout);
    }
    EXPECT_GT(hits, 1u);
  }
  alarm(0);
}

TEST_F(CollectiveFailureTest, AnExchangeOfHostMemoryAloneSaysSo) {
  FailingExchange exchange(std::move(MakeThreadExchanges(1).front()), 0);
  EXPECT_EQ(exchange.Twin(), nullptr);
  EXPECT_FALSE(exchange.TakesGpuMemory(0));
  EXPECT_FALSE(exchange.Lends(-1));
  EXPECT_EQ(test::ErrorOf([&] { exchange.AllToAllOnGpu({}, {}, nullptr); }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(test::ErrorOf([&] { exchange.Lend({}, nullptr, [](Exchange::Receive) {}); }),
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace gpm
