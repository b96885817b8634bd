#ifndef GPM_ENGINE_CUDA_IO_HOST_COPIER_H_
#define GPM_ENGINE_CUDA_IO_HOST_COPIER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/cuda/memory.h"
#include "pm/fair_turns.h"
#include "pm/thread_pool.h"

namespace gpm {

/// Copies arrays between GPU memory and pageable host memory. Threads copy pieces to and from
/// pinned buffers, and the GPU copies those meanwhile. (For the driver's own copy of such memory
/// one thread does that, and it takes several times as long as the link.)
///
/// Thread safety: any thread at any time, if the device is current there; copies take turns in the
/// order in which they came, and one of large arrays lets those who wait have theirs in between.
class HostCopier {
 public:
  /// Arrays up to this size are left to the driver, where it need not wait for the stream: it
  /// takes them whole. Bytes.
  static constexpr std::uint64_t kLeftToDriver = std::uint64_t{1} << 16;

  /// Outputs of a batch up to this size, together, come to pinned memory first, written by kernels
  /// or copied behind them, and are copied by threads from there. Bytes. (2^16 finds of 128
  /// bytes take 0.49 ms so and 0.61 in pieces; for 16 MiB it made no difference.)
  static constexpr std::uint64_t kStagedUpTo = std::uint64_t{10} << 20;
  /// An input up to this size that kernels read from pinned memory is copied there by threads.
  /// Bytes.
  static constexpr std::uint64_t kStagedInputUpTo = std::uint64_t{2} << 20;

  /// Bytes of a piece, at most. (128 MiB to the host, by eight threads on a machine with an H200:
  /// in pieces of 64 KiB, 256 KiB and 1 MiB 10.9, 5.6 and 2.9 ms; the link takes 2.4, and the
  /// driver's own copy 7.2.)
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
  /// And at least, where there are threads without a piece otherwise.
  static constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{1} << 18;
  /// What is copied in one turn if others wait, in pieces; else all is, as each turn begins with
  /// empty buffers and ends when they are.
  static constexpr std::uint64_t kPiecesIfAwaited = 16;

  /// @param piece_bytes other than by default in tests @throws Error(kGpu), std::bad_alloc
  explicit HostCopier(int device, std::uint64_t piece_bytes = kPieceBytes);
  ~HostCopier();
  HostCopier(const HostCopier&) = delete;
  HostCopier& operator=(const HostCopier&) = delete;

  /// Copies behind what the stream has; `from` is free again at the return. @throws Error(kGpu)
  void ToDevice(std::byte* to, const std::byte* from, std::uint64_t bytes, cudaStream_t stream);
  /// Copies behind what the stream has, and returns when that is done.
  /// @param await makes the stream wait until the bytes before a place are there, where they still
  ///        come; threads of the copier call it, side by side
  /// @throws Error(kGpu); what `await` throws
  void ToHost(std::byte* to, const std::byte* from, std::uint64_t bytes, cudaStream_t stream,
              const std::function<void(std::uint64_t)>& await = {});
  /// Copies within host memory, by as many threads as that takes.
  void CopyHost(std::byte* to, const std::byte* from, std::uint64_t bytes);

 private:
  struct Buffer {
    explicit Buffer(std::uint64_t size);
    ~Buffer();
    std::byte* bytes = nullptr;  ///< pinned
    CudaEvent copied;            ///< recorded behind the GPU's last copy
  };
  struct Piece {
    Buffer* buffer;
    std::uint64_t at;
    std::uint64_t bytes;
  };
  /// Calls copy(at, bytes) for parts of an array, by as many threads as that takes.
  template <class Copy>
  void InParts(std::uint64_t bytes, const Copy& copy);
  template <class Begin, class End>
  void InPieces(std::uint64_t bytes, cudaStream_t stream, const Begin& begin, const End& end);
  /// @return where the next turn begins
  template <class Begin, class End>
  std::uint64_t TakeTurn(std::uint64_t first, std::uint64_t last, std::uint64_t piece_bytes,
                         cudaStream_t stream, const Begin& begin, const End& end);

  const int device_;
  const std::uint64_t piece_bytes_;
  ThreadPool threads_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  ///< two of each thread that copies
  FairTurns turns_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_HOST_COPIER_H_
