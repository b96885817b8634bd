// Copies of rows by the GPU, at any alignment.

#include <cooperative_groups.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/context.cuh"
#include "tests/cuda_test_util.cuh"

namespace gpm {
namespace {

using test::CudaTest;
using test::OnDevice;

constexpr std::uint32_t kAlignments = 16;
constexpr std::uint32_t kRoom = 128;  ///< bytes of a block
constexpr std::uint32_t kLead = 16;   ///< before its row

/// Block b copies `bytes` bytes from an address of alignment b % 16 to one of alignment b / 16.
__global__ void CopyRows(const std::byte* from, std::byte* to, std::uint32_t bytes) {
  const CudaTile tile(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  CopyBytes(tile, to + blockIdx.x * kRoom + kLead + blockIdx.x / kAlignments,
            from + kLead + blockIdx.x % kAlignments, bytes);
}

TEST_F(CudaTest, RowsAreCopiedAtAnyAlignment) {
  constexpr std::uint32_t kBlocks = kAlignments * kAlignments;
  std::vector<std::byte> source(kRoom);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i + 1);
  const OnDevice<std::byte> from(source);
  for (std::uint32_t bytes = 1; bytes <= 72; ++bytes) {
    const OnDevice<std::byte> to(std::size_t{kBlocks} * kRoom);
    CopyRows<<<kBlocks, kTileLanes>>>(from.data(), to.data(), bytes);
    CheckCuda(cudaGetLastError(), "CopyRows");
    const std::vector<std::byte> rows = to.Host();
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      const std::uint32_t first = kLead + block / kAlignments;
      for (std::uint32_t i = 0; i < kRoom; ++i) {
        const bool within = i >= first && i < first + bytes;
        const std::byte expected =
            within ? source[kLead + block % kAlignments + i - first] : std::byte{0xA5};
        ASSERT_EQ(rows[block * kRoom + i], expected)
            << bytes << " bytes, block " << block << ", byte " << i;
      }
    }
  }
}

}  // namespace
}  // namespace gpm
