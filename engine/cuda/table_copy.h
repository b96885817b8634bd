#ifndef GPM_ENGINE_CUDA_TABLE_COPY_H_
#define GPM_ENGINE_CUDA_TABLE_COPY_H_

#include <cstdint>
#include <vector>

#include "engine/cuda/executor.h"
#include "pm/huge_memory.h"

namespace gpm {

/// A copy that kernels make in GPU memory, where the directory is, too. Who reads it waits for what
/// it has launched, whatever fails (AwaitAtEnd).
class CudaTableCopy : public TableCopy {
 public:
  CudaTableCopy(CudaExecutor& executor, const CopyShape& wanted, DeviceMemory* bytes)
      : shape(wanted),
        counts(bytes, LastUse::Awaited()),
        device_keys(bytes, LastUse::Awaited()),
        device_references(bytes, LastUse::Awaited()),
        device_marks(bytes, LastUse::Awaited()),
        log_keys(bytes, LastUse::Awaited()),
        log_count(bytes, LastUse::Awaited()),
        log_recent(bytes, LastUse::Awaited()),
        executor_(executor),
        bytes_(bytes) {
    counts.Reserve(2);
    device_keys.Reserve(shape.room * shape.key_words);
    device_references.Reserve(shape.room);
    if (shape.log_room > 0) {
      log_keys.Reserve(shape.log_room * shape.key_words);
      log_count.Reserve(1);
      const std::uint64_t recent = ChangeLog::RecentFor(shape.log_room);
      log_recent.Reserve(recent);
      CheckCuda(cudaMemsetAsync(log_count.data(), 0, 8, stream_), "cudaMemsetAsync");
      CheckCuda(cudaMemsetAsync(log_recent.data(), 0, 4 * recent, stream_), "cudaMemsetAsync");
      CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
    if (shape.range_bits == 0) return;
    const std::uint64_t marks = std::uint64_t{1} << shape.range_bits;
    device_marks.Reserve(marks);
    CheckCuda(cudaMemsetAsync(device_marks.data(), 0, marks, stream_), "cudaMemsetAsync");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  void Fetch() override;
  std::vector<std::uint32_t> NamedCells(std::uint64_t cell_bytes) const override;

  const CopyShape shape;
  DeviceArray<std::uint64_t> counts;  ///< of all items, and of those copied
  DeviceArray<std::uint64_t> device_keys;
  DeviceArray<std::uint64_t> device_references;
  DeviceArray<std::uint8_t> device_marks;  ///< for the table; once it was taken, those of before
  DeviceArray<std::uint64_t> log_keys, log_count;  ///< of the change log, likewise
  DeviceArray<std::uint32_t> log_recent;           ///< likewise

 private:
  /// (By the copier: the driver's own copy of so much to pageable memory keeps batches from being
  /// launched.)
  template <class T>
  void Bring(const DeviceArray<T>& from, std::uint64_t count, std::byte* to) const {
    executor_.Copier().ToHost(to, reinterpret_cast<const std::byte*>(from.data()),
                              count * sizeof(T), stream_);
  }
  std::uint64_t BringOne(const DeviceArray<std::uint64_t>& from) const;
  /// Those that are marked in device_marks.
  void BringRanges();

  CudaExecutor& executor_;
  DeviceMemory* const bytes_;
  CudaStream stream_;
  HugeMemory keys_, references_, ranges_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_TABLE_COPY_H_
