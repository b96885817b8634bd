// A growth that composes the new level: one switch, after which every item is found and nothing is
// left to drain; what finds no slot is drained as ever.

#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/store_impl.h"
#include "pm/pool.h"
#include "table/hash.h"
#include "table/layout.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ModelledStore;
using test::Numbers;
using test::TestBatch;

constexpr double kLong = 100;  // seconds: more than any level here takes

struct Case {
  std::uint32_t key_size;
  std::uint32_t value_size;
  bool directory;
  double growth;
};

class ComposedGrowthTest : public test::PoolTest, public testing::WithParamInterface<Case> {
 protected:
  OpenOptions Options(double pause = kLong) {
    OpenOptions options;
    options.executor = test::TestExecutor();
    if (options.executor == ExecutorKind::kCpu) options.threads = 3;
    options.cache.directory = GetParam().directory;
    options.cache.fraction = GetParam().directory ? 0.5 : 0;
    options.growth = GetParam().growth;
    options.growth_pause = pause;
    options.log = [this](LogLevel, std::string_view message) {
      leftovers_ += message.find("found no slot") != message.npos ? 1 : 0;
    };
    return options;
  }
  CreateOptions Sizes(std::uint64_t capacity) const {
    return test::Shape(GetParam().key_size, GetParam().value_size, capacity);
  }

  /// Inserts, a few at a time, until the table has grown once more. @return the keys there then
  static std::uint64_t Grow(ModelledStore& store, std::uint64_t keys) {
    for (const std::uint64_t before = store.store().Stats().resizes;
         store.store().Stats().resizes == before; keys += 32) {
      store.Apply(Op::kInsert, Numbers(keys, 32));
    }
    return keys;
  }
  static void ExpectCells(ModelledStore& store) {
    if (test::TestExecutor() == ExecutorKind::kCuda) return;
    EXPECT_EQ(store.store().impl()->CountMisplacedCells(), 0u);
    const StoreStats stats = store.store().Stats();
    if (stats.value_cells > 0) {
      EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
    }
  }

  int leftovers_ = 0;  ///< growths in which an item found no slot
};

TEST_P(ComposedGrowthTest, MovesTheOldestLevelsItemsAtOnce) {
  ModelledStore store(NewPath(), Sizes(20'000), Options());
  store.Apply(Op::kInsert, Numbers(0, 10'000));
  store.Apply(Op::kErase, Numbers(9'000, 500));  // slots that are to be given back
  std::uint64_t keys = 10'000;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const StoreStats before = store.store().Stats();
    keys = Grow(store, keys);
    const StoreStats after = store.store().Stats();
    EXPECT_EQ(after.composed_resizes, after.resizes);
    if (GetParam().growth > 1.2) {  // else a full table may want two at once
      EXPECT_EQ(after.resizes, round);
      EXPECT_EQ(after.level_buckets[1], before.level_buckets[0]);
    }
    if (leftovers_ == 0) {
      EXPECT_EQ(after.level_buckets.size(), after.geometry.levels);
      EXPECT_EQ(after.buckets_to_drain, 0u);
    }
    store.ExpectContents();
    ExpectCells(store);
    for (const Op op : {Op::kFind, Op::kUpdate, Op::kErase, Op::kUpsert}) {
      store.Apply(op, Numbers(round * 1000, 2000), round);
    }
  }
  store.Apply(Op::kFind, Numbers(0, keys + 100));
  store.Reopen();
}

TEST_P(ComposedGrowthTest, SomeBatchesGrowByOneLevelAfterTheOther) {
  for (const std::uint64_t threads : {1u, 3u}) {
    OpenOptions options = Options();
    options.threads = static_cast<unsigned>(threads);
    ModelledStore store(NewPath(), Sizes(0), options);
    store.Apply(Op::kInsert, Numbers(0, 800));
    for (std::uint64_t keys = 800; keys < 60'000; keys += keys / 2) {
      store.Apply(Op::kInsert, Numbers(keys, keys / 2));
    }
    const StoreStats stats = store.store().Stats();
    EXPECT_GT(stats.resizes, 4u);
    EXPECT_EQ(stats.composed_resizes, stats.resizes);
    ExpectCells(store);
    store.Apply(Op::kErase, Numbers(0, 70'000));
    store.Reopen();
  }
}

TEST_P(ComposedGrowthTest, ALargeBatchGrowsAtOnceAsFarAsItHasTo) {
  for (const std::uint64_t threads : {1u, 3u}) {
    OpenOptions options = Options();
    options.threads = static_cast<unsigned>(threads);
    ModelledStore store(NewPath(), Sizes(0), options);
    store.Apply(Op::kInsert, Numbers(0, 100));
    store.Apply(Op::kInsert, Numbers(50, 60'000));
    const StoreStats stats = store.store().Stats();
    EXPECT_GE(stats.resizes, 1u);
    if (stats.executor == ExecutorKind::kCuda) {  // the other does not know how much a batch lacks
      EXPECT_LE(stats.resizes, 3u);
    }
    EXPECT_GT(stats.load_factor, 0.8 / options.growth);
    EXPECT_EQ(stats.items, 60'050u);
    ExpectCells(store);
    store.Apply(Op::kErase, Numbers(0, 60'050));
    store.Reopen();
  }
}

TEST_P(ComposedGrowthTest, ALargeBatchFillsALimitedPoolAsFarAsSmallOnesDo) {
  std::uint64_t most = 0;
  for (const std::uint64_t of_batch : {500u, 400'000u}) {
    OpenOptions options = Options();
    options.max_bytes = std::uint64_t{12} << 20;
    Store store = Store::Create(NewPath(), Sizes(0), options);
    for (std::uint64_t key = 0; key < 400'000; key += of_batch) {
      test::TestBatch batch(store.key_size(), store.value_size());
      for (std::uint64_t i = 0; i < of_batch; ++i) batch.Add(Op::kInsert, key + i, i);
      if (batch.CallFor(store, Op::kInsert) == of_batch) break;  // none found room
    }
    const std::uint64_t items = store.Stats().items;
    // (Hash seeds differ, and one finds room for a growth more, or for two of 1.1.)
    EXPECT_GT(items, most * 8 / 10) << most;
    most = items;
    store.Close();
  }
}

TEST_P(ComposedGrowthTest, IsRecoveredLikeAnyTable) {
  ModelledStore store(NewPath(), Sizes(20'000), Options());
  store.Apply(Op::kInsert, Numbers(0, 10'000));
  Grow(store, 10'000);
  const std::string copy = NewPath();
  std::filesystem::copy_file(store.path(), copy);
  if (leftovers_ == 0) {
    EXPECT_FALSE(CheckPool(copy).resizing);
  }
  Store reopened = Store::Open(copy, Options());
  EXPECT_FALSE(reopened.Stats().recovery.was_clean);
  EXPECT_EQ(reopened.Stats().recovery.insert_slots_cleared, 0u);
  test::ExpectContents(reopened, store.model());
  reopened.Close();
  test::ExpectSound(copy, store.model().size());
}

TEST_P(ComposedGrowthTest, ReserveOfOneLevelComposesIt) {
  ModelledStore store(NewPath(), Sizes(20'000), Options());
  store.Apply(Op::kInsert, Numbers(0, 15'000));
  store.store().Reserve(store.store().Stats().capacity_slots);
  const StoreStats stats = store.store().Stats();
  EXPECT_EQ(stats.resizes, 1u);
  EXPECT_EQ(stats.composed_resizes, GetParam().growth > 1.2 ? 1u : 0u) << "else by several";
  store.Apply(Op::kFind, Numbers(0, 16'000));
  store.Reopen();
}

TEST_P(ComposedGrowthTest, SmallBatchesOfLargeTablesDrainBesideThem) {
  ModelledStore store(NewPath(), Sizes(20'000), Options(1e-9));
  store.Apply(Op::kInsert, Numbers(0, 10'000));
  std::uint64_t keys = Grow(store, 10'000);
  StoreStats stats = store.store().Stats();
  EXPECT_EQ(stats.composed_resizes, 0u);
  EXPECT_GT(stats.buckets_to_drain, 0u);
  // A batch that takes longer than a new level would rather waits for that.
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t more = keys / 2;
    store.Apply(Op::kInsert, Numbers(keys, more));
    keys += more;
  }
  EXPECT_GE(store.store().Stats().composed_resizes, 1u);
  // And where it is not wanted, there is none.
  store.Reopen(Options(0));
  store.Apply(Op::kInsert, Numbers(keys, 100'000));
  stats = store.store().Stats();
  EXPECT_GE(stats.resizes, 1u);
  EXPECT_EQ(stats.composed_resizes, 0u);
  store.Apply(Op::kFind, Numbers(0, keys + 100'000));
}

TEST_P(ComposedGrowthTest, LimitedMemoryHasNoRoomForIt) {
  OpenOptions options = Options();
  options.cache.directory = true;
  options.cache.fraction.reset();
  options.cache.bytes = std::uint64_t{64} << 20;
  ModelledStore store(NewPath(), Sizes(20'000), options);
  store.Apply(Op::kInsert, Numbers(0, 10'000));
  Grow(store, 10'000);
  EXPECT_EQ(store.store().Stats().composed_resizes, 0u);
  store.ExpectContents();
}

TEST_P(ComposedGrowthTest, APoolWithoutRoomIsFullAsEver) {
  OpenOptions limited = Options();
  limited.max_bytes = std::uint64_t{2} << 20;
  ModelledStore store(NewPath(), Sizes(0), limited);
  std::uint64_t key = 0;
  for (bool full = false; !full;) {
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 100; ++i, ++key) batch.Add(Op::kInsert, key, key);
    store.Apply(batch, true);
    for (std::size_t i = 0; i < batch.size(); ++i) full |= batch.result(i) == Result::kNoSpace;
  }
  EXPECT_GT(store.store().Stats().composed_resizes, 2u);
  ExpectCells(store);
  store.ExpectContents();
  store.Apply(Op::kFind, Numbers(0, key));
  store.Reopen();
}

TEST_P(ComposedGrowthTest, TheCacheKeepsTheValuesOfLevelsThatStay) {
  if (!GetParam().directory || GetParam().value_size <= 8) GTEST_SKIP() << "there is no cache";
  OpenOptions options = Options();
  options.cache.fraction = 1;
  options.cache.refresh_interval = 0;
  ModelledStore store(NewPath(), Sizes(20'000), options);
  store.Apply(Op::kInsert, Numbers(0, 10'000));
  store.Apply(Op::kFind, Numbers(0, 10'000));
  store.store().RefreshCache().Wait();
  const std::uint64_t keys = Grow(store, 10'000);
  std::uint64_t before = store.store().Stats().cache.hits;
  store.Apply(Op::kFind, Numbers(0, keys));
  EXPECT_GT(store.store().Stats().cache.hits - before, keys / 4);
  store.Apply(Op::kUpdate, Numbers(0, keys / 2), 1);
  store.store().RefreshCache().Wait();
  before = store.store().Stats().cache.hits;
  store.Apply(Op::kFind, Numbers(0, keys));
  EXPECT_EQ(store.store().Stats().cache.hits - before, keys);
  store.Reopen();
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const Case& shape = info.param;
  return "Keys" + std::to_string(shape.key_size) + "Values" + std::to_string(shape.value_size) +
         (shape.directory ? "Directory" : "") + "Growth" +
         std::to_string(static_cast<int>(100 * shape.growth));
}

INSTANTIATE_TEST_SUITE_P(Stores, ComposedGrowthTest,
                         testing::Values(Case{8, 8, false, 2}, Case{8, 64, false, 1.25},
                                         Case{32, 24, false, 1.5}, Case{8, 64, true, 2},
                                         Case{32, 8, true, 1.1}, Case{8, 100, true, 1.25}),
                         NameOf);

/// Items that find no slot in the new level, beside many that do.
class LeftoverTest : public ComposedGrowthTest {
 protected:
  static constexpr std::uint64_t kMore = 4;

  /// A store that has just grown, but some items are in the oldest level still. A bucket of the new
  /// level begins in one of the oldest and ends in the next: so keys that have no other two buckets
  /// there, and were in four, are too many for it.
  std::unique_ptr<ModelledStore> NewStore() {
    CreateOptions create = Sizes(0);
    create.geometry = {1, 2, 8};
    create.hash_seed = 7;
    leftovers_ = 0;
    auto store = std::make_unique<ModelledStore>(NewPath(), create, Options());
    crowd_ = Crowd(store->path());
    store->Apply(Op::kInsert, crowd_);
    keys_ = Grow(*store, 0);
    const StoreStats stats = store->store().Stats();
    EXPECT_EQ(leftovers_, 1);
    EXPECT_EQ(stats.composed_resizes, 1u);
    EXPECT_GT(stats.buckets_to_drain, 0u);
    EXPECT_EQ(stats.level_buckets.size(), 2u);
    return store;
  }

  std::vector<std::uint64_t> crowd_;  ///< keys that are too many for their new buckets
  std::uint64_t keys_ = 0;            ///< and keys 0 to there

 private:
  std::vector<std::uint64_t> Crowd(const std::string& path) const {
    constexpr std::uint64_t kFirst = std::uint64_t{1} << 40;
    const std::string copy = path + ".crowd";
    std::filesystem::copy_file(path, copy);
    const auto pool = Pool::Open(copy, Pool::Options{.read_only = true});
    const Superblock& superblock = pool->superblock();
    const Growth growth{superblock.geometry, GetParam().growth};
    const auto part = static_cast<std::uint32_t>(growth.Next(superblock.levels[0].buckets) /
                                                 superblock.geometry.locations);
    std::vector<std::uint64_t> numbers;
    std::vector<std::uint64_t> words(superblock.key_size / 8);
    const std::size_t wanted = 2 * superblock.geometry.slots + kMore;
    for (std::uint64_t number = kFirst; numbers.size() < wanted; ++number) {
      const std::string key = test::MakeKey(number, superblock.key_size);
      std::memcpy(words.data(), key.data(), key.size());
      const KeyHash hash = HashKey(superblock.hash_seed, words.data(), superblock.key_size / 8);
      if (ShareOf(hash.h, part) == 1 && ShareOf(hash.h + hash.g, part) == 1) {
        numbers.push_back(number);
      }
    }
    return numbers;
  }
};

TEST_P(LeftoverTest, EachItemIsSeenOnceAndBatchesDrainThem) {
  for (const Op kind : {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase}) {
    SCOPED_TRACE(OpName(kind));
    const auto store = NewStore();
    store->ExpectContents();
    store->Apply(kind, crowd_, 5);
    for (std::uint64_t first = 0; first < keys_ + 500; first += 100) {
      store->Apply(kind, Numbers(first, 100), 7);
    }
    store->ExpectContents();
    store->Apply(Op::kFind, Numbers(0, keys_ + 500));
    store->Apply(Op::kFind, crowd_);
    ExpectCells(*store);
    store->Reopen();
  }
}

TEST_P(LeftoverTest, WhoNeedsAllItemsEndsIt) {
  for (const bool grows : {false, true}) {
    const auto store = NewStore();
    store->Apply(Op::kErase, Numbers(100, 300));
    store->store().Reserve(grows ? 50'000 : 1);
    EXPECT_EQ(store->store().Stats().buckets_to_drain, 0u);
    EXPECT_EQ(store->store().Stats().level_buckets.size(), 1u);
    ExpectCells(*store);
    store->Reopen();
  }
}

TEST_P(LeftoverTest, ACopyTakenInTheMiddleRecovers) {
  const auto store = NewStore();
  for (const bool touched : {false, true}) {
    if (touched) {
      store->Apply(Op::kErase, Numbers(0, 20));
      store->Apply(Op::kUpdate, Numbers(20, 10), 9);
      store->Apply(Op::kErase, {crowd_[0], crowd_[3]});
      store->Apply(Op::kUpdate, {crowd_[1], crowd_[2]}, 9);
    }
    const std::string copy = NewPath();
    std::filesystem::copy_file(store->path(), copy);
    const bool draining = store->store().Stats().buckets_to_drain > 0;
    EXPECT_TRUE(touched || draining);
    const CheckReport report = CheckPool(copy);
    EXPECT_EQ(report.resizing, draining);
    EXPECT_EQ(report.defects, std::vector<std::string>{});
    Store reopened = Store::Open(copy, Options());
    EXPECT_EQ(reopened.Stats().recovery.resize_continued, draining);
    EXPECT_EQ(reopened.Stats().items, store->model().size());
    test::ExpectContents(reopened, store->model());
    reopened.Close();
    test::ExpectSound(copy, store->model().size());
  }
}

TEST_P(LeftoverTest, ASnapshotInTheMiddleHasEachItemOnce) {
  const auto store = NewStore();
  const std::string file = NewPath();
  const SnapshotResult snapshot = store->store().Snapshot(file);
  EXPECT_EQ(snapshot.items, store->model().size());
  EXPECT_EQ(snapshot.written, snapshot.items);
  Store restored = Store::Restore(std::span(&file, 1), NewPath(), Options());
  test::ExpectContents(restored, store->model());
  restored.Close();
  store->ExpectContents();
}

INSTANTIATE_TEST_SUITE_P(Stores, LeftoverTest,
                         testing::Values(Case{8, 8, false, 1.5}, Case{8, 64, false, 1.5},
                                         Case{32, 24, true, 1.5}, Case{8, 64, true, 1.5}),
                         NameOf);

}  // namespace
}  // namespace gpm
