#ifndef GPM_ENGINE_RESIZER_H_
#define GPM_ENGINE_RESIZER_H_

#include <cstdint>

#include "engine/cache_manager.h"
#include "engine/executor.h"
#include "engine/health.h"
#include "engine/log.h"
#include "engine/space.h"
#include "pm/pool.h"

namespace gpm {

/// The table's levels: adds them at the top, drains and drops those at the bottom, and makes
/// directory and cache for what there is. Every item in the pool is in an addressable level
/// whenever a batch runs.
class Resizer {
 public:
  Resizer(Pool& pool, Executor& executor, Health& health, Space& space, CacheManager& cache,
          Log& log);

  // By who is alone.

  /// One resize: the top goes up by some levels, and as many at the bottom are drained and dropped.
  /// @return false for want of space; then it may have gone up by fewer
  bool Resize(std::uint32_t levels = 1) GPM_REQUIRES(store_state);
  /// Drains and drops levels until only the addressable ones are left. REQUIRES: who calls it keeps
  /// batches from running if it throws: items are then left in a level that is not addressed any
  /// more.
  /// @param new_levels so many levels, the highest, hold nothing yet
  void Drain(std::uint32_t new_levels = 0) GPM_REQUIRES(store_state);
  /// Makes directory and cache for the table as it is now, unless they are there.
  /// @param new_levels as for Drain
  void MakeAccelerators(std::uint32_t new_levels = 0) GPM_REQUIRES(store_state);
  void DropAccelerators() GPM_REQUIRES(store_state);

  /// Of StoreStats: resizes and their times.
  void AddTo(StoreStats* stats) const GPM_REQUIRES(store_state);

 private:
  /// Tells the executor of the table. There is no directory, nor a cache, from then on.
  void RefreshTable() GPM_REQUIRES(store_state);
  void AddLevel() GPM_REQUIRES(store_state);

  Pool& pool_;
  Executor& executor_;
  Health& health_;
  Space& space_;
  CacheManager& cache_;
  Log& log_;
  bool accelerated_ GPM_GUARDED_BY(store_state) = false;  ///< for the table as it is
  std::uint64_t resizes_ GPM_GUARDED_BY(store_state) = 0;
  double resize_seconds_ GPM_GUARDED_BY(store_state) = 0;
  double growth_seconds_ GPM_GUARDED_BY(store_state) = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_RESIZER_H_
