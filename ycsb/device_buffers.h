#ifndef GPM_YCSB_DEVICE_BUFFERS_H_
#define GPM_YCSB_DEVICE_BUFFERS_H_

#include "ycsb/batch_buffers.h"
#include "ycsb/buffer.h"

namespace gpm::ycsb {

/// Batch arrays of which the store sees a copy in GPU memory, as a GPU application would have them,
/// or in pinned memory.
class DeviceBatchBuffers : public BatchBuffers {
 public:
  /// @throws Error(kUnsupported) when built without CUDA, Error(kGpu)
  explicit DeviceBatchBuffers(const Shape& shape, Memory memory = Memory::kDevice);

  void Upload(std::size_t rows) override;
  Batch View(std::size_t first, std::size_t rows, std::optional<Op> only) override;
  SearchBatch SearchView(std::size_t first, std::size_t rows, std::size_t batch,
                         const std::uint32_t& attribute) override;
  void Download(std::size_t rows) override;

 private:
  Buffer device_ops_;
  Buffer device_keys_;
  Buffer device_values_;
  Buffer device_found_;
  Buffer device_results_;
  Buffer device_bounds_;
  Buffer device_counts_;
  Buffer device_offsets_;
  Buffer device_matched_;
};

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_DEVICE_BUFFERS_H_
