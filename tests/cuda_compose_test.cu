// Many inserts into a store without items, for which the cuda executor composes the levels.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
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
using test::Placed;
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
    Placed::Where where = Placed::kPageable;
    Geometry geometry = CreateOptions().geometry;
  };
  constexpr Geometry kCrowded{1, 1, 8};  // of which many items find no slot
  for (const Case& c : {Case{8, 128, 0, 5000, true}, Case{8, 8, 0, 300'000, true},
                        Case{8, 100, 3'000'000, 1'100'000, true, Placed::kDevice},
                        Case{32, 24, 0, 40'000, true}, Case{16, 128, 0, 100'000, false},
                        // Values that are copied beside the kernels:
                        Case{8, 128, 0, 600'000, true, Placed::kDevice},
                        Case{8, 128, 100'000, 200'000, true, Placed::kPinned},
                        Case{8, 64, 0, 200'000, true, Placed::kPageable},
                        Case{16, 32, 0, 140'000, false, Placed::kDevice},
                        Case{8, 32, 0, 300'000, true, Placed::kDevice, kCrowded},
                        Case{32, 16, 0, 300'000, true, Placed::kPageable, kCrowded}}) {
    SCOPED_TRACE(testing::Message()
                 << "keys of " << c.key_size << ", values of " << c.value_size << ", capacity "
                 << c.capacity << ", " << c.n << " inserts, place " << c.where);
    CreateOptions create;
    create.geometry = c.geometry;
    create.key_size = c.key_size;
    create.value_size = c.value_size;
    create.initial_capacity = c.capacity;
    OpenOptions open = test::TestOpenOptions();
    open.cache.directory = c.directory;
    if (!c.directory) open.cache.policy = CachePolicy::kOff;
    unsigned composed = 0;
    open.log = [&](LogLevel, std::string_view line) {
      composed += line.find("inserts composed") != line.npos ? 1 : 0;
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
    Placed placed_keys(c.where, keys), placed_values(c.where, values), placed_results(c.where, c.n);
    const std::span<Result> to{reinterpret_cast<Result*>(placed_results.data()), c.n};
    const auto check = [&](Store& store) {
      const StoreStats stats = store.Stats();
      EXPECT_EQ(stats.items, first_of.size());
      if (c.value_size > 8) {
        EXPECT_EQ(stats.items + stats.free_cells, stats.value_cells);
      }
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
          store.BulkLoad(placed_keys.bytes(), placed_values.bytes(), to);
        } else {
          store.Insert(placed_keys.bytes(), placed_values.bytes(), to);
        }
        EXPECT_EQ(placed_results.Contents<Result>(), expected);
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

/// More than a part has: keys that come again in a later one, and many whose hashes begin alike.
TEST_F(CudaTest, ABulkLoadOfSeveralPartsHasEachValueOnce) {
  const std::size_t n = (std::size_t{1} << 22) + 300'000;
  const std::size_t again = 1000;
  for (const auto where : {Placed::kDevice, Placed::kPageable}) {
    CreateOptions create;
    create.value_size = 16;
    Store store = Store::Create(PoolPath(), create, test::TestOpenOptions());
    std::vector<std::uint64_t> keys(n), values(2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      keys[i] = i + again < n ? i + 1 : n - i;
      values[2 * i] = i;
      values[2 * i + 1] = ~i;
    }
    Placed placed_keys(where, keys), placed_values(where, values), placed_results(where, n);
    store.BulkLoad(placed_keys.bytes(), placed_values.bytes(),
                   {reinterpret_cast<Result*>(placed_results.data()), n});
    std::vector<Result> expected(n, Result::kOk);
    std::fill(expected.end() - again, expected.end(), Result::kExists);
    EXPECT_EQ(placed_results.Contents<Result>(), expected);
    EXPECT_EQ(store.Stats().items, n - again);
    std::vector<Result> results(n);
    std::vector<std::uint64_t> found(2 * n);
    store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(found)), results);
    for (std::size_t i = n - again; i < n; ++i) {
      values[2 * i] = keys[i] - 1;
      values[2 * i + 1] = ~(keys[i] - 1);
    }
    EXPECT_TRUE(found == values);
    store.Close();
    EXPECT_TRUE(CheckPool(PoolPath()).defects.empty());
    std::filesystem::remove(PoolPath());
  }
}

/// A bulk load comes behind what the default stream has, as any call without a stream.
TEST_F(CudaTest, ABulkLoadWaitsForWhatWritesItsValues) {
  const std::size_t n = 200'000;
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<Value> values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(ValueOf(i));
  Placed from(Placed::kPinned, values), to(Placed::kDevice, n * sizeof(Value));
  const test::OnDevice<std::uint64_t> device_keys(keys);
  Store store = Make();
  for (int k = 0; k < 20; ++k) {  // so that it takes a while
    CheckCuda(
        cudaMemcpyAsync(to.data(), from.data(), to.bytes().size(), cudaMemcpyHostToDevice, nullptr),
        "cudaMemcpyAsync");
  }
  std::vector<Result> results(n);
  EXPECT_EQ(store.BulkLoad(device_keys.In(), to.bytes(), results), 0u);
  std::vector<Value> found(n);
  EXPECT_EQ(
      store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(found)), results),
      0u);
  EXPECT_TRUE(found == values);
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
