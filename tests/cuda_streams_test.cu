// Batches of many threads and streams at once, and what the store shares with its caller: the
// current device, the runtime's last error.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/cuda/launch.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::kValueSize;
using test::OnDevice;
using test::TestSeed;
using test::Value;
using test::ValueOf;

constexpr unsigned kThreads = 256;
constexpr int kPoison = 0xA5;

/// What kinds of operation a batch has.
enum class Kinds : std::uint8_t { kFinds, kFindsAndUpdates, kAll };

/// The arrays of one batch, in GPU memory, of as many operations as any has.
struct Arrays {
  std::uint64_t* keys;
  Op* ops;
  Value* values;
  Value* found;
  Result* results;
};

/// What is wrong with a batch that has ended.
struct Defects {
  unsigned unanswered;  ///< results that nobody wrote
  unsigned unread;      ///< finds that are ok and whose row nobody wrote
  unsigned wrong;       ///< or has not the key's value
};

__device__ std::uint64_t Mixed(std::uint64_t x) {
  x = (x ^ x >> 31) * 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9ull;
  return x ^ x >> 32;
}
__device__ std::uint64_t WordOf(std::uint64_t key, unsigned word) { return key * 1000003 + word; }
constexpr unsigned kWords = kValueSize / 8;

__global__ void MakeBatch(Arrays arrays, unsigned n, std::uint64_t seed, std::uint64_t keys,
                          Kinds kinds) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const std::uint64_t draw = Mixed(seed + i);
  arrays.keys[i] = 1 + draw % keys;
  const std::uint64_t kind = Mixed(draw);
  arrays.ops[i] = kinds == Kinds::kFinds ? Op::kFind
                  : kinds == Kinds::kAll ? static_cast<Op>(kind % kOpKinds)
                  : kind % 2 == 0        ? Op::kFind
                                         : Op::kUpdate;
  for (unsigned w = 0; w < kWords; ++w) arrays.values[i].words[w] = WordOf(arrays.keys[i], w);
}

__global__ void CheckBatch(Arrays arrays, unsigned n, Defects* defects) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  if (static_cast<std::uint8_t>(arrays.results[i]) == kPoison) atomicAdd(&defects->unanswered, 1u);
  if (arrays.ops[i] != Op::kFind || arrays.results[i] != Result::kOk) return;
  bool is_poison = false;
  bool is_wrong = false;
  for (unsigned w = 0; w < kWords; ++w) {
    const std::uint64_t word = arrays.found[i].words[w];
    is_poison |= word == kPoison * 0x0101010101010101ull;
    is_wrong |= word != WordOf(arrays.keys[i], w);
  }
  if (is_poison) {
    atomicAdd(&defects->unread, 1u);
  } else if (is_wrong) {
    atomicAdd(&defects->wrong, 1u);
  }
}

class Stream {
 public:
  Stream() { CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: it stands for one

 private:
  cudaStream_t stream_ = nullptr;
};

/// Applies batches of different sizes on shared keys from several threads, each with a stream of
/// its own, and looks at each answer.
/// @param new_streams each batch has a new stream, whose handle may be that of one before
void RunMixedSizes(Store& store, unsigned threads, unsigned batches, bool new_streams) {
  constexpr unsigned kSizes[] = {1, 32, 700, 3000, 4096, 5000, 20000, 60000};
  constexpr unsigned kMost = 60000;
  const std::uint64_t seed = TestSeed();
  std::atomic<unsigned> unanswered{0}, unread{0}, wrong{0};
  const auto work = [&](unsigned t) {
    const OnDevice<std::uint64_t> keys(kMost);
    const OnDevice<Op> ops(kMost);
    const OnDevice<Value> values(kMost), found(kMost);
    const OnDevice<Result> results(kMost);
    const OnDevice<Defects> defects(1);
    const Arrays arrays{keys.data(), ops.data(), values.data(), found.data(), results.data()};
    // They were poisoned on the default stream, which those that follow do not wait for.
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::mt19937_64 random(seed + t);
    const Stream own;
    for (unsigned b = 0; b < batches && unanswered + unread + wrong == 0; ++b) {
      const Stream other;
      const cudaStream_t stream = new_streams ? other : own;
      const unsigned n = kSizes[random() % std::size(kSizes)];
      const auto kinds = static_cast<Kinds>(random() % 3);
      const std::uint64_t range = b % 3 == 2 ? 16 : 20000;
      const unsigned blocks = (n + kThreads - 1) / kThreads;
      CheckCuda(cudaMemsetAsync(found.data(), kPoison, n * sizeof(Value), stream), "memset");
      CheckCuda(cudaMemsetAsync(results.data(), kPoison, n, stream), "memset");
      CheckCuda(cudaMemsetAsync(defects.data(), 0, sizeof(Defects), stream), "memset");
      Launch("MakeBatch", MakeBatch, blocks, kThreads, stream, arrays, n, random(), range, kinds);
      Batch batch;
      if (kinds != Kinds::kFinds) {
        batch.ops = {ops.data(), n};
        batch.values = values.In().first(n * sizeof(Value));
      }
      batch.keys = keys.In().first(n * 8);
      batch.found = found.Out().first(n * sizeof(Value));
      batch.results = {results.data(), n};
      if (b % 2 == 0) {
        store.ApplyAsync(batch, stream).Wait();
      } else {  // awaited at once, it may leave answers for then
        CheckCuda(cudaStreamSynchronize(stream), "sync");
        store.Apply(batch);
      }
      Launch("CheckBatch", CheckBatch, blocks, kThreads, stream, arrays, n, defects.data());
      CheckCuda(cudaStreamSynchronize(stream), "sync");
      const Defects seen = defects.Host()[0];
      unanswered += seen.unanswered;
      unread += seen.unread;
      wrong += seen.wrong;
      EXPECT_EQ(seen.unanswered + seen.unread + seen.wrong, 0u)
          << "thread " << t << ", batch " << b << " of " << n << " operations on keys 1 to "
          << range << ": " << seen.unanswered << " not answered, " << seen.unread
          << " rows not written, " << seen.wrong << " wrong";
    }
  };
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([&work, t] {
      try {
        work(t);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << t << ": " << error.what();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

class StreamsTest : public CudaTest {
 protected:
  Store MakeWith(bool directory, bool cache, std::uint32_t value_size = kValueSize) {
    CreateOptions create;
    create.value_size = value_size;
    create.initial_capacity = 30000;
    OpenOptions open = test::TestOpenOptions();
    open.cache.directory = directory;
    if (!cache) open.cache.policy = CachePolicy::kOff;
    return Store::Create(PoolPath(), create, open);
  }
};

TEST_F(StreamsTest, BatchesOfAllSizesBesideEachOther) {
  Store store = MakeWith(true, true);
  RunMixedSizes(store, 6, 1500, false);
}

TEST_F(StreamsTest, BatchesOfAllSizesBesideEachOtherWithoutADirectory) {
  Store store = MakeWith(false, false);
  RunMixedSizes(store, 6, 800, false);
}

TEST_F(StreamsTest, StreamsComeAndGo) {
  Store store = MakeWith(true, false);
  RunMixedSizes(store, 4, 400, true);
}

/// Several threads add rows to the same few keys, and as much as they add is taken away again by
/// others, most of all from one. Whoever has made a sum of a value that another one has replaced
/// meanwhile makes it anew: no row is lost.
/// @param words of a value
void AddRowsBesideEachOther(Store& store, unsigned words) {
  constexpr unsigned kAdders = 4, kBatches = 60, kKeys = 12, kMost = 40000;
  constexpr unsigned kSizes[] = {30, 900, 3000, 10000, kMost};
  std::vector<std::uint64_t> all_keys(kKeys), found(kKeys * words);
  for (unsigned k = 0; k < kKeys; ++k) all_keys[k] = k;
  std::vector<Result> results(kKeys);
  store.Upsert(std::as_bytes(std::span(all_keys)), std::as_bytes(std::span(found)), results);
  std::atomic<std::uint64_t> added[kKeys] = {};
  const auto work = [&](unsigned t) {
    std::mt19937_64 random(TestSeed() + t);
    std::vector<std::uint64_t> rows(kMost * words);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint64_t number = i % words + 1;
      rows[i] = t % 2 == 0 ? number : ~number + 1;
    }
    const OnDevice<std::uint64_t> values(rows);
    const Stream stream;
    for (unsigned b = 0; b < kBatches; ++b) {
      std::vector<std::uint64_t> keys(kSizes[random() % std::size(kSizes)]);
      for (std::uint64_t& key : keys) {
        key = random() % 4 != 0 ? 5 : random() % kKeys;
        added[key] += rows[0];
      }
      const OnDevice<std::uint64_t> asked(keys);
      const OnDevice<Result> answers(keys.size());
      Batch batch;
      batch.op = Op::kAccumulate;
      batch.element = Element::kUInt64;
      batch.keys = asked.In();
      batch.values = values.In().first(keys.size() * words * 8);
      batch.results = {answers.data(), keys.size()};
      CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      store.ApplyAsync(batch, cudaStream_t{stream}).Wait();
      for (const Result answer : answers.Host()) ASSERT_EQ(answer, Result::kOk);
    }
  };
  std::vector<std::thread> adders;
  for (unsigned t = 0; t < kAdders; ++t) adders.emplace_back(work, t);
  for (std::thread& adder : adders) adder.join();
  store.Find(std::as_bytes(std::span(all_keys)), std::as_writable_bytes(std::span(found)), results);
  for (unsigned k = 0; k < kKeys; ++k) {
    for (unsigned w = 0; w < words; ++w) {
      ASSERT_EQ(found[k * words + w], added[k] * (w + 1)) << "key " << k << ", word " << w;
    }
  }
}

TEST_F(StreamsTest, NoRowIsLost) {
  Store store = MakeWith(true, true);
  AddRowsBesideEachOther(store, kWords);
}

TEST_F(StreamsTest, NoRowIsLostWithoutADirectory) {
  Store store = MakeWith(false, false);
  AddRowsBesideEachOther(store, kWords);
}

/// Values that may come back while a batch looks at them.
TEST_F(StreamsTest, NoRowOfAnInlineValueIsLost) {
  Store store = MakeWith(true, false, 8);
  AddRowsBesideEachOther(store, 1);
}

TEST_F(StreamsTest, NoRowOfAnInlineValueIsLostWithoutADirectory) {
  Store store = MakeWith(false, false, 8);
  AddRowsBesideEachOther(store, 1);
}

/// Applies an insert of each of `n` keys from `first` on. @return the results on the stream, before
/// anybody waited for the ticket, and afterwards
std::pair<std::vector<Result>, std::vector<Result>> InsertOnStream(Store& store,
                                                                   std::uint64_t first,
                                                                   std::size_t n, bool mixed) {
  std::vector<std::uint64_t> keys(n);
  std::vector<Value> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    keys[i] = first + i;
    values[i] = ValueOf(first + i);
  }
  const OnDevice<std::uint64_t> device_keys(keys);
  const OnDevice<Value> device_values(values);
  const OnDevice<Value> found(n);
  const OnDevice<Op> ops(std::vector<Op>(n, Op::kInsert));
  const OnDevice<Result> results(n);
  CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // as above
  const Stream stream;
  Batch batch{.op = Op::kInsert,
              .ops = {},
              .keys = device_keys.In(),
              .values = device_values.In(),
              .found = {},
              .results = {results.data(), n}};
  if (mixed) {
    batch.ops = {ops.data(), n};
    batch.found = found.Out();
  }
  Ticket ticket = store.ApplyAsync(batch, stream);
  std::vector<Result> before(n);
  CheckCuda(cudaMemcpyAsync(before.data(), results.data(), n, cudaMemcpyDeviceToHost, stream),
            "copy");
  CheckCuda(cudaStreamSynchronize(stream), "sync");
  ticket.Wait();
  return {before, results.Host()};
}

TEST_F(StreamsTest, WhatFoundNoRoomDoesNotReadAsDone) {
  for (const bool directory : {true, false}) {
    for (const std::size_t n : {4000u, 5000u, 60000u, 300000u}) {
      for (const bool mixed : {false, true}) {
        SCOPED_TRACE(std::to_string(n) + (mixed ? " mixed" : "") +
                     (directory ? "" : ", no directory"));
        CreateOptions create;
        create.value_size = kValueSize;
        OpenOptions open = test::TestOpenOptions(std::uint64_t{1} << 30);
        open.cache.directory = directory;
        Store store = Store::Create(PoolPath(), create, open);
        const auto [before, after] = InsertOnStream(store, 1, n, mixed);
        EXPECT_EQ(after, std::vector(n, Result::kOk));
        EXPECT_LT(std::count(before.begin(), before.end(), Result::kOk), n);
        for (const Result result : before) {
          ASSERT_TRUE(result == Result::kOk || result == Result::kNoSpace) << int(result);
        }
        store.Close();
        std::filesystem::remove(PoolPath());
      }
    }
  }
}

// Whatever the batches before it have left: a batch that is awaited at once may leave answers for
// when it is awaited, one that goes on on its stream may not.
TEST_F(StreamsTest, LaterWorkOnTheStreamFindsAllAnswers) {
  constexpr std::size_t kOperations = 12000;
  CreateOptions create;
  create.value_size = kValueSize;
  OpenOptions open = test::TestOpenOptions(std::uint64_t{1} << 30);
  open.cache.fraction = 0;
  Store store = Store::Create(PoolPath(), create, open);
  InsertOnStream(store, 0, 20000, false);
  std::vector<Op> kinds(kOperations, Op::kFind);
  for (std::size_t i = 49; i < kOperations; i += 50) kinds[i] = Op::kUpdate;
  const OnDevice<Op> ops(kinds);
  const auto apply = [&](std::uint64_t keys_in_all, bool awaits) {
    std::vector<std::uint64_t> keys(kOperations);
    std::vector<Value> values(kOperations);
    for (std::size_t i = 0; i < kOperations; ++i) {
      keys[i] = i % keys_in_all;
      values[i] = ValueOf(keys[i]);
    }
    const OnDevice<std::uint64_t> device_keys(keys);
    const OnDevice<Value> device_values(values);
    const OnDevice<Value> found(kOperations);
    const OnDevice<Result> results(kOperations);
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // as above
    const Batch batch{.ops = {ops.data(), kOperations},
                      .keys = device_keys.In(),
                      .values = device_values.In(),
                      .found = found.Out(),
                      .results = {results.data(), kOperations}};
    std::vector<Value> rows(kOperations);
    if (awaits) {
      store.Apply(batch);
      rows = found.Host();
    } else {
      const Stream stream;
      Ticket ticket = store.ApplyAsync(batch, stream);
      CheckCuda(cudaMemcpyAsync(rows.data(), found.data(), kOperations * sizeof(Value),
                                cudaMemcpyDeviceToHost, stream),
                "copy");
      CheckCuda(cudaStreamSynchronize(stream), "sync");
      ticket.Wait();
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kOperations; ++i) {
      wrong += kinds[i] == Op::kFind && rows[i] != values[i] ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u) << keys_in_all << " keys, " << (awaits ? "awaited" : "on a stream");
    EXPECT_EQ(results.Host(), std::vector(kOperations, Result::kOk));
  };
  for (int round = 0; round < 3; ++round) {
    for (const bool awaits : {true, false}) {
      apply(kOperations, true);  // leaves nothing
      apply(700, awaits);        // several want one value
    }
  }
  apply(kOperations, true);
  const auto [before, after] = InsertOnStream(store, 1'000'000, 60000, true);  // some find no room
  EXPECT_EQ(after, std::vector(before.size(), Result::kOk));
  EXPECT_LT(std::count(before.begin(), before.end(), Result::kOk), std::ssize(before));
  for (const Result result : before) {
    ASSERT_TRUE(result == Result::kOk || result == Result::kNoSpace) << int(result);
  }
}

TEST_F(StreamsTest, ACallersErrorIsItsOwn) {
  Store store = Make();
  for (const std::size_t n : {100u, 5000u, 200000u}) {
    void* nothing = nullptr;
    ASSERT_EQ(cudaMalloc(&nothing, std::size_t{1} << 60), cudaErrorMemoryAllocation);
    const auto [before, after] = InsertOnStream(store, n * 10, n, true);
    EXPECT_EQ(after, std::vector(n, Result::kOk));
  }
  cudaGetLastError();
}

TEST_F(StreamsTest, TheCallersDeviceStaysCurrent) {
  int devices = 0;
  CheckCuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (devices < 2) GTEST_SKIP() << "one GPU only";
  Store store = Make();  // on device 0
  CheckCuda(cudaSetDevice(1), "cudaSetDevice");
  std::vector<std::uint64_t> keys(5000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<Value> values(keys.size());
  std::vector<Result> results(keys.size());
  store.Upsert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), results);
  EXPECT_EQ(results, std::vector(keys.size(), Result::kOk));
  store.RefreshCache().Wait();
  store.Close();
  int current = 0;
  CheckCuda(cudaGetDevice(&current), "cudaGetDevice");
  EXPECT_EQ(current, 1);
  CheckCuda(cudaSetDevice(0), "cudaSetDevice");
}

}  // namespace
}  // namespace gpm
