#ifndef GPM_ENGINE_CUDA_IO_CELL_FILLING_H_
#define GPM_ENGINE_CUDA_IO_CELL_FILLING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/batch_executor.h"
#include "engine/cuda/memory.h"

namespace gpm {

/// Bytes that are copied as they are.
struct CopiedPiece {
  std::byte* to;
  const std::byte* from;
  std::uint64_t bytes;
};

/// Copies values from GPU memory, by the copy engine: kernels have the GPU to themselves meanwhile.
class GpuFilling : public CellFilling {
 public:
  /// Begins behind what the default stream has. @param pieces each lies in one range of host memory
  /// that was registered with the GPU REQUIRES: the device is current @throws Error(kGpu)
  explicit GpuFilling(const std::vector<CopiedPiece>& pieces);
  void Await() override;

 private:
  CudaEvent given_;  ///< recorded behind what may write the values
  CudaStream stream_;
};

/// Copies values from host memory, by threads: nothing goes over the link.
class HostFilling : public CellFilling {
 public:
  /// Begins at once; with no thread, when it is waited for. @throws std::bad_alloc
  explicit HostFilling(std::vector<CopiedPiece> pieces);
  ~HostFilling() override { next_ = pieces_.size(); }  // the threads take no more
  void Await() override;

 private:
  void Copy();

  const std::vector<CopiedPiece> pieces_;
  std::atomic<std::size_t> next_{0};
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_CELL_FILLING_H_
