#ifndef GPM_ENGINE_CUDA_TABLE_COPY_H_
#define GPM_ENGINE_CUDA_TABLE_COPY_H_

#include <cstdint>
#include <memory>

#include "engine/cuda/executor.h"

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
        executor_(executor) {
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
    const std::uint64_t ranges = std::uint64_t{1} << shape.range_bits;
    device_marks.Reserve(ranges);
    CheckCuda(cudaMemsetAsync(device_marks.data(), 0, ranges, stream_), "cudaMemsetAsync");
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  void Fetch() override {
    const CurrentDevice current = executor_.Activate();
    Bring(device_keys, items * shape.key_words, &keys_);
    Bring(device_references, items, &references_);
    if (range_bits > 0) Bring(device_marks, std::uint64_t{1} << range_bits, &marks_);
    keys = keys_.get();
    references = references_.get();
    marks = marks_.get();
  }

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
  void Bring(const DeviceArray<T>& from, std::uint64_t count, std::unique_ptr<T[]>* to) {
    to->reset(new T[count]);
    executor_.Copier().ToHost(reinterpret_cast<std::byte*>(to->get()),
                              reinterpret_cast<const std::byte*>(from.data()), count * sizeof(T),
                              stream_);
  }

  CudaExecutor& executor_;
  CudaStream stream_;
  std::unique_ptr<std::uint64_t[]> keys_;
  std::unique_ptr<std::uint64_t[]> references_;
  std::unique_ptr<std::uint8_t[]> marks_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_TABLE_COPY_H_
