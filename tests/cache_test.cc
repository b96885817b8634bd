#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "table/layout.h"
#include "tests/cache_test_util.h"

/// Stores with a cache of values.
namespace gpm::test {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Shapes, CacheShapeTest,
    ::testing::Values(ShapeParam(8, 8, "2L-2H-8S"), ShapeParam(8, 100, "2L-2H-8S"),
                      ShapeParam(8, 128, "1L-2H-4S"), ShapeParam(32, 4, "2L-2H-8S"),
                      ShapeParam(32, 130, "2L-2H-8S"), ShapeParam(8, 16, "1L-1H-32S"),
                      ShapeParam(16, 9, "4L-4H-2S"), ShapeParam(8, 8, "2L-4H-1S"),
                      ShapeParam(16, 128, "2L-4H-1S"), ShapeParam(8, 5000, "2L-2H-8S"),
                      ShapeParam(128, 2000, "4L-2H-4S")),
    ShapeName);

TEST_P(CacheShapeTest, EveryWriteIsSeenByTheNextFindAndStaysCached) {
  OpenOptions open = AllCached();
  open.growth = 2;  // so that there are slots to spare, in geometries that fill up badly too
  ModelledStore store(NewPath(), Create(), open);
  const std::vector<std::uint64_t> keys = Numbers(1, kKeys);
  Write(store, Op::kInsert, keys);
  Find(store, keys, kKeys, inline_values() ? kKeys : 0);  // not loaded yet
  store.store().RefreshCache().Wait();
  EXPECT_EQ(store.store().Stats().cache.refreshes, inline_values() ? 0u : 1u);
  Find(store, keys, kKeys, kKeys);
  Write(store, Op::kUpdate, keys, 1'000'000);
  Find(store, keys, kKeys, kKeys);
  Write(store, Op::kUpsert, keys, 2'000'000);
  Find(store, keys, kKeys, kKeys);
  Write(store, Op::kInsert, keys, 3'000'000);  // exist: values stay
  Find(store, keys, kKeys, kKeys);
  const std::vector<std::uint64_t> half(keys.begin(), keys.begin() + kKeys / 2);
  Write(store, Op::kErase, half);
  Find(store, keys, kKeys / 2, kKeys / 2);
  Write(store, Op::kErase, half);  // gone
  Write(store, Op::kUpdate, half, 3'500'000);
  Find(store, half, 0, 0);
  Write(store, Op::kInsert, half, 4'000'000);
  Find(store, keys, kKeys, kKeys);  // inserted into the cache too
  const std::vector<std::uint64_t> others = Numbers(kKeys + 1, kKeys / 2);
  Write(store, Op::kUpsert, others, 5'000'000);
  Write(store, Op::kUpdate, others, 6'000'000);
  Find(store, others, kKeys / 2, kKeys / 2);
  EXPECT_EQ(store.store().Stats().resizes, 0u) << "the test counts on it";
  store.ExpectContents();
  store.Reopen();
}

TEST_P(CacheShapeTest, TheyFollowResizesAndTheCacheIsLoadedAgain) {
  ModelledStore store(NewPath(), Create(100), AllCached());
  std::uint64_t next = 1;
  for (int resize = 0; resize < 3; ++resize) {
    store.store().RefreshCache().Wait();
    const auto expect_sizes = [&](const StoreStats& stats) {
      EXPECT_TRUE(stats.cache.directory);
      EXPECT_GE(stats.cache.directory_bytes, stats.capacity_slots * 10);
      EXPECT_EQ(stats.cache.frames, inline_values() ? 0
                                                    : stats.capacity_slots / stats.geometry.slots +
                                                          TableView::kReservedBuckets);
      EXPECT_EQ(stats.cache.bytes != 0, !inline_values());
    };
    const StoreStats before = store.store().Stats();
    expect_sizes(before);
    while (store.store().Stats().resizes == before.resizes) {
      Write(store, Op::kInsert, Numbers(next, 50));
      next += 50;
    }
    const std::uint64_t items = next - 1;
    const StoreStats after = store.store().Stats();
    expect_sizes(after);
    EXPECT_GT(after.cache.directory_bytes, before.cache.directory_bytes);
    store.Apply(Op::kFind, Numbers(1, items));
    store.store().RefreshCache().Wait();
    Find(store, Numbers(1, items), items, items);
  }
  store.ExpectContents();
}

TEST_P(CacheShapeTest, MixedBatchesWithLoadingsInBetween) {
  std::mt19937_64 random(TestSeed());
  for (const CachePolicy policy :
       {CachePolicy::kTinyLfu, CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom}) {
    for (const double fraction : {0.05, 0.5, 1.0}) {
      ModelledStore store(
          NewPath(), Create(100),
          WithCache({.policy = policy, .fraction = fraction, .refresh_interval = 0}));
      std::vector<Ticket> loadings;
      for (int round = 0; round < 40; ++round) {
        TestBatch batch = RandomBatch(store, random, 2000);
        store.Apply(batch);
        if (round % 3 == 0) {
          loadings.push_back(store.store().RefreshCache());
        } else if (round % 5 == 0) {
          store.store().RefreshCache().Wait();
        }
      }
      const CacheStats stats = store.store().Stats().cache;
      EXPECT_GT(stats.hits, 0u);
      EXPECT_LE(stats.hits, stats.found);
      EXPECT_TRUE(stats.directory);
      if (inline_values()) {
        EXPECT_EQ(stats.policy, CachePolicy::kOff);
      } else {
        EXPECT_EQ(stats.policy, policy);
        EXPECT_GT(stats.refreshes, 5u);
      }
      loadings.clear();
      store.ExpectContents();
      store.Reopen();
    }
  }
}

TEST_P(CacheShapeTest, WhatIsWrittenIsCachedBeforeARefreshWhereAllHaveAFrame) {
  ModelledStore store(NewPath(), Create(), AllOpen());
  // (On executor cuda memory is taken for it beside batches.)
  const auto opened = [&] {
    store.Apply(Op::kUpsert, Numbers(1, 1));
    const Counted counted(store.store());
    store.Apply(Op::kFind, Numbers(1, 1));
    return counted.hits() == 1;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!opened() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  Write(store, Op::kInsert, Numbers(2, kKeys - 1));
  const std::uint64_t resizes = store.store().Stats().resizes;
  Find(store, Numbers(1, kKeys), kKeys, kKeys);
  Write(store, Op::kUpdate, Numbers(1, kKeys / 2), 1);
  Find(store, Numbers(1, kKeys), kKeys, kKeys);
  Write(store, Op::kErase, Numbers(1, kKeys / 4));
  Write(store, Op::kInsert, Numbers(1, kKeys / 8), 2);
  Find(store, Numbers(1, kKeys), kKeys - kKeys / 4 + kKeys / 8, kKeys - kKeys / 4 + kKeys / 8);
  EXPECT_EQ(store.store().Stats().cache.refreshes, 0u);
  EXPECT_EQ(store.store().Stats().resizes, resizes);
  store.Reopen();  // nothing is cached, until a refresh brings it
  while (!opened() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  const std::uint64_t few = 100;  // from kKeys / 2 on, which all are there
  Find(store, Numbers(kKeys / 2, few), few, inline_values() ? few : 0);
  Find(store, Numbers(kKeys / 2, few), few, few);  // what was read was kept
  Write(store, Op::kUpdate, Numbers(2, kKeys / 8), 3);
  store.store().RefreshCache().Wait();
  Find(store, Numbers(1, kKeys), kKeys - kKeys / 4 + kKeys / 8, kKeys - kKeys / 4 + kKeys / 8);
}

TEST_F(CacheTest, WhatIsWrittenWhileTheTableGrowsIsRightWhereAllHaveAFrame) {
  for (const double growth : {1.25, 2.0}) {
    OpenOptions options = AllOpen();
    options.growth = growth;
    ModelledStore store(NewPath(), Shape(8, 24, 100), options);
    std::mt19937_64 random(TestSeed());
    for (std::uint64_t keys = 100; keys < 20'000; keys += keys / 8) {
      store.Apply(Op::kInsert, Numbers(keys, keys / 8));
      store.Apply(Op::kUpdate, Numbers(random() % keys, 50), random());
      store.Apply(Op::kErase, Numbers(random() % keys, 20));
      store.Apply(Op::kFind, Numbers(1, keys));
    }
    EXPECT_GT(store.store().Stats().cache.hits, 0u);
    EXPECT_EQ(store.store().Stats().cache.refreshes, 0u);
    store.store().RefreshCache().Wait();
    const std::uint64_t items = store.model().size();
    Find(store, Numbers(1, 30'000), items, items);
    store.ExpectContents();
  }
}

TEST_F(CacheTest, HotKeysHitAndColdOnesDoNot) {
  constexpr std::uint64_t kKeys = 20000;
  constexpr std::uint64_t kHot = 20;
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    for (const std::uint32_t value_size : {9u, 128u}) {
      ModelledStore store(NewPath(), Shape(8, value_size, kKeys),
                          WithCache({.policy = policy, .fraction = 0.05, .refresh_interval = 0}));
      store.Apply(Op::kInsert, Numbers(1, kKeys));
      // Nothing counts inserts: values are kept of buckets where something was found.
      store.store().RefreshCache().Wait();
      const StoreStats stats = store.store().Stats();
      ASSERT_GT(stats.cache.frames, kHot);
      const std::uint64_t most = kHot * stats.geometry.slots;
      ASSERT_LT(2 * most, kKeys);
      for (std::uint64_t first : {1, 5000}) {  // what is hot changes
        const std::vector<std::uint64_t> hot = Numbers(first, kHot);
        for (int i = 0; i < 20; ++i) store.Apply(Op::kFind, hot);
        store.store().RefreshCache().Wait();
        Find(store, hot, kHot, kHot);
        if (first != 1) continue;
        const Counted counted(store.store());
        store.Apply(Op::kFind, Numbers(1, kKeys));
        EXPECT_GE(counted.hits(), kHot);
        EXPECT_LE(counted.hits(), most);
        EXPECT_EQ(counted.found(), kKeys);
      }
    }
  }
}

TEST_F(CacheTest, LfuKeepsWhatIsUsedMostAndLruWhatWasUsedLast) {
  // Room for some 20 buckets: the keys that were found often, or those that were found last.
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    ModelledStore store(NewPath(), Shape(8, 16, 20000),
                        WithCache({.policy = policy, .fraction = 0.01, .refresh_interval = 0}));
    store.Apply(Op::kInsert, Numbers(1, 20000));
    ASSERT_GT(store.store().Stats().cache.frames, 20u);
    ASSERT_LT(store.store().Stats().cache.frames, 100u);
    const std::vector<std::uint64_t> often = Numbers(1, 20);
    const std::vector<std::uint64_t> last = Numbers(10001, 20);
    for (int i = 0; i < 20; ++i) store.Apply(Op::kFind, often);
    store.Apply(Op::kFind, Numbers(1000, 2000));
    store.Apply(Op::kFind, last);
    store.store().RefreshCache().Wait();
    Find(store, policy == CachePolicy::kLfu ? often : last, 20, 20);
  }
}

TEST_F(CacheTest, ReservedKeysAreCachedLikeOthers) {
  for (const std::uint32_t key_size : {8u, 16u, 32u}) {
    for (const std::uint32_t value_size : {8u, 100u}) {
      SCOPED_TRACE(key_size * 1000 + value_size);
      ModelledStore store(NewPath(), Shape(key_size, value_size), AllCached());
      static_assert(kAllOnes == kInsertState);
      const std::vector<std::uint64_t> keys = {kEmptyState, kInsertState};
      Find(store, keys, 0, 0);
      Write(store, Op::kInsert, keys);
      store.store().RefreshCache().Wait();
      Find(store, keys, 2, 2);
      Write(store, Op::kUpdate, keys, 10);
      Find(store, keys, 2, 2);
      Write(store, Op::kErase, keys);
      Find(store, keys, 0, 0);
      Write(store, Op::kUpsert, keys, 20);
      Find(store, keys, 2, 2);
      store.Reopen();
      Find(store, keys, 2, value_size == 8 ? 2 : 0);
      Write(store, Op::kErase, keys);
      Find(store, keys, 0, 0);
    }
  }
}

TEST_F(CacheTest, OperationsOnOneKeyTakeEffectInBatchOrder) {
  for (const std::uint32_t value_size : {4u, 128u}) {
    for (const std::uint64_t key : {std::uint64_t{5}, std::uint64_t{0}, kAllOnes}) {
      SCOPED_TRACE(key);
      ModelledStore store(NewPath(), Shape(8, value_size), AllCached());
      store.Apply(Op::kInsert, {key, 6, 7});
      store.store().RefreshCache().Wait();
      TestBatch batch = store.NewBatch();
      std::uint64_t tag = 1;
      for (const Op op :
           {Op::kFind, Op::kUpdate, Op::kFind, Op::kUpsert, Op::kFind, Op::kErase, Op::kFind,
            Op::kUpdate, Op::kInsert, Op::kFind, Op::kErase, Op::kErase, Op::kUpsert, Op::kFind}) {
        batch.Add(op, key, ++tag);
        batch.Add(Op::kFind, 6, 0);
      }
      store.Apply(batch);
      store.Apply(batch);
      Find(store, {key, 6}, 2, 2);
      store.ExpectContents();
    }
  }
}

TEST_F(CacheTest, EveryFindOfAKeyInABatchCounts) {
  ModelledStore store(NewPath(), Shape(8, 100), AllCached());
  store.Apply(Op::kInsert, {5});
  store.store().RefreshCache().Wait();
  const std::vector<std::uint64_t> same(1000, 5);
  Find(store, same, 1000, 1000);
  TestBatch mixed = store.NewBatch();  // goes another way than finds alone
  for (std::uint64_t i = 0; i < 999; ++i) mixed.Add(Op::kFind, 5, 0);
  mixed.Add(Op::kUpdate, 5, 1);
  const Counted counted(store.store());
  store.Apply(mixed);
  EXPECT_EQ(counted.found(), 999u);
  EXPECT_EQ(counted.hits(), 999u);
}

TEST_F(CacheTest, BytesAreABudget) {
  for (const std::uint64_t bytes : {3u << 14, 1u << 18, 1u << 24}) {
    SCOPED_TRACE(bytes);
    const std::uint64_t without = [&] {
      return Store::Create(NewPath(), Shape(16, 100), OnlyDirectory(false)).Stats().gpu_bytes;
    }();
    ModelledStore store(NewPath(), Shape(16, 100),
                        WithCache({.policy = CachePolicy::kRandom,
                                   .fraction = {},
                                   .bytes = without + bytes,
                                   .refresh_interval = 0}));
    const StoreStats small = store.store().Stats();
    EXPECT_LE(small.gpu_bytes, without + bytes);
    EXPECT_TRUE(small.cache.directory);
    EXPECT_GT(small.cache.frames, 0u);
    bool fits = true;
    for (std::uint64_t key = 1; key < 20000; key += 1000) {
      store.Apply(Op::kInsert, Numbers(key, 1000));
      store.store().RefreshCache().Wait();
      const CacheStats cache = store.store().Stats().cache;
      EXPECT_LE(cache.directory_bytes + cache.bytes, bytes);
      EXPECT_EQ(cache.directory, cache.directory_bytes != 0);
      EXPECT_TRUE(fits || !cache.directory) << "tables only grow";
      EXPECT_TRUE(cache.directory || cache.frames == 0);
      fits = cache.directory;
    }
    EXPECT_GT(store.store().Stats().resizes, 3u);
    // Without keys it takes 10 bytes a slot.
    EXPECT_TRUE(bytes == 3u << 14 ? !fits : bytes == 1u << 24 ? fits : true);
    store.Apply(Op::kFind, Numbers(1, 20000));
    store.ExpectContents();
  }
}

TEST_F(CacheTest, WithoutACacheLoadingIsNothing) {
  const std::pair<CacheOptions, bool> kinds[] = {
      {{.policy = CachePolicy::kOff, .fraction = 1.0}, true},
      {{.policy = CachePolicy::kLfu, .fraction = 0.0}, true},
      {{.policy = CachePolicy::kLru, .fraction = 1.0, .bytes = 100}, false},
      {{.policy = CachePolicy::kRandom, .fraction = 0.001}, true}};
  for (auto [cache, directory] : kinds) {
    cache.refresh_interval = 100;
    ModelledStore store(NewPath(), Shape(8, 100), WithCache(cache));
    store.Apply(Op::kInsert, Numbers(1, 500));
    for (int i = 0; i < 3; ++i) store.store().RefreshCache().Wait();
    Ticket dropped = store.store().RefreshCache();
    store.Apply(Op::kFind, Numbers(1, 500));
    const CacheStats stats = store.store().Stats().cache;
    EXPECT_EQ(stats.policy, CachePolicy::kOff);
    EXPECT_EQ(stats.frames, 0u);
    EXPECT_EQ(stats.bytes, 0u);
    EXPECT_EQ(stats.refreshes, 0u);
    EXPECT_EQ(stats.hits, 0u);
    EXPECT_EQ(stats.directory, directory);
    EXPECT_EQ(stats.found, directory ? 500u : 0u);
    store.ExpectContents();
  }
}

TEST_F(CacheTest, BadFractionsLeaveNoFile) {
  for (const double fraction : {-1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    const std::string path = NewPath();
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, Shape(8, 8), WithCache({.fraction = fraction})); }),
              ErrorCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(path));
    Store::Create(path, Shape(8, 8), TestOpenOptions()).Close();
    EXPECT_EQ(ErrorOf([&] { Store::Open(path, WithCache({.fraction = fraction})); }),
              ErrorCode::kInvalidArgument);
    ExpectSound(path, 0);
  }
}

TEST_F(CacheTest, ACacheIsNotAskedForWithoutADirectory) {
  const std::vector<CacheOptions> asked = {
      {.fraction = 0.1}, {.refresh_interval = 1000}, {.policy = CachePolicy::kLru}};
  for (CacheOptions cache : asked) {
    const std::string path = NewPath();
    OpenOptions open = TestOpenOptions();
    cache.directory = false;
    open.cache = cache;
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, Shape(8, 16), open); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("directory"), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path));
    Store::Create(path, Shape(8, 16), TestOpenOptions()).Close();
    EXPECT_EQ(ErrorOf([&] { Store::Open(path, open); }), ErrorCode::kInvalidArgument);
    // By default executor cuda has a directory, and cpu has none.
    open.cache.directory.reset();
    const bool cuda = TestExecutor() == ExecutorKind::kCuda;
    EXPECT_EQ(ErrorOf([&] { Store::Open(path, open).Close(); }),
              cuda ? std::nullopt : std::optional(ErrorCode::kInvalidArgument));
    open.cache.directory = true;
    Store::Open(path, open).Close();
    open.cache = cache;
    open.cache.policy = CachePolicy::kOff;  // that there is none was asked for
    Store::Open(path, open).Close();
    open.cache = cache;
    open.cache.fraction = 0;
    Store::Open(path, open).Close();
    ExpectSound(path, 0);
  }
}

TEST_F(CacheTest, LoadsByItselfEverySoManyOperations) {
  ModelledStore store(
      NewPath(), Shape(8, 100, 2000),
      WithCache({.policy = CachePolicy::kLfu, .fraction = 1, .refresh_interval = 5000}));
  store.Apply(Op::kInsert, Numbers(1, 1000));
  store.Apply(Op::kFind, Numbers(1, 1000));
  EXPECT_LE(store.store().Stats().cache.refreshes, 2u);  // when it was new, and after 5000 / 8
  // A loading takes a step with each batch; on a GPU some batches more.
  for (int i = 0; i < 20'000 && store.store().Stats().cache.refreshes < 3; ++i) {
    store.Apply(Op::kFind, Numbers(1, 1000));
  }
  EXPECT_GE(store.store().Stats().cache.refreshes, 3u);
  Find(store, Numbers(1, 1000), 1000, 1000);
}

/// With default options but for a smaller cache: nobody asks for a refresh.
TEST_F(CacheTest, TunesItself) {
  constexpr std::uint64_t kItems = 150'000;
  constexpr std::size_t kBatch = 4096;
  Store store = Store::Create(NewPath(), Shape(8, 16), WithCache({.fraction = 0.1}));
  std::mt19937_64 random(TestSeed());
  std::vector<std::uint64_t> keys(kBatch);
  std::vector<std::byte> values(kBatch * 16);
  std::vector<Result> results(kBatch);
  for (std::uint64_t first = 1; first <= kItems; first += kBatch) {
    std::iota(keys.begin(), keys.end(), first);
    ASSERT_EQ(store.Insert(std::as_bytes(std::span(keys)), values, results), 0u);
  }
  EXPECT_EQ(store.Stats().cache.refreshes, 0u) << "inserts say nothing of what is hot";

  // Four finds of five are of 1500 keys, from `hottest` on.
  const auto find = [&](std::uint64_t operations, std::uint64_t hottest) {
    for (std::uint64_t done = 0; done < operations; done += kBatch) {
      for (std::uint64_t& key : keys) {
        const std::uint64_t rank = random() % 5 != 0 ? random() % 1500 : random() % kItems;
        key = 1 + (hottest + rank * 97) % kItems;
      }
      ASSERT_EQ(store.Find(std::as_bytes(std::span(keys)), values, results), 0u);
    }
  };
  const auto hit_rate = [&](std::uint64_t hottest) {
    const Counted counted(store);
    find(100'000, hottest);
    return static_cast<double>(counted.hits()) / static_cast<double>(counted.found());
  };
  // (A refresh that took long for want of a processor keeps the next one waiting.)
  for (const std::uint64_t hottest : {0, 70'000}) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    double rate = 0;
    while (rate < 0.75 && std::chrono::steady_clock::now() < end) rate = hit_rate(hottest);
    EXPECT_GE(rate, 0.75);
  }
  const std::uint64_t refreshes = store.Stats().cache.refreshes;
  find(2'000'000, 70'000);
  EXPECT_LE(store.Stats().cache.refreshes, refreshes + 5) << "nothing changes any more";
  const double before = hit_rate(70'000);
  for (int i = 0; i < 10; ++i) {  // asked for one behind the other
    store.RefreshCache().Wait();
    find(kBatch, 70'000);
  }
  EXPECT_GE(hit_rate(70'000), before - 0.02) << "a short while says little";
}

TEST_F(CacheTest, LoadsOnlyWhenAskedToWithoutAnInterval) {
  ModelledStore store(NewPath(), Shape(8, 100, 2000), WithCache(Lfu(1)));
  store.Apply(Op::kInsert, Numbers(1, 1000));
  for (int i = 0; i < 100; ++i) store.Apply(Op::kFind, Numbers(1, 1000));
  EXPECT_EQ(store.store().Stats().cache.refreshes, 0u);
  EXPECT_EQ(store.store().Stats().cache.hits, 0u);
}

TEST_F(CacheTest, TicketsOfLoadings) {
  ModelledStore store(NewPath(), Shape(8, 100, 2000), AllCached());
  const std::vector<std::uint64_t> keys = Numbers(1, 1000);
  store.Apply(Op::kInsert, keys);
  { const Ticket dropped = store.store().RefreshCache(); }  // waits
  Find(store, keys, 1000, 1000);
  EXPECT_EQ(store.store().Stats().cache.refreshes, 1u);
  // Several at once; waiting again, and for one that another loading served, is nothing.
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(store.store().RefreshCache());
  for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
    ticket->Wait();
    ticket->Wait();
  }
  EXPECT_GE(store.store().Stats().cache.refreshes, 2u);
  EXPECT_LE(store.store().Stats().cache.refreshes, 6u);
  Find(store, keys, 1000, 1000);
}

TEST_F(CacheTest, TicketsSayWhenTheyAreDone) {
  EXPECT_TRUE(Ticket().Done());
  Store store = Store::Create(NewPath(), Shape(8, 128), AllCached());
  TestBatch batch(8, 128);
  for (std::uint64_t i = 0; i < 20'000; ++i) batch.Add(Op::kInsert, i, i);  // lacks room at first
  Ticket inserts = store.ApplyAsync(batch.Mixed());
  while (!inserts.Done()) std::this_thread::yield();
  inserts.Wait();
  EXPECT_TRUE(inserts.Done());
  EXPECT_EQ(store.Stats().items, 20'000u);
  Ticket refresh = store.RefreshCache();
  while (!refresh.Done()) std::this_thread::yield();
  EXPECT_EQ(store.Stats().cache.refreshes, 1u);
  // Nobody runs a batch, or waits.
  Ticket first = store.RefreshCache();
  Ticket second = store.RefreshCache();
  if (store.Stats().executor == ExecutorKind::kCpu) {
    EXPECT_TRUE(second.Done()) << "who asks for it carries it out";
  }
  while (!second.Done()) std::this_thread::yield();
  EXPECT_TRUE(first.Done());
  EXPECT_EQ(store.Stats().cache.refreshes, 3u);
  Ticket late = store.RefreshCache();
  store.Close();
  EXPECT_TRUE(late.Done());
}

TEST_F(CacheTest, LoadingEndsWithBatchesNotWaitedFor) {
  ModelledStore store(NewPath(), Shape(8, 100, 5000), AllCached());
  store.Apply(Op::kInsert, Numbers(1, 1000));
  TestBatch batch = store.NewBatch();
  for (std::uint64_t key = 1; key <= 1000; ++key) batch.Add(Op::kUpdate, key, key + 7);
  Ticket running = store.store().ApplyAsync(batch.Mixed());
  store.store().RefreshCache().Wait();  // the only thread that could wait for the batch
  running.Wait();
  batch.Compare(store.model());
  Find(store, Numbers(1, 1000), 1000, 1000);
}

TEST_F(CacheTest, CloseDuringALoading) {
  for (const bool wait_after : {false, true}) {
    ModelledStore store(NewPath(), Shape(8, 100, 5000), AllCached());
    store.Apply(Op::kInsert, Numbers(1, 1000));
    TestBatch batch = store.NewBatch();
    for (std::uint64_t key = 1; key <= 2000; ++key) batch.Add(Op::kUpsert, key, key + 7);
    Ticket running = store.store().ApplyAsync(batch.Mixed());
    Ticket loading = store.store().RefreshCache();
    Ticket second = store.store().RefreshCache();
    store.store().Close();
    if (wait_after) loading.Wait();
    running.Wait();
    batch.Compare(store.model());
    EXPECT_EQ(ErrorOf([&] { store.store().RefreshCache().Wait(); }), ErrorCode::kInvalidArgument);
    ExpectSound(store.path(), store.model().size());
  }
}

TEST_F(CacheTest, NothingInTheCacheIsNeeded) {
  // The file as a crash would leave it, while the cache holds all that was written.
  ModelledStore store(NewPath(), Shape(32, 100), AllCached());
  std::mt19937_64 random(TestSeed());
  store.Apply(Op::kInsert, Numbers(1, 1000));
  for (int round = 0; round < 5; ++round) {
    store.store().RefreshCache().Wait();
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 2000; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), 1 + random() % 2000, random());
    }
    store.Apply(batch);
    const std::string crashed = NewPath();
    std::filesystem::copy_file(store.path(), crashed);
    Store again = Store::Open(crashed, AllCached());
    EXPECT_FALSE(again.Stats().recovery.was_clean);
    ExpectContents(again, store.model());
    again.Close();
    ExpectSound(crashed, store.model().size());
  }
}

}  // namespace
}  // namespace gpm::test
