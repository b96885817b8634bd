// The device-side view: kernels that find, insert, update and erase, within a scope.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gpmstore/device_view.cuh"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::kValueSize;
using test::OnDevice;
using test::Value;
using test::ValueOf;

/// Each tile carries out one operation on its own key, of every kind in turn.
__global__ void UseView(DeviceView view, const std::uint64_t* keys, const Value* values,
                        Value* found, Result* results, std::uint32_t n, std::uint64_t* sum) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t i =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (i >= n) return;
  const std::uint64_t* key = keys + i;
  const auto* value = reinterpret_cast<const std::byte*>(values + i);
  auto* out = reinterpret_cast<std::byte*>(found + i);
  std::uint32_t oks = 0;
  oks += view.Insert(tile, key, value) == Result::kOk;
  oks += view.Insert(tile, key, value) == Result::kExists;
  oks += view.Find(tile, key, out) == Result::kOk;
  if (i % 3 == 0) {
    oks += view.Erase(tile, key) == Result::kOk;
    oks += view.Find(tile, key, nullptr) == Result::kNotFound;
    oks += view.Update(tile, key, value) == Result::kNotFound;
  } else {
    oks +=
        view.Update(tile, key, reinterpret_cast<const std::byte*>(values + n + i)) == Result::kOk;
    oks += view.Upsert(tile, key, reinterpret_cast<const std::byte*>(values + 2 * n + i)) ==
           Result::kOk;
    oks += view.Find(tile, key, out) == Result::kOk;
  }
  if (tile.thread_rank() == 0) {
    results[i] = oks == 6 ? Result::kOk : Result::kInvalid;
    AtomicAdd(sum, oks);
  }
}

TEST_F(CudaTest, KernelsUseTheDeviceView) {
  const std::uint32_t n = 10000;
  Store store = Make(2 * n);
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  keys[1] = ~std::uint64_t{0};
  std::vector<Value> values;
  for (std::uint32_t i = 0; i < 3 * n; ++i) values.push_back(ValueOf(i));
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_values(values), found(n);
  const OnDevice<Result> results(n);
  const OnDevice<std::uint64_t> sum(std::vector<std::uint64_t>{0});
  {
    DeviceScope scope(store, nullptr, 4 * n, n);
    UseView<<<(n * DeviceView::kLanes + 255) / 256, 256>>>(scope.view(), device_keys.data(),
                                                           device_values.data(), found.data(),
                                                           results.data(), n, sum.data());
    CheckCuda(cudaGetLastError(), "UseView");
    scope.Close();
  }
  EXPECT_EQ(results.Host(), std::vector(n, Result::kOk));
  const auto read = found.Host();
  for (std::uint32_t i = 0; i < n; ++i) {
    ASSERT_EQ(read[i], ValueOf(i % 3 == 0 ? i : 2 * n + i)) << i;
  }
  EXPECT_EQ(store.Stats().items, n - (n + 2) / 3);
  // What kernels wrote, batches read, and the other way round.
  std::vector<Value> again(n);
  std::vector<Result> outcomes(n);
  store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(again)), outcomes);
  for (std::uint32_t i = 0; i < n; ++i) {
    ASSERT_EQ(outcomes[i], i % 3 == 0 ? Result::kNotFound : Result::kOk);
    if (i % 3 != 0) ASSERT_EQ(again[i], read[i]);
  }
  store.Close();
  const CheckReport report = CheckPool(PoolPath());
  EXPECT_TRUE(report.defects.empty()) << report.defects.front();
}

// Whoever ends the scope, which any thread may, would mean another stream.
TEST_F(CudaTest, AScopeOnAThreadsOwnStreamIsRefused) {
  Store store = Make(1000);
  EXPECT_EQ(test::ErrorOf([&] { const DeviceScope scope(store, cudaStreamPerThread, 1, 1); }),
            ErrorCode::kInvalidArgument);
  DeviceScope scope(store, nullptr, 1, 1);
  scope.Close();
  store.Close();  // before the scope goes, which was closed
}

__global__ void EraseAll(DeviceView view, const std::uint64_t* keys, std::uint32_t n) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t i =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (i < n) view.Erase(tile, keys + i);
}

// Sums of the two must not overflow: with a queue of too few slots, cells would be freed twice.
TEST_F(CudaTest, AScopeMayEraseAsMuchAsCanBeSaid) {
  const std::uint32_t n = 40000;
  Store store = Make(2 * n);
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 1);
  const OnDevice<std::uint64_t> device_keys(keys);
  std::vector<Value> values(n);
  std::vector<Result> results(n);
  for (std::uint32_t round = 0; round < 2; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    for (std::uint32_t i = 0; i < n; ++i) values[i] = ValueOf(round * n + i);
    ASSERT_EQ(
        store.Insert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), results),
        0u);
    std::vector<Value> found(n);
    EXPECT_EQ(store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(found)),
                         results),
              0u);
    EXPECT_EQ(found, values);
    DeviceScope scope(store, nullptr, 1, ~std::uint64_t{0});
    EraseAll<<<(n * DeviceView::kLanes + 255) / 256, 256>>>(scope.view(), device_keys.data(), n);
    CheckCuda(cudaGetLastError(), "EraseAll");
    scope.Close();
    EXPECT_EQ(store.Stats().items, 0u);
  }
  const StoreStats stats = store.Stats();
  EXPECT_EQ(stats.free_cells, stats.value_cells);
  store.Close();
  const CheckReport report = CheckPool(PoolPath());
  EXPECT_TRUE(report.defects.empty()) << report.defects.front();
}

/// Each tile inserts, looks up, erases and looks up its own key again and again.
__global__ void InsertAndErase(DeviceView view, const std::uint64_t* keys, const Value* values,
                               std::uint32_t n, std::uint32_t rounds, std::uint64_t* wrong) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t i =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (i >= n) return;
  std::uint32_t failed = 0;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    failed +=
        view.Insert(tile, keys + i, reinterpret_cast<const std::byte*>(values + i)) != Result::kOk;
    failed += view.Find(tile, keys + i, nullptr) != Result::kOk;
    failed += view.Erase(tile, keys + i) != Result::kOk;
    failed += view.Find(tile, keys + i, nullptr) != Result::kNotFound;
  }
  if (tile.thread_rank() == 0) AtomicAdd(wrong, failed);
}

TEST_F(CudaTest, ATileSeesWhatItDidBefore) {
  // The leader of a tile tells the directory; the others must not look there before.
  const std::uint32_t n = 10000;
  const std::uint32_t rounds = 8;
  // (Erased slots come back when the scope has ended, so that all insertions of a key take slots of
  // the same few buckets: in a table for twice as many, one in 25 of these tests found none.)
  Store store = Make(8 * rounds * n);
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<Value> values;
  for (std::uint32_t i = 0; i < n; ++i) values.push_back(ValueOf(i));
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_values(values);
  const OnDevice<std::uint64_t> wrong(std::vector<std::uint64_t>{0});
  DeviceScope scope(store, nullptr, rounds * n, rounds * n);
  InsertAndErase<<<(n * DeviceView::kLanes + 255) / 256, 256>>>(
      scope.view(), device_keys.data(), device_values.data(), n, rounds, wrong.data());
  CheckCuda(cudaGetLastError(), "InsertAndErase");
  scope.Close();
  EXPECT_EQ(wrong.Host().front(), 0u);
  EXPECT_EQ(store.Stats().items, 0u);
}

/// All tiles fight for few keys, with every kind of operation.
__global__ void FightForKeys(DeviceView view, std::uint64_t keys, const Value* values,
                             std::uint32_t tiles, std::uint32_t rounds, std::uint64_t seed,
                             std::uint64_t* torn, std::byte* scratch, std::uint64_t* key_rows) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t t =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (t >= tiles) return;
  std::uint64_t random = Scramble(seed + t + 1);
  std::uint64_t* key = key_rows + t;
  auto* out = reinterpret_cast<Value*>(scratch) + t;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    random = Scramble(random + 0x9E3779B97F4A7C15ull);
    tile.sync();
    if (tile.thread_rank() == 0) *key = random % keys;
    tile.sync();
    const auto* value = reinterpret_cast<const std::byte*>(values + (random >> 32) % 64);
    switch ((random >> 16) % 5) {
      case 0:
        view.Insert(tile, key, value);
        break;
      case 1:
        view.Update(tile, key, value);
        break;
      case 2:
        view.Upsert(tile, key, value);
        break;
      case 3:
        view.Erase(tile, key);
        break;
      default:
        if (view.Find(tile, key, reinterpret_cast<std::byte*>(out)) == Result::kOk) {
          tile.sync();
          if (tile.thread_rank() == 0) {
            bool whole = false;
            for (std::uint32_t v = 0; v < 64; ++v) whole |= out->words[0] == values[v].words[0];
            for (std::uint32_t w = 1; w < kValueSize / 8; ++w) {
              whole &= out->words[w] == out->words[0] + w;
            }
            if (!whole) AtomicAdd(torn, 1);
          }
        }
    }
  }
}

TEST_F(CudaTest, TilesThatFightForKeysTearNothingAndLeaveASoundPool) {
  Store store = Make(1 << 12);
  const std::uint32_t tiles = 4096;
  const std::uint32_t rounds = 40;
  std::vector<Value> values;
  for (std::uint64_t v = 0; v < 64; ++v) values.push_back(ValueOf(1000 + v));
  const OnDevice<Value> device_values(values);
  const OnDevice<std::uint64_t> torn(std::vector<std::uint64_t>{0}), key_rows(tiles);
  const OnDevice<Value> scratch(tiles);
  for (const std::uint64_t keys : {std::uint64_t{3}, std::uint64_t{50}, std::uint64_t{2000}}) {
    DeviceScope scope(store, nullptr, tiles * rounds, tiles * rounds);
    FightForKeys<<<tiles * DeviceView::kLanes / 256, 256>>>(
        scope.view(), keys, device_values.data(), tiles, rounds, test::TestSeed() + keys,
        torn.data(), reinterpret_cast<std::byte*>(scratch.data()), key_rows.data());
    CheckCuda(cudaGetLastError(), "FightForKeys");
    scope.Close();
    EXPECT_EQ(torn.Host()[0], 0u) << keys << " keys";
  }
  std::map<std::uint64_t, int> seen;
  store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
    std::uint64_t number = 0;
    std::memcpy(&number, key.data(), 8);
    ++seen[number];
    Value whole;
    std::memcpy(&whole, value.data(), sizeof whole);
    EXPECT_NE(std::find(values.begin(), values.end(), whole), values.end());
  });
  for (const auto& [key, count] : seen) EXPECT_EQ(count, 1) << key;
  EXPECT_EQ(store.Stats().items, seen.size());
  store.Close();
  const CheckReport report = CheckPool(PoolPath());
  EXPECT_TRUE(report.defects.empty()) << report.defects.front();
  EXPECT_EQ(report.items, seen.size());
}

__global__ void CountUp(DeviceView view, std::uint64_t* keys, std::uint64_t* values,
                        std::uint32_t n, std::uint64_t* wrong) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t i =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (i >= n) return;
  auto* value = reinterpret_cast<std::byte*>(values + i);
  bool fine = view.Upsert(tile, keys + i, value) == Result::kOk;
  tile.sync();
  if (tile.thread_rank() == 0) values[i] = 0;
  tile.sync();
  fine &= view.Find(tile, keys + i, value) == Result::kOk;
  tile.sync();
  fine &= values[i] == ~keys[i];
  if (i % 2 == 0) fine &= view.Erase(tile, keys + i) == Result::kOk;
  if (!fine && tile.thread_rank() == 0) AtomicAdd(wrong, 1);
}

TEST_F(CudaTest, AScopeWorksOnInlineValuesAndBesideBatches) {
  const std::uint32_t n = 5000;
  CreateOptions create;
  create.value_size = 8;
  create.initial_capacity = 4 * n;
  Store store = Store::Create(PoolPath(), create, test::TestOpenOptions());
  std::vector<std::uint64_t> keys(n), values(n);
  for (std::uint32_t i = 0; i < n; ++i) values[i] = ~(keys[i] = i);
  const OnDevice<std::uint64_t> device_keys(keys), device_values(values);
  const OnDevice<std::uint64_t> wrong(std::vector<std::uint64_t>{0});
  {
    DeviceScope scope(store, nullptr, n, n);
    CountUp<<<(n * DeviceView::kLanes + 255) / 256, 256>>>(scope.view(), device_keys.data(),
                                                           device_values.data(), n, wrong.data());
    CheckCuda(cudaGetLastError(), "CountUp");
    // A batch on other keys, and the figures, do not wait for the scope.
    std::vector<std::uint64_t> others(100);
    std::iota(others.begin(), others.end(), 1000000);
    std::vector<Result> results(others.size());
    store.Insert(std::as_bytes(std::span(others)), std::as_bytes(std::span(others)), results);
    EXPECT_EQ(results, std::vector(others.size(), Result::kOk));
    EXPECT_GE(store.Stats().items, others.size());
    scope.Close();
  }
  EXPECT_EQ(wrong.Host()[0], 0u);
  EXPECT_EQ(store.Stats().items, n / 2 + 100);
  store.Close();
  const CheckReport report = CheckPool(PoolPath());
  EXPECT_TRUE(report.defects.empty()) << report.defects.front();
}

__global__ void UsePaddedKeys(DeviceView view, const std::byte* rows, std::uint32_t key_size,
                              std::uint32_t n, std::uint64_t* values, std::uint64_t* wrong) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t i =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (i >= n) return;
  std::uint64_t key[kMaxKeyWords];
  view.PadKey(rows + std::uint64_t{i} * key_size, key);
  auto* const value = reinterpret_cast<std::byte*>(values + i);
  bool fine = view.Insert(tile, key, value) == Result::kOk;
  tile.sync();
  if (tile.thread_rank() == 0) values[i] = 0;
  tile.sync();
  fine &= view.Find(tile, key, value) == Result::kOk && values[i] == i + 1;
  if (!fine && tile.thread_rank() == 0) AtomicAdd(wrong, 1);
}

TEST_F(CudaTest, AScopePadsKeys) {
  constexpr std::uint32_t n = 3000;
  for (const std::uint32_t key_size : {7u, 36u}) {
    Store store =
        Store::Create(PoolPath(), test::Shape(key_size, 8, 4 * n), test::TestOpenOptions());
    std::string rows;
    std::vector<std::uint64_t> values;
    for (std::uint32_t i = 0; i < n; ++i) {
      rows += test::MakeKey(i, key_size);
      values.push_back(i + 1);
    }
    const std::vector<char> keys(rows.begin(), rows.end());
    const OnDevice<char> device_keys(keys);
    const OnDevice<std::uint64_t> device_values(values);
    const OnDevice<std::uint64_t> wrong(std::vector<std::uint64_t>{0});
    {
      DeviceScope scope(store, nullptr, n, 0);
      UsePaddedKeys<<<(n * DeviceView::kLanes + 255) / 256, 256>>>(
          scope.view(), device_keys.In().data(), key_size, n, device_values.data(), wrong.data());
      CheckCuda(cudaGetLastError(), "UsePaddedKeys");
      scope.Close();
    }
    EXPECT_EQ(wrong.Host()[0], 0u);
    std::vector<std::uint64_t> found(n);
    std::vector<Result> results(n);
    EXPECT_EQ(store.Find(std::as_bytes(std::span(keys)), std::as_writable_bytes(std::span(found)),
                         results),
              0u);
    EXPECT_EQ(found, values);
    store.Close();
    std::filesystem::remove(PoolPath());
  }
}

// They are added by a batch that is alone, which no batch can be while a scope is open. (What
// batches retire beside a scope is free when it has been closed: there is enough for a few.)
TEST_F(CudaTest, BatchesGoOnBesideAScopeThoughSpareCellsAreLacking) {
  constexpr std::size_t kInserts = 4096;
  constexpr std::size_t kUpdates = 1100;  // so many make spare cells worth while
  Store store = Make(1000);
  const auto apply = [&](Op op, std::uint64_t first, std::size_t n) {
    std::vector<std::uint64_t> keys(n);
    std::iota(keys.begin(), keys.end(), first);
    const std::vector<Value> values(n);
    std::vector<Result> results(n);
    EXPECT_EQ(store.Apply({.op = op,
                           .ops = {},
                           .keys = std::as_bytes(std::span(keys)),
                           .values = std::as_bytes(std::span(values)),
                           .found = {},
                           .results = results}),
              0u);
  };
  std::uint64_t items = 0;
  StoreStats stats;
  do {  // until about half of what a step of growth adds is free
    apply(Op::kInsert, items, kInserts);
    items += kInserts;
    stats = store.Stats();
  } while (items < 600'000 || stats.free_cells > stats.value_cells / 52 ||
           stats.free_cells < 9'000);
  {
    DeviceScope scope(store, nullptr, 10, 0);
    for (int k = 0; k < 3; ++k) {
      apply(Op::kUpdate, 0, kUpdates);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // room is made meanwhile
    }
    EXPECT_EQ(store.Stats().value_cells, stats.value_cells);
    scope.Close();
  }
  for (int k = 0; k < 400 && store.Stats().value_cells == stats.value_cells; ++k) {
    apply(Op::kUpdate, 0, kUpdates);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_GT(store.Stats().value_cells, stats.value_cells);
}

/// The first call adds, the next ones find, whatever value they bring.
__global__ void FindOrInsertAgain(DeviceView view, const std::uint64_t* keys, const Value* values,
                                  Value* found, std::uint32_t n, std::uint64_t* wrong) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t i =
      (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<unsigned>(DeviceView::kLanes);
  if (i >= n) return;
  const auto* first = reinterpret_cast<const std::byte*>(values + i);
  const auto* other = reinterpret_cast<const std::byte*>(values + n + i);
  auto* out = reinterpret_cast<std::byte*>(found + i);
  bool fine = view.FindOrInsert(tile, keys + i, first, out) == Result::kOk;
  tile.sync();
  fine &= found[i].words[0] == values[i].words[0];
  fine &= found[i].words[kValueSize / 8 - 1] == values[i].words[kValueSize / 8 - 1];
  tile.sync();
  if (tile.thread_rank() == 0) found[i] = values[n + i];
  tile.sync();
  fine &= view.FindOrInsert(tile, keys + i, other, nullptr) == Result::kExists;
  fine &= view.FindOrInsert(tile, keys + i, other, out) == Result::kExists;
  if (!fine && tile.thread_rank() == 0) AtomicAdd(wrong, 1);
}

TEST_F(CudaTest, AScopeFindsOrInserts) {
  const std::uint32_t n = 5000;
  Store store = Make(2 * n);
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<Value> values;
  for (std::uint32_t i = 0; i < 2 * n; ++i) values.push_back(ValueOf(i));
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_values(values), found(n);
  const OnDevice<std::uint64_t> wrong(std::vector<std::uint64_t>{0});
  {
    DeviceScope scope(store, nullptr, 3 * n, 0);
    FindOrInsertAgain<<<(n * DeviceView::kLanes + 255) / 256, 256>>>(
        scope.view(), device_keys.data(), device_values.data(), found.data(), n, wrong.data());
    CheckCuda(cudaGetLastError(), "FindOrInsertAgain");
    scope.Close();
  }
  EXPECT_EQ(wrong.Host()[0], 0u);
  const auto read = found.Host();
  for (std::uint32_t i = 0; i < n; ++i) ASSERT_EQ(read[i], ValueOf(i)) << i;
  EXPECT_EQ(store.Stats().items, n);
  store.Close();
  const CheckReport report = CheckPool(PoolPath());
  EXPECT_TRUE(report.defects.empty()) << report.defects.front();
}

TEST_F(CudaTest, AScopeNeedsTheCudaExecutor) {
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  Store store = Store::Create(PoolPath(), CreateOptions{}, open);
  EXPECT_THROW(DeviceScope(store, nullptr, 1, 1), Error);
}

}  // namespace
}  // namespace gpm
