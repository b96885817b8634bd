#ifndef GPM_ENGINE_CUDA_EXECUTOR_H_
#define GPM_ENGINE_CUDA_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/cache_memory.h"
#include "engine/cuda_memory.h"
#include "engine/cuda_types.cuh"
#include "engine/executor.h"

namespace gpm {

/// The device arrays that one batch needs, kept from batch to batch so that a batch allocates
/// nothing once sizes have settled.
struct Workspace {
  /// @param stream to clear it on
  Workspace(std::atomic<std::uint64_t>* bytes, cudaStream_t stream);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  DeviceArray<std::uint32_t> hashes, sorted_hashes, order, sorted_order;
  DeviceArray<RunEffect> effects;
  DeviceArray<RunRecord> records;
  DeviceArray<std::byte> library;                            ///< temporary storage of CUB
  DeviceArray<std::byte> ops, keys, values, found, results;  ///< of batches in host memory
  DeviceArray<BatchSums> sums;  ///< 0 between batches: who reports them clears them
  DeviceArray<std::uint64_t> dirty_lines, dirty_count;  ///< where the medium needs flushing
  PinnedBox<BatchReport> report;
  cudaEvent_t done = nullptr;
};

/// Runs batches as kernels on one GPU, and the passes likewise.
///
/// Finds alone are looked up in the directory in the order in which they came, where there is one
/// and a cache, and in large batches of 8-byte keys without a cache, too. Of those, what has to be
/// read from persistent memory is sorted by its address and read once (beyond 512 MiB, random reads
/// are bound by address translations, ordered ones by the link).
///
/// Any other batch is sorted by key hash (which is address order), the effect of the operations on
/// each key is found by a scan, each key is then probed once and written at most once, and all
/// operations are answered in parallel: that is what makes results those of batch order, with
/// duplicates cheap.
class CudaExecutor : public Executor {
 public:
  CudaExecutor(int device, const Mapping& mapping);
  ~CudaExecutor() override;

  ExecutorKind kind() const override { return ExecutorKind::kCuda; }
  unsigned threads() const override { return 0; }
  std::uint64_t gpu_bytes() const override { return gpu_bytes_; }
  std::uint64_t workspace_bytes() const override { return workspace_bytes_; }
  void SetTable(const TableView& table) override {
    context_.table = table;
    context_.accelerators = {};
    has_directory_ = has_cache_ = false;
    cell_bytes_ = table.cell_bytes;
  }
  void GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) override;
  std::uint64_t slot_queue_room() const override { return slots_.size(); }
  PassCounters Pass(PassMode mode, const std::vector<CellRange>& ranges) override;
  void FreeUnused(const std::vector<CellRange>& ranges) override;
  void FreeAll(CellRange range) override;
  std::uint64_t DrainLevel(std::uint32_t level) override;
  void GiveBack(const Epochs::SlotRange& slots) override;
  ReclaimPositions Positions() override;
  std::uint64_t CountMisplacedCells(const std::vector<CellRange>&, std::uint64_t) override {
    throw Error(ErrorCode::kUnsupported, "cells are counted with executor cpu only");
  }
  void SetAccelerators(const CacheShape& shape, CachePolicy policy) override;
  void LoadCache() override;
  bool CacheLoadEnded() override;
  void AwaitCacheLoad() override;
  std::shared_ptr<Run> Prepare(const Batch& batch, Stream stream) override;

  // For batches and device scopes.
  const TableContext& context() const { return context_; }
  /// The context of the next batch.
  TableContext NextContext() {
    TableContext context = context_;
    context.accelerators.cache.clock = ++clock_;
    return context;
  }
  void Activate() const;  ///< makes the executor's device current in this thread
  void GiveBack(const Epochs::SlotRange& slots, Stream stream);
  /// Ends a phase of a batch: returns cells, reports.
  void Report(Stream stream, const TableContext& context, Workspace* workspace);
  /// Waits for Report; flushes the lines that were logged, where the medium needs it.
  Progress Collect(Workspace* workspace);
  /// Flushes the whole pool, where the medium needs it.
  void FlushPool() const;
  bool needs_flush() const { return mapping_.persist().needs_flush(); }
  std::unique_ptr<Workspace> TakeWorkspace();
  void ReturnWorkspace(std::unique_ptr<Workspace> workspace);
  int device() const { return device_; }
  std::uint64_t cell_bytes() const { return cell_bytes_; }
  bool has_directory() const { return has_directory_; }
  bool has_cache() const { return has_cache_; }

 private:
  void Synchronize();
  template <class T>
  void GrowRing(DeviceArray<T>* ring, std::uint64_t positions, std::uint64_t from,
                std::uint64_t to);
  void RefreshContext();

  int device_;
  const Mapping& mapping_;
  cudaStream_t stream_ = nullptr;             ///< of passes
  std::atomic<std::uint64_t> cell_bytes_{0};  ///< the same in every table; read while others change
  std::atomic<bool> has_directory_{false};    ///< as of now, for batches that are being prepared
  std::atomic<bool> has_cache_{false};
  std::atomic<std::uint64_t> gpu_bytes_{0};
  std::atomic<std::uint64_t> workspace_bytes_{0};
  TableContext context_{};
  DeviceArray<std::uint32_t> cells_;
  DeviceArray<std::uint64_t> slots_;
  DeviceArray<ReclaimCounters> counters_;
  DeviceArray<std::uint32_t> locks_;
  DeviceArray<std::uint64_t> left_;  ///< of DrainLevel
  DeviceArray<std::uint32_t> used_;
  std::atomic<std::uint32_t> clock_{0};  ///< batches begun
  CacheMemory<DeviceArray> cache_memory_;
  std::uint32_t loads_ = 0;              ///< of the cache, begun
  cudaStream_t cache_stream_ = nullptr;  ///< of loading it
  cudaEvent_t cache_loaded_ = nullptr;   ///< recorded when the last loading has ended
  std::mutex mutex_;                     ///< guards what follows
  std::vector<std::unique_ptr<Workspace>> workspaces_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_EXECUTOR_H_
