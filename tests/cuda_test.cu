// What only the cuda executor has: arrays in GPU memory, streams, the device-side view.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gpmstore/device_view.cuh"
#include "pm/pool.h"
#include "table/hash.h"
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

TEST_F(CudaTest, BatchesOnOneStreamFollowEachOther) {
  Store store = Make(1 << 16);
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const std::size_t n = 20000;
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<Value> first, second;
  for (const auto key : keys) {
    first.push_back(ValueOf(key));
    second.push_back(ValueOf(~key));
  }
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_first(first), device_second(second), found_first(n), found_second(n);
  const OnDevice<Result> r0(n), r1(n), r2(n), r3(n), r4(n);
  const auto batch = [&](Op op, std::span<const std::byte> values, std::span<std::byte> found,
                         const OnDevice<Result>& results) {
    return Batch{.op = op,
                 .ops = {},
                 .keys = device_keys.In(),
                 .values = values,
                 .found = found,
                 .results = std::span(results.data(), n)};
  };
  std::vector<Ticket> tickets;
  tickets.push_back(store.ApplyAsync(batch(Op::kInsert, device_first.In(), {}, r0), stream));
  tickets.push_back(store.ApplyAsync(batch(Op::kFind, {}, found_first.Out(), r1), stream));
  tickets.push_back(store.ApplyAsync(batch(Op::kUpdate, device_second.In(), {}, r2), stream));
  tickets.push_back(store.ApplyAsync(batch(Op::kFind, {}, found_second.Out(), r3), stream));
  tickets.push_back(store.ApplyAsync(batch(Op::kErase, {}, {}, r4), stream));
  for (auto& ticket : tickets) ticket.Wait();
  for (const auto* results : {&r0, &r1, &r2, &r3, &r4}) {
    EXPECT_EQ(results->Host(), std::vector(n, Result::kOk));
  }
  EXPECT_EQ(found_first.Host(), first);
  EXPECT_EQ(found_second.Host(), second);
  EXPECT_EQ(store.Stats().items, 0u);
  store.Close();
  EXPECT_TRUE(CheckPool(PoolPath()).defects.empty());
  CheckCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

/// What a stream is still to write to pinned arrays is what a batch behind it reads, and what the
/// batch gives back there is what the stream reads next.
TEST_F(CudaTest, PinnedArraysAreUsedInTheOrderOfTheStream) {
  Store store = Make(1 << 20);
  const CudaStream stream;
  const OnDevice<std::byte> much(std::size_t{1} << 28);
  std::uint64_t next = 0;
  for (const std::size_t n : {std::size_t{700}, std::size_t{20'000}, std::size_t{300'000}}) {
    SCOPED_TRACE(n);
    std::vector<std::uint64_t> keys(n);
    std::iota(keys.begin(), keys.end(), next);
    next += n;
    std::vector<Value> values;
    for (const auto key : keys) values.push_back(ValueOf(key));
    const OnDevice<std::uint64_t> device_keys(keys);
    const OnDevice<Value> device_values(values), seen(n);
    const OnDevice<Result> inserted(n);
    Placed pinned_keys(Placed::kPinned, n * 8), pinned_values(Placed::kPinned, n * kValueSize);
    Placed found(Placed::kPinned, n * kValueSize), results(Placed::kPinned, n);
    const auto copy = [&](void* to, const void* from, std::size_t bytes) {
      CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    };
    for (int i = 0; i < 8; ++i) {
      CheckCuda(cudaMemsetAsync(much.data(), i, std::size_t{1} << 28, stream), "cudaMemsetAsync");
    }
    copy(pinned_keys.data(), device_keys.data(), n * 8);
    copy(pinned_values.data(), device_values.data(), n * kValueSize);
    Ticket insert = store.ApplyAsync(Batch{.op = Op::kInsert,
                                           .ops = {},
                                           .keys = pinned_keys.bytes(),
                                           .values = pinned_values.bytes(),
                                           .found = {},
                                           .results = std::span(inserted.data(), n)},
                                     stream);
    Ticket find =
        store.ApplyAsync(Batch{.op = Op::kFind,
                               .ops = {},
                               .keys = pinned_keys.bytes(),
                               .values = {},
                               .found = found.bytes(),
                               .results = std::span(reinterpret_cast<Result*>(results.data()), n)},
                         stream);
    copy(seen.data(), found.data(), n * kValueSize);
    CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_TRUE(seen.Host() == values);
    insert.Wait();
    find.Wait();
    EXPECT_EQ(inserted.Host(), std::vector(n, Result::kOk));
    EXPECT_EQ(results.Contents<Result>(), std::vector(n, Result::kOk));
  }
}

/// A large batch is answered by what its search saw while it is carried out. What another batch
/// changed in between must not show: everything that is done with a key is done at one time.
TEST_F(CudaTest, AnswersAboutAKeyAgreeBesideAnotherBatch) {
  Make(1 << 18).Close();
  std::vector<std::uint64_t> keys;
  std::set<std::uint64_t> hashes;  // keys of one hash are not carried out at one time
  {
    const auto pool = Pool::Open(PoolPath(), Pool::Options{.read_only = true});
    const std::uint64_t* const seed = pool->superblock().hash_seed;
    for (std::uint64_t key = 0; keys.size() < 66000; ++key) {
      if (hashes.insert(HashKey(seed, &key, 1).h >> 32).second) keys.push_back(key);
    }
  }
  Store store = Store::Open(PoolPath(), test::TestOpenOptions());
  constexpr std::size_t kSteps = 4;
  constexpr std::size_t kBatches = 8;
  for (const std::size_t n : {std::size_t{20000}, keys.size()}) {
    cudaStream_t streams[2];
    for (auto& stream : streams) {
      CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    std::vector<std::uint64_t> all;
    for (std::size_t step = 0; step < kSteps; ++step) {
      all.insert(all.end(), keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(n));
    }
    const OnDevice<std::uint64_t> device_keys(all);
    struct Side {
      Op change;
      std::size_t step;  // of the change; the others are finds
      OnDevice<Value> values, found;
      OnDevice<Op> ops;
      OnDevice<Result> results;
    };
    const auto value_of = [](std::size_t batch, std::uint64_t key) {
      return ValueOf(key * kBatches + batch);
    };
    std::vector<Side> batches;
    for (std::size_t b = 0; b < kBatches; ++b) {
      const Op change = b % 4 < 2 ? Op::kInsert : Op::kErase;
      std::vector<Value> values;
      for (const auto key : all) values.push_back(value_of(b, key));
      std::vector<Op> ops(all.size(), Op::kFind);
      const std::size_t step = b < 4 ? 1 : 0;
      std::fill_n(ops.begin() + static_cast<std::ptrdiff_t>(step * n), n, change);
      batches.push_back({change, step, OnDevice<Value>(values), OnDevice<Value>(all.size()),
                         OnDevice<Op>(ops), OnDevice<Result>(all.size())});
    }
    for (int round = 0; round < 6; ++round) {
      CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      std::vector<Ticket> tickets;
      for (std::size_t b = 0; b < kBatches; ++b) {
        tickets.push_back(
            store.ApplyAsync(Batch{.op = Op::kFind,
                                   .ops = std::span(batches[b].ops.data(), all.size()),
                                   .keys = device_keys.In(),
                                   .values = batches[b].values.In(),
                                   .found = batches[b].found.Out(),
                                   .results = std::span(batches[b].results.data(), all.size())},
                             streams[b % 2]));
      }
      for (auto& ticket : tickets) ticket.Wait();
      for (std::size_t b = 0; b < kBatches; ++b) {
        const bool erases = batches[b].change == Op::kErase;
        const std::size_t changed = batches[b].step;
        const std::vector<Result> results = batches[b].results.Host();
        const std::vector<Value> found = batches[b].found.Host();
        for (std::size_t i = 0; i < n; ++i) {
          SCOPED_TRACE(testing::Message() << "batch " << b << ", key " << i);
          const Result result = results[changed * n + i];
          const bool was_there = result == (erases ? Result::kOk : Result::kExists);
          if (!was_there) {
            ASSERT_EQ(result, erases ? Result::kNotFound : Result::kOk);
          }
          const Value* old = nullptr;
          for (std::size_t step = 0; step < kSteps; ++step) {
            if (step == changed) continue;
            const bool is_there = step < changed ? was_there : !erases;
            ASSERT_EQ(results[step * n + i], is_there ? Result::kOk : Result::kNotFound);
            if (!is_there) continue;
            const Value& value = found[step * n + i];
            if (!was_there) {
              ASSERT_TRUE(value == value_of(b, keys[i]));
            } else if (old == nullptr) {
              old = &value;
              bool is_known = false;  // each round begins without items
              for (std::size_t by = 0; by < kBatches; ++by) {
                is_known |= by != b && value == value_of(by, keys[i]);
              }
              ASSERT_TRUE(is_known)
                  << std::hex << value.words[0] << ", its own is " << value_of(b, keys[i]).words[0];
            } else {
              ASSERT_TRUE(value == *old);
            }
          }
        }
      }
      if (round == 2) store.RefreshCache().Wait();
      // What found no cell was inserted behind the erases of batches that were started later.
      std::vector<Result> results(n);
      store.Apply(Batch{.op = Op::kErase,
                        .ops = {},
                        .keys = std::as_bytes(std::span(keys).first(n)),
                        .values = {},
                        .found = {},
                        .results = results});
    }
    for (auto& stream : streams) CheckCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
  store.Close();
  EXPECT_TRUE(CheckPool(PoolPath()).defects.empty());
}

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
  Store store = Make(2 * rounds * n);  // erased slots come back when the scope has ended
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

TEST_F(CudaTest, ATicketMayBeWaitedForAfterTheStoreWasClosed) {
  Ticket ticket;
  const std::size_t n = 50000;
  std::vector<std::uint64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<Value> values(n, ValueOf(5));
  std::vector<Result> results(n, Result::kInvalid);
  {
    Store store = Make();  // small: most find no slot at first
    ticket = store.ApplyAsync({.op = Op::kInsert,
                               .ops = {},
                               .keys = std::as_bytes(std::span(keys)),
                               .values = std::as_bytes(std::span(values)),
                               .found = {},
                               .results = results});
    store.Close();
  }
  ticket.Wait();
  EXPECT_EQ(results, std::vector(n, Result::kOk));
  EXPECT_EQ(CheckPool(PoolPath()).items, n);
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
