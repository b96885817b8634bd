#ifndef GPM_TABLE_FREE_QUEUES_H_
#define GPM_TABLE_FREE_QUEUES_H_

#include <bit>
#include <cstdint>

#include "table/volatile_ops.h"

namespace gpm {

/// Where the next things go in the queues of a Reclaim; they only grow (modulo the ring). In the
/// executor's memory, a cache line each.
struct ReclaimCounters {
  alignas(128) std::uint64_t cells_tail;  ///< where the next freed cell goes
  alignas(128) std::uint64_t slots_tail;  ///< where the next erased slot goes
};

/// Positions [first, first + count) of the cell queue: free cells that a batch may take.
struct CellGrant {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t kept = 0;  ///< of those, the last ones: only for updates, which give one back
  /// Not 0: the cells are those from this number on, for a batch of inserts alone. That of
  /// operation i has its value already, or will have it before anything names it durably; it is for
  /// no other. Which of the cells were used the results say.
  std::uint32_t filled_from = 0;
  /// Operations of the batch that these cells are assigned to, if not 0: cell i is for operation i,
  /// and for no other, and has its value before anything names it. Whoever writes a value takes its
  /// cell, once (Reclaim::TakeAssigned).
  std::uint64_t assigned = 0;

  GPM_HD bool filled() const { return filled_from != 0; }
};

/// Where one thread collects the cells that it retires, to queue them together, since the queue's
/// end is a cache line that all threads write. Its user made room for them.
struct RetiredCells {
  std::uint32_t* cells = nullptr;
  std::uint64_t count = 0;
};

/// Positions of a ring for so many cells, as Reclaim has it, or erased slots.
constexpr std::uint64_t CellPositions(std::uint64_t cells) { return std::bit_ceil(2 * cells + 2); }
constexpr std::uint64_t SlotPositions(std::uint64_t slots) { return std::bit_ceil(slots + 2); }

/// Value cells and slots on their way from one use to the next: a trivially copyable view of two
/// rings in the executor's memory. Volatile: which cells are free is derived at open.
///
/// A cell that an update replaced, and a slot that an erase emptied, are used again only when every
/// batch that was running then has ended (Epochs). So a value that a reader found stays whole, and
/// no slot changes its key under a reader or an updater. That is why a read is one probe without
/// validation, and an update one CAS. An erased slot waits in state kInsertState, where nobody
/// claims it and recovery clears it.
///
/// Invariants:
///  1. Each free position is granted to one batch, once (Epochs); what the batch leaves of its
///     grant it queues again.
///  2. From the oldest running batch's grant on, a cell is at most twice in the ring (granted, and
///     queued again), so 2 * cells positions never wrap onto one that is still to be read.
struct Reclaim {
  std::uint32_t* cell_ring;
  std::uint64_t cell_mask;  ///< positions - 1, a power of two less one; >= 2 * cells
  std::uint64_t* slot_ring;
  std::uint64_t slot_mask;
  ReclaimCounters* counters;
  CellGrant grant;                  ///< what this view's user may take
  std::uint64_t* taken;             ///< how much of it was asked for; starts at 0
  RetiredCells* retired = nullptr;  ///< of a user that is a single thread; else null

  /// Takes a free cell.
  /// @param for_update the cell that the item has is retired in return
  /// @return false when the grant has no more for this
  GPM_HD bool TakeCell(bool for_update, std::uint32_t* cell) const {
    if (!for_update && AtomicLoad(taken) >= unkept()) return false;  // takes none of those kept
    const std::uint64_t index = retired != nullptr ? (*taken)++ : AtomicAdd(taken, 1);
    std::uint32_t next = 0;
    if (!CellAt(index, &next)) return false;
    if (!for_update && index >= unkept()) {
      RetireCell(next);
      return false;
    }
    *cell = next;
    return true;
  }
  /// Cells of the grant that are for anything.
  GPM_HD std::uint64_t unkept() const { return grant.count - grant.kept; }

  /// Free cell `index` of the grant, which the user has counted as taken. @return false when the
  /// grant is used up
  GPM_HD bool CellAt(std::uint64_t index, std::uint32_t* cell) const {
    if (index >= grant.count) return false;
    *cell = cell_ring[(grant.first + index) & cell_mask];
    return true;
  }

  /// The cell that is assigned to an operation. @return its number
  GPM_HD std::uint32_t TakeAssigned(std::uint64_t operation) const {
    std::uint32_t& position = cell_ring[(grant.first + operation) & cell_mask];
    const std::uint32_t cell = position;
    position = 0;
    return cell;
  }
  /// Gives it back: it is not needed after all.
  GPM_HD void GiveBackAssigned(std::uint64_t operation, std::uint32_t cell) const {
    cell_ring[(grant.first + operation) & cell_mask] = cell;
  }
  /// Queues it again if nobody took it. @return whether somebody did REQUIRES: nobody does any more
  GPM_HD bool ReturnAssigned(std::uint64_t operation) const {
    const std::uint32_t cell = cell_ring[(grant.first + operation) & cell_mask];
    if (cell != 0) RetireCell(cell);
    return cell == 0;
  }

  /// The cell that TakeCell gives after `ahead` others, to prefetch it; false when there is none.
  bool PeekCell(std::uint64_t ahead, std::uint32_t* cell) const {
    return CellAt(AtomicLoad(taken) + ahead, cell);
  }

  /// Queues again every `shares`-th of the cells left of the grant, from number `share` on.
  /// REQUIRES: nobody takes any more.
  GPM_HD void ReturnCells(std::uint64_t share, std::uint64_t shares) const {
    for (std::uint64_t i = AtomicLoad(taken) + share; i < grant.count; i += shares) {
      RetireCell(cell_ring[(grant.first + i) & cell_mask]);
    }
  }

  /// The same of the whole grant, but only of the cells that are named, or that are not.
  /// @param names bits of cells, by number; those behind them are not named
  GPM_HD void ReturnNamed(const std::uint32_t* names, std::uint64_t words, bool named,
                          std::uint64_t share, std::uint64_t shares) const {
    constexpr std::uint32_t kWordBits = 32;
    for (std::uint64_t i = share; i < grant.count; i += shares) {
      const std::uint32_t cell = cell_ring[(grant.first + i) & cell_mask];
      const std::uint64_t word = cell / kWordBits;
      const bool is_named = word < words && (names[word] >> (cell % kWordBits) & 1) != 0;
      if (is_named == named) RetireCell(cell);
    }
  }

  /// Queues a cell that no slot references any more (durably so).
  GPM_HD void RetireCell(std::uint32_t cell) const {
    if (retired != nullptr) {
      retired->cells[retired->count++] = cell;
      return;
    }
    cell_ring[AtomicAdd(&counters->cells_tail, 1) & cell_mask] = cell;
  }

  /// Queues what was collected. Before the user's batch ends.
  void QueueRetired() const {
    const std::uint64_t first = AtomicAdd(&counters->cells_tail, retired->count);
    for (std::uint64_t i = 0; i < retired->count; ++i) {
      cell_ring[(first + i) & cell_mask] = retired->cells[i];
    }
    retired->count = 0;
  }

  /// Queues an erased slot, by TableView::SlotId. Room was reserved by the batch.
  GPM_HD void RetireSlot(std::uint64_t slot_id) const {
    slot_ring[AtomicAdd(&counters->slots_tail, 1) & slot_mask] = slot_id;
  }
};

}  // namespace gpm

#endif  // GPM_TABLE_FREE_QUEUES_H_
