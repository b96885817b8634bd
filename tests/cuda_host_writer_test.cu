// Values that threads of the host write to cells, for batches of values in pinned memory
// (HostWriter).

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::OnDevice;
using test::Placed;
using test::Versions;

constexpr std::size_t kKeys = 400'000;
constexpr auto kSoon = std::chrono::seconds(60);

/// A store, and what it should hold.
class Checked {
 public:
  enum class Kept { kDirectory, kValues };  ///< in GPU memory
  Checked(const std::string& path, std::uint32_t value_size, Kept kept, std::size_t keys,
          bool by_host = true)
      : value_size_(value_size), versions_(2 * keys, value_size) {
    CreateOptions create;
    create.value_size = value_size;
    OpenOptions open = test::TestOpenOptions();
    open.access.by_host = by_host;
    open.cache.fraction = kept == Kept::kValues ? 0.5 : 0;
    store_.emplace(Store::Create(path, create, open));
    std::vector<std::uint64_t> all(keys);
    std::iota(all.begin(), all.end(), 0);
    Apply(Op::kInsert, all, Placed::kDevice);
  }
  Store& store() { return *store_; }

  /// What a batch is to write and to answer; it is to be applied next.
  Versions::Planned Plan(Op op, const std::vector<std::uint64_t>& keys) {
    return versions_.Plan(std::vector<Op>(keys.size(), op), keys);
  }

  /// Applies a batch, the keys and values of which lie there, and checks its results.
  void Apply(Op op, const std::vector<std::uint64_t>& keys, Placed::Where where) {
    const std::uint64_t first = versions_.newest();
    const Versions::Planned planned = Plan(op, keys);
    Placed in(where, keys);
    Placed values(where, planned.rows);
    Placed results(where, std::vector<std::byte>(keys.size() * sizeof(Result), std::byte{0x77}));
    const CudaStream stream;
    store_
        ->ApplyAsync({.op = op,
                      .ops = {},
                      .keys = in.bytes(),
                      .values = values.bytes(),
                      .found = {},
                      .results = {reinterpret_cast<Result*>(results.data()), keys.size()}},
                     stream)
        .Wait();
    ASSERT_TRUE(results.Contents<Result>() == planned.results)
        << "versions from " << first << " on";
  }

  void Erase(const std::vector<std::uint64_t>& keys) {
    std::vector<Result> results(keys.size());
    store_->Erase(std::as_bytes(std::span(keys)), results);
    Plan(Op::kErase, keys);
  }

  /// Finds all keys, and compares their values.
  void Compare() {
    std::vector<std::uint64_t> keys(versions_.keys());
    std::iota(keys.begin(), keys.end(), 0);
    Placed in(Placed::kDevice, keys);
    Placed found(Placed::kDevice, keys.size() * value_size_);
    std::vector<Result> results(keys.size());
    store_->Find(in.bytes(), found.bytes(), results);
    const auto rows = found.Contents<std::byte>();
    std::vector<std::byte> expected(value_size_);
    std::uint64_t items = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(results[i], versions_.of(i) != 0 ? Result::kOk : Result::kNotFound) << "key " << i;
      if (versions_.of(i) == 0) continue;
      ++items;
      test::FillRow(expected.data(), value_size_, i, versions_.of(i));
      ASSERT_EQ(std::memcmp(rows.data() + i * value_size_, expected.data(), value_size_), 0)
          << "key " << i << ", version " << versions_.of(i);
    }
    const StoreStats stats = store_->Stats();
    EXPECT_EQ(stats.items, items);
    EXPECT_EQ(stats.free_cells, stats.value_cells - items);
  }
  void Reopen(const std::string& path) {
    store_->Close();
    store_.emplace(Store::Open(path, test::TestOpenOptions()));
  }

 private:
  std::uint32_t value_size_;
  Versions versions_;
  std::optional<Store> store_;
};

/// Different keys from `from` on, of which a few come again, and others are replaced by one of the
/// other half.
std::vector<std::uint64_t> Draw(std::mt19937_64& random, std::size_t count, std::uint64_t from,
                                std::uint64_t keys) {
  std::vector<std::uint64_t> all(keys);
  std::iota(all.begin(), all.end(), from);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  for (std::size_t k = 0; k < count / 20; ++k) all[random() % count] = all[random() % count];
  for (std::size_t k = 0; k < count / 50; ++k) all[random() % count] = (from + kKeys) % (2 * kKeys);
  return all;
}

class HostWriterTest : public CudaTest {};

TEST_F(HostWriterTest, WhatTheHostWritesIsThere) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t value_size : {9u, 100u, 128u, 512u}) {
    for (const auto kept : {Checked::Kept::kDirectory, Checked::Kept::kValues}) {
      SCOPED_TRACE(testing::Message()
                   << value_size << " bytes, values kept " << (kept == Checked::Kept::kValues));
      const std::string path = NewPath();
      Checked checked(path, value_size, kept, kKeys);
      const auto until = std::chrono::steady_clock::now() + kSoon;
      std::array<std::uint64_t, 2> written{};  // of each kind
      for (std::size_t batch = 0; batch < 4 || written[0] == 0 || written[1] == 0; ++batch) {
        ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host writes nothing";
        const std::uint64_t before = checked.store().Stats().written_by_host;
        const std::size_t count = 140'000 + random() % 150'000;
        checked.Apply(batch % 2 == 0 ? Op::kUpsert : Op::kUpdate, Draw(random, count, 0, kKeys),
                      Placed::kPinned);
        written[batch % 2] += checked.store().Stats().written_by_host - before;
        checked.Compare();
        if (HasFatalFailure()) return;
      }
      for (int batch = 0; batch < 2; ++batch) {  // for these the table has to grow
        checked.Apply(Op::kInsert, Draw(random, 150'000, kKeys, kKeys), Placed::kPinned);
        checked.Compare();
        if (HasFatalFailure()) return;
      }
      checked.Reopen(path);
      checked.Compare();
    }
  }
}

TEST_F(HostWriterTest, TheGpuWritesWhatDoesNotPay) {
  std::mt19937_64 random(test::TestSeed());
  Checked checked(NewPath(), 128, Checked::Kept::kDirectory, kKeys);
  const auto update = [&](Checked& of, std::size_t count, Placed::Where where) {
    const std::uint64_t before = of.store().Stats().written_by_host;
    of.Apply(Op::kUpdate, Draw(random, count, 0, kKeys), where);
    return of.store().Stats().written_by_host - before;
  };
  const auto until_written = [&] {
    const auto until = std::chrono::steady_clock::now() + kSoon;
    while (update(checked, 140'000, Placed::kPinned) == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host writes nothing";
    }
  };
  until_written();
  EXPECT_EQ(update(checked, 130'000, Placed::kPinned), 0u) << "a batch of middle size";
  until_written();
  EXPECT_EQ(update(checked, 140'000, Placed::kPageable), 0u) << "they would be copied twice";
  until_written();
  EXPECT_EQ(update(checked, 140'000, Placed::kDevice), 0u) << "they are on the GPU";
  std::vector<std::uint64_t> few(150'000);
  for (std::uint64_t& key : few) key = random() % 50'000;
  checked.Apply(Op::kUpdate, few, Placed::kDevice);
  EXPECT_EQ(update(checked, 140'000, Placed::kPinned), 0u) << "most were overwritten just now";
  until_written();
  checked.Compare();
  Checked off(NewPath(), 128, Checked::Kept::kDirectory, kKeys, false);
  Checked longer(NewPath(), 520, Checked::Kept::kDirectory, kKeys);
  for (int batch = 0; batch < 6; ++batch) {
    EXPECT_EQ(update(off, 140'000, Placed::kPinned), 0u);
    EXPECT_EQ(update(longer, 140'000, Placed::kPinned), 0u);
  }
}

/// Inserts of a table that has room for all have the host write, too; those that find a key give
/// their cells back.
TEST_F(HostWriterTest, Inserts) {
  constexpr std::size_t kFew = 100;  // operations on keys whose hashes meet count, too
  Checked checked(NewPath(), 128, Checked::Kept::kValues, kKeys);
  checked.store().Reserve(2 * kKeys);
  std::vector<std::uint64_t> keys(140'000);
  const auto insert = [&] {
    const std::uint64_t before = checked.store().Stats().written_by_host;
    checked.Apply(Op::kInsert, keys, Placed::kPinned);
    return checked.store().Stats().written_by_host - before;
  };
  const auto until = std::chrono::steady_clock::now() + kSoon;
  for (std::uint64_t batch = 0;; ++batch) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host writes nothing";
    std::iota(keys.begin(), keys.end(), kKeys + batch % 5 * 50'000);
    std::size_t there = 0;
    for (std::size_t k = 0; k < keys.size(); k += 20, ++there) keys[k] = k;
    const std::uint64_t written = insert();
    EXPECT_TRUE(written == 0 ||
                (written >= keys.size() - there && written <= keys.size() - there + kFew))
        << written;
    checked.Compare();
    if (HasFatalFailure()) return;
    if (written != 0) break;
    std::vector<std::uint64_t> fresh = keys;
    std::erase_if(fresh, [](std::uint64_t key) { return key < kKeys; });
    checked.Erase(fresh);
  }
  EXPECT_LE(insert(), kFew) << "of keys that are all there";
  checked.Compare();  // their cells are free again
  EXPECT_EQ(insert(), 0u) << "the batch before wrote nothing";
  checked.Compare();
}

/// There the runtime knows no address of an array for its device. The table has to grow, so that
/// some of what the host wrote is written again.
TEST_F(HostWriterTest, InAThreadThatHasNotUsedCuda) {
  std::mt19937_64 random(test::TestSeed());
  Checked checked(NewPath(), 128, Checked::Kept::kDirectory, kKeys);
  const auto until = std::chrono::steady_clock::now() + kSoon;
  while (checked.store().Stats().written_by_host == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host writes nothing";
    checked.Apply(Op::kUpdate, Draw(random, 200'000, 0, kKeys), Placed::kPinned);
  }
  for (std::uint64_t batch = 0; batch < 2; ++batch) {
    std::vector<std::uint64_t> keys(140'000);
    std::iota(keys.begin(), keys.end(), kKeys + batch * keys.size());
    const Versions::Planned planned = checked.Plan(Op::kUpsert, keys);
    Placed in(Placed::kPinned, keys);
    Placed values(Placed::kPinned, planned.rows);
    std::vector<Result> results(keys.size());
    std::thread([&] { checked.store().Upsert(in.bytes(), values.bytes(), results); }).join();
    EXPECT_TRUE(results == planned.results);
    checked.Compare();
  }
}

/// Each thread has a stream, and updates what it alone writes, from host memory, and finds keys of
/// all. What is found is a whole row of its key, of a version that is not older than what had been
/// written before.
TEST_F(HostWriterTest, BesideOtherBatches) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kOwn = 140'000;
  constexpr std::size_t kAll = kThreads * kOwn;
  // (Cells of 16 bytes share lines.)
  for (const auto& [size, fraction] : {std::pair{128u, 0.0}, {128u, 0.5}, {16u, 0.5}}) {
    const std::uint32_t value_size = size;
    CreateOptions create;
    create.value_size = value_size;
    OpenOptions open = test::TestOpenOptions();
    open.cache.fraction = fraction;
    Store store = Store::Create(NewPath(), create, open);
    const auto rows_of = [&](const std::vector<std::uint64_t>& keys, std::uint64_t version) {
      std::vector<std::byte> rows(keys.size() * value_size);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        test::FillRow(rows.data() + i * value_size, value_size, keys[i], version);
      }
      return rows;
    };
    std::vector<std::uint64_t> all(kAll);
    std::iota(all.begin(), all.end(), 0);
    std::vector<Result> inserted(kAll);
    store.Insert(std::as_bytes(std::span(all)), rows_of(all, 0), inserted);
    std::array<std::atomic<std::uint64_t>, kThreads> written{}, begun{};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    const auto until = std::chrono::steady_clock::now() + kSoon;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const CudaStream stream;
        std::mt19937_64 random(test::TestSeed() + t);
        std::vector<std::uint64_t> own(all.begin() + t * kOwn, all.begin() + (t + 1) * kOwn);
        for (std::uint64_t version = 1; !stop; ++version) {
          std::shuffle(own.begin(), own.end(), random);
          const auto where = random() % 4 == 0 ? Placed::kPageable : Placed::kPinned;
          Placed keys(where, own);
          Placed rows(where, rows_of(own, version));
          Placed results(where, kOwn);
          begun[t] = version;
          store
              .ApplyAsync({.op = Op::kUpdate,
                           .ops = {},
                           .keys = keys.bytes(),
                           .values = rows.bytes(),
                           .found = {},
                           .results = {reinterpret_cast<Result*>(results.data()), kOwn}},
                          stream)
              .Wait();
          written[t] = version;
          EXPECT_TRUE(std::ranges::all_of(results.Contents<Result>(),
                                          [](Result said) { return said == Result::kOk; }));
          std::array<std::uint64_t, kThreads> before;
          for (std::size_t k = 0; k < kThreads; ++k) before[k] = written[k];
          std::vector<std::uint64_t> wanted(20'000);
          for (std::uint64_t& key : wanted) key = random() % kAll;
          const OnDevice<std::uint64_t> in(wanted);
          const OnDevice<std::byte> found(wanted.size() * value_size);
          std::vector<Result> said(wanted.size());
          store
              .ApplyAsync({.op = Op::kFind,
                           .ops = {},
                           .keys = in.In(),
                           .values = {},
                           .found = found.Out(),
                           .results = said},
                          stream)
              .Wait();
          const std::vector<std::byte> seen = found.Host();
          for (std::size_t i = 0; i < wanted.size() && !stop; ++i) {
            const std::size_t owner = wanted[i] / kOwn;
            const auto is_row = test::IsRowOf(std::span(seen).subspan(i * value_size, value_size),
                                              wanted[i], before[owner], begun[owner]);
            if (is_row && said[i] == Result::kOk) continue;
            ADD_FAILURE() << is_row.message() << "; " << ResultName(said[i]);
            stop = true;
          }
          if (std::chrono::steady_clock::now() > until) stop = true;
          if (t == 0 && version > 15 && store.Stats().written_by_host > 8 * kOwn) stop = true;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(store.Stats().written_by_host, 8 * kOwn);
  }
}

}  // namespace
}  // namespace gpm
