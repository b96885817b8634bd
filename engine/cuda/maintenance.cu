#include <algorithm>
#include <bit>

#include "engine/cuda/executor.h"
#include "engine/cuda/kernel_image.h"
#include "engine/cuda/kernels/maintenance.cuh"
#include "engine/cuda/kernels/sort.cuh"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/search/asking.h"
#include "pm/driver_turns.h"

/// The cuda executor's passes over the table, its queues and its locks.
namespace gpm {
namespace {

constexpr std::uint64_t kFewestLocks = std::uint64_t{1} << 16;
constexpr std::uint64_t kMostLocks = std::uint64_t{1} << 24;
/// Bytes of a pool for each lock, and what part of the bytes that a store may take are locks.
constexpr std::uint64_t kBytesForLock = 256;
constexpr std::uint64_t kShareOfLocks = 16;

}  // namespace

void CudaExecutor::LoadMaintenanceKernels() {
  LoadKernelsBeside(reinterpret_cast<const void*>(FreeCells));
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

void CudaExecutor::RefreshContext() {
  context_.reclaim = Reclaim{cells_.data(),    cells_.size() - 1, slots_.data(), slots_.size() - 1,
                             counters_.data(), CellGrant{},       nullptr};
  context_.locks = KeyLocks{locks_.data(), locks_.size() - 1};
}

template <class T>
void CudaExecutor::ResizeRing(DeviceArray<T>* ring, std::uint64_t positions, std::uint64_t from,
                              std::uint64_t to) {
  AwaitBatches();
  DeviceArray<T> next(&memory_, LastUse::Awaited());
  next.Reserve(positions);
  Launch("MoveRing", MoveRing<T>, kGridStrideBlocks, kBlockThreads, *stream_, next.data(),
         positions - 1, ring->data(), ring->size() - 1, from, to);
  Synchronize();
  *ring = std::move(next);
  RefreshContext();  // what follows may fail
}

std::uint64_t CudaExecutor::MostLocks(std::uint64_t cache_bytes) {
  if (cache_bytes == 0) return kMostLocks;
  return std::clamp(std::bit_floor(cache_bytes / (kShareOfLocks * 4)), kFewestLocks, kMostLocks);
}

/// Two keys that share a lock cost time: if both are in one block, it goes through all steps of the
/// commit once more. (With 2^20 locks, 4096 inserts at once had eight such pairs.)
std::uint64_t CudaExecutor::LocksWanted() const {
  return std::clamp(std::bit_ceil(mapping_.mapped_bytes() / kBytesForLock), kFewestLocks,
                    most_locks_);
}

void CudaExecutor::MakeLocks(std::uint64_t locks) {
  AwaitBatches();
  DeviceArray<std::uint32_t> next(&memory_, LastUse::Awaited());
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
    workspaces_.clear();
    askings_.clear();
  }
  const ReclaimPositions at = Positions();  // which waits for what sorts
  unsorted_.Clear();
  sort_library_.Clear();
  if (CellPositions(cells) < cells_.size()) {
    ResizeRing(&cells_, CellPositions(cells), head, at.cells_tail);
  }
  if (SlotPositions(slots) < slots_.size()) {
    ResizeRing(&slots_, SlotPositions(slots), at.slots_tail, at.slots_tail);
  }
  if (LocksWanted() < locks_.size()) MakeLocks(LocksWanted());
  memory_.GiveBack();
  workspace_memory_.GiveBack();
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
  DeviceArray<ScanCounters> counters(&memory_, &*stream_);
  counters.Reserve(1);
  CheckCuda(cudaMemsetAsync(counters.data(), 0, sizeof(ScanCounters), *stream_), "cudaMemsetAsync");
  DeviceArray<CellRange> device_ranges(&memory_, &*stream_);
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
  used_.Clear();
}

void CudaExecutor::FreeAll(CellRange range) {
  const CurrentDevice current = Activate();
  const std::uint64_t tail = Positions().cells_tail;
  Launch("QueueRange", QueueRange, kGridStrideBlocks, kBlockThreads, *stream_, context_.reclaim,
         tail, range);
  const std::uint64_t end = tail + (range.last - range.first);
  CheckCuda(cudaMemcpyAsync(&counters_.data()->cells_tail, &end, sizeof end, cudaMemcpyHostToDevice,
                            *stream_),
            "cudaMemcpyAsync to the device");
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
  DeviceArray<std::byte> copy(&memory_, &*stream_);
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
  SlotsMade slots;
  try {
    Launch("MakeSlotsForBatch", MakeSlotsForBatch, blocks, kBlockThreads, *stream_, context_, batch,
           most, counts);
    CheckCuda(cudaMemcpyAsync(&slots, counts, sizeof slots, cudaMemcpyDeviceToHost, *stream_),
              "cudaMemcpyAsync to the host");
    Synchronize();
  } catch (...) {
    cudaStreamSynchronize(*stream_);  // what was launched reads the batch's arrays
    throw;
  }
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

std::uint64_t CudaExecutor::RequeueCells(const CellGrant& free, const CellGrant& held,
                                         const std::vector<std::uint32_t>& names) {
  const CurrentDevice current = Activate();
  DeviceArray<std::uint32_t> bits(&memory_, &*stream_);
  bits.Reserve(names.size());
  CheckCuda(cudaMemcpyAsync(bits.data(), names.data(), names.size() * sizeof(std::uint32_t),
                            cudaMemcpyHostToDevice, *stream_),
            "cudaMemcpyAsync to the device");
  ReturnCells(free);
  TableContext context = context_;
  context.reclaim.grant = held;
  const auto queue = [&](bool named) {
    Launch("QueueNamedCells", QueueNamedCells, kGridStrideBlocks, kBlockThreads, *stream_, context,
           bits.data(), std::uint64_t{names.size()}, named);
    return Positions().cells_tail;
  };
  const std::uint64_t position = queue(false);
  queue(true);
  return position;
}

void CudaExecutor::SortCells(const CellGrant& cells) {
  const DriverTurns::Launching turn;
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
  try {
    Launch("TakeOutCells", TakeOutCells, kGridStrideBlocks, kBlockThreads, *stream_,
           context_.reclaim, cells, unsorted_.data());
    sort(sort_library_.data());
    Launch("PutBackCells", PutBackCells, kGridStrideBlocks, kBlockThreads, *stream_,
           context_.reclaim, cells, unsorted_.data() + cells.count);
  } catch (...) {
    cudaStreamSynchronize(*stream_);  // what was launched uses the arrays
    throw;
  }
  const cudaError_t recorded = cudaEventRecord(*cells_sorted_, *stream_);
  if (recorded != cudaSuccess) Synchronize();  // nobody may take them before they are sorted
  CheckCuda(recorded, "cudaEventRecord");
  ++sorts_;  // (later than it is recorded)
}

void CudaExecutor::AwaitSortedCells(Stream stream) {
  const std::uint64_t sorts = sorts_;
  if (sorts_ended_ == sorts) return;  // saves a call of the driver
  const cudaError_t status = cudaEventQuery(*cells_sorted_);
  if (status == cudaSuccess) {
    sorts_ended_ = sorts;
  } else {
    if (status != cudaErrorNotReady) CheckCuda(status, "sorting of cells");
    CheckCuda(cudaStreamWaitEvent(stream, *cells_sorted_, 0), "cudaStreamWaitEvent");
  }
}

void CudaExecutor::Report(Stream stream, const TableContext& context, const Reporter& reporter) {
  Launch("ReportBatch", ReportBatch, 1, 32, stream, context, reporter);
}

}  // namespace gpm
