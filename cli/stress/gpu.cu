#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "cli/stress/gpu.h"
#include "engine/cuda/memory.h"
#include "gpmstore/device_view.cuh"

namespace gpm::stress {
namespace {

constexpr std::uint32_t kBlockThreads = 256;
constexpr std::uint32_t kWarp = 32;
constexpr std::uint64_t kMaxBlocks = 2048;

std::uint32_t BlocksFor(std::uint64_t threads) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>((threads + kBlockThreads - 1) / kBlockThreads, 1, kMaxBlocks));
}

/// Launches a kernel and says itself whether that worked: cudaGetLastError could tell of another
/// call.
template <class... Parameters, class... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), std::uint32_t blocks, Stream stream,
            Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kBlockThreads);
  config.stream = stream;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

/// A thread for each word of an operation.
__global__ void Fill(Rows rows, std::uint32_t words) {
  const std::uint64_t total = std::uint64_t{rows.n} * words;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t t = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < total;
       t += stride) {
    FillWord(rows, static_cast<std::uint32_t>(t / words), static_cast<std::uint32_t>(t % words));
  }
}

/// A warp for each operation.
__global__ void Judge(Rows rows, Answers answers) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warps = gridDim.x * (kBlockThreads / kWarp);
  const std::uint32_t value_size = rows.shape.value_size;
  for (std::uint32_t i = (blockIdx.x * kBlockThreads + threadIdx.x) / kWarp; i < rows.n;
       i += warps) {
    if (lane == 0) answers.results[i] = static_cast<std::uint8_t>(rows.results[i]);
    if (!IsAnswer(rows, i)) continue;
    const std::byte* const row = rows.found + std::size_t{i} * value_size;
    const std::uint64_t id = IdOf(rows.plan[i]);
    const std::uint64_t token = TokenIn(row, value_size);
    bool right = true;
    std::uint64_t parts = 0;
    for (std::uint32_t word = lane; word < Words(value_size); word += kWarp) {
      right &= IsWord(row, value_size, id, token, word);
      parts += SumPart(row, value_size, word);
    }
    const bool all = __all_sync(0xFFFFFFFFu, right) != 0;
    for (std::uint32_t apart = kWarp / 2; apart > 0; apart /= 2) {
      parts += __shfl_xor_sync(0xFFFFFFFFu, parts, apart);
    }
    if (lane == 0) answers.tokens[i] = all ? token : OtherToken(row, value_size, id, parts);
  }
}

/// A tile for each group of operations.
__global__ void UseScope(DeviceView view, Rows rows, std::uint32_t group) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint32_t tiles = gridDim.x * (kBlockThreads / DeviceView::kLanes);
  const std::uint32_t groups = rows.n / group;
  for (std::uint32_t g = (blockIdx.x * kBlockThreads + threadIdx.x) / DeviceView::kLanes;
       g < groups; g += tiles) {
    for (std::uint32_t i = g * group; i < (g + 1) * group; ++i) {
      std::uint64_t key[kMaxKeyWords];
      view.PadKey(rows.keys + std::size_t{i} * rows.shape.key_size, key);
      const std::size_t at = std::size_t{i} * rows.shape.value_size;
      Result result = Result::kInvalid;
      switch (OpOf(rows.plan[i])) {
        case Op::kFind:
          result = view.Find(tile, key, rows.found + at);
          break;
        case Op::kInsert:
          result = view.Insert(tile, key, rows.values + at);
          break;
        case Op::kUpdate:
          result = view.Update(tile, key, rows.values + at);
          break;
        case Op::kUpsert:
          result = view.Upsert(tile, key, rows.values + at);
          break;
        case Op::kErase:
          result = view.Erase(tile, key);
          break;
        case Op::kFindOrInsert:
          result = view.FindOrInsert(tile, key, rows.values + at, rows.found + at);
          break;
        default:  // what a DeviceView does not do
          break;
      }
      if (tile.thread_rank() == 0) rows.results[i] = static_cast<std::byte>(result);
      tile.sync();
    }
  }
}

}  // namespace

std::byte* AllocateDevice(std::size_t bytes) {
  void* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, bytes), "stress: cudaMalloc");
  return static_cast<std::byte*>(memory);
}
std::byte* AllocatePinned(std::size_t bytes) {
  void* memory = nullptr;
  CheckCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
            "stress: cudaHostAlloc");
  return static_cast<std::byte*>(memory);
}
// What can't be given back goes with the process.
void FreeDevice(std::byte* memory) noexcept { static_cast<void>(cudaFree(memory)); }
void FreePinned(std::byte* memory) noexcept { static_cast<void>(cudaFreeHost(memory)); }

Stream MakeStream() {
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            "stress: cudaStreamCreateWithFlags");
  return stream;
}
void DestroyStream(Stream stream) noexcept { static_cast<void>(cudaStreamDestroy(stream)); }

void AwaitStream(Stream stream) {
  CheckCuda(cudaStreamSynchronize(stream), "stress: cudaStreamSynchronize");
}

void FillRowsOnGpu(const Rows& rows, Stream stream) {
  const std::uint32_t words = WordsToFill(rows);
  Launch("stress: Fill", Fill, BlocksFor(std::uint64_t{rows.n} * words), stream, rows, words);
}

void JudgeRowsOnGpu(const Rows& rows, const Answers& answers, Stream stream) {
  Launch("stress: Judge", Judge, BlocksFor(std::uint64_t{rows.n} * kWarp), stream, rows, answers);
  AwaitStream(stream);
}

void RunInScope(Store& store, const Rows& rows, std::uint32_t group, std::uint64_t writes,
                std::uint64_t erases, Stream stream) {
  DeviceScope scope(store, stream, writes, erases);
  Launch("stress: UseScope", UseScope,
         BlocksFor(std::uint64_t{rows.n} / group * DeviceView::kLanes), stream, scope.view(), rows,
         group);
  scope.Close();
}

}  // namespace gpm::stress
