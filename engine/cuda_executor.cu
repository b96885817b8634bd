#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <string>

#include "engine/cuda_executor.h"
#include "engine/cuda_kernels.cuh"

namespace gpm {
namespace {

/// Many more than tiles in flight (some 30 000), so that two of a batch seldom share one.
constexpr std::uint64_t kKeyLocks = std::uint64_t{1} << 20;
/// Of loading the cache: few, so that batches are hardly slowed down meanwhile.
constexpr unsigned kCacheBlocks = 32;
constexpr unsigned kFillBlocks = 4;
/// Finds in a batch from which on it pays to sort what they read of persistent memory by address.
constexpr std::uint64_t kDeferFrom = std::uint64_t{1} << 15;
/// Of reading in address order: few pages of persistent memory are then in use at a time.
constexpr unsigned kOrderedBlocks = 64;
constexpr unsigned kPassBlocks = 132 * 8;  ///< of grid-stride kernels: fills the largest GPUs

std::uint64_t BlocksFor(std::uint64_t things, std::uint64_t per_block) {
  return (things + per_block - 1) / per_block;
}

void CheckLaunch(const char* kernel) { CheckCuda(cudaGetLastError(), kernel); }

/// Where an array of a batch lies. @throws Error(kInvalidArgument) for memory of another device
bool IsOnDevice(const void* pointer, int device, const char* name) {
  cudaPointerAttributes attributes{};
  CheckCuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    return false;
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("batch: '") + name + "' is in the memory of device " +
                    std::to_string(attributes.device) + ", the store runs on device " +
                    std::to_string(device) + "; use host memory or that device's");
  }
  return true;
}

/// A batch on the cuda executor: its arrays where kernels reach them, and where it stands.
class CudaRun : public Run {
 public:
  CudaRun(CudaExecutor* executor, const Batch& batch, cudaStream_t stream)
      : executor_(executor),
        batch_(batch),
        stream_(stream),
        workspace_(executor->TakeWorkspace()) {}
  ~CudaRun() override;

  /// Finds out where the arrays are. @throws Error(kInvalidArgument)
  void Place();
  void Allocate();
  void Start(const Epochs::SlotRange& give_back, const CellGrant& grant) override;
  Progress Await() override;
  Progress Resume(bool give_up, const CellGrant& grant) override;

 private:
  template <class T>
  const T* Input(const void* host, std::uint64_t bytes, bool on_device, DeviceArray<std::byte>* to);
  void Enqueue(const Epochs::SlotRange& give_back, const CellGrant& grant);
  void MakeContext(const CellGrant& grant);
  void Order();
  void CarryOut(bool give_up);
  void Finish();
  void FindDirectly();

  CudaExecutor* executor_;
  Batch batch_;
  cudaStream_t stream_;
  std::unique_ptr<Workspace> workspace_;
  DeviceBatch device_{};
  TableContext context_{};
  bool ops_on_device_ = false;
  bool keys_on_device_ = false;
  bool values_on_device_ = false;
  bool found_on_device_ = false;
  bool results_on_device_ = false;
  bool direct_ = false;  ///< finds alone that are not sorted by key
  bool defers_ = false;  ///< direct_: values that are not cached are read in the order of the cells
  std::size_t sort_bytes_ = 0;  ///< temporary storage that CUB asks for
  std::size_t scan_bytes_ = 0;
  bool running_ = false;
  Progress progress_;
};

CudaRun::~CudaRun() {
  if (workspace_ == nullptr) return;
  if (running_) cudaEventSynchronize(workspace_->done);
  executor_->ReturnWorkspace(std::move(workspace_));
}

void CudaRun::Place() {
  const int device = executor_->device();
  const auto locate = [&](const void* pointer, std::size_t bytes, const char* name) {
    return bytes > 0 && IsOnDevice(pointer, device, name);
  };
  ops_on_device_ = locate(batch_.ops.data(), batch_.ops.size(), "ops");
  keys_on_device_ = locate(batch_.keys.data(), batch_.keys.size(), "keys");
  values_on_device_ = locate(batch_.values.data(), batch_.values.size(), "values");
  found_on_device_ = locate(batch_.found.data(), batch_.found.size(), "found");
  results_on_device_ = locate(batch_.results.data(), batch_.results.size(), "results");
  if (keys_on_device_ && reinterpret_cast<std::uintptr_t>(batch_.keys.data()) % 8 != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch: 'keys' in device memory must be 8-byte aligned");
  }
}

/// Allocates what the batch needs, so that nothing is short once it has begun.
void CudaRun::Allocate() {
  Workspace& w = *workspace_;
  const std::uint64_t n = batch_.results.size();
  if (!ops_on_device_) w.ops.Reserve(batch_.ops.size());
  if (!keys_on_device_) w.keys.Reserve(batch_.keys.size());
  if (!values_on_device_) w.values.Reserve(batch_.values.size());
  if (!found_on_device_) w.found.Reserve(batch_.found.size());
  if (!results_on_device_) w.results.Reserve(n);
  if (executor_->has_directory() && batch_.ops.empty() && batch_.op == Op::kFind) {
    const bool has_cells = executor_->cell_bytes() != 0;
    const bool is_short = batch_.keys.size() == 8 * n;
    const bool is_large = n >= kDeferFrom;
    defers_ = is_large && is_short && has_cells && !batch_.found.empty();
    // Else, from several finds of a key one is made.
    direct_ = defers_ || !has_cells || batch_.found.empty() ||
              (executor_->has_cache() && (!is_large || is_short));
  }
  if (direct_ && !defers_) return;
  w.hashes.Reserve(n);
  w.sorted_hashes.Reserve(n);
  w.order.Reserve(n);
  w.sorted_order.Reserve(n);
  const int count = static_cast<int>(n);
  CheckCuda(
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes_, w.hashes.data(), w.sorted_hashes.data(),
                                      w.order.data(), w.sorted_order.data(), count, 0, 32, stream_),
      "DeviceRadixSort");
  if (direct_) {
    w.library.Reserve(sort_bytes_);
    return;
  }
  w.effects.Reserve(n);
  w.records.Reserve(n);
  CheckCuda(cub::DeviceScan::InclusiveScan(nullptr, scan_bytes_, w.effects.data(), w.effects.data(),
                                           ComposeEffects{}, count, stream_),
            "DeviceScan");
  w.library.Reserve(std::max(sort_bytes_, scan_bytes_));
  if (executor_->needs_flush()) {
    w.dirty_lines.Reserve(n * (batch_.keys.size() / n + executor_->cell_bytes()) / 64 + 6 * n);
    w.dirty_count.Reserve(1);
  }
}

template <class T>
const T* CudaRun::Input(const void* host, std::uint64_t bytes, bool on_device,
                        DeviceArray<std::byte>* to) {
  if (bytes == 0) return nullptr;
  if (on_device) return static_cast<const T*>(host);
  CheckCuda(cudaMemcpyAsync(to->data(), host, bytes, cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync to the device");
  return reinterpret_cast<const T*>(to->data());
}

void CudaRun::Start(const Epochs::SlotRange& give_back, const CellGrant& grant) {
  executor_->Activate();
  try {
    Enqueue(give_back, grant);
  } catch (...) {
    cudaStreamSynchronize(stream_);  // what was enqueued works on memory that is about to be reused
    workspace_.reset();              // and left it who knows how
    throw;
  }
}

void CudaRun::Enqueue(const Epochs::SlotRange& give_back, const CellGrant& grant) {
  Workspace& w = *workspace_;
  MakeContext(grant);
  device_.count = static_cast<std::uint32_t>(batch_.results.size());
  device_.op = batch_.op;
  device_.ops = Input<Op>(batch_.ops.data(), batch_.ops.size(), ops_on_device_, &w.ops);
  device_.keys =
      Input<std::uint64_t>(batch_.keys.data(), batch_.keys.size(), keys_on_device_, &w.keys);
  device_.values =
      Input<std::byte>(batch_.values.data(), batch_.values.size(), values_on_device_, &w.values);
  device_.found = batch_.found.empty() ? nullptr
                  : found_on_device_   ? batch_.found.data()
                                       : w.found.data();
  device_.results =
      results_on_device_ ? batch_.results.data() : reinterpret_cast<Result*>(w.results.data());
  device_.effects = w.effects.data();
  device_.records = w.records.data();
  device_.sums = w.sums.data();
  executor_->GiveBack(give_back, stream_);
  if (!direct_) {
    Order();
    CarryOut(false);
    return;
  }
  FindDirectly();
  Finish();
}

/// Finds alone, with a directory: nothing is sorted but what has to be read from persistent memory.
void CudaRun::FindDirectly() {
  Workspace& w = *workspace_;
  if (context_.table.key_words > 1) {
    FindKeys<<<static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock)), kBlockThreads, 0,
               stream_>>>(context_, device_);
    CheckLaunch("FindKeys");
    return;
  }
  std::uint32_t* const deferred = defers_ ? w.hashes.data() : nullptr;
  FindShortKeys<<<static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads)), kBlockThreads, 0,
                  stream_>>>(context_, device_, deferred, w.order.data());
  CheckLaunch("FindShortKeys");
  if (!defers_) return;
  CheckCuda(cub::DeviceRadixSort::SortPairs(
                w.library.data(), sort_bytes_, deferred, w.sorted_hashes.data(), w.order.data(),
                w.sorted_order.data(), static_cast<int>(device_.count), 0, 32, stream_),
            "DeviceRadixSort");
  ReadDeferred<<<kOrderedBlocks, kBlockThreads, 0, stream_>>>(
      context_.table, device_, w.sorted_hashes.data(), w.sorted_order.data());
  CheckLaunch("ReadDeferred");
  CopyDeferred<<<kPassBlocks, kBlockThreads, 0, stream_>>>(
      context_.table.value_size, device_, w.sorted_hashes.data(), w.sorted_order.data());
  CheckLaunch("CopyDeferred");
}

/// Takes the executor's context, with the cells granted and, where the medium needs flushing, a log
/// of the lines written.
void CudaRun::MakeContext(const CellGrant& grant) {
  Workspace& w = *workspace_;
  context_ = executor_->NextContext();
  context_.reclaim.grant = grant;
  context_.reclaim.taken = &w.sums.data()->cells_taken;
  if (!executor_->needs_flush() || direct_) return;
  CheckCuda(cudaMemsetAsync(w.dirty_count.data(), 0, 8, stream_), "cudaMemsetAsync");
  context_.dirty = DirtyLog{w.dirty_lines.data(), w.dirty_count.data(), w.dirty_lines.size()};
}

/// Sorts the batch by key hash and finds the effect of each run.
void CudaRun::Order() {
  Workspace& w = *workspace_;
  const int n = static_cast<int>(device_.count);
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kBlockThreads));
  HashKeys<<<blocks, kBlockThreads, 0, stream_>>>(context_, device_, w.hashes.data(),
                                                  w.order.data());
  CheckLaunch("HashKeys");
  CheckCuda(cub::DeviceRadixSort::SortPairs(w.library.data(), sort_bytes_, w.hashes.data(),
                                            w.sorted_hashes.data(), w.order.data(),
                                            w.sorted_order.data(), n, 0, 32, stream_),
            "DeviceRadixSort");
  device_.hashes = w.sorted_hashes.data();
  device_.order = w.sorted_order.data();
  MakeEffects<<<blocks, kBlockThreads, 0, stream_>>>(context_.table.key_words, device_);
  CheckLaunch("MakeEffects");
  CheckCuda(cub::DeviceScan::InclusiveScan(w.library.data(), scan_bytes_, w.effects.data(),
                                           w.effects.data(), ComposeEffects{}, n, stream_),
            "DeviceScan");
}

void CudaRun::CarryOut(bool give_up) {
  Workspace& w = *workspace_;
  const auto blocks = static_cast<unsigned>(BlocksFor(device_.count, kTilesPerBlock));
  CarryOutRuns<<<blocks, kBlockThreads, 0, stream_>>>(context_, device_, give_up);
  CheckLaunch("CarryOutRuns");
  AnswerOperations<<<blocks, kBlockThreads, 0, stream_>>>(context_.table.value_size, device_);
  CheckLaunch("AnswerOperations");
  Finish();
}

/// Takes the answers to where the user wants them, and tells how it went.
void CudaRun::Finish() {
  Workspace& w = *workspace_;
  if (!found_on_device_ && !batch_.found.empty()) {
    CheckCuda(cudaMemcpyAsync(batch_.found.data(), w.found.data(), batch_.found.size(),
                              cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync to the host");
  }
  if (!results_on_device_) {
    CheckCuda(cudaMemcpyAsync(batch_.results.data(), w.results.data(), batch_.results.size(),
                              cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync to the host");
  }
  executor_->Report(stream_, context_, &w);
  running_ = true;
}

Progress CudaRun::Await() {
  if (running_) {
    progress_ = executor_->Collect(workspace_.get());
    running_ = false;
  }
  return progress_;
}

Progress CudaRun::Resume(bool give_up, const CellGrant& grant) {
  executor_->Activate();
  MakeContext(grant);  // the table, and its queues, may have grown
  try {
    CarryOut(give_up);
  } catch (...) {
    cudaStreamSynchronize(stream_);
    workspace_.reset();
    throw;
  }
  return Await();
}

}  // namespace

Workspace::Workspace(std::atomic<std::uint64_t>* bytes, cudaStream_t stream)
    : hashes(bytes),
      sorted_hashes(bytes),
      order(bytes),
      sorted_order(bytes),
      effects(bytes),
      records(bytes),
      library(bytes),
      ops(bytes),
      keys(bytes),
      values(bytes),
      found(bytes),
      results(bytes),
      sums(bytes),
      dirty_lines(bytes),
      dirty_count(bytes) {
  CheckCuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreate");
  sums.Reserve(1);
  CheckCuda(cudaMemsetAsync(sums.data(), 0, sizeof(BatchSums), stream), "cudaMemsetAsync");
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Workspace::~Workspace() { cudaEventDestroy(done); }

CudaExecutor::CudaExecutor(int device, const Mapping& mapping)
    : device_(device),
      mapping_(mapping),
      cells_(&gpu_bytes_),
      slots_(&gpu_bytes_),
      counters_(&gpu_bytes_),
      locks_(&gpu_bytes_),
      left_(&gpu_bytes_),
      used_(&gpu_bytes_),
      cache_memory_(&gpu_bytes_) {
  Activate();
  CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  CheckCuda(cudaStreamCreateWithFlags(&cache_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  CheckCuda(cudaEventCreateWithFlags(&cache_loaded_, cudaEventDisableTiming), "cudaEventCreate");
  cells_.Reserve(2);
  slots_.Reserve(2);
  counters_.Reserve(1);
  left_.Reserve(1);
  locks_.Reserve(kKeyLocks);
  CheckCuda(cudaMemsetAsync(counters_.data(), 0, sizeof(ReclaimCounters), stream_),
            "cudaMemsetAsync");
  CheckCuda(cudaMemsetAsync(locks_.data(), 0, kKeyLocks * sizeof(std::uint32_t), stream_),
            "cudaMemsetAsync");
  RefreshContext();
  Synchronize();
}

CudaExecutor::~CudaExecutor() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  cudaStreamSynchronize(cache_stream_);
  cudaStreamDestroy(cache_stream_);
  cudaEventDestroy(cache_loaded_);
}

void CudaExecutor::Activate() const { CheckCuda(cudaSetDevice(device_), "cudaSetDevice"); }

void CudaExecutor::Synchronize() {
  CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void CudaExecutor::RefreshContext() {
  context_.reclaim = Reclaim{cells_.data(),    cells_.size() - 1, slots_.data(), slots_.size() - 1,
                             counters_.data(), CellGrant{},       nullptr};
  context_.locks = KeyLocks{locks_.data(), kKeyLocks - 1};
}

template <class T>
void CudaExecutor::GrowRing(DeviceArray<T>* ring, std::uint64_t positions, std::uint64_t from,
                            std::uint64_t to) {
  if (positions <= ring->size()) return;
  DeviceArray<T> larger(&gpu_bytes_);
  larger.Reserve(positions);
  MoveRing<<<kPassBlocks, kBlockThreads, 0, stream_>>>(larger.data(), positions - 1, ring->data(),
                                                       ring->size() - 1, from, to);
  CheckLaunch("MoveRing");
  Synchronize();
  *ring = std::move(larger);
}

void CudaExecutor::GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) {
  Activate();
  const ReclaimPositions at = Positions();
  GrowRing(&cells_, std::bit_ceil(2 * cells + 2), head, at.cells_tail);
  // What was given back is not looked at again, so all positions can be copied.
  GrowRing(&slots_, std::bit_ceil(slots + 2),
           at.slots_tail - std::min(at.slots_tail, slots_.size()), at.slots_tail);
  RefreshContext();
}

PassCounters CudaExecutor::Pass(PassMode mode, const std::vector<CellRange>& ranges) {
  Activate();
  std::uint64_t cells = 32;
  for (const CellRange& range : ranges) cells = std::max(cells, range.last);
  const std::uint64_t words = (cells + 31) / 32;
  if (mode != PassMode::kRepair) {
    used_.Reserve(words);
    CheckCuda(cudaMemsetAsync(used_.data(), 0, 4 * words, stream_), "cudaMemsetAsync");
  }
  DeviceArray<PassCounters> counters(&gpu_bytes_);
  counters.Reserve(1);
  CheckCuda(cudaMemsetAsync(counters.data(), 0, sizeof(PassCounters), stream_), "cudaMemsetAsync");
  DeviceArray<CellRange> device_ranges(&gpu_bytes_);
  device_ranges.Reserve(std::max<std::size_t>(ranges.size(), 1));
  CheckCuda(cudaMemcpyAsync(device_ranges.data(), ranges.data(), ranges.size() * sizeof(CellRange),
                            cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync to the device");
  const PassView pass{counters.data(), used_.data(), device_ranges.data(),
                      static_cast<std::uint32_t>(ranges.size())};
  const TableView& table = context_.table;
  const auto visit_level = [&](std::byte* first_bucket, std::uint64_t buckets, bool addressable) {
    const std::uint64_t slots = buckets * table.slots;
    const auto blocks = static_cast<unsigned>(
        std::min<std::uint64_t>(kPassBlocks, BlocksFor(slots, kBlockThreads)));
    VisitSlots<<<blocks, kBlockThreads, 0, stream_>>>(context_, pass, mode, addressable,
                                                      first_bucket, slots);
    CheckLaunch("VisitSlots");
  };
  visit_level(table.ReservedBucket(0), 2, true);
  for (std::uint32_t level = table.bottom; level <= table.top; ++level) {
    visit_level(table.Bucket(level, 0), std::uint64_t{1} << level,
                level + table.levels > table.top);
  }
  PassCounters total;
  CheckCuda(cudaMemcpyAsync(&total, counters.data(), sizeof total, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  if (mode != PassMode::kTrust) FlushPool();
  return total;
}

void CudaExecutor::FreeUnused(const std::vector<CellRange>& ranges) {
  Activate();
  for (const CellRange& range : ranges) {
    FreeCells<<<kPassBlocks, kBlockThreads, 0, stream_>>>(context_, used_.data(), range);
    CheckLaunch("FreeCells");
  }
  Synchronize();
  used_ = DeviceArray<std::uint32_t>(&gpu_bytes_);
}

void CudaExecutor::FreeAll(CellRange range) {
  Activate();
  FreeCells<<<kPassBlocks, kBlockThreads, 0, stream_>>>(context_, nullptr, range);
  CheckLaunch("FreeCells");
  Synchronize();
}

std::uint64_t CudaExecutor::DrainLevel(std::uint32_t level) {
  Activate();
  CheckCuda(cudaMemsetAsync(left_.data(), 0, 8, stream_), "cudaMemsetAsync");
  const std::uint64_t buckets = std::uint64_t{1} << level;
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(kPassBlocks, BlocksFor(buckets, kTilesPerBlock)));
  DrainBuckets<<<blocks, kBlockThreads, 0, stream_>>>(context_, context_.table.Bucket(level, 0),
                                                      buckets, left_.data());
  CheckLaunch("DrainBuckets");
  std::uint64_t left = 0;
  CheckCuda(cudaMemcpyAsync(&left, left_.data(), 8, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  FlushPool();
  return left;
}

void CudaExecutor::GiveBack(const Epochs::SlotRange& slots, Stream stream) {
  if (slots.from == slots.to) return;
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(BlocksFor(slots.to - slots.from, kBlockThreads), kPassBlocks));
  GiveBackSlots<<<blocks, kBlockThreads, 0, stream>>>(context_, slots);
  CheckLaunch("GiveBackSlots");
}

void CudaExecutor::GiveBack(const Epochs::SlotRange& slots) {
  Activate();
  GiveBack(slots, stream_);
  Synchronize();
}

ReclaimPositions CudaExecutor::Positions() {
  Activate();
  ReclaimCounters counters{};
  CheckCuda(cudaMemcpyAsync(&counters, counters_.data(), sizeof counters, cudaMemcpyDeviceToHost,
                            stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  return ReclaimPositions{counters.cells_tail, counters.slots_tail};
}

void CudaExecutor::Report(Stream stream, const TableContext& context, Workspace* workspace) {
  if (context.reclaim.grant.count > 0) {
    const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(
        BlocksFor(context.reclaim.grant.count, kBlockThreads), kPassBlocks));
    ReturnCells<<<blocks, kBlockThreads, 0, stream>>>(context);
    CheckLaunch("ReturnCells");
  }
  ReportBatch<<<1, 1, 0, stream>>>(context, workspace->sums.data(), workspace->report.get());
  CheckLaunch("ReportBatch");
  CheckCuda(cudaEventRecord(workspace->done, stream), "cudaEventRecord");
}

Progress CudaExecutor::Collect(Workspace* workspace) {
  CheckCuda(cudaEventSynchronize(workspace->done), "cudaEventSynchronize");
  const BatchReport& report = *workspace->report.get();
  if (needs_flush()) {
    if (report.dirty_lines > workspace->dirty_lines.size()) {
      FlushPool();
    } else {
      std::vector<std::uint64_t> lines(report.dirty_lines);
      CheckCuda(cudaMemcpy(lines.data(), workspace->dirty_lines.data(), 8 * lines.size(),
                           cudaMemcpyDeviceToHost),
                "cudaMemcpy to the host");
      for (const std::uint64_t line : lines) {
        mapping_.persist().Flush(Step::kOther, reinterpret_cast<const void*>(line), 64);
      }
      mapping_.persist().Fence(Step::kOther);
    }
  }
  Progress progress;
  progress.items_added = static_cast<std::int64_t>(report.sums.items_added);
  progress.lack_slots = report.sums.lack_slots;
  progress.lack_cells = report.sums.lack_cells;
  progress.carried_out = report.sums.carried_out;
  progress.found = report.sums.found;
  progress.cache_hits = report.sums.cache_hits;
  progress.positions = report.positions;
  return progress;
}

void CudaExecutor::SetAccelerators(const CacheShape& shape, CachePolicy policy) {
  Activate();
  AwaitCacheLoad();
  context_.accelerators = {};
  has_directory_ = has_cache_ = false;
  cache_memory_ = CacheMemory<DeviceArray>(&gpu_bytes_);
  cache_memory_.Reserve(shape, policy);
  context_.accelerators = cache_memory_.View(context_.table);
  if (shape.buckets == 0) return;
  const auto fill = [&](const DeviceArray<std::uint32_t>& array, int byte, std::uint64_t count) {
    CheckCuda(cudaMemsetAsync(array.data(), byte, count * sizeof(std::uint32_t), stream_),
              "cudaMemsetAsync");
  };
  if (shape.blocks != 0) {
    static_assert(CacheView::kNoBucket == 0xFFFFFFFF && CacheView::kClosed == 0xFFFFFFFF);
    fill(cache_memory_.block_of, 0, shape.buckets);
    fill(cache_memory_.scores, 0, shape.buckets);
    fill(cache_memory_.histogram, 0, CacheLoad::kRanks);
    fill(cache_memory_.fills, 0, 1);
    fill(cache_memory_.bucket_of, 0xFF, shape.blocks);
    fill(cache_memory_.tags, 0xFF, std::uint64_t{shape.blocks} * shape.slots);
  }
  has_directory_ = true;
  has_cache_ = shape.blocks != 0;
  BuildDirectory<<<kPassBlocks, kBlockThreads, 0, stream_>>>(context_, shape.buckets);
  CheckLaunch("BuildDirectory");
  Synchronize();
}

void CudaExecutor::LoadCache() {
  Activate();
  Accelerators accelerators = context_.accelerators;
  accelerators.cache.clock = clock_;
  const TableView& table = context_.table;
  const CacheLoad load = cache_memory_.Load(accelerators.cache, ++loads_);
  CountCacheBuckets<<<kCacheBlocks, kBlockThreads, 0, cache_stream_>>>(load);
  CheckLaunch("CountCacheBuckets");
  ChooseCacheThreshold<<<1, 1, 0, cache_stream_>>>(load);
  CheckLaunch("ChooseCacheThreshold");
  EvictBlocks<<<kCacheBlocks, kBlockThreads, 0, cache_stream_>>>(table, load);
  CheckLaunch("EvictBlocks");
  AssignBlocks<<<kCacheBlocks, kBlockThreads, 0, cache_stream_>>>(load);
  CheckLaunch("AssignBlocks");
  FillBlocks<<<kFillBlocks, kBlockThreads, 0, cache_stream_>>>(table, accelerators.directory, load);
  CheckLaunch("FillBlocks");
  CheckCuda(cudaEventRecord(cache_loaded_, cache_stream_), "cudaEventRecord");
}

bool CudaExecutor::CacheLoadEnded() {
  const cudaError_t status = cudaEventQuery(cache_loaded_);
  if (status == cudaErrorNotReady) return false;
  CheckCuda(status, "cudaEventQuery");
  return true;
}

void CudaExecutor::AwaitCacheLoad() {
  CheckCuda(cudaEventSynchronize(cache_loaded_), "cudaEventSynchronize");
}

void CudaExecutor::FlushPool() const {
  if (!needs_flush()) return;
  mapping_.persist().Flush(Step::kOther, mapping_.base(), mapping_.mapped_bytes());
  mapping_.persist().Fence(Step::kOther);
}

std::unique_ptr<Workspace> CudaExecutor::TakeWorkspace() {
  {
    const std::lock_guard lock(mutex_);
    if (!workspaces_.empty()) {
      auto workspace = std::move(workspaces_.back());
      workspaces_.pop_back();
      return workspace;
    }
  }
  Activate();
  return std::make_unique<Workspace>(&workspace_bytes_, stream_);
}

void CudaExecutor::ReturnWorkspace(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard lock(mutex_);
  workspaces_.push_back(std::move(workspace));
}

std::shared_ptr<Run> CudaExecutor::Prepare(const Batch& batch, Stream stream) {
  Activate();
  auto run = std::make_shared<CudaRun>(this, batch, stream);
  run->Place();
  run->Allocate();
  return run;
}

std::unique_ptr<Executor> MakeCudaExecutor(int device, const Mapping& mapping) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    count = 0;
  }
  if (device < 0 || device >= count) {
    throw Error(ErrorCode::kUnsupported, "executor cuda: device " + std::to_string(device) +
                                             " was asked for, this machine has " +
                                             std::to_string(count) +
                                             " usable CUDA devices; use executor cpu");
  }
  return std::make_unique<CudaExecutor>(device, mapping);
}

}  // namespace gpm
