#ifndef GPM_CACHE_CACHE_MEMORY_H_
#define GPM_CACHE_CACHE_MEMORY_H_

#include <atomic>

#include "cache/cache_loader.h"
#include "cache/cache_options.h"

namespace gpm {

/// The memory of a cache and of its loader, in an executor.
///
/// @tparam Array<T> owns elements there: Reserve(count), data()
template <template <class> class Array>
struct CacheMemory {
  CacheMemory() = default;
  /// @param total_bytes where arrays count what they allocate
  explicit CacheMemory(std::atomic<std::uint64_t>* total_bytes)
      : slot_of(total_bytes),
        bucket_of(total_bytes),
        versions(total_bytes),
        block_of(total_bytes),
        scores(total_bytes),
        histogram(total_bytes),
        free_copies(total_bytes),
        free_blocks(total_bytes),
        owner_of(total_bytes),
        pending(total_bytes),
        copies(total_bytes),
        blocks(total_bytes),
        state(total_bytes) {}

  Array<std::uint32_t> slot_of, bucket_of, versions, block_of, scores, histogram;
  Array<std::uint32_t> free_copies, free_blocks, owner_of;
  Array<CachePending> pending;
  Array<std::byte> copies, blocks;
  Array<CacheLoadState> state;
  CacheShape shape;
  CachePolicy policy = CachePolicy::kOff;

  /// Makes room. What it then holds has to be set: slot_of, block_of, owner_of, scores and
  /// histogram to 0, bucket_of to kNoBucket, versions to kUnfilled, state to FirstState().
  void Reserve(const CacheShape& of, CachePolicy with_policy) {
    shape = of;
    policy = with_policy;
    if (shape.copies == 0) return;
    slot_of.Reserve(shape.buckets);
    scores.Reserve(shape.buckets);
    bucket_of.Reserve(shape.copies);
    versions.Reserve(shape.copies);
    free_copies.Reserve(shape.copies);
    pending.Reserve(shape.copies);
    block_of.Reserve(shape.copies);
    free_blocks.Reserve(shape.blocks);
    owner_of.Reserve(shape.blocks);
    blocks.Reserve(shape.blocks * shape.block_bytes);
    histogram.Reserve(CacheLoad::kRanks);
    copies.Reserve(shape.copies * shape.copy_bytes);
    state.Reserve(1);
  }

  CacheLoadState FirstState() const {
    CacheLoadState first{};
    first.copies.free = free_copies.data();
    first.copies.size = shape.copies;
    first.blocks.free = free_blocks.data();
    first.blocks.size = shape.blocks;
    return first;
  }

  CacheView View(const TableView& table, std::uint32_t clock) const {
    CacheView view;
    if (shape.copies == 0) return view;
    view.slot_of = slot_of.data();
    view.bucket_of = bucket_of.data();
    view.versions = versions.data();
    view.scores = scores.data();
    view.block_of = block_of.data();
    view.copies = copies.data();
    view.blocks = blocks.data();
    view.copy_bytes = shape.copy_bytes;
    view.block_bytes = shape.block_bytes;
    view.value_stride = shape.value_stride;
    view.size = shape.copies;
    view.lowest = table.top + 1 - table.levels;
    view.clock = clock;
    view.score = policy == CachePolicy::kLfu   ? CacheScore::kUses
                 : policy == CachePolicy::kLru ? CacheScore::kLastUse
                                               : CacheScore::kNothing;
    return view;
  }

  CacheLoad Load(const CacheView& view, std::uint32_t seed) const {
    return CacheLoad{view,           shape.buckets, seed, histogram.data(), owner_of.data(),
                     pending.data(), state.data()};
  }
};

}  // namespace gpm

#endif  // GPM_CACHE_CACHE_MEMORY_H_
