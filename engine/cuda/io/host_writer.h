#ifndef GPM_ENGINE_CUDA_IO_HOST_WRITER_H_
#define GPM_ENGINE_CUDA_IO_HOST_WRITER_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/cuda/io/host_crew.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/strategy.h"
#include "table/free_queues.h"

namespace gpm {

/// Threads of the host that write the values of a batch, which are in pinned memory, to cells, so
/// that the GPU need not write them over the link: those assigned to its operations (CellGrant),
/// in the order of the operations, which is that of the cells' addresses where these were sorted.
/// The GPU publishes a part's values while the next one is written.
class HostWriter : private HostCrew {
 public:
  /// Operations of a batch, at most.
  static constexpr std::uint64_t kMostOperations = StrategyThresholds::kHostWritesUpTo;

  /// Returns at once: it is made in the background. If it can't be, nobody gets a turn.
  HostWriter(int device, std::uint32_t value_size);
  ~HostWriter() override;

  using Turn = HostTurn<HostWriter>;
  /// A turn, if one is to be had, and it was fast enough of late.
  Turn TakeTurn();

  // Of the batch that has the turn:
  std::uint32_t Parts() const;
  /// The operation with which a part begins, and the one before it ends.
  std::uint32_t BeginOf(std::uint32_t part) const;
  /// Waits for what `behind` has, which may write the values. @return a stream for what comes
  /// before the cells are known @throws Error(kGpu)
  cudaStream_t Follow(cudaStream_t behind);
  /// Has the host write. @param rows the operations' values @param grants the batch's grant in the
  /// executor's ring @throws Error(kGpu)
  void Begin(const std::byte* rows, std::uint32_t operations, const Reclaim& grants,
             std::byte* cells_base, std::uint64_t cell_bytes);
  /// Recorded by Follow, behind what `behind` had.
  cudaEvent_t Followed() const { return made_->followed; }
  /// Recorded when the values of that part were written.
  cudaEvent_t Written(std::uint32_t part) const { return Done(part); }

 private:
  friend Turn;
  struct Made {
    Made();
    PinnedArray list;  ///< of the operations' cells
    CudaEvent followed;
  };
  void Do() noexcept override;

  const std::uint32_t value_size_;
  std::optional<Made> made_;
  double pace_;                         ///< time that it takes, of what the GPU would by itself
  std::atomic<std::uint32_t> wait_{0};  ///< batches that do without
  const std::byte* rows_ = nullptr;
  std::byte* cells_base_ = nullptr;
  std::uint64_t cell_bytes_ = 0;
  std::uint32_t operations_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_HOST_WRITER_H_
