// Reads that threads of the host make for batches in large pools (HostReader).

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "engine/cuda/io/host_reader.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::OnDevice;
using test::Placed;

constexpr std::size_t kKeys = 100'000;
constexpr auto kSoon = std::chrono::seconds(60);

std::vector<std::byte> Rows(const std::vector<std::uint64_t>& keys, std::uint32_t size,
                            std::uint64_t version) {
  std::vector<std::byte> rows(keys.size() * size);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    test::FillRow(rows.data() + i * size, size, keys[i], version);
  }
  return rows;
}

class HostReaderTest : public CudaTest {
 protected:
  enum class Kept { kNothing, kDirectory, kValues };  ///< in GPU memory
  /// A store of kKeys items, to which every pool is a large one.
  Store MakeLarge(std::uint32_t value_size, bool by_host = true, Kept kept = Kept::kDirectory) {
    CreateOptions create;
    create.value_size = value_size;
    OpenOptions open = test::TestOpenOptions();
    open.access.dealt_up_to = 1;
    open.access.by_host = by_host;
    open.cache.directory = kept != Kept::kNothing;
    open.cache.fraction = kept == Kept::kValues ? 0.5 : 0;
    std::filesystem::remove(PoolPath());
    Store store = Store::Create(PoolPath(), create, open);
    std::vector<std::uint64_t> keys(kKeys);
    std::iota(keys.begin(), keys.end(), 0);
    std::vector<Result> results(kKeys);
    store.Insert(std::as_bytes(std::span(keys)), Rows(keys, value_size, 0), results);
    EXPECT_EQ(results, std::vector(kKeys, Result::kOk));
    return store;
  }
  static std::vector<std::uint64_t> Draw(std::mt19937_64& random, std::size_t count) {
    std::vector<std::uint64_t> keys(count);
    for (std::uint64_t& key : keys) key = random() % (kKeys + kKeys / 8);
    return keys;
  }
  /// Finds keys, some of which are not there, and compares what comes.
  /// @param mixed others are updated, to what they are
  static void FindAndCompare(Store& store, const std::vector<std::uint64_t>& keys,
                             std::uint32_t value_size, Placed::Where where, bool mixed = false) {
    const std::vector<std::byte> expected = Rows(keys, value_size, 0);
    Placed in(where, keys);
    Placed found(where, keys.size() * value_size);
    Placed values(where, expected);
    std::vector<Result> results(keys.size());
    std::vector<Op> ops(mixed ? keys.size() : 0, Op::kFind);
    for (std::size_t i = 0; i < ops.size(); i += 20) ops[i] = Op::kUpdate;
    store.Apply({.op = Op::kFind,
                 .ops = ops,
                 .keys = in.bytes(),
                 .values = mixed ? values.bytes() : std::span<std::byte>{},
                 .found = found.bytes(),
                 .results = results});
    const auto rows = found.Contents<std::byte>();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(results[i], keys[i] < kKeys ? Result::kOk : Result::kNotFound) << keys[i];
      if (keys[i] >= kKeys || (mixed && i % 20 == 0)) continue;
      ASSERT_EQ(
          std::memcmp(rows.data() + i * value_size, expected.data() + i * value_size, value_size),
          0)
          << "row " << i << " of key " << keys[i];
    }
  }
};

TEST_F(HostReaderTest, RowsOfEverySizeComeToWhereTheyAreWanted) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t value_size : {9u, 13u, 100u, 128u, 512u}) {
    for (const Kept kept : {Kept::kNothing, Kept::kDirectory, Kept::kValues}) {
      for (const bool mixed : {false, true}) {
        SCOPED_TRACE(testing::Message() << value_size << " bytes, " << static_cast<int>(kept)
                                        << " kept, mixed " << mixed);
        Store store = MakeLarge(value_size, true, kept);
        const auto until = std::chrono::steady_clock::now() + kSoon;
        std::uint64_t batches = 0;
        while (batches < 6 || store.Stats().read_by_host == 0) {
          ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host reads nothing";
          const auto where = static_cast<Placed::Where>(batches++ % Placed::kWays);
          FindAndCompare(store, Draw(random, 70'000 + random() % 70'000), value_size, where, mixed);
          if (HasFatalFailure()) return;
        }
        store.Close();
      }
    }
  }
}

TEST_F(HostReaderTest, FewOrLongRowsAreReadByTheGpu) {
  std::mt19937_64 random(test::TestSeed());
  const auto read_by_host = [&](Store& store, std::size_t finds, std::uint32_t value_size) {
    for (int batch = 0; batch < 40; ++batch) {
      FindAndCompare(store, Draw(random, finds), value_size, Placed::kDevice);
    }
    return store.Stats().read_by_host;
  };
  Store off = MakeLarge(128, false);
  EXPECT_EQ(read_by_host(off, kKeys, 128), 0u);
  off.Close();
  Store few = MakeLarge(128);
  EXPECT_EQ(read_by_host(few, 16'000, 128), 0u);
  few.Close();
  Store longer = MakeLarge(513);
  EXPECT_EQ(read_by_host(longer, 50'000, 513), 0u);
}

/// Each thread has a stream: some find, some update and find what they alone write, in batches of
/// one kind and mixed. What is found is a whole row of its key, of a version that is not older than
/// what had been written before.
TEST_F(HostReaderTest, BesideOtherBatchesThatWrite) {
  constexpr std::uint32_t kSize = 128;
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kOwn = kKeys / kThreads;
  Store store = MakeLarge(kSize);
  std::array<std::atomic<std::uint64_t>, kThreads> written{}, begun{};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  const auto until = std::chrono::steady_clock::now() + kSoon;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const CudaStream stream;
      std::mt19937_64 random(test::TestSeed() + t);
      std::vector<std::uint64_t> own(kOwn);
      std::iota(own.begin(), own.end(), t * kOwn);
      for (std::uint64_t version = 1; !stop; ++version) {
        std::vector<std::uint64_t> keys(kKeys);
        for (std::uint64_t& key : keys) key = random() % kKeys;
        std::copy(own.begin(), own.end(), keys.begin());
        std::vector<Op> ops(kKeys, Op::kFind);
        const bool mixed = random() % 2 == 0;
        if (mixed) std::fill_n(ops.begin(), kOwn, Op::kUpdate);
        std::array<std::uint64_t, kThreads> before;
        for (std::size_t k = 0; k < kThreads; ++k) before[k] = written[k];
        const OnDevice<std::uint64_t> in(keys);
        const OnDevice<std::byte> rows(Rows(keys, kSize, version));
        const OnDevice<std::byte> found(kKeys * kSize);
        const OnDevice<Result> results(kKeys);
        const OnDevice<Op> kinds(ops);
        Batch batch{.op = Op::kFind,
                    .keys = in.In(),
                    .found = found.Out(),
                    .results = std::span(results.data(), kKeys)};
        if (mixed) {
          batch.ops = std::span<const Op>(kinds.data(), kKeys);
          batch.values = rows.In();
        }
        if (mixed) begun[t] = version;
        store.ApplyAsync(batch, stream).Wait();
        if (mixed) written[t] = version;
        const std::vector<std::byte> seen = found.Host();
        const std::vector<Result> said = results.Host();
        for (std::size_t i = 0; i < kKeys && !stop; ++i) {
          EXPECT_EQ(said[i], Result::kOk);
          if (mixed && i < kOwn) continue;
          const std::size_t owner = keys[i] / kOwn;
          const std::uint64_t least = owner == t ? written[t].load() : before[owner];
          const std::uint64_t most = owner == t ? least : begun[owner].load();
          const auto is_row =
              test::IsRowOf(std::span(seen).subspan(i * kSize, kSize), keys[i], least, most);
          if (is_row) continue;
          EXPECT_TRUE(is_row);
          stop = true;
        }
        if (std::chrono::steady_clock::now() > until) stop = true;
        if (t == 0 && version > 15 && store.Stats().read_by_host > 20 * kKeys) stop = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store.Stats().read_by_host, 20 * kKeys);
}

}  // namespace
}  // namespace gpm
