#include "table/directory.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "pm/pool.h"
#include "tests/cache_test_util.h"

/// Stores with a directory, and what is so with or without a cache.
namespace gpm::test {
namespace {

/// The directory alone: searches look nowhere else, so what they say shows what it holds.
class DirectoryTest : public CacheShapeTest {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, DirectoryTest,
    ::testing::Values(ShapeParam(8, 8, "2L-2H-8S"), ShapeParam(8, 128, "2L-2H-8S"),
                      ShapeParam(16, 8, "2L-2H-8S"), ShapeParam(32, 128, "2L-2H-8S"),
                      ShapeParam(8, 128, "1L-2H-4S"), ShapeParam(32, 3, "1L-2H-4S"),
                      ShapeParam(8, 8, "4L-2H-4S"), ShapeParam(16, 128, "4L-2H-4S"),
                      ShapeParam(8, 128, "1L-1H-32S"), ShapeParam(32, 8, "1L-1H-32S"),
                      ShapeParam(8, 1, "2L-4H-1S"), ShapeParam(16, 128, "2L-4H-1S"),
                      ShapeParam(8, 9, "1L-1H-1S"), ShapeParam(32, 128, "4L-4H-2S")),
    ShapeName);

TEST_P(DirectoryTest, StoresWithAndWithoutOneDoTheSame) {
  std::mt19937_64 random(TestSeed());
  ModelledStore with(NewPath(), Create(100), OnlyDirectory());
  ModelledStore without(NewPath(), Create(100), OnlyDirectory(false));
  const std::uint64_t slots = with.store().Stats().capacity_slots;
  for (int session = 0; session < 4; ++session) {
    // Keys are erased and inserted again; in the second half there are more of them than slots.
    const std::uint64_t keys = session < 2 ? 64 + slots / 4 : 4 * slots;
    for (int round = 0; round < 40; ++round) {
      TestBatch batch = RandomBatch(with, random, keys);
      with.Apply(batch);
      without.Apply(batch);
    }
    for (const Op kind : {Op::kErase, Op::kInsert, Op::kUpdate, Op::kFind, Op::kUpsert}) {
      const std::vector<std::uint64_t> some = Numbers(random() % keys, 50);
      const std::uint64_t tag = random();
      with.Apply(kind, some, tag);
      without.Apply(kind, some, tag);
    }
    EXPECT_TRUE(with.store().Stats().cache.directory || session % 2 == 1);
    with.ExpectContents();
    without.ExpectContents();
    EXPECT_EQ(with.model(), without.model());
    // The other way round from now on, and at the end as at first.
    with.Reopen(OnlyDirectory(session % 2 == 1));
    without.Reopen(OnlyDirectory(session % 2 == 0));
    with.Apply(Op::kFind, Numbers(0, keys));
    without.Apply(Op::kFind, Numbers(0, keys));
  }
}

TEST_P(DirectoryTest, ErasedSlotsAreUsedAgain) {
  ModelledStore store(NewPath(), Create(1000), OnlyDirectory());
  // Hash tables of one place for a key fill up badly: with many items they grow beyond all bounds.
  const Geometry geometry = store.store().Stats().geometry;
  const std::uint64_t items =
      geometry.candidates() == 1 ? 30 : store.store().Stats().capacity_slots / 2;
  const std::uint64_t resizes_before = [&] {
    store.Apply(Op::kInsert, Numbers(1, items));
    return store.store().Stats().resizes;
  }();
  for (std::uint64_t round = 0; round < 10; ++round) {  // other keys each time
    Write(store, Op::kErase, Numbers(1 + round * items, items));
    Find(store, Numbers(1 + round * items, items), 0, 0);
    Write(store, Op::kInsert, Numbers(1 + (round + 1) * items, items), round);
    Find(store, Numbers(1 + (round + 1) * items, items), items, inline_values() ? items : 0);
  }
  // (With 8 candidates, keys have no room at this load once in a hundred seeds.)
  if (geometry.candidates() >= 16 && geometry.locations > 1) {
    EXPECT_EQ(store.store().Stats().resizes, resizes_before);
  }
  store.ExpectContents();
  store.Reopen();
}

TEST_P(DirectoryTest, KeysWithOneFingerprint) {
  CreateOptions create = Create(1000);
  create.hash_seed = TestSeed();
  ModelledStore store(NewPath(), create, OnlyDirectory());
  // Of the fingerprints, which are part of the hash, two stand for two parts each: the marks are
  // none. Here all keys have one of those two.
  const std::unique_ptr<Pool> pool = [&] {
    const std::string path = NewPath();
    Store::Create(path, create, OnlyDirectory()).Close();
    return Pool::Open(path, Pool::Options{.read_only = true});
  }();
  std::array<std::vector<std::uint64_t>, 4> numbers_of;
  for (std::uint64_t number = 1; numbers_of[0].size() + numbers_of[1].size() < 100; ++number) {
    const std::string key = MakeKey(number, create.key_size);
    std::vector<std::uint64_t> words(create.key_size / 8);
    std::memcpy(words.data(), key.data(), key.size());
    const KeyHash hash = HashKey(pool->superblock().hash_seed, words.data(), create.key_size / 8);
    const std::uint16_t part = static_cast<std::uint16_t>(hash.g);
    if (part < numbers_of.size()) numbers_of[part].push_back(number);
  }
  std::vector<std::uint64_t> numbers;
  for (const auto& some : numbers_of) numbers.insert(numbers.end(), some.begin(), some.end());
  std::mt19937_64 random(TestSeed());
  std::shuffle(numbers.begin(), numbers.end(), random);
  const auto half = static_cast<std::ptrdiff_t>(numbers.size() / 2);
  const std::vector<std::uint64_t> first(numbers.begin(), numbers.begin() + half);
  const std::vector<std::uint64_t> second(numbers.begin() + half, numbers.end());
  store.Apply(Op::kInsert, first);
  store.Apply(Op::kFind, numbers);
  store.Apply(Op::kUpdate, numbers, 1);
  store.Apply(Op::kErase, second);
  store.Apply(Op::kUpsert, numbers, 2);
  store.Apply(Op::kErase, first);
  store.Apply(Op::kFind, numbers);
  for (int round = 0; round < 50; ++round) {
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 200; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), numbers[random() % numbers.size()], random());
    }
    store.Apply(batch);
  }
  store.ExpectContents();
  store.Reopen();
  store.Apply(Op::kFind, numbers);
}

TEST_P(DirectoryTest, IsMadeFromWhatACrashLeft) {
  ModelledStore store(NewPath(), Create(100), OnlyDirectory());
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 10; ++i) {
      TestBatch batch = RandomBatch(store, random, 2000);
      store.Apply(batch);
    }
    const std::string crashed = NewPath();
    std::filesystem::copy_file(store.path(), crashed);
    Store again = Store::Open(crashed, OnlyDirectory());
    EXPECT_FALSE(again.Stats().recovery.was_clean);
    Model model = store.model();
    for (int i = 0; i < 5; ++i) {
      TestBatch batch = RandomBatch(store, random, 2000);
      again.Apply(batch.Mixed());
      batch.Compare(model);
    }
    ExpectContents(again, model);
    again.Close();
    ExpectSound(crashed, model.size());
  }
}

TEST_F(CacheTest, WithoutADirectoryThereIsNothing) {
  ModelledStore store(NewPath(), Shape(8, 100),
                      WithCache({.directory = false,
                                 .policy = CachePolicy::kOff,
                                 .fraction = 1.0,
                                 .refresh_interval = 100}));
  store.Apply(Op::kInsert, Numbers(1, 2000));
  store.store().RefreshCache().Wait();
  store.Apply(Op::kFind, Numbers(1, 2000));
  const CacheStats stats = store.store().Stats().cache;
  EXPECT_FALSE(stats.directory);
  EXPECT_EQ(stats.directory_bytes, 0u);
  EXPECT_EQ(stats.policy, CachePolicy::kOff);
  EXPECT_EQ(stats.frames, 0u);
  EXPECT_EQ(stats.bytes, 0u);
  EXPECT_EQ(stats.refreshes, 0u);
  EXPECT_EQ(stats.found, 0u);
  EXPECT_EQ(stats.hits, 0u);
}

TEST_F(CacheTest, OnCudaADirectoryIsTheDefault) {
  OpenOptions open = TestOpenOptions();
  open.cache = CacheOptions{};
  const bool cuda = TestExecutor() == ExecutorKind::kCuda;
  const CacheStats stats = Store::Create(NewPath(), Shape(8, 100, 10000), open).Stats().cache;
  EXPECT_EQ(stats.directory, cuda);
  EXPECT_EQ(stats.directory_bytes != 0, cuda);
  EXPECT_EQ(stats.frames != 0, cuda);
}

TEST_F(CacheTest, LongKeysAreLeftOutWhereTheyDoNotFit) {
  std::mt19937_64 random(TestSeed());
  const CreateOptions create = Shape(32, 100, 2000);
  const StoreStats all = Store::Create(NewPath(), create, OnlyDirectory()).Stats();
  const std::uint64_t reserved = TableView::kReservedBuckets * all.geometry.slots;
  const std::uint64_t keys = 32 * (all.capacity_slots + reserved);
  OpenOptions open = OnlyDirectory();
  open.cache.bytes = all.cache.directory_bytes - keys / 2;
  if (all.gpu_bytes != 0) open.cache.bytes = all.gpu_bytes - keys / 2;
  ModelledStore store(NewPath(), create, open);
  EXPECT_EQ(store.store().Stats().cache.directory_bytes, all.cache.directory_bytes - keys);
  for (int round = 0; round < 20; ++round) {
    TestBatch batch = RandomBatch(store, random, 1000);
    store.Apply(batch);
  }
  store.ExpectContents();
  store.Reopen();
}

TEST_F(CacheTest, KeysThatLookAlikeInABatch) {
  CreateOptions create = Shape(16, 20);
  create.hash_seed = 1;
  ModelledStore store(NewPath(), create, OnlyDirectory());
  const std::unique_ptr<Pool> pool = [&] {
    const std::string path = NewPath();
    Store::Create(path, create, OnlyDirectory()).Close();
    return Pool::Open(path, Pool::Options{.read_only = true});
  }();
  // Executors tell the keys of a small batch apart by their hash, or 40 bits of it, or their marks,
  // and sort large ones by 32 bits: two keys with equal ones.
  const auto find_alike = [&](const auto& mark_of) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> marks;
    for (std::uint64_t number = 1;; ++number) {
      std::uint64_t words[2];
      std::memcpy(words, MakeKey(number, 16).data(), 16);
      marks.emplace_back(mark_of(words), number);
      if (marks.size() % (1 << 21) != 0) continue;
      std::ranges::sort(marks);
      for (std::size_t i = 1; i < marks.size(); ++i) {
        if (marks[i].first == marks[i - 1].first) {
          return std::array{marks[i].second, marks[i - 1].second};
        }
      }
    }
  };
  const auto by_hash = find_alike([&](const std::uint64_t* words) {
    return HashKey(pool->superblock().hash_seed, words, 2).h >> 24;
  });
  const auto by_mark = find_alike([&](const std::uint64_t* words) {
    return DigestKey(pool->superblock().hash_seed, words, 2);
  });
  std::mt19937_64 random(TestSeed());
  constexpr Op kOps[] = {Op::kFind, Op::kInsert, Op::kUpdate, Op::kUpsert, Op::kErase};
  for (int round = 0; round < 50; ++round) {
    TestBatch batch = store.NewBatch();
    const int operations = round % 10 == 0 ? 6000 : 100;
    for (int i = 0; i < operations; ++i) {
      const auto& alike = round % 2 == 0 ? by_hash : by_mark;
      const std::uint64_t key = i % 3 == 0 ? 1 + random() % 50 : alike[random() % 2];
      batch.Add(kOps[random() % 5], key, random());
    }
    store.Apply(batch);
  }
  store.ExpectContents();
}

TEST_F(CacheTest, BatchesThatOnlyWriteTheSameKeysAgain) {
  std::mt19937_64 random(TestSeed());
  constexpr Op kWrites[] = {Op::kInsert, Op::kUpdate, Op::kUpsert};
  for (const std::uint32_t key_size : {8u, 16u}) {
    ModelledStore store(NewPath(), Shape(key_size, 100), OnlyDirectory());
    for (int round = 0; round < 60; ++round) {
      const Op kind = round % 5 == 4 ? Op::kErase : kWrites[random() % 3];
      const std::uint64_t operations = 1 + random() % (round % 10 == 0 ? 4096 : 200);
      TestBatch batch = store.NewBatch();
      for (std::uint64_t i = 0; i < operations; ++i) batch.Add(kind, random() % 150, random());
      batch.ApplySingle(store.store(), kind);
      batch.Compare(store.model());
    }
    store.ExpectContents();
    store.Reopen();
  }
}

TEST_F(CacheTest, AFullPoolHasCellsForTheKeysOfABatch) {
  OpenOptions open = OnlyDirectory();
  open.max_bytes = 4 << 20;
  ModelledStore store(NewPath(), Shape(8, 128), open);
  TestBatch all = store.NewBatch();
  for (const std::uint64_t number : Numbers(0, 50'000)) all.Add(Op::kInsert, number, number);
  all.ApplySingle(store.store(), Op::kInsert);
  all.Compare(store.model(), true);
  ASSERT_LT(store.model().size(), 50'000u);
  TestBatch some = store.NewBatch();
  std::vector<std::uint64_t> kept;
  for (std::uint64_t number = 0; number < 50'000; ++number) {
    if (all.result(number) != Result::kOk) continue;
    if (some.size() < 20) {
      some.Add(Op::kErase, number, 0);
    } else if (kept.size() < 10) {
      kept.push_back(number);
    }
  }
  some.ApplySingle(store.store(), Op::kErase);
  some.Compare(store.model());
  TestBatch upserts = store.NewBatch();
  for (std::uint64_t i = 0; i < 1000; ++i) upserts.Add(Op::kUpsert, kept[i % 10], i);
  upserts.ApplySingle(store.store(), Op::kUpsert);
  upserts.Compare(store.model());
  store.ExpectContents();
  store.Reopen();
}

TEST_F(CacheTest, WhoWantsNoValuesReadsNoPersistentMemory) {
  ModelledStore store(NewPath(), Shape(8, 128), OnlyDirectory());
  store.Apply(Op::kInsert, Numbers(1, 100));
  Find(store, Numbers(1, 200), 100, 0);
  TestBatch batch = store.NewBatch();
  for (std::uint64_t key = 1; key <= 200; ++key) batch.Add(Op::kFind, key, 0);
  Batch without_values = batch.Mixed();
  without_values.found = {};
  const Counted counted(store.store());
  store.store().Apply(without_values);
  EXPECT_EQ(counted.found(), 100u);
  EXPECT_EQ(counted.hits(), 100u);
  for (std::size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(batch.result(i), i < 100 ? Result::kOk : Result::kNotFound);
  }
}

}  // namespace
}  // namespace gpm::test
