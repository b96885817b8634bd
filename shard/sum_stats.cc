#include "shard/sum_stats.h"

#include <algorithm>

namespace gpm {
namespace {

void AddTo(StoreStats& sum, const StoreStats& shard) {
  const auto add = [&](auto... field) { ((sum.*field += shard.*field), ...); };
  using S = StoreStats;
  add(&S::items, &S::capacity_slots, &S::buckets_to_drain, &S::resizes, &S::composed_resizes,
      &S::displaced_items, &S::mixed_operations, &S::finds_found, &S::read_by_host,
      &S::written_by_host, &S::value_cells, &S::free_cells, &S::pm_bytes, &S::pm_bytes_ready,
      &S::pm_bytes_free, &S::pm_bytes_given_back, &S::pool_growths, &S::pool_growth_waits,
      &S::queue_bytes, &S::snapshots, &S::snapshot_bytes, &S::searches, &S::search_scans,
      &S::search_index_bytes, &S::search_indexes_made, &S::search_index_updates, &S::search_pairs,
      &S::gpu_bytes, &S::gpu_bytes_kept, &S::threads);
  // What took this time kept the batches of one shard waiting: of all, the longest.
  const auto longest = [&](auto... field) {
    ((sum.*field = std::max(sum.*field, shard.*field)), ...);
  };
  longest(&S::resize_seconds, &S::growth_seconds, &S::composing_seconds, &S::directory_seconds,
          &S::displacing_seconds, &S::pool_growth_wait_seconds, &S::snapshot_pause_seconds);
  sum.level_buckets.resize(std::max(sum.level_buckets.size(), shard.level_buckets.size()));
  for (std::size_t i = 0; i < shard.level_buckets.size(); ++i) {
    sum.level_buckets[i] += shard.level_buckets[i];
  }
  for (std::size_t i = 0; i < kOpKinds; ++i) sum.operations[i] += shard.operations[i];

  if (shard.medium.memory_node != sum.medium.memory_node) sum.medium.memory_node = -1;

  RecoveryStats& recovery = sum.recovery;
  recovery.was_clean &= shard.recovery.was_clean;
  recovery.resize_continued |= shard.recovery.resize_continued;
  recovery.insert_slots_cleared += shard.recovery.insert_slots_cleared;
  recovery.duplicates_removed += shard.recovery.duplicates_removed;
  recovery.seconds = std::max(recovery.seconds, shard.recovery.seconds);

  CacheStats& cache = sum.cache;
  cache.directory &= shard.cache.directory;
  cache.directory_bytes += shard.cache.directory_bytes;
  cache.frames += shard.cache.frames;
  cache.bytes += shard.cache.bytes;
  cache.refreshes += shard.cache.refreshes;
  cache.refresh_seconds = std::max(cache.refresh_seconds, shard.cache.refresh_seconds);
  cache.found += shard.cache.found;
  cache.hits += shard.cache.hits;
}

}  // namespace

StoreStats SumStats(std::span<const StoreStats> shards) {
  StoreStats sum = shards.front();
  for (const StoreStats& shard : shards.subspan(1)) AddTo(sum, shard);
  sum.load_factor = static_cast<double>(sum.items) / static_cast<double>(sum.capacity_slots);
  return sum;
}

}  // namespace gpm
