#ifndef GPM_CACHE_CACHE_LOADER_H_
#define GPM_CACHE_CACHE_LOADER_H_

#include <cstdint>

#include "engine/table/bucket_cache.h"

namespace gpm {

/// How the frozen cache is loaded (GPHash section 3.3), a step for each bucket or copy, written
/// once for both executors. Batches run meanwhile.
///
///   1. CountBucket for every bucket, then ChooseThresholds: which buckets are hot enough for a
///      copy, and which for a block of values, without sorting.
///   2. EvictCold for every copy, then FreeBlock for every block: what is not hot enough any more
///      is free then.
///   3. AssignHot for every bucket: hot ones get a free copy, not filled yet, and a free block.
///   4. When every batch has ended that began before 3 was through (invariant 2 of CacheView):
///      FillPending for each of `pending`.
///
/// Copies and blocks of buckets that stay hot are not touched. Selection is by a histogram of
/// scores: exact but for buckets that are equally hot, of which any may be taken, and for scores
/// beyond its end.

/// Things of one kind that are handed out: copies, or blocks of values.
struct CacheStock {
  std::uint32_t* free;         ///< those that nobody has
  std::uint32_t size = 0;      ///< in all
  std::uint32_t threshold;     ///< hot enough: a higher rank than this, or
  std::uint32_t ties_allowed;  ///< this one, and one of so many
  std::uint32_t ties;
  std::uint32_t freed;  ///< in `free`
  std::uint32_t taken;  ///< of those

  GPM_HD bool IsFor(std::uint32_t rank) {
    if (rank != threshold) return rank > threshold;
    return ties_allowed != 0 && AtomicNext(&ties) < ties_allowed;
  }
  GPM_HD void Free(std::uint32_t which) { free[AtomicNext(&freed)] = which; }
  GPM_HD bool Take(std::uint32_t* which) {
    const std::uint32_t place = AtomicNext(&taken);
    if (place >= freed) return false;
    *which = free[place];
    return true;
  }
};

/// A copy to be filled, and the block that it gets, + 1; 0: none.
struct CachePending {
  std::uint32_t copy;
  std::uint32_t block;
};

/// The state of a loading, in the executor's memory.
struct CacheLoadState {
  CacheStock copies;
  CacheStock blocks;
  std::uint32_t pending;  ///< entries of CacheLoad::pending
};

/// The loader's memory, beside the cache: a trivially copyable view.
struct CacheLoad {
  static constexpr std::uint32_t kRanks = 4096;

  CacheView cache;
  std::uint32_t buckets = 0;  ///< addressable
  std::uint32_t seed = 0;     ///< of this loading, where nothing is kept of uses
  std::uint32_t* histogram;   ///< kRanks
  std::uint32_t* owner_of;    ///< of blocks: a copy + 1; 0: nobody's
  CachePending* pending;      ///< one for each copy
  CacheLoadState* state;

  /// How hot a bucket is, 0 (not used: no block for it, and a copy only where there is room for all
  /// that are used) to kRanks - 1.
  GPM_HD std::uint32_t Rank(std::uint32_t index) const {
    const std::uint32_t score = AtomicLoad32(&cache.scores[index]);
    if (cache.score == CacheScore::kNothing) {
      const std::uint64_t mixed = Scramble((std::uint64_t{seed} << 32) | index);
      return 1 + static_cast<std::uint32_t>(mixed % (kRanks - 1));
    }
    if (score == 0) return 0;
    if (cache.score == CacheScore::kUses) {
      // Who has a block keeps it against one that is hardly hotter: chance decides between them,
      // and blocks would change hands, and be filled, at every loading.
      const std::uint64_t rank = HasBlock(index) ? std::uint64_t{score} + score / 4 : score;
      return rank < kRanks ? static_cast<std::uint32_t>(rank) : kRanks - 1;
    }
    // A batch that began after the loading is younger than its clock.
    const auto age = static_cast<std::int32_t>(cache.clock - score);
    if (age <= 0) return kRanks - 1;
    return static_cast<std::uint32_t>(age) < kRanks - 1
               ? kRanks - 1 - static_cast<std::uint32_t>(age)
               : 1;
  }

  GPM_HD void CountBucket(std::uint32_t index) const {
    const std::uint32_t rank = Rank(index);
    if (rank != 0) AtomicAdd32(&histogram[rank], 1);
  }

  /// By one thread, after all buckets were counted. Leaves the histogram zero.
  GPM_HD void ChooseThresholds() const {
    ChooseThreshold(&state->copies, true);
    ChooseThreshold(&state->blocks, false);
    state->pending = 0;
    for (std::uint32_t r = 0; r < kRanks; ++r) histogram[r] = 0;
  }

  template <class Media>
  GPM_HD void EvictCold(const Media& media, std::uint32_t copy) const {
    const std::uint32_t index = media.LoadShared(cache.bucket_of + copy);
    if (index == CacheView::kNoBucket) {
      state->copies.Free(copy);
      return;
    }
    const std::uint32_t block = media.LoadShared(cache.block_of + copy);
    const std::uint32_t rank = Rank(index);
    const bool keeps_copy = state->copies.IsFor(rank);
    const bool loses_block = block != 0 && !(keeps_copy && state->blocks.IsFor(rank));
    if (keeps_copy && !loses_block) return;
    std::uint32_t version;
    for (;;) {
      version = media.LoadShared(cache.versions + copy);
      if ((version & CacheView::kLocked) == 0 &&
          media.CasShared(Step::kCacheFillLock, cache.versions + copy, version,
                          version | CacheView::kLocked)) {
        break;
      }
      media.Wait();
    }
    if (block != 0) media.StoreShared(cache.block_of + copy, std::uint32_t{0});
    if (!keeps_copy) {
      media.StoreShared(cache.slot_of + index, std::uint32_t{0});
      media.StoreShared(cache.bucket_of + copy, CacheView::kNoBucket);
      version |= CacheView::kUnfilled;
    }
    media.FenceShared();
    media.StoreShared(cache.versions + copy, version + CacheView::kChange);
    if (block != 0) owner_of[block - 1] = 0;
    if (!keeps_copy) state->copies.Free(copy);
  }

  GPM_HD void FreeBlock(std::uint32_t block) const {
    if (owner_of[block] == 0) state->blocks.Free(block);
  }

  template <class Media>
  GPM_HD void AssignHot(const Media& media, std::uint32_t index) const {
    const std::uint32_t rank = Rank(index);
    if (cache.score == CacheScore::kUses) {
      const std::uint32_t uses = AtomicLoad32(&cache.scores[index]);
      AtomicAdd32(&cache.scores[index], uses / 2 - uses);
    }
    std::uint32_t copy = media.LoadShared(cache.slot_of + index) - 1;
    const bool had_copy = copy != ~0u;
    if (!had_copy && !(state->copies.IsFor(rank) && state->copies.Take(&copy))) return;
    const bool has_block = had_copy && media.LoadShared(cache.block_of + copy) != 0;
    std::uint32_t block = 0;
    const bool gets_block = !has_block && state->blocks.IsFor(rank) && state->blocks.Take(&block);
    if (had_copy && !gets_block) return;
    if (gets_block) owner_of[block] = copy + 1;
    if (!had_copy) {
      media.StoreShared(cache.bucket_of + copy, index);
      media.FenceShared();
      media.StoreShared(cache.slot_of + index, copy + 1);
    }
    pending[AtomicNext(&state->pending)] = CachePending{copy, gets_block ? block + 1 : 0};
  }

  template <class Group, class Media>
  GPM_HD void FillPending(const CacheAccess<Group, Media>& access, std::uint32_t i) const {
    access.Fill(pending[i].copy, pending[i].block);
  }

 private:
  GPM_HD bool HasBlock(std::uint32_t index) const {
    const std::uint32_t copy = AtomicLoad32(&cache.slot_of[index]);
    return copy != 0 && AtomicLoad32(&cache.block_of[copy - 1]) != 0;
  }

  GPM_HD void ChooseThreshold(CacheStock* stock, bool for_unused) const {
    std::uint32_t above = 0;
    std::uint32_t rank = kRanks - 1;
    for (; rank > 0 && above + histogram[rank] <= stock->size; --rank) above += histogram[rank];
    stock->threshold = rank;
    stock->ties_allowed = rank == 0 && !for_unused ? 0 : stock->size - above;
    stock->ties = 0;
    stock->freed = 0;
    stock->taken = 0;
  }
};

/// How large a cache is, and how its memory is laid out.
struct CacheShape {
  std::uint32_t buckets = 0;  ///< addressable
  std::uint32_t copies = 0;   ///< 0: no cache
  std::uint32_t blocks = 0;   ///< 0 where values are inline
  std::uint64_t copy_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t value_stride = 0;

  // Of its memory, in all of its arrays.
  std::uint64_t bytes_per_copy() const {
    return copy_bytes + 4 * sizeof(std::uint32_t) + sizeof(CachePending);
  }
  std::uint64_t bytes_per_block() const { return block_bytes + 2 * sizeof(std::uint32_t); }
  std::uint64_t fixed_bytes() const {
    return (2 * std::uint64_t{buckets} + CacheLoad::kRanks) * sizeof(std::uint32_t) +
           sizeof(CacheLoadState);
  }
  std::uint64_t bytes() const {
    return copies == 0 ? 0 : fixed_bytes() + copies * bytes_per_copy() + blocks * bytes_per_block();
  }
};

}  // namespace gpm

#endif  // GPM_CACHE_CACHE_LOADER_H_
