#include "shard/collective.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "shard/turns.h"
#include "tests/fault_injection.h"
#include "tests/ranks.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using namespace std::chrono_literals;
using test::Model;
using test::TestBatch;

constexpr Partition kPartition{.seed = {3, 5}, .shards = 7};

/// Ranks that are threads, each with a store for what it owns.
class CollectiveTest : public test::PoolTest {
 protected:
  struct Rank {
    std::unique_ptr<Exchange> exchange;
    ThreadPool threads{3};
    SplitterPool splitters{threads, 0};
    std::unique_ptr<Collective> collective;
    Store store;
    Collective::Local local = [this](const Batch& batch) { store.Apply(batch); };

    std::uint64_t Apply(const Batch& batch) { return collective->Apply(batch, local); }
  };

  void MakeRanks(std::uint32_t ranks, std::uint32_t key_size, std::uint32_t value_size,
                 std::chrono::milliseconds timeout = kExchangeTimeout) {
    ranks_.clear();
    for (std::unique_ptr<Exchange>& exchange : MakeThreadExchanges(ranks, timeout)) {
      auto rank = std::make_unique<Rank>();
      rank->exchange = std::move(exchange);
      rank->collective = std::make_unique<Collective>(*rank->exchange, kPartition, key_size,
                                                      value_size, rank->splitters);
      rank->store = Store::Create(NewPath(), {.key_size = key_size, .value_size = value_size},
                                  test::TestOpenOptions());
      ranks_.push_back(std::move(rank));
    }
  }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }

  std::vector<std::optional<ErrorCode>> OnAll(const std::function<void(std::uint32_t)>& action) {
    return test::OnAllRanks(ranks(), action, &messages_);
  }

  /// All ranks apply their part of a mixed batch, and are compared with the model.
  void ApplyAndCompare(std::vector<TestBatch>& parts, Model* model) {
    std::vector<Batch> batches;
    for (TestBatch& part : parts) batches.push_back(part.Mixed());
    const auto errors = OnAll([&](std::uint32_t i) {
      const std::uint64_t not_ok = ranks_[i]->Apply(batches[i]);
      EXPECT_EQ(not_ok, std::count_if(batches[i].results.begin(), batches[i].results.end(),
                                      [](Result result) { return result != Result::kOk; }));
    });
    for (std::uint32_t i = 0; i < ranks(); ++i) EXPECT_FALSE(errors[i]) << messages_[i];
    for (const TestBatch& part : parts) part.Compare(*model);
  }
  /// Each item is at the rank that owns its key.
  void ExpectOwned(const Model& model, std::uint32_t key_size) {
    std::uint64_t items = 0;
    for (std::uint32_t i = 0; i < ranks(); ++i) {
      ranks_[i]->store.ForEach(
          [&](std::span<const std::byte> key, std::span<const std::byte> value) {
            const std::uint32_t shard = kPartition.Of(key.data(), key_size);
            EXPECT_GE(shard, Collective::FirstShard(i, ranks(), kPartition.shards));
            EXPECT_LT(shard, Collective::FirstShard(i + 1, ranks(), kPartition.shards));
            const auto item = model.find(test::AsString(key));
            ASSERT_NE(item, model.end());
            EXPECT_EQ(test::AsString(value), item->second);
            ++items;
          });
    }
    EXPECT_EQ(items, model.size());
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::string> messages_;
};

TEST_F(CollectiveTest, PartsOfAllRanksAreOneBatch) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t ranks : {1u, 2u, 3u, 7u, 8u}) {
    for (const std::uint32_t key_size : {8u, 36u}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, keys of " + std::to_string(key_size));
      MakeRanks(ranks, key_size, 24);
      Model model;
      for (int round = 0; round < 12; ++round) {
        std::vector<TestBatch> parts;
        for (std::uint32_t i = 0; i < ranks; ++i) {
          TestBatch& part = parts.emplace_back(key_size, 24);
          const std::uint64_t count = random() % 4 == 0 ? 0 : random() % 300;
          // Few keys, so that ranks meet at most of them.
          for (std::uint64_t j = 0; j < count; ++j) {
            part.Add(static_cast<Op>(random() % kOpKinds), random() % 150, random());
          }
        }
        ApplyAndCompare(parts, &model);
      }
      ExpectOwned(model, key_size);
    }
  }
}

TEST_F(CollectiveTest, LargePartsThatSeveralThreadsDivide) {
  std::mt19937_64 random(test::TestSeed());
  for (const auto& [ranks, key_size] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{2, 8}, {3, 12}, {7, 8}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, keys of " + std::to_string(key_size));
    MakeRanks(ranks, key_size, 40);
    Model model;
    // Keys of which some come several times; then few; and a small part beside large ones.
    for (const std::uint64_t keys : {100'000u, 100u, 100'000u}) {
      std::vector<TestBatch> parts;
      for (std::uint32_t i = 0; i < ranks; ++i) {
        TestBatch& part = parts.emplace_back(key_size, 40);
        const std::uint64_t count = model.empty() || i > 0 ? 30'001 : 3;
        for (std::uint64_t j = 0; j < count; ++j) {
          part.Add(static_cast<Op>(random() % kOpKinds), random() % keys, random());
        }
      }
      ApplyAndCompare(parts, &model);
    }
    ExpectOwned(model, key_size);
  }
}

TEST_F(CollectiveTest, PartsMayBeOfDifferentKinds) {
  constexpr std::uint32_t kValueSize = 20;
  MakeRanks(3, 8, kValueSize);
  // Rank 0 inserts, rank 1 then finds, without wanting the values, and rank 2 erases.
  TestBatch inserts(8, kValueSize), finds(8, kValueSize), erases(8, kValueSize);
  for (std::uint64_t key = 0; key < 100; ++key) {
    inserts.Add(Op::kInsert, key, key);
    finds.Add(Op::kFind, key + 50, 0);
    erases.Add(Op::kErase, key + 90, 0);
  }
  const std::vector<Op> cleared(100, Op::kUpsert);
  const auto single = [&](Batch batch, Op op) {
    batch.op = op;
    batch.ops = std::span(cleared).first(0);  // which are there, but none is meant
    if (op == Op::kFind || op == Op::kErase) batch.values = {};
    if (op != Op::kFindOrInsert) batch.found = {};
    return batch;
  };
  Batch batches[] = {single(inserts.Mixed(), Op::kInsert), single(finds.Mixed(), Op::kFind),
                     single(erases.Mixed(), Op::kErase)};
  std::uint64_t not_ok[3] = {};
  OnAll([&](std::uint32_t i) { not_ok[i] = ranks_[i]->Apply(batches[i]); });
  EXPECT_EQ(not_ok[0], 0u);
  EXPECT_EQ(not_ok[1], 50u);
  EXPECT_EQ(not_ok[2], 90u);
  Model model;
  for (std::uint64_t key = 0; key < 90; ++key) {
    model[test::MakeKey(key, 8)] = test::MakeValue(key, kValueSize);
  }
  ExpectOwned(model, 8);
}

TEST_F(CollectiveTest, FindsOfOneKeyAreSentOnce) {
  for (const std::uint32_t key_size : {8u, 13u}) {
    MakeRanks(3, key_size, 40);
    Model model;
    std::vector<TestBatch> inserts;
    for (std::uint64_t i = 0; i < 3; ++i) {
      TestBatch& part = inserts.emplace_back(key_size, 40);
      for (std::uint64_t key = 0; key < 20; ++key)
        part.Add(Op::kInsert, 20 * i + key, 20 * i + key);
    }
    ApplyAndCompare(inserts, &model);
    // Rank 0 looks for 70 keys often, of which ten are not there; rank 1 for each once; rank 2 as
    // rank 0, in a part that several threads divide.
    std::atomic<std::uint64_t> received = 0;
    std::vector<TestBatch> parts(3, TestBatch(key_size, 40));
    for (std::uint64_t j = 0; j < 3000; ++j) parts[0].Add(Op::kFind, j % 70, 0);
    for (std::uint64_t j = 0; j < 70; ++j) parts[1].Add(Op::kFind, j, 0);
    for (std::uint64_t j = 0; j < 60'000; ++j) parts[2].Add(Op::kFind, j % 70, 0);
    std::vector<Batch> batches;
    for (TestBatch& part : parts) {
      batches.push_back(part.Mixed());
      batches.back().ops = {};
    }
    for (const auto& rank : ranks_) {
      rank->local = [&, store = &rank->store](const Batch& batch) {
        received += batch.results.size();
        store->Apply(batch);
      };
    }
    OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
    for (const TestBatch& part : parts) part.Compare(model);
    EXPECT_EQ(received, 3 * 70u);
  }
}

TEST_F(CollectiveTest, InitialValuesOfAllParts) {
  MakeRanks(2, 8, 16);
  const std::string row = test::MakeValue(77, 16);
  std::vector<TestBatch> parts(2, TestBatch(8, 16));
  for (std::uint64_t key = 0; key < 50; ++key) {
    parts[0].Add(Op::kFindOrInsert, key, 0);
    parts[1].Add(Op::kFindOrInsert, key + 25, 0);
  }
  std::vector<Batch> batches;
  for (TestBatch& part : parts) {
    Batch& batch = batches.emplace_back(part.Mixed());
    batch.op = Op::kFindOrInsert;
    batch.ops = {};
    batch.values = {};
    batch.initial = InitialValue::Constant(std::as_bytes(std::span(row)));
  }
  OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
  for (std::uint64_t key = 0; key < 50; ++key) {
    EXPECT_EQ(parts[0].result(key), Result::kOk);
    EXPECT_EQ(parts[1].result(key), key < 25 ? Result::kExists : Result::kOk);
    EXPECT_EQ(test::AsString(parts[0].found(key)), row);
    EXPECT_EQ(test::AsString(parts[1].found(key)), row);
  }
  // Drawn ones, beside a part with other kinds: that has no values, and needs none.
  TestBatch drawn(8, 16), finds(8, 16);
  for (std::uint64_t key = 0; key < 50; ++key) {
    drawn.Add(Op::kFindOrInsert, key + 100, 0);
    finds.Add(Op::kFind, key + 100, 0);
  }
  batches = {drawn.Mixed(), finds.Mixed()};
  for (Batch& batch : batches) {
    batch.ops = {};
    batch.values = {};
  }
  batches[0].op = Op::kFindOrInsert;
  batches[0].element = Element::kFloat32;
  batches[0].initial = InitialValue::Uniform(9, -1, 1);
  batches[1].element = Element::kNone;
  OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
  for (std::uint64_t key = 0; key < 50; ++key) {
    EXPECT_EQ(drawn.result(key), Result::kOk);
    EXPECT_EQ(finds.result(key), Result::kOk);
    EXPECT_EQ(test::AsString(drawn.found(key)), test::AsString(finds.found(key)));
  }
}

TEST_F(CollectiveTest, WhatAPartLacksTheOthersDoNotGive) {
  MakeRanks(2, 8, 16);
  std::vector<TestBatch> parts(2, TestBatch(8, 16));
  for (TestBatch& part : parts) {
    for (const Op op : {Op::kInsert, Op::kFind, Op::kAccumulate, Op::kFindOrInsert})
      part.Add(op, 1, 1);
  }
  std::vector<Batch> batches = {parts[0].Mixed(), parts[1].Mixed()};
  batches[1].values = {};
  batches[1].element = Element::kNone;
  OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
  EXPECT_EQ(parts[0].result(0), Result::kOk);
  EXPECT_EQ(parts[0].result(2), Result::kOk);
  EXPECT_EQ(parts[1].result(0), Result::kInvalid);
  EXPECT_EQ(parts[1].result(1), Result::kOk);
  EXPECT_EQ(parts[1].result(2), Result::kInvalid);
  EXPECT_EQ(parts[1].result(3), Result::kInvalid);
  EXPECT_EQ(test::AsString(parts[0].found(3)), test::AsString(parts[1].found(1)));
}

TEST_F(CollectiveTest, PartsThatDoNotFitTogether) {
  MakeRanks(3, 8, 16);
  const std::string rows[] = {test::MakeValue(1, 16), test::MakeValue(2, 16)};
  const auto refused = [&](const std::function<void(std::uint32_t, Batch*)>& change) {
    std::vector<TestBatch> parts(3, TestBatch(8, 16));
    std::vector<Batch> batches;
    for (std::uint32_t i = 0; i < 3; ++i) {
      parts[i].Add(Op::kFindOrInsert, i, i);
      change(i, &batches.emplace_back(parts[i].Mixed()));
    }
    const auto errors = OnAll([&](std::uint32_t i) { ranks_[i]->Apply(batches[i]); });
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(errors[i], ErrorCode::kInvalidArgument);
    for (const auto& rank : ranks_) EXPECT_EQ(rank->store.Stats().items, 0u);
  };
  refused([](std::uint32_t i, Batch* batch) {
    batch->element = i == 1 ? Element::kFloat16 : Element::kFloat32;
  });
  EXPECT_NE(messages_[0].find("float16"), std::string::npos);
  refused([](std::uint32_t i, Batch* batch) {
    if (i == 2) batch->initial = InitialValue::Uniform(1, 0, 1);
  });
  refused([&](std::uint32_t i, Batch* batch) {
    batch->initial = InitialValue::Constant(std::as_bytes(std::span(rows[i == 1 ? 1 : 0])));
  });
  refused([](std::uint32_t i, Batch* batch) {
    if (i == 1) batch->keys = batch->keys.subspan(1);
  });
  EXPECT_NE(messages_[0].find("rank 1"), std::string::npos);
  EXPECT_NE(messages_[1].find("'keys'"), std::string::npos);
  // Nothing of that did any harm.
  Model model;
  std::vector<TestBatch> parts(3, TestBatch(8, 16));
  for (TestBatch& part : parts) part.Add(Op::kUpsert, 5, 6);
  ApplyAndCompare(parts, &model);
}

TEST_F(CollectiveTest, AnErrorOfOneRankIsToldToAll) {
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

TEST_F(CollectiveTest, ARankThatLeavesOrDoesNotComeEndsTheOthersCalls) {
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

TEST_F(CollectiveTest, ARankThatFailsAmidABatchEndsTheOthersCalls) {
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

TEST_F(CollectiveTest, RanksLendEachOtherMemory) {
  constexpr std::uint32_t kRanks = 3;
  auto exchanges = MakeThreadExchanges(kRanks);
  // Each writes its number into what the others lend it, and then reads from what it lent.
  const auto errors = test::OnAllRanks(
      kRanks,
      [&](std::uint32_t rank) {
        Exchange& exchange = *exchanges[rank];
        EXPECT_TRUE(exchange.Lends(-1));
        std::vector<std::byte> mine(2 * kRanks);
        std::vector<std::span<std::byte>> parts;
        for (std::size_t i = 0; i < mine.size(); ++i) {
          parts.push_back(std::span(mine).subspan(i, i == 4 ? 0 : 1));
        }
        exchange.Lend(parts, nullptr, [&](Exchange::Receive lent) {
          ASSERT_EQ(lent.size(), mine.size());
          for (std::size_t i = 0; i < lent.size(); ++i) {
            ASSERT_EQ(lent[i].size(), 3 + rank == 4 && i >= kRanks ? 0u : 1u);
            if (!lent[i].empty()) lent[i][0] = static_cast<std::byte>(10 * (i / kRanks) + rank);
          }
        });
        for (std::size_t i = 0; i < mine.size(); ++i) {
          EXPECT_EQ(mine[i],
                    i == 4 ? std::byte{0} : static_cast<std::byte>(10 * (i / kRanks) + i % kRanks));
        }
        // What one throws ends what is shared, once all have had their turn.
        const auto lend = [&] {
          exchange.Lend(parts, nullptr, [&](Exchange::Receive) {
            if (rank == 1) throw std::bad_alloc();
          });
        };
        if (rank == 1) {
          EXPECT_THROW(lend(), std::bad_alloc);
        } else {
          std::string message;  // it may lack what rank 1 was to write
          EXPECT_EQ(test::ErrorOf(lend, &message), ErrorCode::kIo);
          EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
        }
        lend();
      },
      &messages_);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(errors[rank], ErrorCode::kIo);
    EXPECT_NE(messages_[rank].find("rank 1"), std::string::npos) << messages_[rank];
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

TEST_F(CollectiveTest, WhatARankDidNotWriteIsNotCarriedOut) {
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

TEST_F(CollectiveTest, NobodyWaitsForARankThatHasNoMemoryToSayWhy) {
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
    for (std::uint64_t k = 1; hit; ++k) {
      SCOPED_TRACE(k);
      auto exchanges = MakeThreadExchanges(2, fails == &waits ? 20ms : kTimeout);
      const test::Fault fault(test::FaultKind::kAllocation, k);
      (*fails)(exchanges);
      armed.reset();
      hit = fault.hit();
      const auto begun = std::chrono::steady_clock::now();
      EXPECT_EQ(test::ErrorOf([&] { exchanges[0]->Lend({}, nullptr, [](auto) {}); }),
                ErrorCode::kIo);
      EXPECT_LT(std::chrono::steady_clock::now() - begun, kTimeout);
    }
  }
  alarm(0);
}

TEST_F(CollectiveTest, TwinsDoNotMixAndAreLeftTogether) {
  constexpr std::uint32_t kRanks = 3;
  auto exchanges = MakeThreadExchanges(kRanks);
  const auto errors = test::OnAllRanks(
      kRanks,
      [&](std::uint32_t rank) {
        Exchange& exchange = *exchanges[rank];
        const std::unique_ptr<Exchange> twin = exchange.Twin();
        EXPECT_EQ(twin->rank(), rank);
        EXPECT_EQ(twin->ranks(), kRanks);
        EXPECT_EQ(twin->Twin(), nullptr);
        const auto meet = [&](Exchange& one, std::uint32_t number) {
          std::array<std::uint32_t, kRanks> all{};
          const std::uint32_t mine = number + rank;
          one.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
          for (std::uint32_t i = 0; i < kRanks; ++i) EXPECT_EQ(all[i], number + i);
        };
        {
          const std::jthread beside([&] {
            for (std::uint32_t i = 0; i < 200; ++i) meet(*twin, 1'000'000 + 10 * i);
          });
          for (std::uint32_t i = 0; i < 200; ++i) meet(exchange, 10 * i);
        }
        // One that is let go of is nobody's loss.
        { const std::unique_ptr<Exchange> unused = exchange.Twin(); }
        meet(exchange, 5);
        meet(*twin, 6);
        if (rank == 1) twin->Leave("enough");
        EXPECT_EQ(test::ErrorOf([&] { meet(*twin, 7); }), ErrorCode::kIo);
        EXPECT_EQ(test::ErrorOf([&] { meet(*exchange.Twin(), 8); }), ErrorCode::kIo);
        meet(exchange, 9);
      },
      &messages_);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(errors[rank], ErrorCode::kIo);
    EXPECT_NE(messages_[rank].find("rank 1 has left: enough"), std::string::npos);
  }
}

TEST_F(CollectiveTest, BatchesHaveTheirTurns) {
  using Turn = Turns::Turn;
  Turns turns;
  std::atomic<int> at{0};
  const auto begins_at = [&](int place) {
    const int now = at++;
    EXPECT_EQ(now, place);
  };
  Turn finds0(turns, 0);
  Turn finds1(turns, 1);
  std::optional<Turn> unused2(std::in_place, turns, 2);
  Turn writes3(turns, 3);
  Turn finds4(turns, 4);
  std::jthread last([&] {
    finds4.Begin(true);
    begins_at(4);
  });
  std::jthread writer([&] {
    writes3.Begin(false);
    begins_at(3);
    std::this_thread::sleep_for(5ms);
    writes3.End();
  });
  std::jthread second([&] {
    finds1.Begin(true);  // as soon as the first has begun
    begins_at(1);
    finds1.End();
  });
  std::this_thread::sleep_for(20ms);
  begins_at(0);
  finds0.Begin(true);
  second.join();
  unused2.reset();
  std::this_thread::sleep_for(20ms);
  begins_at(2);
  finds0.End();
  finds0.End();
  writer.join();
  last.join();
  finds4.End();
  for (std::uint64_t i = 5; i < 50; ++i) {
    Turn turn(turns, i);
    turn.Begin(i % 3 == 0);
  }
  // They agree one after the other.
  {
    Turn former(turns, 50);
    Turn latter(turns, 51);
    std::atomic<bool> agreed{false};
    std::jthread behind([&] {
      latter.BeginToAgree();
      EXPECT_TRUE(agreed);
    });
    former.BeginToAgree();
    std::this_thread::sleep_for(10ms);
    agreed = true;
    former.Agreed();
  }
  // Behind one that is lost no other begins; one that has ended is not lost any more.
  Turn ended52(turns, 52);
  ended52.Begin(false);
  ended52.End();
  ended52.Break("late");
  Turn lost53(turns, 53);
  Turn finds54(turns, 54);
  lost53.Begin(false);
  lost53.Break("why");
  std::string message;
  EXPECT_EQ(test::ErrorOf([&] { finds54.Begin(true); }, &message), ErrorCode::kIo);
  EXPECT_NE(message.find("why"), std::string::npos) << message;
}

TEST_F(CollectiveTest, AnExchangeOfHostMemoryAloneSaysSo) {
  FailingExchange exchange(std::move(MakeThreadExchanges(1).front()), 0);
  EXPECT_EQ(exchange.Twin(), nullptr);
  EXPECT_FALSE(exchange.TakesGpuMemory(0));
  EXPECT_FALSE(exchange.Lends(-1));
  EXPECT_EQ(test::ErrorOf([&] { exchange.AllToAllOnGpu({}, {}, nullptr); }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(test::ErrorOf([&] { exchange.Lend({}, nullptr, [](Exchange::Receive) {}); }),
            ErrorCode::kUnsupported);
}

TEST_F(CollectiveTest, AnExchangeNeedsRanks) {
  EXPECT_EQ(test::ErrorOf([] { MakeThreadExchanges(0); }), ErrorCode::kInvalidArgument);
}

TEST_F(CollectiveTest, RanksThatExpectOtherSizesAreTold) {
  auto exchanges = MakeThreadExchanges(2);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::vector<std::byte> bytes(4);
      const std::vector<std::span<const std::byte>> send(2, std::span(bytes).first(2));
      std::vector<std::span<std::byte>> receive(2, std::span(bytes).last(2));
      if (i == 1) receive[0] = receive[0].first(1);
      EXPECT_EQ(test::ErrorOf([&] {
                  exchanges[i]->AllToAll(send, receive);
                  exchanges[i]->AllToAll(send, receive);
                }),
                ErrorCode::kIo);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gpm
