#ifndef GPM_RECOVERY_SLOT_SCAN_H_
#define GPM_RECOVERY_SLOT_SCAN_H_

#include <cstdint>

#include "table/key_rows.h"
#include "table/protocol.h"

namespace gpm {

/// The recovery pass per slot, and the moving of cells per bucket, written once for both executors
/// (GPHash section 3.2.3, "Recovery"). They run while no batch does.

/// How a slot pass treats what it meets.
enum class ScanMode : std::uint8_t {
  kTrust,    ///< the pool was closed in order: count items, mark cells
  kInspect,  ///< the same after a crash, and count what needs repair; writes nothing, and makes
             ///< durable what it saw
  kRepair,   ///< clear half slots (TableView::IsHalf) and duplicates
};

/// What a pass found. In the executor's memory; all sums.
struct ScanCounters {
  std::uint64_t items = 0;
  std::uint64_t insert_slots = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t bad_references = 0;  ///< names no cell of a segment
  std::uint64_t shared_cells = 0;    ///< names a cell that another item names too
  std::uint64_t bad_keys = 0;        ///< something else than zeros behind them; not by kTrust
};

/// Ranges of cell numbers [first, last) that the value segments hold.
struct CellRange {
  std::uint64_t first;
  std::uint64_t last;
};

/// A pass, with its memory in the executor: a trivially copyable view.
struct SlotScan {
  ScanMode mode;
  ScanCounters* counters;
  std::uint32_t* used;  ///< one bit a cell, by cell number; null when values are inline
  const CellRange* ranges;
  std::uint32_t range_count;

  GPM_HD bool InSegment(std::uint64_t cell) const {
    for (std::uint32_t i = 0; i < range_count; ++i) {
      if (cell >= ranges[i].first && cell < ranges[i].last) return true;
    }
    return false;
  }
};

/// Buckets that a pass visits, one behind the other: a level.
struct ScannedBuckets {
  std::byte* first;
  std::uint64_t count;
  /// Whether the level is addressed; else it is being drained, and an item that has already been
  /// moved up is a copy of which the cell is kept.
  bool addressable;
  std::uint32_t index;  ///< of the first in the directory, or DirectoryView::kNoIndex
};

/// Calls visit(buckets) for each level of a table, the reserved one first.
template <class Visit>
void ForEachScanned(const TableView& table, const DirectoryView& directory, const Visit& visit) {
  visit(ScannedBuckets{table.ReservedBucket(0), TableView::kReservedBuckets, true,
                       directory.enabled() ? 0 : DirectoryView::kNoIndex});
  for (std::uint32_t level = 0; level < table.level_count; ++level) {
    const bool addressable = level < table.levels;
    const bool listed = addressable && directory.enabled();
    visit(ScannedBuckets{table.Bucket(level, 0), table.Buckets(level), addressable,
                         listed ? table.BucketIndex(level, 0) : DirectoryView::kNoIndex});
  }
}

/// Visits one slot. Reads persistent memory only where the directory does not tell.
/// @param b, s its bucket among `buckets`, and its number in there
/// @tparam Group of one thread
template <class Group, class Media>
GPM_HD void ScanSlot(const Operations<Group, Media>& operations, const SlotScan& pass,
                     const ScannedBuckets& buckets, std::uint64_t b, std::uint32_t s) {
  static_assert(Group::kSize == 1);
  const TableView& table = operations.table();
  const Media& media = operations.media();
  const ScanMode mode = pass.mode;
  const Slot slot{buckets.first + b * table.bucket_bytes, s};
  const auto& directory = operations.directory();
  const bool listed = buckets.index != DirectoryView::kNoIndex;
  const std::uint32_t index = buckets.index + static_cast<std::uint32_t>(b);
  const std::uint16_t fingerprint =
      listed ? directory.Print(index, slot.index) : DirectoryView::kTaken;
  if (fingerprint == DirectoryView::kEmpty) return;
  const bool told = fingerprint != DirectoryView::kTaken;  // else half, or damaged
  const auto clear = [&] {
    if (mode != ScanMode::kRepair) return;
    EmptySlot(table, media, slot, Step::kRepairFlush);
    if (listed) directory.Cleared(index, slot.index);
  };
  const bool compares = mode != ScanMode::kTrust || !buckets.addressable;
  const bool reads_key = compares && !(told && directory.has_keys());
  std::uint64_t word = 0;
  if (!told || reads_key) word = media.Load(table.State(slot));
  if (!told && table.IsHalf(word, media.Load(table.Reference(slot)), buckets.addressable)) {
    AtomicAdd(&pass.counters->insert_slots, 1);
    clear();
    return;
  }
  if (!told && word == kEmptyState) return;
  if (compares) {
    KeyBuffer key;
    if (reads_key) {
      LoadSlotKey(table, media, slot, word, key.words);
    } else {
      directory.LoadKey(index, slot.index, key.words);
    }
    // (One that is trusted has a cell, whatever its key is, and may be moved up.)
    if (mode != ScanMode::kTrust && !IsPadded(key.words, table.key_size)) {
      AtomicAdd(&pass.counters->bad_keys, 1);
      return;
    }
    // (Only damage leaves copies within the levels that are being drained.)
    const bool moved_or_copy = operations.IsDuplicate(slot, key.words);
    const bool moved = moved_or_copy && !buckets.addressable;
    if (moved_or_copy || (!buckets.addressable && operations.IsDrainedDuplicate(slot, key.words))) {
      AtomicAdd(&pass.counters->duplicates, moved ? 0 : 1);
      clear();
      return;
    }
  }
  if (mode == ScanMode::kRepair) return;  // items and cells were counted by the inspection
  AtomicAdd(&pass.counters->items, 1);
  if (table.inline_values()) return;
  const std::uint64_t reference =
      told ? directory.Reference(index, slot.index) : media.Load(table.Reference(slot));
  const std::uint64_t cell = reference / table.cell_bytes;
  if (reference % table.cell_bytes != 0 || !pass.InSegment(cell)) {
    AtomicAdd(&pass.counters->bad_references, 1);
    return;
  }
  const std::uint32_t bit = 1u << (cell % 32);
  if ((AtomicOr(&pass.used[cell / 32], bit) & bit) != 0) {
    AtomicAdd(&pass.counters->shared_cells, 1);
  }
}

/// The item in one slot, for a snapshot. Reads persistent memory only where the directory does not
/// tell. What is in a level that is being drained and in an addressable one counts there.
/// @param key, reference set to its @return false: there is none
/// @tparam Group of one thread
template <class Group, class Media>
GPM_HD bool ReadItem(const Operations<Group, Media>& operations, const ScannedBuckets& buckets,
                     std::uint64_t b, std::uint32_t s, std::uint64_t* key,
                     std::uint64_t* reference) {
  static_assert(Group::kSize == 1);
  const TableView& table = operations.table();
  const Media& media = operations.media();
  const auto& directory = operations.directory();
  const Slot slot{buckets.first + b * table.bucket_bytes, s};
  const bool listed = buckets.index != DirectoryView::kNoIndex;
  const std::uint32_t index = buckets.index + static_cast<std::uint32_t>(b);
  const std::uint16_t fingerprint = listed ? directory.Print(index, s) : DirectoryView::kTaken;
  if (fingerprint == DirectoryView::kEmpty) return false;
  const bool told = fingerprint != DirectoryView::kTaken;
  if (told && directory.has_keys()) {
    directory.LoadKey(index, s, key);
  } else {
    const std::uint64_t word = media.Load(table.State(slot));
    if (word == kEmptyState || word == kInsertState) return false;
    LoadSlotKey(table, media, slot, word, key);
  }
  if (!buckets.addressable && operations.IsDuplicate(slot, key)) return false;
  *reference = told ? directory.Reference(index, s) : media.Load(table.Reference(slot));
  return true;
}

/// The item of a key, wherever ReadItem would find it. REQUIRES: no batch runs.
/// @param reference set to its @return false: there is none
template <class Group, class Media>
GPM_HD bool FindItem(const Operations<Group, Media>& operations, const Candidates& candidates,
                     const std::uint64_t* key, std::uint64_t* reference) {
  const Outcome outcome = operations.Find(candidates, key, 0);
  if (outcome.present) {
    *reference = outcome.reference;
    return true;
  }
  const Slot slot = operations.FindDrained(candidates, key);
  if (slot.bucket == nullptr) return false;
  *reference = operations.LoadReference(slot);
  return true;
}

/// Moves the values of a bucket's items that lie in cells of a range to cells of the grant. There
/// is no directory. It is durable when the bucket is done, so that what the cells held may be
/// overwritten.
/// @return items for which there was no cell
template <class Group, class Media>
GPM_HD std::uint64_t MoveCells(const TableView& table, const Reclaim& reclaim, const Group& group,
                               const Media& media, std::byte* bucket, CellRange range) {
  std::uint64_t left = 0;
  bool moved = false;
  for (std::uint32_t s = 0; s < table.slots; ++s) {
    const Slot slot{bucket, s};
    std::uint64_t reference = 0;  // no item: the range may begin with the cell at offset 0
    if (group.IsLeader()) {
      const std::uint64_t word = media.Load(table.State(slot));
      if (word != kEmptyState && word != kInsertState)
        reference = media.Load(table.Reference(slot));
    }
    reference = group.Broadcast(reference);
    if (reference == 0 || reference < range.first * table.cell_bytes ||
        reference >= range.last * table.cell_bytes) {
      continue;
    }
    std::uint32_t cell = 0;
    std::uint32_t taken = 0;
    if (group.IsLeader()) taken = reclaim.TakeCell(true, &cell) ? 1 : 0;
    if (group.Broadcast(taken) == 0) {
      ++left;
      continue;
    }
    const std::uint64_t target = group.Broadcast(cell) * table.cell_bytes;
    auto* const to = reinterpret_cast<std::uint64_t*>(table.Cell(target));
    const auto* const from = reinterpret_cast<const std::uint64_t*>(table.Cell(reference));
    for (std::uint32_t w = group.Lane(); w < (table.value_size + 7) / 8; w += Group::kSize) {
      media.Store(to + w, media.Load(from + w));
    }
    group.Sync();
    if (group.IsLeader()) media.Flush(Step::kMoveCellFlush, to, table.value_size);
    FenceBeforePublish(TeamOfOne(group), media, Step::kMoveCellFence);
    if (group.IsLeader()) {
      media.Store(table.Reference(slot), target);
      media.Flush(Step::kMoveReferenceFlush, table.Reference(slot), sizeof target);
    }
    moved = true;
  }
  FenceBeforeAck(TeamOfOne(group), media, Step::kMoveDoneFence, moved);
  return left;
}

/// Frees the cells of one word of the `used` bitmap that lie in [range.first, range.last).
GPM_HD inline void FreeUnusedCells(const Reclaim& reclaim, const std::uint32_t* used,
                                   std::uint64_t word_index, CellRange range) {
  std::uint32_t free_bits = used == nullptr ? ~0u : ~used[word_index];
  const std::uint64_t base = word_index * 32;
  if (base < range.first) free_bits &= ~0u << (range.first - base);
  if (base + 32 > range.last) free_bits &= ~0u >> (base + 32 - range.last);
  if (free_bits == 0) return;
  std::uint64_t position = AtomicAdd(&reclaim.counters->cells_tail, PopCount(free_bits));
  for (; free_bits != 0; free_bits &= free_bits - 1) {
    reclaim.cell_ring[position++ & reclaim.cell_mask] =
        static_cast<std::uint32_t>(base + LowestBit(free_bits));
  }
}

}  // namespace gpm

#endif  // GPM_RECOVERY_SLOT_SCAN_H_
