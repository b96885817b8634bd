// The order of batches: those of one stream, those beside each other, and one behind a close.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

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

}  // namespace
}  // namespace gpm
