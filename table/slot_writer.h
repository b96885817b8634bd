#ifndef GPM_TABLE_SLOT_WRITER_H_
#define GPM_TABLE_SLOT_WRITER_H_

#include <cstddef>
#include <cstdint>

#include "table/commit.h"
#include "table/free_queues.h"
#include "table/key_locks.h"
#include "table/probe.h"

namespace gpm {

/// What the protocols (table/protocol.h, whose invariants are meant here) write: values, and the
/// words of slots, in the order that persists; and the locks of keys.
///
/// @tparam Group, Media as for Operations
template <class Group, class Media>
class SlotWriter : public TableProbe<Group, Media> {
  using Base = TableProbe<Group, Media>;

 public:
  using Base::CellOf;

  GPM_HD SlotWriter(const TableView& table, const Reclaim& reclaim, const KeyLocks& locks,
                    const Accelerators& accelerators, const Group& group, const Media& media)
      : Base(table, accelerators, group, media), reclaim_(reclaim), locks_(locks) {}

  /// A value made ready for publication, kept over retries.
  struct NewValue {
    const std::byte* source = nullptr;  ///< the value
    std::uint64_t reference = 0;
    std::uint32_t cell = 0;
    bool has_cell = false;  ///< a cell was taken and is not published
  };

  /// What an operation changes.
  enum class Change : std::uint8_t { kNothing, kUpdate, kErase, kInsert };

  // The fences of an operation alone: after Begin, and after Commit.
  static GPM_HD Step PreparedFence(Change change) {
    return change == Change::kInsert ? Step::kInsertContentsFence : Step::kUpdateCellFence;
  }
  static GPM_HD Step DoneFence(Change change) {
    return change == Change::kInsert   ? Step::kInsertDoneFence
           : change == Change::kUpdate ? Step::kUpdateDoneFence
                                       : Step::kEraseDoneFence;
  }

  /// An operation on its way through the steps (commit.h): Begin (or TryBegin), and if there is
  /// something to change TellCache, Commit (begin again if it fails), Finish.
  struct Work {
    Candidates candidates;
    const std::uint64_t* key = nullptr;
    Plan plan;
    std::uint32_t uses = 1;
    Hint hint;
    Outcome outcome;
    Slot slot;  ///< of the outcome's position
    NewValue fresh;
    Change change = Change::kNothing;
    bool covered = false;     ///< by the directory
    bool lock_first = false;  ///< before the key is looked for
    bool locked = false;      ///< the key's lock is held
  };

  /// Writes a value to a free cell of the grant before it is known whether it is wanted there.
  GPM_HD void WriteAhead(std::uint32_t cell, const std::byte* value) const {
    std::byte* const target = table_.Cell(cell * table_.cell_bytes);
    media_.WriteCell(group_, target, value, table_.value_size);
    FlushOnce(Step::kCellFlush, target, table_.value_size);
  }

  /// Gives an operation, before it begins, a free cell of the grant that was counted as taken. It
  /// queues the cell again if it does not need it, unless the grant is filled.
  /// @param written the value that the cell has already, or null
  GPM_HD void GiveCell(Work* work, std::uint32_t cell, const std::byte* written = nullptr) const {
    work->fresh.source = written;
    work->fresh.cell = cell;
    work->fresh.reference = work->fresh.cell * table_.cell_bytes;
    work->fresh.has_cell = true;
  }

  /// Makes the change, with one write. @return false when somebody else came first, and nothing was
  /// done; never with a directory
  GPM_HD bool Commit(Work* work) const {
    const Slot slot = SlotOf(*work);
    std::uint64_t* const state = table_.State(slot);
    const std::uint64_t word = work->candidates.word;
    switch (work->change) {
      case Change::kUpdate:
        if (!Replace(*work, Step::kUpdateReferenceCas, Step::kUpdateReferenceFlush,
                     table_.Reference(slot), work->outcome.reference, work->fresh.reference)) {
          return false;
        }
        break;
      case Change::kErase:
        return Replace(*work, Step::kEraseStateCas, Step::kEraseStateFlush, state, word,
                       kInsertState);
      default:
        if (!group_.IsLeader()) break;
        if (PublishesPair(*work)) {
          media_.StorePair(state, word, work->fresh.reference);
          media_.Flush(Step::kInsertStateFlush, state, 2 * sizeof *state);
        } else {
          media_.Store(state, word);
          media_.Flush(Step::kInsertStateFlush, state, sizeof *state);
        }
        break;
    }
    work->fresh.has_cell = false;
    return true;
  }

  /// Flushes all that an earlier result for this key may rest on, to be durable after the next
  /// Fence. Another batch may have published it and not have come to its own fence yet.
  GPM_HD void FlushCandidates(const Candidates& candidates) const {
    if (!group_.IsLeader()) return;
    for (std::uint32_t c = 0; c < table_.candidate_buckets(); ++c) {
      std::byte* const bucket = CandidateBucket(table_, candidates, c);
      if (bucket == nullptr) continue;
      // Keys and cells are durable before the state word or reference that gives access to them.
      media_.Flush(Step::kSettleFlush, bucket, table_.pair_bytes());
    }
  }

  // A key's lock (KeyLocks), for who is about no operation. Lock waits for it.
  GPM_HD void Lock(const Candidates& candidates) const {
    if (group_.IsLeader()) media_.Acquire(Step::kKeyLock, locks_.Of(candidates.hash));
    group_.Sync();
  }
  /// @return false when somebody else has it
  GPM_HD bool TryLock(const Candidates& candidates) const {
    std::uint32_t taken = 0;
    if (group_.IsLeader()) {
      taken = media_.TryAcquire(Step::kKeyLock, locks_.Of(candidates.hash)) ? 1 : 0;
    }
    return group_.Broadcast(taken) != 0;
  }
  GPM_HD void Unlock(const Candidates& candidates) const {
    if (group_.IsLeader()) media_.Release(Step::kKeyLock, locks_.Of(candidates.hash));
  }

  /// Frees erased slots of which the epoch has passed, and their cells: every `stride`-th of
  /// positions [from, to) of their queue.
  GPM_HD void RecycleSlots(std::uint64_t from, std::uint64_t to, std::uint64_t stride) const {
    const auto for_each = [&](const auto& visit) {
      for (std::uint64_t i = from; i < to; i += stride) {
        visit(table_.SlotOf(reclaim_.slot_ring[i & reclaim_.slot_mask]));
      }
    };
    FreeSlots(for_each, true);
  }

 protected:
  /// Makes slots empty, and lets others claim them: in the directory, or of slots that it does not
  /// have by their state. Before that both words are 0, durably, since an insert writes both in any
  /// order; by the state, so that no claimer's reference meets the 0 on its way.
  ///
  ///   {kEmptyState, 0} · fence · free in the directory
  ///   {kInsertState, 0} · fence · state <- kEmptyState · fence
  ///
  /// @param for_each for_each(visit) calls visit(slot) for each
  /// @param with_cells frees their cells too
  template <class ForEach>
  GPM_HD void FreeSlots(const ForEach& for_each, bool with_cells) const {
    const bool leads = group_.IsLeader();
    for_each([&](Slot slot) {
      if (!leads) return;
      if (with_cells && !table_.inline_values()) {
        reclaim_.RetireCell(CellOf(media_.Load(table_.Reference(slot))));
      }
      EmptySlot(table_, media_, slot, Step::kGiveBackFlush,
                directory_.Has(slot) ? kEmptyState : kInsertState);
    });
    FenceBeforePublish(TeamOfOne(group_), media_, Step::kGiveBackFence);
    bool by_state = false;
    for_each([&](Slot slot) {
      if (!leads) return;
      if (directory_.Has(slot)) {
        directory_.Freed(slot);
        return;
      }
      by_state = true;
      media_.Store(table_.State(slot), kEmptyState);
      media_.Flush(Step::kGiveBackFlush, table_.State(slot), sizeof kEmptyState);
    });
    FenceBeforeAck(TeamOfOne(group_), media_, Step::kGiveBackFence, by_state);
    group_.Sync();
  }

  /// The slot of an operation's outcome: kept by a thread, worked out again by a tile, which is
  /// short of registers.
  GPM_HD Slot SlotOf(const Work& work) const {
    if constexpr (Group::kSize == 1) {
      return work.slot;
    } else {
      return SlotAt(work.candidates, work.outcome.position);
    }
  }

  /// Whether an insert writes state word and reference together (invariant 5): an item is valid
  /// when both are there. Not where a reference may be 0, nor where others look at the state in the
  /// pool.
  GPM_HD bool PublishesPair(const Work& work) const {
    return work.covered && !table_.inline_values();
  }

  /// Makes the value ready behind a reference: in the word itself, or in a free cell.
  GPM_HD bool Prepare(const std::byte* value, bool for_update, NewValue* fresh) const {
    if (table_.inline_values()) {
      fresh->source = value;
      fresh->reference = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
      for (std::uint32_t i = 0; i < table_.value_size; ++i) {
        fresh->reference |= static_cast<std::uint64_t>(value[i]) << (8 * i);
      }
      return true;
    }
    if (!fresh->has_cell) {
      std::uint32_t cell = 0;
      std::uint32_t taken = 0;
      if (group_.IsLeader()) taken = reclaim_.TakeCell(for_update, &cell) ? 1 : 0;
      if (group_.Broadcast(taken) == 0) return false;
      fresh->cell = group_.Broadcast(cell);
      fresh->reference = fresh->cell * table_.cell_bytes;
      fresh->has_cell = true;
    }
    if (fresh->source != value) {
      media_.WriteCell(group_, table_.Cell(fresh->reference), value, table_.value_size);
      FlushOnce(Step::kCellFlush, table_.Cell(fresh->reference), table_.value_size);
      fresh->source = value;
    }
    return true;
  }

  /// Insert: claim the slot · write key and reference · fence · state <- word · fence. The cell was
  /// written before. Without a directory the claim is a compare-and-swap of the state from
  /// kEmptyState to kInsertState: a crash leaves nothing, a slot that recovery clears, or the item.
  /// With a directory the claim is made there, and the slot stays empty until it is the item's; the
  /// reference is then written with the state (PublishesPair), behind the fence.
  GPM_HD bool ClaimSlot(const Work& work) const {
    const std::uint32_t position = work.outcome.position;
    const Slot slot = SlotOf(work);
    if (work.covered
            ? !directory_.Claim(work.candidates, position)
            : !CasOnce(Step::kInsertClaimCas, table_.State(slot), kEmptyState, kInsertState)) {
      return false;
    }
    if (table_.key_words > 1) {
      std::uint64_t* stored = table_.Key(slot);
      for (std::uint32_t i = group_.Lane(); i < table_.key_words; i += Group::kSize) {
        media_.Store(stored + i, work.key[i]);
      }
      FlushOnce(Step::kInsertKeyFlush, stored, 8 * table_.key_words);
    }
    if (group_.IsLeader() && !PublishesPair(work)) {
      media_.Store(table_.Reference(slot), work.fresh.reference);
      media_.Flush(Step::kInsertReferenceFlush, table_.Reference(slot),
                   sizeof work.fresh.reference);
    }
    return true;
  }

  using Base::directory_;
  using Base::group_;
  using Base::media_;
  using Base::SlotAt;
  using Base::table_;

  const Reclaim& reclaim_;
  const KeyLocks& locks_;

 private:
  GPM_HD bool CasOnce(Step step, std::uint64_t* word, std::uint64_t expected,
                      std::uint64_t desired) const {
    std::uint32_t swapped = 0;
    if (group_.IsLeader()) swapped = media_.Cas(step, word, expected, desired) ? 1 : 0;
    return group_.Broadcast(swapped) != 0;
  }

  GPM_HD void FlushOnce(Step step, const void* address, std::uint64_t bytes) const {
    if (group_.IsLeader()) media_.Flush(step, address, bytes);
  }

  /// The write that changes an item. Without a directory others may want to change it too, so it is
  /// a compare-and-swap; with one, who holds the key's lock is alone.
  ///
  /// Update: cell · fence · reference · fence · retire the old cell. A crash leaves the old value
  /// or the new one. If (without a directory) the slot was erased after the probe, the swap may
  /// still succeed: the update took effect just before that erase, and reclaim frees the cell that
  /// the reference then names.
  ///
  /// Erase: state word -> kInsertState · fence · retire the slot. A crash leaves the item, or a
  /// slot that recovery clears.
  GPM_HD bool Replace(const Work& work, Step swap, Step flush, std::uint64_t* word,
                      std::uint64_t expected, std::uint64_t desired) const {
    if (!work.covered) {
      if (!CasOnce(swap, word, expected, desired)) return false;
    } else if (group_.IsLeader()) {
      media_.Store(word, desired);
    }
    FlushOnce(flush, word, sizeof *word);
    return true;
  }
};

}  // namespace gpm

#endif  // GPM_TABLE_SLOT_WRITER_H_
