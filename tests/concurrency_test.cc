#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "tests/test_util.h"

/// Batches from several host threads at once. Values are self-describing (every 8 bytes derive from
/// a tag, and the tag names key, writer and the writer's count), so that torn values, values of
/// other keys and values that go back in time are seen. GoogleTest's assertions are thread-safe
/// where pthreads are.
namespace gpm::test {
namespace {

constexpr std::uint32_t kThreads = 4;

/// Key number (24 bits), writer (8 bits), the writer's count (32 bits).
std::uint64_t Tag(std::uint64_t key, std::uint64_t writer, std::uint64_t count) {
  return key << 40 | writer << 32 | count;
}
std::uint64_t TagKey(std::uint64_t tag) { return tag >> 40; }
std::uint64_t TagWriter(std::uint64_t tag) { return tag >> 32 & 0xFF; }
std::uint64_t TagCount(std::uint64_t tag) { return tag & 0xFFFFFFFF; }

/// Key size, value size.
class ConcurrencyTest
    : public PoolTest,
      public ::testing::WithParamInterface<std::pair<std::uint32_t, std::uint32_t>> {
 protected:
  CreateOptions Shape() const {
    CreateOptions create;
    create.key_size = GetParam().first;
    create.value_size = GetParam().second;
    return create;
  }
  TestBatch NewBatch() const { return TestBatch(GetParam().first, GetParam().second); }

  /// Batches per thread: fewer where a sanitizer (or the caller's GPM_TEST_OPS) asks for less.
  static std::uint64_t Rounds(std::uint64_t otherwise) {
    const std::uint64_t operations = EnvironmentNumber("GPM_TEST_OPS", 4'000'000);
    return std::max<std::uint64_t>(10, std::min(otherwise, otherwise * operations / 1'000'000));
  }

  template <class Work>
  static void InThreads(Work&& work) {
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) threads.emplace_back([&work, t] { work(t); });
    for (std::thread& thread : threads) thread.join();
  }

  /// What one thread saw: for each key and writer, that writer's count only grows.
  class Witness {
   public:
    void Saw(const TestBatch& batch, std::size_t i) {
      const std::optional<std::uint64_t> tag = ValueTag(batch.found(i));
      ASSERT_TRUE(tag.has_value()) << "torn value of key " << KeyNumber(batch.key(i));
      ASSERT_EQ(TagKey(*tag), KeyNumber(batch.key(i))) << "value of another key";
      std::uint64_t& last = counts_[{TagKey(*tag), TagWriter(*tag)}];
      ASSERT_GE(TagCount(*tag), last) << "key " << TagKey(*tag) << " went back in time";
      last = TagCount(*tag);
    }

   private:
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> counts_;
  };

  /// At the end: each key once, with a whole value that was the last of its writer; counts right;
  /// the closed pool sound.
  /// @param last the last count that a writer wrote to a key
  void ExpectConsistentEnd(Store& store, const std::string& path,
                           const std::vector<std::map<std::uint64_t, std::uint64_t>>& last) {
    std::set<std::uint64_t> seen;
    store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      const std::uint64_t number = KeyNumber(key);
      EXPECT_TRUE(seen.insert(number).second) << "two copies of key " << number;
      const std::optional<std::uint64_t> tag = ValueTag(value);
      ASSERT_TRUE(tag.has_value()) << "torn value of key " << number;
      ASSERT_EQ(TagKey(*tag), number);
      const auto& writer = last.at(TagWriter(*tag));
      ASSERT_TRUE(writer.contains(number));
      EXPECT_EQ(TagCount(*tag), writer.at(number)) << "not the last of writer " << TagWriter(*tag);
    });
    EXPECT_EQ(store.Stats().items, seen.size());
    store.Close();
    ExpectSound(path, seen.size());
    Store again = Store::Open(path, TestOpenOptions());
    const StoreStats stats = again.Stats();
    EXPECT_EQ(stats.items, seen.size());
    if (stats.value_cells > 0) {
      EXPECT_EQ(stats.free_cells, stats.value_cells - seen.size());
    }
  }
};

using ShapePair = std::pair<std::uint32_t, std::uint32_t>;
INSTANTIATE_TEST_SUITE_P(Shapes, ConcurrencyTest,
                         ::testing::Values(ShapePair{8, 8}, ShapePair{8, 128}, ShapePair{32, 100}),
                         [](const auto& shape) {
                           return "key" + std::to_string(shape.param.first) + "_value" +
                                  std::to_string(shape.param.second);
                         });

TEST_P(ConcurrencyTest, DisjointKeysActAsIfAlone) {
  const std::string path = NewPath();
  Store store = Store::Create(path, Shape(), TestOpenOptions());
  std::vector<Model> models(kThreads);
  InThreads([&](std::uint32_t t) {
    std::mt19937_64 random(TestSeed() + t);
    for (std::uint64_t round = 0; round < Rounds(60) && !HasFailure(); ++round) {
      TestBatch batch = NewBatch();
      const std::uint64_t range = 100 + 300 * round;  // grows: resizes happen all the time
      for (std::uint64_t size = 1 + random() % 2000; size > 0; --size) {
        const std::uint64_t draw = random() % 8;
        const Op op = draw < 4 ? Op::kInsert : static_cast<Op>(random() % kOpKinds);
        batch.Add(op, random() % range * kThreads + t, random());
      }
      if (round % 3 == 0) {
        store.ApplyAsync(batch.Mixed()).Wait();
      } else {
        store.Apply(batch.Mixed());
      }
      batch.Compare(models[t]);
    }
  });
  Model all;
  for (const Model& model : models) all.insert(model.begin(), model.end());
  EXPECT_GT(store.Stats().resizes, 1u);
  ExpectContents(store, all);
  store.Close();
  ExpectSound(path, all.size());
}

TEST_P(ConcurrencyTest, OverlappingWritersAndReaders) {
  const std::string path = NewPath();
  constexpr std::uint64_t kKeys = 1500;
  Store store = Store::Create(path, Shape(), TestOpenOptions());
  std::vector<std::map<std::uint64_t, std::uint64_t>> last(kThreads);
  InThreads([&](std::uint32_t t) {
    std::mt19937_64 random(TestSeed() + t);
    Witness witness;
    std::uint64_t count = 0;
    for (std::uint64_t round = 0; round < Rounds(100) && !HasFailure(); ++round) {
      TestBatch batch = NewBatch();
      for (std::uint64_t size = 1 + random() % 1000; size > 0; --size) {
        // Some keys are hot; all threads write, and erase, all of them.
        const std::uint64_t key = random() % 2 == 0 ? random() % 16 : random() % kKeys;
        const std::uint64_t draw = random() % 8;
        const Op op = draw < 3   ? Op::kUpsert
                      : draw < 5 ? Op::kUpdate
                      : draw < 7 ? Op::kFind
                                 : Op::kErase;
        batch.Add(op, key, Tag(key, t, ++count));
      }
      store.Apply(batch.Mixed());
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const std::uint64_t key = KeyNumber(batch.key(i));
        if (batch.op(i) == Op::kFind) {
          ASSERT_TRUE(batch.result(i) == Result::kOk || batch.result(i) == Result::kNotFound);
          if (batch.result(i) == Result::kOk) witness.Saw(batch, i);
        } else if (batch.op(i) == Op::kUpsert) {
          ASSERT_EQ(batch.result(i), Result::kOk);
        } else {
          ASSERT_TRUE(batch.result(i) == Result::kOk || batch.result(i) == Result::kNotFound);
        }
        if (batch.op(i) != Op::kFind && batch.op(i) != Op::kErase &&
            batch.result(i) == Result::kOk) {
          last[t][key] = TagCount(*ValueTag(batch.value(i)));
        }
      }
    }
  });
  ExpectConsistentEnd(store, path, last);
}

TEST_P(ConcurrencyTest, KeysThatNobodyErasesAreAlwaysFound) {
  // Readers and updaters of a fixed set, while other threads insert (so that levels come and go).
  const std::string path = NewPath();
  constexpr std::uint64_t kKeys = 1000;
  Store store = Store::Create(path, Shape(), TestOpenOptions());
  std::vector<std::map<std::uint64_t, std::uint64_t>> last(kThreads + 1);
  TestBatch load = NewBatch();
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    load.Add(Op::kInsert, key, Tag(key, kThreads, 1));
    last[kThreads][key] = 1;
  }
  store.Apply(load.Mixed());
  InThreads([&](std::uint32_t t) {
    std::mt19937_64 random(TestSeed() + t);
    Witness witness;
    std::uint64_t count = 0;
    for (std::uint64_t round = 0; round < Rounds(100) && !HasFailure(); ++round) {
      TestBatch batch = NewBatch();
      for (std::uint64_t size = 1 + random() % 1000; size > 0; --size) {
        ++count;
        if (t == 0) {
          const std::uint64_t fresh = kKeys + count;
          batch.Add(Op::kInsert, fresh, Tag(fresh, t, count));
        } else {
          const std::uint64_t key = random() % kKeys;
          batch.Add(random() % 2 == 0 ? Op::kUpdate : Op::kFind, key, Tag(key, t, count));
        }
      }
      store.Apply(batch.Mixed());
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ASSERT_EQ(batch.result(i), Result::kOk) << OpName(batch.op(i));
        if (batch.op(i) == Op::kFind) {
          witness.Saw(batch, i);
        } else {
          last[t][KeyNumber(batch.key(i))] = TagCount(*ValueTag(batch.value(i)));
        }
      }
    }
  });
  if (Rounds(100) == 100) {
    EXPECT_GT(store.Stats().resizes, 2u);
  }
  ExpectConsistentEnd(store, path, last);
}

TEST_P(ConcurrencyTest, InsertsOfTheSameKeysLeaveOneCopyOfEach) {
  for (std::uint64_t repeat = 0; repeat < Rounds(20) && !HasFailure(); ++repeat) {
    const std::string path = NewPath();
    constexpr std::uint64_t kKeys = 3000;
    CreateOptions create = Shape();
    if (repeat % 2 == 0) create.initial_capacity = 5 * kKeys;  // no resizes
    Store store = Store::Create(path, create, TestOpenOptions());
    std::vector<std::vector<Result>> results(kThreads, std::vector<Result>(kKeys));
    std::atomic<std::uint32_t> ready{0};
    InThreads([&](std::uint32_t t) {
      TestBatch batch = NewBatch();
      for (std::uint64_t key = 0; key < kKeys; ++key) batch.Add(Op::kInsert, key, Tag(key, t, 1));
      for (++ready; ready < kThreads;) std::this_thread::yield();
      store.Apply(batch.Mixed());
      for (std::uint64_t key = 0; key < kKeys; ++key) results[t][key] = batch.result(key);
    });
    std::vector<std::map<std::uint64_t, std::uint64_t>> last(kThreads);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      int ok = 0;
      for (std::uint32_t t = 0; t < kThreads; ++t) {
        ASSERT_TRUE(results[t][key] == Result::kOk || results[t][key] == Result::kExists);
        if (results[t][key] == Result::kOk) {
          ++ok;
          last[t][key] = 1;
        }
      }
      EXPECT_GE(ok, 1) << "key " << key;
    }
    EXPECT_EQ(store.Stats().items, kKeys);
    ExpectConsistentEnd(store, path, last);
  }
}

TEST_P(ConcurrencyTest, ErasesOfTheSameKeysEraseOnce) {
  const std::string path = NewPath();
  constexpr std::uint64_t kKeys = 20000;
  Store store = Store::Create(path, Shape(), TestOpenOptions());
  TestBatch load = NewBatch();
  for (std::uint64_t key = 0; key < kKeys; ++key) load.Add(Op::kInsert, key, Tag(key, 0, 1));
  store.Apply(load.Mixed());
  std::vector<std::atomic<int>> erased(kKeys);
  InThreads([&](std::uint32_t) {
    TestBatch batch = NewBatch();
    for (std::uint64_t key = 0; key < kKeys; ++key) batch.Add(Op::kErase, key, 0);
    store.Apply(batch.Mixed());
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      if (batch.result(key) == Result::kOk) ++erased[key];
    }
  });
  for (std::uint64_t key = 0; key < kKeys; ++key) EXPECT_EQ(erased[key], 1) << "key " << key;
  EXPECT_EQ(store.Stats().items, 0u);
  ExpectConsistentEnd(store, path, {});
}

TEST_P(ConcurrencyTest, FullPoolUnderSeveralWriters) {
  // In a pool that can't grow any more, cells and slots go from hand to hand all the time.
  const std::string path = NewPath();
  Store store = Store::Create(path, Shape(), TestOpenOptions(std::uint64_t{4} << 20));
  std::vector<Model> models(kThreads);
  std::atomic<std::uint64_t> refused{0};
  InThreads([&](std::uint32_t t) {
    std::mt19937_64 random(TestSeed() + t);
    for (std::uint64_t round = 0; round < Rounds(150) && !HasFailure(); ++round) {
      TestBatch batch = NewBatch();
      std::set<std::uint64_t> keys;  // once each: what finds no room leaves no doubt
      for (int i = 0; i < 2000; ++i) keys.insert(random() % 60000 * kThreads + t);
      for (const std::uint64_t key : keys) {
        const std::uint64_t draw = random() % 8;
        const Op op = draw < 4   ? Op::kUpsert
                      : draw < 5 ? Op::kErase
                                 : static_cast<Op>(random() % kOpKinds);
        batch.Add(op, key, random());
      }
      store.Apply(batch.Mixed());
      batch.Compare(models[t], true);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        refused += batch.result(i) == Result::kNoSpace;
      }
    }
  });
  Model all;
  for (const Model& model : models) all.insert(model.begin(), model.end());
  if (Rounds(150) == 150) {
    EXPECT_GT(refused, 0u);
  }
  ExpectContents(store, all);
  store.Close();
  ExpectSound(path, all.size());
}

/// Erased slots that another batch gave back in between must not be taken for a full table.
TEST_P(ConcurrencyTest, InsertsAndErasesOfTheSameKeysDoNotGrowTheTable) {
  const std::string path = NewPath();
  Store store = Store::Create(path, Shape(), TestOpenOptions());
  InThreads([&](std::uint32_t thread) {
    const std::uint64_t keys[] = {thread % 2 == 0 ? 0 : kAllOnes, 10 + thread, 20 + thread};
    for (std::uint64_t round = 0; round < Rounds(400); ++round) {
      TestBatch batch = NewBatch();
      for (int repeat = 0; repeat < 20; ++repeat) {
        for (const std::uint64_t key : keys) {
          batch.Add(Op::kUpsert, key, Tag(0, thread, round));
          batch.Add(Op::kErase, key, 0);
        }
      }
      store.Apply(batch.Mixed());
    }
  });
  EXPECT_LE(store.Stats().resizes, 1u);
  store.Close();
  ExpectSound(path, 0);
}

TEST_P(ConcurrencyTest, StatsAndForEachWhileBatchesRun) {
  const std::string path = NewPath();
  Store store = Store::Create(path, Shape(), TestOpenOptions());
  std::atomic<bool> done{false};
  std::thread observer([&] {
    std::uint64_t items = 0;
    while (!done) {
      const StoreStats stats = store.Stats();
      EXPECT_GE(stats.items, items) << "only inserts run";
      items = stats.items;
      std::uint64_t visited = 0;
      store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
        ++visited;
        EXPECT_EQ(ValueTag(value), Tag(KeyNumber(key), 0, 1));
      });
      EXPECT_GE(visited, items);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::uint64_t round = 0; round < Rounds(40); ++round) {
    TestBatch batch = NewBatch();
    for (std::uint64_t i = 0; i < 500; ++i) {
      const std::uint64_t key = 1 + round * 500 + i;
      batch.Add(Op::kInsert, key, Tag(key, 0, 1));
    }
    store.Apply(batch.Mixed());
  }
  done = true;
  observer.join();
  EXPECT_EQ(store.Stats().items, Rounds(40) * 500);
}

}  // namespace
}  // namespace gpm::test
