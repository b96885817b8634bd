#ifndef GPM_ENGINE_CUDA_IO_HOST_READER_H_
#define GPM_ENGINE_CUDA_IO_HOST_READER_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/cuda/io/host_crew.h"
#include "engine/cuda/io/host_reads.h"
#include "engine/cuda/memory.h"
#include "pm/huge_memory.h"

namespace gpm {

/// Threads of the host that read values for a batch, from a pool of which the GPU does not keep all
/// address translations: it makes some 40 M reads a second there, a core of the host up to 50, and
/// eight cores 230 (docs/TRIED.md, "Large pools"). They bring the values together in pinned memory,
/// where they are one behind the other. The GPU makes a part of the reads meanwhile.
class HostReader : private HostCrew {
 public:
  /// Bytes of rows that are brought together, at most.
  static constexpr std::uint64_t kStagedBytes = std::uint64_t{64} << 20;

  /// Returns at once: it is made in the background. If it can't be, nobody gets a turn.
  HostReader(int device, std::uint32_t value_size);
  ~HostReader() override;

  using Turn = HostTurn<HostReader>;

  // Of the batch that has the turn:
  /// What kernels see of it.
  HostReads View() const;
  /// Has the host read when `stream` has listed the cells. @throws Error(kGpu)
  void Begin(cudaStream_t stream, const std::byte* cells_base, std::uint64_t cell_bytes);
  /// @return a stream on which that part was read. @throws Error(kGpu)
  cudaStream_t Await(std::uint32_t part);
  /// What `stream` has next waits until all parts are taken. @throws Error(kGpu)
  void Join(cudaStream_t stream);
  /// Of the batch, which has ended: what the host read.
  std::uint32_t RowsRead() const { return *Count(); }

 private:
  friend Turn;
  /// Memory of the host that the GPU reaches.
  struct Staged {
    Staged();
    ~Staged();
    Staged(const Staged&) = delete;
    Staged& operator=(const Staged&) = delete;
    void Register();
    const HugeMemory memory;
    std::byte* const rows;
    std::uint64_t registered = 0;  ///< bytes
  };
  /// What has to be made.
  struct Made {
    explicit Made(std::uint32_t row_bytes);
    Staged staged;
    PinnedArray list;  ///< of cells; in front of them their number
    CudaStream taking;
    CudaEvent listed, taken;
  };
  void Do() noexcept override;
  void AwaitAll() noexcept override;
  std::uint32_t* Count() const;  ///< HostReads::count
  std::uint32_t* Cells() const;  ///< HostReads::cells

  const std::uint32_t value_size_;
  const std::uint32_t row_bytes_;
  std::optional<Made> made_;
  const std::byte* cells_base_ = nullptr;
  std::uint64_t cell_bytes_ = 0;
  std::atomic<double> rate_;  ///< rows that the host reads in a second
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_HOST_READER_H_
