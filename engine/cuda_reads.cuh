#ifndef GPM_ENGINE_CUDA_READS_CUH_
#define GPM_ENGINE_CUDA_READS_CUH_

#include <cooperative_groups.h>

#include <cub/block/block_scan.cuh>

#include "engine/cuda_report.cuh"

namespace gpm {

/// Values that a batch reads from persistent memory together, in the order of their addresses and
/// each once: beyond 512 MiB, reads in any order are bound by address translations, ordered ones by
/// the link (DESIGN section 9). Cells are ordered as far as it matters: by *bin*, of which a pool
/// of some GiB has one for each 128 KiB or so.
///
/// Search kernels plan the reads (Reads::Plan); PlaceBins, PlaceReads, ReadValues and CopyReads
/// carry them out.
struct ReadPlan {
  // What `place` is:
  static constexpr std::uint32_t kKinds = 3u << 30;
  static constexpr std::uint32_t kRead = 0;           ///< the read's number within the bin
  static constexpr std::uint32_t kCopy = 1u << 30;    ///< the operation that reads the same cell
  static constexpr std::uint32_t kCached = 2u << 30;  ///< the slot of a block of the cache

  std::uint32_t cell = 0;  ///< number of the value's cell; 0, which no value has: nothing to read
  std::uint32_t place = 0;

  __device__ bool Is(std::uint32_t kind) const { return cell != 0 && (place & kKinds) == kind; }
  __device__ std::uint32_t number() const { return place & ~kKinds; }
};

/// The memory of that: a trivially copyable view.
struct Reads {
  static constexpr std::uint32_t kBins = 1u << 15;
  static constexpr std::uint32_t kAll = kBins;         ///< reads
  static constexpr std::uint32_t kCopies = kBins + 1;  ///< not 0 if some plan is kCopy
  static constexpr std::uint32_t kCached = kBins + 2;  ///< or kCached
  static constexpr std::uint32_t kSums = 4;
  static constexpr std::uint64_t kMaxOperations = std::uint64_t{1} << 30;

  ReadPlan* plans = nullptr;         ///< of each operation; null: values are read at once
  std::uint32_t* bins = nullptr;     ///< reads in each, or, placed, before it; then these sums:
  std::uint64_t* claims = nullptr;   ///< hash table: cell << 32 | the operation that reads it
  std::uint64_t* ordered = nullptr;  ///< likewise, placed
  std::uint32_t bin_shift = 0;       ///< cell >> bin_shift is its bin
  std::uint32_t claim_bits = 0;      ///< log2 of the hash table's size: more than operations

  __device__ ReadPlan PlanFirst(std::uint32_t cell) const {
    return ReadPlan{cell, ReadPlan::kRead | atomicAdd(&bins[cell >> bin_shift], 1u)};
  }
  /// The same where other operations may want the same value.
  __device__ ReadPlan Plan(std::uint32_t cell, std::uint32_t operation) const {
    const std::uint64_t mine = std::uint64_t{cell} << 32 | operation;
    std::uint32_t at = (cell * 0x9E3779B1u) >> (32 - claim_bits);
    for (;; at = (at + 1) & ((1u << claim_bits) - 1)) {
      std::uint64_t claim = AtomicLoad(claims + at);
      if (claim == 0) {
        claim = atomicCAS(reinterpret_cast<unsigned long long*>(claims + at), 0ull, mine);
        if (claim == 0) return PlanFirst(cell);
      }
      if (claim >> 32 == cell) {
        return ReadPlan{cell, ReadPlan::kCopy | static_cast<std::uint32_t>(claim)};
      }
    }
  }
};

/// Threads of the one block of PlaceBins.
inline constexpr std::uint32_t kPlacingThreads = 1024;

/// Makes of the number of reads in each bin where they begin, and their sum.
__global__ void __launch_bounds__(kPlacingThreads) PlaceBins(const __grid_constant__ Reads reads) {
  using Scan = cub::BlockScan<std::uint32_t, kPlacingThreads>;
  constexpr std::uint32_t kPerThread = Reads::kBins / kPlacingThreads;
  __shared__ Scan::TempStorage storage;
  alignas(16) std::uint32_t counts[kPerThread];
  auto* const own = reinterpret_cast<uint4*>(reads.bins + threadIdx.x * kPerThread);
  for (std::uint32_t k = 0; k < kPerThread / 4; ++k) {
    reinterpret_cast<uint4*>(counts)[k] = own[k];
  }
  std::uint32_t total = 0;
  Scan(storage).ExclusiveSum(counts, counts, total);
  for (std::uint32_t k = 0; k < kPerThread / 4; ++k) {
    own[k] = reinterpret_cast<const uint4*>(counts)[k];
  }
  if (threadIdx.x == 0) reads.bins[Reads::kAll] = total;
}

/// Puts the reads in order.
__global__ void __launch_bounds__(kBlockThreads)
    PlaceReads(const __grid_constant__ Reads reads, std::uint32_t operations) {
  if (reads.bins[Reads::kAll] == 0) return;
  for (std::uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x; i < operations;
       i += gridDim.x * kBlockThreads) {
    const ReadPlan plan = reads.plans[i];
    if (!plan.Is(ReadPlan::kRead)) continue;
    reads.ordered[reads.bins[plan.cell >> reads.bin_shift] + plan.number()] =
        std::uint64_t{plan.cell} << 32 | i;
  }
}

/// Copies a value for each thread of a warp that has one to be copied, a tile for four of them in
/// turn. All threads of the warp take part.
/// @tparam kShared others may write the source meanwhile; it is 16-byte aligned
/// @param source null: this thread has none
template <bool kShared>
__device__ inline void CopyValues(const std::byte* source, std::byte* target,
                                  std::uint32_t value_size) {
  constexpr std::uint32_t kTilesOfWarp = 32 / kTileLanes;
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t at = 16 * (lane % kTileLanes); at < RoundUp(value_size, 16 * kTileLanes);
       at += 16 * kTileLanes) {
    uint4 chunk[kTileLanes];
    for (std::uint32_t r = 0; r < kTileLanes; ++r) {
      const auto from = reinterpret_cast<const std::byte*>(__shfl_sync(
          ~0u, reinterpret_cast<std::uintptr_t>(source), r * kTilesOfWarp + lane / kTileLanes));
      if (from == nullptr || at >= value_size) continue;
      chunk[r] = kShared ? __ldcv(reinterpret_cast<const uint4*>(from + at))
                         : LoadChunk(from + at, value_size - at);
    }
    for (std::uint32_t r = 0; r < kTileLanes; ++r) {
      const std::uint32_t owner = r * kTilesOfWarp + lane / kTileLanes;
      const bool any = __shfl_sync(~0u, source != nullptr ? 1 : 0, owner) != 0;
      const auto to = reinterpret_cast<std::byte*>(
          __shfl_sync(~0u, reinterpret_cast<std::uintptr_t>(target), owner));
      if (any && at < value_size) StoreChunk(to + at, chunk[r], value_size - at);
    }
  }
}

/// Reads what was planned, by the first `reading_blocks` blocks: few, so that few pages are in use
/// at a time. The others copy what the cache has meanwhile.
__global__ void __launch_bounds__(kBlockThreads)
    ReadValues(const __grid_constant__ TableContext context,
               const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
               std::uint32_t reading_blocks) {
  const TableView& table = context.table;
  const CudaMedia media(DirtyLog{});
  if (blockIdx.x < reading_blocks) {
    const CudaTile group(
        cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
    const std::uint32_t total = reads.bins[Reads::kAll];
    const std::uint32_t step = reading_blocks * kTilesPerBlock;
    std::uint32_t p = blockIdx.x * kTilesPerBlock + threadIdx.x / kTileLanes;
    std::uint64_t next = p < total ? reads.ordered[p] : 0;
    for (; p < total; p += step) {
      const std::uint64_t read = next;
      if (p + step < total) next = reads.ordered[p + step];  // in flight meanwhile
      media.ReadCell(group, batch.FoundOf(static_cast<std::uint32_t>(read), table.value_size),
                     table.Cell((read >> 32) * table.cell_bytes), table.value_size);
    }
    return;
  }
  if (reads.bins[Reads::kCached] == 0) return;
  const ThreadGroup alone;
  const CacheAccess<ThreadGroup, CudaMedia> cache(context.accelerators.cache, table, alone, media);
  std::uint32_t hits = 0;
  const std::uint32_t threads = (gridDim.x - reading_blocks) * kBlockThreads;
  for (std::uint32_t first = (blockIdx.x - reading_blocks) * kBlockThreads; first < batch.count;
       first += threads) {
    const std::uint32_t i = first + threadIdx.x;
    CacheAccess<ThreadGroup, CudaMedia>::Value value;
    std::byte* target = nullptr;
    bool hit = false;
    if (i < batch.count && reads.plans[i].Is(ReadPlan::kCached)) {
      hit = cache.At(reads.plans[i].number(), reads.plans[i].cell, &value);
      target = batch.FoundOf(i, table.value_size);
    }
    CopyValues<true>(hit ? value.bytes : nullptr, target, table.value_size);
    __syncwarp();
    hit = hit && cache.IsCurrent(value);
    if (target != nullptr && !hit) {  // it was there when the key was looked up, and is no more
      media.ReadCell(alone, target, table.Cell(reads.plans[i].cell * table.cell_bytes),
                     table.value_size);
    }
    hits += hit ? 1 : 0;
  }
  for (int step = 16; step > 0; step /= 2) hits += __shfl_xor_sync(~0u, hits, step);
  if (threadIdx.x % 32 == 0 && hits != 0) AtomicAdd(&batch.sums->cache_hits, hits);
}

/// Copies what several operations wanted from the one that read it.
__global__ void __launch_bounds__(kBlockThreads)
    CopyReads(const __grid_constant__ TableContext context,
              const __grid_constant__ DeviceBatch batch, const __grid_constant__ Reads reads,
              const __grid_constant__ Reporter reporter) {
  const std::uint32_t value_size = context.table.value_size;
  const std::uint32_t end = reads.bins[Reads::kCopies] == 0 ? 0 : batch.count;
  for (std::uint32_t first = blockIdx.x * kBlockThreads; first < end;
       first += gridDim.x * kBlockThreads) {
    const std::uint32_t i = first + threadIdx.x;
    const std::byte* source = nullptr;
    if (i < batch.count && reads.plans[i].Is(ReadPlan::kCopy)) {
      source = batch.FoundOf(reads.plans[i].number(), value_size);
    }
    if (!__any_sync(~0u, source != nullptr)) continue;
    CopyValues<false>(source, source == nullptr ? nullptr : batch.FoundOf(i, value_size),
                      value_size);
  }
  ReportWhenLast(context, reporter);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_READS_CUH_
