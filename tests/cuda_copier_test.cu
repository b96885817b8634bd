// Copies between GPU memory and pageable memory.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "engine/cuda/io/host_copier.h"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::OnDevice;

class HostCopierTest : public test::CudaTest {};

constexpr std::uint64_t kPiece = 512;

std::vector<std::byte> RandomBytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Copies there and back, and looks whether the neighbours were left alone.
void CopyBothWays(HostCopier& copier, std::size_t count, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << count << " bytes");
  const CudaStream stream;
  const OnDevice<std::byte> device(count + 64);
  const auto poison = device.Host();
  auto bytes = RandomBytes(count, seed);
  const auto expected = bytes;
  copier.ToDevice(device.data() + 3, bytes.data(), count, stream);
  std::memset(bytes.data(), 0, count);  // they are free again
  std::vector<std::byte> back(count + 64, std::byte{9});
  copier.ToHost(back.data() + 5, device.data() + 3, count, stream);
  EXPECT_EQ(std::memcmp(back.data() + 5, expected.data(), count), 0);
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t at = i < 5 ? i : count + i;
    EXPECT_EQ(back[at], std::byte{9}) << at;
  }
  const auto on_device = device.Host();
  EXPECT_EQ(std::memcmp(on_device.data() + 3, expected.data(), count), 0);
  EXPECT_EQ(std::memcmp(on_device.data(), poison.data(), 3), 0);
  EXPECT_EQ(std::memcmp(on_device.data() + 3 + count, poison.data(), 61), 0);
}

TEST_F(HostCopierTest, ArraysOfAllSizes) {
  HostCopier copier(0, kPiece);
  const std::uint64_t turn = kPiece * HostCopier::kPiecesIfAwaited;
  std::uint64_t seed = 1;
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, kPiece - 1, kPiece,
                                    kPiece + 1, 17 * kPiece, turn, turn + 1, 3 * turn - 7}) {
    CopyBothWays(copier, count, ++seed);
  }
}

/// Each part gets its bytes some time after the copy has begun.
TEST_F(HostCopierTest, WhatStillComes) {
  HostCopier copier(0, kPiece);
  constexpr std::size_t kPart = 3 * kPiece + 100;
  std::array<CudaEvent, 5> written;
  const OnDevice<std::byte> device(written.size() * kPart);
  const CudaStream writer;
  const CudaStream reader;
  for (std::size_t part = 0; part < written.size(); ++part) {
    CheckCuda(cudaLaunchHostFunc(
                  writer, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); },
                  nullptr),
              "cudaLaunchHostFunc");
    CheckCuda(
        cudaMemsetAsync(device.data() + part * kPart, static_cast<int>(part + 1), kPart, writer),
        "cudaMemsetAsync");
    CheckCuda(cudaEventRecord(written[part], writer), "cudaEventRecord");
  }
  std::vector<std::byte> host(written.size() * kPart);
  copier.ToHost(host.data(), device.data(), host.size(), reader, [&](std::uint64_t end) {
    CheckCuda(cudaStreamWaitEvent(reader, written[(end - 1) / kPart], 0), "cudaStreamWaitEvent");
  });
  for (std::size_t i = 0; i < host.size(); ++i) {
    ASSERT_EQ(host[i], static_cast<std::byte>(i / kPart + 1)) << i;
  }
}

TEST_F(HostCopierTest, ThreadsTakeTurns) {
  HostCopier copier(0, kPiece);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&copier, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 20; ++i) CopyBothWays(copier, random() % 300'000, random());
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace gpm
