#include "engine/cuda/io/host_copier.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "engine/cuda/memory.h"
#include "pm/relaxed_capture.h"

namespace gpm {
namespace {

/// More are no faster.
constexpr unsigned kMostThreads = 8;

void Await(const CudaEvent& event) {
  CheckCuda(cudaEventSynchronize(event), "cudaEventSynchronize");
}

}  // namespace

HostCopier::Buffer::Buffer(std::uint64_t size) {
  CheckCuda(cudaHostAlloc(reinterpret_cast<void**>(&bytes), size, cudaHostAllocDefault),
            "cudaHostAlloc");
}
HostCopier::Buffer::~Buffer() { cudaFreeHost(bytes); }

HostCopier::HostCopier(int device, std::uint64_t piece_bytes)
    : device_(device),
      piece_bytes_(piece_bytes),
      threads_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads)) {
  for (unsigned i = 0; i < 2 * threads_.threads(); ++i) {
    try {
      buffers_.push_back(std::make_unique<Buffer>(piece_bytes));
    } catch (const Error&) {
      if (buffers_.size() < 2) throw;
      return;  // where such memory is short fewer threads copy
    }
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
  const std::uint64_t turn = kPiecesOfTurn * piece_bytes_;
  for (std::uint64_t first = 0; first < bytes; first += turn) {
    TakeTurn(first, std::min(first + turn, bytes), stream, begin, end);
  }
}

template <class Begin, class End>
void HostCopier::TakeTurn(std::uint64_t first, std::uint64_t last, cudaStream_t stream,
                          const Begin& begin, const End& end) {
  const std::lock_guard turn(turn_);
  std::atomic<std::uint64_t> next{first};
  const auto copy = [&](std::size_t thread) {
    const RelaxedCapture relaxed;
    // The pool's threads are this copier's alone; in the caller's it is current.
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    std::optional<Piece> before;
    for (std::size_t k = 0;; k ^= 1) {
      const std::uint64_t at = next.fetch_add(piece_bytes_, std::memory_order_relaxed);
      std::optional<Piece> piece;
      if (at < last) {
        Buffer* const buffer = buffers_[2 * thread + k].get();
        Await(buffer->copied);
        piece = Piece{buffer, at, std::min(piece_bytes_, last - at)};
        begin(*piece);
        CheckCuda(cudaEventRecord(buffer->copied, stream), "cudaEventRecord");
      }
      if (before) end(*before);
      if (!piece) return;
      before = piece;
    }
  };
  try {
    const std::uint64_t pieces = (last - first + piece_bytes_ - 1) / piece_bytes_;
    threads_.Run(std::min<std::uint64_t>(buffers_.size() / 2, pieces), copy);
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
                        cudaStream_t stream, const std::function<void(std::uint64_t)>& await) {
  const auto begin = [&](const Piece& piece) {
    if (await) await(piece.at + piece.bytes);
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
