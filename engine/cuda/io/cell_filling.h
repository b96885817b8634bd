#ifndef GPM_ENGINE_CUDA_IO_CELL_FILLING_H_
#define GPM_ENGINE_CUDA_IO_CELL_FILLING_H_

#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "engine/batch_executor.h"
#include "engine/cuda/memory.h"
#include "pm/thread_pool.h"

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
  /// Begins at once, or, where the system has no thread for it, when it is waited for.
  /// @throws std::bad_alloc
  explicit HostFilling(std::vector<CopiedPiece> pieces);
  void Await() override { copying_.get(); }

 private:
  const std::vector<CopiedPiece> pieces_;
  ThreadPool threads_;
  std::future<void> copying_;  ///< last: it uses the others, and its end is waited for
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_CELL_FILLING_H_
