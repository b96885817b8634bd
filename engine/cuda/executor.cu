#include <algorithm>
#include <new>
#include <string>

#include "engine/cuda/executor.h"
#include "engine/cuda/search/asking.h"
#include "pm/pause_cpu.h"

namespace gpm {
namespace {

/// The host looks for a batch's report so often before it asks the driver whether the GPU failed,
/// which takes a microsecond.
constexpr std::uint64_t kLooksBeforeQuery = 1024;
/// Bytes of a pool, for each multiprocessor, up to which the GPU keeps all translations
/// (SmQueues). Between what was measured to be kept on an H200, 2 GiB, and what was not, 6.
constexpr std::uint64_t kReachOfMultiprocessor = std::uint64_t{28} << 20;

}  // namespace

Workspace::Workspace(DeviceMemory* memory, cudaStream_t stream)
    : hashes(memory, &enqueued),
      other_hashes(memory, &enqueued),
      order(memory, &enqueued),
      other_order(memory, &enqueued),
      effects(memory, &enqueued),
      records(memory, &enqueued),
      digests(memory, &enqueued),
      bin_counts(memory, &enqueued),
      reads(memory, &enqueued),
      pending(memory, &enqueued),
      dealt(memory, &enqueued),
      library(memory, &enqueued),
      ops(memory, &enqueued),
      keys(memory, &enqueued),
      values(memory, &enqueued),
      found(memory, &enqueued),
      results(memory, &enqueued),
      padded_keys(memory, &enqueued),
      initial(memory, &enqueued),
      added(memory, &enqueued),
      long_sums(memory, &enqueued),
      written_runs(memory, &enqueued),
      sums(memory, &enqueued),
      queue_counts(memory, &enqueued),
      dirty_lines(memory, &enqueued),
      dirty_count(memory, &enqueued) {
  sums.Reserve(2);
  queue_counts.Reserve(kKindsOfQueues * SmQueues<std::uint32_t>::kCounts);
  CheckCuda(cudaMemsetAsync(sums.data(), 0, 2 * sizeof(BatchSums), stream), "cudaMemsetAsync");
  CheckCuda(cudaMemsetAsync(queue_counts.data(), 0, 4 * queue_counts.size(), stream),
            "cudaMemsetAsync");
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

CudaExecutor::CudaExecutor(const OpenOptions& open, const Mapping& mapping)
    : device_(open.device),
      access_(open.access),
      most_locks_(MostLocks(open.cache.bytes)),
      mapping_(mapping),
      memory_(open.device, open.cache.bytes == 0),  // of limited memory nothing is kept
      workspace_memory_(open.device, open.cache.bytes == 0),
      cells_(&memory_, LastUse::Awaited()),
      slots_(&memory_, LastUse::Awaited()),
      counters_(&memory_),
      locks_(&memory_, LastUse::Awaited()),
      left_(&memory_),
      zero_(&memory_),
      marks_(&memory_),
      log_(&memory_),
      log_keys_(&memory_),
      log_count_(&memory_),
      log_recent_(&memory_),
      cache_memory_(&memory_),
      fill_bins_(&memory_),
      cut_refreshes_(&memory_) {
  int devices = 0;
  CheckCuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  is_only_device_ = devices == 1;
  const CurrentDevice current = Activate();
  RequireKernels();
  LoadMaintenanceKernels();
  LoadCopyKernels();
  LoadBatchKernels();
  int multiprocessors = 0;
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_),
            "cudaDeviceGetAttribute");
  multiprocessors_ = static_cast<std::uint32_t>(multiprocessors);
  if (access_.dealt_up_to == 0) access_.dealt_up_to = multiprocessors_ * kReachOfMultiprocessor;
  stream_.emplace();
  cache_stream_.emplace();
  cache_refresh_begun_.emplace(cudaEventDefault);
  cache_refreshed_.emplace(cudaEventDefault);
  cells_sorted_.emplace();
  unsorted_ = DeviceArray<std::uint32_t>(&memory_, &*cells_sorted_);
  sort_library_ = DeviceArray<std::byte>(&memory_, &*cells_sorted_);
  used_ = DeviceArray<std::uint32_t>(&memory_, &*stream_);
  fill_plans_ = DeviceArray<std::uint64_t>(&memory_, &*cache_stream_);
  cells_.Reserve(2);
  slots_.Reserve(2);
  counters_.Reserve(1);
  left_.Reserve(2);
  zero_.Reserve(1);
  PrepareAccelerators();
  CheckCuda(cudaMemsetAsync(zero_.data(), 0, 8, *stream_), "cudaMemsetAsync");
  CheckCuda(cudaMemsetAsync(counters_.data(), 0, sizeof(ReclaimCounters), *stream_),
            "cudaMemsetAsync");
  MakeLocks(LocksWanted());
  // (Its streams and events take a millisecond, which the first batch need not wait. Of limited
  // memory nothing is taken before it is needed.)
  if (open.cache.bytes == 0) ReturnWorkspace(TakeWorkspace());
}

CudaExecutor::~CudaExecutor() {
  StopBacking(true);
  const CurrentDevice current(device_, std::nothrow);
  workspaces_.clear();  // which waits for the last batches
  askings_.clear();
  readers_ = {};
  writer_.reset();
  // These wait for the streams and the event that go next.
  used_.Clear();
  unsorted_.Clear();
  sort_library_.Clear();
  cudaStreamSynchronize(*cache_stream_);
  fill_plans_.Clear();
  cache_memory_ = {};
  stream_.reset();
  cache_stream_.reset();
  cache_refresh_begun_.reset();
  cache_refreshed_.reset();
  cells_sorted_.reset();
}

void CudaExecutor::Synchronize() {
  CheckCuda(cudaStreamSynchronize(*stream_), "cudaStreamSynchronize");
}

const std::byte* CudaExecutor::OnHost(const void* array, std::size_t bytes,
                                      std::vector<std::byte>* copy) {
  if (bytes == 0) return nullptr;
  const CurrentDevice current = Activate();
  cudaPointerAttributes attributes{};
  CheckCuda(cudaPointerGetAttributes(&attributes, array), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice) return static_cast<const std::byte*>(array);
  copy->resize(bytes);
  const CudaStream stream;
  CheckCuda(cudaMemcpyAsync(copy->data(), array, bytes, cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync to the host");
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return copy->data();
}

namespace {

struct DeviceResults : ResultArray {
  /// (A batch is waited for before what it has answered is let go.)
  DeviceResults(DeviceMemory* memory, std::uint64_t count) : array(memory, LastUse::Awaited()) {
    array.Reserve(count);
    results = {array.data(), count};
  }
  DeviceArray<Result> array;
};

}  // namespace

std::unique_ptr<ResultArray> CudaExecutor::MakeResults(std::uint64_t count) {
  const CurrentDevice current = Activate();
  return std::make_unique<DeviceResults>(&memory_, count);
}

void CudaExecutor::AwaitStream(Stream stream) {
  RefuseStream(stream, device_, "search");
  const CurrentDevice current = Activate();
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void CudaExecutor::CopyToGpu(void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current = Activate();
  const CudaStream stream;
  CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync to the device");
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Reporter CudaExecutor::NextReport(const CellGrant& grant, Workspace* workspace) {
  workspace->granted = grant.filled() ? 0 : grant.count;  // of a filled one nothing is left
  workspace->assigned = grant.assigned;
  const std::uint32_t number = ++workspace->reports;
  BatchSums* const sums = workspace->sums.data();
  return Reporter{sums + number % 2, sums + (number + 1) % 2, workspace->report.get(), number};
}

Progress CudaExecutor::Collect(Workspace* workspace) {
  BatchReport report;
  const auto reported = [&] { return workspace->report->Read(workspace->reports, &report); };
  for (std::uint64_t looks = 1; !reported(); ++looks) {
    if (looks % kLooksBeforeQuery != 0) {
      PauseCpu();
      continue;
    }
    const cudaError_t status = cudaEventQuery(workspace->enqueued);
    if (status == cudaErrorNotReady) continue;
    CheckCuda(status, "a kernel of a batch");
    if (!reported()) throw Error(ErrorCode::kGpu, "a batch ended without a report");
  }
  if (needs_flush()) {
    if (report.dirty_lines > workspace->dirty_lines.size()) {
      FlushPool();
    } else {
      std::vector<std::uint64_t> lines(report.dirty_lines);
      const cudaStream_t own = workspace->answering;
      CheckCuda(cudaStreamWaitEvent(own, workspace->enqueued, 0), "cudaStreamWaitEvent");
      CheckCuda(cudaMemcpyAsync(lines.data(), workspace->dirty_lines.data(), 8 * lines.size(),
                                cudaMemcpyDeviceToHost, own),
                "cudaMemcpyAsync to the host");
      CheckCuda(cudaStreamSynchronize(own), "cudaStreamSynchronize");
      for (const std::uint64_t line : lines) {
        mapping_.persist().Flush(Step::kOther, reinterpret_cast<const void*>(line), 64);
      }
      mapping_.persist().Fence(Step::kOther);
    }
  }
  Progress progress;
  progress.items_added = static_cast<std::int64_t>(report.sums.items_added);
  // (Many operations may be on one key that is stuck.)
  progress.short_of_slots = report.sums.short_of_slots + (report.sums.stuck != 0 ? 1 : 0);
  progress.drained = report.sums.undrained == 0;
  progress.short_of_cells = report.sums.short_of_cells;
  progress.carried_out = report.sums.carried_out;
  progress.found = report.sums.found;
  progress.cache_hits = report.sums.cache_hits;
  workspace->reads_shared = report.sums.reads_shared;
  workspace->long_run_rows = report.sums.long_run_rows;
  workspace->answers_left = report.sums.row_copies + report.sums.mispredictions;
  workspace->cells_taken = report.sums.cells_taken;
  const std::uint64_t taken = std::max(workspace->assigned, report.sums.cells_taken);
  progress.cells_left = workspace->granted - std::min(workspace->granted, taken);
  progress.cells_unneeded = taken - report.sums.cells_taken;
  progress.positions = report.positions;
  return progress;
}

void CudaExecutor::FlushPool() const {
  if (!needs_flush()) return;
  mapping_.persist().Flush(Step::kOther, mapping_.base(), mapping_.mapped_bytes());
  mapping_.persist().Fence(Step::kOther);
}

HostCopier& CudaExecutor::Copier() {
  const std::lock_guard lock(copier_mutex_);
  if (copier_ == nullptr) copier_ = std::make_unique<HostCopier>(device_);
  return *copier_;
}

void CudaExecutor::PrepareHostReader() {
  StrategyInputs inputs;
  inputs.reads_cells = cell_bytes_ != 0;
  inputs.pool_bytes = pool_bytes_;
  inputs.value_size = value_size_;
  inputs.access = access_;
  if (!MayReadByHost(inputs)) return;
  const std::lock_guard lock(readers_mutex_);
  if (readers_.back() != nullptr) return;
  try {
    for (auto& reader : readers_) {
      if (reader == nullptr) reader = std::make_unique<HostReader>(device_, value_size_);
    }
  } catch (const std::bad_alloc&) {
    // The GPU makes all reads.
  }
}

HostReader::Turn CudaExecutor::TakeHostReader() {
  const std::lock_guard lock(readers_mutex_);
  for (const auto& reader : readers_) {
    if (HostReader::Turn turn(reader.get()); turn) return turn;
  }
  return {};
}

HostWriter::Turn CudaExecutor::TakeHostWriter() {
  const std::lock_guard lock(readers_mutex_);
  try {
    if (writer_ == nullptr) writer_ = std::make_unique<HostWriter>(device_, value_size_);
  } catch (const std::bad_alloc&) {
    return {};
  }
  return writer_->TakeTurn();
}

std::shared_ptr<Workspace> CudaExecutor::TakeWorkspace() {
  {
    const std::lock_guard lock(mutex_);
    if (!workspaces_.empty()) {
      auto workspace = std::move(workspaces_.back());
      workspaces_.pop_back();
      return workspace;
    }
  }
  const CurrentDevice current = Activate();
  auto workspace = std::make_shared<Workspace>(&workspace_memory_, *stream_);
  const std::lock_guard lock(mutex_);
  std::erase_if(all_workspaces_, [](const auto& one) { return one.expired(); });
  all_workspaces_.push_back(workspace);
  return workspace;
}

void CudaExecutor::AwaitBatches() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& one : all_workspaces_) {
      const std::shared_ptr<Workspace> workspace = one.lock();
      if (workspace == nullptr) continue;
      CheckCuda(cudaEventSynchronize(workspace->enqueued), "cudaEventSynchronize");
    }
  }
  Synchronize();
}

void CudaExecutor::ReturnWorkspace(std::shared_ptr<Workspace> workspace) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    workspaces_.push_back(std::move(workspace));
  } catch (const std::bad_alloc&) {
    // The next batch makes one.
  }
}

std::unique_ptr<Executor> MakeCudaExecutor(const OpenOptions& open, const Mapping& mapping) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    count = 0;
  }
  if (open.device < 0 || open.device >= count) {
    throw Error(ErrorCode::kUnsupported, "executor cuda: device " + std::to_string(open.device) +
                                             " was asked for, this machine has " +
                                             std::to_string(count) +
                                             " usable CUDA devices; use executor cpu");
  }
  return std::make_unique<CudaExecutor>(open, mapping);
}

}  // namespace gpm
