#include <algorithm>
#include <exception>

#include "engine/cuda/executor.h"
#include "engine/cuda/kernels/accelerators.cuh"
#include "engine/cuda/load_kernels.h"
#include "pm/driver_turns.h"
#include "pm/gpu_host.h"

/// What of the cuda executor keeps the directory and the cache.
namespace gpm {
namespace {

/// Blocks that refresh the cache: few, so that batches are hardly slowed down meanwhile.
constexpr unsigned kCacheBlocks = 32;
constexpr unsigned kFillBlocks = 32;
/// Blocks that give out frames, which takes little time.
constexpr unsigned kOpeningBlocks = 128;
/// Frames that are filled in one go: first the hottest, as a rule, then many.
constexpr std::uint32_t kFilledFirst = 1u << 16;
constexpr std::uint32_t kFilledAtOnce = 1u << 19;
/// Memory for values that is taken at a time, while nobody launches, bytes: some 0.15 ms. Many
/// small pieces cost finds more, as each makes the GPU forget translations, presumably.
constexpr std::uint64_t kBackedAtOnce = std::uint64_t{128} << 20;
/// So much of the device's memory, 1 / this, is left to batches and others.
constexpr std::uint64_t kShareLeftFree = 16;
/// Bins by which those are ordered, and what is counted beside (Reads::flags).
constexpr std::uint32_t kFillBins = AddressOrder::kBins + Reads::kFlags;

}  // namespace

/// So much shared memory that a multiprocessor has room for one block of a refresh, and for one of
/// a batch beside it; or none, where there is too little. (Where several of a refresh began on one,
/// while a batch had the others, the next batch's blocks, which begin together, waited for their
/// end: docs/TRIED.md, "Beside a refresh".)
unsigned CudaExecutor::SharedIfAlone() const {
  constexpr int kOfSystem = 1 << 10;  // in each block
  constexpr int kStep = 128;
  int all = 0;
  CheckCuda(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_),
            "cudaDeviceGetAttribute");
  const int alone = all / 2 - kOfSystem + kStep;
  constexpr int kOfCounts = CacheRefresh::kRanks * sizeof(std::uint32_t);  // CountCacheBuckets
  const int room = all - alone - kOfCounts - 2 * kOfSystem;
  return room < static_cast<int>(kMostSharedOfBatch) ? 0 : static_cast<unsigned>(alone);
}

BlockShape CudaExecutor::RefreshBlock() const { return {kBlockThreads, refresh_shared_}; }

void CudaExecutor::PrepareAccelerators() {
  LoadKernelsBeside(reinterpret_cast<const void*>(CountCacheBuckets));
  refresh_shared_ = SharedIfAlone();
  // A multiprocessor divides what it has into cache and shared memory anew only when it is idle:
  // beside these, batches find room for what they share.
  const auto leaves_room = [&](auto* kernel) {
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "cudaFuncSetAttribute");
  };
  const auto is_alone = [&](auto* kernel) {
    leaves_room(kernel);
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(refresh_shared_)),
              "cudaFuncSetAttribute");
  };
  is_alone(CountCacheBuckets);
  is_alone(AgeCacheBuckets);
  is_alone(OpenFrames);
  is_alone(OpenBuckets);
  is_alone(OpenSlots);
  is_alone(EvictFrames);
  is_alone(AssignFrames);
  is_alone(PlanFills);
  is_alone(PlaceReads);
  is_alone(FillFrames);
  leaves_room(ChooseCacheThreshold);
  leaves_room(PlaceBins);
  fill_bins_.Reserve(kFillBins);
  cut_refreshes_.Reserve(1);
  Fill(cut_refreshes_.data(), 0, 1);
}

/// Its arrays are used on other streams, too, by batches and refreshes: AwaitUsesOfCache.
CudaExecutor::CudaCacheMemory CudaExecutor::MakeCacheMemory() {
  return CudaCacheMemory(&memory_, &*stream_);
}

/// Also of what was launched of a refresh that could not be begun.
void CudaExecutor::AwaitUsesOfCache() {
  AwaitBatches();
  CheckCuda(cudaStreamSynchronize(*cache_stream_), "cudaStreamSynchronize");
}

void CudaExecutor::SetAccelerators(const CacheShape& shape, CachePolicy policy,
                                   std::uint32_t used) {
  const CurrentDevice current = Activate();
  StopBacking(true);
  CutCacheRefresh();
  AwaitUsesOfCache();
  context_.accelerators = {};
  has_directory_ = has_cache_ = false;
  CudaCacheMemory next = MakeCacheMemory();
  // What is backed already is taken over, where all of it is wanted.
  if (cache_memory_.values.HasNoMoreThan(shape.values_bytes())) {
    std::swap(next.values, cache_memory_.values);
  }
  cache_memory_ = std::move(next);
  next = MakeCacheMemory();  // gives back what the former one has left
  backs_more_ = false;
  fill_plans_.Clear();
  try {
    cache_memory_.Reserve(shape, policy);
  } catch (const Error&) {  // without what was taken over there may be memory
    cache_memory_ = MakeCacheMemory();
    cache_memory_.Reserve(shape, policy);
  }
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
  BeginBacking();
}

/// Makes the cache's memory one of a cache without values.
void CudaExecutor::ClearCache() {
  const CacheShape& shape = cache_memory_.shape;
  if (shape.frames == 0) return;
  static_assert(CacheView::kNoBucket == 0xFFFFFFFF);
  Fill(cache_memory_.frame_of.data(), 0, shape.buckets);
  Fill(cache_memory_.scores.data(), 0, shape.buckets);
  Fill(cache_memory_.histogram.data(), 0, CacheRefresh::kRanks);
  Fill(cache_memory_.fills.data(), 0, 1);
  Fill(cache_memory_.bucket_of.data(), 0xFF, shape.frames);
  Launch("CloseTags", CloseTags, kGridStrideBlocks, kBlockThreads, *stream_,
         cache_memory_.View().cache, std::uint64_t{shape.buckets} * shape.slots);
}

bool CudaExecutor::FollowGrowth(const TableView& table, const CacheShape& shape,
                                CachePolicy policy) {
  if (!has_directory_ || !cache_memory_.Precedes(shape)) return false;
  const CurrentDevice current = Activate();
  StopBacking(true);
  AwaitUsesOfCache();
  const auto drained = static_cast<std::uint32_t>(table.Buckets(table.levels));
  const auto copy = [this](auto* to, const auto* from, std::uint64_t count) {
    CheckCuda(cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDeviceToDevice, *stream_),
              "cudaMemcpyAsync");
  };
  const auto fill = [this](auto* to, int byte, std::uint64_t count) { Fill(to, byte, count); };
  bool keeps = cache_memory_.HasFramesFor(shape);
  const std::uint32_t frames = cache_memory_.shape.frames;
  try {
    CudaCacheMemory next = MakeCacheMemory();
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
    next = MakeCacheMemory();  // gives back what the former one has left
    if (shape.frames != 0) fill_plans_.Reserve(2 * shape.slots_at_once());
    if (keeps) {
      Launch("KeepFrames", KeepFrames, kCacheBlocks, kBlockThreads, *stream_,
             cache_memory_.View().cache, frames, drained);
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
  BeginBacking();
  return true;
}

void CudaExecutor::BeginDraining() {
  if (!has_directory_ || context_.accelerators.directory.drained != nullptr) return;
  const CurrentDevice current = Activate();
  TableContext context = context_;
  try {
    AwaitBatches();
    cache_memory_.ReserveDrained(context_.table.Buckets(context_.table.levels));
    context.accelerators.directory.drained = cache_memory_.drained.data();
    Launch("BuildDrainedPrints", BuildDrainedPrints, kGridStrideBlocks, kBlockThreads, *stream_,
           context);
    Synchronize();
  } catch (const Error&) {
    return;  // what is wrong with the GPU, the next batch says, too
  }
  // (Only this changes: a refresh beside batches reads the rest.)
  context_.accelerators.directory.drained = context.accelerators.directory.drained;
}

/// A tenth of the GPU's memory for each store, or half of what is free: workspaces need some.
std::uint64_t CudaExecutor::CacheBudget() const {
  const CurrentDevice current = Activate();
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  const CacheShape& shape = cache_memory_.shape;  // of the one that is replaced
  free_bytes += shape.cache_bytes() - shape.values_bytes() + cache_memory_.values.backed();
  return std::min(all_bytes / 10, free_bytes / 2);
}

CacheFillShape CudaExecutor::CacheFill() const {
  return {.frames_at_once = kFilledAtOnce,
          .bytes_per_slot = sizeof(ReadPlan) + sizeof(std::uint64_t)};
}

/// Backs what the cache lacks, beside all else; but when levels are composed, not before the next
/// batch.
void CudaExecutor::BeginBacking() {
  backs_more_ = cache_memory_.values.backed() < cache_memory_.shape.values_bytes();
  ended_backing_ = false;
  if (!backs_more_ || context_.table.composed) return;
  try {
    backer_ = std::jthread([this](const std::stop_token& stop) {
      try {
        UseGpu(device_);
      } catch (const Error&) {  // BackAll comes upon it, too
      }
      BackAll(stop);
    });
  } catch (const std::exception&) {
    BackAll({});
  }
}

/// Batches know the addresses of frames that there is no memory for, and find no bucket there.
const CacheShape* CudaExecutor::BackCache(bool wait) {
  CacheShape& shape = cache_memory_.shape;
  if (!backs_more_) return &shape;
  if (!backer_.joinable() && !ended_backing_) BeginBacking();
  if (!wait && !ended_backing_) return nullptr;
  StopBacking(false);
  backs_more_ = false;
  const std::uint64_t of_frame = shape.values_bytes() / shape.frames;
  const std::uint64_t backed = cache_memory_.values.backed() / of_frame;
  shape.frames = static_cast<std::uint32_t>(std::min<std::uint64_t>(shape.frames, backed));
  return &shape;
}

void CudaExecutor::BackAll(const std::stop_token& stop) {
  BackedMemory& values = cache_memory_.values;
  try {
    const CurrentDevice current = Activate();
    std::size_t free_bytes = 0;
    std::size_t all_bytes = 0;
    CheckCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
    const std::uint64_t room = free_bytes - std::min(free_bytes, all_bytes / kShareLeftFree);
    const std::uint64_t most = std::min(cache_memory_.shape.values_bytes(), values.backed() + room);
    while (!stop.stop_requested() && values.backed() < most) {
      const DriverTurns::Registering turn;
      values.Back(std::min(most, values.backed() + kBackedAtOnce));
    }
  } catch (const std::exception&) {  // fewer frames, then
  }
  ended_backing_ = true;
}

/// Before what it works on changes. @param early not all needs to be there
void CudaExecutor::StopBacking(bool early) {
  if (!backer_.joinable()) return;
  const DriverTurns::Break pause;
  if (early) backer_.request_stop();
  backer_.join();
}

CacheRefresh CudaExecutor::NextRefresh(std::uint64_t uses) {
  CacheView view = context_.accelerators.cache;
  view.size = cache_memory_.shape.frames;
  view.holds_all = view.size >= cache_memory_.shape.buckets;
  view.clock = clock_;
  return cache_memory_.Refresh(view, TinyLfuPolicy::AgeingOf(++refreshes_, uses, view.size));
}

void CudaExecutor::OpenCache() {
  const CurrentDevice current = Activate();
  const CacheRefresh refresh = cache_memory_.Refresh(context_.accelerators.cache, {});
  CheckCuda(cudaMemsetAsync(refresh.state, 0, sizeof *refresh.state, *cache_stream_),
            "cudaMemsetAsync");
  Launch("OpenFrames", OpenFrames, kOpeningBlocks, RefreshBlock(), *cache_stream_, refresh);
  Launch("OpenBuckets", OpenBuckets, kOpeningBlocks, RefreshBlock(), *cache_stream_, refresh);
  Launch("OpenSlots", OpenSlots, kOpeningBlocks, RefreshBlock(), *cache_stream_, refresh,
         context_.table.slots);
}

void CudaExecutor::RefreshCache(std::uint64_t uses) {
  const CurrentDevice current = Activate();
  const CacheRefresh refresh = NextRefresh(uses);
  refreshing_ = true;
  try {
    EnqueueRefresh(refresh);
  } catch (...) {
    cudaStreamSynchronize(*cache_stream_);  // what was launched reads the pool
    refreshing_ = false;
    throw;
  }
}

void CudaExecutor::EnqueueRefresh(const CacheRefresh& refresh) {
  const TableView& table = context_.table;
  CheckCuda(cudaEventRecord(*cache_refresh_begun_, *cache_stream_), "cudaEventRecord");
  // (One that failed half-way may have left its counts.)
  CheckCuda(cudaMemsetAsync(refresh.histogram, 0, CacheRefresh::kRanks * sizeof(std::uint32_t),
                            *cache_stream_),
            "cudaMemsetAsync");
  Launch("CountCacheBuckets", CountCacheBuckets, kCacheBlocks, RefreshBlock(), *cache_stream_,
         refresh);
  Launch("ChooseCacheThreshold", ChooseCacheThreshold, 1, 1, *cache_stream_, refresh);
  Launch("EvictFrames", EvictFrames, kCacheBlocks, RefreshBlock(), *cache_stream_, table, refresh);
  Launch("AssignFrames", AssignFrames, kCacheBlocks, RefreshBlock(), *cache_stream_, refresh);
  Reads reads;
  reads.queues.items = fill_plans_.data();
  reads.plans =
      reinterpret_cast<ReadPlan*>(fill_plans_.data() + cache_memory_.shape.slots_at_once());
  reads.order.bins = fill_bins_.data();
  // (The pool may grow while frames are filled.)
  reads.order.bin_shift = AddressOrder::ShiftFor(mapping_.max_bytes() / table.cell_bytes);
  reads.flags = fill_bins_.data() + AddressOrder::kBins;
  const RefreshCut cut{cut_refreshes_.data(), refreshes_};
  for (std::uint32_t first = 0; first < refresh.cache.size;) {
    const std::uint32_t last =
        std::min(first + (first == 0 ? kFilledFirst : kFilledAtOnce), refresh.cache.size);
    CheckCuda(
        cudaMemsetAsync(fill_bins_.data(), 0, kFillBins * sizeof(std::uint32_t), *cache_stream_),
        "cudaMemsetAsync");
    Launch("PlanFills", PlanFills, kCacheBlocks, RefreshBlock(), *cache_stream_, table,
           context_.accelerators.directory, refresh, reads, first, last, cut);
    Launch("PlaceBins", PlaceBins, 1, kPlacingThreads, *cache_stream_, reads);
    Launch("PlaceReads", PlaceReads, kCacheBlocks, RefreshBlock(), *cache_stream_, reads,
           (last - first) << table.slot_bits);
    Launch("FillFrames", FillFrames, kFillBlocks, RefreshBlock(), *cache_stream_, table,
           context_.accelerators.directory, refresh, reads, first, cut);
    first = last;
  }
  CheckCuda(cudaEventRecord(*cache_refreshed_, *cache_stream_), "cudaEventRecord");
}

void CudaExecutor::AgeCache(std::uint64_t uses) {
  const CurrentDevice current = Activate();
  Launch("AgeCacheBuckets", AgeCacheBuckets, kCacheBlocks, RefreshBlock(), *cache_stream_,
         NextRefresh(uses));
}

double CudaExecutor::CacheRefreshSeconds() {
  const RelaxedCapture relaxed;
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, *cache_refresh_begun_, *cache_refreshed_),
            "cudaEventElapsedTime");
  return milliseconds / 1e3;
}

bool CudaExecutor::CacheRefreshEnded() {
  const RelaxedCapture relaxed;
  const cudaError_t status = cudaEventQuery(*cache_refreshed_);
  if (status == cudaErrorNotReady) return false;
  CheckCuda(status, "cudaEventQuery");
  refreshing_ = false;
  return true;
}

void CudaExecutor::CutCacheRefresh() {
  const CurrentDevice current = Activate();
  CheckCuda(cudaMemcpyAsync(cut_refreshes_.data(), &refreshes_, sizeof refreshes_,
                            cudaMemcpyHostToDevice, *stream_),
            "cudaMemcpyAsync to the device");
  AwaitCacheRefresh();
}

void CudaExecutor::AwaitCacheRefresh() {
  const RelaxedCapture relaxed;
  CheckCuda(cudaEventSynchronize(*cache_refreshed_), "cudaEventSynchronize");
  refreshing_ = false;
}

}  // namespace gpm
