#ifndef GPM_CACHE_REFRESH_H_
#define GPM_CACHE_REFRESH_H_

#include <algorithm>
#include <cstdint>

#include "table/value_cache.h"

namespace gpm {

/// How the frozen cache is refreshed (GPHash section 3.3), a step for each bucket or frame, written
/// once for both executors. Batches run meanwhile.
///
///   1. CountBucket for every bucket, then ChooseThreshold: which are hot enough, without sorting.
///   2. EvictCold for every frame: what is not hot enough any more is free then.
///   3. AssignHot for every bucket: hot ones get a free frame. (The first bucket's counts up
///   `fills`.)
///   4. Fill (CacheAccess) for each frame, the hottest first: they save the most.
///
/// Buckets that stay hot keep their frames, in which nothing is filled but what they lack.
/// Selection is by a histogram of scores: exact but for buckets that are equally hot, of which any
/// may be taken, and for scores beyond its end.

/// The state of a refresh, in the executor's memory.
struct CacheRefreshState {
  std::uint32_t threshold;     ///< hot enough: a higher rank than this, or
  std::uint32_t ties_allowed;  ///< this one, and one of so many
  std::uint32_t ties;
  std::uint32_t hottest;  ///< ranks above it are filled first
  std::uint32_t freed;    ///< entries of CacheRefresh::free
  std::uint32_t taken;    ///< of those
  // Entries of CacheRefresh::pending: frames to be filled first from its front on, others from its
  // back on.
  std::uint32_t at_front;
  std::uint32_t at_back;

  GPM_HD bool IsHot(std::uint32_t rank) {
    if (rank != threshold) return rank > threshold;
    return rank != 0 && AtomicNext(&ties) < ties_allowed;
  }
};

/// The memory of a refresh, beside the cache: a trivially copyable view.
struct CacheRefresh {
  static constexpr std::uint32_t kRanks = CachePolicies::kRanks;
  /// So large a share of the frames is filled first. (Of Zipf 0.99 over 16 M items, the hottest
  /// 32nd of the buckets get more than half of the finds.)
  static constexpr std::uint32_t kFirstShare = 32;

  CacheView cache;
  std::uint32_t buckets = 0;  ///< by index
  CacheAgeing ageing;         ///< of this refresh
  std::uint32_t* histogram;   ///< kRanks, all 0 when one begins
  std::uint32_t* free;        ///< frames that no bucket has
  std::uint32_t* pending;     ///< frames of hot buckets
  CacheRefreshState* state;

  /// How hot a bucket is, 0 (never cached) to kRanks - 1.
  GPM_HD std::uint32_t Rank(std::uint32_t bucket) const {
    const std::uint32_t score = AtomicLoad32(&cache.scores[bucket]);
    std::uint32_t rank = 0;
    AllCachePolicies::With(
        cache.policy, [&](auto policy) { rank = policy.Rank(cache, bucket, score, ageing.seed); });
    return rank;
  }

  /// @param counts kRanks, which come to `histogram` in the end
  GPM_HD void CountBucket(std::uint32_t bucket, std::uint32_t* counts) const {
    const std::uint32_t rank = Rank(bucket);
    if (rank != 0) AtomicAdd32(&counts[rank], 1);
  }

  GPM_HD void AgeBucket(std::uint32_t bucket) const {
    AllCachePolicies::With(cache.policy,
                           [&](auto policy) { policy.Age(bucket, &cache.scores[bucket], ageing); });
  }

  /// By one thread, after all buckets were counted.
  GPM_HD void ChooseThreshold() const {
    std::uint32_t above = 0;
    std::uint32_t rank = kRanks - 1;
    std::uint32_t hottest = rank;
    for (; rank > 0 && above + histogram[rank] <= cache.size; --rank) {
      above += histogram[rank];
      if (above <= cache.size / kFirstShare) hottest = rank - 1;
    }
    *state = CacheRefreshState{};
    state->threshold = rank;
    state->hottest = hottest;
    state->ties_allowed = rank == 0 ? 0 : cache.size - above;
    for (std::uint32_t r = 0; r < kRanks; ++r) histogram[r] = 0;
  }

  template <class Group, class Media>
  GPM_HD void EvictCold(const CacheAccess<Group, Media>& access, const Media& media,
                        std::uint32_t frame) const {
    static_assert(Group::kSize == 1);
    const std::uint32_t bucket = cache.bucket_of[frame];
    if (bucket != CacheView::kNoBucket) {
      // (It is not filled if the refresh that assigned it failed half-way.)
      if (access.IsFilled(frame) && state->IsHot(Rank(bucket))) return;
      access.Close(frame);
      media.StoreShared(cache.frame_of + bucket, std::uint32_t{0});
      cache.bucket_of[frame] = CacheView::kNoBucket;
    }
    free[AtomicNext(&state->freed)] = frame;
  }

  template <class Media>
  GPM_HD void AssignHot(const Media& media, std::uint32_t bucket) const {
    if (bucket == 0) media.StoreShared(cache.fills, media.LoadShared(cache.fills) + 1);
    const std::uint32_t rank = Rank(bucket);
    AgeBucket(bucket);
    std::uint32_t frame = media.LoadShared(cache.frame_of + bucket);
    if (frame == 0 && !(state->IsHot(rank) && TakeFree(media, bucket, &frame))) return;
    --frame;
    const std::uint32_t at = rank > state->hottest ? AtomicNext(&state->at_front)
                                                   : cache.size - 1 - AtomicNext(&state->at_back);
    pending[at] = frame;
  }

  // Before the first refresh, where each bucket has a frame (CacheView::opens): a step for each
  // frame, then two for each bucket, with a state of zeros. From then on writers put their values
  // into the frames.

  GPM_HD void OpenFrame(std::uint32_t frame) const {
    if (cache.bucket_of[frame] == CacheView::kNoBucket) free[AtomicNext(&state->freed)] = frame;
  }

  template <class Media>
  GPM_HD void OpenBucket(const Media& media, std::uint32_t bucket) const {
    std::uint32_t frame = 0;
    if (media.LoadShared(cache.frame_of + bucket) == 0) TakeFree(media, bucket, &frame);
  }

  template <class Media>
  GPM_HD void OpenSlots(const Media& media, std::uint32_t bucket, std::uint32_t slots) const {
    if (media.LoadShared(cache.frame_of + bucket) == 0) return;
    for (std::uint32_t s = 0; s < slots; ++s) {
      std::uint32_t* const tag = cache.TagAt(std::uint64_t{bucket} * slots + s);
      if (media.LoadShared(tag) == CacheView::kClosed) media.StoreShared(tag, +CacheView::kNone);
    }
  }

  /// Frames in which something may have to be filled, after all buckets were assigned.
  GPM_HD std::uint32_t ToFill() const { return state->at_front + state->at_back; }
  /// The i-th of them.
  GPM_HD std::uint32_t FrameToFill(std::uint32_t i) const {
    return pending[i < state->at_front ? i : cache.size - 1 - (i - state->at_front)];
  }

 private:
  /// Gives a bucket a free frame. @param frame that, + 1 @return false where there is none
  template <class Media>
  GPM_HD bool TakeFree(const Media& media, std::uint32_t bucket, std::uint32_t* frame) const {
    const std::uint32_t place = AtomicNext(&state->taken);
    if (place >= state->freed) return false;
    *frame = free[place] + 1;
    cache.bucket_of[*frame - 1] = bucket;
    media.StoreShared(cache.frame_of + bucket, *frame);
    return true;
  }
};

/// What becomes of a frame when the first `drained` buckets behind those of the reserved level are
/// not addressable any more, and others are counted from there on (CacheMemory::TakeOverCache).
GPM_HD inline void KeepFrame(const CacheView& cache, std::uint32_t frame, std::uint32_t drained) {
  std::uint32_t* const bucket = cache.bucket_of + frame;
  if (*bucket < TableView::kReservedBuckets) return;
  const bool stays =
      *bucket != CacheView::kNoBucket && *bucket >= TableView::kReservedBuckets + drained;
  *bucket = stays ? *bucket - drained : CacheView::kNoBucket;
}

/// What an executor needs to fill frames, where it does not fill them one by one.
struct CacheFillShape {
  std::uint32_t frames_at_once = 0;
  std::uint32_t bytes_per_slot = 0;  ///< of those
};

/// How large a directory and a cache are.
struct CacheShape {
  std::uint32_t buckets = 0;       ///< by TableView's index; 0: no directory
  std::uint32_t stride = 0;        ///< fingerprints of a bucket
  std::uint32_t slots = 0;         ///< of a bucket
  std::uint32_t key_words = 0;     ///< of a key in the directory; 0: keys are not there
  std::uint32_t frames = 0;        ///< 0: no cache
  std::uint32_t value_stride = 0;  ///< 0 where values are inline
  bool limited = false;            ///< it takes no byte more than it says
  CacheFillShape fill;

  /// The entries of a bucket (DirectoryView).
  std::uint64_t bytes_of_entries() const {
    return std::uint64_t{slots} * DirectoryView::EntryBytes(key_words);
  }
  // Of their memory, in all of their arrays.
  std::uint64_t directory_bytes() const {
    return buckets * (stride * sizeof(std::uint16_t) + bytes_of_entries());
  }
  std::uint64_t fixed_bytes() const {
    return (2 * std::uint64_t{buckets} + CacheRefresh::kRanks) * sizeof(std::uint32_t) +
           sizeof(CacheRefreshState) + sizeof(std::uint32_t);
  }
  std::uint64_t bytes_per_frame() const {
    return std::uint64_t{slots} * value_stride + 3 * sizeof(std::uint32_t);
  }
  std::uint64_t values_bytes() const { return std::uint64_t{frames} * slots * value_stride; }
  /// Slots that a refresh fills at once.
  std::uint64_t slots_at_once() const {
    return std::uint64_t{std::min(frames, fill.frames_at_once)} * slots;
  }
  std::uint64_t cache_bytes() const {
    return frames == 0
               ? 0
               : fixed_bytes() + frames * bytes_per_frame() + slots_at_once() * fill.bytes_per_slot;
  }
  /// The most frames of which the cache takes so many bytes, besides fixed_bytes().
  std::uint64_t FramesIn(std::uint64_t bytes) const {
    const std::uint64_t of_frame = std::uint64_t{slots} * fill.bytes_per_slot;
    const std::uint64_t few = bytes / (bytes_per_frame() + of_frame);
    if (few < fill.frames_at_once) return few;
    return (bytes - fill.frames_at_once * of_frame) / bytes_per_frame();
  }
};

}  // namespace gpm

#endif  // GPM_CACHE_REFRESH_H_
