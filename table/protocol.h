#ifndef GPM_TABLE_PROTOCOL_H_
#define GPM_TABLE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>

#include "table/commit.h"
#include "table/slot_writer.h"

namespace gpm {

/// The protocols of the table, written once for all key sizes and executors. They start from those
/// of GPHash, section 3.2.3; docs/CRASH_CONSISTENCY.md has what they decide otherwise, and why.
///
/// @tparam Group the threads that work on one operation together: one host thread, or a tile of a
///         warp. All of them call each function with the same arguments.
/// @tparam Media how persistent memory is read, written and ordered (DirectMedia has the contract)
///
/// Thread safety: any number of groups at once, on the same and on different keys.
///
/// Invariants that the protocols rely on and keep:
///  1. A slot's key never changes while a batch runs that could have seen it: erased slots stay in
///     state kInsertState, unclaimable, until all such batches have ended (Reclaim). So after a
///     probe that matched, the slot's reference is a value the key had, or has.
///  2. A cell that a reference named is not written until all batches that could have read the
///     reference have ended. So a value is read whole, and a reference never has the same bits for
///     two values within an operation: CAS on it has no ABA problem. (Inline values can: then the
///     two values are equal, and so are the outcomes.)
///  3. In the addressable levels, state words change only kEmptyState -> kInsertState (one claimer,
///     by CAS), kInsertState -> word (its claimer), word -> kInsertState (one eraser, by CAS),
///     kInsertState -> kEmptyState (reclaim and recovery). With a directory a slot is claimed
///     there, and its state goes kEmptyState -> word. What happens in others, and while no batch
///     runs, table/draining.h says.
///  4. References change by CAS from the value that was read (with a directory, by who holds the
///     key's lock), or by the slot's claimer.
///  5. Where values lie in cells, both words of a slot of the addressable levels are 0, durably,
///     before anybody can claim it in the directory (FreeSlots). So of an insert that writes both
///     in any order a crash leaves nothing, the item, or a half slot (TableView::IsHalf).
template <class Group, class Media>
class Operations : public SlotWriter<Group, Media> {
  using Probing = TableProbe<Group, Media>;
  using Base = SlotWriter<Group, Media>;

 public:
  using Base::Base;
  using Base::CellOf;
  using Base::Commit;
  using Base::Lock;
  using Base::TryLock;
  using Base::Unlock;
  using Probing::PlaceFor;
  using typename Base::Change;
  using typename Base::Work;

  /// Carries out a plan on one key, atomically.
  /// @param candidates Locate of the key
  /// @param hint where a probe of this batch found the key, if it did: saves the search if it is
  ///        still there
  GPM_HD Outcome Apply(const Candidates& candidates, const std::uint64_t* key, const Plan& plan,
                       const Hint& hint = {}) const {
    Work work = Start(candidates, key, plan, 1);
    work.hint = hint;
    // An item that was found is most likely still there, so that no lock is needed to add it.
    if (hint.slot.bucket != nullptr && !work.covered) work.lock_first = false;
    ApplyAlone(&work);
    return work.outcome;
  }

  /// Find of a key that a probe of this batch has found, where no directory covers it.
  GPM_HD Outcome FindAgain(const Candidates& candidates, const Hint& hint) const {
    Outcome outcome;
    if (!StillHolds(candidates, hint)) return outcome;
    outcome.present = true;
    outcome.position = hint.position;
    outcome.reference = LoadOnce(table_.Reference(hint.slot));
    return outcome;
  }

  GPM_HD Work Start(const Candidates& candidates, const std::uint64_t* key, const Plan& plan,
                    std::uint32_t uses) const {
    Work work;
    work.candidates = candidates;
    work.key = key;
    // (Part by part: a plan that was just made of words is not there as one vector until all stores
    // before it are, which may miss the CPU's caches.)
    work.plan.if_absent = plan.if_absent;
    work.plan.if_present = plan.if_present;
    work.plan.absent_value = plan.absent_value;
    work.plan.present_value = plan.present_value;
    work.uses = uses;
    work.covered = directory_.enabled();
    // With a directory, every writer holds the key's lock. Without, inserts do: at once, or, for an
    // upsert, which often finds the key, when it did not.
    work.lock_first = work.covered
                          ? plan.if_absent != Action::kKeep || plan.if_present != Action::kKeep
                          : plan.if_absent == Action::kWrite && plan.if_present == Action::kKeep;
    return work;
  }

  /// Carries out an operation that was started, alone.
  GPM_HD void ApplyAlone(Work* work) const {
    GroupCommit(TeamOfOne(group_), *this, work, true, NobodyWaits{}, [](bool) {});
  }

  /// Looks for the key, and makes ready what the plan says then: an update's cell, or an insert's
  /// slot, but for its state. Ends the operation when there is nothing to change. Waits for the
  /// key's lock.
  GPM_HD void Begin(Work* work) const {
    do {
      if (work->lock_first && !work->locked) {
        Lock(work->candidates);
        work->locked = true;
      }
    } while (!LookAndPrepare(work));
  }

  /// The same, but does nothing when somebody else holds the lock. @return false then
  GPM_HD bool TryBegin(Work* work) const {
    do {
      if (work->lock_first && !work->locked) {
        work->locked = TryLock(work->candidates);
        if (!work->locked) return false;
      }
    } while (!LookAndPrepare(work));
    return true;
  }

  /// Tells the cache of a change before it is made: what searches find until Finish is the old
  /// reference, with which they do not take the new value.
  GPM_HD void TellCache(const Work& work) const {
    if (!work.covered || table_.inline_values()) return;
    const std::uint32_t position = work.outcome.position;
    const std::uint32_t bucket = BucketIndex(work.candidates, position);
    const std::uint32_t slot = position & (table_.slots - 1);
    const std::uint32_t was =
        work.change == Change::kInsert ? CacheView::kNone : table_.CellOf(work.outcome.reference);
    if (work.change == Change::kErase) {
      cache_.Drop(bucket, slot, was);
    } else {
      cache_.Put(bucket, slot, was, work.fresh.reference, work.fresh.source);
    }
  }

  /// Tells the directory of a change that persistent memory has, and ends the operation.
  GPM_HD void Finish(Work* work) const {
    const std::uint32_t position = work->outcome.position;
    const Slot slot = SlotOf(*work);
    group_.Sync();
    if (group_.IsLeader()) {
      if (table_.changes.enabled()) table_.changes.Mark(work->candidates.hash);
      if (table_.log != nullptr) table_.log->Add(work->candidates.hash, work->key);
      const std::uint64_t reference = work->fresh.reference;
      switch (work->change) {
        case Change::kUpdate:
          if (work->covered) directory_.Updated(work->candidates, position, reference);
          if (!table_.inline_values()) reclaim_.RetireCell(CellOf(work->outcome.reference));
          break;
        case Change::kErase:
          if (work->covered) directory_.Erased(work->candidates, position);
          reclaim_.RetireSlot(table_.SlotId(slot));
          break;
        default:
          if (work->covered) {
            directory_.Inserted(work->candidates, position, work->key, reference);
          }
          break;
      }
    }
    group_.Sync();  // no thread of the group begins what follows before it is told
    End(work);
  }

  /// An item that keeps its value reference, on its way to a slot of the addressable levels; for
  /// rehashing, while nobody else inserts its key: ClaimFor, what FenceBeforePublish is for,
  /// Commit, FenceBeforeAck, Placed.
  GPM_HD Work StartItem(const std::uint64_t* key, std::uint64_t reference) const {
    Work item;
    item.candidates = LocateKey(table_, key);
    item.key = key;
    item.fresh.reference = reference;
    item.change = Change::kInsert;
    item.covered = directory_.enabled();
    return item;
  }
  enum class Claim : std::uint8_t { kMade, kIsThere, kNoSlot };
  /// Claims a slot for it, unless the key has one, and writes what nobody can reach yet.
  /// @param levels so many, the newest, may take it @param rather as for PlaceFor
  GPM_HD Claim ClaimFor(Work* item, std::uint32_t levels = kMaxLevels, int rather = -1) const {
    for (;;) {
      const Probe probe = ProbeSlots(item->candidates, item->key);
      if (probe.match != 0) return Claim::kIsThere;
      const std::uint32_t slots = levels * table_.locations * table_.slots;
      const std::uint32_t empty = slots < 32 ? probe.empty & ((1u << slots) - 1) : probe.empty;
      const int choice = PlaceFor(empty, rather);
      if (choice < 0) return Claim::kNoSlot;
      if (ClaimAt(item, static_cast<std::uint32_t>(choice))) return Claim::kMade;
    }
  }
  /// Whether ClaimFor writes something that has to persist before the item is published.
  GPM_HD bool PreparesItems() const {
    return table_.key_words > 1 || !directory_.enabled() || table_.inline_values();
  }
  /// Tells the directory that it is there, durably.
  GPM_HD void Placed(const Work& item) const {
    if (item.covered && group_.IsLeader()) {
      directory_.Inserted(item.candidates, item.outcome.position, item.key, item.fresh.reference);
    }
    group_.Sync();
  }

  /// Inserts an item that keeps its value reference, alone.
  /// @param levels as for ClaimFor
  /// @return false when no slot was free there; true when it is in the addressable levels (now, or
  ///         already)
  GPM_HD bool InsertReference(const std::uint64_t* key, std::uint64_t reference,
                              std::uint32_t levels = kMaxLevels) const {
    Work item = StartItem(key, reference);
    const Claim claim = ClaimFor(&item, levels);
    if (claim == Claim::kMade) PublishAlone(&item);
    return claim != Claim::kNoSlot;
  }

  /// Frees one candidate slot of a key for whom InsertReference found none, while no batch runs:
  /// its item is moved to another of that item's candidate slots. (Cuckoo hashing's displacement,
  /// one step of it, as in Level hashing, OSDI 2018.) Others may do the same at once, and
  /// InsertReference for keys that are not in the addressable levels.
  /// @return false when none can be moved
  GPM_HD bool MakeRoomFor(const Candidates& candidates) const {
    if (candidates.reserved >= 0) return false;
    for (std::uint32_t p = 0; p < table_.candidate_buckets() * table_.slots; ++p) {
      const Slot from = SlotAt(candidates, p);
      const std::uint64_t word = Base::LoadState(from);
      if (word == kEmptyState) return true;
      if (word == kInsertState) continue;
      KeyBuffer key;
      LoadSlotKey(table_, media_, from, word, key.words);
      const Candidates own = LocateKey(table_, key.words);
      Lock(own);
      const bool moved = Base::LoadState(from) == word && MoveAside(own, key.words, from);
      Unlock(own);
      if (moved) return true;
    }
    return false;
  }

 private:
  using Base::ClaimSlot;
  using Base::directory_;
  using Base::FreeSlots;
  using Base::group_;
  using Base::media_;
  using Base::Prepare;
  using Base::PublishesPair;
  using Base::reclaim_;
  using Base::SlotAt;
  using Base::SlotOf;
  using Base::table_;
  using Probing::BucketIndex;
  using Probing::cache_;
  using Probing::LoadOnce;
  using Probing::ProbeSlots;
  using Probing::ReferenceAt;

  /// Claims a candidate slot for an item. @return false when somebody else took it
  GPM_HD bool ClaimAt(Work* item, std::uint32_t position) const {
    item->outcome.position = position;
    item->slot = SlotAt(item->candidates, position);
    if (!ClaimSlot(*item)) return false;
    if (item->covered && !table_.inline_values()) {
      cache_.Clear(BucketIndex(item->candidates, position), item->slot.index);
    }
    return true;
  }
  GPM_HD void PublishAlone(Work* item) const {
    FenceBeforePublish(TeamOfOne(group_), media_, Step::kInsertContentsFence,
                       table_.key_words > 1 || !PublishesPair(*item));
    Commit(item);
    FenceBeforeAck(TeamOfOne(group_), media_, Step::kInsertDoneFence);
    Placed(*item);
  }

  /// Moves the item in a slot to another of its candidate slots; first there, then not here. A
  /// crash in between leaves two copies that are the same. @return false when it has no other
  GPM_HD bool MoveAside(const Candidates& candidates, const std::uint64_t* key, Slot from) const {
    const Probe probe = ProbeSlots(candidates, key, true);
    const int choice = PlaceFor(probe.empty);
    if (probe.match == 0 || choice < 0) return false;
    const std::uint32_t position = LowestBit(probe.match);
    const Slot valid = SlotAt(candidates, position);
    if (valid.bucket != from.bucket || valid.index != from.index) return false;  // damage
    Work work = StartItem(key, Base::LoadReference(from));
    if (!ClaimAt(&work, static_cast<std::uint32_t>(choice))) return false;
    PublishAlone(&work);
    if (work.covered && !table_.inline_values()) {
      cache_.Drop(BucketIndex(candidates, position), from.index,
                  table_.CellOf(work.fresh.reference));
    }
    FreeSlots([&](const auto& visit) { visit(from); }, false);
    return true;
  }

  /// Whether the key is in the slot of a hint: a slot's key does not change within a batch
  /// (invariant 1), and no other slot has a copy (KeyLocks).
  GPM_HD bool StillHolds(const Candidates& candidates, const Hint& hint) const {
    return hint.slot.bucket != nullptr && LoadOnce(table_.State(hint.slot)) == candidates.word;
  }

  /// Looks for the key, and makes ready what the plan says then.
  /// @return false when the lock is needed before it is known
  GPM_HD bool LookAndPrepare(Work* work) const {
    const Candidates& candidates = work->candidates;
    const Plan& plan = work->plan;
    Outcome& outcome = work->outcome;
    work->change = Change::kNothing;
    for (bool again = true; again;) {
      again = false;
      outcome = {};
      const bool holds = StillHolds(candidates, work->hint);
      const Probe probe =
          holds ? Probe{.match = 1u << work->hint.position} : ProbeSlots(candidates, work->key);
      outcome.present = probe.match != 0;
      const Action action = outcome.present ? plan.if_present : plan.if_absent;
      if (outcome.present) {
        if (work->locked && !work->covered) {
          Unlock(candidates);
          work->locked = false;
        }
        outcome.position = LowestBit(probe.match);
        if constexpr (Group::kSize == 1) {
          work->slot = holds ? work->hint.slot : SlotAt(candidates, outcome.position);
        }
        outcome.reference = work->covered ? ReferenceAt(candidates, probe)
                                          : LoadOnce(table_.Reference(SlotOf(*work)));
        if (action == Action::kErase) work->change = Change::kErase;
      } else if (action == Action::kWrite) {
        if (!work->locked) {
          work->lock_first = true;
          return false;
        }
        const bool waits = table_.composed && candidates.reserved >= 0;
        const int choice = waits ? -1 : PlaceFor(probe.empty);
        if (choice < 0) {
          outcome.shortage = Shortage::kSlot;
          break;
        }
        outcome.position = static_cast<std::uint32_t>(choice);
        if constexpr (Group::kSize == 1) work->slot = SlotAt(candidates, outcome.position);
      }
      if (!WritesValue(action)) break;
      const std::byte* value = outcome.present ? plan.present_value : plan.absent_value;
      if (action == Action::kAdd) {
        // (A cell that was found is not written again before the batch ends. But an inline value
        // may come back, when `sum` is that of another: what was made ahead counts until then.)
        const std::uint64_t* const made_of = plan.addends->made_of;
        if (made_of == nullptr || *made_of != outcome.reference) {
          plan.addends->made_of = nullptr;
          Sum(*this, candidates, outcome, plan.addends);
        }
        value = plan.addends->sum;
        work->fresh.source = nullptr;  // what a former attempt wrote is the sum of another value
      }
      if (!Prepare(value, outcome.present, &work->fresh)) {
        outcome.shortage = Shortage::kCell;
      } else if (outcome.present) {
        work->change = Change::kUpdate;
      } else {
        again = !ClaimSlot(*work);  // another insert took it
        if (!again) work->change = Change::kInsert;
      }
    }
    if (work->change == Change::kNothing) End(work);
    return true;
  }

  /// Adds rows to the value that a key has; the sum is in Addends::sum. Whoever changes that value
  /// meanwhile, which is possible without a directory, makes Commit fail. Out of line, with copies
  /// of what it needs, so that operations of other kinds keep all of it in registers.
  GPM_NOINLINE static GPM_HD void Sum(Probing probe, Candidates candidates, Outcome outcome,
                                      const Addends* addends) {
    const Group& group = probe.group();
    group.Sync();
    probe.ReadFound(candidates, outcome, addends->sum);
    group.Sync();
    AddRows(group, *addends, probe.table().value_size);
    group.Sync();
  }

  /// Counts the use, and gives back what the operation has left.
  GPM_HD void End(Work* work) const {
    if (work->covered && work->outcome.present) {
      cache_.Count(BucketIndex(work->candidates, work->outcome.position), work->uses);
    }
    if (work->locked) Unlock(work->candidates);
    work->locked = false;
    if (work->fresh.has_cell && !reclaim_.grant.filled() && group_.IsLeader()) {
      reclaim_.RetireCell(work->fresh.cell);
    }
    work->fresh.has_cell = false;
  }
};

}  // namespace gpm

#endif  // GPM_TABLE_PROTOCOL_H_
