#ifndef GPM_ENGINE_EPOCHS_H_
#define GPM_ENGINE_EPOCHS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>

#include "table/free_queues.h"

namespace gpm {

/// How far the queues of a Reclaim have come; read from the executor when a batch ends.
struct ReclaimPositions {
  std::uint64_t cells_tail = 0;
  std::uint64_t slots_tail = 0;
};

/// What a batch may take from and add to the queues at most.
struct Reservation {
  std::uint64_t cells = 0;                       ///< value cells
  std::uint64_t slots = 0;                       ///< slots that it erases
  std::uint64_t given_back = ~std::uint64_t{0};  ///< erased slots that it makes free
};

/// Which retired cells and erased slots are past the reach of every running batch, and which cells
/// each batch may take.
///
/// Thread safety: none; the store serializes.
///
/// Invariants:
///  1. Batches have increasing ids. What was retired before position p, read when some batch ended,
///     is free once no batch with an id up to the newest at that moment runs: only those can have
///     seen it. `limit` and `slots_safe` are such positions.
///  2. [head, limit) are free cells that no batch was granted; those before `sorted` are in the
///     order of their addresses, but for some that batches left which were granted more.
///  3. While cells are held, those from position `hold` on are not free: a snapshot may still have
///     to read them.
///  4. Each erased slot is given back once, in the order of the queue: [slots_recycled, slots_safe)
///     by the next batches, as many as each may, or with all others by who is alone
///     (Space::Reclaim).
class Epochs {
 public:
  /// Slots [from, to) of the slot queue, for one batch to give back before it begins.
  struct SlotRange {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
  };

  /// Starts a batch. @throws std::bad_alloc; then nothing has changed
  /// @param recycle set to the first erased slots that are safe and not yet given back, as many as
  ///        it may give back
  /// @param grant set to the cells that it may take: those it needs, or as many as there are
  std::uint64_t Begin(const Reservation& reservation, SlotRange* recycle, CellGrant* grant);

  /// Grants up to `cells` more to a batch that runs alone.
  CellGrant GrantCells(std::uint64_t cells);

  /// Keeps so many of the free cells for updates, which give one back for each that they take: a
  /// grant that reaches into them says so.
  void KeepCells(std::uint64_t cells) { kept_ = cells; }
  std::uint64_t kept_cells() const { return kept_; }

  /// Takes back the last `left` cells of a grant, of which nothing was taken.
  /// @return false when others were granted cells since: then they have to be queued again
  bool TakeBack(const CellGrant& grant, std::uint64_t left);

  /// Free cells that it pays to sort before a batch takes `cells` of them, so that what is written
  /// at a time is close together; none where few are free, or all are sorted. They count as sorted
  /// from then on.
  CellGrant ToSort(std::uint64_t cells);

  /// Ends a batch. @param positions read after its last access to the queues
  void End(std::uint64_t id, const ReclaimPositions& positions) noexcept;

  /// Nothing runs, and nobody takes what is in the queue of cells any more: all of them that are
  /// free will be queued anew.
  void DiscardCells(const ReclaimPositions& positions);

  /// Nothing runs, and all erased slots were given back: everything retired is free.
  void Quiesced(const ReclaimPositions& positions);

  /// Holds what is queued from a position on, the queue's end: nobody gets it until it is released.
  void HoldCells(std::uint64_t position) { hold_ = position; }
  void ReleaseCells() { hold_ = kNoHold; }
  bool holds_cells() const { return hold_ != kNoHold; }
  /// All in the queue from `head` on was queued again, behind it: first what was free, and what is
  /// new, up to `hold`. REQUIRES: cells are held, nothing runs.
  void Requeued(std::uint64_t head, std::uint64_t hold) {
    head_ = sorted_ = head;
    hold_ = hold;
  }

  /// Free cells that no batch was granted.
  std::uint64_t available_cells() const { return limit() - head_; }
  /// Cells that are in the queue; and erased slots, each of which holds one. Exact when idle.
  std::uint64_t queued() const {
    return known_.cells_tail - head_ + known_.slots_tail - slots_recycled_;
  }
  /// Id of the batch that Begin starts next.
  std::uint64_t next_id() const { return next_id_; }
  /// First cell of the queue that no batch was granted.
  std::uint64_t head() const { return head_; }
  /// Positions of the slot queue that may hold slots, were all running batches to erase what they
  /// reserved.
  std::uint64_t slots_pending() const;
  /// First erased slot that no batch was told to give back.
  std::uint64_t slots_recycled() const { return slots_recycled_; }
  /// Erased slots that are safe, and wait for batches to give them back.
  std::uint64_t slots_waiting() const { return slots_safe_ - slots_recycled_; }

 private:
  static constexpr std::uint64_t kNoHold = ~std::uint64_t{0};
  std::uint64_t limit() const { return std::min(limit_, hold_); }
  struct Running {
    Reservation reservation;
    SlotRange recycle;
  };
  struct Grace {
    std::uint64_t cells_tail;
    std::uint64_t slots_tail;
    std::uint64_t last_id;  ///< newest batch at that moment
  };

  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Running> running_;
  std::deque<Grace> graces_;
  ReclaimPositions known_;
  std::uint64_t head_ = 0;
  std::uint64_t limit_ = 0;  ///< by epochs alone
  std::uint64_t hold_ = kNoHold;
  std::uint64_t sorted_ = 0;
  std::uint64_t kept_ = 0;
  std::uint64_t slots_safe_ = 0;
  std::uint64_t slots_recycled_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_EPOCHS_H_
