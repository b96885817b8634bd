// Compaction: what it gives back, what it leaves, and beside what it runs.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/store_impl.h"
#include "pm/pool.h"
#include "tests/space_fixture.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ErrorOf;
using test::kMiB;
using test::TestExecutor;

using CompactionTest = test::SpaceFixture;

TEST_F(CompactionTest, CompactGivesBackWhatItemsDoNotNeed) {
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

/// Of a table with few candidate slots nobody knows how small it can be made: where there is no
/// room for a larger one, should it turn out to be too small, it stays.
TEST_F(CompactionTest, AFullPoolOfAnyGeometryStaysUsable) {
  constexpr Geometry kGeometries[] = {{1, 2, 1}, {2, 1, 1}, {4, 1, 1}, {1, 1, 4}};
  value_size_ = 8;
  for (const Geometry geometry : kGeometries) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const bool by_itself = seed % 2 == 1;
      const std::uint64_t kept_percent = seed % 4 < 2 ? 40 : 15;
      SCOPED_TRACE(testing::Message() << GeometryName(geometry) << ", seed " << seed);
      CreateOptions create = test::Shape(8, 8);
      create.geometry = geometry;
      create.hash_seed = seed;
      OpenOptions open = test::TestOpenOptions(seed < 6 ? 500'000 : 1'000'000);
      open.threads = 1;  // so that a seed gives the same table
      if (by_itself) open.compact_below = 0.4;
      Store store = Store::Create(NewPath(), create, open);
      std::uint64_t keys = 0;
      while (Count(Apply(store, Op::kInsert, keys, 256), Result::kNoSpace) <= 128) keys += 256;
      const std::uint64_t stay = keys * kept_percent / 100;
      const std::size_t kept = Count(Apply(store, Op::kFind, 0, stay), Result::kOk);
      Apply(store, Op::kErase, stay, keys + 256 - stay);
      if (!by_itself) store.Compact();
      EXPECT_EQ(Count(Apply(store, Op::kFind, 0, keys + 256), Result::kOk), kept);
      EXPECT_EQ(store.Stats().items, kept);
    }
  }
}

TEST_F(CompactionTest, SegmentsWithoutACellCountAsNothing) {
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

TEST_F(CompactionTest, CompactLeavesNoHoles) {
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

TEST_F(CompactionTest, ATwentiethOfTheItemsTakesAnEighthOfFileAndMemoryAtMost) {
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

TEST_F(CompactionTest, BytesOfPoolForAnItemWhileItGrows) {
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

TEST_F(CompactionTest, CompactNeverMakesThePoolLarger) {
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
TEST_F(CompactionTest, CompactLetsBatchesRunBetweenItsTurns) {
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

TEST_F(CompactionTest, CompactWhileBatchesGoOn) {
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

TEST_F(CompactionTest, CompactsByItselfWhereItIsTo) {
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

/// What is carried out once there is room for it leaves few items, too.
TEST_F(CompactionTest, CompactsBehindABatchThatLackedRoom) {
  for (const std::uint64_t added : {0, 100, 3000}) {
    CreateOptions create;
    create.value_size = 16;
    OpenOptions open = test::TestOpenOptions();
    open.compact_below = 0.3;
    test::ModelledStore store(NewPath(), create, open);
    store.Apply(Op::kInsert, test::Numbers(0, 20'000));
    test::TestBatch batch = store.NewBatch();
    for (std::uint64_t i = 0; i < 20'000; ++i) batch.Add(Op::kErase, i, 0);
    for (std::uint64_t i = 0; i < added; ++i) batch.Add(Op::kInsert, 100'000 + i, i);
    store.store().Apply(batch.Mixed());
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.items, added);
    EXPECT_LT(stats.capacity_slots, 20'000u) << added << " items were added";
  }
}

/// Whoever is told of the growth, and erases, does not undo it.
TEST_F(CompactionTest, WhatIsReservedStaysThoughTheLogErases) {
  constexpr std::uint64_t kReserved = 200'000;
  CreateOptions create;
  create.value_size = 8;
  OpenOptions open = test::TestOpenOptions();
  open.compact_below = 0.3;
  Store* told = nullptr;
  open.log = [&](LogLevel, std::string_view message) {
    if (told == nullptr || message.find("resize ended") == std::string_view::npos) return;
    const std::uint64_t key = 1;
    std::exchange(told, nullptr)->Delete(std::as_bytes(std::span(&key, 1)));
  };
  Store store = Store::Create(NewPath(), create, open);
  test::TestBatch batch(8, 8);
  for (const std::uint64_t key : test::Numbers(1, 1000)) batch.Add(Op::kInsert, key, key);
  ASSERT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  told = &store;
  store.Reserve(kReserved);
  EXPECT_EQ(told, nullptr) << "it was not told";
  EXPECT_EQ(store.Stats().items, 999u);
  EXPECT_GE(store.Stats().capacity_slots, kReserved);
}

TEST_F(CompactionTest, DoesNotCompactInVainAgainAndAgain) {
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

}  // namespace
}  // namespace gpm
