#ifndef GPM_CLI_CRASH_GPU_H_
#define GPM_CLI_CRASH_GPU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gpmstore/store.h"

namespace gpm::cli {

/// What crash-test's child does with a GPU by itself. Built without CUDA, each throws
/// Error(kUnsupported).

/// Starts to use the GPU, which takes long. @throws Error(kGpu)
void StartGpu();

/// A stream that waits for no other. It lives as long as the process. @throws Error(kGpu)
Stream MakeGpuStream();

/// A batch's arrays in GPU memory. Thread safety: none.
class GpuBatch {
 public:
  virtual ~GpuBatch() = default;

  /// Copies a batch there from host memory, poisons its outputs, and waits for that.
  /// @return the batch in GPU memory, valid until the next Upload. @throws Error(kGpu)
  virtual Batch Upload(const Batch& batch) = 0;
  /// Copies the outputs of the batch that was uploaded last to those of `batch`, and waits.
  /// REQUIRES: the batch is complete. @throws Error(kGpu)
  virtual void Download(const Batch& batch) = 0;
  /// Carries out the batch that was uploaded last, each operation by itself and in no order, by a
  /// kernel on a DeviceScope that is open no longer than that. Operations answer kNoSpace when the
  /// scope has no room for them.
  /// @param writes inserts, updates and upserts of the batch
  /// @param answers where the kernel says what an operation has answered as soon as its call has
  ///        returned; host memory that the GPU can write
  /// @throws Error(kGpu)
  virtual void ApplyInScope(Store& store, Stream stream, std::uint64_t writes, std::uint64_t erases,
                            std::span<Result> answers) = 0;
};

/// @param operations of a batch, at most. @throws Error(kGpu)
std::unique_ptr<GpuBatch> MakeGpuBatch(std::size_t operations, std::uint32_t key_size,
                                       std::uint32_t value_size);

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_GPU_H_
