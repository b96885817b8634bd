#include "engine/cuda/io/host_copier.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "engine/cuda/launch.h"

namespace gpm {
namespace {

/// (128 MiB to the host, by eight threads on a machine with an H200: in pieces of 64 KiB, 256 KiB
/// and 1 MiB 10.9, 5.6 and 2.9 ms; the link takes 2.4, and the driver's own copy 7.2.)
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
/// More are no faster.
constexpr unsigned kMostThreads = 8;

void Await(const CudaEvent& event) {
  CheckCuda(cudaEventSynchronize(event), "cudaEventSynchronize");
}

}  // namespace

HostCopier::Buffer::Buffer() {
  CheckCuda(cudaHostAlloc(reinterpret_cast<void**>(&bytes), kPieceBytes, cudaHostAllocDefault),
            "cudaHostAlloc");
}
HostCopier::Buffer::~Buffer() { cudaFreeHost(bytes); }

HostCopier::HostCopier(int device)
    : device_(device),
      threads_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads)) {
  for (unsigned i = 0; i < 2 * threads_.threads(); ++i) {
    buffers_.push_back(std::make_unique<Buffer>());
  }
}
HostCopier::~HostCopier() {
  for (const auto& buffer : buffers_) cudaEventSynchronize(buffer->copied);
}

/// Calls begin(piece) and, a piece later, end(piece) for all pieces of an array; threads share
/// them. A piece's buffer is free when it begins.
template <class Begin, class End>
void HostCopier::InPieces(std::uint64_t bytes, cudaStream_t stream, const Begin& begin,
                          const End& end) {
  const std::lock_guard turn(turn_);
  std::atomic<std::uint64_t> next{0};
  const auto copy = [&](std::size_t thread) {
    const CurrentDevice current(device_, false);
    std::optional<Piece> before;
    for (std::size_t k = 0;; k ^= 1) {
      const std::uint64_t at = next.fetch_add(kPieceBytes, std::memory_order_relaxed);
      std::optional<Piece> piece;
      if (at < bytes) {
        Buffer* const buffer = buffers_[2 * thread + k].get();
        Await(buffer->copied);
        piece = Piece{buffer, at, std::min(kPieceBytes, bytes - at)};
        begin(*piece);
        CheckCuda(cudaEventRecord(buffer->copied, stream), "cudaEventRecord");
      }
      if (before) end(*before);
      if (!piece) return;
      before = piece;
    }
  };
  try {
    threads_.Run(std::min<std::size_t>(threads_.threads(), (bytes + kPieceBytes - 1) / kPieceBytes),
                 copy);
  } catch (...) {
    cudaStreamSynchronize(stream);  // nothing uses the buffers, nor the arrays, any more
    throw;
  }
}

void HostCopier::ToDevice(std::byte* to, const std::byte* from, std::uint64_t bytes,
                          cudaStream_t stream) {
  const auto begin = [&](const Piece& piece) {
    std::memcpy(piece.buffer->bytes, from + piece.at, piece.bytes);
    CheckCuda(cudaMemcpyAsync(to + piece.at, piece.buffer->bytes, piece.bytes,
                              cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync to the device");
  };
  InPieces(bytes, stream, begin, [](const Piece&) {});
}

void HostCopier::ToHost(std::byte* to, const std::byte* from, std::uint64_t bytes,
                        cudaStream_t stream) {
  const auto begin = [&](const Piece& piece) {
    CheckCuda(cudaMemcpyAsync(piece.buffer->bytes, from + piece.at, piece.bytes,
                              cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync to the host");
  };
  const auto end = [&](const Piece& piece) {
    Await(piece.buffer->copied);
    std::memcpy(to + piece.at, piece.buffer->bytes, piece.bytes);
  };
  InPieces(bytes, stream, begin, end);
}

}  // namespace gpm
