#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cache_test_util.h"

/// Threads beside loadings of the cache.
namespace gpm::test {
namespace {

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
    while (at_work > 0) store.RefreshCache().Wait();
    for (std::thread& thread : threads) thread.join();
    if (!inline_values() && store.Stats().cache.policy != CachePolicy::kOff) {
      EXPECT_GT(store.Stats().cache.refreshes, 1u);
    }
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
      store.RefreshCache().Wait();
    }
    ExpectContents(store, model);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Shapes, CacheConcurrencyTest,
    ::testing::Values(ShapeParam(8, 8, "2L-2H-8S"), ShapeParam(8, 100, "2L-2H-8S"),
                      ShapeParam(32, 8, "2L-2H-8S"), ShapeParam(32, 130, "1L-2H-16S"),
                      ShapeParam(8, 9, "2L-4H-1S"), ShapeParam(16, 100, "1L-1H-32S")),
    ShapeName);

TEST_P(CacheConcurrencyTest, SharedAndOwnKeysBesideLoadings) {
  for (const CachePolicy policy : {CachePolicy::kOff, CachePolicy::kTinyLfu, CachePolicy::kLfu,
                                   CachePolicy::kLru, CachePolicy::kRandom}) {
    SCOPED_TRACE(CachePolicyName(policy));
    const std::string path = NewPath();
    // Half of a small table: what has a block changes all the time. It grows in the middle.
    Store store =
        Store::Create(path, Create(100),
                      WithCache({.policy = policy, .fraction = 0.5, .refresh_interval = 1000}));
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
    // (Not before: where threads get their time in turns, loadings may follow each other so closely
    // that no find meets a frame that stays.)
    if (inline_values() || policy != CachePolicy::kOff) {
      EXPECT_GT(store.Stats().cache.hits, 0u);
    }
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
