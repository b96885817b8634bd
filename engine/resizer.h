#ifndef GPM_ENGINE_RESIZER_H_
#define GPM_ENGINE_RESIZER_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/cache_manager.h"
#include "engine/draining.h"
#include "engine/executor.h"
#include "engine/health.h"
#include "engine/log.h"
#include "engine/space.h"
#include "pm/pool.h"
#include "table/geometry.h"

namespace gpm {

/// The table's levels: adds new ones, drains and drops the oldest, and makes directory and cache
/// for what there is. Every item in the pool is in an addressable level whenever a batch runs, or
/// in one that is being drained beside batches (engine/draining.h).
class Resizer {
 public:
  /// @param growth, growth_pause as in OpenOptions
  Resizer(Pool& pool, Executor& executor, Health& health, Space& space, Draining& draining,
          CacheManager& cache, Log& log, double growth, double growth_pause);

  /// How the levels follow each other.
  const Growth& growth() const { return growth_; }

  // By who is alone.

  /// One resize: new levels are added until the addressable ones are those of `wanted`, and what
  /// then is not addressable any more is drained and dropped.
  /// @return false for want of space; then it may have fewer of them
  bool Resize(const LevelSizes& wanted) GPM_REQUIRES(store_state);
  /// How many levels of `wanted`, the newest, it would add.
  std::size_t CountNew(const LevelSizes& wanted) const GPM_REQUIRES(store_state);
  /// A resize by one level, which a batch waits for: the new level is composed, if that is quick;
  /// else the draining goes on beside batches, where the executor can do that. Or the end of such a
  /// draining, if that is not over.
  /// @param waiting what the batch asks for @return as Resize
  bool Grow(const Demand& waiting) GPM_REQUIRES(store_state);
  /// A resize to at least so many slots at once, while no batch runs. REQUIRES: no level is
  /// drained.
  /// @param cell_bytes that are to have room besides
  /// @return false: there is no room for that, batches are not to wait for growth, or the table
  ///         fills up badly, so that nobody knows how many levels it takes (then nothing was done);
  ///         or there turned out to be none
  bool GrowTo(double slots, std::uint64_t cell_bytes) GPM_REQUIRES(store_state);
  /// Whether levels for so many slots and one more, and cells of so many bytes besides, have room.
  bool HasRoomToGrow(double slots, std::uint64_t cell_bytes) const GPM_REQUIRES(store_state);
  /// Whether a resize to these levels, which are smaller, has room, and for more of them, should an
  /// item find no slot: one, or where the table fills up badly, so many that some are larger.
  bool CanMoveTo(const LevelSizes& wanted) const GPM_REQUIRES(store_state);
  /// Whether a level can be drained beside batches, or go on to be, if so many cells are added: the
  /// executor can do that, the table fills up well, and there is room for more levels, should some
  /// item find no slot all the same.
  bool CanDrain(std::uint64_t cells) const GPM_REQUIRES(store_state);
  /// Ends the draining that goes on beside batches, if there is one: for who needs all items in
  /// addressable levels. Resizes begin with it.
  void EndDraining() GPM_REQUIRES(store_state);
  /// Pool::MoveLevels. There is no directory from then on. REQUIRES: no level is being drained.
  /// @return false where there is no room
  bool MoveLevels() GPM_REQUIRES(store_state);
  /// For recovery: drains what is to be drained, unless batches can do it. @return whether it did
  bool FinishResize() GPM_REQUIRES(store_state);
  /// Batches drain the level that is to be drained from now on, if there is one.
  void GoOnDraining() GPM_REQUIRES(store_state);
  /// Drains and drops levels until only the addressable ones are left. REQUIRES: who calls it keeps
  /// batches from running if it throws: items are then left in a level that is not addressed any
  /// more.
  /// @param new_levels so many levels, the newest, hold nothing yet
  void Drain(std::uint32_t new_levels = 0) GPM_REQUIRES(store_state);
  /// Buckets of a level for items of the oldest one that found no slot.
  std::uint64_t SpareLevel() const;
  /// Makes directory and cache for the table as it is now, unless they are there.
  /// @param new_levels as for Drain
  void MakeAccelerators(std::uint32_t new_levels = 0) GPM_REQUIRES(store_state);
  void DropAccelerators() GPM_REQUIRES(store_state);

  // Composing a table: batches fill the levels of one with many items and none yet in the
  // executor's own memory, which takes no small writes to the pool. The levels are then written as
  // a whole, where no superblock names them, and named: one switch for all items.

  /// REQUIRES: no item is in the levels. @param sizes of the table then
  /// @return false: there is no room. Cells that are added later may take it; then EndComposing may
  ///         find none
  bool BeginComposing(const LevelSizes& sizes) GPM_REQUIRES(store_state);
  /// @throws Error(kNoSpace), kGpu; then it is to be abandoned
  void EndComposing() GPM_REQUIRES(store_state);
  /// The levels are as they were: empty. REQUIRES: no batch runs.
  void AbandonComposing() GPM_REQUIRES(store_state);

  /// Of StoreStats: resizes and their times.
  void AddTo(StoreStats* stats) const GPM_REQUIRES(store_state);

 private:
  /// Tells the executor of the table. There is no directory, nor a cache, from then on.
  void RefreshTable() GPM_REQUIRES(store_state);
  /// The same when it has one more level, and the oldest is to be drained beside batches: there are
  /// both then, where there can be.
  void FollowGrowth() GPM_REQUIRES(store_state);
  /// Whether batches should rather wait until a level of so many buckets is composed than drain the
  /// oldest beside them.
  bool PaysToCompose(std::uint64_t buckets, const Demand& waiting) const GPM_REQUIRES(store_state);
  enum class Outcome : std::uint8_t { kDone, kNoRoom, kNoMemory, kTooSmall };
  /// A resize by one level, which takes all items of the oldest at once (table/composing.h). What
  /// finds no slot in it is left to be drained beside batches.
  /// @return kNoRoom: in the pool; kNoMemory: of the executor's, or it is limited; kTooSmall: some
  ///         item found no slot, and could not be drained so. Nothing was done then, nor where it
  ///         throws.
  Outcome ComposeLevel(std::uint64_t buckets) GPM_REQUIRES(store_state);
  /// Those that there are not yet, and one more.
  LevelSizes NewAndOneMore(const LevelSizes& wanted) const GPM_REQUIRES(store_state);
  /// Whether these levels, the newest first, and cells of so many bytes besides have room.
  bool HaveRoom(const LevelSizes& added, std::uint64_t cell_bytes) const GPM_REQUIRES(store_state);
  /// CanDrain of a pool with this superblock.
  bool CanDrainOf(const Superblock& superblock, std::uint64_t cells) const
      GPM_REQUIRES(store_state);
  /// Takes room in the pool's file for these levels and one more, which draining may need.
  bool TakeRoomForSpare(const LevelSizes& sizes) GPM_REQUIRES(store_state);
  /// A resize by these levels, the newest first. @param beside what is drained then is drained
  /// beside batches
  bool AddLevels(const LevelSizes& sizes, bool beside) GPM_REQUIRES(store_state);
  void AddLevel(std::uint64_t buckets) GPM_REQUIRES(store_state);
  /// REQUIRES: no item is in it.
  void DropOldestLevel() GPM_REQUIRES(store_state);
  void LogEnd(double seconds) GPM_REQUIRES(store_state);
  /// Makes the levels that are named small ones, so that their space can be used.
  void ShrinkEmptyLevels() GPM_REQUIRES(store_state);
  /// The view of the table that is composed.
  TableView ComposedView() const GPM_REQUIRES(store_state);

  struct Composed {
    std::unique_ptr<LevelImage> image;
    LevelSizes sizes;
  };
  Pool& pool_;
  Executor& executor_;
  Health& health_;
  Space& space_;
  Draining& draining_;
  CacheManager& cache_;
  Log& log_;
  const Growth growth_;
  const double growth_pause_;                             ///< seconds
  bool accelerated_ GPM_GUARDED_BY(store_state) = false;  ///< for the table as it is
  std::uint64_t resizes_ GPM_GUARDED_BY(store_state) = 0;
  std::uint64_t composed_resizes_ GPM_GUARDED_BY(store_state) = 0;
  double resize_seconds_ GPM_GUARDED_BY(store_state) = 0;
  double growth_seconds_ GPM_GUARDED_BY(store_state) = 0;
  double composing_seconds_ GPM_GUARDED_BY(store_state) = 0;
  double directory_seconds_ GPM_GUARDED_BY(store_state) = 0;
  std::optional<Composed> composed_ GPM_GUARDED_BY(store_state);
  LevelSizes former_ GPM_GUARDED_BY(store_state);  ///< before the last composing
};

}  // namespace gpm

#endif  // GPM_ENGINE_RESIZER_H_
