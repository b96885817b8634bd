#include <algorithm>
#include <bit>
#include <new>
#include <string>

#include "engine/cuda/executor.h"
#include "engine/cuda/kernel_image.h"
#include "engine/cuda/kernels/maintenance.cuh"
#include "engine/cuda/kernels/sort.cuh"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/table_copy.h"
#include "pm/pause_cpu.h"

namespace gpm {
namespace {

constexpr std::uint64_t kFewestLocks = std::uint64_t{1} << 16;
constexpr std::uint64_t kMostLocks = std::uint64_t{1} << 24;
/// Bytes of a pool for each lock, and what part of the bytes that a store may take are locks.
constexpr std::uint64_t kBytesForLock = 256;
constexpr std::uint64_t kShareOfLocks = 16;
/// Blocks that refresh the cache: few, so that batches are hardly slowed down meanwhile.
constexpr unsigned kCacheBlocks = 32;
constexpr unsigned kFillBlocks = 32;
/// Frames that are filled in one go: first the hottest, as a rule, then many.
constexpr std::uint32_t kFilledFirst = 1u << 16;
constexpr std::uint32_t kFilledAtOnce = 1u << 19;
/// Bins by which those are ordered, and what is counted beside (Reads::flags).
constexpr std::uint32_t kFillBins = AddressOrder::kBins + Reads::kFlags;
/// The host looks for a batch's report so often before it asks the driver whether the GPU failed,
/// which takes a microsecond.
constexpr std::uint64_t kLooksBeforeQuery = 1024;
/// Bytes of a pool, for each multiprocessor, up to which the GPU keeps all translations
/// (SmQueues). Between what was measured to be kept on an H200, 2 GiB, and what was not, 6.
constexpr std::uint64_t kReachOfMultiprocessor = std::uint64_t{28} << 20;

}  // namespace

Workspace::Workspace(std::atomic<std::uint64_t>* bytes, cudaStream_t stream)
    : hashes(bytes),
      other_hashes(bytes),
      order(bytes),
      other_order(bytes),
      effects(bytes),
      records(bytes),
      digests(bytes),
      bin_counts(bytes),
      reads(bytes),
      pending(bytes),
      dealt(bytes),
      library(bytes),
      ops(bytes),
      keys(bytes),
      values(bytes),
      found(bytes),
      results(bytes),
      padded_keys(bytes),
      initial(bytes),
      added(bytes),
      sums(bytes),
      queue_counts(bytes),
      dirty_lines(bytes),
      dirty_count(bytes) {
  sums.Reserve(2);
  CheckCuda(cudaMemsetAsync(sums.data(), 0, 2 * sizeof(BatchSums), stream), "cudaMemsetAsync");
  queue_counts.Reserve(kKindsOfQueues * SmQueues<std::uint32_t>::kCounts);
  CheckCuda(cudaMemsetAsync(queue_counts.data(), 0, 4 * queue_counts.size(), stream),
            "cudaMemsetAsync");
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

CudaExecutor::CudaExecutor(const OpenOptions& open, const Mapping& mapping)
    : device_(open.device),
      access_(open.access),
      most_locks_(open.cache.bytes == 0
                      ? kMostLocks
                      : std::clamp(std::bit_floor(open.cache.bytes / (kShareOfLocks * 4)),
                                   kFewestLocks, kMostLocks)),
      mapping_(mapping),
      cells_(&gpu_bytes_),
      slots_(&gpu_bytes_),
      counters_(&gpu_bytes_),
      locks_(&gpu_bytes_),
      left_(&gpu_bytes_),
      zero_(&gpu_bytes_),
      used_(&gpu_bytes_),
      marks_(&gpu_bytes_),
      unsorted_(&gpu_bytes_),
      sort_library_(&gpu_bytes_),
      cache_memory_(&gpu_bytes_),
      fill_plans_(&gpu_bytes_),
      fill_bins_(&gpu_bytes_) {
  int devices = 0;
  CheckCuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  is_only_device_ = devices == 1;
  const CurrentDevice current = Activate();
  RequireKernels();
  LoadKernelsBeside(reinterpret_cast<const void*>(FreeCells));
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
  cells_.Reserve(2);
  slots_.Reserve(2);
  counters_.Reserve(1);
  left_.Reserve(2);
  zero_.Reserve(1);
  fill_bins_.Reserve(kFillBins);
  CheckCuda(cudaMemsetAsync(zero_.data(), 0, 8, *stream_), "cudaMemsetAsync");
  CheckCuda(cudaMemsetAsync(counters_.data(), 0, sizeof(ReclaimCounters), *stream_),
            "cudaMemsetAsync");
  MakeLocks(LocksWanted());
}

void CudaExecutor::RequireKernels() const {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, FreeCells);
  if (error == cudaSuccess) return;
  KernelTarget target;
  target.device = device_;
  for (const int compiled_for : {__CUDA_ARCH_LIST__}) {
    target.compiled_for.push_back(compiled_for / 10);
  }
  cudaDeviceGetAttribute(&target.major, cudaDevAttrComputeCapabilityMajor, device_);
  cudaDeviceGetAttribute(&target.minor, cudaDevAttrComputeCapabilityMinor, device_);
  cudaGetLastError();  // so that the next call does not report this one
  RequireKernelImage(error, target);
  CheckCuda(error, "cudaFuncGetAttributes");
}

CudaExecutor::~CudaExecutor() {
  int before = device_;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  stream_.reset();
  cache_stream_.reset();
  cache_refresh_begun_.reset();
  cache_refreshed_.reset();
  cells_sorted_.reset();
  cudaSetDevice(before);
}

void CudaExecutor::Synchronize() {
  CheckCuda(cudaStreamSynchronize(*stream_), "cudaStreamSynchronize");
}

void CudaExecutor::RefreshContext() {
  context_.reclaim = Reclaim{cells_.data(),    cells_.size() - 1, slots_.data(), slots_.size() - 1,
                             counters_.data(), CellGrant{},       nullptr};
  context_.locks = KeyLocks{locks_.data(), locks_.size() - 1};
}

template <class T>
void CudaExecutor::ResizeRing(DeviceArray<T>* ring, std::uint64_t positions, std::uint64_t from,
                              std::uint64_t to) {
  DeviceArray<T> next(&gpu_bytes_);
  next.Reserve(positions);
  Launch("MoveRing", MoveRing<T>, kGridStrideBlocks, kBlockThreads, *stream_, next.data(),
         positions - 1, ring->data(), ring->size() - 1, from, to);
  Synchronize();
  *ring = std::move(next);
  RefreshContext();  // what follows may fail
}

/// Two keys that share a lock cost time: if both are in one block, it goes through all steps of the
/// commit once more. (With 2^20 locks, 4096 inserts at once had eight such pairs.)
std::uint64_t CudaExecutor::LocksWanted() const {
  return std::clamp(std::bit_ceil(mapping_.mapped_bytes() / kBytesForLock), kFewestLocks,
                    most_locks_);
}

void CudaExecutor::MakeLocks(std::uint64_t locks) {
  DeviceArray<std::uint32_t> next(&gpu_bytes_);
  next.Reserve(locks);
  Fill(next.data(), 0, locks);  // all are free
  Synchronize();
  locks_ = std::move(next);
  RefreshContext();
}

void CudaExecutor::GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) {
  const CurrentDevice current = Activate();
  const ReclaimPositions at = Positions();
  if (CellPositions(cells) > cells_.size()) {
    ResizeRing(&cells_, CellPositions(cells), head, at.cells_tail);
  }
  if (SlotPositions(slots) > slots_.size()) {
    // What was given back is not looked at again, so all positions can be copied.
    ResizeRing(&slots_, SlotPositions(slots),
               at.slots_tail - std::min(at.slots_tail, slots_.size()), at.slots_tail);
  }
  if (LocksWanted() > locks_.size()) MakeLocks(LocksWanted());
}

void CudaExecutor::ShrinkQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) {
  const CurrentDevice current = Activate();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& workspace : workspaces_) {  // a last kernel may have reported before it ends
      CheckCuda(cudaEventSynchronize(workspace->enqueued), "cudaEventSynchronize");
    }
    workspaces_.clear();
  }
  const ReclaimPositions at = Positions();  // which waits for what sorts
  unsorted_ = DeviceArray<std::uint32_t>(&gpu_bytes_);
  sort_library_ = DeviceArray<std::byte>(&gpu_bytes_);
  if (CellPositions(cells) < cells_.size()) {
    ResizeRing(&cells_, CellPositions(cells), head, at.cells_tail);
  }
  if (SlotPositions(slots) < slots_.size()) {
    ResizeRing(&slots_, SlotPositions(slots), at.slots_tail, at.slots_tail);
  }
  if (LocksWanted() < locks_.size()) MakeLocks(LocksWanted());
}

ScanCounters CudaExecutor::ScanSlots(ScanMode mode, const std::vector<CellRange>& ranges) {
  const CurrentDevice current = Activate();
  std::uint64_t cells = 32;
  for (const CellRange& range : ranges) cells = std::max(cells, range.last);
  const std::uint64_t words = (cells + 31) / 32;
  if (mode != ScanMode::kRepair) {
    used_.Reserve(words);
    CheckCuda(cudaMemsetAsync(used_.data(), 0, 4 * words, *stream_), "cudaMemsetAsync");
  }
  DeviceArray<ScanCounters> counters(&gpu_bytes_);
  counters.Reserve(1);
  CheckCuda(cudaMemsetAsync(counters.data(), 0, sizeof(ScanCounters), *stream_), "cudaMemsetAsync");
  DeviceArray<CellRange> device_ranges(&gpu_bytes_);
  device_ranges.Reserve(std::max<std::size_t>(ranges.size(), 1));
  CheckCuda(cudaMemcpyAsync(device_ranges.data(), ranges.data(), ranges.size() * sizeof(CellRange),
                            cudaMemcpyHostToDevice, *stream_),
            "cudaMemcpyAsync to the device");
  const SlotScan pass{mode, counters.data(), used_.data(), device_ranges.data(),
                      static_cast<std::uint32_t>(ranges.size())};
  const auto scan = [&](const ScannedBuckets& buckets) {
    const std::uint64_t slots = buckets.count * context_.table.slots;
    Launch("ScanBuckets", ScanBuckets,
           std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(slots, kBlockThreads)),
           kBlockThreads, *stream_, context_, pass, buckets);
  };
  ForEachScanned(context_.table, context_.accelerators.directory, scan);
  ScanCounters total;
  CheckCuda(
      cudaMemcpyAsync(&total, counters.data(), sizeof total, cudaMemcpyDeviceToHost, *stream_),
      "cudaMemcpyAsync to the host");
  Synchronize();
  if (mode != ScanMode::kTrust) FlushPool();
  return total;
}

std::vector<std::uint32_t> CudaExecutor::UsedCells() {
  const CurrentDevice current = Activate();
  std::vector<std::uint32_t> used(used_.size());
  CheckCuda(
      cudaMemcpyAsync(used.data(), used_.data(), 4 * used.size(), cudaMemcpyDeviceToHost, *stream_),
      "cudaMemcpyAsync to the host");
  Synchronize();
  return used;
}

void CudaExecutor::FreeUnused(const std::vector<CellRange>& ranges) {
  const CurrentDevice current = Activate();
  for (const CellRange& range : ranges) {
    Launch("FreeCells", FreeCells, kGridStrideBlocks, kBlockThreads, *stream_, context_,
           used_.data(), range);
  }
  Synchronize();
  used_ = DeviceArray<std::uint32_t>(&gpu_bytes_);
}

void CudaExecutor::FreeAll(CellRange range) {
  const CurrentDevice current = Activate();
  Launch("FreeCells", FreeCells, kGridStrideBlocks, kBlockThreads, *stream_, context_, nullptr,
         range);
  Synchronize();
}

std::uint64_t CudaExecutor::DrainLevel(std::uint32_t level, bool displaces) {
  const CurrentDevice current = Activate();
  CheckCuda(cudaMemsetAsync(left_.data(), 0, 8, *stream_), "cudaMemsetAsync");
  const std::uint64_t buckets = context_.table.Buckets(level);
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(buckets, kTilesPerBlock)));
  Launch("DrainBuckets", DrainBuckets, blocks, kBlockThreads, *stream_, context_,
         context_.table.Bucket(level, 0), buckets, displaces, left_.data());
  return EndPass();
}

std::uint64_t CudaExecutor::ComposeNewest() {
  const CurrentDevice current = Activate();
  CheckCuda(cudaMemsetAsync(left_.data(), 0, 8, *stream_), "cudaMemsetAsync");
  const TableView& table = context_.table;
  const std::uint32_t oldest = table.level_count - 1;
  const std::uint64_t slots = table.Buckets(oldest) << table.slot_bits;
  // Its words one by one, over the link, would take three times as long.
  DeviceArray<std::byte> copy(&gpu_bytes_);
  try {
    copy.Reserve(table.Buckets(oldest) * table.bucket_bytes);
    CopyLines(copy.data(), table.Bucket(oldest, 0), copy.size(), *stream_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu || copy.data() != nullptr) throw;
  }
  const std::byte* const first = copy.data() != nullptr ? copy.data() : table.Bucket(oldest, 0);
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(slots, kBlockThreads)));
  Launch("ComposeSlots", ComposeSlots, blocks, kBlockThreads, *stream_, context_, first,
         left_.data());
  return EndPass();
}

SlotsMade CudaExecutor::MakeSlots(const DeviceBatch& batch, std::uint64_t most) {
  if (needs_flush()) return {.lacking = 1};
  const CurrentDevice current = Activate();
  static_assert(sizeof(SlotsMade) == 16);
  auto* const counts = reinterpret_cast<SlotsMade*>(left_.data());
  CheckCuda(cudaMemsetAsync(counts, 0, sizeof *counts, *stream_), "cudaMemsetAsync");
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(batch.count, kTilesPerBlock)));
  Launch("MakeSlotsForBatch", MakeSlotsForBatch, blocks, kBlockThreads, *stream_, context_, batch,
         most, counts);
  SlotsMade slots;
  CheckCuda(cudaMemcpyAsync(&slots, counts, sizeof slots, cudaMemcpyDeviceToHost, *stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  return slots;
}

std::uint64_t CudaExecutor::MoveCells(CellRange range, const CellGrant& cells) {
  const CurrentDevice current = Activate();
  CheckCuda(cudaMemsetAsync(left_.data(), 0, 16, *stream_), "cudaMemsetAsync");
  TableContext context = context_;
  context.reclaim.grant = cells;
  context.reclaim.taken = left_.data() + 1;
  ForEachScanned(context_.table, DirectoryView{}, [&](const ScannedBuckets& buckets) {
    const auto blocks = static_cast<unsigned>(
        std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(buckets.count, kTilesPerBlock)));
    Launch("MoveCellsOfBuckets", MoveCellsOfBuckets, blocks, kBlockThreads, *stream_, context,
           buckets.first, buckets.count, range, left_.data());
  });
  return EndPass();
}

std::uint64_t CudaExecutor::EndPass() {
  std::uint64_t left = 0;
  CheckCuda(cudaMemcpyAsync(&left, left_.data(), 8, cudaMemcpyDeviceToHost, *stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  FlushPool();
  return left;
}

std::unique_ptr<TableCopy> CudaExecutor::MakeCopy(const CopyShape& shape) {
  const CurrentDevice current = Activate();
  return std::make_unique<CudaTableCopy>(*this, shape, &gpu_bytes_);
}

bool CudaExecutor::TakeCopy(TableCopy* copy) {
  const CurrentDevice current = Activate();
  auto* const taken = static_cast<CudaTableCopy*>(copy);
  Fill(taken->counts.data(), 0, 2);
  const ItemArrays to{taken->device_keys.data(), taken->device_references.data(),
                      taken->shape.room,         taken->counts.data(),
                      taken->counts.data() + 1,  taken->shape.changes_only};
  ForEachScanned(
      context_.table, context_.accelerators.directory, [&](const ScannedBuckets& buckets) {
        const std::uint64_t slots = buckets.count * context_.table.slots;
        Launch("CopyItems", CopyItems,
               std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(slots, kBlockThreads)),
               kBlockThreads, *stream_, context_, buckets, to);
      });
  std::uint64_t counts[2];
  CheckCuda(cudaMemcpyAsync(counts, taken->counts.data(), sizeof counts, cudaMemcpyDeviceToHost,
                            *stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  taken->total = counts[0];
  taken->items = counts[1];
  if (taken->items > taken->shape.room) return false;
  if (taken->shape.range_bits == 0) return true;
  std::swap(marks_, taken->device_marks);
  taken->range_bits = std::exchange(range_bits_, taken->shape.range_bits);
  context_.table.changes = Changes();
  return true;
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

void CudaExecutor::MarkAgain(const TableCopy& copy) {
  if (copy.range_bits == 0) return;
  const CurrentDevice current = Activate();
  const CudaStream stream;
  Launch("MarkRanges", MarkRanges, kGridStrideBlocks, kBlockThreads, stream, Changes(),
         ChangeMap{static_cast<const CudaTableCopy&>(copy).device_marks.data(), copy.range_bits});
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void CudaExecutor::AddMarks(const std::uint8_t* marks, std::uint32_t range_bits) {
  const CurrentDevice current = Activate();
  const CudaStream stream;
  const std::uint64_t ranges = std::uint64_t{1} << range_bits;
  DeviceArray<std::uint8_t> added(&gpu_bytes_);
  added.Reserve(ranges);
  CheckCuda(cudaMemcpyAsync(added.data(), marks, ranges, cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync to the device");
  Launch("MarkRanges", MarkRanges, kGridStrideBlocks, kBlockThreads, stream, Changes(),
         ChangeMap{added.data(), range_bits});
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void CudaExecutor::RecycleSlots(const Epochs::SlotRange& slots, Stream stream) {
  if (slots.from == slots.to) return;
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(BlocksFor(slots.to - slots.from, kBlockThreads), kGridStrideBlocks));
  Launch("GiveBackSlots", GiveBackSlots, blocks, kBlockThreads, stream, context_, slots);
}

void CudaExecutor::RecycleSlots(const Epochs::SlotRange& slots) {
  const CurrentDevice current = Activate();
  RecycleSlots(slots, *stream_);
  Synchronize();
}

ReclaimPositions CudaExecutor::Positions() {
  const CurrentDevice current = Activate();
  ReclaimCounters counters{};
  CheckCuda(cudaMemcpyAsync(&counters, counters_.data(), sizeof counters, cudaMemcpyDeviceToHost,
                            *stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  return ReclaimPositions{counters.cells_tail, counters.slots_tail};
}

ReclaimPositions CudaExecutor::ReturnCells(const CellGrant& cells) {
  if (cells.count == 0) return Positions();
  const CurrentDevice current = Activate();
  TableContext context = context_;
  context.reclaim.grant = cells;
  context.reclaim.taken = zero_.data();
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(BlocksFor(cells.count, kBlockThreads), kGridStrideBlocks));
  Launch("QueueCells", QueueCells, blocks, kBlockThreads, *stream_, context);
  return Positions();
}

void CudaExecutor::SortCells(const CellGrant& cells) {
  const CurrentDevice current = Activate();
  const auto count = static_cast<int>(cells.count);
  std::size_t bytes = 0;
  const auto sort = [&](void* library) {
    CallCub("DeviceRadixSort", [&] {
      return cub::DeviceRadixSort::SortKeys(library, bytes, unsorted_.data(),
                                            unsorted_.data() + cells.count, count, 0, 32, *stream_);
    });
  };
  sort(nullptr);
  try {
    unsorted_.Reserve(2 * cells.count);
    sort_library_.Reserve(bytes);
  } catch (const Error&) {
    return;  // where memory is short they stay as they are
  }
  Launch("TakeOutCells", TakeOutCells, kGridStrideBlocks, kBlockThreads, *stream_, context_.reclaim,
         cells, unsorted_.data());
  sort(sort_library_.data());
  Launch("PutBackCells", PutBackCells, kGridStrideBlocks, kBlockThreads, *stream_, context_.reclaim,
         cells, unsorted_.data() + cells.count);
  const cudaError_t recorded = cudaEventRecord(*cells_sorted_, *stream_);
  if (recorded != cudaSuccess) Synchronize();  // nobody may take them before they are sorted
  CheckCuda(recorded, "cudaEventRecord");
}

void CudaExecutor::AwaitSortedCells(Stream stream) {
  CheckCuda(cudaStreamWaitEvent(stream, *cells_sorted_, 0), "cudaStreamWaitEvent");
}

Reporter CudaExecutor::NextReport(const CellGrant& grant, Workspace* workspace) {
  workspace->granted = grant.count;
  const std::uint32_t number = ++workspace->reports;
  BatchSums* const sums = workspace->sums.data();
  return Reporter{sums + number % 2, sums + (number + 1) % 2, workspace->report.get(), number};
}

void CudaExecutor::Report(Stream stream, const TableContext& context, const Reporter& reporter) {
  Launch("ReportBatch", ReportBatch, 1, 32, stream, context, reporter);
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
  // (Many operations may be on one key that is stuck.)
  progress.short_of_slots = report.sums.short_of_slots + (report.sums.stuck != 0 ? 1 : 0);
  progress.drained = report.sums.undrained == 0;
  progress.short_of_cells = report.sums.short_of_cells;
  progress.carried_out = report.sums.carried_out;
  progress.found = report.sums.found;
  progress.cache_hits = report.sums.cache_hits;
  workspace->reads_shared = report.sums.reads_shared;
  progress.cells_left = workspace->granted - std::min(workspace->granted, report.sums.cells_taken);
  progress.positions = report.positions;
  return progress;
}

void CudaExecutor::SetAccelerators(const CacheShape& shape, CachePolicy policy,
                                   std::uint32_t used) {
  const CurrentDevice current = Activate();
  AwaitCacheRefresh();
  context_.accelerators = {};
  has_directory_ = has_cache_ = false;
  cache_memory_ = CacheMemory<DeviceArray>(&gpu_bytes_);
  fill_plans_ = DeviceArray<std::uint64_t>(&gpu_bytes_);
  cache_memory_.Reserve(shape, policy);
  if (shape.buckets == 0) return;
  TableContext context = context_;  // the executor's own is as it was if something fails
  context.accelerators = cache_memory_.View();
  if (shape.frames != 0) fill_plans_.Reserve(2 * shape.slots_at_once());
  ClearCache();
  const std::uint64_t fingerprints = std::uint64_t{used} * shape.stride;
  Fill(cache_memory_.fingerprints.data() + fingerprints, DirectoryView::kEmpty,
       std::uint64_t{shape.buckets} * shape.stride - fingerprints);
  Launch("BuildDirectory", BuildDirectory, kGridStrideBlocks, kBlockThreads, *stream_, context,
         used);
  Synchronize();
  context_ = context;
  has_directory_ = true;
  has_cache_ = shape.frames != 0;
}

/// Makes the cache's memory one of a cache without values.
void CudaExecutor::ClearCache() {
  const CacheShape& shape = cache_memory_.shape;
  if (shape.frames == 0) return;
  static_assert(CacheView::kNoBucket == 0xFFFFFFFF && CacheView::kClosed == 0xFFFFFFFF);
  Fill(cache_memory_.frame_of.data(), 0, shape.buckets);
  Fill(cache_memory_.scores.data(), 0, shape.buckets);
  Fill(cache_memory_.histogram.data(), 0, CacheRefresh::kRanks);
  Fill(cache_memory_.fills.data(), 0, 1);
  Fill(cache_memory_.bucket_of.data(), 0xFF, shape.frames);
  Fill(cache_memory_.tags.data(), 0xFF, std::uint64_t{shape.frames} * shape.slots);
}

bool CudaExecutor::FollowGrowth(const TableView& table, const CacheShape& shape,
                                CachePolicy policy) {
  if (!has_directory_ || !cache_memory_.Precedes(shape)) return false;
  const CurrentDevice current = Activate();
  // (Also what was launched of a refresh that could not be begun.)
  CheckCuda(cudaStreamSynchronize(*cache_stream_), "cudaStreamSynchronize");
  const auto drained = static_cast<std::uint32_t>(table.Buckets(table.levels));
  const auto copy = [this](auto* to, const auto* from, std::uint64_t count) {
    CheckCuda(cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDeviceToDevice, *stream_),
              "cudaMemcpyAsync");
  };
  const auto fill = [this](auto* to, int byte, std::uint64_t count) { Fill(to, byte, count); };
  bool keeps = cache_memory_.HasFramesFor(shape);
  const std::uint32_t frames = cache_memory_.shape.frames;
  try {
    CacheMemory<DeviceArray> next(&gpu_bytes_);
    next.ReserveDirectory(shape);
    next.ReserveDrained(drained);
    next.TakeOver(cache_memory_, drained, copy, fill);
    try {
      if (keeps) next.TakeOverCache(&cache_memory_, drained, copy, fill);
    } catch (const Error&) {
      keeps = false;  // there is no memory for both
    }
    Synchronize();
    SetTable(table, false);
    cache_memory_ = std::move(next);
    next = CacheMemory<DeviceArray>(&gpu_bytes_);  // gives back what the former one has left
    if (shape.frames != 0) fill_plans_.Reserve(2 * shape.slots_at_once());
    if (keeps) {
      Launch("KeepFrames", KeepFrames, kCacheBlocks, kBlockThreads, *stream_,
             cache_memory_.View().cache, shape.slots, frames, drained);
    } else {
      cache_memory_.ReserveCache(policy);
      ClearCache();
    }
    Synchronize();
  } catch (const Error&) {
    return false;
  }
  context_.accelerators = cache_memory_.View();
  context_.accelerators.directory.drained = cache_memory_.drained.data();
  has_directory_ = true;
  has_cache_ = shape.frames != 0;
  return true;
}

void CudaExecutor::BeginDraining() {
  if (!has_directory_ || context_.accelerators.directory.drained != nullptr) return;
  const CurrentDevice current = Activate();
  TableContext context = context_;
  try {
    cache_memory_.ReserveDrained(context_.table.Buckets(context_.table.levels));
    context.accelerators.directory.drained = cache_memory_.drained.data();
    Launch("BuildDrainedPrints", BuildDrainedPrints, kGridStrideBlocks, kBlockThreads, *stream_,
           context);
    Synchronize();
  } catch (const Error&) {
    return;  // what is wrong with the GPU, the next batch says, too
  }
  context_ = context;
}

/// A tenth of the GPU's memory for each store, or half of what is free: workspaces need some.
std::uint64_t CudaExecutor::CacheBudget() const {
  const CurrentDevice current = Activate();
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  free_bytes += cache_memory_.shape.cache_bytes();  // of the one that is replaced
  return std::min(all_bytes / 10, free_bytes / 2);
}

CacheFillShape CudaExecutor::CacheFill() const {
  return {.frames_at_once = kFilledAtOnce,
          .bytes_per_slot = sizeof(ReadPlan) + sizeof(std::uint64_t)};
}

CacheRefresh CudaExecutor::NextRefresh(std::uint64_t uses) {
  CacheView view = context_.accelerators.cache;
  view.clock = clock_;
  return cache_memory_.Refresh(view, TinyLfuPolicy::AgeingOf(++refreshes_, uses, view.size));
}

void CudaExecutor::RefreshCache(std::uint64_t uses) {
  const CurrentDevice current = Activate();
  const CacheRefresh refresh = NextRefresh(uses);
  const TableView& table = context_.table;
  CheckCuda(cudaEventRecord(*cache_refresh_begun_, *cache_stream_), "cudaEventRecord");
  Launch("CountCacheBuckets", CountCacheBuckets, kCacheBlocks, kBlockThreads, *cache_stream_,
         refresh);
  Launch("ChooseCacheThreshold", ChooseCacheThreshold, 1, 1, *cache_stream_, refresh);
  Launch("EvictFrames", EvictFrames, kCacheBlocks, kBlockThreads, *cache_stream_, table, refresh);
  Launch("AssignFrames", AssignFrames, kCacheBlocks, kBlockThreads, *cache_stream_, refresh);
  Reads reads;
  reads.queues.items = fill_plans_.data();
  reads.plans =
      reinterpret_cast<ReadPlan*>(fill_plans_.data() + cache_memory_.shape.slots_at_once());
  reads.order.bins = fill_bins_.data();
  // (The pool may grow while frames are filled.)
  reads.order.bin_shift = AddressOrder::ShiftFor(mapping_.max_bytes() / table.cell_bytes);
  reads.flags = fill_bins_.data() + AddressOrder::kBins;
  for (std::uint32_t first = 0; first < refresh.cache.size;) {
    const std::uint32_t last =
        std::min(first + (first == 0 ? kFilledFirst : kFilledAtOnce), refresh.cache.size);
    CheckCuda(
        cudaMemsetAsync(fill_bins_.data(), 0, kFillBins * sizeof(std::uint32_t), *cache_stream_),
        "cudaMemsetAsync");
    Launch("PlanFills", PlanFills, kCacheBlocks, kBlockThreads, *cache_stream_, table,
           context_.accelerators.directory, refresh, reads, first, last);
    Launch("PlaceBins", PlaceBins, 1, kPlacingThreads, *cache_stream_, reads);
    Launch("PlaceReads", PlaceReads, kCacheBlocks, kBlockThreads, *cache_stream_, reads,
           (last - first) << table.slot_bits);
    Launch("FillFrames", FillFrames, kFillBlocks, kBlockThreads, *cache_stream_, table,
           context_.accelerators.directory, refresh, reads, first);
    first = last;
  }
  CheckCuda(cudaEventRecord(*cache_refreshed_, *cache_stream_), "cudaEventRecord");
}

void CudaExecutor::AgeCache(std::uint64_t uses) {
  const CurrentDevice current = Activate();
  Launch("AgeCacheBuckets", AgeCacheBuckets, kCacheBlocks, kBlockThreads, *cache_stream_,
         NextRefresh(uses));
}

double CudaExecutor::CacheRefreshSeconds() {
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, *cache_refresh_begun_, *cache_refreshed_),
            "cudaEventElapsedTime");
  return milliseconds / 1e3;
}

bool CudaExecutor::CacheRefreshEnded() {
  const cudaError_t status = cudaEventQuery(*cache_refreshed_);
  if (status == cudaErrorNotReady) return false;
  CheckCuda(status, "cudaEventQuery");
  return true;
}

void CudaExecutor::AwaitCacheRefresh() {
  CheckCuda(cudaEventSynchronize(*cache_refreshed_), "cudaEventSynchronize");
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

std::unique_ptr<Workspace> CudaExecutor::TakeWorkspace() {
  {
    const std::lock_guard lock(mutex_);
    if (!workspaces_.empty()) {
      auto workspace = std::move(workspaces_.back());
      workspaces_.pop_back();
      return workspace;
    }
  }
  const CurrentDevice current = Activate();
  return std::make_unique<Workspace>(&workspace_bytes_, *stream_);
}

void CudaExecutor::ReturnWorkspace(std::unique_ptr<Workspace> workspace) noexcept {
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
