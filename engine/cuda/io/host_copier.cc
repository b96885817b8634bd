#include "engine/cuda/io/host_copier.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "engine/cuda/io/around_caches.h"
#include "engine/cuda/memory.h"
#include "pm/relaxed_capture.h"

namespace gpm {
namespace {

/// More are no faster.
constexpr unsigned kMostThreads = 8;

/// Inputs of up to so many bytes go to their buffers around the caches. (2^20 updates of 128 bytes
/// take 15% more time so, as the buffers are used again and again then; what smaller ones gain was
/// measured together with the threads that copy: docs/TRIED.md, "Arrays in host memory".)
constexpr std::uint64_t kAroundCachesUpTo = std::uint64_t{1} << 24;

/// Of a copy within host memory, that a thread is asked for.
constexpr std::uint64_t kBytesOfThread = std::uint64_t{1} << 16;

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
  const std::uint64_t share = bytes / threads_.threads();
  const std::uint64_t piece = std::min(piece_bytes_, std::max(kLeastPieceBytes, share));
  for (std::uint64_t at = 0; at < bytes;) at = TakeTurn(at, bytes, piece, stream, begin, end);
}

template <class Begin, class End>
std::uint64_t HostCopier::TakeTurn(std::uint64_t first, std::uint64_t last,
                                   std::uint64_t piece_bytes, cudaStream_t stream,
                                   const Begin& begin, const End& end) {
  const FairTurns::Turn turn(turns_);
  PiecesOfTurn places(turn, first, last, piece_bytes, kPiecesIfAwaited * piece_bytes_);
  const auto copy = [&](std::size_t thread) {
    const RelaxedCapture relaxed;
    // The pool's threads are this copier's alone; in the caller's it is current.
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    std::optional<Piece> before;
    for (std::size_t k = 0;; k ^= 1) {
      std::optional<Piece> piece;
      if (const auto at = places.Take()) {
        Buffer* const buffer = buffers_[2 * thread + k].get();
        Await(buffer->copied);
        piece = Piece{buffer, *at, std::min(piece_bytes, last - *at)};
        begin(*piece);
        CheckCuda(cudaEventRecord(buffer->copied, stream), "cudaEventRecord");
      }
      if (before) end(*before);
      if (!piece) return;
      before = piece;
    }
  };
  try {
    const std::uint64_t pieces = (last - first + piece_bytes - 1) / piece_bytes;
    threads_.Run(std::min<std::uint64_t>(buffers_.size() / 2, pieces), copy);
  } catch (...) {
    cudaStreamSynchronize(stream);  // nothing uses the buffers, nor the arrays, any more
    throw;
  }
  return places.next();
}

template <class Copy>
void HostCopier::InParts(std::uint64_t bytes, const Copy& copy) {
  threads_.Run((bytes + kBytesOfThread - 1) / kBytesOfThread, [&](std::size_t part) {
    const std::uint64_t at = part * kBytesOfThread;
    copy(at, std::min(kBytesOfThread, bytes - at));
  });
}

void HostCopier::CopyHost(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  InParts(bytes,
          [&](std::uint64_t at, std::uint64_t part) { std::memcpy(to + at, from + at, part); });
}

void HostCopier::ToDevice(std::byte* to, const std::byte* from, std::uint64_t bytes,
                          cudaStream_t stream) {
  if (bytes > 0 && bytes <= piece_bytes_) {
    const FairTurns::Turn turn(turns_);
    const RelaxedCapture relaxed;
    Buffer& buffer = *buffers_.front();
    Await(buffer.copied);
    InParts(bytes, [&](std::uint64_t at, std::uint64_t part) {
      CopyAroundCaches(buffer.bytes + at, from + at, part);
      FenceAroundCaches();
    });
    CheckCuda(cudaMemcpyAsync(to, buffer.bytes, bytes, cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync to the device");
    const cudaError_t recorded = cudaEventRecord(buffer.copied, stream);
    if (recorded != cudaSuccess) cudaStreamSynchronize(stream);  // nothing uses the buffer any more
    CheckCuda(recorded, "cudaEventRecord");
    return;
  }
  const auto begin = [&](const Piece& piece) {
    if (bytes <= kAroundCachesUpTo) {
      CopyAroundCaches(piece.buffer->bytes, from + piece.at, piece.bytes);
      FenceAroundCaches();
    } else {
      std::memcpy(piece.buffer->bytes, from + piece.at, piece.bytes);
    }
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
