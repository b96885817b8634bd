#include <cooperative_groups.h>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_select.cuh>
#include <utility>

#include "engine/cuda/kernels/grid_stride.cuh"
#include "engine/cuda/load_kernels.h"
#include "engine/cuda/search/device_index.h"
#include "engine/cuda/table_copy.h"
#include "recovery/slot_scan.h"

// Copies of the table for snapshots and indexes, and the marks and the log of what was changed
// since one was taken.

namespace gpm {
namespace {

/// Where CopyItems copies to.
struct ItemArrays {
  std::uint64_t* keys;
  std::uint64_t* references;
  std::uint64_t room;    ///< items
  std::uint64_t* total;  ///< items that there are; begins at 0
  std::uint64_t* items;  ///< of those, that are wanted; likewise
  bool changes_only;
};

/// One thread of a warp that has an item gets a place for it.
__device__ std::uint64_t PlaceForItem(const ItemArrays& to) {
  // One for the threads that are here together: they all write the same word.
  const auto together = cooperative_groups::coalesced_threads();
  std::uint64_t at = 0;
  if (together.thread_rank() == 0) at = AtomicAdd(to.items, together.size());
  return together.shfl(at, 0) + together.thread_rank();
}

/// Copies the items of logged keys, a thread for each.
__global__ void __launch_bounds__(kBlockThreads)
    CopyLogged(const __grid_constant__ TableContext context, const std::uint64_t* keys,
               std::uint64_t logged, const __grid_constant__ ItemArrays to) {
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty));
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < logged;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t* const key = keys + i * table.key_words;
    std::uint64_t reference = 0;
    if (!FindItem(operations, operations.Locate(key), key, &reference)) continue;
    const std::uint64_t at = PlaceForItem(to);
    if (at >= to.room) continue;
    for (std::uint32_t w = 0; w < table.key_words; ++w) to.keys[at * table.key_words + w] = key[w];
    to.references[at] = reference;
  }
}

/// Copies the items of some buckets, or of the marked ranges of hashes, a thread for each slot.
__global__ void __launch_bounds__(kBlockThreads)
    CopyItems(const __grid_constant__ TableContext context,
              const __grid_constant__ ScannedBuckets buckets,
              const __grid_constant__ ItemArrays to) {
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty));
  __shared__ std::uint32_t block_total;
  if (threadIdx.x == 0) block_total = 0;
  __syncthreads();
  std::uint32_t total = 0;
  const std::uint64_t slots = buckets.count << table.slot_bits;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < slots;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    KeyBuffer key;
    std::uint64_t reference = 0;
    if (!ReadItem(operations, buckets, i >> table.slot_bits,
                  static_cast<std::uint32_t>(i & (table.slots - 1)), key.words, &reference)) {
      continue;
    }
    ++total;
    if (to.changes_only &&
        *table.changes.MarkOf(HashKey(table.hash_seed, key.words, table.key_words)) == 0) {
      continue;
    }
    const std::uint64_t at = PlaceForItem(to);
    if (at >= to.room) continue;
    for (std::uint32_t w = 0; w < table.key_words; ++w) {
      to.keys[at * table.key_words + w] = key.words[w];
    }
    to.references[at] = reference;
  }
  atomicAdd(&block_total, total);
  __syncthreads();
  if (threadIdx.x == 0) AtomicAdd(to.total, block_total);
}

/// Marks in a change map what is marked in one with fewer ranges, or as many.
__global__ void MarkRanges(const __grid_constant__ ChangeMap changes,
                           const __grid_constant__ ChangeMap marked) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
       i >> marked.range_bits == 0; i += std::uint64_t{gridDim.x} * blockDim.x) {
    if (marked.marks[i] != 0) changes.MarkAll(i, marked.range_bits);
  }
}

/// Notes the cells that references name, a bit for each, by number.
__global__ void NameCells(const std::uint64_t* references, std::uint64_t count,
                          std::uint64_t cell_bytes, std::uint32_t* names) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t cell = references[i] / cell_bytes;
    atomicOr(names + cell / 32, 1u << cell % 32);
  }
}

}  // namespace

void CudaTableCopy::Fetch() {
  const CurrentDevice current = executor_.Activate();
  keys_ = HugeMemory(items * shape.key_words * sizeof(std::uint64_t));
  references_ = HugeMemory(items * sizeof(std::uint64_t));
  Bring(device_keys, items * shape.key_words, keys_.data());
  Bring(device_references, items, references_.data());
  keys = reinterpret_cast<const std::uint64_t*>(keys_.data());
  references = reinterpret_cast<const std::uint64_t*>(references_.data());
  if (shape.changes_only && range_bits > 0) BringRanges();
}

void CudaTableCopy::BringRanges() {
  const std::uint64_t all = std::uint64_t{1} << range_bits;
  DeviceArray<std::byte> library(bytes_, &stream_);
  DeviceArray<std::uint64_t> count(bytes_, &stream_);
  count.Reserve(1);
  CallCubWith(&library, "DeviceReduce", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceReduce::Sum(storage, bytes, device_marks.data(), count.data(), all, stream_);
  });
  const std::uint64_t marked = BringOne(count);
  DeviceArray<std::uint32_t> device_ranges(bytes_, &stream_);
  device_ranges.Reserve(marked);
  CallCubWith(&library, "DeviceSelect", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceSelect::Flagged(storage, bytes, thrust::counting_iterator<std::uint32_t>(0),
                                      device_marks.data(), device_ranges.data(), count.data(),
                                      static_cast<std::int64_t>(all), stream_);
  });
  ranges_ = HugeMemory(marked * sizeof(std::uint32_t));
  Bring(device_ranges, marked, ranges_.data());
  ranges = {reinterpret_cast<const std::uint32_t*>(ranges_.data()), marked};
}

std::uint64_t CudaTableCopy::BringOne(const DeviceArray<std::uint64_t>& from) const {
  std::uint64_t number = 0;
  CheckCuda(cudaMemcpyAsync(&number, from.data(), sizeof number, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync to the host");
  CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return number;
}

std::vector<std::uint32_t> CudaTableCopy::NamedCells(std::uint64_t cell_bytes) const {
  std::vector<std::uint32_t> names(1);
  if (items == 0) return names;
  const CurrentDevice current = executor_.Activate();
  DeviceArray<std::byte> library(bytes_, &stream_);
  DeviceArray<std::uint64_t> highest(bytes_, &stream_);
  highest.Reserve(1);
  CallCubWith(&library, "DeviceReduce", [&](void* storage, std::size_t& bytes) {
    return cub::DeviceReduce::Max(storage, bytes, device_references.data(), highest.data(), items,
                                  stream_);
  });
  names.resize(BringOne(highest) / cell_bytes / 32 + 1);
  DeviceArray<std::uint32_t> device_names(bytes_, &stream_);
  device_names.Reserve(names.size());
  CheckCuda(cudaMemsetAsync(device_names.data(), 0, names.size() * sizeof names[0], stream_),
            "cudaMemsetAsync");
  Launch("NameCells", NameCells, kGridStrideBlocks, kBlockThreads, stream_,
         device_references.data(), items, cell_bytes, device_names.data());
  Bring(device_names, names.size(), reinterpret_cast<std::byte*>(names.data()));
  return names;
}

void CudaExecutor::LoadCopyKernels() {
  LoadKernelsBeside(reinterpret_cast<const void*>(MarkRanges));
}

std::unique_ptr<TableCopy> CudaExecutor::MakeCopy(const CopyShape& shape) {
  const CurrentDevice current = Activate();
  return std::make_unique<CudaTableCopy>(*this, shape, &memory_);
}

bool CudaExecutor::TakeCopy(TableCopy* copy) {
  const CurrentDevice current = Activate();
  auto* const taken = static_cast<CudaTableCopy*>(copy);
  AwaitBatches();  // which use the marks and the log that the copy may get
  const AwaitAtEnd ended(*stream_);
  Fill(taken->counts.data(), 0, 2);
  const std::uint64_t logged = log_.data() == nullptr ? 0 : LoggedKeys();
  taken->log_whole = log_.data() != nullptr && logged <= log_room_;
  taken->of_logged = taken->shape.logged_only && taken->log_whole;
  const ItemArrays to{taken->device_keys.data(), taken->device_references.data(),
                      taken->shape.room,         taken->counts.data(),
                      taken->counts.data() + 1,  taken->shape.changes_only};
  const auto launch = [&](const char* name, std::uint64_t threads, auto* kernel,
                          const auto&... arguments) {
    if (threads == 0) return;
    Launch(name, kernel,
           std::min<std::uint64_t>(kGridStrideBlocks, BlocksFor(threads, kBlockThreads)),
           kBlockThreads, *stream_, context_, arguments..., to);
  };
  if (taken->of_logged) {
    launch("CopyLogged", logged, CopyLogged, log_keys_.data(), logged);
  } else {
    ForEachScanned(context_.table, context_.accelerators.directory,
                   [&](const ScannedBuckets& buckets) {
                     launch("CopyItems", buckets.count * context_.table.slots, CopyItems, buckets);
                   });
  }
  std::uint64_t counts[2];
  CheckCuda(cudaMemcpyAsync(counts, taken->counts.data(), sizeof counts, cudaMemcpyDeviceToHost,
                            *stream_),
            "cudaMemcpyAsync to the host");
  Synchronize();
  taken->total = counts[0];
  taken->items = counts[1];
  if (taken->items > taken->shape.room) return false;
  if (taken->shape.log_room > 0) {
    ChangeLogs(taken);
    taken->logged = taken->log_whole ? logged : 0;
  }
  if (taken->shape.range_bits == 0) return true;
  std::swap(marks_, taken->device_marks);
  taken->range_bits = std::exchange(range_bits_, taken->shape.range_bits);
  context_.table.changes = Changes();
  return true;
}

std::uint64_t CudaExecutor::LoggedKeys() const {
  const CurrentDevice current = Activate();
  std::uint64_t logged = 0;
  CheckCuda(
      cudaMemcpyAsync(&logged, log_count_.data(), sizeof logged, cudaMemcpyDeviceToHost, *stream_),
      "cudaMemcpyAsync to the host");
  CheckCuda(cudaStreamSynchronize(*stream_), "cudaStreamSynchronize");
  return logged;
}

void CudaExecutor::ChangeLogs(CudaTableCopy* copy) {
  const ChangeLog log{.keys = copy->log_keys.data(),
                      .logged = copy->log_count.data(),
                      .recent = copy->log_recent.data(),
                      .room = copy->shape.log_room,
                      .recent_mask = ChangeLog::RecentFor(copy->shape.log_room) - 1,
                      .key_words = copy->shape.key_words};
  log_.Reserve(1);
  CheckCuda(cudaMemcpyAsync(log_.data(), &log, sizeof log, cudaMemcpyHostToDevice, *stream_),
            "cudaMemcpyAsync to the device");
  Synchronize();
  std::swap(log_keys_, copy->log_keys);
  std::swap(log_count_, copy->log_count);
  std::swap(log_recent_, copy->log_recent);
  log_room_ = copy->shape.log_room;
  context_.table.log = log_.data();
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
  DeviceArray<std::uint8_t> added(&memory_, &stream);
  added.Reserve(ranges);
  CheckCuda(cudaMemcpyAsync(added.data(), marks, ranges, cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync to the device");
  Launch("MarkRanges", MarkRanges, kGridStrideBlocks, kBlockThreads, stream, Changes(),
         ChangeMap{added.data(), range_bits});
  CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

std::uint64_t CudaExecutor::IndexBytes(std::uint64_t items, const IndexShape& shape) const {
  return DeviceIndex::BytesFor(items, shape);
}

std::unique_ptr<SearchIndex> CudaExecutor::MakeIndex(const TableCopy& copy, const IndexShape& shape,
                                                     std::uint64_t version) {
  const CurrentDevice current = Activate();
  if (!DeviceIndex::HasRoom(copy.items, shape)) return nullptr;
  try {
    return std::make_unique<DeviceIndex>(*this, &memory_, static_cast<const CudaTableCopy&>(copy),
                                         shape, version);
  } catch (const Error& error) {
    // (Should it not be for want of memory, what comes next says so.)
    if (error.code() != ErrorCode::kGpu) throw;
    return nullptr;
  }
}

}  // namespace gpm
