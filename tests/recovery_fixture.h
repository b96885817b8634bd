#ifndef GPM_TESTS_RECOVERY_FIXTURE_H_
#define GPM_TESTS_RECOVERY_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "recovery/check.h"
#include "table/layout.h"
#include "tests/files.h"
#include "tests/test_util.h"

/// What the tests of recovery share.
namespace gpm::test {

/// Names the tests of each shape of keys and values.
struct RecoveryShape {
  std::uint32_t key_size;
  std::uint32_t value_size;
  const char* geometry;
};

class RecoveryTest : public PoolTest, public ::testing::WithParamInterface<RecoveryShape> {
 protected:
  /// A closed pool with items keyed 0, 1, ..., the all-one key, and some value cells to spare.
  void MakePool(std::uint64_t items) {
    const RecoveryShape shape = GetParam();
    CreateOptions create;
    create.key_size = shape.key_size;
    create.value_size = shape.value_size;
    create.geometry = ParseGeometry(shape.geometry);
    create.hash_seed = TestSeed();
    ModelledStore store(path_ = NewPath(), create, TestOpenOptions());
    std::vector<std::uint64_t> keys = Numbers(0, items);
    keys.push_back(kAllOnes);
    store.Apply(Op::kInsert, keys);
    store.Apply(Op::kInsert, Numbers(items, 400));
    store.Apply(Op::kErase, Numbers(items, 400));
    store.store().Close();
    model_ = store.model();
    ExpectSound(path_, model_.size());
  }

  /// Opens the crashed pool, compares it with the model, uses it, closes it and checks it.
  RecoveryStats Recover() {
    const CheckReport crashed = CheckPool(path_);
    EXPECT_TRUE(crashed.defects.empty()) << "a crashed pool is sound: " << crashed.defects.front();
    EXPECT_FALSE(crashed.clean);
    EXPECT_EQ(crashed.items, model_.size());
    Store store = Store::Open(path_, TestOpenOptions());
    const StoreStats stats = store.Stats();
    EXPECT_FALSE(stats.recovery.was_clean);
    EXPECT_EQ(stats.recovery.insert_slots_cleared, crashed.insert_slots);
    // (One more where batches are to drain it.)
    EXPECT_LE(stats.level_buckets.size(), stats.geometry.levels + 1u);
    EXPECT_EQ(stats.buckets_to_drain > 0, stats.level_buckets.size() > stats.geometry.levels);
    if (stats.value_cells > 0) {
      EXPECT_EQ(stats.free_cells, stats.value_cells - model_.size()) << "cells leaked";
    }
    ExpectContents(store, model_);

    // The recovered store is a store like any other.
    TestBatch batch(GetParam().key_size, GetParam().value_size);
    std::mt19937_64 random(TestSeed());
    for (int i = 0; i < 3000; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), random() % 1500, random());
    }
    store.Apply(batch.Mixed());
    batch.Compare(model_);
    ExpectContents(store, model_);
    store.Close();
    ExpectSound(path_, model_.size());
    return stats.recovery;
  }

  /// The check names the slot; opening refuses the pool and leaves it as it is.
  void ExpectDamage(const std::string& where) {
    const CheckReport report = CheckPool(path_);
    ASSERT_EQ(report.defects.size(), 1u);
    EXPECT_NE(Plain(report.defects.front()).find(where), std::string::npos)
        << report.defects.front() << "\nshould name " << where;
    const std::string before = ReadFile(path_);
    EXPECT_EQ(ErrorOf([&] { Store::Open(path_, TestOpenOptions()); }), ErrorCode::kDamaged);
    EXPECT_TRUE(ReadFile(path_) == before) << "a damaged pool was changed";
  }
  /// A message without its punctuation.
  static std::string Plain(std::string message) {
    std::erase_if(message, [](char c) { return c == ',' || c == ':'; });
    return message;
  }

  const std::string& path() const { return path_; }
  Model& model() { return model_; }
  std::string KeyText(const KeyBuffer& key) const {
    return std::string(reinterpret_cast<const char*>(key.words), GetParam().key_size);
  }

 private:
  std::string path_;
  Model model_;
};

/// Those whose values do not fit inline, so that slots refer to cells.
class ReferenceTest : public RecoveryTest {};

}  // namespace gpm::test

#endif  // GPM_TESTS_RECOVERY_FIXTURE_H_
