#ifndef GPM_ENGINE_CUDA_KERNELS_DRAINING_CUH_
#define GPM_ENGINE_CUDA_KERNELS_DRAINING_CUH_

#include <cooperative_groups.h>

#include "engine/batch_executor.h"
#include "engine/cuda/context.cuh"
#include "engine/cuda/sync/barriers.cuh"
#include "table/draining.h"

namespace gpm {

/// What a batch does before its own kernels while a level is being drained (table/draining.h): it
/// drains some buckets, and brings the items of its keys up. Who has a key's lock waits for no
/// other, so that those which wait for it go on at some time.

/// Drains the buckets, by so many blocks, a thread for each slot.
__device__ inline void DrainByBlocks(const TableContext& context, const BucketRange& buckets,
                                     std::uint32_t blocks, BatchSums* sums) {
  const TableView& table = context.table;
  const LaneOperations operations(table, context.reclaim, context.locks, context.accelerators,
                                  ThreadGroup{}, CudaMedia(context.dirty));
  const std::uint64_t slots = (buckets.last - buckets.first) << table.slot_bits;
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * kBlockThreads; first < slots;
       first += std::uint64_t{blocks} * kBlockThreads) {
    const std::uint64_t i = first + threadIdx.x;
    Slot slot;
    if (i < slots) {
      slot = {table.Bucket(table.levels, buckets.first + (i >> table.slot_bits)),
              static_cast<std::uint32_t>(i & (table.slots - 1))};
    }
    const bool moved = DrainSlotsBesideBatches(TeamOfTiles<WholeBlock>(), operations, slot);
    if (!moved) AtomicAdd(&sums->undrained, 1);
  }
}

/// Brings the items of up to kTileLanes operations' keys up. Where the directory knows the level's
/// fingerprints, each lane looks at those of one key first, and most are not there.
__device__ inline void BringUpKeys(const TileOperations& operations, const TableContext& context,
                                   const DeviceBatch& batch, std::uint32_t first,
                                   std::uint32_t count) {
  const TableView& table = context.table;
  const CudaTile& group = operations.group();
  bool may_be = group.Lane() < count && first + group.Lane() < batch.count;
  if (may_be && operations.directory().knows_drained()) {
    const LaneOperations lane(table, context.reclaim, context.locks, context.accelerators,
                              ThreadGroup{}, CudaMedia(context.dirty));
    may_be =
        lane.MayBeBelow(lane.Locate(batch.KeyOf(first + group.Lane(), table.key_words)), false);
  }
  for (std::uint32_t rest = group.Ballot(may_be); rest != 0; rest &= rest - 1) {
    const std::uint64_t* const key = batch.KeyOf(first + LowestBit(rest), table.key_words);
    const bool moved = BringUp(operations, operations.Locate(key));
    if (!moved && group.IsLeader()) AtomicAdd(&batch.sums->stuck, 1);
  }
}

/// The first `draining_blocks` blocks drain, a thread for each slot; the others bring up, a tile
/// for each `keys_of_tile` operations.
__global__ void __launch_bounds__(kBlockThreads)
    DrainBesideBatches(const __grid_constant__ TableContext context,
                       const __grid_constant__ DeviceBatch batch, BucketRange buckets,
                       std::uint32_t draining_blocks, std::uint32_t keys_of_tile) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(context.dirty));
  const std::uint32_t tile = threadIdx.x / kTileLanes;
  if (blockIdx.x < draining_blocks) {
    DrainByBlocks(context, buckets, draining_blocks, batch.sums);
    return;
  }
  const std::uint32_t blocks = gridDim.x - draining_blocks;
  const std::uint32_t block = blockIdx.x - draining_blocks;
  for (std::uint64_t i = (std::uint64_t{block} * kTilesPerBlock + tile) * keys_of_tile;
       i < batch.count; i += std::uint64_t{blocks} * kTilesPerBlock * keys_of_tile) {
    BringUpKeys(operations, context, batch, static_cast<std::uint32_t>(i), keys_of_tile);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_DRAINING_CUH_
