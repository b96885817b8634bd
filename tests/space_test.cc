// Space by need: a batch makes the pool grow by what it really writes, free cells go where they are
// needed, and a full pool can still be updated and erased.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <vector>

#include "engine/cpu/batch_task.h"
#include "engine/store_impl.h"
#include "pm/pool.h"
#include "tests/file_size_limit.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ErrorOf;
using test::FileSizeLimit;
using test::TestExecutor;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class SpaceTest : public test::PoolTest {
 protected:
  Store Make(std::uint32_t value_size, std::uint64_t max_bytes = 0) {
    path_ = NewPath();
    value_size_ = value_size;
    CreateOptions create;
    create.value_size = value_size;
    return Store::Create(path_, create, test::TestOpenOptions(max_bytes));
  }
  /// Applies one kind to keys [first, first + n), or all to one key. @return the results
  std::vector<Result> Apply(Store& store, Op op, std::uint64_t first, std::size_t n,
                            bool mixed = false, bool one_key = false) {
    std::vector<std::uint64_t> keys(n, first);
    if (!one_key) std::iota(keys.begin(), keys.end(), first);
    const std::vector<Op> ops(mixed ? n : 0, op);
    const bool writes = op != Op::kFind && op != Op::kErase;
    std::vector<std::byte> values(writes ? n * value_size_ : 0);
    for (std::size_t i = 0; i < n && writes; ++i) {
      std::memcpy(&values[i * value_size_], &keys[i], std::min<std::size_t>(8, value_size_));
    }
    std::vector<Result> results(n, Result::kInvalid);
    store.Apply({.op = op,
                 .ops = ops,
                 .keys = std::as_bytes(std::span(keys)),
                 .values = values,
                 .found = {},
                 .results = results});
    return results;
  }
  static std::size_t Count(const std::vector<Result>& results, Result result) {
    return static_cast<std::size_t>(std::count(results.begin(), results.end(), result));
  }
  /// Inserts batches of new keys until one finds no room. @return items
  std::uint64_t Fill(Store& store, std::uint64_t first, std::size_t batch) {
    std::uint64_t items = 0;
    for (;;) {
      const auto results = Apply(store, Op::kInsert, first, batch);
      items += Count(results, Result::kOk);
      first += batch;
      if (Count(results, Result::kNoSpace) > 0) return items;
    }
  }
  const std::string& path() const { return path_; }

 protected:
  std::string path_;
  std::uint32_t value_size_ = 0;
};

TEST_F(SpaceTest, FindsOfAMixedBatchTakeNoSpace) {
  Store store = Make(128);
  Apply(store, Op::kInsert, 1, 100);
  const std::uint64_t before = store.Stats().pm_bytes;
  for (int k = 0; k < 3; ++k) Apply(store, Op::kFind, 1, 500'000, true);
  EXPECT_LE(store.Stats().pm_bytes, before + kMiB);
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
}

TEST_F(SpaceTest, ErasesOfAbsentKeysTakeNoSpace) {
  Store store = Make(65536, 64 * kMiB);
  Apply(store, Op::kErase, 1, 60'000, true);
  EXPECT_LE(store.Stats().pm_bytes, 8 * kMiB);
  EXPECT_GE(Fill(store, 1, 100), 900u);
}

TEST_F(SpaceTest, UpsertsOfOneKeyTakeAFewCells) {
  for (const bool mixed : {false, true}) {
    Store store = Make(1024);
    const auto results = Apply(store, Op::kUpsert, 7, 100'000, mixed, true);
    EXPECT_EQ(Count(results, Result::kOk), results.size());
    const StoreStats stats = store.Stats();
    EXPECT_EQ(stats.items, 1u);
    EXPECT_LE(stats.pm_bytes, 2 * kMiB);
    store.Close();
  }
}

TEST_F(SpaceTest, AsMuchFitsAfterABatchThatWroteNothing) {
  Store first = Make(128, 32 * kMiB);
  const std::uint64_t fits = Fill(first, 1, 10'000);
  first.Close();
  Store second = Make(128, 32 * kMiB);
  Apply(second, Op::kFind, 1, 200'000, true);
  EXPECT_GE(Fill(second, 1, 10'000) * 100, fits * 95);
  second.Close();
  EXPECT_TRUE(CheckPool(path()).defects.empty());
}

TEST_F(SpaceTest, AFullPoolIsUpdatedAndErased) {
  Store store = Make(256, 16 * kMiB);
  const std::uint64_t items = Fill(store, 1, 5'000);
  ASSERT_GT(items, 30'000u);
  EXPECT_GT(Count(Apply(store, Op::kInsert, 1 << 20, 1), Result::kNoSpace), 0u);
  for (const bool mixed : {false, true}) {
    EXPECT_EQ(Count(Apply(store, Op::kUpdate, 1, items, mixed), Result::kOk) +
                  Count(Apply(store, Op::kUpdate, items + 1, items, mixed), Result::kOk),
              items);
  }
  EXPECT_EQ(Count(Apply(store, Op::kInsert, 1 << 20, 1000), Result::kOk), 0u)
      << "cells that are kept for updates are not for inserts";
  EXPECT_EQ(Count(Apply(store, Op::kErase, 1, 1000), Result::kOk), 1000u);
  EXPECT_EQ(Count(Apply(store, Op::kInsert, 1 << 21, 900), Result::kOk), 900u);
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
  store.Close();
  const CheckReport report = CheckPool(path());
  EXPECT_TRUE(report.defects.empty());
  EXPECT_EQ(report.items, stats.items);
}

TEST_F(SpaceTest, ALevelTakesThePlaceOfFreeCells) {
  // Large values, so that cells are most of the pool, and then far more items than there were, as
  // many as small tables hold.
  Store store = Make(4096, 0);
  Apply(store, Op::kInsert, 1, 20'000);
  Apply(store, Op::kErase, 1, 20'000);
  const std::uint64_t bytes = store.Stats().pm_bytes;
  const std::uint64_t resizes = store.Stats().resizes;
  // Slots of erased items are free again: only more items than before need levels.
  store.Reserve(60'000);  // levels for 60,000 items take less than the free cells
  EXPECT_GT(store.Stats().resizes, resizes);
  const std::uint64_t levels = 2 * 128 * 16384;
  EXPECT_LE(store.Stats().pm_bytes, bytes + 60'000 * 4200 - 20'000 * 4096 + levels);
  const auto results = Apply(store, Op::kInsert, 1, 60'000);
  EXPECT_EQ(Count(results, Result::kOk), results.size());
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
  store.Close();
  const CheckReport report = CheckPool(path());
  EXPECT_TRUE(report.defects.empty());
  EXPECT_EQ(report.items, 60'000u);
}

TEST_F(SpaceTest, ALevelThatAResizeAddsTakesThePlaceOfFreeCells) {
  // By this seed, on executor cpu, key 226 finds no slot, the resize for it finds none for some
  // item in the larger level, and adds another. (Executor cuda places and moves items in another
  // order.)
  CreateOptions create;
  create.value_size = 4096;
  create.geometry = ParseGeometry("1L-2H-2S");
  create.hash_seed = 45;
  OpenOptions open = test::TestOpenOptions();
  open.growth = 2;
  open.grow_above = 0;
  const std::string path = NewPath();
  const auto used_end = [&] {
    return UsedEnd(Pool::Open(path, {.read_only = true})->superblock());
  };
  const std::vector<std::byte> value(create.value_size);
  Store store = Store::Create(path, create, open);
  std::uint64_t key = 0;
  const auto put = [&] {
    ASSERT_EQ(store.Put(std::as_bytes(std::span(&key, 1)), value), Result::kOk);
    ++key;
  };
  while (key < 226) put();
  store.Reserve(store.Stats().capacity_slots * 4 / 5);
  store.Close();
  const std::uint64_t end = used_end();
  store = Store::Open(path, open);
  const std::uint64_t slots = store.Stats().capacity_slots;
  do {
    put();
  } while (store.Stats().resizes == 0);
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.items, key);
  EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_EQ(key, 227u);
    EXPECT_GE(stats.capacity_slots, 2 * slots);
  }
  store.Close();
  EXPECT_TRUE(CheckPool(path).defects.empty());
  EXPECT_LE(used_end(), end);
}

TEST_F(SpaceTest, CompactGivesBackWhatItemsDoNotNeed) {
  struct Case {
    std::uint32_t key_size;
    std::uint32_t value_size;
    const char* geometry;
    double growth;
  };
  for (const Case& c : {Case{8, 128, "2L-2H-8S", 2}, Case{8, 8, "2L-2H-8S", 2},
                        Case{32, 24, "4L-2H-4S", 1.25}, Case{16, 3000, "1L-2H-16S", 1.5}}) {
    SCOPED_TRACE(testing::Message() << "keys of " << c.key_size << ", values of " << c.value_size
                                    << ", " << c.geometry << ", growth " << c.growth);
    CreateOptions create;
    create.key_size = c.key_size;
    create.value_size = c.value_size;
    create.geometry = ParseGeometry(c.geometry);
    OpenOptions open = test::TestOpenOptions();
    open.growth = c.growth;
    const std::uint64_t n = c.value_size > 1000 ? 20'000 : 200'000;
    test::ModelledStore store(NewPath(), create, open);
    store.store().Compact();  // of nothing
    store.Apply(Op::kInsert, test::Numbers(0, n));
    store.Apply(Op::kUpdate, test::Numbers(0, n / 2), 7);
    const StoreStats full = store.store().Stats();
    const auto file_bytes = [&] { return std::filesystem::file_size(store.path()); };
    std::vector<std::uint64_t> erased;
    for (std::uint64_t i = 0; i < n; ++i) {
      if (i % 20 != 3) erased.push_back(i);
    }
    store.Apply(Op::kErase, erased);
    EXPECT_EQ(store.store().Stats().pm_bytes, full.pm_bytes);
    store.store().Compact();
    const StoreStats compact = store.store().Stats();
    EXPECT_EQ(compact.items, n / 20);
    EXPECT_LE(compact.capacity_slots * 8, full.capacity_slots);
    EXPECT_LE(compact.pm_bytes, full.pm_bytes * 12 / 100 + (std::uint64_t{4} << 20));
    EXPECT_EQ(compact.pm_bytes_given_back, full.pm_bytes - compact.pm_bytes);
    EXPECT_EQ(file_bytes(), compact.pm_bytes);
    store.ExpectContents();
    store.Apply(Op::kFind, test::Numbers(0, n));
    const std::uint64_t before = file_bytes();
    store.store().Compact();  // nothing is left to give back
    EXPECT_EQ(file_bytes(), before);
    store.Reopen();
    store.Apply(Op::kUpsert, test::Numbers(0, n / 4), 9);  // it grows again
    store.store().Reserve(n);
    store.store().Compact();
    EXPECT_GE(store.store().Stats().capacity_slots, n) << "what was reserved stays";
    store.Apply(Op::kErase, test::Numbers(0, n / 4));
    store.Reopen();
    store.store().Compact();
    store.Reopen();
  }
}

TEST_F(SpaceTest, SegmentsWithoutACellCountAsNothing) {
  // Large values: the gap that a level leaves becomes part of a segment, and holds no cell.
  Store store = Make(70'000);
  ASSERT_EQ(Count(Apply(store, Op::kInsert, 0, 800), Result::kOk), 800u);
  Apply(store, Op::kErase, 0, 20);
  store.Compact();
  const StoreStats stats = store.Stats();
  store.Close();
  const CheckReport report = CheckPool(path());
  EXPECT_EQ(report.value_cells, stats.value_cells);
  EXPECT_EQ(report.cells_in_use, 780u);
}

/// What a pool takes beyond its items and levels: free cells, gaps, and what lies behind the last.
std::uint64_t BytesBesideItems(const StoreStats& stats) {
  std::uint64_t used =
      InlineValues(stats.value_size) ? 0 : stats.items * CellBytes(stats.value_size);
  for (const std::uint64_t buckets : stats.level_buckets) {
    used += buckets * BucketBytes(stats.key_size, stats.geometry);
  }
  return stats.pm_bytes - used;
}

TEST_F(SpaceTest, CompactLeavesNoHoles) {
  // Levels and cells lie side by side afterwards, wherever the levels lay: what is free is less
  // than a step of growth, beside the cells that are to stay free. So nothing would be gained by
  // punching holes.
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t value_size : {8u, 128u, 1000u}) {
    for (int round = 0; round < 8; ++round) {
      CreateOptions create;
      create.value_size = value_size;
      if (round % 4 == 3) create.initial_capacity = 30'000;
      OpenOptions open = test::TestOpenOptions();
      open.growth = round % 2 == 0 ? 2 : 1.25;
      value_size_ = value_size;
      Store store = Store::Create(NewPath(), create, open);
      const std::uint64_t n = (12'000 + random() % 36'000) * (value_size == 8 ? 8 : 1);
      for (std::uint64_t first = 0; first < n; first += 3000)
        Apply(store, Op::kInsert, first, 3000);
      const std::uint64_t items = store.Stats().items;
      const std::uint64_t erased = items * (10 + random() % 86) / 100;
      Apply(store, Op::kErase, random() % (items - erased), erased);
      store.Reserve(0);
      store.Compact();
      const StoreStats stats = store.Stats();
      SCOPED_TRACE(testing::Message()
                   << "values of " << value_size << ", growth " << open.growth << ", " << items
                   << " items, " << erased << " erased, load factor " << stats.load_factor);
      const std::uint64_t beside = BytesBesideItems(stats);
      const std::uint64_t free_cells = stats.free_cells * CellBytes(value_size);
      if (value_size > 8) {
        EXPECT_LE(stats.free_cells, stats.items / 20 + 200);
      }
      EXPECT_LE(beside - free_cells, stats.pm_bytes / 32 + 2 * kMiB + kMiB / 16);
      EXPECT_LE(stats.pm_bytes_free, stats.pm_bytes / 32 + 2 * kMiB);
      store.Compact();
      EXPECT_EQ(store.Stats().pm_bytes, stats.pm_bytes);
    }
  }
}

/// What a store takes of its executor's memory, but for what batches take.
std::uint64_t MemoryBytes(const StoreStats& stats) {
  return stats.queue_bytes + stats.cache.directory_bytes + stats.cache.bytes;
}

TEST_F(SpaceTest, ATwentiethOfTheItemsTakesAnEighthOfFileAndMemoryAtMost) {
  CreateOptions create;
  create.value_size = value_size_ = 128;
  OpenOptions open = test::TestOpenOptions();
  open.growth = 1.25;
  open.cache.directory = true;
  path_ = NewPath();
  Store store = Store::Create(path_, create, open);
  constexpr std::uint64_t kItems = 300'000;
  constexpr std::uint64_t kBatch = 10'000;
  for (std::uint64_t k = 0; k < kItems; k += kBatch) Apply(store, Op::kInsert, k, kBatch);
  store.impl()->AwaitReadyRoom();
  const auto allocated = [&] {
    struct stat status {};
    EXPECT_EQ(stat(path_.c_str(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  };
  const StoreStats full = store.Stats();
  const std::uint64_t file = allocated();
  EXPECT_GE(file, kItems * 128);
  for (std::uint64_t k = kItems / 20; k < kItems; k += kBatch) {
    Apply(store, Op::kErase, k, std::min(kBatch, kItems - k));
  }
  store.Compact();
  const StoreStats small = store.Stats();
  EXPECT_EQ(small.items, kItems / 20);
  EXPECT_LE(allocated() * 100, file * 12);
  EXPECT_LE(small.pm_bytes * 100, full.pm_bytes * 12);
  EXPECT_EQ(small.pm_bytes_given_back, full.pm_bytes - small.pm_bytes);
  EXPECT_LE(MemoryBytes(small) * 100, MemoryBytes(full) * 12);
  if (TestExecutor() == ExecutorKind::kCuda) {
    EXPECT_LT(small.gpu_bytes, full.gpu_bytes);
  }
  // It grows again.
  for (std::uint64_t k = 0; k < kItems; k += kBatch) Apply(store, Op::kUpsert, k, kBatch);
  EXPECT_EQ(Count(Apply(store, Op::kFind, 0, kItems), Result::kOk), kItems);
  EXPECT_GE(MemoryBytes(store.Stats()) * 2, MemoryBytes(full));
}

TEST_F(SpaceTest, BytesOfPoolForAnItemWhileItGrows) {
  CreateOptions create;
  create.value_size = value_size_ = 128;
  OpenOptions open = test::TestOpenOptions();
  open.growth = 1.25;
  Store store = Store::Create(NewPath(), create, open);
  // 128 of its value; 16 for each slot, of which there are most while a level is added: 35; 6 of
  // free cells and room that is ready. And each of its parts is rounded up to 2 MiB.
  constexpr std::uint64_t kBytesOfItem = 170;
  for (std::uint64_t items = 0; items < 400'000;) {
    Apply(store, Op::kInsert, items, 1000);
    items += 1000;
    const StoreStats stats = store.Stats();
    ASSERT_EQ(stats.items, items);
    ASSERT_LE(stats.pm_bytes, items * kBytesOfItem + 6 * kMiB)
        << items << " items, load factor " << stats.load_factor << ", " << stats.free_cells
        << " free cells, bytes ready " << stats.pm_bytes_ready << ", free " << stats.pm_bytes_free;
  }
}

TEST_F(SpaceTest, CompactNeverMakesThePoolLarger) {
  for (const std::uint32_t value_size : {8u, 64u}) {
    for (const std::uint64_t capacity : {0, 100'000}) {
      for (const unsigned keep : {1, 4, 8, 12, 16, 20}) {  // of 20
        SCOPED_TRACE(testing::Message() << "values of " << value_size << ", capacity " << capacity
                                        << ", " << keep << " of 20 kept");
        CreateOptions create;
        create.value_size = value_size;
        create.initial_capacity = capacity;
        test::ModelledStore store(NewPath(), create, test::TestOpenOptions());
        store.Apply(Op::kInsert, test::Numbers(0, 100'000));
        std::vector<std::uint64_t> erased;
        for (std::uint64_t i = 0; i < 100'000; ++i) {
          if (i % 20 >= keep) erased.push_back(i);
        }
        store.Apply(Op::kErase, erased);
        store.Reopen();  // what was reserved is forgotten
        const StoreStats full = store.store().Stats();
        store.store().Compact();
        const StoreStats compact = store.store().Stats();
        EXPECT_LE(compact.pm_bytes, full.pm_bytes);
        EXPECT_LE(compact.pm_bytes_given_back, full.pm_bytes);
        EXPECT_LE(compact.capacity_slots, std::max<std::uint64_t>(3 * compact.items, 1000));
        const std::uint64_t slot_bytes = compact.capacity_slots * 16;
        const std::uint64_t cell_bytes = value_size == 8 ? 0 : compact.items * 64 * 5 / 4;
        EXPECT_LE(compact.pm_bytes, slot_bytes * 3 / 2 + cell_bytes + (std::uint64_t{4} << 20));
        store.store().Compact();
        EXPECT_EQ(store.store().Stats().pm_bytes, compact.pm_bytes);
        store.Reopen();
      }
    }
  }
}

/// Who asks for a batch while the store compacts sees smaller levels in a pool that is still large.
TEST_F(SpaceTest, CompactLetsBatchesRunBetweenItsTurns) {
  CreateOptions create;
  create.value_size = 100;
  test::ModelledStore store(NewPath(), create, test::TestOpenOptions());
  constexpr std::uint64_t kItems = 20'000;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> full_slots{0};  // while it compacts
  std::atomic<std::uint64_t> full_bytes{0};
  std::atomic<bool> seen{false};
  std::thread beside([&] {
    std::vector<std::byte> key(8, std::byte{0xEE}), value(100);  // of no item
    while (!stop) {
      EXPECT_FALSE(store.store().Get(key, value));
      const StoreStats stats = store.store().Stats();
      if (stats.capacity_slots < full_slots && stats.pm_bytes >= full_bytes) seen = true;
    }
  });
  for (int round = 0; round < 300 && !seen; ++round) {
    store.Apply(Op::kInsert, test::Numbers(0, kItems));
    store.Apply(Op::kErase, test::Numbers(1000, kItems - 1000));
    const StoreStats full = store.store().Stats();
    full_bytes = full.pm_bytes;
    full_slots = full.capacity_slots;
    store.store().Compact();
    full_slots = 0;
    EXPECT_LT(store.store().Stats().pm_bytes, full.pm_bytes);
  }
  stop = true;
  beside.join();
  EXPECT_TRUE(seen);
}

TEST_F(SpaceTest, CompactWhileBatchesGoOn) {
  CreateOptions create;
  create.value_size = 100;
  test::ModelledStore store(NewPath(), create, test::TestOpenOptions());
  store.Apply(Op::kInsert, test::Numbers(0, 20'000));
  store.Apply(Op::kErase, test::Numbers(5'000, 15'000));
  std::atomic<bool> stop{false};
  std::thread compacting([&] {
    while (!stop) store.store().Compact();
  });
  for (std::uint64_t round = 0; round < 30; ++round) {
    store.Apply(Op::kUpsert, test::Numbers(round * 500, 4'000), round);
    store.Apply(Op::kFind, test::Numbers(0, 20'000));
    store.Apply(Op::kErase, test::Numbers(round * 300, 2'000));
  }
  stop = true;
  compacting.join();
  store.Reopen();
}

TEST_F(SpaceTest, CompactsByItselfWhereItIsTo) {
  CreateOptions create;
  create.value_size = 100;
  OpenOptions open = test::TestOpenOptions();
  open.compact_below = 0.5;
  EXPECT_EQ(test::ErrorOf([&] { Store::Create(NewPath(), create, open); }),
            ErrorCode::kInvalidArgument);
  open.compact_below = 0.3;
  test::ModelledStore store(NewPath(), create, open);
  store.Apply(Op::kInsert, test::Numbers(0, 50'000));
  const StoreStats full = store.store().Stats();
  for (std::uint64_t first = 0; first < 49'000; first += 1000) {
    store.Apply(Op::kErase, test::Numbers(first, 1000));
    const StoreStats stats = store.store().Stats();
    EXPECT_GE(stats.load_factor, 0.3) << stats.items;
  }
  const StoreStats small = store.store().Stats();
  EXPECT_LT(small.capacity_slots * 10, full.capacity_slots);
  EXPECT_LT(small.pm_bytes, full.pm_bytes);
  store.Apply(Op::kErase, test::Numbers(49'000, 1000));
  EXPECT_GT(store.store().Stats().pm_bytes_given_back, 0u);
  store.Apply(Op::kInsert, test::Numbers(0, 50'000));
  store.Reopen(open);
  // A ticket may be waited for when the store is closed.
  test::TestBatch erases = store.NewBatch();
  for (std::uint64_t i = 0; i < 49'000; ++i) erases.Add(Op::kErase, i, 0);
  Ticket ticket = store.store().ApplyAsync(erases.Mixed());
  store.store().Close();
  ticket.Wait();
  ticket.Wait();
}

TEST_F(SpaceTest, DoesNotCompactInVainAgainAndAgain) {
  const std::string path = NewPath();
  CreateOptions create;
  create.value_size = 8;
  create.initial_capacity = 100'000;
  unsigned compacted = 0;
  OpenOptions open = test::TestOpenOptions();
  Store::Create(path, create, open).Close();
  open.max_bytes = std::filesystem::file_size(path);  // and so no room for smaller levels beside
  open.compact_below = 0.4;
  open.log = [&](LogLevel, std::string_view line) {
    compacted += line.find("compacted") != line.npos ? 1 : 0;
  };
  Store store = Store::Open(path, open);
  std::vector<std::uint64_t> keys(40'000);
  std::iota(keys.begin(), keys.end(), 10);
  std::vector<std::byte> values(8 * keys.size());
  std::vector<Result> results(keys.size());
  EXPECT_EQ(store.Insert(std::as_bytes(std::span(keys)), values, results), 0u);
  for (std::size_t i = 0; i < 500; ++i) {
    EXPECT_EQ(
        store.Erase(std::as_bytes(std::span(keys).subspan(i, 1)), std::span(results).first(1)), 0u);
  }
  EXPECT_LE(compacted, 2u);
}

TEST(TakeShare, GivesEachWorkerACellForEachOperationAndAllInTheEnd) {
  std::mt19937_64 random(test::TestSeed());
  for (int round = 0; round < 10'000; ++round) {
    std::vector<std::uint64_t> lists(1 + random() % 8);
    for (std::uint64_t& list : lists) list = random() % 100;
    lists.back() += 1;
    std::uint64_t left = std::accumulate(lists.begin(), lists.end(), std::uint64_t{0});
    CellGrant rest{17, random() % 2 == 0 ? left : random() % (left + 1), 0};
    rest.kept = random() % (rest.count + 1);
    const bool enough = rest.count == left;
    for (const std::uint64_t own : lists) {
      const CellGrant before = rest;
      const CellGrant taken = TakeShare(&rest, own, left);
      EXPECT_EQ(taken.first, before.first);
      EXPECT_LE(taken.kept, taken.count);
      EXPECT_LE(taken.count, own);
      EXPECT_LE(rest.kept, rest.count);
      if (enough) {
        EXPECT_EQ(taken.count, own);
      }
      if (own > 0 && before.count > before.kept) {
        EXPECT_GT(taken.count, taken.kept);
      }
      EXPECT_EQ(rest.first, before.first + taken.count);
      EXPECT_EQ(rest.count + taken.count, before.count);
      EXPECT_EQ(rest.kept + taken.kept, before.kept);
      left -= own;
    }
    EXPECT_EQ(rest.count, 0u);
  }
}

TEST_F(SpaceTest, ATicketOfABatchThatLackedRoomOutlivesTheStore) {
  Store store = Make(64);
  const std::size_t n = 20'000;
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 1);
  const std::vector<std::byte> values(n * 64);
  std::vector<Result> results(n, Result::kInvalid);
  Ticket ticket = store.ApplyAsync({.op = Op::kInsert,
                                    .ops = {},
                                    .keys = std::as_bytes(std::span(keys)),
                                    .values = values,
                                    .found = {},
                                    .results = results});
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_GT(Count(results, Result::kNoSpace), 0u) << "what is not done does not read as done";
  }
  store.Close();
  ticket.Wait();
  EXPECT_EQ(results, std::vector(n, Result::kOk));
  EXPECT_EQ(CheckPool(path()).items, n);
}

TEST(FindFreeCells, TakesTheSmallestRunThatDoesOrThePoolsEnd) {
  Superblock superblock{};
  superblock.key_size = 8;
  superblock.value_size = 1024;
  superblock.geometry = Geometry{};
  LayLevels(&superblock, {2, 2}, 16 * kPageBytes);
  superblock.segment_count = 1;
  superblock.segments[0] = {100 * kPageBytes, 100 * kPageBytes};  // cells 400 to 799
  std::vector<std::uint32_t> used(25);
  const auto use = [&](std::uint32_t cell) { used[cell / 32] |= 1u << (cell % 32); };
  const auto find = [&](std::uint64_t pages) {
    return FindFreeCells(superblock, used, pages * kPageBytes);
  };
  use(410);
  use(500);
  use(740);
  // Free: pages 100 to 101, 103 to 124, 126 to 184, 186 to 199.
  EXPECT_EQ(find(20).offset, 103 * kPageBytes);
  EXPECT_EQ(find(20).bytes, 20 * kPageBytes);
  EXPECT_EQ(find(2).offset, 100 * kPageBytes);
  EXPECT_EQ(find(40).offset, 126 * kPageBytes);
  EXPECT_EQ(find(10).offset, 190 * kPageBytes) << "at the segment's end";
  EXPECT_EQ(find(60).offset, 186 * kPageBytes) << "no run does: the pool's end";
  EXPECT_EQ(find(60).bytes, 14 * kPageBytes);
  use(799);
  EXPECT_EQ(find(60).bytes, 0u);
}

TEST_F(SpaceTest, PagesOfASegmentAreTakenOutOfIt) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "no CUDA device is used";
  const std::string path = NewPath();
  PoolConfig config;
  config.value_size = 1024;
  config.levels = {2, 2};
  auto pool = Pool::Create(path, config, {});
  const Extent added = pool->AddSegment(1000);
  const std::uint64_t end = UsedEnd(pool->superblock());
  const auto segments = [&] { return pool->superblock().segment_count; };
  pool->RemoveCells({added.offset + 10 * kPageBytes, 5 * kPageBytes});
  EXPECT_EQ(segments(), 2u);
  EXPECT_EQ(LargestGap(pool->superblock()).bytes, 5 * kPageBytes);
  pool->RemoveCells({added.offset, 10 * kPageBytes});
  EXPECT_EQ(segments(), 1u);
  pool->RemoveCells({end - 2 * kPageBytes, 2 * kPageBytes});
  EXPECT_EQ(UsedEnd(pool->superblock()), end - 2 * kPageBytes);
  EXPECT_EQ(ErrorOf([&] {
              pool->RemoveCells({added.offset, kPageBytes});
            }),
            ErrorCode::kInvalidArgument);
  const Extent rest{added.offset + 15 * kPageBytes, end - 17 * kPageBytes - added.offset};
  pool->RemoveCells(rest);
  EXPECT_EQ(segments(), 0u);
  EXPECT_EQ(LayoutDefect(pool->superblock(), pool->mapping().file_bytes()), "");
}

TEST_F(SpaceTest, AFullPoolOfAnyGeometryIsReadAndOpenedAgain) {
  // Few candidate slots: draining a level would often need one more than there is room for.
  constexpr Geometry kGeometries[] = {{1, 1, 1}, {1, 1, 8}, {1, 2, 2}, {1, 2, 4},
                                      {2, 1, 2}, {2, 1, 8}, {2, 2, 1}, {2, 2, 8}};
  const std::uint64_t step = TestExecutor() == ExecutorKind::kCuda ? 450 : 72;  // KiB
  value_size_ = 8;
  for (const Geometry geometry : kGeometries) {
    for (const double growth : {1.1, 1.25, 2.0}) {
      for (std::uint64_t max_kib = 128; max_kib < 1000; max_kib += step) {
        SCOPED_TRACE(testing::Message()
                     << geometry.levels << "L-" << geometry.locations << "H-" << geometry.slots
                     << "S, growth " << growth << ", " << max_kib << " KiB");
        OpenOptions open = test::TestOpenOptions();
        open.growth = growth;
        open.max_bytes = max_kib << 10;
        CreateOptions create = test::Shape(8, 8);
        create.geometry = geometry;
        const std::string path = NewPath();
        Store store = Store::Create(path, create, open);
        const std::uint64_t items = Fill(store, 0, 200);
        EXPECT_EQ(Count(Apply(store, Op::kFind, 0, items + 400), Result::kOk), items);
        store.Close();
        store = Store::Open(path, open);
        EXPECT_EQ(store.Stats().items, items);
        store.Close();
        std::filesystem::remove(path);
      }
    }
  }
}

TEST_F(SpaceTest, AFullMediumIsToldOfOnceUntilThereIsRoomAgain) {
  int told = 0;
  std::string last;
  OpenOptions open = test::TestOpenOptions();
  open.log = [&](LogLevel level, std::string_view message) {
    if (message.find("no room to grow by ") == std::string::npos) return;
    EXPECT_EQ(level, LogLevel::kWarning);
    ++told;
    last = message;
  };
  const std::string path = NewPath();
  Make(100).Close();  // which sets the size of values
  Store store = Store::Create(path, test::Shape(8, 100), open);
  std::uint64_t first = 0;
  const auto fill = [&](std::uint64_t bytes) {
    const FileSizeLimit limit(bytes);
    first += 1'000'000;
    Fill(store, first, 1000);
    const auto results = Apply(store, Op::kInsert, first + 500'000, 1000);
    EXPECT_GT(Count(results, Result::kNoSpace), 0u);  // (slots may be short before cells are)
  };
  fill(4 * kMiB);
  EXPECT_EQ(told, 1) << "though two batches lacked room";
  EXPECT_NE(last.find("ulimit -f"), std::string::npos) << last;
  fill(8 * kMiB);
  EXPECT_EQ(told, 2);
  store.Close();
  // A pool that has its own maximum has nothing to tell of the medium.
  open.max_bytes = 16 * kMiB;
  store = Store::Open(path, open);
  Fill(store, 100'000'000, 1000);
  EXPECT_EQ(told, 2);
}

TEST_F(SpaceTest, ReserveSaysWhatTheMediumHasRoomFor) {
  Store store = Make(100);
  const FileSizeLimit limit(8 * kMiB);
  std::string message;
  EXPECT_EQ(ErrorOf([&] { store.Reserve(1'000'000); }, &message), ErrorCode::kNoSpace);
  const std::string before = "medium has room for ";
  const std::size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  const std::uint64_t room = std::stoull(message.substr(at + before.size()));
  EXPECT_GT(room, 6 * kMiB) << message;
  EXPECT_LT(room, 8 * kMiB) << message;
}

TEST_F(SpaceTest, ALimitOfTheFileSizeIsWantOfSpaceAndNoSignal) {
  std::uint64_t items = 0;
  {
    const FileSizeLimit limit(4 * kMiB);
    Store store = Make(100);
    items = Fill(store, 0, 1000);
    EXPECT_EQ(store.Stats().items, items);
    store.Close();
    std::string message;
    EXPECT_EQ(ErrorOf(
                  [&] {
                    Store::Create(NewPath(), test::Shape(8, 100, 1'000'000),
                                  test::TestOpenOptions());
                  },
                  &message),
              ErrorCode::kNoSpace);
    EXPECT_NE(message.find("ulimit -f"), std::string::npos) << message;
  }
  EXPECT_GT(items, 1000u);
  test::ExpectSound(path(), items);
}

}  // namespace
}  // namespace gpm
