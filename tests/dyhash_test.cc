// What the kernels of DyHash do (bench/peers/dyhash_table.h), carried out on the host: warps whose
// lanes are threads, and two of them at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "bench/peers/dyhash_table.h"
#include "tests/host_dyhash.h"
#include "tests/host_warp.h"
#include "tests/peer_batches.h"

namespace gpm::bench::peers::dyhash {
namespace {

class DyHashTest : public testing::Test {
 protected:
  using Keys = std::vector<std::uint64_t>;

  /// Finds or erases, by two tiles at once.
  Answers<Value> Apply(Op op, const Keys& keys) {
    return ApplyByTwoTiles<kSlots>(peer_->table, {op}, keys, RowsOf<Value>(keys, 0));
  }
  /// Inserts new keys by two warps at once, up to 32 of them by each at a time.
  void Insert(const Keys& keys) {
    const unsigned per_warp = 1 + static_cast<unsigned>(source_.random() % kWarpThreads);
    const auto answers =
        WithBatch({Op::kInsert}, keys, RowsOf<Value>(keys, version_), [&](const KernelBatch& rows) {
          RunTiles<kWarpThreads>(2, [&](const auto& warp, unsigned number) {
            for (std::uint64_t i = number * per_warp; i < rows.n; i += 2 * per_warp) {
              InsertRows(warp, peer_->table, rows, i, per_warp);
            }
          });
        });
    ExpectAll(answers, Result::kOk);
    for (const std::uint64_t key : keys) model_[key] = version_++;
  }
  /// Finds or erases keys, of which those in the model are there.
  void Expect(Op op, const Keys& keys) {
    const auto answers = Apply(op, keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto item = model_.find(keys[i]);
      const bool there = item != model_.end();
      ASSERT_EQ(answers.results[i], there ? Result::kOk : Result::kNotFound) << i;
      if (op == Op::kFind && there) {
        ASSERT_EQ(VersionOf(keys[i], answers.found[i]), item->second) << i;
      }
      if (op == Op::kErase && there) model_.erase(item);
    }
  }
  /// All items of the model are there or left over, with their values, and no others. @return how
  /// many are there
  std::size_t ExpectItems() {
    auto cell_of = peer_->Placed();
    const std::size_t placed = cell_of.size();
    for (const Item& item : peer_->LeftOver()) {
      EXPECT_TRUE(cell_of.emplace(item.key, item.reference).second) << "both there and left over";
    }
    EXPECT_EQ(cell_of.size(), model_.size());
    EXPECT_EQ(peer_->cells.Used(), model_.size());
    for (const auto& [key, version] : model_) {
      const auto item = cell_of.find(key);
      if (item == cell_of.end() || item->second > HostDyHash::kCells) {
        ADD_FAILURE() << "an item is lost";
        continue;
      }
      const std::byte* const value = peer_->cells.view.AddressOf(item->second);
      EXPECT_EQ(VersionOf(key, *reinterpret_cast<const Value*>(value)), version);
    }
    return placed;
  }
  Keys KeysThere() const {
    Keys keys;
    for (const auto& item : model_) keys.push_back(item.first);
    return keys;
  }
  void Make(std::uint64_t size) { peer_ = std::make_unique<HostDyHash>(size); }
  Pending NewItem(std::uint64_t key, unsigned t) {
    const std::uint32_t cell = peer_->cells.view.Take();
    *reinterpret_cast<Value*>(peer_->cells.view.AddressOf(cell)) = ValueOf<Value>(key, version_);
    model_[key] = version_++;
    return {key, cell, t, 0, true};
  }

  std::unique_ptr<HostDyHash> peer_;
  KeySource<std::uint64_t> source_;
  std::map<std::uint64_t, std::uint64_t> model_;  ///< versions of values
  std::uint64_t version_ = 1;
};

TEST_F(DyHashTest, ManyBatchesAgreeWithAModel) {
  Make(6);
  const Keys all = source_.New(360);  // more than there are slots at first
  for (int round = 0; round < 40; ++round) {
    Keys keys = source_.Some(all, 1 + source_.random() % 120);
    const Op ops[] = {Op::kInsert, Op::kInsert, Op::kFind, Op::kErase};
    const Op op = ops[round == 0 ? 0 : source_.random() % 4];
    if (op == Op::kInsert) {
      std::erase_if(keys, [&](std::uint64_t key) { return model_.contains(key); });
      Insert(keys);
    } else {
      Expect(op, keys);
    }
    ExpectItems();
    for (unsigned t = 0; peer_->counters.left_over > 0; t = (t + 1) % kTables) {
      peer_->Double(t);
      peer_->InsertLeftOver();
      ExpectItems();
    }
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  Expect(Op::kFind, all);
}

/// Of more items than there are slots the others are left over, and come in when there is room.
TEST_F(DyHashTest, WhatFindsNoPlaceIsLeftOverAndNotLost) {
  Make(4);
  constexpr std::size_t kSlotsInAll = 4 * kSlots * kTables;
  for (int batch = 0; batch < 3; ++batch) Insert(source_.New(60));
  EXPECT_EQ(ExpectItems(), 180u);  // so many by evictions alone
  Insert(source_.New(kSlotsInAll + 3 - model_.size()));
  EXPECT_EQ(ExpectItems(), kSlotsInAll);
  EXPECT_EQ(peer_->counters.left_over, 3u);
  peer_->Double(1);
  peer_->InsertLeftOver();
  EXPECT_EQ(ExpectItems(), model_.size());
  Expect(Op::kFind, KeysThere());
}

TEST_F(DyHashTest, DoublingAndHalvingKeepAllItems) {
  Make(8);
  Insert(source_.New(240));
  ExpectItems();
  for (const unsigned t : {2u, 0u, 1u}) {
    const auto before = peer_->Placed();
    peer_->Double(t);
    EXPECT_EQ(ExpectItems(), before.size());
    EXPECT_EQ(peer_->Placed(), before);
    ASSERT_FALSE(HasFailure()) << "of subtable " << t;
  }
  Expect(Op::kFind, KeysThere());
  // So many that some of two buckets have no room in one.
  Insert(source_.New(160));
  std::size_t left_over = 0;
  for (const unsigned t : {1u, 2u}) {
    peer_->Halve(t);
    ExpectItems();
    left_over += peer_->counters.left_over;
    peer_->InsertLeftOver();
    EXPECT_EQ(ExpectItems(), model_.size());
    Expect(Op::kFind, KeysThere());
  }
  EXPECT_GT(left_over, 0u);
  Expect(Op::kErase, KeysThere());
  EXPECT_EQ(ExpectItems(), 0u);
}

TEST_F(DyHashTest, OneOfTwoErasesOfAKeyIsOk) {
  Make(8);
  Insert(source_.New(250));
  const Keys erased = source_.Some(KeysThere(), 230);
  Keys twice;
  for (const std::uint64_t key : erased) twice.insert(twice.end(), 2, key);
  const auto answers = Apply(Op::kErase, twice);
  for (std::size_t i = 0; i < twice.size(); i += 2) {
    const std::set<Result> both{answers.results[i], answers.results[i + 1]};
    ASSERT_EQ(both, (std::set{Result::kOk, Result::kNotFound})) << i;
    model_.erase(twice[i]);
  }
  ExpectItems();
  Expect(Op::kFind, twice);
}

/// Who meets a lock lets the warp's other lanes go on, and comes again.
TEST_F(DyHashTest, NobodyWaitsForALockOrPassesIt) {
  Make(2);
  Pending in_locked, beside;
  while (!in_locked.active || !beside.active) {
    const std::uint64_t key = source_.New(1)[0];
    auto& item = peer_->table.BucketOf(key, 0) == 0 ? in_locked : beside;
    if (!item.active) item = NewItem(key, 0);
  }
  auto& [buckets, references, locks] = peer_->memory[0];
  locks[0] = 1;
  std::jthread inserting([&] { peer_->Insert({in_locked, beside}); });
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  for (int i = 0; i < 1000 && LoadWord(&buckets[1].keys[0]) == kEmpty; ++i) wait();
  EXPECT_EQ(LoadWord(&buckets[1].keys[0]), beside.key);
  wait();
  for (const std::uint64_t& key : buckets[0].keys) EXPECT_EQ(LoadWord(&key), kEmpty);
  EXPECT_EQ(Exchange(&locks[0], 0), 1u);
  inserting.join();
  EXPECT_EQ(ExpectItems(), 2u);
}

TEST_F(DyHashTest, AKeyThatIsInTheBucketGetsTheNewValue) {
  Make(2);
  const Keys keys = source_.New(20);
  for (int time = 0; time < 3; ++time) {
    std::vector<Pending> items;
    for (const std::uint64_t key : keys) items.push_back(NewItem(key, key % kTables));
    peer_->Insert(items);
    EXPECT_EQ(ExpectItems(), keys.size());
  }
}

TEST_F(DyHashTest, NewItemsGoWhereThereIsRoom) {
  Make(8);
  const auto share = [&](unsigned t) {
    const Keys keys = source_.New(4000);
    const auto drawn = std::ranges::count_if(
        keys, [&](std::uint64_t key) { return peer_->table.SampleTable(key) == t; });
    return static_cast<double>(drawn) / static_cast<double>(keys.size());
  };
  for (unsigned t = 0; t < kTables; ++t) EXPECT_NEAR(share(t), 1.0 / 3, 0.05);
  peer_->Double(1);
  EXPECT_NEAR(share(1), 0.5, 0.05);
  peer_->counters.items[0] = peer_->counters.items[1] = 100;
  EXPECT_GT(share(2), 0.99);
}

TEST_F(DyHashTest, KeyZeroAndOtherOperationsAreInvalid) {
  Make(2);
  for (const Op op : {Op::kFind, Op::kErase}) ExpectAll(Apply(op, {0}), Result::kInvalid);
  for (const Op op : {Op::kInsert, Op::kUpdate, Op::kUpsert}) {
    ExpectAll(Apply(op, source_.New(2)), Result::kInvalid);
  }
  const Keys zero{0};
  const auto answers =
      WithBatch({Op::kInsert}, zero, RowsOf<Value>(zero, 0), [&](const KernelBatch& rows) {
        RunTiles<kWarpThreads>(
            1, [&](const auto& warp, unsigned) { InsertRows(warp, peer_->table, rows, 0, 32); });
      });
  ExpectAll(answers, Result::kInvalid);
  EXPECT_EQ(ExpectItems(), 0u);
}

}  // namespace
}  // namespace gpm::bench::peers::dyhash
