#ifndef GPM_ENGINE_EPOCHS_H_
#define GPM_ENGINE_EPOCHS_H_

#include <cstdint>
#include <deque>
#include <map>

namespace gpm {

/// How far the queues of a Reclaim have come; read from the executor when a batch ends.
struct ReclaimPositions {
  std::uint64_t cells_head = 0;
  std::uint64_t cells_tail = 0;
  std::uint64_t slots_tail = 0;
};

/// What a batch may take from and add to the queues at most.
struct Reservation {
  std::uint64_t cells = 0;  ///< value cells taken
  std::uint64_t slots = 0;  ///< slots erased
};

/// Which retired cells and erased slots are past the reach of every running batch, and how many
/// cells are spoken for.
///
/// Thread safety: none; the store serializes.
///
/// Invariants:
///  1. Batches have increasing ids. What was retired before position p, read when some batch ended,
///     is free once no batch with an id up to the newest at that moment runs: only those can have
///     seen it. `limit` and `slots_safe` are such positions.
///  2. The running batches together never take more than [head, limit): each one's reservation is
///     counted in full until it ends.
class Epochs {
 public:
  /// Slots [from, to) of the slot queue, for one batch to give back before it begins.
  struct SlotRange {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
  };

  /// Starts a batch. @param give_back set to the erased slots that are safe and not yet given back
  std::uint64_t Begin(const Reservation& reservation, SlotRange* give_back);

  /// Ends a batch. @param positions read after its last access to the queues
  void End(std::uint64_t id, const ReclaimPositions& positions);

  /// Nothing runs, and all erased slots were given back: everything retired is free.
  void Quiesced(const ReclaimPositions& positions);

  /// Free cells that no running batch has a claim on.
  std::uint64_t available_cells() const;
  /// Positions of the slot queue that may hold slots, were all running batches to erase what they
  /// reserved.
  std::uint64_t slots_pending() const;
  std::uint64_t limit() const { return limit_; }
  /// First erased slot that no batch was told to give back.
  std::uint64_t slots_given_back() const { return slots_given_back_; }
  bool idle() const { return running_.empty(); }

 private:
  struct Running {
    Reservation reservation;
    SlotRange give_back;
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
  std::uint64_t limit_ = 0;
  std::uint64_t slots_safe_ = 0;
  std::uint64_t slots_given_back_ = 0;
};

}  // namespace gpm

#endif  // GPM_ENGINE_EPOCHS_H_
