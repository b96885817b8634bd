#include "engine/cuda/executor.h"

namespace gpm {
namespace {

/// Each warp writes whole lines side by side.
__global__ void WriteLevels(const uint4* from, uint4* to, std::uint64_t count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += step) {
    to[i] = from[i];
  }
}

class CudaLevelImage : public LevelImage {
 public:
  CudaLevelImage(const CudaExecutor& executor, std::uint64_t bytes,
                 std::atomic<std::uint64_t>* gpu_bytes)
      : executor_(executor), memory_(gpu_bytes) {
    memory_.Reserve(bytes);
    CheckCuda(cudaMemsetAsync(memory_.data(), 0, bytes, stream_), "cudaMemsetAsync");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  ~CudaLevelImage() override {
    int before = executor_.device();
    cudaGetDevice(&before);
    cudaSetDevice(executor_.device());
    memory_ = DeviceArray<std::byte>();
    cudaSetDevice(before);
  }

  std::byte* data() const override { return memory_.data(); }
  void WriteTo(std::byte* place) override {
    const CurrentDevice current = executor_.Activate();
    Launch("WriteLevels", WriteLevels, kGridStrideBlocks, kBlockThreads, stream_,
           reinterpret_cast<const uint4*>(memory_.data()), reinterpret_cast<uint4*>(place),
           memory_.size() / sizeof(uint4));
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  const CudaExecutor& executor_;
  CudaStream stream_;
  DeviceArray<std::byte> memory_;
};

}  // namespace

std::unique_ptr<LevelImage> CudaExecutor::MakeLevelImage(std::uint64_t bytes) {
  const CurrentDevice current = Activate();
  try {
    return std::make_unique<CudaLevelImage>(*this, bytes, &gpu_bytes_);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace gpm
