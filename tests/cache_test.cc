#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <thread>

#include "tests/test_util.h"

/// Stores with a cache. What is in the cache is known where every bucket has a copy (policy random,
/// fraction 1: buckets that were never used too), and Stats says how many operations found their
/// key there.
namespace gpm::test {
namespace {

OpenOptions WithCache(const CacheOptions& cache) {
  OpenOptions open = TestOpenOptions();
  open.cache = cache;
  return open;
}

/// A copy of every bucket, once the cache is loaded, which it is only when asked to.
OpenOptions AllCached() {
  return WithCache({.policy = CachePolicy::kRandom, .fraction = 1.0, .load_interval = 0});
}

CacheOptions Lfu(double fraction) {
  return {.policy = CachePolicy::kLfu, .fraction = fraction, .load_interval = 0};
}

/// How far the counters of the cache went on.
class Counted {
 public:
  explicit Counted(Store& store) : store_(store), before_(store.Stats().cache) {}
  std::uint64_t hits() const { return store_.Stats().cache.hits - before_.hits; }
  std::uint64_t found() const { return store_.Stats().cache.found - before_.found; }

 private:
  Store& store_;
  CacheStats before_;
};

class CacheTest : public PoolTest {
 protected:
  /// Applies a kind to keys of which `hits` are found in the cache. Writes may miss it where
  /// another thread of the batch is at work on the same bucket.
  static void ApplyHitting(ModelledStore& store, Op kind, const std::vector<std::uint64_t>& keys,
                           std::uint64_t tag, std::uint64_t hits) {
    SCOPED_TRACE(OpName(kind));
    const Counted counted(store.store());
    store.Apply(kind, keys, tag);
    if (kind == Op::kFind) {
      EXPECT_EQ(counted.hits(), hits);
    } else {
      EXPECT_LE(counted.hits(), hits);
      if (hits > 0) {
        EXPECT_GT(counted.hits(), 0u);
      }
    }
    EXPECT_GE(counted.found(), hits);
  }
};

/// Key size, value size, geometry.
class CacheShapeTest
    : public CacheTest,
      public ::testing::WithParamInterface<std::tuple<std::uint32_t, std::uint32_t, const char*>> {
 protected:
  static constexpr std::uint64_t kKeys = 2000;
  CreateOptions Create(std::uint64_t initial_capacity = 2 * kKeys) const {
    CreateOptions create =
        Shape(std::get<0>(GetParam()), std::get<1>(GetParam()), initial_capacity);
    create.geometry = ParseGeometry(std::get<2>(GetParam()));
    return create;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, CacheShapeTest,
    ::testing::Values(std::make_tuple(8u, 8u, "2L-2H-8S"), std::make_tuple(8u, 100u, "2L-2H-8S"),
                      std::make_tuple(32u, 4u, "2L-2H-8S"), std::make_tuple(32u, 130u, "2L-2H-8S"),
                      std::make_tuple(8u, 16u, "1L-1H-32S"), std::make_tuple(16u, 9u, "4L-4H-2S"),
                      std::make_tuple(128u, 2000u, "4L-2H-4S")),
    [](const auto& shape) {
      std::string geometry = std::get<2>(shape.param);
      std::replace(geometry.begin(), geometry.end(), '-', '_');
      return "key" + std::to_string(std::get<0>(shape.param)) + "_value" +
             std::to_string(std::get<1>(shape.param)) + "_" + geometry;
    });

TEST_P(CacheShapeTest, EveryWriteIsSeenByTheNextFindAndStaysCached) {
  ModelledStore store(NewPath(), Create(), AllCached());
  const std::vector<std::uint64_t> keys = Numbers(1, kKeys);
  store.Apply(Op::kInsert, keys);
  ApplyHitting(store, Op::kFind, keys, 0, 0);  // not loaded yet
  store.store().LoadCache().Wait();
  EXPECT_EQ(store.store().Stats().cache.loads, 1u);
  ApplyHitting(store, Op::kFind, keys, 0, kKeys);
  ApplyHitting(store, Op::kUpdate, keys, 1'000'000, kKeys);
  ApplyHitting(store, Op::kFind, keys, 0, kKeys);
  ApplyHitting(store, Op::kUpsert, keys, 2'000'000, kKeys);
  ApplyHitting(store, Op::kFind, keys, 0, kKeys);
  ApplyHitting(store, Op::kInsert, keys, 3'000'000, kKeys);  // exist: values stay
  ApplyHitting(store, Op::kFind, keys, 0, kKeys);
  const std::vector<std::uint64_t> half(keys.begin(), keys.begin() + kKeys / 2);
  ApplyHitting(store, Op::kErase, half, 0, kKeys / 2);
  ApplyHitting(store, Op::kFind, keys, 0, kKeys / 2);
  ApplyHitting(store, Op::kErase, half, 0, 0);  // gone
  ApplyHitting(store, Op::kInsert, half, 4'000'000, 0);
  ApplyHitting(store, Op::kFind, keys, 0, kKeys);  // inserted into the cache too
  const std::vector<std::uint64_t> others = Numbers(kKeys + 1, kKeys / 2);
  ApplyHitting(store, Op::kUpsert, others, 5'000'000, 0);
  ApplyHitting(store, Op::kUpdate, others, 6'000'000, kKeys / 2);
  ApplyHitting(store, Op::kFind, others, 0, kKeys / 2);
  EXPECT_EQ(store.store().Stats().resizes, 0u) << "the test counts on it";
  store.ExpectContents();
  store.Reopen();
}

TEST_P(CacheShapeTest, AResizeDropsTheCacheAndItIsLoadedAgain) {
  ModelledStore store(NewPath(), Create(100), AllCached());
  std::uint64_t next = 1;
  for (int resize = 0; resize < 3; ++resize) {
    store.store().LoadCache().Wait();
    const StoreStats before = store.store().Stats();
    EXPECT_EQ(before.cache.copies, before.capacity_slots / before.geometry.slots);
    while (store.store().Stats().resizes == before.resizes) {
      store.Apply(Op::kInsert, Numbers(next, 50));
      next += 50;
    }
    const std::uint64_t items = next - 1;
    const StoreStats after = store.store().Stats();
    EXPECT_EQ(after.cache.copies, after.capacity_slots / after.geometry.slots);
    EXPECT_GT(after.cache.bytes, before.cache.bytes);
    ApplyHitting(store, Op::kFind, Numbers(1, items), 0, 0);
    store.store().LoadCache().Wait();
    ApplyHitting(store, Op::kFind, Numbers(1, items), 0, items);
  }
  store.ExpectContents();
}

TEST_P(CacheShapeTest, MixedBatchesWithLoadingsInBetween) {
  std::mt19937_64 random(TestSeed());
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom}) {
    for (const double fraction : {0.05, 0.5, 1.0}) {
      ModelledStore store(NewPath(), Create(100),
                          WithCache({.policy = policy, .fraction = fraction, .load_interval = 0}));
      std::vector<Ticket> loadings;
      for (int round = 0; round < 40; ++round) {
        TestBatch batch = store.NewBatch();
        for (std::uint64_t size = 1 + random() % 300; size > 0; --size) {
          const std::uint64_t key = random() % 4 == 0 ? random() % 2000 : random() % 64;
          batch.Add(static_cast<Op>(random() % kOpKinds), key == 63 ? kAllOnes : key, random());
        }
        store.Apply(batch);
        if (round % 3 == 0) {
          loadings.push_back(store.store().LoadCache());
        } else if (round % 5 == 0) {
          store.store().LoadCache().Wait();
        }
      }
      const CacheStats stats = store.store().Stats().cache;
      EXPECT_GT(stats.loads, 5u);
      EXPECT_GT(stats.hits, 0u);
      EXPECT_LE(stats.hits, stats.found);
      EXPECT_EQ(stats.policy, policy);
      loadings.clear();
      store.ExpectContents();
      store.Reopen();
    }
  }
}

TEST_F(CacheTest, HotKeysHitAndColdOnesDoNot) {
  constexpr std::uint64_t kKeys = 20000;
  constexpr std::uint64_t kHot = 20;
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    for (const std::uint32_t value_size : {8u, 128u}) {
      ModelledStore store(NewPath(), Shape(8, value_size, kKeys),
                          WithCache({.policy = policy, .fraction = 0.05, .load_interval = 0}));
      store.Apply(Op::kInsert, Numbers(1, kKeys));
      const StoreStats stats = store.store().Stats();
      ASSERT_GT(stats.cache.copies, kHot);
      // Values are kept of used buckets alone; where they are inline, copies have them, too.
      const std::uint64_t most =
          (value_size == 8 ? stats.cache.copies : kHot) * stats.geometry.slots;
      ASSERT_LT(2 * most, kKeys);
      for (std::uint64_t first : {1, 5000}) {  // what is hot changes
        const std::vector<std::uint64_t> hot = Numbers(first, kHot);
        for (int i = 0; i < 20; ++i) store.Apply(Op::kFind, hot);
        store.store().LoadCache().Wait();
        ApplyHitting(store, Op::kFind, hot, 0, kHot);
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
    ModelledStore store(NewPath(), Shape(8, 8, 20000),
                        WithCache({.policy = policy, .fraction = 0.01, .load_interval = 0}));
    store.Apply(Op::kInsert, Numbers(1, 20000));
    ASSERT_GT(store.store().Stats().cache.copies, 20u);
    ASSERT_LT(store.store().Stats().cache.copies, 100u);
    const std::vector<std::uint64_t> often = Numbers(1, 20);
    const std::vector<std::uint64_t> last = Numbers(10001, 20);
    for (int i = 0; i < 20; ++i) store.Apply(Op::kFind, often);
    store.Apply(Op::kFind, Numbers(1000, 2000));
    store.Apply(Op::kFind, last);
    store.store().LoadCache().Wait();
    ApplyHitting(store, Op::kFind, policy == CachePolicy::kLfu ? often : last, 0, 20);
  }
}

TEST_F(CacheTest, ReservedKeysAreNotCachedButRight) {
  for (const std::uint32_t key_size : {8u, 32u}) {
    for (const std::uint32_t value_size : {8u, 100u}) {
      ModelledStore store(NewPath(), Shape(key_size, value_size), AllCached());
      const std::vector<std::uint64_t> keys = {0, kAllOnes};
      store.Apply(Op::kInsert, keys);
      store.store().LoadCache().Wait();
      // Longer keys have no reserved ones.
      const std::uint64_t hits = key_size == 8 ? 0 : 2;
      ApplyHitting(store, Op::kFind, keys, 0, hits);
      ApplyHitting(store, Op::kUpdate, keys, 10, hits);
      ApplyHitting(store, Op::kFind, keys, 0, hits);
      ApplyHitting(store, Op::kErase, keys, 0, hits);
      ApplyHitting(store, Op::kFind, keys, 0, 0);
      ApplyHitting(store, Op::kUpsert, keys, 20, 0);
      ApplyHitting(store, Op::kFind, keys, 0, hits);
      store.Reopen();
    }
  }
}

TEST_F(CacheTest, OperationsOnOneKeyTakeEffectInBatchOrder) {
  for (const std::uint32_t value_size : {4u, 128u}) {
    for (const std::uint64_t key : {std::uint64_t{5}, std::uint64_t{0}, kAllOnes}) {
      SCOPED_TRACE(key);
      ModelledStore store(NewPath(), Shape(8, value_size), AllCached());
      store.Apply(Op::kInsert, {key, 6, 7});
      store.store().LoadCache().Wait();
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
      ApplyHitting(store, Op::kFind, {key, 6}, 0, key == 5 ? 2 : 1);
      store.ExpectContents();
    }
  }
}

TEST_F(CacheTest, EveryFindOfAKeyInABatchCounts) {
  ModelledStore store(NewPath(), Shape(8, 100), AllCached());
  store.Apply(Op::kInsert, {5});
  store.store().LoadCache().Wait();
  const std::vector<std::uint64_t> same(1000, 5);
  ApplyHitting(store, Op::kFind, same, 0, 1000);
  TestBatch mixed = store.NewBatch();  // goes another way than finds alone
  for (std::uint64_t i = 0; i < 999; ++i) mixed.Add(Op::kFind, 5, 0);
  mixed.Add(Op::kUpdate, 5, 1);
  const Counted counted(store.store());
  store.Apply(mixed);
  EXPECT_EQ(counted.found(), 1000u);
  EXPECT_EQ(counted.hits(), 1000u);
}

TEST_F(CacheTest, BytesAreABudget) {
  for (const std::uint64_t bytes : {1u << 15, 1u << 18, 1u << 24}) {
    const std::uint64_t without = [&] {
      return Store::Create(NewPath(), Shape(16, 100), WithCache({.policy = CachePolicy::kOff}))
          .Stats()
          .gpu_bytes;
    }();
    ModelledStore store(NewPath(), Shape(16, 100),
                        WithCache({.policy = CachePolicy::kRandom,
                                   .fraction = {},
                                   .bytes = without + bytes,
                                   .load_interval = 0}));
    const StoreStats small = store.store().Stats();
    EXPECT_LE(small.gpu_bytes, without + bytes);
    EXPECT_GT(small.cache.copies, 0u);
    for (std::uint64_t key = 1; key < 20000; key += 1000) {
      store.Apply(Op::kInsert, Numbers(key, 1000));
      store.store().LoadCache().Wait();
      const CacheStats cache = store.store().Stats().cache;
      EXPECT_LE(cache.bytes, bytes);
      EXPECT_LE(cache.copies * 16 * 8, bytes);
    }
    EXPECT_GT(store.store().Stats().resizes, 3u);
    store.Apply(Op::kFind, Numbers(1, 20000));
    store.ExpectContents();
  }
}

TEST_F(CacheTest, WithoutACacheLoadingIsNothing) {
  const CacheOptions kinds[] = {{.policy = CachePolicy::kOff, .fraction = 1.0},
                                {.policy = CachePolicy::kLfu, .fraction = 0.0},
                                {.policy = CachePolicy::kLru, .fraction = 1.0, .bytes = 100},
                                {.policy = CachePolicy::kRandom, .fraction = 0.001}};
  for (CacheOptions cache : kinds) {
    cache.load_interval = 100;
    ModelledStore store(NewPath(), Shape(8, 100), WithCache(cache));
    store.Apply(Op::kInsert, Numbers(1, 500));
    for (int i = 0; i < 3; ++i) store.store().LoadCache().Wait();
    Ticket dropped = store.store().LoadCache();
    store.Apply(Op::kFind, Numbers(1, 500));
    const CacheStats stats = store.store().Stats().cache;
    EXPECT_EQ(stats.policy, CachePolicy::kOff);
    EXPECT_EQ(stats.copies, 0u);
    EXPECT_EQ(stats.bytes, 0u);
    EXPECT_EQ(stats.loads, 0u);
    EXPECT_EQ(stats.hits, 0u);
    store.ExpectContents();
  }
  if (TestExecutor() == ExecutorKind::kCpu) {  // whose default it is
    Store store = Store::Create(NewPath(), Shape(8, 100), WithCache({}));
    EXPECT_EQ(store.Stats().cache.copies, 0u);
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

TEST_F(CacheTest, LoadsByItselfEverySoManyOperations) {
  ModelledStore store(
      NewPath(), Shape(8, 100, 2000),
      WithCache({.policy = CachePolicy::kLfu, .fraction = 1, .load_interval = 5000}));
  store.Apply(Op::kInsert, Numbers(1, 1000));
  store.Apply(Op::kFind, Numbers(1, 1000));
  EXPECT_LE(store.store().Stats().cache.loads, 2u);  // when it was new, and after 5000 / 8
  // A loading takes a step with each batch; on a GPU some batches more.
  for (int i = 0; i < 20'000 && store.store().Stats().cache.loads < 3; ++i) {
    store.Apply(Op::kFind, Numbers(1, 1000));
  }
  EXPECT_GE(store.store().Stats().cache.loads, 3u);
  ApplyHitting(store, Op::kFind, Numbers(1, 1000), 0, 1000);
}

TEST_F(CacheTest, LoadsOnlyWhenAskedToWithoutAnInterval) {
  ModelledStore store(NewPath(), Shape(8, 8, 2000), WithCache(Lfu(1)));
  store.Apply(Op::kInsert, Numbers(1, 1000));
  for (int i = 0; i < 100; ++i) store.Apply(Op::kFind, Numbers(1, 1000));
  EXPECT_EQ(store.store().Stats().cache.loads, 0u);
  EXPECT_EQ(store.store().Stats().cache.hits, 0u);
}

TEST_F(CacheTest, TicketsOfLoadings) {
  ModelledStore store(NewPath(), Shape(8, 100, 2000), AllCached());
  const std::vector<std::uint64_t> keys = Numbers(1, 1000);
  store.Apply(Op::kInsert, keys);
  { const Ticket dropped = store.store().LoadCache(); }  // waits
  ApplyHitting(store, Op::kFind, keys, 0, 1000);
  EXPECT_EQ(store.store().Stats().cache.loads, 1u);
  // Several at once; waiting again, and for one that another loading served, is nothing.
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(store.store().LoadCache());
  for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
    ticket->Wait();
    ticket->Wait();
  }
  EXPECT_GE(store.store().Stats().cache.loads, 2u);
  EXPECT_LE(store.store().Stats().cache.loads, 6u);
  ApplyHitting(store, Op::kFind, keys, 0, 1000);
}

TEST_F(CacheTest, LoadingEndsWithBatchesNotWaitedFor) {
  ModelledStore store(NewPath(), Shape(8, 100, 5000), AllCached());
  store.Apply(Op::kInsert, Numbers(1, 1000));
  TestBatch batch = store.NewBatch();
  for (std::uint64_t key = 1; key <= 1000; ++key) batch.Add(Op::kUpdate, key, key + 7);
  Ticket running = store.store().ApplyAsync(batch.Mixed());
  store.store().LoadCache().Wait();  // the only thread that could wait for the batch
  running.Wait();
  batch.Compare(store.model());
  ApplyHitting(store, Op::kFind, Numbers(1, 1000), 0, 1000);
}

TEST_F(CacheTest, CloseDuringALoading) {
  for (const bool wait_after : {false, true}) {
    ModelledStore store(NewPath(), Shape(8, 100, 5000), AllCached());
    store.Apply(Op::kInsert, Numbers(1, 1000));
    TestBatch batch = store.NewBatch();
    for (std::uint64_t key = 1; key <= 2000; ++key) batch.Add(Op::kUpsert, key, key + 7);
    Ticket running = store.store().ApplyAsync(batch.Mixed());
    Ticket loading = store.store().LoadCache();
    Ticket second = store.store().LoadCache();
    store.store().Close();
    if (wait_after) loading.Wait();
    running.Wait();
    batch.Compare(store.model());
    EXPECT_EQ(ErrorOf([&] { store.store().LoadCache().Wait(); }), ErrorCode::kInvalidArgument);
    ExpectSound(store.path(), store.model().size());
  }
}

TEST_F(CacheTest, NothingInTheCacheIsNeeded) {
  // The file as a crash would leave it, while the cache holds all that was written.
  ModelledStore store(NewPath(), Shape(32, 100), AllCached());
  std::mt19937_64 random(TestSeed());
  store.Apply(Op::kInsert, Numbers(1, 1000));
  for (int round = 0; round < 5; ++round) {
    store.store().LoadCache().Wait();
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

/// Threads that write and find, while another loads the cache without a pause. Values name their
/// key, writer and the writer's count.
class CacheConcurrencyTest : public CacheShapeTest {
 protected:
  static constexpr std::uint32_t kThreads = 3;
  static constexpr std::uint64_t kShared = 40;  ///< keys that all threads write

  static std::uint64_t Tag(std::uint64_t key, std::uint64_t writer, std::uint64_t count) {
    return key << 40 | writer << 32 | count;
  }
  static int Rounds(std::uint64_t otherwise) {
    const std::uint64_t operations = EnvironmentNumber("GPM_TEST_OPS", 4'000'000);
    return static_cast<int>(
        std::max<std::uint64_t>(10, std::min(otherwise, otherwise * operations / 1'000'000)));
  }

  /// Runs work(thread) in all threads, and loadings beside it.
  template <class Work>
  void BesideLoadings(Store& store, const Work& work) {
    std::atomic<std::uint32_t> at_work{kThreads};
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        work(t);
        --at_work;
      });
    }
    while (at_work > 0) store.LoadCache().Wait();
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(store.Stats().cache.loads, 1u);
  }

  /// What finds say, from the cache where it has something, is what is in the pool.
  void ExpectNothingStale(Store& store, std::uint64_t key_limit) {
    Model model;
    store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      model.emplace(AsString(key), AsString(value));
    });
    TestBatch batch(store.key_size(), store.value_size());
    for (std::uint64_t key = 0; key < key_limit; ++key) batch.Add(Op::kFind, key, 0);
    for (int i = 0; i < 2; ++i) {
      store.Apply(batch.Mixed());
      batch.Compare(model);
      store.LoadCache().Wait();
    }
    ExpectContents(store, model);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, CacheConcurrencyTest,
                         ::testing::Values(std::make_tuple(8u, 8u, "2L-2H-8S"),
                                           std::make_tuple(8u, 100u, "2L-2H-8S"),
                                           std::make_tuple(32u, 8u, "2L-2H-8S"),
                                           std::make_tuple(32u, 130u, "1L-2H-16S")),
                         [](const auto& shape) {
                           return "key" + std::to_string(std::get<0>(shape.param)) + "_value" +
                                  std::to_string(std::get<1>(shape.param));
                         });

TEST_P(CacheConcurrencyTest, SharedAndOwnKeysBesideLoadings) {
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom}) {
    SCOPED_TRACE(CachePolicyName(policy));
    const std::string path = NewPath();
    // Half of a small table: what has a copy changes all the time. It grows in the middle.
    Store store = Store::Create(
        path, Create(100), WithCache({.policy = policy, .fraction = 0.5, .load_interval = 1000}));
    std::vector<Model> models(kThreads);
    BesideLoadings(store, [&](std::uint32_t t) {
      std::mt19937_64 random(TestSeed() + t);
      std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> last;  // count that was seen
      std::uint64_t count = 0;
      const int rounds = Rounds(120);
      for (int round = 0; round < rounds && !HasFailure(); ++round) {
        TestBatch shared(store.key_size(), store.value_size());
        for (std::uint64_t size = 1 + random() % 300; size > 0; --size) {
          const std::uint64_t key = random() % kShared;
          const std::uint64_t draw = random() % 8;
          const Op op = draw < 4   ? Op::kFind
                        : draw < 6 ? Op::kUpdate
                        : draw < 7 ? Op::kUpsert
                                   : Op::kErase;
          shared.Add(op, key, Tag(key, t, ++count));
        }
        store.Apply(shared.Mixed());
        for (std::size_t i = 0; i < shared.size(); ++i) {
          if (shared.op(i) != Op::kFind || shared.result(i) != Result::kOk) continue;
          const std::optional<std::uint64_t> tag = ValueTag(shared.found(i));
          const std::uint64_t key = KeyNumber(shared.key(i));
          ASSERT_TRUE(tag.has_value()) << "torn value of key " << key;
          ASSERT_EQ(*tag >> 40, key) << "value of another key";
          std::uint64_t& seen = last[{key, *tag >> 32 & 0xFF}];
          ASSERT_GE(*tag & 0xFFFFFFFF, seen) << "key " << key << " went back in time";
          seen = *tag & 0xFFFFFFFF;
        }
        TestBatch own(store.key_size(), store.value_size());
        const std::uint64_t range = round < rounds / 2 ? 200 : 2000;
        for (std::uint64_t size = 1 + random() % 300; size > 0; --size) {
          const std::uint64_t key = kShared + random() % range * kThreads + t;
          const Op op = random() % 3 == 0 ? Op::kFind : static_cast<Op>(random() % kOpKinds);
          own.Add(op, key, random());
        }
        store.Apply(own.Mixed());
        own.Compare(models[t]);
      }
    });
    EXPECT_GT(store.Stats().cache.hits, 0u);
    Model own;
    for (const Model& model : models) own.insert(model.begin(), model.end());
    store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      if (KeyNumber(key) >= kShared) {
        EXPECT_EQ(own[AsString(key)], AsString(value));
        own.erase(AsString(key));
      }
    });
    EXPECT_TRUE(own.empty()) << own.size() << " items are missing";
    ExpectNothingStale(store, kShared + 2000 * kThreads);
    const std::uint64_t items = store.Stats().items;
    store.Close();
    ExpectSound(path, items);
  }
}

TEST_P(CacheConcurrencyTest, FullPoolBesideLoadings) {
  // Batches that found no room go on alone, in phases of their own.
  const std::string path = NewPath();
  OpenOptions open = AllCached();
  open.max_bytes = std::uint64_t{4} << 20;
  Store store = Store::Create(path, Create(100), open);
  std::vector<Model> models(kThreads);
  BesideLoadings(store, [&](std::uint32_t t) {
    std::mt19937_64 random(TestSeed() + t);
    const int rounds = Rounds(100);
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      TestBatch batch(store.key_size(), store.value_size());
      std::map<std::uint64_t, Op> kinds;  // of a key, once: what finds no room leaves no doubt
      for (int i = 0; i < 1500; ++i) {
        kinds[random() % 30000 * kThreads + t] =
            random() % 2 == 0 ? Op::kUpsert : static_cast<Op>(random() % kOpKinds);
      }
      for (const auto& [key, kind] : kinds) batch.Add(kind, key, random());
      store.Apply(batch.Mixed());
      batch.Compare(models[t], true);
    }
  });
  Model all;
  for (const Model& model : models) all.insert(model.begin(), model.end());
  ExpectContents(store, all);
  ExpectNothingStale(store, 30000 * kThreads);
  store.Close();
  ExpectSound(path, all.size());
}

}  // namespace
}  // namespace gpm::test
