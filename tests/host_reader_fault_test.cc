// What a call that fails leaves of reads that threads of the host make: the batch fails, or the GPU
// reads everything, and batches behind it are as ever.

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <optional>

#include "engine/cuda/io/host_reader.h"
#include "tests/cuda_test_util.cuh"
#include "tests/fault_injection.h"

namespace gpm::test {
namespace {

class HostReaderFaultTest : public CudaTest {};

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

TEST_F(HostReaderFaultTest, EveryCallOfItsMaking) {
  for (const auto kind : {FaultKind::kCudaCall, FaultKind::kAllocation, FaultKind::kSystemCall}) {
    std::uint64_t calls = 0;
    for (bool hit = true; hit; calls += hit) {
      const Fault fault(kind, calls + 1);
      {
        const Fault::Armed armed;
        const HostReader reader(0, 128);  // throws nothing; its end waits until it is made
      }
      hit = fault.hit();
    }
    EXPECT_GT(calls, 1u) << FaultKindName(kind);
  }
  HostReader reader(0, 128);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!HostReader::Turn(&reader)) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "it is not made";
  }
  const HostReader::Turn turn(&reader);
  EXPECT_TRUE(turn);
  EXPECT_FALSE(HostReader::Turn(&reader)) << "another has it";
}

}  // namespace
}  // namespace gpm::test
