#ifndef GPM_ENGINE_CUDA_KERNELS_ACCELERATORS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_ACCELERATORS_CUH_

#include <cooperative_groups.h>

#include "cache/refresh.h"
#include "engine/cuda/io/address_order.cuh"
#include "engine/cuda/io/read_plans.cuh"

namespace gpm {

/// The kernels of the cuda executor that make the directory, and refresh the cache.

/// Makes the directory, a tile for each bucket.
__global__ void __launch_bounds__(kBlockThreads)
    BuildDirectory(const __grid_constant__ TableContext context, std::uint32_t buckets) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(DirtyLog{}));
  for (std::uint64_t i = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       i < buckets; i += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    operations.directory().Build(static_cast<std::uint32_t>(i));
  }
}

/// The same for what it knows of the level that is being drained.
__global__ void __launch_bounds__(kBlockThreads)
    BuildDrainedPrints(const __grid_constant__ TableContext context) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const TileOperations operations(context.table, context.reclaim, context.locks,
                                  context.accelerators, group, CudaMedia(DirtyLog{}));
  const std::uint64_t buckets = context.table.Buckets(context.table.levels);
  for (std::uint64_t b = blockIdx.x * std::uint64_t{kTilesPerBlock} + threadIdx.x / kTileLanes;
       b < buckets; b += std::uint64_t{gridDim.x} * kTilesPerBlock) {
    operations.directory().BuildDrained(b);
  }
}

// The steps of a refresh of the cache (cache/refresh.h).

/// So many blocks would fit on a multiprocessor by their registers, few enough that one fits beside
/// blocks that begin together (kBesideTogether, kFindingBesideRefresh). By their shared memory one
/// does (CudaExecutor::SharedIfAlone).
inline constexpr int kRefreshBlocks = 8;

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    CountCacheBuckets(const __grid_constant__ CacheRefresh refresh) {
  // In shared memory first: most buckets are of a few ranks, and while all add to those in global
  // memory, whatever else is done there takes several times as long.
  __shared__ std::uint32_t counts[CacheRefresh::kRanks];
  for (std::uint32_t r = threadIdx.x; r < CacheRefresh::kRanks; r += blockDim.x) counts[r] = 0;
  __syncthreads();
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.buckets;
       i += gridDim.x * blockDim.x) {
    refresh.CountBucket(i, counts);
  }
  __syncthreads();
  for (std::uint32_t r = threadIdx.x; r < CacheRefresh::kRanks; r += blockDim.x) {
    if (counts[r] != 0) atomicAdd(&refresh.histogram[r], counts[r]);
  }
}

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    AgeCacheBuckets(const __grid_constant__ CacheRefresh refresh) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.buckets;
       i += gridDim.x * blockDim.x) {
    refresh.AgeBucket(i);
  }
}

__global__ void ChooseCacheThreshold(const __grid_constant__ CacheRefresh refresh) {
  refresh.ChooseThreshold();
}

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    EvictFrames(const __grid_constant__ TableView table,
                const __grid_constant__ CacheRefresh refresh) {
  const CudaMedia media(DirtyLog{});
  const ThreadGroup group;
  const CacheAccess<ThreadGroup, CudaMedia> access(refresh.cache, table, group, media);
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.cache.size;
       i += gridDim.x * blockDim.x) {
    refresh.EvictCold(access, media, i);
  }
}

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    AssignFrames(const __grid_constant__ CacheRefresh refresh) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.buckets;
       i += gridDim.x * blockDim.x) {
    refresh.AssignHot(CudaMedia(DirtyLog{}), i);
  }
}

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    OpenFrames(const __grid_constant__ CacheRefresh refresh) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.cache.size;
       i += gridDim.x * blockDim.x) {
    refresh.OpenFrame(i);
  }
}

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    OpenBuckets(const __grid_constant__ CacheRefresh refresh) {
  const CudaMedia media(DirtyLog{});
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.buckets;
       i += gridDim.x * blockDim.x) {
    refresh.OpenBucket(media, i);
  }
}

__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    OpenSlots(const __grid_constant__ CacheRefresh refresh, std::uint32_t slots) {
  const CudaMedia media(DirtyLog{});
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < refresh.buckets;
       i += gridDim.x * blockDim.x) {
    refresh.OpenSlots(media, i, slots);
  }
}

/// Makes the tags of so many slots those of buckets that have no frame, while no batch runs.
__global__ void CloseTags(const __grid_constant__ CacheView cache, std::uint64_t slots) {
  for (std::uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < slots;
       i += gridDim.x * blockDim.x) {
    *cache.TagAt(i) = CacheView::kClosed;
  }
}

/// For when a level is drained from now on: KeepFrame.
__global__ void KeepFrames(const __grid_constant__ CacheView cache, std::uint32_t frames,
                           std::uint32_t drained) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < frames;
       i += gridDim.x * blockDim.x) {
    KeepFrame(cache, i, drained);
  }
}

// Frames are filled many at a time, in the order of the values' addresses: a value costs its
// address translation (SmQueues), and in that order many share one. (2 GB of values took 206 ms
// frame by frame, beside finds which took 2.5 times as long meanwhile.)

/// Tells the kernels that fill frames, all of one refresh, whether to end early. What is planned
/// then, and not read, is left as it was.
struct RefreshCut {
  const std::uint32_t* up_to;  ///< those with this number, or a lower one, are to
  std::uint32_t refresh;

  __device__ bool IsAsked() const {
    return static_cast<std::int32_t>(AtomicLoad32(up_to) - refresh) >= 0;
  }
};

/// Plans how the slots of frames [first, last) to be filled are read: as operations of `reads`, by
/// number from `first` on. Those that are closed, and have no value, can be written from then on.
__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    PlanFills(const __grid_constant__ TableView table,
              const __grid_constant__ DirectoryView directory,
              const __grid_constant__ CacheRefresh refresh, const __grid_constant__ Reads reads,
              std::uint32_t first, std::uint32_t last, const __grid_constant__ RefreshCut cut) {
  const std::uint32_t end = refresh.ToFill();
  if (end <= first) return;
  const CudaMedia media(DirtyLog{});
  const ThreadGroup alone;
  const CacheAccess<ThreadGroup, CudaMedia> access(refresh.cache, table, alone, media);
  const std::uint32_t slots = (last - first) << table.slot_bits;
  bool ends = false;
  for (std::uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < slots;
       k += gridDim.x * blockDim.x) {
    const std::uint32_t i = first + (k >> table.slot_bits);
    ReadPlan plan;
    const bool is_cut = cut.IsAsked();  // for the next slot, so that nothing waits for it
    if (i < end && !ends) {
      const std::uint32_t frame = refresh.FrameToFill(i);
      const std::uint32_t s = k & (table.slots - 1);
      if (access.IsToFill(frame, s)) {
        const std::uint32_t cell = access.CellToFill(directory, refresh.cache.bucket_of[frame], s);
        if (cell != CacheView::kNone) {
          plan = reads.PlanFirst(cell, k);
        } else {
          access.FillSlot(directory, frame, s);
        }
      }
    }
    reads.plans[k] = plan;
    ends = is_cut;
  }
}

/// Makes the reads that PlanFills planned and PlaceReads placed, a tile each. A block has
/// neighbours in their order: each multiprocessor translates addresses for itself.
__global__ void __launch_bounds__(kBlockThreads, kRefreshBlocks)
    FillFrames(const __grid_constant__ TableView table,
               const __grid_constant__ DirectoryView directory,
               const __grid_constant__ CacheRefresh refresh, const __grid_constant__ Reads reads,
               std::uint32_t first, const __grid_constant__ RefreshCut cut) {
  const CudaTile group(
      cooperative_groups::tiled_partition<kTileLanes>(cooperative_groups::this_thread_block()));
  const CudaMedia media(DirtyLog{});
  const CacheAccess<CudaTile, CudaMedia> access(refresh.cache, table, group, media);
  const std::uint64_t total = reads.flags[Reads::kAll];
  const auto end = static_cast<std::uint32_t>(total * (blockIdx.x + 1) / gridDim.x);
  std::uint32_t ends = 0;
  for (auto p =
           static_cast<std::uint32_t>(total * blockIdx.x / gridDim.x) + threadIdx.x / kTileLanes;
       p < end && ends == 0; p += kTilesPerBlock) {
    const std::uint32_t is_cut = cut.IsAsked() ? 1 : 0;
    const auto k = static_cast<std::uint32_t>(reads.queues.items[p]);
    access.FillSlot(directory, refresh.FrameToFill(first + (k >> table.slot_bits)),
                    k & (table.slots - 1));
    ends = group.Broadcast(is_cut);
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_ACCELERATORS_CUH_
