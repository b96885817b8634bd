#ifndef GPM_ENGINE_CUDA_EXECUTOR_H_
#define GPM_ENGINE_CUDA_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache/memory.h"
#include "engine/cuda/backed_memory.h"
#include "engine/cuda/graphs.h"
#include "engine/cuda/io/host_copier.h"
#include "engine/cuda/io/host_reader.h"
#include "engine/cuda/io/host_writer.h"
#include "engine/cuda/io/report.cuh"
#include "engine/cuda/io/sm_queues.cuh"
#include "engine/cuda/launch.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/strategy.h"
#include "engine/executor.h"

namespace gpm {

inline constexpr unsigned kGridStrideBlocks =
    132 * 8;  ///< of grid-stride kernels: fills the largest GPUs

inline std::uint64_t BlocksFor(std::uint64_t things, std::uint64_t per_block) {
  return (things + per_block - 1) / per_block;
}

/// Copies whole lines between GPU memory and a pool, in either direction. (A pool is registered in
/// parts, across which cudaMemcpyAsync refuses to copy.)
/// @param bytes a multiple of 16, as is each address @throws Error(kGpu)
void CopyLines(std::byte* to, const std::byte* from, std::uint64_t bytes, cudaStream_t stream);

/// A batch needs the host while it runs, as a search does, and so can't be part of a graph; and no
/// kernel of an executor can run on a stream of another device. (Handles of default streams mean
/// one of whatever device is current.)
/// @param what the stream is for @throws Error(kInvalidArgument)
inline void RefuseStream(Stream stream, int device, const std::string& what) {
  if (stream == nullptr) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) {
    throw Error(ErrorCode::kInvalidArgument,
                what + ": its stream is being captured, and a " + what +
                    " can't be part of a graph; use a stream that is not");
  }
#if CUDART_VERSION >= 12080
  if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) return;
  int of = device;
  if (cudaStreamGetDevice(stream, &of) != cudaSuccess) {  // the driver is older than the runtime
    cudaGetLastError();
    return;
  }
  if (of == device) return;
  throw Error(ErrorCode::kInvalidArgument, what + ": its stream is of GPU " + std::to_string(of) +
                                               "; the store's is " + std::to_string(device));
#endif
}

/// The device arrays that one batch needs, kept from batch to batch so that a batch allocates
/// nothing once sizes have settled.
struct Workspace {
  /// @param stream to clear it on
  Workspace(DeviceMemory* memory, cudaStream_t stream);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  /// Orders a stream behind the batch that had this workspace before: its last kernel may report a
  /// moment before it ends. (A stream's handle may be used again, or mean another stream in each
  /// thread; its id may not.)
  void ContinueOn(cudaStream_t stream) {
    unsigned long long id = 0;
    CheckCuda(cudaStreamGetId(stream, &id), "cudaStreamGetId");
    if (id == last_stream) return;
    CheckCuda(cudaStreamWaitEvent(stream, enqueued, 0), "cudaStreamWaitEvent");
    last_stream = id;
  }

  CudaEvent enqueued;  ///< recorded behind the last kernel of a phase
  DeviceArray<std::uint32_t> hashes, other_hashes, order, other_order;
  DeviceArray<KeyRunEffect> effects;
  DeviceArray<KeyRunRecord> records;
  DeviceArray<std::uint64_t> digests;
  DeviceArray<std::uint16_t> bin_counts;
  DeviceArray<std::uint64_t> reads;                          ///< what Reads refers to, but for:
  DeviceArray<PendingRun> pending;                           ///< items of SmQueues
  DeviceArray<std::uint32_t> dealt;                          ///< the same
  DeviceArray<std::byte> library;                            ///< temporary storage of CUB
  DeviceArray<std::byte> ops, keys, values, found, results;  ///< of batches in host memory
  PinnedArray staged;        ///< outputs that are small, on their way to pageable memory
  PinnedArray staged_input;  ///< one that is small, from there
  DeviceArray<std::uint64_t> padded_keys;  ///< of rows that are not whole words
  DeviceArray<std::byte> initial;          ///< a constant initial value
  DeviceArray<std::byte> added;            ///< rows for sums
  DeviceArray<LongSum> long_sums;
  DeviceArray<std::uint32_t> written_runs;  ///< WrittenRuns
  DeviceArray<BatchSums> sums;              ///< two, in turn: those of the next phase are 0
  enum Queues { kReads, kSecondReads, kPending, kDealt, kKindsOfQueues };
  /// Counts of SmQueues of each of these kinds; 0 between batches: who empties queues clears them.
  DeviceArray<std::uint32_t> queue_counts;
  DeviceArray<std::uint64_t> dirty_lines, dirty_count;  ///< where the medium needs flushing
  PinnedBox<ReportWords> report;
  KernelGraph finds, changes, half_tiles;  ///< kernels of which all blocks begin together
  CudaStream side, answering;              ///< for what runs beside the batch's stream
  CudaEvent arrived;  ///< recorded behind the last input, or part of one, that was copied
  CudaEvent forked, joined, answered;
  /// Recorded when the rows of a chunk are in GPU memory, or of a part that the host writes.
  std::array<CudaEvent,
             std::max<std::size_t>(StrategyThresholds::kMostChunks, HostCrew::kMostParts)>
      chunks;
  CudaEvent reading;                       ///< recorded when all blocks of ReadValues have begun
  unsigned long long last_stream = ~0ull;  ///< id of that of the batch before
  std::uint32_t reports = 0;               ///< asked for
  std::uint64_t granted = 0;               ///< cells, in the phase that is reported next
  std::uint64_t assigned = 0;              ///< of those: CellGrant::assigned
  std::uint64_t cells_taken = 0;           ///< in the phase that was reported last
  std::uint64_t reads_shared = 0;          ///< in the phase that was reported last
  std::uint64_t long_run_rows = 0;         ///< the same
  std::uint64_t answers_left = 0;          ///< the same: row copies, and runs answered wrongly
};

class Asking;
class CudaTableCopy;

/// Runs batches as kernels on one GPU, and the passes likewise.
///
/// A batch of finds alone is looked up in the directory, where there is one, in the order in which
/// its operations came (engine/cuda/kernels/finds.cuh). Values that have to come from persistent
/// memory are read by the multiprocessors that the addresses are dealt out to, or in the order of
/// addresses (engine/cuda/io/reads.cuh).
///
/// Any other batch is carried out by key runs (engine/cuda/kernels/large_batch.cuh,
/// engine/cuda/kernels/small_batch.cuh). The effect of the operations on each key is found, in a
/// large batch by bins or a sort by key hash, and a scan. Each key is written at most once. All
/// operations are answered in parallel. So results are those of batch order, and duplicates are
/// cheap. In a large batch keys are searched first, and writes are dealt out by address too.
class CudaExecutor : public Executor {
 public:
  CudaExecutor(const OpenOptions& open, const Mapping& mapping);
  ~CudaExecutor() override;

  ExecutorKind kind() const override { return ExecutorKind::kCuda; }
  unsigned threads() const override { return 0; }
  int device() const override { return device_; }
  std::uint64_t gpu_bytes() const override { return memory_.bytes(); }
  std::uint64_t workspace_bytes() const override { return workspace_memory_.bytes(); }
  std::uint64_t kept_gpu_bytes() const override {
    return memory_.kept_bytes() + workspace_memory_.kept_bytes();
  }
  std::uint64_t CacheBudget() const override;
  CacheFillShape CacheFill() const override;
  void SetTable(const TableView& table, bool keep) override {
    context_.table = table;
    context_.table.changes = Changes();
    context_.table.log = log_.data();
    if (!keep) {
      context_.accelerators = {};
      has_directory_ = has_cache_ = false;
    }
    if (!table.draining()) context_.accelerators.directory.drained = nullptr;
    cell_bytes_ = table.cell_bytes;
    value_size_ = table.value_size;
    key_size_ = table.key_size;
    pool_bytes_ = mapping_.mapped_bytes();
    PrepareHostReader();
  }
  /// Where the medium needs flushing, the log of the lines that a batch wrote is of the pool's.
  bool Composes() const override { return !needs_flush(); }
  std::unique_ptr<LevelImage> MakeLevelImage(std::uint64_t bytes) override;
  void GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) override;
  void ShrinkQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) override;
  std::uint64_t slot_queue_room() const override { return slots_.size(); }
  std::uint64_t queue_bytes() const override { return 4 * cells_.size() + 8 * slots_.size(); }
  ScanCounters ScanSlots(ScanMode mode, const std::vector<CellRange>& ranges) override;
  std::vector<std::uint32_t> UsedCells() override;
  void FreeUnused(const std::vector<CellRange>& ranges) override;
  void FreeAll(CellRange range) override;
  /// (Where the medium needs flushing, the lines of moved items would have to be logged, too.)
  bool DrainsBesideBatches() const override { return !needs_flush(); }
  /// Of an H100 over PCIe 5: with the directory, a growth that reads and writes 335 MB takes 13 ms;
  /// large batches of inserts; and 2^16 slots are drained in 0.11 ms (docs/TRIED.md).
  ExecutorRates rates() const override {
    return {.composed_bytes = 25e9, .operations = 150e6, .drained_slots = 1u << 16};
  }
  std::uint64_t ComposeNewest() override;
  std::uint64_t DrainLevel(std::uint32_t level, bool displaces) override;
  std::uint64_t MoveCells(CellRange range, const CellGrant& cells) override;
  void RecycleSlots(const Epochs::SlotRange& slots) override;
  ReclaimPositions Positions() override;
  ReclaimPositions ReturnCells(const CellGrant& cells) override;
  std::uint64_t RequeueCells(const CellGrant& free, const CellGrant& held,
                             const std::vector<std::uint32_t>& names) override;
  void SortCells(const CellGrant& cells) override;
  bool SortsCells() const override { return true; }
  std::uint64_t CountMisplacedCells(const std::vector<CellRange>&, std::uint64_t) override {
    throw Error(ErrorCode::kUnsupported, "cells are counted with executor cpu only");
  }
  std::unique_ptr<TableCopy> MakeCopy(const CopyShape& shape) override;
  bool TakeCopy(TableCopy* copy) override;
  void MarkAgain(const TableCopy& copy) override;
  void AddMarks(const std::uint8_t* marks, std::uint32_t range_bits) override;
  bool LogIsWhole() const override { return log_.data() != nullptr && LoggedKeys() <= log_room_; }
  std::uint64_t LogBytes(std::uint64_t keys, std::uint32_t key_words) const override {
    return ChangeLog::Bytes(keys, key_words);
  }
  bool MakesIndexes() const override { return true; }
  std::uint64_t IndexBytes(std::uint64_t items, const IndexShape& shape) const override;
  std::unique_ptr<SearchIndex> MakeIndex(const TableCopy& copy, const IndexShape& shape,
                                         std::uint64_t version) override;
  void SetAccelerators(const CacheShape& shape, CachePolicy policy, std::uint32_t used) override;
  bool FollowGrowth(const TableView& table, const CacheShape& shape, CachePolicy policy) override;
  void BeginDraining() override;
  const CacheShape* BackCache(bool wait) override;
  void OpenCache() override;
  void RefreshCache(std::uint64_t uses) override;
  void EnqueueRefresh(const CacheRefresh& refresh);
  void AgeCache(std::uint64_t uses) override;
  double CacheRefreshSeconds() override;
  bool CacheRefreshEnded() override;
  void AwaitCacheRefresh() override;
  void CutCacheRefresh() override;
  std::shared_ptr<BatchTask> Prepare(const Batch& batch, Stream stream, Answers answers) override;
  bool TakesFilledCells() const override { return !needs_flush(); }
  std::unique_ptr<CellFilling> FillCells(std::span<const std::byte> values,
                                         CellRange cells) override;
  const std::byte* OnHost(const void* array, std::size_t bytes,
                          std::vector<std::byte>* copy) override;
  std::unique_ptr<ResultArray> MakeResults(std::uint64_t count) override;
  std::unique_ptr<ItemRanks> MakeItemRanks(const RankedItems& items) override;
  void AwaitStream(Stream stream) override;
  void CopyToGpu(void* to, const void* from, std::size_t bytes) override;

  // For batches and device scopes.
  const TableContext& context() const { return context_; }
  /// The context of the next batch.
  TableContext NextContext() {
    TableContext context = context_;
    context.accelerators.cache.clock = ++clock_;
    return context;
  }
  /// Makes the executor's device current in this thread while what it returns lives.
  [[nodiscard]] CurrentDevice Activate() const { return CurrentDevice(device_, is_only_device_); }
  void RecycleSlots(const Epochs::SlotRange& slots, Stream stream);
  /// What is enqueued on the stream next finds the cells of SortCells sorted.
  void AwaitSortedCells(Stream stream);
  /// Where a phase reports that may take the cells of `grant`. A kernel reports, or Report does.
  Reporter NextReport(const CellGrant& grant, Workspace* workspace);
  void Report(Stream stream, const TableContext& context, const Reporter& reporter);
  /// Waits for the report of a phase; the workspace's event was recorded behind its kernels.
  /// Flushes the lines that they logged, where the medium needs it.
  /// @throws Error(kGpu); then the workspace may still be in use
  Progress Collect(Workspace* workspace);
  std::uint64_t mapped_bytes() const { return mapping_.mapped_bytes(); }
  /// The same when the table was set; while others change it.
  std::uint64_t pool_bytes() const { return pool_bytes_; }
  std::uint32_t multiprocessors() const { return multiprocessors_; }
  /// Whether kernels can begin early (BeginsEarly), and wait then.
  bool begins_early() const { return begins_early_; }
  /// Whether a refresh of the cache has begun, and nobody has seen it end.
  bool refreshing() const { return refreshing_.load(std::memory_order_relaxed); }
  /// BatchTask::MakeSlots. (Where the medium needs flushing, the pool as a whole would be flushed:
  /// the table rather grows.)
  SlotsMade MakeSlots(const DeviceBatch& batch, std::uint64_t most);
  /// Flushes the whole pool, where the medium needs it.
  void FlushPool() const;
  bool needs_flush() const { return mapping_.persist().needs_flush(); }
  /// What copies pageable arrays; made when first asked for. @throws Error(kGpu), std::bad_alloc
  HostCopier& Copier();
  /// The turn of a batch whose reads the host shares; none is had while that is being made.
  HostReader::Turn TakeHostReader();
  /// The same of one whose values the host writes.
  HostWriter::Turn TakeHostWriter();
  std::shared_ptr<Workspace> TakeWorkspace();
  void ReturnWorkspace(std::shared_ptr<Workspace> workspace) noexcept;
  /// What a search works with, kept from one search to the next, whatever index answers: to give
  /// back its pinned memory would wait for all that the GPU does. @throws Error(kGpu)
  std::unique_ptr<Asking> TakeAsking();
  void ReturnAsking(std::unique_ptr<Asking> asking) noexcept;
  /// Waits for the kernels of all batches that have reported, of which the last may do so before it
  /// ends, and for the executor's own. (A batch that waits for room has its workspace still.)
  /// @throws Error(kGpu)
  void AwaitBatches();
  const AccessOptions& access() const { return access_; }
  std::uint64_t cell_bytes() const { return cell_bytes_; }
  /// Where cells lie; null: values are inline. Others may change the table.
  std::byte* cells_base() const { return cell_bytes_ == 0 ? nullptr : mapping_.base(); }
  std::uint32_t value_size() const { return value_size_; }
  std::uint32_t key_size() const { return key_size_; }
  bool has_directory() const { return has_directory_; }
  bool has_cache() const { return has_cache_; }
  FindHistory& find_history() { return find_history_; }

 private:
  using CudaCacheMemory = CacheMemory<DeviceArray, BackedMemory>;
  void Synchronize();
  ChangeMap Changes() const { return {marks_.data(), range_bits_}; }
  std::uint64_t LoggedKeys() const;
  /// The log that comes with a copy is the table's from now on, and the copy gets the one of
  /// before.
  void ChangeLogs(CudaTableCopy* copy);
  /// @throws Error(kUnsupported) when the library has no code for the device
  void RequireKernels() const;
  /// Begins to make what the host reads with, for a pool that is large enough.
  void PrepareHostReader();
  void LoadBatchKernels();
  static void LoadFindKernels();
  static void LoadMaintenanceKernels();
  static void LoadCopyKernels();
  void PrepareAccelerators();
  unsigned SharedIfAlone() const;
  BlockShape RefreshBlock() const;
  CudaCacheMemory MakeCacheMemory();
  void AwaitUsesOfCache();
  CacheRefresh NextRefresh(std::uint64_t uses);
  void ClearCache();
  void BackAll(const std::stop_token& stop);
  void BeginBacking();
  void StopBacking(bool early);
  /// On the executor's stream.
  template <class T>
  void Fill(T* to, int byte, std::uint64_t count) {
    CheckCuda(cudaMemsetAsync(to, byte, count * sizeof(T), *stream_), "cudaMemsetAsync");
  }
  /// Gives a ring so many positions, of which those in [from, to) stay.
  template <class T>
  void ResizeRing(DeviceArray<T>* ring, std::uint64_t positions, std::uint64_t from,
                  std::uint64_t to);
  /// @param cache_bytes OpenOptions::cache.bytes; 0: no limit
  static std::uint64_t MostLocks(std::uint64_t cache_bytes);
  /// Enough locks for the pool as it is now.
  std::uint64_t LocksWanted() const;
  void MakeLocks(std::uint64_t locks);
  /// Waits for a pass that moves items or values, durably. @return what it left
  std::uint64_t EndPass();
  void RefreshContext();

  int device_;
  bool is_only_device_ = false;
  AccessOptions access_;
  std::uint64_t most_locks_;
  std::uint32_t multiprocessors_ = 0;
  bool begins_early_ = false;
  const Mapping& mapping_;
  std::atomic<std::uint64_t> cell_bytes_{0};  ///< the same in every table; read while others change
  std::atomic<std::uint32_t> value_size_{0};  ///< the same
  std::atomic<std::uint32_t> key_size_{0};    ///< the same
  std::atomic<std::uint64_t> pool_bytes_{0};
  std::atomic<bool> has_directory_{false};  ///< as of now, for batches that are being prepared
  std::atomic<bool> has_cache_{false};
  FindHistory find_history_;
  DeviceMemory memory_;  // before the arrays that are made of it
  DeviceMemory workspace_memory_;
  TableContext context_{};
  DeviceArray<std::uint32_t> cells_;
  DeviceArray<std::uint64_t> slots_;
  DeviceArray<ReclaimCounters> counters_;
  DeviceArray<std::uint32_t> locks_;
  DeviceArray<std::uint64_t> left_;  ///< of DrainLevel and MoveCells; behind it, cells taken
  DeviceArray<std::uint64_t> zero_;  ///< cells taken of what ReturnCells queues
  DeviceArray<std::uint32_t> used_;
  DeviceArray<std::uint8_t> marks_;  ///< of the ChangeMap
  std::uint32_t range_bits_ = 0;     ///< of that
  DeviceArray<ChangeLog> log_;       ///< one, once there is a log
  DeviceArray<std::uint64_t> log_keys_, log_count_;
  DeviceArray<std::uint32_t> log_recent_;
  std::uint64_t log_room_ = 0;
  DeviceArray<std::uint32_t> unsorted_;  ///< of SortCells: cells, then sorted
  DeviceArray<std::byte> sort_library_;
  std::atomic<std::uint32_t> clock_{0};  ///< batches begun
  CudaCacheMemory cache_memory_;
  bool backs_more_ = false;  ///< memory for the cache's values
  std::jthread backer_;      ///< which does that, while `cache_memory_` stays
  std::atomic<bool> ended_backing_{false};
  DeviceArray<std::uint64_t> fill_plans_;  ///< of a refresh: reads in order, and plans
  DeviceArray<std::uint32_t> fill_bins_;
  unsigned refresh_shared_ = 0;               ///< shared memory of a block of a refresh, bytes
  std::uint32_t refreshes_ = 0;               ///< of the cache, begun
  DeviceArray<std::uint32_t> cut_refreshes_;  ///< the last that is to end early
  std::atomic<bool> refreshing_{false};
  // Made when the device is current.
  std::optional<CudaStream> stream_;              ///< of maintenance
  std::optional<CudaStream> cache_stream_;        ///< of refreshing the cache
  std::optional<CudaEvent> cache_refresh_begun_;  ///< recorded when the last refresh begins
  std::optional<CudaEvent> cache_refreshed_;      ///< the same when it has ended
  std::optional<CudaEvent> cells_sorted_;         ///< the same of SortCells
  std::atomic<std::uint64_t> sorts_{0};           ///< how often cells were sorted, and of those
  std::atomic<std::uint64_t> sorts_ended_{0};     ///< how many are known to have ended
  std::mutex mutex_;                              ///< guards what follows
  std::vector<std::shared_ptr<Workspace>> workspaces_;    ///< that no batch has
  std::vector<std::weak_ptr<Workspace>> all_workspaces_;  ///< those of batches, too
  std::vector<std::unique_ptr<Asking>> askings_;          ///< that no search has
  std::mutex copier_mutex_;  ///< guards what follows: making it takes some milliseconds
  std::unique_ptr<HostCopier> copier_;
  std::mutex readers_mutex_;  ///< guards what follows
  /// With two, the reads of one batch are made while the next is looked up.
  std::array<std::unique_ptr<HostReader>, 2> readers_;
  std::unique_ptr<HostWriter> writer_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_EXECUTOR_H_
