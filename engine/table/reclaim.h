#ifndef GPM_ENGINE_TABLE_RECLAIM_H_
#define GPM_ENGINE_TABLE_RECLAIM_H_

#include <cstdint>

#include "engine/table/volatile_ops.h"

namespace gpm {

/// Positions in the queues of a Reclaim; they only grow (modulo the ring), but for a take that
/// found nothing, which takes its step back. In the executor's memory, a cache line each.
struct ReclaimCounters {
  alignas(128) std::uint64_t cells_head;   ///< next free cell to take
  alignas(128) std::uint64_t cells_tail;   ///< where the next freed cell goes
  alignas(128) std::uint64_t cells_limit;  ///< cells before this one are free for every batch
  alignas(128) std::uint64_t slots_tail;   ///< where the next erased slot goes
};

/// Value cells and slots on their way from one use to the next: a trivially copyable view of two
/// rings in the executor's memory. Volatile: which cells are free is derived at open.
///
/// A cell that an update replaced, and a slot that an erase emptied, are used again only when every
/// batch that was running then has ended (Epochs). So a value that a reader found stays whole, and
/// no slot changes its key under a reader or an updater: that is what makes the read path one probe
/// without validation, and the update one CAS. An erased slot waits in state kInsertState, where
/// nobody claims it and recovery clears it.
///
/// Invariants:
///  1. [cells_head, cells_limit) are free for every batch; [cells_limit, cells_tail) are retired
///  and
///     wait for their epoch. Batches take no more than was reserved for them (StoreImpl).
///  2. A cell is at most twice in the ring (once taken and maybe still being read by its taker,
///  once
///     retired again), so 2 * cells positions never wrap onto one in use.
struct Reclaim {
  std::uint32_t* cell_ring;
  std::uint64_t cell_mask;  ///< positions - 1, a power of two less one; >= 2 * cells
  std::uint64_t* slot_ring;
  std::uint64_t slot_mask;
  ReclaimCounters* counters;

  /// Takes a free cell. @return false when there is none
  GPM_HD bool TakeCell(std::uint32_t* cell) const {
    const std::uint64_t position = AtomicAdd(&counters->cells_head, 1);
    if (position >= AtomicLoad(&counters->cells_limit)) {
      AtomicAdd(&counters->cells_head, ~std::uint64_t{0});
      return false;
    }
    *cell = cell_ring[position & cell_mask];
    return true;
  }

  /// Queues a cell that no slot references any more (durably so).
  GPM_HD void RetireCell(std::uint32_t cell) const {
    cell_ring[AtomicAdd(&counters->cells_tail, 1) & cell_mask] = cell;
  }

  /// Queues an erased slot, by TableView::SlotId. Room was reserved by the batch.
  GPM_HD void RetireSlot(std::uint64_t slot_id) const {
    slot_ring[AtomicAdd(&counters->slots_tail, 1) & slot_mask] = slot_id;
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_TABLE_RECLAIM_H_
