#ifndef GPM_ENGINE_MAINTENANCE_H_
#define GPM_ENGINE_MAINTENANCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/sizing.h"
#include "engine/search_index.h"
#include "gpmstore/options.h"
#include "recovery/slot_scan.h"
#include "table/layout.h"

namespace gpm {

/// Levels that are filled before they are in the pool, in an executor's own memory.
class LevelImage {
 public:
  virtual ~LevelImage() = default;
  /// Zeros at first, aligned as a pool is.
  virtual std::byte* data() const = 0;
  /// Writes all of it to the pool, durably. REQUIRES: no batch runs. @throws Error(kGpu)
  virtual void WriteTo(std::byte* place) = 0;
};

/// How fast an executor is, about: for what is decided by how long it takes.
struct ExecutorRates {
  double composed_bytes = 0;  ///< a second, of levels read and written by ComposeNewest
  double operations = 0;      ///< a second, of a large batch
  /// Slots of a level that a batch drains at least: fewer take hardly less time.
  std::uint64_t drained_slots = 0;
};

/// What a snapshot takes of a table at one instant.
class TableCopy {
 public:
  virtual ~TableCopy() = default;
  /// Brings it to host memory, while batches run. @throws Error(kGpu), std::bad_alloc
  virtual void Fetch() = 0;
  /// The value cells that the references name, a bit for each by number; those behind them are not
  /// named. REQUIRES: Fetch has returned; values lie in cells. @throws Error(kGpu), std::bad_alloc
  virtual std::vector<std::uint32_t> NamedCells(std::uint64_t cell_bytes) const = 0;

  std::uint64_t total = 0;  ///< items in the table
  std::uint64_t items = 0;  ///< of those, copied, in any order
  // In host memory when Fetch has returned.
  const std::uint64_t* keys = nullptr;        ///< of items, all words of each
  const std::uint64_t* references = nullptr;  ///< of items
  /// Of a copy of changes, what was marked in the change map that was replaced, ascending.
  std::span<const std::uint32_t> ranges;
  std::uint32_t range_bits = 0;  ///< of that map; 0: there was none, or it stays
  /// Of the change log that was replaced: the keys, all words of each, if it told them all.
  bool log_whole = false;
  std::uint64_t logged = 0;
  const std::uint64_t* logged_keys = nullptr;
  /// `items` are those of the logged keys that there are, perhaps some of them twice, and no
  /// others; `total` says nothing.
  bool of_logged = false;
};

/// What a TableCopy is to take.
struct CopyShape {
  std::uint64_t room = 0;       ///< items
  std::uint32_t key_words = 1;  ///< of a key
  bool changes_only = false;    ///< the items of marked ranges alone
  /// Of the change map that the table has from then on, without a mark; 0: that stays as it is, if
  /// there is one.
  std::uint32_t range_bits = 0;
  /// The items of logged keys alone, if the change log tells them all; else all items.
  bool logged_only = false;
  /// Of the change log that the table has from then on, empty, in keys; 0: that stays as it is, if
  /// there is one.
  std::uint64_t log_room = 0;
};

/// What an index in an executor's own memory is to have.
struct IndexShape {
  std::span<const Attribute> attributes;  ///< of the pool; they outlive it
  SearchIndex::Mask mask = 0;             ///< of those, which
  std::uint32_t key_words = 1;
};

/// What keeps a table, its queues, its directory and its cache in order, on the executor that runs
/// the batches.
///
/// Thread safety: only while no batch runs (the store sees to it), but for the cache's refresh.
class TableMaintenance {
 public:
  virtual ~TableMaintenance() = default;

  /// GPU memory that this executor allocated, bytes: but for the workspaces of batches, and those.
  virtual std::uint64_t gpu_bytes() const = 0;
  virtual std::uint64_t workspace_bytes() const = 0;
  /// Beside those: what it keeps for the next ones.
  virtual std::uint64_t kept_gpu_bytes() const { return 0; }
  /// What a cache may take by default, as of now, in bytes.
  virtual std::uint64_t CacheBudget() const = 0;
  virtual CacheFillShape CacheFill() const { return {}; }

  /// The table changed: levels, tops.
  /// @param keep the addressable levels are the same: directory and cache stay. Else there is
  ///        neither from then on
  virtual void SetTable(const TableView& table, bool keep) = 0;
  /// Whether levels may be composed in a LevelImage, as it pays.
  virtual bool Composes() const { return false; }
  /// @return null where memory is short. REQUIRES: Composes().
  virtual std::unique_ptr<LevelImage> MakeLevelImage(std::uint64_t) { return nullptr; }
  /// Whether ComposeNewest fills a level in its place in the pool, and not in a LevelImage.
  virtual bool ComposesInPlace() const { return false; }
  virtual ExecutorRates rates() const = 0;
  /// Puts the items of the oldest level, which is not addressed any more, into the newest, which is
  /// empty, is named by nothing in the pool, and takes nothing else (table/composing.h). The oldest
  /// one keeps them all. What was filled in place is durable then.
  /// REQUIRES: ComposesInPlace or Composes; of the table that it has (SetTable, FollowGrowth), only
  /// the newest level may lie in a LevelImage.
  /// @return items that found no slot @throws Error(kGpu)
  virtual std::uint64_t ComposeNewest() = 0;
  /// Makes the queues hold `cells` value cells and `slots` erased slots; what is in them, cells
  /// from position `head` on, stays. @throws Error(kGpu), std::bad_alloc; nothing is lost then
  virtual void GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) = 0;
  /// Gives back memory of queues that were made for more, and what is kept for the next batches.
  /// What is in the queue of cells stays. REQUIRES: no erased slot is in the other. @throws as
  /// GrowQueues
  virtual void ShrinkQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) = 0;
  /// Queues cells that are in the queue again: first the free ones, then those of the held ones
  /// that are not named, then the others.
  /// @param names a bit for each cell, by number; those behind them are not named
  /// @return the position of the first of the others @throws Error(kGpu)
  virtual std::uint64_t RequeueCells(const CellGrant& free, const CellGrant& held,
                                     const std::vector<std::uint32_t>& names) = 0;
  virtual std::uint64_t slot_queue_room() const = 0;
  virtual std::uint64_t queue_bytes() const = 0;  ///< of the executor's memory

  /// Scans all physical levels and the reserved level once. kTrust and kInspect leave behind which
  /// cells are in use, for FreeUnused.
  virtual ScanCounters ScanSlots(ScanMode mode, const std::vector<CellRange>& ranges) = 0;
  /// What the last scan left behind, a bit for each cell, by number.
  virtual std::vector<std::uint32_t> UsedCells() = 0;
  /// Frees the cells of the ranges that the last scan did not find in use.
  virtual void FreeUnused(const std::vector<CellRange>& ranges) = 0;
  /// Queues all cells of a range, in order; none of them is in use, or queued.
  virtual void FreeAll(CellRange range) = 0;
  /// Whether batches can run while a level is being drained: they bring the items of their keys up
  /// first (table/draining.h), and drain the buckets that they are given.
  virtual bool DrainsBesideBatches() const { return false; }
  /// Moves the items of a level that is not addressed any more up.
  /// @param displaces moves others aside where there is no slot for one; only after a pass that did
  ///        not @return items left in it
  virtual std::uint64_t DrainLevel(std::uint32_t level, bool displaces) = 0;
  /// Moves the values that lie in cells of a range to cells of the grant. REQUIRES:
  /// there is no directory, every erased slot was given back, and no level is being drained.
  /// @return items left, for want of cells
  virtual std::uint64_t MoveCells(CellRange range, const CellGrant& cells) = 0;
  /// Counts the value cells that are not exactly one thing: one item's, or once in the queue, from
  /// position `head` on. REQUIRES: every erased slot was given back. For tests.
  /// @throws Error(kUnsupported) on executor cuda
  virtual std::uint64_t CountMisplacedCells(const std::vector<CellRange>& ranges,
                                            std::uint64_t head) = 0;

  /// Makes room for a copy; batches may run. @throws Error(kGpu), std::bad_alloc
  virtual std::unique_ptr<TableCopy> MakeCopy(const CopyShape& shape) = 0;
  /// Takes it. @return false: there are more items than it has room for, `copy->items`; nothing has
  /// changed then, also when it throws. Once true, it is not called again. @throws Error(kGpu)
  virtual bool TakeCopy(TableCopy* copy) = 0;
  /// Marks what was marked in the change map that a copy replaced, in the one that there is now,
  /// which has no fewer ranges; batches may run. @throws Error(kGpu)
  virtual void MarkAgain(const TableCopy& copy) = 0;
  /// Likewise, those that are not 0 of `marks`, in host memory. @throws Error(kGpu), std::bad_alloc
  virtual void AddMarks(const std::uint8_t* marks, std::uint32_t range_bits) = 0;
  /// Whether there is a change log that has told all so far; batches may run.
  virtual bool LogIsWhole() const { return false; }
  /// Whether searches are to ask an index in the executor's own memory; else one in host memory.
  virtual bool MakesIndexes() const { return false; }
  /// Bytes of an index of so many items. REQUIRES, as MakeIndex: MakesIndexes().
  virtual std::uint64_t IndexBytes(std::uint64_t /*items*/, const IndexShape& /*shape*/) const {
    return 0;
  }
  /// Makes one of what was copied, of all items, while batches run. The values are held until then.
  /// @param version Admission::changers at the instant @return null where memory is short
  /// @throws Error(kGpu)
  virtual std::unique_ptr<SearchIndex> MakeIndex(const TableCopy& /*copy*/,
                                                 const IndexShape& /*shape*/,
                                                 std::uint64_t /*version*/) {
    return nullptr;
  }
  /// Bytes of a change log with room for so many keys; 0: there is none on this executor.
  virtual std::uint64_t LogBytes(std::uint64_t /*keys*/, std::uint32_t /*key_words*/) const {
    return 0;
  }

  /// Makes a directory of this shape from the table as it is now, and an empty cache; none where
  /// the shape has none. Ends a refresh under way.
  /// @throws Error(kGpu), std::bad_alloc; there are none then
  /// @param used buckets, by index: all slots of those behind them are empty
  virtual void SetAccelerators(const CacheShape& shape, CachePolicy policy, std::uint32_t used) = 0;

  /// The table got one more level, and batches drain the oldest from now on: as SetTable, but the
  /// directory follows, without reading slots, and with what it knows of the oldest level
  /// (CacheMemory::TakeOver). Buckets keep their frames, or the cache is empty. Ends a
  /// refresh under way.
  /// @param shape for the table @return false where it can't, for want of memory or of a directory
  ///        of such a shape: there are to be made anew then
  virtual bool FollowGrowth(const TableView&, const CacheShape&, CachePolicy) { return false; }
  /// Batches drain the oldest level from now on: makes what the directory knows of it, unless that
  /// is there. Without it, and for want of memory, its state words tell.
  virtual void BeginDraining() {}

  // A refresh of the cache (cache/refresh.h), while batches run. One thread at a time.
  /// Has the frames that there is memory for, which executor cuda takes beside batches: a refresh
  /// may begin then. @param wait until it has @return how large the cache is; null: not yet
  virtual const CacheShape* BackCache(bool wait) = 0;
  /// Gives each bucket a frame that has none yet (CacheView::opens): batches put what they write
  /// there. REQUIRES: there are as many; no refresh is under way. @throws Error(kGpu)
  virtual void OpenCache() = 0;
  /// Begins it. @param uses counted since the refresh before @throws Error(kGpu)
  virtual void RefreshCache(std::uint64_t uses) = 0;
  /// Makes uses count less that were counted so far. REQUIRES: no refresh is under way.
  /// @param uses counted since the refresh, or ageing, before @throws Error(kGpu)
  virtual void AgeCache(std::uint64_t uses) = 0;
  virtual bool CacheRefreshEnded() = 0;
  virtual double CacheRefreshSeconds() = 0;  ///< of the last one. REQUIRES: it has ended
  virtual void AwaitCacheRefresh() = 0;      ///< @throws Error(kGpu)
  /// The same, but what it has not filled yet, it leaves to the next one. @throws Error(kGpu)
  virtual void CutCacheRefresh() { AwaitCacheRefresh(); }
};

}  // namespace gpm

#endif  // GPM_ENGINE_MAINTENANCE_H_
