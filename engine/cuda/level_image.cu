#include <new>

#include "engine/cuda/executor.h"
#include "pm/count_pm.cuh"

namespace gpm {
namespace {

/// Each warp reads and writes whole lines side by side.
__global__ void CopyLinesKernel(const uint4* from, uint4* to, std::uint64_t count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const auto read = CountPm(PmPlace::kSlots, PmAccess::kRead, from + i, sizeof *from);
    const uint4 chunk = from[i];
    read.End(chunk.x);
    const auto written = CountPm(PmPlace::kSlots, PmAccess::kWrite, to + i, sizeof *to);
    to[i] = chunk;
    written.End();
  }
}

}  // namespace

void CopyLines(std::byte* to, const std::byte* from, std::uint64_t bytes, cudaStream_t stream) {
  Launch("CopyLines", CopyLinesKernel, kGridStrideBlocks, kBlockThreads, stream,
         reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), bytes / sizeof(uint4));
}

namespace {

class CudaLevelImage : public LevelImage {
 public:
  CudaLevelImage(CudaExecutor& executor, std::uint64_t bytes, DeviceMemory* memory)
      : executor_(executor), memory_(memory, LastUse::Awaited()) {
    memory_.Reserve(bytes);
    CheckCuda(cudaMemsetAsync(memory_.data(), 0, bytes, stream_), "cudaMemsetAsync");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  ~CudaLevelImage() override {
    const CurrentDevice current(executor_.device(), std::nothrow);
    try {
      executor_.AwaitBatches();
    } catch (const Error&) {  // the GPU runs nothing any more
    }
    memory_ = {};
  }

  std::byte* data() const override { return memory_.data(); }
  void WriteTo(std::byte* place) override {
    const CurrentDevice current = executor_.Activate();
    CopyLines(place, memory_.data(), memory_.size(), stream_);
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  CudaExecutor& executor_;
  CudaStream stream_;
  DeviceArray<std::byte> memory_;
};

}  // namespace

std::unique_ptr<LevelImage> CudaExecutor::MakeLevelImage(std::uint64_t bytes) {
  const CurrentDevice current = Activate();
  try {
    return std::make_unique<CudaLevelImage>(*this, bytes, &memory_);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace gpm
