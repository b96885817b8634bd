#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/cuda/executor.h"
#include "engine/cuda/io/cell_filling.h"

namespace gpm {
namespace {

static_assert(BatchExecutor::kFewestFilled >
                  StrategyThresholds::kSmallWritingParts * StrategyThresholds::kSmallUpTo,
              "small batches do not know of filled cells");

constexpr unsigned kMostThreads = 8;
/// What a thread of the host copies at a time.
constexpr std::uint64_t kHostPieceBytes = std::uint64_t{1} << 20;

}  // namespace

GpuFilling::GpuFilling(const std::vector<CopiedPiece>& pieces) {
  CheckCuda(cudaEventRecord(given_, nullptr), "cudaEventRecord");
  CheckCuda(cudaStreamWaitEvent(stream_, given_, 0), "cudaStreamWaitEvent");
  for (const CopiedPiece& piece : pieces) {
    CheckCuda(cudaMemcpyAsync(piece.to, piece.from, piece.bytes, cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync to the host");
  }
}

void GpuFilling::Await() {
  const RelaxedCapture relaxed;
  CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

HostFilling::HostFilling(std::vector<CopiedPiece> pieces)
    : pieces_(std::move(pieces)),
      threads_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads)),
      copying_(std::async([this] {
        threads_.Run(pieces_.size(), [this](std::size_t k) {
          std::memcpy(pieces_[k].to, pieces_[k].from, pieces_[k].bytes);
        });
      })) {}

/// Rows are copied as they are where they lie as cells do. Others, and those in managed memory, are
/// for kernels.
std::unique_ptr<CellFilling> CudaExecutor::FillCells(std::span<const std::byte> values,
                                                     CellRange cells) {
  if (value_size_ != cell_bytes_ || !TakesFilledCells()) return nullptr;
  const CurrentDevice current = Activate();
  cudaPointerAttributes attributes{};
  CheckCuda(cudaPointerGetAttributes(&attributes, values.data()), "cudaPointerGetAttributes");
  const bool on_gpu = attributes.type == cudaMemoryTypeDevice;
  if (attributes.type == cudaMemoryTypeManaged) return nullptr;
  if (on_gpu && attributes.device != device_) return nullptr;  // which the batch refuses
  std::vector<CopiedPiece> pieces;
  const std::uint64_t first = cells.first * cell_bytes_;
  const std::uint64_t end = cells.last * cell_bytes_;
  for (std::uint64_t at = first; at < end;) {
    const std::uint64_t most = on_gpu ? mapping_.EndOfStep(at) : at + kHostPieceBytes;
    const std::uint64_t bytes = std::min(most, end) - at;
    pieces.push_back({mapping_.base() + at, values.data() + (at - first), bytes});
    at += bytes;
  }
  if (on_gpu) return std::make_unique<GpuFilling>(pieces);
  if (attributes.type == cudaMemoryTypeHost) AwaitStream(nullptr);  // which may be writing it
  return std::make_unique<HostFilling>(std::move(pieces));
}

}  // namespace gpm
