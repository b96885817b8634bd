#ifndef GPM_TESTS_CACHE_TEST_UTIL_H_
#define GPM_TESTS_CACHE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "table/geometry.h"
#include "tests/test_util.h"

/// What tests of stores with a directory and a cache of values share. Which values are cached is
/// known where every bucket has a block (policy random, fraction 1: buckets that were never used
/// too), and Stats says how many finds did without persistent memory.
namespace gpm::test {

/// With a directory, unless `cache` says otherwise.
inline OpenOptions WithCache(const CacheOptions& cache) {
  OpenOptions open = TestOpenOptions();
  open.cache = cache;
  open.cache.directory = cache.directory.value_or(true);
  return open;
}

/// A block for every bucket, once the cache is loaded, which it is only when asked to.
inline OpenOptions AllCached() {
  return WithCache({.policy = CachePolicy::kRandom, .fraction = 1.0, .refresh_interval = 0});
}

/// The same with the default policy: a bucket's frame is there before the cache is ever loaded.
inline OpenOptions AllOpen() { return WithCache({.fraction = 1.0, .refresh_interval = 0}); }

inline OpenOptions OnlyDirectory(bool directory = true) {
  return WithCache({.directory = directory, .policy = CachePolicy::kOff});
}

inline CacheOptions Lfu(double fraction) {
  return {.policy = CachePolicy::kLfu, .fraction = fraction, .refresh_interval = 0};
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
  /// Finds keys, of which `found` are there, and `hits` found without persistent memory.
  static void Find(ModelledStore& store, const std::vector<std::uint64_t>& keys,
                   std::uint64_t found, std::uint64_t hits) {
    const Counted counted(store.store());
    store.Apply(Op::kFind, keys);
    EXPECT_EQ(counted.found(), found);
    EXPECT_EQ(counted.hits(), hits);
  }
  /// Applies a kind other than find, which nothing counts.
  static void Write(ModelledStore& store, Op kind, const std::vector<std::uint64_t>& keys,
                    std::uint64_t tag = 0) {
    const Counted counted(store.store());
    store.Apply(kind, keys, tag);
    EXPECT_EQ(counted.found(), 0u) << OpName(kind);
    EXPECT_EQ(counted.hits(), 0u) << OpName(kind);
  }
  /// A batch of operations of any kind on keys of which some are hot.
  static TestBatch RandomBatch(ModelledStore& store, std::mt19937_64& random,
                               std::uint64_t key_limit) {
    TestBatch batch = store.NewBatch();
    for (std::uint64_t size = 1 + random() % 300; size > 0; --size) {
      const std::uint64_t key = random() % 4 == 0 ? random() % key_limit : random() % 64;
      batch.Add(static_cast<Op>(random() % kOpKinds), key == 63 ? kAllOnes : key, random());
    }
    return batch;
  }
};

/// Key size, value size, geometry.
using ShapeParam = std::tuple<std::uint32_t, std::uint32_t, const char*>;

inline std::string ShapeName(const ::testing::TestParamInfo<ShapeParam>& shape) {
  std::string geometry = std::get<2>(shape.param);
  std::replace(geometry.begin(), geometry.end(), '-', '_');
  return "key" + std::to_string(std::get<0>(shape.param)) + "_value" +
         std::to_string(std::get<1>(shape.param)) + "_" + geometry;
}

class CacheShapeTest : public CacheTest, public ::testing::WithParamInterface<ShapeParam> {
 protected:
  static constexpr std::uint64_t kKeys = 2000;
  CreateOptions Create(std::uint64_t initial_capacity = 2 * kKeys) const {
    CreateOptions create =
        Shape(std::get<0>(GetParam()), std::get<1>(GetParam()), initial_capacity);
    create.geometry = ParseGeometry(std::get<2>(GetParam()));
    // Two keys with one candidate each and equal hash bits double the table until these differ: of
    // 2000 keys, once in some hundred seeds, to many GiB. Not with this one.
    if (create.geometry.candidates() == 1) create.hash_seed = 1;
    return create;
  }
  /// Then there is no cache: the directory has the values.
  bool inline_values() const { return InlineValues(std::get<1>(GetParam())); }
};

}  // namespace gpm::test

#endif  // GPM_TESTS_CACHE_TEST_UTIL_H_
