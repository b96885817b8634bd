#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include "cli/crash/gpu.h"
#include "cli/crash/workload.h"
#include "engine/cuda/memory.h"
#include "gpmstore/device_view.cuh"

namespace gpm::cli {
namespace {

constexpr unsigned kBlockThreads = 256;

/// A batch as the kernel sees it.
struct Rows {
  const Op* ops;  ///< null: all are `op`
  Op op;
  const std::byte* keys;
  const std::byte* values;
  std::byte* found;
  Result* results;
  Result* answers;
  std::uint64_t count;
  std::uint32_t key_size;
  std::uint32_t value_size;
};

/// One tile of DeviceView::kLanes threads an operation.
__global__ void CarryOut(DeviceView store, Rows rows) {
  const auto tile = cooperative_groups::tiled_partition<DeviceView::kLanes>(
      cooperative_groups::this_thread_block());
  const std::uint64_t row =
      (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / DeviceView::kLanes;
  if (row >= rows.count) return;
  std::uint64_t key[kMaxKeyWords];
  store.PadKey(rows.keys + row * rows.key_size, key);
  const std::byte* value = rows.values + row * rows.value_size;
  Result result = Result::kInvalid;
  switch (rows.ops == nullptr ? rows.op : rows.ops[row]) {
    case Op::kFind:
      result = store.Find(tile, key, rows.found + row * rows.value_size);
      break;
    case Op::kInsert:
      result = store.Insert(tile, key, value);
      break;
    case Op::kUpdate:
      result = store.Update(tile, key, value);
      break;
    case Op::kUpsert:
      result = store.Upsert(tile, key, value);
      break;
    case Op::kErase:
      result = store.Erase(tile, key);
      break;
    default:  // what a DeviceView does not do
      break;
  }
  if (tile.thread_rank() == 0) {
    // No fence: what the call did has to be there already.
    *reinterpret_cast<volatile std::uint8_t*>(rows.answers + row) =
        static_cast<std::uint8_t>(result);
    rows.results[row] = result;
  }
}

class CudaBatch : public GpuBatch {
 public:
  CudaBatch(std::size_t operations, std::uint32_t key_size, std::uint32_t value_size)
      : key_size_(key_size), value_size_(value_size) {
    ops_.Reserve(operations);
    keys_.Reserve(operations * key_size);
    values_.Reserve(operations * value_size);
    found_.Reserve(operations * value_size);
    results_.Reserve(operations);
  }

  Batch Upload(const Batch& batch) override {
    batch_ = batch;
    if (!batch.ops.empty()) batch_.ops = CopyIn(ops_, batch.ops);
    batch_.keys = CopyIn(keys_, batch.keys);
    batch_.values = CopyIn(values_, batch.values);
    batch_.found = Poisoned(found_, batch.found.size());
    batch_.results = Poisoned(results_, batch.results.size());
    Synchronize();
    return batch_;
  }

  void Download(const Batch& batch) override {
    CopyOut(batch.found, found_);
    CopyOut(batch.results, results_);
    Synchronize();
  }

  void ApplyInScope(Store& store, Stream stream, std::uint64_t writes, std::uint64_t erases,
                    std::span<Result> answers) override {
    DeviceScope scope(store, stream, writes, erases);
    DeviceView view = scope.view();
    Rows rows{};
    rows.ops = batch_.ops.data();
    rows.op = batch_.op;
    rows.keys = batch_.keys.data();
    rows.values = batch_.values.data();
    rows.found = batch_.found.data();
    rows.results = batch_.results.data();
    rows.answers = answers.data();
    rows.count = batch_.results.size();
    rows.key_size = key_size_;
    rows.value_size = value_size_;
    const std::uint64_t threads = rows.count * DeviceView::kLanes;
    const auto blocks = static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads);
    void* arguments[] = {&view, &rows};
    CheckCuda(cudaLaunchKernel(reinterpret_cast<const void*>(&CarryOut), dim3(blocks),
                               dim3(kBlockThreads), arguments, 0, stream),
              "crash-test: cudaLaunchKernel");
    scope.Close();
  }

 private:
  template <class T>
  std::span<const T> CopyIn(const DeviceArray<T>& to, std::span<const T> from) {
    CheckCuda(
        cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice, copies_),
        "crash-test: cudaMemcpyAsync");
    return {to.data(), from.size()};
  }
  template <class T>
  std::span<T> Poisoned(const DeviceArray<T>& array, std::size_t size) {
    CheckCuda(cudaMemsetAsync(array.data(), kCrashPoison, size * sizeof(T), copies_),
              "crash-test: cudaMemsetAsync");
    return {array.data(), size};
  }
  template <class T>
  void CopyOut(std::span<T> to, const DeviceArray<T>& from) {
    CheckCuda(
        cudaMemcpyAsync(to.data(), from.data(), to.size_bytes(), cudaMemcpyDeviceToHost, copies_),
        "crash-test: cudaMemcpyAsync");
  }
  void Synchronize() {
    CheckCuda(cudaStreamSynchronize(copies_), "crash-test: cudaStreamSynchronize");
  }

  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  DeviceArray<Op> ops_;
  DeviceArray<std::byte> keys_;
  DeviceArray<std::byte> values_;
  DeviceArray<std::byte> found_;
  DeviceArray<Result> results_;
  /// Of its own: copies must not wait for the batches that are under way.
  CudaStream copies_;
  Batch batch_;  ///< in GPU memory
};

}  // namespace

void StartGpu() { CheckCuda(cudaFree(nullptr), "crash-test: cudaFree"); }

Stream MakeGpuStream() {
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            "crash-test: cudaStreamCreateWithFlags");
  return stream;
}

std::unique_ptr<GpuBatch> MakeGpuBatch(std::size_t operations, std::uint32_t key_size,
                                       std::uint32_t value_size) {
  return std::make_unique<CudaBatch>(operations, key_size, value_size);
}

}  // namespace gpm::cli
