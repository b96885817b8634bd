#ifndef GPM_ENGINE_CPU_ACCELERATORS_H_
#define GPM_ENGINE_CPU_ACCELERATORS_H_

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/cpu/executor.h"
#include "pm/clock.h"

/// What of the cpu executor keeps the directory and the cache.
namespace gpm {

template <class Setup>
void CpuExecutor<Setup>::SetAccelerators(const CacheShape& shape, CachePolicy policy,
                                         std::uint32_t used) {
  accelerators_ = {};
  cache_memory_ = {};
  cache_memory_.Reserve(shape, policy);
  accelerators_ = cache_memory_.View();
  ClearCache();
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(used, Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i < last; ++i) {
      operations.directory().Build(static_cast<std::uint32_t>(i));
    }
  });
  std::fill_n(accelerators_.directory.fingerprints + std::uint64_t{used} * shape.stride,
              std::uint64_t{shape.buckets - used} * shape.stride, DirectoryView::kEmpty);
}

template <class Setup>
void CpuExecutor<Setup>::ClearCache() {
  const CacheView& cache = accelerators_.cache;
  std::fill_n(cache.bucket_of, cache.size, CacheView::kNoBucket);
  const CacheShape& shape = cache_memory_.shape;
  for (std::uint64_t i = 0; cache.enabled() && i < std::uint64_t{shape.buckets} * shape.slots;
       ++i) {
    *cache.TagAt(i) = CacheView::kClosed;
  }
}

template <class Setup>
bool CpuExecutor<Setup>::FollowGrowth(const TableView& table, const CacheShape& shape,
                                      CachePolicy policy) {
  if (!accelerators_.directory.enabled() || !cache_memory_.Precedes(shape)) return false;
  const auto drained = static_cast<std::uint32_t>(table.Buckets(table.levels));
  const auto copy = [](auto* to, const auto* from, std::uint64_t count) {
    std::copy_n(from, count, to);
  };
  const auto fill = [](auto* to, int byte, std::uint64_t count) {
    std::memset(to, byte, count * sizeof *to);
  };
  const bool keeps = cache_memory_.HasFramesFor(shape);
  const std::uint32_t frames = cache_memory_.shape.frames;
  HostCacheMemory next;
  try {
    next.ReserveDirectory(shape);
    next.ReserveDrained(drained);
    next.TakeOver(cache_memory_, drained, copy, fill);
    if (keeps) {
      next.TakeOverCache(&cache_memory_, drained, copy, fill);
    } else {
      next.ReserveCache(policy);
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  SetTable(table, false);
  cache_memory_ = std::move(next);
  accelerators_ = cache_memory_.View();
  accelerators_.directory.drained = cache_memory_.drained.data();
  for (std::uint32_t i = 0; keeps && i < frames; ++i) {
    KeepFrame(accelerators_.cache, i, drained);
  }
  if (!keeps) ClearCache();
  return true;
}

template <class Setup>
void CpuExecutor<Setup>::BeginDraining() {
  if (!accelerators_.directory.enabled() || accelerators_.directory.drained != nullptr) return;
  try {
    cache_memory_.ReserveDrained(table_.Buckets(table_.levels));
  } catch (const std::bad_alloc&) {
    return;
  }
  accelerators_.directory.drained = cache_memory_.drained.data();
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(table_.Buckets(table_.levels), Setup::kBucketsAtATime,
            [&](std::uint64_t first, std::uint64_t last) {
              for (std::uint64_t b = first; b < last; ++b) operations.directory().BuildDrained(b);
            });
}

template <class Setup>
CacheRefresh CpuExecutor<Setup>::NextRefresh(std::uint64_t uses) {
  CacheView view = accelerators_.cache;
  view.clock = AtomicLoad32(&clock_);
  return cache_memory_.Refresh(view, TinyLfuPolicy::AgeingOf(++refreshes_, uses, view.size));
}

template <class Setup>
void CpuExecutor<Setup>::OpenCache() {
  const CacheRefresh refresh = cache_memory_.Refresh(accelerators_.cache, {});
  *refresh.state = {};
  ForEachOf(refresh.cache.size, [&](std::uint32_t frame) { refresh.OpenFrame(frame); });
  ForEachOf(refresh.buckets, [&](std::uint32_t bucket) { refresh.OpenBucket(media_, bucket); });
  ForEachOf(refresh.buckets,
            [&](std::uint32_t bucket) { refresh.OpenSlots(media_, bucket, table_.slots); });
}

template <class Setup>
void CpuExecutor<Setup>::RefreshCache(std::uint64_t uses) {
  const auto start = Clock::now();
  const CacheRefresh refresh = NextRefresh(uses);
  const ThreadGroup group;
  const CacheAccess<ThreadGroup, Media> access(refresh.cache, table_, group, media_);
  ForEachOf(refresh.buckets,
            [&](std::uint32_t bucket) { refresh.CountBucket(bucket, refresh.histogram); });
  refresh.ChooseThreshold();
  ForEachOf(refresh.cache.size,
            [&](std::uint32_t frame) { refresh.EvictCold(access, media_, frame); });
  ForEachOf(refresh.buckets, [&](std::uint32_t bucket) { refresh.AssignHot(media_, bucket); });
  ForEachOf(refresh.ToFill(),
            [&](std::uint32_t i) { access.Fill(accelerators_.directory, refresh.FrameToFill(i)); });
  refresh_seconds_ = SecondsSince(start);
}

template <class Setup>
void CpuExecutor<Setup>::AgeCache(std::uint64_t uses) {
  const CacheRefresh refresh = NextRefresh(uses);
  ForEachOf(refresh.buckets, [&](std::uint32_t bucket) { refresh.AgeBucket(bucket); });
}

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_ACCELERATORS_H_
