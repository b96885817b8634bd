#ifndef GPM_CACHE_MEMORY_H_
#define GPM_CACHE_MEMORY_H_

#include <utility>

#include "cache/policy.h"
#include "cache/refresh.h"

namespace gpm {

/// The memory of a directory, a cache and its refreshes, in an executor.
///
/// @tparam Array<T> owns elements there: Reserve(count), data()
/// @tparam Values the same of bytes; or it stays (kStays): Reserve(count, whole) takes addresses
template <template <class> class Array, class Values = Array<std::byte>>
struct CacheMemory {
  static constexpr bool kValuesStay = requires { Values::kStays; };

  CacheMemory() = default;
  /// @param memory what arrays are made of, or where they count it @param of_array the rest of what
  /// an Array is made with
  template <class Memory, class... OfArray>
  explicit CacheMemory(Memory* memory, const OfArray&... of_array)
      : fingerprints(memory, of_array...),
        drained(memory, of_array...),
        entries(memory, of_array...),
        frame_of(memory, of_array...),
        bucket_of(memory, of_array...),
        scores(memory, of_array...),
        histogram(memory, of_array...),
        free(memory, of_array...),
        pending(memory, of_array...),
        fills(memory, of_array...),
        values(memory),
        state(memory, of_array...) {}

  // The directory.
  Array<std::uint16_t> fingerprints, drained;
  Array<std::byte> entries;
  // The cache and its refreshes.
  Array<std::uint32_t> frame_of, bucket_of, scores, histogram, free, pending, fills;
  Values values;
  Array<CacheRefreshState> state;
  CacheShape shape;
  CachePolicy policy = CachePolicy::kOff;

  /// Makes room. What it then holds has to be set: frame_of, scores, histogram and fills to 0,
  /// bucket_of to kNoBucket, the tags in entries to kClosed; and the directory made.
  void Reserve(const CacheShape& of, CachePolicy with_policy) {
    ReserveDirectory(of);
    ReserveCache(with_policy);
  }
  void ReserveDirectory(const CacheShape& of) {
    shape = of;
    if (shape.buckets == 0) return;
    fingerprints.Reserve(std::uint64_t{shape.buckets} * shape.stride);
    entries.Reserve(shape.buckets * shape.bytes_of_entries());
  }
  void ReserveCache(CachePolicy with_policy) {
    policy = with_policy;
    if (shape.frames == 0) return;
    ReserveBuckets();
    bucket_of.Reserve(shape.frames);
    free.Reserve(shape.frames);
    pending.Reserve(shape.frames);
    if constexpr (kValuesStay) {
      values.Reserve(shape.values_bytes(), shape.limited);
    } else {
      values.Reserve(shape.values_bytes());
    }
  }
  /// Makes room for the fingerprints of the level that is being drained, so many buckets.
  void ReserveDrained(std::uint64_t buckets) { drained.Reserve(buckets * shape.stride); }

  /// Whether TakeOver can make a directory of this shape out of this one.
  bool Precedes(const CacheShape& later) const {
    return shape.buckets != 0 && later.buckets != 0 && shape.stride == later.stride &&
           shape.slots == later.slots && shape.key_words == later.key_words &&
           shape.value_stride == later.value_stride;
  }
  /// Fills the directory from that of a table that had one level less, and of which the oldest is
  /// drained from now on, while no batch runs. Reads no slots: the reserved level and the levels
  /// that stay have the same order, and the new one, which comes last, is empty.
  /// REQUIRES: before.Precedes(shape); ReserveDirectory and ReserveDrained.
  /// @param drained_buckets of the level that is to be drained, the first ones of `before` behind
  ///        those of the reserved level
  /// @param copy copy(to, from, elements) @param fill fill(to, byte, elements)
  template <class Copy, class Fill>
  void TakeOver(const CacheMemory& before, std::uint32_t drained_buckets, const Copy& copy,
                const Fill& fill) {
    copy(drained.data(), before.fingerprints.data() + std::uint64_t{kReserved} * shape.stride,
         std::uint64_t{drained_buckets} * shape.stride);
    static_assert(DirectoryView::kEmpty == 0 && CacheView::kClosed == 0xFFFFFFFF);
    const TakenOver taken{before.shape.buckets, drained_buckets, shape.buckets};
    taken.Take(fingerprints.data(), before.fingerprints.data(), shape.stride, 0, copy, fill);
    taken.Take(entries.data(), before.entries.data(), shape.bytes_of_entries(), 0xFF, copy, fill);
  }

  /// Whether TakeOverCache can keep the frames of this one.
  bool HasFramesFor(const CacheShape& later) const {
    return shape.frames != 0 && later.frames >= shape.frames;
  }
  /// The same for the cache: buckets that stay keep their frames and scores. Then KeepFrame is to
  /// be called for each frame that there was. REQUIRES: TakeOver; before->HasFramesFor(shape); no
  /// refresh is under way. Makes the room.
  /// @param before may lose its frames
  template <class Copy, class Fill>
  void TakeOverCache(CacheMemory* before, std::uint32_t drained_buckets, const Copy& copy,
                     const Fill& fill) {
    const std::uint64_t frames = before->shape.frames;
    if (shape.frames == frames) {
      policy = before->policy;
      ReserveBuckets();
      std::swap(bucket_of, before->bucket_of);
      std::swap(free, before->free);
      std::swap(pending, before->pending);
      std::swap(values, before->values);
    } else {
      if constexpr (kValuesStay) std::swap(values, before->values);
      ReserveCache(before->policy);
      copy(bucket_of.data(), before->bucket_of.data(), frames);
      if constexpr (!kValuesStay) {
        copy(values.data(), before->values.data(), before->shape.values_bytes());
      }
      fill(bucket_of.data() + frames, 0xFF, shape.frames - frames);
    }
    const TakenOver taken{before->shape.buckets, drained_buckets, shape.buckets};
    taken.Take(frame_of.data(), before->frame_of.data(), 1, 0, copy, fill);
    taken.Take(scores.data(), before->scores.data(), 1, 0, copy, fill);
    fill(histogram.data(), 0, CacheRefresh::kRanks);
    fill(fills.data(), 0, 1);
  }

  Accelerators View() const {
    Accelerators view;
    if (shape.buckets == 0) return view;
    view.directory.fingerprints = fingerprints.data();
    view.directory.stride = shape.stride;
    view.directory.entries = entries.data();
    view.directory.entry_bytes = DirectoryView::EntryBytes(shape.key_words);
    if (shape.frames == 0) return view;
    view.cache.frame_of = frame_of.data();
    view.cache.bucket_of = bucket_of.data();
    view.cache.scores = scores.data();
    view.cache.tags = view.directory.TagAt(0);
    view.cache.tag_stride = view.directory.entry_bytes / sizeof(std::uint32_t);
    view.cache.values = values.data();
    view.cache.fills = fills.data();
    view.cache.value_stride = shape.value_stride;
    view.cache.size = shape.frames;
    view.cache.holds_all = shape.frames >= shape.buckets;
    view.cache.policy = policy;
    return view;
  }

  CacheRefresh Refresh(const CacheView& view, const CacheAgeing& ageing) const {
    return CacheRefresh{view,        shape.buckets,  ageing,      histogram.data(),
                        free.data(), pending.data(), state.data()};
  }

 private:
  static constexpr std::uint32_t kReserved = TableView::kReservedBuckets;
  /// What becomes of arrays by a bucket's index when a level is drained from now on.
  struct TakenOver {
    std::uint64_t before, drained, buckets;

    /// @param of_bucket elements of each @param new_byte of buckets that are new
    template <class T, class Copy, class Fill>
    void Take(T* to, const T* from, std::uint64_t of_bucket, int new_byte, const Copy& copy,
              const Fill& fill) const {
      const std::uint64_t stay = before - drained;
      copy(to, from, kReserved * of_bucket);
      copy(to + kReserved * of_bucket, from + (kReserved + drained) * of_bucket,
           (stay - kReserved) * of_bucket);
      fill(to + stay * of_bucket, new_byte, (buckets - stay) * of_bucket);
    }
  };
  void ReserveBuckets() {
    frame_of.Reserve(shape.buckets);
    scores.Reserve(shape.buckets);
    fills.Reserve(1);
    histogram.Reserve(CacheRefresh::kRanks);
    state.Reserve(1);
  }
};

}  // namespace gpm

#endif  // GPM_CACHE_MEMORY_H_
