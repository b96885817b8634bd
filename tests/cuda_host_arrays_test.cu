// Batches whose arrays lie in host memory, where kernels of small ones read and write them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::Placed;
using test::Versions;

constexpr std::uint64_t kKeys = 60'000;       ///< of which half are there at first
constexpr std::size_t kGuard = 64;            ///< bytes around an output
constexpr std::byte kPoison{0xA5};            ///< as Placed has it
constexpr std::size_t kMostBytes = 24 << 20;  ///< of rows of a batch

/// An array of a batch somewhere, with bytes around it that have to stay as they are.
class Guarded {
 public:
  /// @param shift of its address, so that it is aligned to no more than that
  Guarded(Placed::Where where, std::size_t bytes, std::size_t shift)
      : placed_(where, bytes + 2 * kGuard), at_(kGuard + shift % kGuard), bytes_(bytes) {}
  std::span<std::byte> bytes() { return {placed_.data() + at_, bytes_}; }
  /// What it holds, if what is around it does what it did.
  std::vector<std::byte> Contents() {
    const auto all = placed_.Contents<std::byte>();
    const auto poisoned = [](auto first, auto last) {
      return std::all_of(first, last, [](std::byte byte) { return byte == kPoison; });
    };
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at_);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes_);
    EXPECT_TRUE(poisoned(all.begin(), begin) && poisoned(end, all.end())) << "written beside it";
    return {begin, end};
  }

 private:
  Placed placed_;
  std::size_t at_;
  std::size_t bytes_;
};

/// A store and a model of it, to which batches are applied with arrays anywhere.
class Model {
 public:
  Model(const std::string& path, std::uint32_t value_size, double cached)
      : value_size_(value_size), random_(test::TestSeed()), versions_(kKeys, value_size) {
    CreateOptions create;
    create.value_size = value_size;
    OpenOptions open = test::TestOpenOptions();
    open.growth_pause = 0;  // levels are drained beside batches
    open.cache.fraction = cached;
    store_.emplace(Store::Create(path, create, open));
    std::vector<std::uint64_t> keys;
    for (std::uint64_t key = 0; key < kKeys; key += 2) keys.push_back(key);
    for (std::size_t first = 0; first < keys.size(); first += 5000) {
      const std::vector<std::uint64_t> some(keys.begin() + first, keys.begin() + first + 5000);
      Apply(std::vector<Op>(some.size(), Op::kInsert), some, false);
    }
  }
  std::size_t MostOperations() const { return kMostBytes / value_size_; }

  /// @param one_in one operation in so many changes something; 0: none does
  void ApplyRandom(std::size_t operations, unsigned one_in, Op change) {
    std::vector<std::uint64_t> keys(operations);
    std::vector<Op> ops(operations, Op::kFind);
    const std::uint64_t hot = random_() % kKeys;
    for (std::size_t i = 0; i < operations; ++i) {
      keys[i] = random_() % 4 == 0 ? hot : random_() % kKeys;
      if (one_in != 0 && random_() % one_in == 0) ops[i] = change;
    }
    Apply(ops, keys, true);
  }

  /// Applies a batch, and compares what it gives back.
  /// @param anywhere arrays lie anywhere, at addresses of any alignment; else in host memory
  void Apply(const std::vector<Op>& ops, const std::vector<std::uint64_t>& keys, bool anywhere) {
    const std::size_t n = keys.size();
    const Versions::Planned planned = versions_.Plan(ops, keys);
    const auto where = [&] {
      return anywhere ? static_cast<Placed::Where>(random_() % Placed::kWays) : Placed::kPageable;
    };
    const auto shift = [&](std::size_t aligned) {
      return anywhere ? random_() % 3 * (random_() % 2 == 0 ? 16 : aligned) : 0;
    };
    const auto one_kind = std::ranges::all_of(ops, [&](Op op) { return op == ops.front(); });
    const bool gives = !one_kind || ops.front() == Op::kFind;
    Placed key_array(where(), keys);
    Placed op_array(where(), ops);
    Placed row_array(where(), planned.rows);
    Guarded found(where(), gives ? planned.rows.size() : 0, shift(8));
    Guarded result_array(where(), n, shift(1));
    Batch batch{.op = ops.front(), .keys = key_array.bytes()};
    if (!one_kind) batch.ops = {reinterpret_cast<const Op*>(op_array.data()), n};
    if (!one_kind || (ops.front() != Op::kFind && ops.front() != Op::kErase)) {
      batch.values = row_array.bytes();
    }
    if (gives) batch.found = found.bytes();
    batch.results = {reinterpret_cast<Result*>(result_array.bytes().data()), n};
    if (random_() % 2 == 0) {
      store_->Apply(batch);
    } else {
      const CudaStream stream;
      store_->ApplyAsync(batch, stream).Wait();
    }
    const std::vector<std::byte> gave = result_array.Contents();
    ASSERT_EQ(std::memcmp(gave.data(), planned.results.data(), n), 0) << n << " operations";
    const std::vector<std::byte> read = found.Contents();
    for (std::size_t i = 0; gives && i < n; ++i) {
      if (ops[i] != Op::kFind || planned.results[i] != Result::kOk) continue;
      ASSERT_EQ(std::memcmp(read.data() + i * value_size_, planned.found.data() + i * value_size_,
                            value_size_),
                0)
          << n << " operations, key " << keys[i];
    }
  }

 private:
  std::uint32_t value_size_;
  std::mt19937_64 random_;
  Versions versions_;
  std::optional<Store> store_;
};

TEST_F(CudaTest, ArraysMayLieInAnyMemoryAtAnySize) {
  for (const std::uint32_t value_size : {8u, 16u, 100u, 128u, 4096u}) {
    for (const double cached : {0.0, 0.4, 1.0}) {
      SCOPED_TRACE(testing::Message() << value_size << " bytes, cached " << cached);
      Model model(NewPath(), value_size, cached);
      for (const std::size_t n :
           {1, 31, 512, 2048, 4096, 4097, 8192, 8193, 16384, 16385, 70'000, 131'072, 131'073}) {
        if (n > model.MostOperations()) continue;
        for (const Op change : {Op::kUpdate, Op::kInsert, Op::kUpsert, Op::kErase}) {
          model.ApplyRandom(n, 1, change);
          model.ApplyRandom(n, 0, change);
          model.ApplyRandom(n, 2, change);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Who sees that a batch has ended sees what it wrote, without a call of CUDA: rows that the cache
/// has, or that are read, and what a batch gives that also writes.
TEST_F(CudaTest, OutputsInPinnedMemoryAreThereWhenTheBatchIs) {
  constexpr std::size_t kBatches = 1000;
  constexpr std::size_t kMost = 20'000;
  std::mt19937_64 random(test::TestSeed());
  std::vector<std::uint64_t> keys(kKeys);
  std::vector<test::Value> values(kKeys);
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    keys[key] = key;
    values[key] = test::ValueOf(key);
  }
  Placed in(Placed::kPinned, kMost * sizeof(std::uint64_t));
  Placed given(Placed::kPinned, kMost * sizeof(test::Value));
  Placed found(Placed::kPinned, kMost * sizeof(test::Value));
  Placed results(Placed::kPinned, kMost);
  auto* const wanted = reinterpret_cast<std::uint64_t*>(in.data());
  auto* const written = reinterpret_cast<test::Value*>(given.data());
  const auto* const rows = reinterpret_cast<const test::Value*>(found.data());
  for (const double cached : {0.0, 1.0}) {
    OpenOptions open = test::TestOpenOptions();
    open.cache.fraction = cached;
    Store store = Store::Create(NewPath(), {.value_size = test::kValueSize}, open);
    std::vector<Result> inserted(kKeys);
    ASSERT_EQ(
        store.Insert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), inserted),
        0u);
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      const std::size_t n = batch % 16 == 0 ? kMost : 1 + random() % 600;
      std::vector<Op> ops(n, Op::kFind);
      const bool writes = batch % 3 == 0 && n < kMost;  // what is there
      for (std::size_t i = 0; i < n; ++i) {
        wanted[i] = random() % kKeys;
        if (writes && random() % 4 == 0) ops[i] = Op::kUpdate;
        if (writes) written[i] = values[wanted[i]];
      }
      std::memset(found.data(), 0xA5, n * sizeof(test::Value));
      std::memset(results.data(), 0xA5, n);
      Batch finds{.op = Op::kFind,
                  .keys = in.bytes().first(n * sizeof(std::uint64_t)),
                  .found = found.bytes().first(n * sizeof(test::Value)),
                  .results = {reinterpret_cast<Result*>(results.data()), n}};
      if (writes) {
        finds.ops = ops;
        finds.values = given.bytes().first(n * sizeof(test::Value));
      }
      store.Apply(finds);
      for (std::size_t k = n; k-- > 0;) {  // those that were written last first
        ASSERT_EQ(static_cast<Result>(results.data()[k]), Result::kOk) << batch;
        if (ops[k] != Op::kFind) continue;
        ASSERT_EQ(rows[k], values[wanted[k]]) << "batch " << batch << ", row " << k << " of " << n;
      }
    }
  }
}

/// Keys that are not whole words, or of several of them, and finds that ask for existence alone.
TEST_F(CudaTest, KeysInHostMemoryMayHaveAnyLength) {
  constexpr std::size_t kItems = 20'000;
  for (const std::uint32_t key_size : {12u, 16u, 32u}) {
    SCOPED_TRACE(testing::Message() << "keys of " << key_size);
    std::vector<std::byte> keys(2 * kItems * key_size);
    for (std::size_t i = 0; i < 2 * kItems; ++i) {
      std::memcpy(keys.data() + i * key_size, &i, sizeof i);
    }
    std::vector<test::Value> values(kItems);
    for (std::size_t i = 0; i < kItems; ++i) values[i] = test::ValueOf(i);
    Store store = Store::Create(NewPath(), {.key_size = key_size, .value_size = test::kValueSize},
                                test::TestOpenOptions());
    std::vector<Result> inserted(kItems);
    ASSERT_EQ(store.Insert(std::span(keys).first(kItems * key_size),
                           std::as_bytes(std::span(values)), inserted),
              0u);
    for (const auto where : {Placed::kPageable, Placed::kPinned}) {
      for (const std::size_t n : {std::size_t{100}, std::size_t{5000}, 2 * kItems}) {
        const std::size_t first = kItems - n / 2;  // half of them are there
        const std::vector<std::byte> some(keys.begin() + first * key_size,
                                          keys.begin() + (first + n) * key_size);
        Placed in(where, some);
        Placed found(where, n * sizeof(test::Value));
        for (const bool gives : {false, true}) {
          Placed results(where, n);
          store.Find(in.bytes(), gives ? found.bytes() : std::span<std::byte>{},
                     {reinterpret_cast<Result*>(results.data()), n});
          const auto outcomes = results.Contents<Result>();
          const auto rows = found.Contents<test::Value>();
          for (std::size_t i = 0; i < n; ++i) {
            const bool there = first + i < kItems;
            ASSERT_EQ(outcomes[i], there ? Result::kOk : Result::kNotFound) << n << ", " << i;
            if (gives && there) ASSERT_EQ(rows[i], values[first + i]) << n << ", " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpm
