// Erased slots on their way to their next use: which batches wait for room for them, and who gives
// them back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "engine/store_impl.h"
#include "tests/failure_util.h"
#include "tests/fault_injection.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

/// As many erased slots as a new store's queue holds, in two batches.
constexpr std::uint64_t kHalfQueue = 4096;
constexpr std::uint64_t kItems = 100'000;

/// Operations of one kind on keys of 8 bytes, by number, with that as value.
class OneKind {
 public:
  OneKind(Op op, std::uint64_t first, std::size_t count, std::uint32_t value_size, bool mixed)
      : op_(op),
        ops_(mixed ? count : 0, op),
        keys_(count),
        values_(op == Op::kErase ? 0 : count * value_size),
        results_(count) {
    std::iota(keys_.begin(), keys_.end(), first);
    for (std::size_t i = 0; !values_.empty() && i < count; ++i) {
      std::memcpy(&values_[i * value_size], &keys_[i], 8);
    }
  }
  Batch batch() {
    const bool finds = op_ == Op::kFind || op_ == Op::kFindOrInsert;
    const bool writes = op_ != Op::kFind;
    return {.op = op_,
            .ops = ops_,
            .keys = std::as_bytes(std::span(keys_)),
            .values = writes ? std::span<const std::byte>(values_) : std::span<const std::byte>(),
            .found = finds ? std::span<std::byte>(values_) : std::span<std::byte>(),
            .results = results_};
  }
  std::size_t ok() const {
    return static_cast<std::size_t>(std::count(results_.begin(), results_.end(), Result::kOk));
  }

 private:
  Op op_;
  std::vector<Op> ops_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::byte> values_;
  std::vector<Result> results_;
};

class ErasedSlotsTest : public FailureTest {
 protected:
  std::shared_ptr<StoreImpl> Make(std::uint32_t value_size, std::uint64_t max_bytes = 0) {
    value_size_ = value_size;
    OpenOptions options = Options();
    options.max_bytes = max_bytes > 0 ? max_bytes : std::uint64_t{64} << 20;
    return StoreImpl::Create(NewPath(), Shape(8, value_size), options);
  }
  /// @return how many of them are kOk
  std::size_t Apply(StoreImpl& store, Op op, std::uint64_t first, std::size_t count) const {
    OneKind batch(op, first, count, value_size_, false);
    store.Wait(store.Start(batch.batch(), nullptr));
    return batch.ok();
  }
  /// Starts batches side by side, then waits for all. @return how many were ended before, by a
  /// batch that had to be alone
  std::size_t EndedEarly(StoreImpl& store, Op op, std::uint64_t first, std::size_t batches,
                         bool mixed = false) const {
    std::vector<OneKind> all;
    for (std::size_t b = 0; b < batches; ++b) {
      all.emplace_back(op, first + b * kHalfQueue, kHalfQueue, value_size_, mixed);
    }
    std::vector<std::shared_ptr<StoreImpl::InFlight>> started;
    for (OneKind& batch : all) started.push_back(store.Start(batch.batch(), nullptr));
    const auto ended = std::count_if(started.begin(), started.end(),
                                     [](const auto& in_flight) { return in_flight->ended; });
    for (const auto& in_flight : started) store.Wait(in_flight);
    for (const OneKind& batch : all) EXPECT_EQ(batch.ok(), kHalfQueue);
    return static_cast<std::size_t>(ended);
  }

  std::uint32_t value_size_ = 0;
};

TEST_F(ErasedSlotsTest, WhatErasesNothingWaitsForNoRoomForThem) {
  const auto store = Make(8);
  store->Reserve(kItems);
  constexpr std::size_t kBatches = 6;
  std::uint64_t key = 1;
  for (const bool mixed : {false, true}) {
    for (const Op op : {Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kFindOrInsert, Op::kFind}) {
      // (A find-or-insert of a key that is there is not kOk.)
      if (op == Op::kInsert || op == Op::kFindOrInsert) key += kBatches * kHalfQueue;
      EXPECT_EQ(EndedEarly(*store, op, key, kBatches, mixed), 0u)
          << static_cast<int>(op) << (mixed ? ", mixed" : "");
    }
  }
  store->Close();
}

TEST_F(ErasedSlotsTest, BatchesThatEraseComeToRunSideBySide) {
  for (const bool mixed : {false, true}) {
    const auto store = Make(40);
    store->Reserve(kItems);
    constexpr std::size_t kBatches = 8;
    constexpr std::size_t kRounds = 6;
    const std::uint64_t before = store->Stats().queue_bytes;
    std::vector<std::size_t> ended;
    for (std::size_t round = 0; round < kRounds; ++round) {
      EXPECT_EQ(Apply(*store, Op::kInsert, 1, kBatches * kHalfQueue), kBatches * kHalfQueue);
      ended.push_back(EndedEarly(*store, Op::kErase, 1, kBatches, mixed));
    }
    EXPECT_GT(ended.front(), 0u) << "there is room for two at first";
    EXPECT_EQ(ended.back(), 0u);
    const StoreStats stats = store->Stats();
    EXPECT_EQ(stats.items, 0u);
    EXPECT_LE(stats.queue_bytes, before + 2 * kBatches * 2 * kHalfQueue * 8);
    EXPECT_EQ(store->CountMisplacedCells(), 0u);
    store->Close();
  }
}

/// Where there is no memory for a longer queue, batches wait for each other.
TEST_F(ErasedSlotsTest, EveryAllocationOfALongerQueue) {
  std::uint64_t without = 0;  // the queue stayed as it was
  bool hit = true;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    SCOPED_TRACE(testing::Message() << "allocation " << k);
    const auto store = Make(40);
    store->Reserve(20'000);
    EXPECT_EQ(Apply(*store, Op::kInsert, 1, 20'000), 20'000u);
    std::vector<OneKind> erases;
    for (std::uint64_t b = 0; b < 3; ++b) {
      erases.emplace_back(Op::kErase, 1 + b * kHalfQueue, kHalfQueue, value_size_, false);
    }
    std::vector<std::shared_ptr<StoreImpl::InFlight>> started;
    started.reserve(erases.size());
    for (int b = 0; b < 2; ++b) started.push_back(store->Start(erases[b].batch(), nullptr));
    bool refused = false;
    {
      const Fault fault(FaultKind::kAllocation, k);
      const Batch last = erases.back().batch();
      try {
        const Fault::Armed armed;
        started.push_back(store->Start(last, nullptr));
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      hit = fault.hit();
    }
    for (const auto& in_flight : started) store->Wait(in_flight);
    for (int b = 0; b < 2; ++b) EXPECT_EQ(erases[b].ok(), kHalfQueue);
    if (refused) store->Wait(store->Start(erases.back().batch(), nullptr));
    EXPECT_EQ(erases.back().ok(), kHalfQueue);
    without += hit && !refused ? 1 : 0;
    EXPECT_EQ(store->Stats().items, 20'000 - 3 * kHalfQueue);
    EXPECT_EQ(store->CountMisplacedCells(), 0u);
    store->Close();
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(without, 0u);
}

/// A batch that is larger than the queue, one at a time, takes no more memory for it than it needs.
TEST_F(ErasedSlotsTest, ABatchAloneTakesRoomForItself) {
  const auto store = Make(40);
  store->Reserve(kItems);
  const std::uint64_t before = store->Stats().queue_bytes;
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(Apply(*store, Op::kInsert, 1, 7 * kHalfQueue), 7 * kHalfQueue);
    EXPECT_EQ(Apply(*store, Op::kErase, 1, 7 * kHalfQueue), 7 * kHalfQueue);
  }
  EXPECT_LE(store->Stats().queue_bytes, before + 16 * kHalfQueue * 8);
  store->Close();
}

TEST_F(ErasedSlotsTest, AFindGivesBackAFewOfThem) {
  const auto store = Make(40);
  store->Reserve(kItems);
  constexpr std::uint64_t kErased = 50'000;
  EXPECT_EQ(Apply(*store, Op::kInsert, 1, kItems), kItems);
  EXPECT_EQ(Apply(*store, Op::kErase, 1, kErased), kErased);
  // (A slot that is given back frees its cell.)
  const auto freed = [&] { return store->executor().Positions().cells_tail; };
  const std::uint64_t before = freed();
  std::uint64_t batches = 0;
  for (std::uint64_t last = before; last < before + kErased && batches < kErased; ++batches) {
    EXPECT_EQ(Apply(*store, Op::kFind, kErased + 1, 1), 1u);
    const std::uint64_t now = freed();
    EXPECT_GT(now, last);
    EXPECT_LE(now, last + 4096);
    last = now;
  }
  EXPECT_EQ(freed(), before + kErased);
  EXPECT_EQ(batches, (kErased + 4095) / 4096);

  // A large batch gives back more.
  EXPECT_EQ(Apply(*store, Op::kErase, kErased + 1, 40'000), 40'000u);
  const std::uint64_t then = freed();
  Apply(*store, Op::kFind, 1, 5'000);
  EXPECT_EQ(freed(), then + 20'000);
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
  EXPECT_EQ(store->CountMisplacedCells(), 0u);
  store->Close();
}

/// It can't be given more afterwards.
TEST_F(ErasedSlotsTest, AScopeGetsAllOfThem) {
  const auto store = Make(8);
  constexpr std::uint64_t kErased = 50'000;
  EXPECT_EQ(Apply(*store, Op::kInsert, 1, kItems), kItems);
  EXPECT_EQ(Apply(*store, Op::kErase, 1, kErased), kErased);
  const auto scope = std::make_shared<FakeTask>();
  scope->closed = false;
  const auto in_flight = store->StartTask(scope, {.most = {}, .writes = true, .inserts = true});
  scope->closed = true;
  store->Wait(in_flight);
  EXPECT_EQ(scope->to_give_back, kErased);
}

/// Their cells would be held until all is copied, though nobody reads them.
TEST_F(ErasedSlotsTest, ASnapshotHoldsNoneOfTheirCells) {
  const auto store = Make(40);
  constexpr std::uint64_t kErased = 50'000;
  EXPECT_EQ(Apply(*store, Op::kInsert, 1, kItems), kItems);
  EXPECT_EQ(Apply(*store, Op::kErase, 1, kErased), kErased);
  const std::uint64_t before = store->executor().Positions().cells_tail;
  EXPECT_EQ(store->Snapshot(NewPath(), {}).items, kItems - kErased);
  EXPECT_EQ(store->executor().Positions().cells_tail, before + kErased);
  store->Close();
}

/// Those that wait are room for whoever needs it, however small batches are.
TEST_F(ErasedSlotsTest, AFullPoolGetsAllOfThem) {
  for (const std::size_t size : {1, 100, 30'000}) {
    const auto store = Make(40, std::uint64_t{8} << 20);
    std::uint64_t items = 0;
    for (std::size_t added = 1; added > 0; items += added) {
      added = Apply(*store, Op::kInsert, 1 + items, 1000);
    }
    ASSERT_GT(items, 40'000u);
    constexpr std::size_t kErased = 30'000;
    EXPECT_EQ(Apply(*store, Op::kErase, 1, kErased), kErased);
    std::size_t added = 0;
    for (std::size_t at = 0; at < kErased; at += size) {
      added += Apply(*store, Op::kInsert, 1'000'000 + at, std::min(size, kErased - at));
    }
    // (Some find no slot in a table as full, or no cell but those that are kept for updates.)
    EXPECT_GE(added, kErased / 100 * 95) << size;
    EXPECT_EQ(store->CountMisplacedCells(), 0u);
    store->Close();
  }
}

}  // namespace
}  // namespace gpm::test
