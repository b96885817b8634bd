#ifndef GPM_ENGINE_SPACE_H_
#define GPM_ENGINE_SPACE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/epochs.h"
#include "engine/executor.h"
#include "engine/health.h"
#include "gpmstore/error.h"
#include "pm/mutex.h"
#include "pm/pool.h"
#include "table/geometry.h"

namespace gpm {

/// What guards a store's state, as a word for clang's analysis; there is nothing in it. A thread
/// has it
///  - that is alone (Admission::Alone), or
///  - that holds Admission's mutex while nobody is alone: it has entered (Admission::Entered), or
///    some batch is in flight.
class GPM_CAPABILITY("role") StoreState {};
inline StoreState store_state;

/// Whether an error of the pool means that it can't grow: no room, or the GPU can't map more of it.
bool MeansFull(const Error& error);

/// What a batch asks of a store before it begins.
struct Demand {
  Reservation most;              ///< it may take and add at most
  bool writes = false;           ///< it may change items
  bool inserts = false;          ///< it may add items
  bool mixed = false;            ///< of kinds that the store does not look at
  bool scope = false;            ///< of a DeviceScope: it can't be given more afterwards
  std::uint64_t most_added = 0;  ///< items that it may add at most
  // To be counted by:
  std::optional<Op> kind{};      ///< of all its operations
  std::uint64_t operations = 0;  ///< 0: of a scope
};

/// Room in a store's pool: cells and slots on their way from one use to the next, and how the pool
/// grows by what batches need of them.
///
/// A batch begins with the queue positions that it may need at most, and with as many cells as it
/// is expected to need. What it lacks then, of which it tells exactly how much, is made before it
/// is completed: so the pool grows by what runs of operations really write, and by nothing for
/// those that only might.
class Space {
 public:
  /// @param growth how the table's levels follow each other
  Space(Pool& pool, Executor& executor, Health& health, const Growth& growth);

  // Of batches: REQUIRES store_state.

  /// Whether the queue of erased slots has positions for those that a batch may erase.
  bool HasSlotsFor(const Demand& demand) const GPM_REQUIRES(store_state);
  /// Whether a batch may begin. @param made_room MakeRoom was called for it, or room was refused
  bool HasRoomFor(const Demand& demand, bool made_room) const GPM_REQUIRES(store_state);
  /// Starts a batch: Epochs::Begin, with what it is expected to take.
  /// @throws std::bad_alloc, Error(kGpu); then nothing has changed
  std::uint64_t Begin(const Demand& demand, Epochs::SlotRange* recycle, CellGrant* grant)
      GPM_REQUIRES(store_state);
  /// Learns what batches take, and looks ahead. @param taken cells, or wanted in vain @param items
  /// that it added
  void CountTaken(const Demand& demand, std::uint64_t taken, std::int64_t items)
      GPM_REQUIRES(store_state);
  void AddItems(std::int64_t items) GPM_REQUIRES(store_state) { items_ += items; }
  /// There will not be more: room for them is not made ahead.
  /// @param bytes of the pool, in which those are to fit; 0: as many as they take
  void SetMost(std::uint64_t items, std::uint64_t bytes) GPM_REQUIRES(store_state) {
    most_items_ = items;
    if (bytes > 0) most_ready_ = bytes;
  }
  /// Begins to make the room of the next growth ready, if that is near: that of a segment, when
  /// fewer cells are free than two batches as those of late take, or than half a segment has (all
  /// of one, where growths had to wait of late), and that of a level, part by part, when the table
  /// will be nearly as full two batches on as it was when it had to grow. So a pool is at most one
  /// step of growth, or one batch, larger than it would be, and does not grow while nobody writes.
  /// Where batches update, and cells are sorted, a step is made ready when there are not about as
  /// many spare cells, for AddSpareCells: those of a batch then lie closer together.
  void LookAhead() noexcept GPM_REQUIRES(store_state);
  /// Whether spare cells are lacking, and the pool grows by them without waiting (AddSpareCells).
  bool CanAddSpareCells() const GPM_REQUIRES(store_state);
  /// The table grows for want of slots: learns how full it could be.
  void CountFull() GPM_REQUIRES(store_state);

  // By who is alone.

  /// Makes room for what a batch needs to begin, but for slots of the table.
  /// @return false when the pool can't grow so far
  bool MakeRoomFor(const Demand& demand) GPM_REQUIRES(store_state);
  /// Adds spare cells, if CanAddSpareCells. Nobody needs them: where memory is short there are
  /// none.
  void AddSpareCells() GPM_REQUIRES(store_state);
  /// Makes the queue of erased slots hold those of a batch that found no positions there
  /// (HasSlotsFor). If it would have found them without others, the queue becomes twice as long, so
  /// that in the end several such batches run side by side; where memory is short they wait for
  /// each other.
  void MakeRoomForErases(const Demand& demand) GPM_REQUIRES(store_state);
  /// Makes the queue of erased slots hold what a batch may add.
  void MakeRoomForSlots(std::uint64_t slots) GPM_REQUIRES(store_state);
  /// Makes everything erased and retired usable. @return whether that gave slots back
  bool Reclaim() GPM_REQUIRES(store_state);
  /// Reclaim, if more erased slots wait than any batch gives back: for who keeps their cells from
  /// being used.
  void ReclaimMany() GPM_REQUIRES(store_state);
  /// Those that are held and not named are taken first. @return false for want of space
  bool AddCells(std::uint64_t cells) GPM_REQUIRES(store_state);
  /// Cells that have to be added for so many items, or updates, more, and for what is kept then.
  std::uint64_t MissingCells(std::uint64_t more) const GPM_REQUIRES(store_state);
  /// Takes free cells out of the pool's segments, where a new level would otherwise lie beyond
  /// all that there is: so that it may take their place. A resize may be under way.
  /// REQUIRES: everything was reclaimed.
  void ReleaseCellsForLevel(std::uint64_t buckets) GPM_REQUIRES(store_state);
  // Compaction. REQUIRES: everything was reclaimed, there is no directory, no level is being
  // drained, and no failed batch has left anything behind. What throws leaves the queues half made.

  /// Gives back to the pool what it has beyond cells for `items` items and one step of growth: all
  /// space from the pool's beginning that no level takes becomes cells, as far as these reach, and
  /// values that lie behind are moved there. What is free then lies behind the cells.
  void CompactCells(std::uint64_t items) GPM_REQUIRES(store_state);
  /// Whether that would do anything.
  bool CanCompactCells(std::uint64_t items) const GPM_REQUIRES(store_state);
  /// Whether the pool would end lower by a step of growth, at least, if it had levels of these
  /// sizes, and such cells, and nothing else.
  bool CanEndLower(const LevelSizes& sizes, std::uint64_t items) const GPM_REQUIRES(store_state);
  /// Gives back memory of the executor that a smaller pool does not need, if it can be done.
  /// REQUIRES: everything was reclaimed.
  void GiveBackMemory() GPM_REQUIRES(store_state);
  /// Begins with the pool as it is: counts its cells and makes the queues hold them.
  void Open() GPM_REQUIRES(store_state);
  /// Grants cells to a batch that the store runs itself.
  CellGrant Grant(std::uint64_t cells) GPM_REQUIRES(store_state);
  /// Grants cells for values that others write (CellGrant::filled_from): such as lie side by side,
  /// which needs all cells to be free, and queues them anew. When it throws, the queue has to be
  /// made anew (Recount). @return none for want of such
  CellGrant GrantToFill(std::uint64_t cells) GPM_REQUIRES(store_state);
  /// Finds out anew which items and cells there are. REQUIRES: everything was reclaimed.
  void Recount() GPM_REQUIRES(store_state);
  /// Queues the cells that the last scan did not find in use. @param items that it found
  void FreeUnused(std::uint64_t items) GPM_REQUIRES(store_state);
  /// Executor::CountMisplacedCells.
  std::uint64_t CountMisplacedCells() GPM_REQUIRES(store_state);
  /// The pool could, or could not, grow when it was last asked to.
  void SetAtLimit(bool at_limit) GPM_REQUIRES(store_state) { at_limit_ = at_limit; }

  // Of held cells (Epochs::HoldCells).

  /// Of those that are held, and stay so meanwhile, only these are needed: the others were taken
  /// since the instant. By any thread: it does not wait for who is alone.
  /// @param names a bit for each cell, by number
  void NameHeldCells(std::vector<std::uint32_t> names);
  void ReleaseCells() GPM_REQUIRES(store_state);

  std::uint64_t items() const GPM_REQUIRES(store_state);
  /// A batch has failed, and nobody knows what it added and erased, until CountItems.
  void LoseCount() GPM_REQUIRES(store_state) { counted_ = false; }
  bool counted() const GPM_REQUIRES(store_state) { return counted_; }
  /// By who is alone: reads all slots, where the count was lost. @throws Error(kGpu), bad_alloc
  void CountItems() GPM_REQUIRES(store_state);
  std::uint64_t cells() const GPM_REQUIRES(store_state) { return cells_; }
  std::uint64_t free_cells() const GPM_REQUIRES(store_state);
  std::uint64_t Capacity() const;  ///< slots of the addressable levels
  bool IsFull() const GPM_REQUIRES(store_state);
  std::vector<CellRange> CellRanges() const;
  Epochs& epochs() GPM_REQUIRES(store_state) { return epochs_; }

  /// Below this share nearly every insert finds a slot; what a resize for known inserts aims at.
  static constexpr double kComfortableLoad = 0.85;

 private:
  static constexpr std::uint64_t kMinSlotQueue = 4096;
  static constexpr std::uint64_t kReservedSlots = 64;  ///< of the reserved level, at most
  /// A table grows at a load factor of 0.86 to 0.89 (OpenOptions::grow_above); where others are
  /// erased meanwhile, or batches are large beside it, from this one on (`gpmstore_bench elastic`,
  /// which erases two items for five).
  static constexpr double kLeastFull = 0.8;

  /// What the pool's next growth would take, which only a new superblock changes.
  struct NextGrowth {
    std::uint64_t sequence = 0;  ///< of the superblock
    std::uint64_t used_end = 0;
    std::uint64_t gap_bytes = 0;  ///< where new cells go first
    std::uint64_t cells = 0;
    std::uint64_t level_bytes = 0;  ///< of fresh space
  };
  void LookAtNextGrowth() GPM_REQUIRES(store_state);
  /// Cells that the next batches are expected to take.
  std::uint64_t CellsAhead() const GPM_REQUIRES(store_state);
  /// Whether a new level may rather take the place of free cells than grow the pool, whose end
  /// can be at `most_bytes`.
  bool HasCellsForLevel(std::uint64_t bytes, std::uint64_t used_end, std::uint64_t most_bytes) const
      GPM_REQUIRES(store_state);
  /// Moves the values that lie in an extent elsewhere, and takes it out of the segments.
  /// @param join Pool::JoinSegments up to there first
  /// @return false when there is no room for them, or for what this takes
  bool FreeExtent(const Extent& extent, std::uint64_t join) GPM_REQUIRES(store_state);
  /// Cells for so many items, and one step of growth.
  std::uint64_t CompactCellsFor(std::uint64_t items) const;
  Reservation WantsOf(const Demand& demand) const GPM_REQUIRES(store_state);
  std::uint64_t CellsToBegin(const Demand& demand) const GPM_REQUIRES(store_state);
  void CountCells() noexcept GPM_REQUIRES(store_state);
  void SortCells(std::uint64_t wanted) GPM_REQUIRES(store_state);
  /// REQUIRES: everything was reclaimed.
  std::uint64_t QueueAdded() GPM_REQUIRES(store_state);
  /// As many as are kept when so many others are in use or wanted.
  static std::uint64_t KeptBeside(std::uint64_t cells);
  /// Whether batches update, and there are fewer spare cells than makes that fast.
  bool LacksSpareCells() const GPM_REQUIRES(store_state);
  /// Bytes that such a segment takes behind all that is in use: a gap is taken first.
  std::uint64_t FreshBytesFor(std::uint64_t cells) const GPM_REQUIRES(store_state);
  /// Frees held cells that are not named, if there may be as many as a step of growth has.
  /// REQUIRES: everything was reclaimed. @return how many
  std::uint64_t FreeUnnamed() GPM_REQUIRES(store_state);
  /// Erased slots that are not given back, at most.
  std::uint64_t MostErasedSlots() const { return Capacity() + kReservedSlots; }

  Pool& pool_;
  Executor& executor_;
  Health& health_;
  const bool has_cells_;  ///< values are not inline
  const Growth growth_;
  Epochs epochs_ GPM_GUARDED_BY(store_state);
  std::int64_t items_ GPM_GUARDED_BY(store_state) = 0;
  bool counted_ GPM_GUARDED_BY(store_state) = true;  ///< `items_` is what there is
  std::uint64_t most_items_ GPM_GUARDED_BY(store_state) = ~std::uint64_t{0};
  std::uint64_t most_ready_ GPM_GUARDED_BY(store_state) = ~std::uint64_t{0};  ///< bytes of the pool
  std::uint64_t cells_ GPM_GUARDED_BY(store_state) = 0;                       ///< in all segments
  /// Cells that were added when their queue could not grow.
  std::optional<CellRange> unqueued_ GPM_GUARDED_BY(store_state);
  Mutex names_mutex_;
  std::vector<std::uint32_t> names_ GPM_GUARDED_BY(names_mutex_);  ///< of held cells; empty: all
  std::uint64_t named_ GPM_GUARDED_BY(store_state) = 0;  ///< of those that are held, at least
  bool at_limit_ GPM_GUARDED_BY(store_state) = false;
  /// Of the cells that batches of mixed kinds might have taken, the share that they did: the most
  /// of late.
  double taken_share_ GPM_GUARDED_BY(store_state) = 1;
  // What a batch takes: the most of late.
  double recent_cells_ GPM_GUARDED_BY(store_state) = 0;
  double recent_items_ GPM_GUARDED_BY(store_state) = 0;
  double recent_updates_ GPM_GUARDED_BY(store_state) = 0;  ///< cells, but for those of new items
  // How early room is made, and of which growths that was learnt.
  double lead_ GPM_GUARDED_BY(store_state) = 1;
  std::uint64_t growths_seen_ GPM_GUARDED_BY(store_state) = 0;
  std::uint64_t waits_seen_ GPM_GUARDED_BY(store_state) = 0;
  /// The load factor at which the table is expected to grow for want of slots: the last one, or
  /// half way to it where that is higher.
  std::optional<double> full_load_ GPM_GUARDED_BY(store_state);
  NextGrowth next_growth_ GPM_GUARDED_BY(store_state);
  std::uint64_t no_spare_at_ GPM_GUARDED_BY(store_state) = 0;  ///< sequence: none could be added
};

}  // namespace gpm

#endif  // GPM_ENGINE_SPACE_H_
