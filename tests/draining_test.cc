// A level that is drained beside batches: what operations see meanwhile, who ends it, and what a
// crash in the middle leaves.

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "pm/pool.h"
#include "table/hash.h"
#include "table/operation.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::Model;
using test::ModelledStore;
using test::Numbers;
using test::TestBatch;

struct Case {
  std::uint32_t key_size;
  std::uint32_t value_size;
  bool directory;
  double growth;
  bool limited = false;  ///< memory of the executor: the directory knows nothing of what is below
};

class DrainingTest : public test::PoolTest, public testing::WithParamInterface<Case> {
 protected:
  static OpenOptions Options() {
    OpenOptions options;
    options.executor = test::TestExecutor();
    if (options.executor == ExecutorKind::kCpu) options.threads = 3;
    options.cache.directory = GetParam().directory;
    options.cache.fraction = GetParam().directory ? 0.5 : 0;
    if (GetParam().limited) {
      options.cache.bytes = std::uint64_t{64} << 20;
      options.cache.fraction.reset();
    }
    options.growth = GetParam().growth;
    options.growth_pause = 0;  // no level is composed
    return options;
  }

  /// A store in which most items are in a level that is being drained, or in one below the newest.
  std::unique_ptr<ModelledStore> NewDrainingStore() {
    auto store = std::make_unique<ModelledStore>(
        NewPath(), test::Shape(GetParam().key_size, GetParam().value_size, 20'000), Options());
    store->Apply(Op::kInsert, Numbers(0, 10'000));
    for (items_ = 10'000; !IsDraining(*store); items_ += 32) {
      store->Apply(Op::kInsert, Numbers(items_, 32));
    }
    return store;
  }
  static bool IsDraining(ModelledStore& store) {
    return store.store().Stats().buckets_to_drain > 0;
  }
  static std::size_t Levels(ModelledStore& store) {
    return store.store().Stats().level_buckets.size();
  }

  /// Keys that have their candidates in the same two buckets of each level, the last ones of its
  /// halves, if that has at most 1024 buckets.
  std::vector<std::uint64_t> KeysOfOnePlace(const CreateOptions& create, std::size_t count) {
    const std::string path = NewPath();
    Store::Create(path, create, Options()).Close();
    const auto pool = Pool::Open(path, Pool::Options{.read_only = true});
    std::vector<std::uint64_t> numbers;
    std::vector<std::uint64_t> words(create.key_size / 8);
    for (std::uint64_t number = 1; numbers.size() < count; ++number) {
      const std::string key = test::MakeKey(number, create.key_size);
      std::memcpy(words.data(), key.data(), key.size());
      const KeyHash hash = HashKey(pool->superblock().hash_seed, words.data(), create.key_size / 8);
      if (hash.h >> 55 == 0x1FF && (hash.h + hash.g) >> 55 == 0x1FF) numbers.push_back(number);
    }
    return numbers;
  }

  std::uint64_t items_ = 0;  ///< of a new store: keys 0 to there
};

TEST_P(DrainingTest, BatchesDrainTheLevelAndOneOfThemDropsIt) {
  const auto store = NewDrainingStore();
  const StoreStats before = store->store().Stats();
  EXPECT_EQ(before.level_buckets.size(), before.geometry.levels + 1u);
  EXPECT_EQ(before.resizes, 1u);
  std::uint64_t left = before.buckets_to_drain;
  EXPECT_LE(left, before.level_buckets.back());
  for (std::uint64_t key = 0; left > 0; key += 100) {  // finds do it, too
    store->Apply(Op::kFind, Numbers(key % items_, 100));
    const std::uint64_t now = store->store().Stats().buckets_to_drain;
    ASSERT_LT(now, left);
    left = now;
  }
  store->Apply(Op::kFind, Numbers(0, 1));
  const StoreStats after = store->store().Stats();
  EXPECT_EQ(after.level_buckets.size(), after.geometry.levels);
  EXPECT_EQ(after.level_buckets[0], before.level_buckets[0]);
  EXPECT_EQ(after.resizes, 1u);
  store->Apply(Op::kFind, Numbers(0, items_ + 100));
  store->Reopen();
}

TEST_P(DrainingTest, InsertsDrainItBeforeTheTableIsFull) {
  const auto store = NewDrainingStore();
  for (std::uint64_t key = items_; Levels(*store) > 2; key += 50) {
    store->Apply(Op::kInsert, Numbers(key, 50));
  }
  const StoreStats stats = store->store().Stats();
  EXPECT_LT(stats.load_factor, 0.9);
  if (GetParam().growth >= 1.2) {  // else the larger table, too, is nearly full
    EXPECT_EQ(stats.resizes, 1u);
  }
  store->ExpectContents();
}

TEST_P(DrainingTest, EachKindOfOperationSeesWhatIsBelow) {
  for (const Op kind : {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase}) {
    SCOPED_TRACE(OpName(kind));
    const auto store = NewDrainingStore();
    for (std::uint64_t first = 0; first < items_ + 1000; first += 1000) {
      store->Apply(kind, Numbers(first, 1000), 7);
    }
    store->Apply(Op::kFind, Numbers(0, items_ + 1000));
    store->ExpectContents();
    store->Reopen();
  }
}

TEST_P(DrainingTest, MixedBatchesOnFewKeysAreInOrder) {
  const auto store = NewDrainingStore();
  std::mt19937_64 random(test::TestSeed());
  for (int round = 0; round < 30; ++round) {
    TestBatch batch = store->NewBatch();
    for (int i = 0; i < 200; ++i) {
      batch.Add(static_cast<Op>(random() % 5), random() % (items_ / 100) * 100, random());
    }
    store->Apply(batch);
  }
  store->ExpectContents();
}

TEST_P(DrainingTest, WhoNeedsAllItemsEndsIt) {
  const std::vector<std::function<void(ModelledStore&)>> ends = {
      [](ModelledStore& store) { store.Reopen(); },
      [](ModelledStore& store) { store.store().Compact(); },
      [](ModelledStore& store) { store.store().Reserve(1); },
      [](ModelledStore& store) { store.store().Reserve(100'000); },
  };
  for (const auto& end : ends) {
    const auto store = NewDrainingStore();
    end(*store);
    EXPECT_EQ(Levels(*store), 2u);
    EXPECT_FALSE(IsDraining(*store));
    store->Apply(Op::kFind, Numbers(0, items_ + 10));
    store->ExpectContents();
    store->Reopen();
  }
}

TEST_P(DrainingTest, VisitorsSeeEachItemOnce) {
  const auto store = NewDrainingStore();
  store->ExpectContents();
  store->Apply(Op::kUpdate, Numbers(0, 500), 3);
  EXPECT_TRUE(IsDraining(*store));
  store->ExpectContents();
}

TEST_P(DrainingTest, AnEmptyStoreGrowsOn) {
  const auto store = NewDrainingStore();
  TestBatch all = store->NewBatch();
  for (std::uint64_t key = 0; key < items_; ++key) all.Add(Op::kErase, key, 0);
  store->Apply(all);
  EXPECT_EQ(store->store().Stats().items, 0u);
  store->Apply(Op::kInsert, Numbers(0, 60'000));
  store->Reopen();
}

TEST_P(DrainingTest, ACopyTakenInTheMiddleRecovers) {
  const auto store = NewDrainingStore();
  store->Apply(Op::kErase, Numbers(0, 300));
  store->Apply(Op::kUpdate, Numbers(300, 300), 9);
  ASSERT_TRUE(IsDraining(*store));
  const std::string copy = NewPath();
  std::filesystem::copy_file(store->path(), copy);
  EXPECT_TRUE(CheckPool(copy).resizing);
  Store reopened = Store::Open(copy, Options());
  const StoreStats stats = reopened.Stats();
  EXPECT_FALSE(stats.recovery.was_clean);
  EXPECT_TRUE(stats.recovery.resize_continued);
  EXPECT_GT(stats.buckets_to_drain, 0u) << "batches go on with it";
  test::ExpectContents(reopened, store->model());
  TestBatch updates = store->NewBatch();
  for (std::uint64_t key = 0; key < items_; key += 3) updates.Add(Op::kUpsert, key, key + 5);
  reopened.Apply(updates.Mixed());
  Model model = store->model();
  updates.Compare(model);
  test::ExpectContents(reopened, model);
  reopened.Close();
  test::ExpectSound(copy, model.size());
}

TEST_P(DrainingTest, AFullPoolHasNoLevelToDrain) {
  const Case& shape = GetParam();
  OpenOptions limited = Options();
  limited.max_bytes = std::uint64_t{2} << 20;
  ModelledStore store(NewPath(), test::Shape(shape.key_size, shape.value_size), limited);
  std::uint64_t key = 0;
  bool full = false;
  while (!full) {
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 100; ++i, ++key) batch.Add(Op::kInsert, key, key);
    store.Apply(batch, true);
    for (std::size_t i = 0; i < batch.size(); ++i) full |= batch.result(i) == Result::kNoSpace;
  }
  EXPECT_FALSE(IsDraining(store)) << "there is no room for a level that it might take";
  EXPECT_GT(store.store().Stats().resizes, 2u);
  store.ExpectContents();
  store.Apply(Op::kFind, Numbers(0, key));
}

TEST_P(DrainingTest, TheCacheKeepsTheValuesOfLevelsThatStay) {
  if (!GetParam().directory || GetParam().value_size <= 8) GTEST_SKIP() << "there is no cache";
  if (GetParam().limited) GTEST_SKIP() << "it begins anew";
  OpenOptions options = Options();
  options.cache.fraction = 1;
  options.cache.refresh_interval = 0;
  ModelledStore store(NewPath(), test::Shape(GetParam().key_size, GetParam().value_size, 20'000),
                      options);
  store.Apply(Op::kInsert, Numbers(0, 10'000));
  store.Apply(Op::kFind, Numbers(0, 10'000));
  store.store().RefreshCache().Wait();
  for (items_ = 10'000; !IsDraining(store); items_ += 32) {
    store.Apply(Op::kInsert, Numbers(items_, 32));
  }
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t before = store.store().Stats().cache.hits;
    store.Apply(Op::kFind, Numbers(0, items_));
    EXPECT_GT(store.store().Stats().cache.hits - before, items_ / 4);
    store.Apply(Op::kUpdate, Numbers(0, items_ / 2), 1 + static_cast<std::uint64_t>(round));
  }
  store.store().RefreshCache().Wait();
  const std::uint64_t before = store.store().Stats().cache.hits;
  store.Apply(Op::kFind, Numbers(0, items_));
  EXPECT_EQ(store.store().Stats().cache.hits - before, items_);
  store.Reopen();
}

TEST_P(DrainingTest, OperationsOnItemsThatFindNoSlotAreFinishedAfterGrowth) {
  constexpr std::uint64_t kOthers = std::uint64_t{1} << 40;  // numbers of keys that are not there
  CreateOptions create = test::Shape(GetParam().key_size, GetParam().value_size, 1500);
  create.hash_seed = test::TestSeed();
  const std::vector<std::uint64_t> crowd = KeysOfOnePlace(create, 48);
  const auto some = [&](std::size_t from, std::size_t to) {
    return std::vector(crowd.begin() + static_cast<std::ptrdiff_t>(from),
                       crowd.begin() + static_cast<std::ptrdiff_t>(to));
  };
  for (const Op kind : {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase}) {
    for (const std::size_t operations : {20, 10'000, 30'000}) {
      if (Inserts(kind) && operations > 20) continue;  // they would make it grow first
      SCOPED_TRACE(std::string(OpName(kind)) + " " + std::to_string(operations));
      ModelledStore store(NewPath(), create, Options());
      ASSERT_EQ(store.store().Stats().geometry.candidates(), 32u);
      store.Apply(Op::kInsert, some(0, 32));
      ASSERT_FALSE(IsDraining(store));
      store.Apply(Op::kInsert, some(32, 33));  // finds no slot, and the table grows
      ASSERT_TRUE(IsDraining(store));
      store.Apply(Op::kInsert, some(33, 48));
      ASSERT_TRUE(IsDraining(store));
      // Half of the first ones are below, and all of their candidates are taken.
      const std::uint64_t newest = store.store().Stats().level_buckets[0];
      TestBatch batch = store.NewBatch();
      for (std::size_t i = 0; i < 32; i += 2) batch.Add(kind, crowd[i], 7);
      for (std::uint64_t i = 0; batch.size() < operations; ++i) batch.Add(kind, kOthers + i, 9);
      batch.ApplySingle(store.store(), kind);
      batch.Compare(store.model());
      EXPECT_FALSE(IsDraining(store));
      EXPECT_GT(store.store().Stats().level_buckets[0], newest) << "there is a further level";
      store.ExpectContents();
      store.Apply(Op::kFind, crowd);
      store.Reopen();
    }
  }
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const Case& shape = info.param;
  return "Keys" + std::to_string(shape.key_size) + "Values" + std::to_string(shape.value_size) +
         (shape.directory ? "Directory" : "") + (shape.limited ? "Limited" : "") + "Growth" +
         std::to_string(static_cast<int>(100 * shape.growth));
}

INSTANTIATE_TEST_SUITE_P(Stores, DrainingTest,
                         testing::Values(Case{8, 8, false, 2}, Case{8, 64, false, 1.2},
                                         Case{32, 24, false, 3}, Case{8, 64, true, 2},
                                         Case{32, 8, true, 1.1}, Case{8, 64, true, 2, true}),
                         NameOf);

}  // namespace
}  // namespace gpm
