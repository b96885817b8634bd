// What a store says of itself (StoreImpl::Stats).

#include "engine/store_impl.h"
#include "pm/space.h"

namespace gpm {

std::uint64_t StoreImpl::ItemsNow() {
  {
    const Admission::Entered entered(admission_);
    if (space_.counted() || entered.CallerHasOpenScope()) return space_.items();
  }
  const Admission::Alone alone(admission_, Admission::Telling::kLater);
  health_.Check();
  space_.CountItems();
  return space_.items();
}

StoreStats StoreImpl::Stats() {
  health_.Check();
  ItemsNow();  // where it has to be counted
  const Admission::Entered entered(admission_);
  const Superblock& superblock = pool_->superblock();
  StoreStats stats;
  stats.items = space_.items();
  stats.capacity_slots = space_.Capacity();
  stats.load_factor = static_cast<double>(stats.items) / static_cast<double>(stats.capacity_slots);
  stats.level_buckets = SizesOf(superblock);
  stats.buckets_to_drain = draining_.active() ? draining_.buckets_left() : 0;
  resizer_.AddTo(&stats);
  stats.value_cells = space_.cells();
  stats.free_cells = space_.free_cells();
  stats.pm_bytes = pool_->mapping().pool_bytes();
  stats.pm_bytes_ready = stats.pm_bytes - pool_->mapping().mapped_bytes();
  stats.pm_bytes_free = pool_->mapping().mapped_bytes() - UsedBytes(superblock);
  const GrowthTimes& growth = pool_->mapping().growth_times();
  stats.pool_growths = growth.growths;
  stats.pool_growth_waits = growth.waits;
  stats.pool_growth_wait_seconds = growth.wait_seconds;
  stats.displaced_items = displaced_items_;
  stats.displacing_seconds = displacing_seconds_;
  stats.pm_bytes_given_back = given_back_;
  stats.queue_bytes = executor_->queue_bytes();
  stats.gpu_bytes = executor_->gpu_bytes() + executor_->workspace_bytes();
  stats.gpu_bytes_kept = executor_->kept_gpu_bytes();
  stats.key_size = superblock.key_size;
  stats.value_size = superblock.value_size;
  stats.geometry = superblock.geometry;
  stats.attributes = attributes_;
  AddSearchesTo(&stats);
  stats.executor = executor_->kind();
  stats.threads = executor_->threads();
  stats.medium = pool_->mapping().medium();
  // Lines that a GPU wrote are flushed when their batch ends; until then the CPU's cache may write
  // them back in any order.
  if (stats.executor == ExecutorKind::kCuda && stats.medium.needs_flush) {
    stats.medium.survives_power_loss = false;
  }
  stats.recovery = recovery_;
  stats.cache = cache_.Stats();
  snapshots_.AddTo(&stats);
  if (bound_ != nullptr) bound_->AddTo(&stats);
  if (keeper_ != nullptr) keeper_->AddTo(&stats);
  admission_.AddTo(&stats);
  return stats;
}

}  // namespace gpm
