// How a table gets larger: by itself, by a factor, as Reserve, BulkLoad and the initial capacity
// ask.

#include <algorithm>

#include "tests/test_util.h"

namespace gpm::test {
namespace {

class GrowthTest : public PoolTest {};

TEST_F(GrowthTest, GrowsFromTinyByManyResizes) {
  for (const std::uint32_t key_size : {8u, 32u}) {
    for (const std::uint32_t value_size : {8u, 128u}) {
      SCOPED_TRACE(key_size);
      ModelledStore store(NewPath(), Shape(key_size, value_size), TestOpenOptions());
      const std::uint64_t capacity = store.store().Stats().capacity_slots;
      EXPECT_LT(capacity, 2000u);
      std::uint64_t next = 0;
      for (const std::uint64_t size : {1, 10, 100, 1000, 10000, 30000}) {
        store.Apply(Op::kInsert, Numbers(next, size));
        next += size;
        const StoreStats stats = store.store().Stats();
        EXPECT_EQ(stats.items, next);
        EXPECT_EQ(stats.capacity_slots, SlotsOf(stats.geometry, stats.level_buckets));
        EXPECT_LE(stats.level_buckets.size(), stats.geometry.levels + 1u);
        EXPECT_LE(stats.items, stats.capacity_slots);
      }
      const StoreStats stats = store.store().Stats();
      EXPECT_GE(stats.resizes, 4u);
      EXPECT_GT(stats.load_factor, 0.4);
      store.Apply(Op::kFind, Numbers(0, next + 100));
      store.Reopen();
      EXPECT_EQ(store.store().Stats().resizes, 0u);  // since open
      store.Apply(Op::kErase, Numbers(0, next));
      store.Reopen();
    }
  }
}

TEST_F(GrowthTest, GrowsByTheFactorThatItIsOpenedWith) {
  const std::string path = NewPath();
  OpenOptions open = TestOpenOptions();
  open.growth = 1.25;
  ModelledStore store(path, Shape(8, 24), open);
  std::uint64_t next = 0;
  for (const double growth : {1.25, 3.0, 1.1, 2.0, 1.5, 4.0}) {
    SCOPED_TRACE(growth);
    open.growth = growth;
    store.Reopen(open);
    StoreStats before = store.store().Stats();
    for (int batch = 0; batch < 40; ++batch) {
      store.Apply(Op::kInsert, Numbers(next, 50 + next / 32));
      next += 50 + next / 32;
      const StoreStats after = store.store().Stats();
      if (after.resizes == before.resizes) {
        ASSERT_EQ(after.level_buckets[0], before.level_buckets[0]);
        ASSERT_LE(after.level_buckets.size(), before.level_buckets.size());
        ASSERT_GE(after.level_buckets.size(), after.geometry.levels);
      } else if (after.resizes == before.resizes + 1 &&
                 after.level_buckets[1] == before.level_buckets[0]) {  // by one level
        const double factor = static_cast<double>(after.level_buckets[0]) /
                              static_cast<double>(before.level_buckets[0]);
        EXPECT_NEAR(factor, growth, 0.03);
      }
      before = after;
      if (before.resizes == 3) break;
    }
    EXPECT_GE(before.resizes, 1u);
    store.Apply(Op::kErase, Numbers(next / 2, 100));
  }
  for (const double growth : {1.0, 0.5, 5.0}) {
    open.growth = growth;
    EXPECT_EQ(test::ErrorOf([&] { Store::Create(NewPath(), Shape(8, 24), open); }),
              ErrorCode::kInvalidArgument);
    store.store().Close();
    EXPECT_EQ(test::ErrorOf([&] { Store::Open(path, open); }), ErrorCode::kInvalidArgument);
  }
}

TEST_F(GrowthTest, InitialCapacityFitsWithoutResizing) {
  for (const std::uint64_t capacity : {1000, 100000}) {
    ModelledStore store(NewPath(), Shape(8, 8, capacity), TestOpenOptions());
    for (std::uint64_t i = 0; i < capacity; i += 1000) store.Apply(Op::kInsert, Numbers(i, 1000));
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.resizes, 0u);
    EXPECT_LT(stats.capacity_slots, 5 * capacity);
  }
}

TEST_F(GrowthTest, ReserveMakesRoomAtOnce) {
  for (const std::uint32_t value_size : {8u, 128u}) {
    ModelledStore store(NewPath(), Shape(8, value_size), TestOpenOptions());
    store.Apply(Op::kInsert, Numbers(0, 500));
    const std::uint64_t resizes = store.store().Stats().resizes;
    store.store().Reserve(100'000);
    const StoreStats reserved = store.store().Stats();
    EXPECT_EQ(reserved.items, 500u);
    EXPECT_EQ(reserved.resizes, resizes + 1);
    EXPECT_EQ(reserved.level_buckets.size(), reserved.geometry.levels);
    if (value_size == 128) {
      EXPECT_GE(reserved.free_cells, 99'500u);
    }
    store.ExpectContents();
    store.store().Reserve(100'000);  // there is room already
    store.store().Reserve(0);
    store.Apply(Op::kInsert, Numbers(500, 99'500));
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.resizes, reserved.resizes);
    EXPECT_EQ(stats.value_cells, reserved.value_cells);
    store.Reopen();
  }
}

TEST_F(GrowthTest, ReserveAddsMoreLevelsThanASuperblockHasEntriesFor) {
  OpenOptions open = TestOpenOptions();
  open.growth = 1.1;
  CreateOptions shape = Shape(8, 8);
  shape.geometry = {.levels = 32, .locations = 1, .slots = 1};
  ModelledStore store(NewPath(), shape, open);
  store.Apply(Op::kInsert, Numbers(0, 20));
  store.store().Reserve(10'000);
  EXPECT_EQ(store.store().Stats().level_buckets.size(), 32u);
  EXPECT_GE(store.store().Stats().capacity_slots, 10'000u);
  store.ExpectContents();
  store.Apply(Op::kErase, Numbers(0, 15));
  store.Reopen(open);  // which forgets what was reserved
  store.store().Compact();
  store.ExpectContents();
  EXPECT_LT(store.store().Stats().capacity_slots, 1'000u);
  store.Reopen();
}

TEST_F(GrowthTest, ReserveBeyondTheMaximumChangesNothing) {
  OpenOptions open = TestOpenOptions();
  open.max_bytes = 4 << 20;
  ModelledStore store(NewPath(), Shape(8, 128), open);
  store.Apply(Op::kInsert, Numbers(0, 500));
  const StoreStats before = store.store().Stats();
  for (const std::uint64_t items : {std::uint64_t{1'000'000}, ~std::uint64_t{0}}) {
    EXPECT_EQ(test::ErrorOf([&] { store.store().Reserve(items); }), ErrorCode::kNoSpace);
  }
  EXPECT_EQ(store.store().Stats().level_buckets, before.level_buckets);
  EXPECT_EQ(store.store().Stats().value_cells, before.value_cells);
  store.Apply(Op::kInsert, Numbers(500, 500));
  store.Reopen();
}

TEST_F(GrowthTest, BulkLoad) {
  for (const bool empty : {true, false}) {
    ModelledStore store(NewPath(), Shape(16, 100), TestOpenOptions());
    if (!empty) store.Apply(Op::kInsert, Numbers(0, 3000));
    const std::uint64_t resizes = store.store().Stats().resizes;
    TestBatch batch = store.NewBatch();
    for (const std::uint64_t number : Numbers(1000, 50'000)) batch.Add(Op::kInsert, number, number);
    const Batch arrays = batch.Mixed();
    store.store().BulkLoad(arrays.keys, arrays.values, arrays.results);
    batch.Compare(store.model());
    EXPECT_EQ(store.store().Stats().resizes, resizes + 1);
    store.Reopen();
  }
  // What does not fit says so.
  OpenOptions open = TestOpenOptions();
  open.max_bytes = 2 << 20;
  ModelledStore store(NewPath(), Shape(8, 128), open);
  TestBatch batch = store.NewBatch();
  for (const std::uint64_t number : Numbers(0, 50'000)) batch.Add(Op::kInsert, number, number);
  const Batch arrays = batch.Mixed();
  store.store().BulkLoad(arrays.keys, arrays.values, arrays.results);
  batch.Compare(store.model(), true);
  EXPECT_GT(store.model().size(), 5000u);
  store.Reopen();
  EXPECT_EQ(test::ErrorOf([&] { store.store().BulkLoad(arrays.keys, {}, arrays.results); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(GrowthTest, LoadFactorAtFirstResize) {
  for (const std::uint32_t key_size : {8u, 32u}) {
    ModelledStore store(NewPath(), Shape(key_size, 8, 120000), TestOpenOptions());
    ASSERT_GE(store.store().Stats().capacity_slots, std::uint64_t{1} << 17);
    std::mt19937_64 random(TestSeed());
    double load_factor = 0;
    for (;;) {
      const double before = store.store().Stats().load_factor;
      TestBatch batch = store.NewBatch();
      for (int i = 0; i < 1024; ++i) batch.Add(Op::kInsert, random(), random());
      batch.ApplySingle(store.store(), Op::kInsert);
      if (store.store().Stats().resizes > 0) {
        load_factor = before;
        break;
      }
    }
    RecordProperty("load_factor_key" + std::to_string(key_size), std::to_string(load_factor));
    EXPECT_GE(load_factor, 0.87);
    EXPECT_LE(load_factor, 1.0);
  }
}

TEST_F(GrowthTest, ATableIsFilledFurtherByMovingItems) {
  for (const bool directory : {false, true}) {
    for (const std::uint32_t key_size : {8u, 32u}) {
      SCOPED_TRACE(std::to_string(key_size) + (directory ? ", directory" : ""));
      OpenOptions open = TestOpenOptions();
      open.cache.directory = directory;
      open.cache.fraction = directory ? 0.5 : 0;
      ModelledStore store(NewPath(), Shape(key_size, 64, 20'000), open);
      // (Beyond 0.89 it would grow; here it is to find out what moving items can do.)
      open.grow_above = 0.95;
      store.Reopen(open);
      std::uint64_t next = 0;
      while (store.store().Stats().displaced_items < 3) {
        ASSERT_EQ(store.store().Stats().resizes, 0u);
        store.Apply(Op::kInsert, Numbers(next, 64));
        next += 64;
      }
      const StoreStats stats = store.store().Stats();
      EXPECT_EQ(stats.resizes, 0u);
      EXPECT_GE(stats.load_factor, 0.84);
      EXPECT_GT(stats.displacing_seconds, 0);
      store.ExpectContents();
      for (const Op op : {Op::kFind, Op::kUpdate, Op::kErase, Op::kUpsert}) {
        store.Apply(op, Numbers(next / 2, next), 7);
      }
      store.Reopen();
    }
  }
}

TEST_F(GrowthTest, NoItemIsMovedWhereATableGrowsAtOnce) {
  OpenOptions open = TestOpenOptions();
  open.grow_above = 0;
  ModelledStore store(NewPath(), Shape(8, 64), open);
  for (std::uint64_t next = 0; next < 20'000; next += 200) {
    store.Apply(Op::kInsert, Numbers(next, 200));
  }
  EXPECT_GE(store.store().Stats().resizes, 4u);
  EXPECT_EQ(store.store().Stats().displaced_items, 0u);
  for (const double load : {-0.1, 1.01}) {
    open.grow_above = load;
    EXPECT_EQ(ErrorOf([&] { Store::Create(NewPath(), Shape(8, 64), open); }),
              ErrorCode::kInvalidArgument);
  }
}

TEST_F(GrowthTest, AfterAGrowthByAQuarterATableIsSevenTenthsFull) {
  OpenOptions open = TestOpenOptions();
  open.growth = 1.25;
  ModelledStore store(NewPath(), Shape(8, 8), open);
  double least = 1;
  std::uint64_t growths = 0;
  for (std::uint64_t next = 0; next < 100'000; next += 500) {
    const StoreStats before = store.store().Stats();
    store.Apply(Op::kInsert, Numbers(next, 500));
    const StoreStats after = store.store().Stats();
    if (after.resizes == before.resizes || before.capacity_slots < 20'000) continue;
    least = std::min(least, after.load_factor);
    ++growths;
  }
  RecordProperty("least_load_factor", std::to_string(least));
  EXPECT_GE(growths, 4u);
  EXPECT_GE(least, 0.68) << "0.71, but for chance in small tables";
}

}  // namespace
}  // namespace gpm::test
