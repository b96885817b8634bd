// Batches on arrays in host or GPU memory, of any size and alignment; and the same results however
// persistent memory is accessed for them.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
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
using test::Placed;
using test::Value;
using test::ValueOf;

TEST_F(CudaTest, ArraysMayBeOnHostOrDeviceEachOnItsOwn) {
  const std::size_t n = 3000;
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 7);
  std::vector<Value> values;
  for (const auto key : keys) values.push_back(ValueOf(key));
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_values(values);
  for (int where = 0; where < 16; ++where) {
    Store store = Make();
    std::vector<Result> results(n, Result::kInvalid);
    const OnDevice<Result> device_results(n);
    std::vector<Value> found(n);
    const OnDevice<Value> device_found(n);
    const auto key_span = where & 1 ? device_keys.In() : std::as_bytes(std::span(keys));
    const auto value_span = where & 2 ? device_values.In() : std::as_bytes(std::span(values));
    const auto result_span = where & 4 ? std::span(device_results.data(), n) : std::span(results);
    const auto found_span =
        where & 8 ? device_found.Out() : std::as_writable_bytes(std::span(found));
    store.Insert(key_span, value_span, result_span);
    store.Find(key_span, found_span, result_span);
    EXPECT_EQ(where & 4 ? device_results.Host() : results, std::vector(n, Result::kOk));
    EXPECT_EQ(where & 8 ? device_found.Host() : found, values);
    store.Close();
    std::filesystem::remove(PoolPath());
  }
}

TEST_F(CudaTest, ArraysOfEverySizeMayBeAnywhere) {
  // Small, sorted, two chunks and a bit.
  for (const std::size_t n :
       {std::size_t{700}, std::size_t{40'000}, (std::size_t{1} << 18) + 777}) {
    std::vector<std::uint64_t> keys(n);
    std::iota(keys.begin(), keys.end(), 7);
    std::vector<Value> values;
    std::vector<Value> others;
    for (const auto key : keys) {
      values.push_back(ValueOf(key));
      others.push_back(ValueOf(key + 1'000'000'000));
    }
    for (int in = 0; in < Placed::kWays; ++in) {
      for (int out = 0; out < Placed::kWays; ++out) {
        SCOPED_TRACE(testing::Message() << n << " operations, " << in << " to " << out);
        const auto input = static_cast<Placed::Where>(in);
        const auto output = static_cast<Placed::Where>(out);
        Store store = Make();
        Placed key_bytes(input, keys);
        Placed value_bytes(static_cast<Placed::Where>((in + 1) % Placed::kWays), values);
        Placed other_bytes(input, others);
        Placed found(output, n * kValueSize);
        Placed results(static_cast<Placed::Where>((out + in) % Placed::kWays), n);
        const std::span<Result> outcome(reinterpret_cast<Result*>(results.data()), n);
        const std::vector all_ok(n, Result::kOk);
        store.Insert(key_bytes.bytes(), value_bytes.bytes(), outcome);
        EXPECT_EQ(results.Contents<Result>(), all_ok);
        store.Find(key_bytes.bytes(), found.bytes(), outcome);
        EXPECT_EQ(results.Contents<Result>(), all_ok);
        EXPECT_EQ(found.Contents<Value>(), values);
        store.Update(key_bytes.bytes(), other_bytes.bytes(), outcome);
        store.Find(key_bytes.bytes(), found.bytes(), outcome);
        EXPECT_EQ(found.Contents<Value>(), others);
        store.Erase(key_bytes.bytes(), outcome);
        store.Find(key_bytes.bytes(), found.bytes(), outcome);
        EXPECT_EQ(results.Contents<Result>(), std::vector(n, Result::kNotFound));
        store.Close();
        std::filesystem::remove(PoolPath());
      }
    }
  }
}

/// Who drains a level beside a batch needs all of the batch's keys, which of large batches of finds
/// may come chunk by chunk.
TEST_F(CudaTest, FindsWithKeysInPinnedMemorySeeWhatIsBelow) {
  constexpr std::size_t kFinds = (std::size_t{1} << 17) + 1000;  // two chunks
  OpenOptions open = test::TestOpenOptions();
  open.growth_pause = 0;  // no level is composed
  CreateOptions create;
  create.value_size = kValueSize;
  Store store = Store::Create(PoolPath(), create, open);
  std::vector<std::uint64_t> keys;
  // Until more is to be drained than the finds take with them, a slot each.
  while (store.Stats().buckets_to_drain < 2 * kFinds / 8) {
    ASSERT_LT(keys.size(), std::size_t{1} << 23);
    const std::size_t first = keys.size();
    std::vector<Value> values;
    for (std::size_t i = 0; i < 1u << 16; ++i) {
      keys.push_back(first + i);
      values.push_back(ValueOf(first + i));
    }
    std::vector<Result> results(values.size());
    ASSERT_EQ(store.Insert(std::as_bytes(std::span(keys).subspan(first)),
                           std::as_bytes(std::span(values)), results),
              0u);
  }
  std::vector<std::uint64_t> some;
  std::vector<Value> expected;
  for (std::size_t i = 0; i < kFinds; ++i) {
    some.push_back(keys[i * (keys.size() / kFinds)]);
    expected.push_back(ValueOf(some.back()));
  }
  Placed in(Placed::kPinned, some);
  Placed found(Placed::kPinned, kFinds * kValueSize);
  std::vector<Result> results(kFinds);
  EXPECT_EQ(store.Find(in.bytes(), found.bytes(), results), 0u);
  EXPECT_EQ(found.Contents<Value>(), expected);
  EXPECT_GT(store.Stats().buckets_to_drain, 0u);
}

TEST_F(CudaTest, AThreadsFirstUseOfTheGpuMayBeABatchInItsMemory) {
  Store store = Make();
  const std::vector<std::uint64_t> keys = {1, 2, 3};
  const std::vector<Value> values = {ValueOf(1), ValueOf(2), ValueOf(3)};
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_values(values);
  const OnDevice<Value> found(3);
  const OnDevice<Result> results(3);
  const std::span<Result> outcomes(results.data(), 3);
  std::thread([&] { store.Upsert(device_keys.In(), device_values.In(), outcomes); }).join();
  EXPECT_EQ(results.Host(), std::vector(3, Result::kOk));
  std::thread([&] { store.Find(device_keys.In(), found.Out(), outcomes); }).join();
  EXPECT_EQ(found.Host(), values);
}

/// There, its values are copied before they are written, and given back.
TEST_F(CudaTest, AThreadsFirstUseOfTheGpuMayBeABatchInPinnedMemory) {
  constexpr std::size_t kKeys = 100'000;
  Store store = Make(2 * kKeys);
  std::vector<std::uint64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 5);
  std::vector<Value> values;
  for (const auto key : keys) values.push_back(ValueOf(key));
  Placed in(Placed::kPinned, keys);
  Placed given(Placed::kPinned, values);
  Placed found(Placed::kPinned, kKeys * kValueSize);
  std::vector<Result> results(kKeys);
  std::thread([&] {
    store.Apply({.op = Op::kFindOrInsert,
                 .keys = in.bytes(),
                 .values = given.bytes(),
                 .found = found.bytes(),
                 .results = results});
  }).join();
  EXPECT_EQ(results, std::vector(kKeys, Result::kOk));
  EXPECT_EQ(found.Contents<Value>(), values);
}

TEST_F(CudaTest, HowPersistentMemoryIsAccessedChangesNoResult) {
  constexpr std::uint64_t kKeys = 40000;
  constexpr std::size_t kFinds = 300000;  // in chunks, or in two slices with the same keys in both
  constexpr std::size_t kMixed[] = {50000, 300001};  // the second of them too, and with growth
  const std::uint64_t seed = test::TestSeed();
  std::vector<std::uint64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<Value> values;
  for (const auto key : keys) values.push_back(ValueOf(key));
  struct Outcome {
    std::vector<Result> results;
    std::vector<Value> found;
  };
  const auto run = [&](const AccessOptions& access, bool cache) {
    CreateOptions create;
    create.value_size = kValueSize;
    OpenOptions open = test::TestOpenOptions();
    open.access = access;
    open.cache.fraction = cache ? 0.3 : 0;
    Store store = Store::Create(PoolPath(), create, open);
    std::mt19937_64 random(seed);
    Outcome outcome{std::vector<Result>(kKeys), {}};
    store.Insert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), outcome.results);
    if (cache) store.RefreshCache().Wait();
    const auto apply = [&](std::span<const Op> ops, std::size_t n, Placed::Where where) {
      std::vector<std::uint64_t> some(n);
      std::vector<Value> news(n);
      Placed room(where, n * kValueSize);
      std::vector<Result> results(n);
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t range = ops.size() > kMixed[0] ? 4 * kKeys : kKeys + kKeys / 4;
        some[i] = random() % 4 == 0 ? random() % 9 : random() % range;
        news[i] = ValueOf(random());
      }
      store.Apply(Batch{
          .op = Op::kFind,
          .ops = ops,
          .keys = std::as_bytes(std::span(some)),
          .values = ops.empty() ? std::span<const std::byte>{} : std::as_bytes(std::span(news)),
          .found = room.bytes(),
          .results = results});
      auto found = room.Contents<Value>();
      for (std::size_t i = 0; i < n; ++i) {
        const bool is_found = results[i] == Result::kOk && (ops.empty() || ops[i] == Op::kFind);
        if (!is_found) found[i] = ValueOf(7);  // its row has no meaning
      }
      outcome.results.insert(outcome.results.end(), results.begin(), results.end());
      outcome.found.insert(outcome.found.end(), found.begin(), found.end());
    };
    for (int round = 0; round < 2; ++round) {
      for (const auto where : {Placed::kPageable, Placed::kDevice}) apply({}, kFinds, where);
      apply({}, 3000, Placed::kPageable);
      std::vector<Op> ops(kMixed[round]);
      for (Op& op : ops) {
        const auto choice = random() % 10;
        op = choice < 6   ? Op::kFind
             : choice < 8 ? Op::kUpdate
             : choice < 9 ? Op::kErase
                          : Op::kInsert;
      }
      apply(ops, ops.size(), Placed::kPageable);
    }
    store.Close();
    std::filesystem::remove(PoolPath());
    return outcome;
  };
  const Outcome expected = run({.by_address = false, .combine = false}, false);
  ASSERT_EQ(expected.results[0], Result::kOk);
  for (const bool cache : {false, true}) {
    for (const bool combine : {false, true}) {
      for (const std::uint64_t dealt_up_to : {0, 1}) {
        SCOPED_TRACE(testing::Message() << "cache " << cache << ", combine " << combine
                                        << ", dealt up to " << dealt_up_to);
        const Outcome outcome = run({.combine = combine, .dealt_up_to = dealt_up_to}, cache);
        EXPECT_TRUE(outcome.results == expected.results);
        const auto differs = std::ranges::mismatch(outcome.found, expected.found).in1;
        EXPECT_EQ(differs - outcome.found.begin(), std::ssize(expected.found)) << "first row";
      }
    }
  }
}

// A batch that writes expects to leave no answers behind where the one before it has left none. If
// it does, its report says so, and what is left is answered afterwards.
TEST_F(CudaTest, WhatABatchLeavesUnansweredFollowsItsReport) {
  constexpr std::uint64_t kKeys = 30000;
  constexpr std::uint64_t kOperations = 12000;
  for (const double cached : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(testing::Message() << "cached " << cached);
    OpenOptions options = test::TestOpenOptions();
    options.cache.fraction = cached;
    test::ModelledStore store(PoolPath(), test::Shape(8, kValueSize), options);
    store.Apply(Op::kInsert, test::Numbers(0, kKeys));
    if (cached > 0) store.store().RefreshCache().Wait();
    std::uint64_t tag = kKeys;
    const auto apply = [&](const auto& kind_of, const auto& key_of) {
      test::TestBatch batch = store.NewBatch();
      for (std::uint64_t i = 0; i < kOperations; ++i) batch.Add(kind_of(i), key_of(i), ++tag);
      store.Apply(batch);
    };
    const auto each_once = [&] {
      apply([](std::uint64_t i) { return i % 3 == 0 ? Op::kUpdate : Op::kFind; },
            [](std::uint64_t i) { return i; });
    };
    std::uint64_t next = kKeys;
    for (int round = 0; round < 3; ++round) {
      each_once();
      apply([](std::uint64_t i) { return i % 50 == 49 ? Op::kUpdate : Op::kFind; },  // several want
            [](std::uint64_t i) { return i % 700; });                                // one value
      each_once();
      apply(
          [](std::uint64_t i) { return i % 2 == 0 ? Op::kInsert : Op::kFind; },  // the table grows
          [&](std::uint64_t i) { return i % 2 == 0 ? next++ : next - 1 - i % 9; });
    }
    store.Reopen();
    store.store().Close();
    std::filesystem::remove(PoolPath());
  }
}

TEST_F(CudaTest, AStreamThatIsCapturedIsRefused) {
  Store store = Make();
  const OnDevice<std::byte> keys(64);
  std::vector<Result> results(8);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(
      test::ErrorOf([&] {
        store.ApplyAsync({.op = Op::kFind, .keys = keys.In(), .results = results}, stream).Wait();
      }),
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(test::ErrorOf([&] { const DeviceScope scope(store, stream, 0, 0); }),
            ErrorCode::kInvalidArgument);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);  // it captures on, and is empty
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  store.ApplyAsync({.op = Op::kFind, .keys = keys.In(), .results = results}, stream).Wait();
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  store.Close();
}

TEST_F(CudaTest, AStreamOfAnotherGpuIsRefused) {
  if (GpuCount() < 2) GTEST_SKIP() << "of machines with several GPUs";
  Store store = Make();
  const OnDevice<std::byte> keys(64);
  std::vector<Result> results(8);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const std::uint64_t free_cells = store.Stats().free_cells;
  std::string message;
  const auto insert = [&] {
    std::vector<std::byte> host(8 * (store.key_size() + store.value_size()));
    store
        .ApplyAsync({.op = Op::kInsert,
                     .keys = std::span(host).first(8 * store.key_size()),
                     .values = std::span(host).subspan(8 * store.key_size()),
                     .results = results},
                    stream)
        .Wait();
  };
  EXPECT_EQ(test::ErrorOf(insert, &message), ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("its stream is of GPU 1"), std::string::npos) << message;
  EXPECT_EQ(test::ErrorOf([&] { const DeviceScope scope(store, stream, 0, 0); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.Stats().free_cells, free_cells);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  store.Close();
}

// In the mode that is the default, the runtime refuses some calls in all threads while one
// captures. Batches large enough that who waits for them looks at events, too.
TEST_F(CudaTest, BatchesGoOnWhileAnotherThreadCaptures) {
  constexpr std::uint64_t kKeys = 1 << 18;
  OpenOptions open = test::TestOpenOptions();
  Store store = Store::Create(PoolPath(), test::Shape(8, 128), open);
  test::TestBatch inserts(8, 128);
  for (std::uint64_t key = 0; key < kKeys; ++key) inserts.Add(Op::kInsert, key, key);
  EXPECT_EQ(inserts.CallFor(store, Op::kInsert), 0u);
  test::TestBatch mixed(8, 128);
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    mixed.Add(key % 8 == 0 ? Op::kUpdate : Op::kFind, key, key + 1);
  }
  for (int k = 0; k < 3; ++k) EXPECT_EQ(store.Apply(mixed.Mixed()), 0u);  // memory has settled
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  std::thread([&] {
    for (int k = 0; k < 20; ++k) {
      Ticket ticket = store.ApplyAsync(mixed.Mixed());
      while (!ticket.Done()) std::this_thread::yield();
      EXPECT_EQ(test::ErrorOf([&] { ticket.Wait(); }), std::nullopt);
      EXPECT_EQ(test::ErrorOf([&] { store.Apply(mixed.Mixed()); }), std::nullopt);
      EXPECT_EQ(test::ErrorOf([&] { store.RefreshCache().Wait(); }), std::nullopt);
    }
  }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(store.Stats().items, kKeys);
  store.Close();
}

TEST_F(CudaTest, MisalignedDeviceKeysAreRefused) {
  Store store = Make();
  const OnDevice<std::byte> bytes(64);
  std::vector<Result> results(4);
  EXPECT_THROW(store.Find(bytes.In().subspan(1, 32), {}, results), Error);
  EXPECT_EQ(store.Stats().items, 0u);
}

/// Rows that are padded, wherever they are, of batches for every strategy.
TEST_F(CudaTest, KeysThatAreNotWholeWords) {
  for (const std::uint32_t key_size : {7u, 33u, 36u}) {
    Store store = Store::Create(PoolPath(), test::Shape(key_size, 8), test::TestOpenOptions());
    std::uint64_t next = 0;
    for (const std::size_t n : {std::size_t{1}, std::size_t{700}, std::size_t{40'000}}) {
      for (int where = 0; where < Placed::kWays; ++where) {
        std::string rows;
        std::vector<std::uint64_t> values;
        for (std::size_t i = 0; i < n; ++i) {
          rows += test::MakeKey(next, key_size);
          values.push_back(~next++);
        }
        const std::vector<char> keys(rows.begin(), rows.end());
        Placed placed(static_cast<Placed::Where>(where), keys);
        std::vector<Result> results(n, Result::kInvalid);
        std::vector<std::uint64_t> found(n);
        EXPECT_EQ(store.Insert(placed.bytes(), std::as_bytes(std::span(values)), results), 0u);
        EXPECT_EQ(store.Upsert(placed.bytes(), std::as_bytes(std::span(values)), results), 0u);
        EXPECT_EQ(store.Find(placed.bytes(), std::as_writable_bytes(std::span(found)), results),
                  0u);
        EXPECT_EQ(found, values);
        if (n > 1) {  // from the second row on, which is at no 8 bytes
          const OnDevice<char> device(std::vector<char>(rows.begin(), rows.end() - key_size));
          EXPECT_EQ(store.Erase(device.In().subspan(key_size), std::span(results).first(n - 2)),
                    0u);
        }
      }
    }
    store.Close();
    const CheckReport report = CheckPool(PoolPath());
    EXPECT_TRUE(report.defects.empty()) << report.defects.front();
    EXPECT_EQ(report.items, Placed::kWays * (1u + 2u + 2u));
    std::filesystem::remove(PoolPath());
  }
}

}  // namespace
}  // namespace gpm
