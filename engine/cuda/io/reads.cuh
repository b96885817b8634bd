#ifndef GPM_ENGINE_CUDA_IO_READS_CUH_
#define GPM_ENGINE_CUDA_IO_READS_CUH_

#include <cooperative_groups.h>

#include <cub/block/block_scan.cuh>

#include "engine/cuda/io/address_order.cuh"

namespace gpm {

/// Copies a value for each thread of a warp that has one to be copied; tiles take turns, four
/// values in flight each. All threads of the warp call it.
/// @tparam kShared others may write the source meanwhile; it is 16-byte aligned
/// @param source null: this thread has none
template <bool kShared>
__device__ inline void CopyValues(const std::byte* source, std::byte* target,
                                  std::uint32_t value_size) {
  constexpr std::uint32_t kTilesOfWarp = 32 / kTileLanes;
  constexpr std::uint32_t kInFlight = 4;  // more takes registers that kernels beside are short of
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t at = 16 * (lane % kTileLanes); at < RoundUp(value_size, 16 * kTileLanes);
       at += 16 * kTileLanes) {
#pragma unroll 1
    for (std::uint32_t turn = 0; turn < kTileLanes; turn += kInFlight) {
      uint4 chunk[kInFlight];
#pragma unroll
      for (std::uint32_t r = 0; r < kInFlight; ++r) {
        const std::uint32_t owner = (turn + r) * kTilesOfWarp + lane / kTileLanes;
        const auto from = reinterpret_cast<const std::byte*>(
            __shfl_sync(~0u, reinterpret_cast<std::uintptr_t>(source), owner));
        if (from == nullptr || at >= value_size) continue;
        const auto counted = CountPm(PmPlace::kValues, PmAccess::kRead, from + at, sizeof(uint4));
        chunk[r] = kShared ? __ldcv(reinterpret_cast<const uint4*>(from + at))
                           : LoadChunk(from + at, value_size - at);
        counted.End(chunk[r].x);
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kInFlight; ++r) {
        const std::uint32_t owner = (turn + r) * kTilesOfWarp + lane / kTileLanes;
        const bool any = __shfl_sync(~0u, source != nullptr ? 1 : 0, owner) != 0;
        const auto to = reinterpret_cast<std::byte*>(
            __shfl_sync(~0u, reinterpret_cast<std::uintptr_t>(target), owner));
        if (any && at < value_size) StoreChunk(to + at, chunk[r], value_size - at);
      }
    }
  }
}

/// Makes a read, by a tile.
__device__ inline void ReadOne(const TableView& table, const DeviceBatch& batch,
                               std::uint64_t read) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  CudaMedia(DirtyLog{})
      .ReadCell(group, batch.FoundOf(static_cast<std::uint32_t>(read), table.value_size),
                table.Cell((read >> 32) * table.cell_bytes), table.value_size);
}

using CacheOfLane = CacheAccess<ThreadGroup, CudaMedia>;

/// Copies a value from the cache, or else from its cell. All threads of a warp call it.
/// @param value what was found; one that has no bytes is looked for where it says
/// @param target null: this thread has nothing to copy
/// @return whether the cache still had it
__device__ inline bool CopyFromCache(const TableContext& context, CacheOfLane::Value value,
                                     std::byte* target) {
  const TableView& table = context.table;
  const ThreadGroup alone;
  const CudaMedia media(DirtyLog{});
  const CacheOfLane cache(context.accelerators.cache, table, alone, media);
  bool hit = false;
  bool tries = target != nullptr;
  // (A refresh that counts up `fills` ends what all have found that are under way.)
#pragma unroll 1
  for (bool again = false; __any_sync(~0u, tries); again = true) {
    if (tries && (again || value.bytes == nullptr)) value = cache.At(value.at, value.cell);
    CopyValues<true>(tries ? value.bytes : nullptr, target, table.value_size);
    __syncwarp();
    hit = hit || (tries && value.bytes != nullptr && cache.IsCurrent(value));
    tries = tries && !hit && !again && cache.IsOutdated(value);
  }
  if (target != nullptr && !hit) {
    media.ReadCell(alone, target, table.Cell(value.cell * table.cell_bytes), table.value_size);
  }
  return hit;
}

/// The same of a value that was planned to be taken from there.
__device__ inline bool CopyPlanned(const TableContext& context, const ReadPlan& plan,
                                   std::byte* target) {
  CacheOfLane::Value value;
  value.at = plan.number();
  value.cell = plan.cell;
  return CopyFromCache(context, value, target);
}

/// Asks that a row be copied when everything is read, for each thread that wants one. All threads
/// of a block call it.
/// @param source the operation that reads the value
/// @param target the thread's operation
__device__ inline void AddCopies(const Reads& reads, bool wants, std::uint32_t source,
                                 std::uint32_t target) {
  using Scan = cub::BlockScan<std::uint32_t, kBlockThreads>;
  __shared__ Scan::TempStorage storage;
  __shared__ std::uint32_t first;
  if (__syncthreads_or(wants) == 0) return;
  std::uint32_t rank = 0;
  std::uint32_t all = 0;
  Scan(storage).ExclusiveSum(wants ? 1 : 0, rank, all);
  if (threadIdx.x == 0) first = atomicAdd(reads.copies.count, all);
  __syncthreads();
  if (wants) reads.copies.rows[first + rank] = std::uint64_t{source} << 32 | target;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_READS_CUH_
