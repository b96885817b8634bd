// What a call that fails leaves of what threads of the host do for a batch: it fails, or the GPU
// does everything, and batches behind it are as ever.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "engine/cuda/io/host_reader.h"
#include "engine/cuda/io/host_writer.h"
#include "tests/cuda_test_util.cuh"
#include "tests/fault_injection.h"

namespace gpm::test {
namespace {

class HostReaderFaultTest : public CudaTest {};
class HostWriterFaultTest : public CudaTest {};

TEST_F(HostReaderFaultTest, EveryCudaCallOfABatch) {
  constexpr std::size_t kItems = 50'000;
  std::vector<std::uint64_t> keys(kItems), values(2 * kItems);
  std::iota(keys.begin(), keys.end(), 1);
  std::iota(values.begin(), values.end(), 7);
  std::vector<Result> results(kItems);
  CreateOptions create;
  create.value_size = 16;
  OpenOptions open = TestOpenOptions();
  open.access.dealt_up_to = 1;
  open.cache.fraction = 0;
  Store store = Store::Create(NewPath(), create, open);
  store.Insert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), results);
  const auto find = [&](bool may_fail) {
    Placed in(Placed::kDevice, keys);
    Placed found(Placed::kDevice, kItems * 16);
    std::optional<Fault::Armed> armed;
    if (may_fail) armed.emplace();
    EXPECT_EQ(store.Find(in.bytes(), found.bytes(), results), 0u);
    armed.reset();
    EXPECT_TRUE(found.Contents<std::uint64_t>() == values);
  };
  const auto read_by_host = [&] { return store.Stats().read_by_host; };
  const auto find_by_host = [&] {
    const std::uint64_t before = read_by_host();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    do {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host reads nothing";
      find(false);
    } while (read_by_host() == before);
  };
  find_by_host();
  std::uint64_t failures = 0;
  bool hit = true;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const Fault fault(FaultKind::kCudaCall, k);
    const std::uint64_t before = read_by_host();
    try {
      find(true);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGpu) << error.what();
      ++failures;
    }
    hit = fault.hit();
    EXPECT_TRUE(hit || read_by_host() > before) << "no batch of the host's";
    SCOPED_TRACE(hit ? fault.call() : "no fault");
    find_by_host();
  }
  EXPECT_GT(failures, 20u);
}

/// A batch that fails has updated some keys, and no value in part.
TEST_F(HostWriterFaultTest, EveryCudaCallOfABatch) {
  constexpr std::size_t kItems = 140'000;   // of a batch: three parts
  constexpr std::size_t kAll = 6 * kItems;  // (so that a batch of updates has a cell for each)
  std::vector<std::uint64_t> all(kAll);
  std::iota(all.begin(), all.end(), 1);
  const std::vector<std::uint64_t> keys(all.begin(), all.begin() + kItems);
  std::vector<Result> results(kItems);
  constexpr std::uint32_t kSize = 128;
  constexpr std::size_t kWords = kSize / 8;
  const auto rows_of = [&](std::uint64_t version) {
    std::vector<std::uint64_t> rows(kWords * kItems);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = version << 32 | i / kWords;
    return rows;
  };
  CreateOptions create;
  create.value_size = kSize;
  OpenOptions open = TestOpenOptions();
  open.cache.fraction = 0.5;
  Store store = Store::Create(NewPath(), create, open);
  const std::vector<std::uint64_t> zeros(kWords * kAll);
  std::vector<Result> inserted(kAll);
  store.Insert(std::as_bytes(std::span(all)), std::as_bytes(std::span(zeros)), inserted);
  std::uint64_t version = 0;
  const auto update = [&](bool may_fail) {
    Placed in(Placed::kPinned, keys);
    Placed values(Placed::kPinned, rows_of(++version));
    std::optional<Fault::Armed> armed;
    if (may_fail) armed.emplace();
    EXPECT_EQ(store.Update(in.bytes(), values.bytes(), results), 0u);
  };
  /// @param least the version of which all are at least
  const auto check = [&](std::uint64_t least) {
    Placed in(Placed::kDevice, keys);
    Placed found(Placed::kDevice, kItems * kSize);
    store.Find(in.bytes(), found.bytes(), results);
    const auto seen = found.Contents<std::uint64_t>();
    for (std::size_t i = 0; i < kItems; ++i) {
      const std::span<const std::uint64_t> row = std::span(seen).subspan(i * kWords, kWords);
      const std::uint64_t of = row[0] >> 32;
      const bool whole = std::ranges::all_of(row, [&](auto word) { return word == row[0]; });
      ASSERT_TRUE(results[i] == Result::kOk && whole && (row[0] & 0xFFFFFFFF) == (of ? i : 0) &&
                  of >= least && of <= version)
          << "key " << keys[i] << " has version " << of;
    }
  };
  const auto update_by_host = [&] {
    const std::uint64_t before = store.Stats().written_by_host;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    do {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "the host writes nothing";
      update(false);
    } while (store.Stats().written_by_host == before);
    check(version);
  };
  update(false);
  update_by_host();
  std::uint64_t failures = 0;
  std::uint64_t by_gpu = 0;  // tries without a fault, in a row, in which the GPU wrote all
  for (std::uint64_t k = 1; !HasFailure();) {
    const Fault fault(FaultKind::kCudaCall, k);
    const std::uint64_t before = version;
    const std::uint64_t written = store.Stats().written_by_host;
    try {
      update(true);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGpu) << error.what();
      ++failures;
    }
    SCOPED_TRACE(fault.hit() ? fault.call() : "no fault");
    check(before);
    if (!fault.hit() && store.Stats().written_by_host > written) break;  // it has no more calls
    if (fault.hit()) {
      ++k;
      by_gpu = 0;
    } else {
      ASSERT_LT(++by_gpu, 5u) << "the host writes nothing";
    }
    update_by_host();
  }
  EXPECT_GT(failures, 20u);
}

template <class Crew>
void FailEachCallOfItsMaking() {
  for (const auto kind : {FaultKind::kCudaCall, FaultKind::kAllocation, FaultKind::kSystemCall}) {
    std::uint64_t calls = 0;
    for (bool hit = true; hit; calls += hit) {
      const Fault fault(kind, calls + 1);
      {
        const Fault::Armed armed;
        const Crew crew(0, 128);  // throws nothing; its end waits until it is made
      }
      hit = fault.hit();
    }
    EXPECT_GT(calls, 1u) << FaultKindName(kind);
  }
  Crew crew(0, 128);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!typename Crew::Turn(&crew)) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "it is not made";
  }
  const typename Crew::Turn turn(&crew);
  EXPECT_TRUE(turn);
  EXPECT_FALSE(typename Crew::Turn(&crew)) << "another has it";
}

TEST_F(HostReaderFaultTest, EveryCallOfItsMaking) { FailEachCallOfItsMaking<HostReader>(); }
TEST_F(HostWriterFaultTest, EveryCallOfItsMaking) { FailEachCallOfItsMaking<HostWriter>(); }

}  // namespace
}  // namespace gpm::test
