// The table's parts that stand alone: hashing, layout, probing, combining, epochs, threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "engine/combining.h"
#include "engine/epochs.h"
#include "pm/thread_pool.h"
#include "recovery/slot_scan.h"
#include "table/layout.h"
#include "table/matching.h"
#include "table/media/direct.h"
#include "table/operation.h"
#include "tests/levels.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

Superblock SmallSuperblock(std::uint32_t key_size, std::uint32_t value_size, Geometry geometry,
                           std::uint64_t newest) {
  Superblock superblock{};
  superblock.key_size = key_size;
  superblock.value_size = value_size;
  superblock.geometry = geometry;
  superblock.hash_seed[0] = 0x1234567890ABCDEFull;
  superblock.hash_seed[1] = 0xFEDCBA0987654321ull;
  LayLevels(&superblock, test::LevelsFrom(geometry, newest), 1 << 20);
  return superblock;
}

TEST(Hash, DependsOnSeedAndOnEveryKeyBit) {
  const std::uint64_t seed[2] = {1, 2};
  const std::uint64_t other_seed[2] = {1, 3};
  std::array<std::uint64_t, 4> key{5, 6, 7, 8};
  const KeyHash hash = HashKey(seed, key.data(), 4);
  EXPECT_NE(hash.h, HashKey(other_seed, key.data(), 4).h);
  for (std::uint32_t bit = 0; bit < 256; ++bit) {
    auto flipped = key;
    flipped[bit / 64] ^= std::uint64_t{1} << (bit % 64);
    const KeyHash changed = HashKey(seed, flipped.data(), 4);
    EXPECT_NE(hash.h, changed.h) << "bit " << bit;
    EXPECT_NE(hash.g, changed.g) << "bit " << bit;
  }
}

TEST(Hash, SpreadsSequentialKeysOverBucketsEvenly) {
  const Geometry geometry{2, 2, 8};
  const TableView table = MakeTableView(nullptr, SmallSuperblock(8, 8, geometry, 2048));
  for (std::uint32_t location = 0; location < 2; ++location) {
    std::vector<int> counts(1024);
    const int keys = 1 << 20;
    for (std::uint64_t i = 0; i < keys; ++i) {
      const KeyHash hash = HashKey(table.hash_seed, &i, 1);
      const std::uint64_t bucket = BucketNumber(hash, location, 1024);
      ASSERT_EQ(bucket / 1024, location);  // each location in its part of the table
      ++counts[bucket % 1024];
    }
    // Chi-square with 1023 degrees of freedom: mean 1023, standard deviation 45.
    double chi = 0;
    for (const int count : counts) chi += (count - 1024.0) * (count - 1024.0) / 1024.0;
    EXPECT_GT(chi, 1023 - 6 * 45) << "location " << location;
    EXPECT_LT(chi, 1023 + 6 * 45) << "location " << location;
  }
}

TEST(Layout, CandidateBucketsAreTheLocationsOfEachLevelWithoutRepeats) {
  std::mt19937_64 random(test::TestSeed());
  for (const Geometry geometry : {Geometry{2, 2, 8}, Geometry{4, 4, 2}, Geometry{1, 8, 4}}) {
    for (int round = 0; round < 50; ++round) {
      Superblock superblock = SmallSuperblock(8, 128, geometry, 64);
      LevelSizes sizes;
      for (std::uint32_t level = 0; level < geometry.levels; ++level) {
        sizes.push_back(geometry.locations * (1 + random() % 40));
      }
      LayLevels(&superblock, sizes, 1 << 20);
      const TableView table = MakeTableView(nullptr, superblock);
      for (int i = 0; i < 50; ++i) {
        const std::uint64_t key = random() | 2;
        const Candidates candidates = LocateKey(table, &key);
        EXPECT_EQ(candidates.word, key);
        for (std::uint32_t c = 0; c < table.candidate_buckets(); ++c) {
          const std::uint32_t level = c / geometry.locations;
          const std::uint64_t location = c % geometry.locations;
          const auto number = static_cast<std::uint64_t>(
              (CandidateBucket(table, candidates, c) - table.Bucket(level, 0)) /
              static_cast<std::ptrdiff_t>(table.bucket_bytes));
          // Each location in its part of the level: no two candidates are the same bucket.
          EXPECT_EQ(number / (sizes[level] / geometry.locations), location);
        }
      }
    }
  }
}

TEST(Layout, BucketNumbersAreSharesOfTheHash) {
  std::mt19937_64 random(test::TestSeed());
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t hash = i == 0 ? 0 : i == 1 ? ~std::uint64_t{0} : random();
    const auto count = static_cast<std::uint32_t>(1 + (random() >> (32 + random() % 32)) % ~0u);
    __extension__ using Wide = unsigned __int128;
    ASSERT_EQ(ShareOf(hash, count), static_cast<std::uint64_t>((Wide{hash} * count) >> 64))
        << hash << " of " << count;
    const std::uint32_t bits = random() % 32;
    ASSERT_EQ(ShareOf(hash, 1u << bits), bits == 0 ? 0 : hash >> (64 - bits));
  }
}

TEST(Growth, LevelsFollowEachOtherByAFactor) {
  const Geometry geometry{4, 2, 4};
  EXPECT_EQ((Growth{geometry, 2}.Levels(64)), (LevelSizes{64, 32, 16, 8}));
  EXPECT_EQ((Growth{geometry, 2}.Levels(4)), (LevelSizes{4, 2, 2, 2}));
  EXPECT_EQ((Growth{geometry, 1.25}.Levels(64)), (LevelSizes{64, 50, 40, 32}));
  EXPECT_EQ((Growth{geometry, 2}.Next(64)), 128u);
  EXPECT_EQ((Growth{geometry, 1.1}.Next(2)), 4u) << "it grows, and by whole parts";
  EXPECT_EQ((Growth{geometry, 2}.Next(kMaxLevelBuckets - 1)), kMaxLevelBuckets + 1);
  for (const double factor : {1.1, 1.25, 1.5, 2.0, 3.0, 4.0}) {
    const Growth growth{geometry, factor};
    LevelSizes sizes = growth.Smallest();
    EXPECT_EQ(growth.Reach(sizes, 0), sizes);
    for (const double slots : {1e3, 1e6, 1e9}) {
      const LevelSizes larger = growth.Reach(sizes, slots);
      ASSERT_EQ(larger.size(), geometry.levels);
      EXPECT_GE(static_cast<double>(SlotsOf(geometry, larger)), slots);
      EXPECT_LE(static_cast<double>(SlotsOf(geometry, larger)), slots * factor * 1.1);
      for (const std::uint64_t buckets : larger) EXPECT_EQ(LevelSizeDefect(geometry, buckets), "");
      sizes = larger;
    }
    EXPECT_LE(growth.Reach(sizes, 1e18).front(), kMaxLevelBuckets);
  }
  for (const double factor : {0.0, 1.0, 1.09, 4.1, -2.0, std::nan("")}) {
    OpenOptions open;
    open.growth = factor;
    EXPECT_EQ(test::ErrorOf([&] { ValidateGrowth(open); }), ErrorCode::kInvalidArgument);
  }
}

TEST(Layout, KeysThatEqualStateWordsHaveAPlaceOfTheirOwn) {
  const TableView table = MakeTableView(nullptr, SmallSuperblock(8, 8, Geometry{2, 2, 8}, 8));
  for (const std::uint64_t key : {kEmptyState, kInsertState}) {
    const Candidates candidates = LocateKey(table, &key);
    EXPECT_EQ(candidates.word, kReservedWord);
    std::byte* bucket = CandidateBucket(table, candidates, 0);
    EXPECT_EQ(bucket, table.ReservedBucket(key == kEmptyState ? 0 : 1));
    for (std::uint32_t c = 1; c < 4; ++c) EXPECT_EQ(CandidateBucket(table, candidates, c), nullptr);
    std::uint64_t stored = 1;
    LoadSlotKey(table, DirectMedia(Persist()), Slot{bucket, 3}, kReservedWord, &stored);
    EXPECT_EQ(stored, key);
  }
}

TEST(Layout, BucketsHaveTheSizesOfTheFormat) {
  EXPECT_EQ(BucketBytes(8, Geometry{2, 2, 8}), 128u);
  EXPECT_EQ(BucketBytes(32, Geometry{2, 2, 8}), 384u);
  EXPECT_EQ(CellBytes(128), 128u);
  EXPECT_EQ(CellBytes(100), 128u);
  EXPECT_EQ(CellBytes(9), 16u);
  EXPECT_EQ(CellBytes(kMaxValueBytes), kMaxValueBytes);
}

TEST(Probe, VectorVersionsAgreeWithOneWordAtATime) {
  std::mt19937_64 random(test::TestSeed());
  alignas(64) std::array<std::uint64_t, 64> pairs;
  for (int round = 0; round < 20000; ++round) {
    for (auto& word : pairs) word = random() % 4;  // 0 is kEmptyState
    for (std::uint32_t slots = 1; slots <= 32; slots *= 2) {
      const BucketMatch expected = MatchBucketScalar(pairs.data(), slots, 2);
      for (const MatchVersion& version : MatchVersions()) {
        const BucketMatch actual = version.one(pairs.data(), slots, 2);
        ASSERT_EQ(actual.match, expected.match) << version.name;
        ASSERT_EQ(actual.empty, expected.empty) << version.name;
      }
    }
  }
}

TEST(Probe, ManyBucketsAgreeWithOneByOne) {
  std::mt19937_64 random(test::TestSeed());
  constexpr std::size_t kKeys = 5;
  alignas(64) std::array<std::array<std::uint64_t, 64>, 8> pool;  // of buckets
  std::array<const std::byte*, kKeys * 32> buckets;
  std::array<std::uint64_t, kKeys> words;
  for (int round = 0; round < 2000; ++round) {
    for (auto& pairs : pool) {
      for (auto& word : pairs) word = random() % 4;
    }
    for (const std::byte*& bucket : buckets) {
      const auto choice = random() % (pool.size() + 1);
      bucket = choice == pool.size() ? nullptr : reinterpret_cast<const std::byte*>(&pool[choice]);
    }
    for (std::uint64_t& word : words) word = random() % 4;
    for (std::uint32_t slots = 1; slots <= 32; slots *= 2) {
      for (std::uint32_t locations = 1; slots * locations <= 32; locations *= 2) {
        std::array<BucketMatch, kKeys> expected;
        std::array<BucketMatch, kKeys> actual;
        MatchEachBucket(MatchBucketScalar, {buckets.data(), slots, locations}, words.data(), kKeys,
                        expected.data());
        for (const MatchVersion& version : MatchVersions()) {
          version.many(buckets.data(), slots, locations, words.data(), kKeys, actual.data());
          for (std::size_t i = 0; i < kKeys; ++i) {
            ASSERT_EQ(actual[i].match, expected[i].match) << version.name;
            ASSERT_EQ(actual[i].empty, expected[i].empty) << version.name;
          }
        }
      }
    }
  }
}

/// One item, operated on one by one: what combining has to agree with.
struct Item {
  bool present;
  std::uint32_t writer;  ///< position, or kUnchanged for the value it had before

  Result Apply(Op op, std::uint32_t position) {
    const Result result = ResultOf(op, present);
    const Plan plan = PlanOf(op, reinterpret_cast<const std::byte*>(1));
    const Action action = present ? plan.if_present : plan.if_absent;
    if (WritesValue(action)) {
      present = true;
      writer = position;
    } else if (action == Action::kErase) {
      present = false;
    }
    return result;
  }
};

TEST(Combine, ScanOfRandomRunsEqualsOneByOne) {
  std::mt19937_64 random(test::TestSeed());
  for (int round = 0; round < 2000; ++round) {
    // A few runs in one array, as in a sorted batch.
    std::vector<Op> ops;
    std::vector<bool> begins;
    const auto runs = 1 + random() % 5;
    for (std::size_t run = 0; run < runs; ++run) {
      const auto length = 1 + random() % 12;
      for (std::size_t k = 0; k < length; ++k) {
        ops.push_back(static_cast<Op>(random() % kOpKinds));
        begins.push_back(k == 0);
      }
    }
    // Scanned from a random split, so that associativity is used.
    std::vector<KeyRunEffect> effects;
    for (std::uint32_t p = 0; p < ops.size(); ++p) {
      effects.push_back(EffectOf(ops[p], true, p, begins[p], false));
    }
    const auto reduce = [&](auto&& self, std::size_t first, std::size_t last) -> KeyRunEffect {
      if (last - first == 1) return effects[first];
      const std::size_t split = first + 1 + random() % (last - first - 1);
      return ComposeEffects{}(self(self, first, split), self(self, split, last));
    };
    for (const bool present_before : {false, true}) {
      Item item{};
      std::uint32_t first = 0;
      std::uint32_t first_find = kNoPosition;
      std::uint32_t adding = 0;
      for (std::uint32_t p = 0; p < ops.size(); ++p) {
        if (begins[p]) {
          item = Item{present_before, kUnchanged};
          first = p;
          first_find = kNoPosition;
          adding = 0;
        }
        if (GivesValue(ops[p]) && first_find == kNoPosition) first_find = p;
        if (ops[p] == Op::kAccumulate) ++adding;
        item.Apply(ops[p], p);
        const KeyRunEffect scanned = reduce(reduce, 0, p + 1);
        const bool all_add = adding == p + 1 - first;
        ASSERT_EQ(scanned.collided(), adding > 0 && !all_add);
        ASSERT_EQ(scanned.first, first);
        if (scanned.collided()) continue;  // carried out one by one
        ASSERT_EQ(scanned.accumulates(), all_add);
        if (all_add) {
          ASSERT_EQ(Changes(scanned, present_before), present_before);
        }
        const std::uint32_t effect = present_before ? scanned.if_present : scanned.if_absent;
        ASSERT_EQ(PresentAfter(effect, present_before), item.present);
        if (item.present && (effect != kUnchanged || item.writer != kUnchanged)) {
          ASSERT_EQ(effect, item.writer);
        }
        ASSERT_EQ(scanned.first_find(), first_find);
      }
    }
  }
}

TEST(Combine, CollidedRunsAndInvalidOperationsAreMarked) {
  const ComposeEffects compose;
  const KeyRunEffect a = EffectOf(Op::kInsert, true, 0, true, false);
  const KeyRunEffect b = EffectOf(Op::kFind, true, 1, false, true);
  const KeyRunEffect c = EffectOf(Op::kErase, true, 2, false, false);
  EXPECT_TRUE(compose(compose(a, b), c).collided());
  EXPECT_TRUE(compose(a, compose(b, c)).collided());
  const KeyRunEffect invalid = EffectOf(static_cast<Op>(77), true, 0, true, false);
  EXPECT_EQ(invalid.if_absent, kUnchanged);
  EXPECT_EQ(invalid.if_present, kUnchanged);
  const KeyRunEffect no_value = EffectOf(Op::kUpsert, false, 0, true, false);
  EXPECT_EQ(no_value.if_absent, kUnchanged);
  EXPECT_EQ(ResultOf(Op::kUpsert, true, false), Result::kInvalid);
  EXPECT_EQ(ResultOf(static_cast<Op>(77), true), Result::kInvalid);
}

TEST(Epochs, CellsAreFreeOnlyWhenAllBatchesThatSawThemHaveEnded) {
  Epochs epochs;
  Epochs::SlotRange recycle;
  CellGrant grant;
  epochs.Quiesced({100, 0});
  const auto first = epochs.Begin({10, 0}, &recycle, &grant);
  EXPECT_EQ(grant.first, 0u);
  EXPECT_EQ(grant.count, 10u);
  const auto second = epochs.Begin({20, 5}, &recycle, &grant);
  EXPECT_EQ(grant.first, 10u);
  EXPECT_EQ(grant.count, 20u);
  EXPECT_EQ(epochs.available_cells(), 70u);
  // The second batch retires 20 cells and erases 3 slots while the first still runs.
  epochs.End(second, {120, 3});
  EXPECT_EQ(epochs.available_cells(), 70u);
  const auto third = epochs.Begin({0, 0}, &recycle, &grant);
  EXPECT_EQ(recycle.from, recycle.to);
  // The third began later: it can't have seen them.
  epochs.End(first, {120, 3});
  EXPECT_EQ(epochs.available_cells(), 90u);
  const auto fourth = epochs.Begin({200, 0}, &recycle, &grant);
  EXPECT_EQ(recycle.from, 0u);
  EXPECT_EQ(recycle.to, 3u);
  EXPECT_EQ(grant.first, 30u);
  EXPECT_EQ(grant.count, 90u);  // as many as there are
  epochs.End(third, {120, 3});
  epochs.End(fourth, {123, 3});
  EXPECT_EQ(epochs.available_cells(), 3u);
}

TEST(Epochs, TheRestOfTheLastGrantIsTakenBack) {
  Epochs epochs;
  Epochs::SlotRange recycle;
  CellGrant first;
  CellGrant second;
  epochs.Quiesced({100, 0});
  epochs.Begin({30, 0}, &recycle, &first);
  epochs.Begin({20, 0}, &recycle, &second);
  EXPECT_FALSE(epochs.TakeBack(first, 10)) << "others were granted what follows";
  EXPECT_EQ(epochs.available_cells(), 50u);
  EXPECT_TRUE(epochs.TakeBack(second, 15));
  EXPECT_EQ(epochs.available_cells(), 65u);
  CellGrant third;
  epochs.Begin({1, 0}, &recycle, &third);
  EXPECT_EQ(third.first, 35u);
}

TEST(Epochs, CellsAreSortedOnceAndOnlyWhereThereAreMany) {
  Epochs epochs;
  Epochs::SlotRange recycle;
  CellGrant grant;
  epochs.Quiesced({1000, 0});
  EXPECT_EQ(epochs.ToSort(10).count, 0u) << "few";
  epochs.Quiesced({100'000, 0});
  EXPECT_EQ(epochs.ToSort(0).count, 0u) << "nothing is to be granted";
  const CellGrant all = epochs.ToSort(10);
  EXPECT_EQ(all.first, 0u);
  EXPECT_EQ(all.count, 100'000u);
  EXPECT_EQ(epochs.ToSort(10).count, 0u) << "sorted";
  const auto batch = epochs.Begin({99'990, 0}, &recycle, &grant);
  epochs.End(batch, {160'000, 0});
  EXPECT_EQ(epochs.ToSort(10).count, 0u) << "so many are sorted still";
  const CellGrant others = epochs.ToSort(11);
  EXPECT_EQ(others.first, 100'000u);
  EXPECT_EQ(others.count, 60'000u);
}

TEST(Reclaim, AGrantIsTakenOnceAndItsRestComesBack) {
  std::vector<std::uint32_t> ring(16);
  for (std::uint32_t i = 0; i < 8; ++i) ring[i] = 100 + i;
  std::vector<std::uint64_t> slots(16);
  ReclaimCounters counters{};
  counters.cells_tail = 8;
  std::uint64_t taken = 0;
  const Reclaim reclaim{ring.data(), 15, slots.data(), 15, &counters, CellGrant{2, 4}, &taken};
  std::uint32_t cell = 0;
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(reclaim.TakeCell(false, &cell));
    EXPECT_EQ(cell, 102 + i);
  }
  for (std::uint64_t share = 0; share < 3; ++share) reclaim.ReturnCells(share, 3);
  EXPECT_EQ(counters.cells_tail, 9u);
  EXPECT_EQ(ring[8], 105u);
  ASSERT_TRUE(reclaim.TakeCell(false, &cell));
  EXPECT_FALSE(reclaim.TakeCell(false, &cell));
  EXPECT_FALSE(reclaim.TakeCell(false, &cell));
  reclaim.ReturnCells(0, 1);  // more was asked for than granted: nothing is left
  EXPECT_EQ(counters.cells_tail, 9u);
}

TEST(Reclaim, WhatIsKeptIsForUpdates) {
  std::vector<std::uint32_t> ring(16);
  for (std::uint32_t i = 0; i < 4; ++i) ring[i] = 100 + i;
  std::vector<std::uint64_t> slots(16);
  ReclaimCounters counters{};
  counters.cells_tail = 4;
  std::uint64_t taken = 0;
  const Reclaim reclaim{ring.data(), 15, slots.data(), 15, &counters, CellGrant{0, 4, 3}, &taken};
  std::uint32_t cell = 0;
  EXPECT_TRUE(reclaim.TakeCell(false, &cell));
  EXPECT_TRUE(reclaim.TakeCell(true, &cell));
  EXPECT_EQ(cell, 101u);
  EXPECT_FALSE(reclaim.TakeCell(false, &cell));
  EXPECT_EQ(cell, 101u) << "it gets none";
  EXPECT_EQ(counters.cells_tail, 4u) << "and takes none from the others";
  EXPECT_TRUE(reclaim.TakeCell(true, &cell));
  EXPECT_EQ(cell, 102u);
  EXPECT_TRUE(reclaim.TakeCell(true, &cell));
  EXPECT_EQ(cell, 103u);
  EXPECT_FALSE(reclaim.TakeCell(true, &cell));
}

TEST(MoveCells, PassesOverEmptySlotsWhateverTheRange) {
  // The range begins with the cell at offset 0, which no item has: as a reference it means none.
  alignas(128) static std::byte pool[1 << 16];
  const Superblock superblock = SmallSuperblock(8, 128, Geometry{2, 2, 8}, 8);
  const TableView table = MakeTableView(pool, superblock);
  std::byte* const bucket = table.ReservedBucket(0);
  const Slot item{bucket, 1};
  *table.State(item) = kReservedWord;
  *table.Reference(item) = 200 * table.cell_bytes;
  std::memset(table.Cell(200 * table.cell_bytes), 0x5A, 128);
  std::uint32_t ring[4] = {300, 301, 302, 303};
  std::uint64_t slots[4];
  ReclaimCounters counters{};
  std::uint64_t taken = 0;
  const Reclaim reclaim{ring, 3, slots, 3, &counters, CellGrant{0, 4}, &taken};
  EXPECT_EQ(
      MoveCells(table, reclaim, ThreadGroup{}, DirectMedia(Persist()), bucket, CellRange{0, 256}),
      0u);
  EXPECT_EQ(taken, 1u);
  EXPECT_EQ(*table.Reference(item), 300 * table.cell_bytes);
  EXPECT_EQ(
      std::memcmp(table.Cell(300 * table.cell_bytes), table.Cell(200 * table.cell_bytes), 128), 0);
  for (std::uint32_t s = 0; s < table.slots; ++s) {
    if (s == item.index) continue;
    EXPECT_EQ(*table.State(Slot{bucket, s}), kEmptyState);
    EXPECT_EQ(*table.Reference(Slot{bucket, s}), 0u);
  }
}

/// An inline value may come back, and then the row of the sum has that of another.
TEST(Accumulate, ASumMadeAheadIsForOneLookAtTheKey) {
  alignas(128) static std::byte pool[1 << 21];  // the levels begin in the middle
  const TableView table = MakeTableView(pool, SmallSuperblock(8, 8, Geometry{2, 2, 8}, 8));
  std::uint32_t lock = 0;
  const KeyLocks locks{&lock, 0};
  const Reclaim reclaim{};
  const Accelerators accelerators{};
  const Operations<ThreadGroup, DirectMedia> operations(table, reclaim, locks, accelerators,
                                                        ThreadGroup{}, DirectMedia(Persist()));
  const std::uint64_t key = 5;
  const Candidates candidates = operations.Locate(&key);
  const auto write = [&](Op op, std::uint64_t value) {
    const Plan plan = PlanOf(op, reinterpret_cast<const std::byte*>(&value));
    return operations.Apply(candidates, &key, plan).present;
  };
  EXPECT_FALSE(write(Op::kInsert, 100));
  const std::uint64_t made_of = 100;
  const std::uint64_t row = 7;
  std::uint64_t sum = 107;
  Addends addends;
  addends.element = Element::kUInt64;
  addends.sum = reinterpret_cast<std::byte*>(&sum);
  addends.rows = reinterpret_cast<const std::byte*>(&row);
  addends.made_of = &made_of;
  Plan plan = PlanOf(Op::kAccumulate, addends.rows);
  plan.addends = &addends;
  auto work = operations.Start(candidates, &key, plan, 1);
  for (const std::uint64_t meanwhile : {50u, 100u}) {
    operations.Begin(&work);
    EXPECT_TRUE(write(Op::kUpdate, meanwhile));
    EXPECT_FALSE(operations.Commit(&work));
  }
  operations.Begin(&work);
  EXPECT_TRUE(operations.Commit(&work));
  EXPECT_EQ(operations.Find(candidates, &key).reference, 107u);
}

TEST(Epochs, SlotPositionsStayTakenUntilGivenBack) {
  Epochs epochs;
  Epochs::SlotRange recycle;
  CellGrant grant;
  epochs.Quiesced({0, 0});
  const auto first = epochs.Begin({0, 8}, &recycle, &grant);
  EXPECT_EQ(epochs.slots_pending(), 8u);
  epochs.End(first, {0, 5});
  EXPECT_EQ(epochs.slots_pending(), 5u);
  const auto second = epochs.Begin({0, 1}, &recycle, &grant);  // gives back [0, 5)
  EXPECT_EQ(epochs.slots_pending(), 6u);
  epochs.End(second, {0, 5});
  EXPECT_EQ(epochs.slots_pending(), 0u);
}

TEST(Epochs, ABatchGivesBackAsManySlotsAsItMay) {
  Epochs epochs;
  Epochs::SlotRange recycle;
  CellGrant grant;
  epochs.Quiesced({0, 0});
  const auto erases = epochs.Begin({0, 10}, &recycle, &grant);
  EXPECT_EQ(recycle.from, recycle.to);
  epochs.End(erases, {0, 10});
  EXPECT_EQ(epochs.slots_waiting(), 10u);
  EXPECT_EQ(epochs.queued(), 10u);

  const auto first = epochs.Begin({0, 2, 4}, &recycle, &grant);
  EXPECT_EQ(recycle.from, 0u);
  EXPECT_EQ(recycle.to, 4u);
  EXPECT_EQ(epochs.slots_pending(), 12u) << "until it ends";
  const auto second = epochs.Begin({0, 0, 4}, &recycle, &grant);
  EXPECT_EQ(recycle.from, 4u);
  EXPECT_EQ(recycle.to, 8u);
  EXPECT_EQ(epochs.slots_waiting(), 2u);
  epochs.End(first, {4, 12});
  EXPECT_EQ(epochs.slots_pending(), 8u);
  EXPECT_EQ(epochs.slots_waiting(), 2u) << "what it erased another batch may have seen";
  epochs.End(second, {8, 12});
  EXPECT_EQ(epochs.slots_waiting(), 4u);

  epochs.Begin({}, &recycle, &grant);
  EXPECT_EQ(recycle.from, 8u);
  EXPECT_EQ(recycle.to, 12u) << "all that are left";
  EXPECT_EQ(epochs.slots_waiting(), 0u);
}

TEST(ThreadPool, RunsEveryPartOnceFromSeveralSubmitters) {
  ThreadPool pool(3);
  std::vector<std::thread> submitters;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t) {
    submitters.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        std::vector<std::atomic<int>> calls(17);
        pool.Run(calls.size(), [&](std::size_t part) { ++calls[part]; });
        for (const auto& count : calls) wrong += count != 1;
      }
    });
  }
  for (auto& submitter : submitters) submitter.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace gpm
