#ifndef GPM_ENGINE_CUDA_KERNELS_MAINTENANCE_CUH_
#define GPM_ENGINE_CUDA_KERNELS_MAINTENANCE_CUH_

#include <cooperative_groups.h>

#include "engine/cuda/io/report.cuh"
#include "recovery/slot_scan.h"
#include "table/composing.h"
#include "table/displacing.h"
#include "table/draining.h"

namespace gpm {

/// The kernels of the cuda executor that maintain the table: queues, and passes over it.

/// Gives back erased slots.
__global__ void GiveBackSlots(const __grid_constant__ TableContext context,
                              Epochs::SlotRange slots) {
  const std::uint64_t thread = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
  const LaneOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, ThreadGroup{}, CudaMedia(context.dirty));
  operations.RecycleSlots(slots.from + thread, slots.to, std::uint64_t{gridDim.x} * blockDim.x);
}

/// Queues free cells that a batch was granted and left.
__global__ void QueueCells(const __grid_constant__ TableContext context) {
  context.reclaim.ReturnCells(blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x,
                              std::uint64_t{gridDim.x} * blockDim.x);
}

/// Queues those of the granted cells again that are named, or those that are not.
__global__ void QueueNamedCells(const __grid_constant__ TableContext context,
                                const std::uint32_t* names, std::uint64_t words, bool named) {
  context.reclaim.ReturnNamed(names, words, named,
                              blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x,
                              std::uint64_t{gridDim.x} * blockDim.x);
}

/// Copies cells between their queue and an array, to be sorted there.
__global__ void TakeOutCells(const __grid_constant__ Reclaim reclaim, CellGrant cells,
                             std::uint32_t* array) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < cells.count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    array[i] = reclaim.cell_ring[(cells.first + i) & reclaim.cell_mask];
  }
}
__global__ void PutBackCells(const __grid_constant__ Reclaim reclaim, CellGrant cells,
                             const std::uint32_t* array) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < cells.count;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    reclaim.cell_ring[(cells.first + i) & reclaim.cell_mask] = array[i];
  }
}

/// Tells the host how a batch went, where no kernel of the batch does. One warp.
__global__ void ReportBatch(const __grid_constant__ TableContext context,
                            const __grid_constant__ Reporter reporter) {
  if (threadIdx.x == 0) ClearNextSums(reporter);
  Send(HalfOfReport(context, reporter), reporter);
}

/// Visits the slots of some buckets, a thread each.
__global__ void ScanBuckets(const __grid_constant__ TableContext context,
                            const __grid_constant__ SlotScan pass,
                            const __grid_constant__ ScannedBuckets buckets) {
  const LaneOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, ThreadGroup{}, CudaMedia(context.dirty));
  const std::uint64_t slots = buckets.count << context.table.slot_bits;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < slots;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    ScanSlot(operations, pass, buckets, i >> context.table.slot_bits,
             static_cast<std::uint32_t>(i & (context.table.slots - 1)));
  }
}

/// Drains `buckets` buckets from `first_bucket` on, a tile each.
__global__ void __launch_bounds__(kBlockThreads)
    DrainBuckets(const __grid_constant__ TableContext context, std::byte* first_bucket,
                 std::uint64_t buckets, bool displaces, std::uint64_t* left) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(context.dirty);
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, media);
  for (std::uint64_t b = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       b < buckets; b += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    const std::uint64_t stayed =
        DrainBucket(operations, first_bucket + b * context.table.bucket_bytes, displaces);
    if (stayed > 0 && group.IsLeader()) AtomicAdd(left, stayed);
  }
}

/// Frees slots for the operations of a batch that lack one, a tile for each.
__global__ void __launch_bounds__(kBlockThreads)
    MakeSlotsForBatch(const __grid_constant__ TableContext context,
                      const __grid_constant__ DeviceBatch batch, std::uint64_t most,
                      SlotsMade* counts) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(context.dirty));
  for (std::uint64_t i = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       i < batch.count; i += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    const auto operation = static_cast<std::uint32_t>(i);
    const std::uint64_t* const key = batch.KeyOf(operation, context.table.key_words);
    MakeSlotFor(operations, batch.KindOf(operation), operations.Locate(key), key, most, counts);
  }
}

/// Puts the items of the oldest level into the newest one, which is in GPU memory, a thread for
/// each slot: neighbours read what lies side by side in the pool.
__global__ void __launch_bounds__(kBlockThreads)
    ComposeSlots(const __grid_constant__ TableContext context, const std::byte* buckets,
                 std::uint64_t* left) {
  using Unnamed = UnnamedMedia<CudaMedia>;
  const Operations<ThreadGroup, Unnamed> operations(context.table, context.reclaim, context.locks,
                                                    context.accelerators, ThreadGroup{},
                                                    Unnamed(CudaMedia(DirtyLog{})));
  const TableView& table = context.table;
  const std::uint32_t oldest = table.level_count - 1;
  const std::uint64_t slots = table.Buckets(oldest) << table.slot_bits;
  std::uint64_t stayed = 0;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < slots;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t bucket = i >> table.slot_bits;
    const auto index = static_cast<std::uint32_t>(i & (table.slots - 1));
    // (It is only read.)
    const Slot read{const_cast<std::byte*>(buckets) + bucket * table.bucket_bytes, index};
    stayed += ComposeSlot(operations, Slot{table.Bucket(oldest, bucket), index}, read) ? 0 : 1;
  }
  if (stayed > 0) AtomicAdd(left, stayed);
}

/// MoveCells in `buckets` buckets from `first_bucket` on, a tile each.
__global__ void __launch_bounds__(kBlockThreads)
    MoveCellsOfBuckets(const __grid_constant__ TableContext context, std::byte* first_bucket,
                       std::uint64_t buckets, CellRange range, std::uint64_t* left) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(context.dirty);
  for (std::uint64_t b = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       b < buckets; b += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    const std::uint64_t stayed = MoveCells(context.table, context.reclaim, group, media,
                                           first_bucket + b * context.table.bucket_bytes, range);
    if (stayed > 0 && group.IsLeader()) AtomicAdd(left, stayed);
  }
}

/// Frees the unused cells of a range, a thread for each 32.
__global__ void FreeCells(const __grid_constant__ TableContext context, const std::uint32_t* used,
                          CellRange range) {
  const std::uint64_t words = (range.last + 31) / 32 - range.first / 32;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < words;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    FreeUnusedCells(context.reclaim, used, range.first / 32 + i, range);
  }
}

/// Queues the cells of a range from a position on, in order.
__global__ void QueueRange(const __grid_constant__ Reclaim reclaim, std::uint64_t position,
                           CellRange range) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
       i < range.last - range.first; i += std::uint64_t{gridDim.x} * blockDim.x) {
    reclaim.cell_ring[(position + i) & reclaim.cell_mask] =
        static_cast<std::uint32_t>(range.first + i);
  }
}

/// Copies ring positions [from, to) into another ring.
template <class T>
__global__ void MoveRing(T* other, std::uint64_t other_mask, const T* ring, std::uint64_t mask,
                         std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t i = from + blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < to;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    other[i & other_mask] = ring[i & mask];
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_MAINTENANCE_CUH_
