#ifndef GPM_CACHE_MEMORY_H_
#define GPM_CACHE_MEMORY_H_

#include <atomic>

#include "cache/policy.h"
#include "cache/refresh.h"

namespace gpm {

/// The memory of a directory, a cache and its refreshes, in an executor.
///
/// @tparam Array<T> owns elements there: Reserve(count), data()
template <template <class> class Array>
struct CacheMemory {
  CacheMemory() = default;
  /// @param total_bytes where arrays count what they allocate
  explicit CacheMemory(std::atomic<std::uint64_t>* total_bytes)
      : fingerprints(total_bytes),
        cells(total_bytes),
        references(total_bytes),
        keys(total_bytes),
        frame_of(total_bytes),
        bucket_of(total_bytes),
        scores(total_bytes),
        tags(total_bytes),
        histogram(total_bytes),
        free(total_bytes),
        pending(total_bytes),
        fills(total_bytes),
        values(total_bytes),
        state(total_bytes) {}

  // The directory.
  Array<std::uint16_t> fingerprints;
  Array<std::uint32_t> cells;
  Array<std::uint64_t> references, keys;
  // The cache and its refreshes.
  Array<std::uint32_t> frame_of, bucket_of, scores, tags, histogram, free, pending, fills;
  Array<std::byte> values;
  Array<CacheRefreshState> state;
  CacheShape shape;
  CachePolicy policy = CachePolicy::kOff;

  /// Makes room. What it then holds has to be set: frame_of, scores, histogram and fills to 0,
  /// bucket_of to kNoBucket, tags to kClosed; and the directory made.
  void Reserve(const CacheShape& of, CachePolicy with_policy) {
    shape = of;
    policy = with_policy;
    const std::uint64_t slots = std::uint64_t{shape.buckets} * shape.slots;
    if (shape.buckets == 0) return;
    fingerprints.Reserve(std::uint64_t{shape.buckets} * shape.stride);
    if (shape.value_stride == 0) {
      references.Reserve(slots);
    } else {
      cells.Reserve(slots);
    }
    if (shape.key_words != 0) keys.Reserve(slots * shape.key_words);
    if (shape.frames == 0) return;
    frame_of.Reserve(shape.buckets);
    scores.Reserve(shape.buckets);
    bucket_of.Reserve(shape.frames);
    free.Reserve(shape.frames);
    pending.Reserve(shape.frames);
    fills.Reserve(1);
    tags.Reserve(std::uint64_t{shape.frames} * shape.slots);
    values.Reserve(std::uint64_t{shape.frames} * shape.slots * shape.value_stride);
    histogram.Reserve(CacheRefresh::kRanks);
    state.Reserve(1);
  }

  Accelerators View() const {
    Accelerators view;
    if (shape.buckets == 0) return view;
    view.directory.fingerprints = fingerprints.data();
    view.directory.cells = shape.value_stride == 0 ? nullptr : cells.data();
    view.directory.references = shape.value_stride == 0 ? references.data() : nullptr;
    view.directory.keys = shape.key_words != 0 ? keys.data() : nullptr;
    view.directory.stride = shape.stride;
    if (shape.frames == 0) return view;
    view.cache.frame_of = frame_of.data();
    view.cache.bucket_of = bucket_of.data();
    view.cache.scores = scores.data();
    view.cache.tags = tags.data();
    view.cache.values = values.data();
    view.cache.fills = fills.data();
    view.cache.value_stride = shape.value_stride;
    view.cache.size = shape.frames;
    view.cache.policy = policy;
    return view;
  }

  CacheRefresh Refresh(const CacheView& view, const CacheAgeing& ageing) const {
    return CacheRefresh{view,        shape.buckets,  ageing,      histogram.data(),
                        free.data(), pending.data(), state.data()};
  }
};

}  // namespace gpm

#endif  // GPM_CACHE_MEMORY_H_
