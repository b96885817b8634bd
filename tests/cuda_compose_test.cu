// Many inserts into a store without items, for which the cuda executor composes the levels.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <string_view>
#include <vector>

#include "gpmstore/device_view.cuh"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::Value;
using test::ValueOf;

/// Inserts into a store without items: the executor composes the levels (the log says so), whatever
/// they are, and the store goes on as any other.
TEST_F(CudaTest, InsertsIntoAnEmptyStoreComposeItsLevels) {
  struct Case {
    std::uint32_t key_size;
    std::uint32_t value_size;
    std::uint64_t capacity;
    std::size_t n;
    bool directory;
  };
  for (const Case& c : {Case{8, 128, 0, 5000, true}, Case{8, 8, 0, 300'000, true},
                        Case{8, 100, 3'000'000, 1'100'000, true}, Case{32, 24, 0, 40'000, true},
                        Case{16, 128, 0, 100'000, false}}) {
    SCOPED_TRACE(testing::Message() << "keys of " << c.key_size << ", values of " << c.value_size
                                    << ", capacity " << c.capacity << ", " << c.n << " inserts");
    CreateOptions create;
    create.key_size = c.key_size;
    create.value_size = c.value_size;
    create.initial_capacity = c.capacity;
    OpenOptions open = test::TestOpenOptions();
    open.cache.directory = c.directory;
    if (!c.directory) open.cache.policy = CachePolicy::kOff;
    unsigned composed = 0;
    open.log = [&](LogLevel, std::string_view line) {
      composed += line.find("composed") != line.npos ? 1 : 0;
    };
    // Two keys have a place of their own; one in ten comes again, and keeps its first value.
    const auto number_of = [&](std::size_t i) -> std::uint64_t {
      if (i == 7 || i == 11) return i == 7 ? 0 : ~std::uint64_t{0};
      return i % 10 == 9 ? i / 2 * 2 + 1000 : i + 1000;
    };
    std::vector<std::byte> keys(c.n * c.key_size), values(c.n * c.value_size);
    std::map<std::uint64_t, std::size_t> first_of;
    std::vector<Result> expected(c.n, Result::kOk);
    for (std::size_t i = 0; i < c.n; ++i) {
      const std::uint64_t number = number_of(i);
      if (!first_of.emplace(number, i).second) expected[i] = Result::kExists;
      for (std::size_t at = 0; at < c.key_size; at += 8) {
        std::memcpy(&keys[i * c.key_size + at], &number, 8);
      }
      for (std::size_t at = 0; at < c.value_size; ++at) {
        values[i * c.value_size + at] = static_cast<std::byte>(i * 31 + at * 7 + i / 256);
      }
    }
    const auto check = [&](Store& store) {
      EXPECT_EQ(store.Stats().items, first_of.size());
      std::vector<std::byte> found(values.size());
      std::vector<Result> results(c.n);
      EXPECT_EQ(store.Find(keys, found, results), 0u);
      for (std::size_t i = 0; i < c.n; ++i) {
        const std::size_t first = first_of.at(number_of(i));
        ASSERT_EQ(
            std::memcmp(&found[i * c.value_size], &values[first * c.value_size], c.value_size), 0)
            << i;
      }
    };
    std::vector<Result> results(c.n);
    {
      Store store = Store::Create(PoolPath(), create, open);
      for (const bool bulk : {true, false}) {
        composed = 0;
        if (bulk) {
          store.BulkLoad(keys, values, results);
        } else {
          store.Insert(keys, values, results);
        }
        EXPECT_EQ(results, expected);
        EXPECT_EQ(composed, bulk || c.n > 1'000'000 ? 1u : 0u) << "then the levels are there";
        check(store);
        store.Update(keys, values, results);
        EXPECT_EQ(results, std::vector(c.n, Result::kOk));
        store.Upsert(keys, values, results);
        store.Erase(keys, results);
        EXPECT_EQ(store.Stats().items, 0u);
      }
      store.BulkLoad(keys, values, results);
      EXPECT_EQ(results, expected);
    }
    EXPECT_TRUE(CheckPool(PoolPath()).defects.empty());
    {
      Store store = Store::Open(PoolPath(), open);
      check(store);
    }
    std::filesystem::remove(PoolPath());
  }
}

/// To compose, a store has to be alone: beside a scope it inserts as ever.
TEST_F(CudaTest, InsertsBesideAScopeDoNotWaitForIt) {
  const std::size_t n = 1 << 20;
  Store store = Make(2 * n);
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 5);
  const std::vector<Value> values(n, ValueOf(1));
  std::vector<Result> results(n);
  store.Erase(std::as_bytes(std::span(keys)), results);  // makes the queue of erased slots large
  const CudaStream stream;
  {
    const DeviceScope scope(store, stream, 1, 1);
    EXPECT_EQ(
        store.Insert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), results),
        0u);
  }
  EXPECT_EQ(store.Stats().items, n);
}

}  // namespace
}  // namespace gpm
