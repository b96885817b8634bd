#include "shard/collective.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "shard/turns.h"
#include "tests/collective_fixture.h"
#include "tests/ranks.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using namespace std::chrono_literals;
using test::Model;
using test::TestBatch;

using CollectiveTest = test::CollectiveFixture;

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

TEST_F(CollectiveTest, AnExchangeNeedsRanks) {
  EXPECT_EQ(test::ErrorOf([] { MakeThreadExchanges(0); }), ErrorCode::kInvalidArgument);
}

/// Its end is no time of the clock.
TEST_F(CollectiveTest, ARankIsWaitedForHoweverLong) {
  auto exchanges = MakeThreadExchanges(2, std::chrono::milliseconds::max());
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::this_thread::sleep_for(i * std::chrono::milliseconds(50));
      std::vector<std::byte> all(2);
      EXPECT_NO_THROW(exchanges[i]->AllGather(std::vector<std::byte>(1), all));
    });
  }
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
