#ifndef GPM_ENGINE_TABLE_OPERATIONS_H_
#define GPM_ENGINE_TABLE_OPERATIONS_H_

#include <cstddef>
#include <cstdint>

#include "engine/table/bucket_cache.h"
#include "engine/table/key_locks.h"
#include "engine/table/layout.h"
#include "engine/table/plan.h"
#include "engine/table/reclaim.h"
#include "pm/annotate.h"
#include "pm/steps.h"

namespace gpm {

/// The protocols of the table, written once for all key sizes and executors (GPHash section 3.2.3;
/// DESIGN section 4).
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
///  3. State words change only kEmptyState -> kInsertState (one claimer, by CAS), kInsertState ->
///     word (its claimer), word -> kInsertState (one eraser, by CAS), kInsertState -> kEmptyState
///     (reclaim and recovery).
///  4. References change by CAS from the value that was read, or while the slot is in state
///     kInsertState by its claimer.
template <class Group, class Media>
class Operations {
 public:
  GPM_HD Operations(const TableView& table, const Reclaim& reclaim, const KeyLocks& locks,
                    const Accelerators& accelerators, const Group& group, const Media& media)
      : table_(table),
        reclaim_(reclaim),
        locks_(locks),
        group_(group),
        media_(media),
        directory_(accelerators.directory, table_, group_, media_),
        cache_(accelerators.cache, table_, group_, media_) {}

  /// Where a key may live.
  GPM_HD Candidates Locate(const std::uint64_t* key) const { return LocateKey(table_, key); }

  /// Candidate bucket c of a key, or null (CandidateBucket).
  GPM_HD std::byte* BucketAt(const Candidates& candidates, std::uint32_t c) const {
    return CandidateBucket(table_, candidates, c);
  }

  /// Carries out a plan on one key, atomically.
  /// @param candidates Locate of the key
  /// @param uses of the key that this stands for, for the cache to count
  /// @param hint where a probe of this batch found the key, if it did: saves the search if it is
  ///        still there
  GPM_HD Outcome Apply(const Candidates& candidates, const std::uint64_t* key, const Plan& plan,
                       std::uint32_t uses = 1, const Hint& hint = {}) const {
    Work work = Start(candidates, key, plan, uses);
    work.hint = hint;
    for (;;) {
      Begin(&work);
      switch (work.change) {
        case Change::kNothing:
          return work.outcome;
        case Change::kInsert:
          media_.Fence(Step::kInsertContentsFence);
          break;
        case Change::kUpdate:
          media_.Fence(Step::kUpdateCellFence);
          break;
        case Change::kErase:
          break;
      }
      group_.Sync();
      if (!Commit(&work)) continue;  // without a directory: another change came first, look again
      media_.Fence(work.change == Change::kInsert   ? Step::kInsertDoneFence
                   : work.change == Change::kUpdate ? Step::kUpdateDoneFence
                                                    : Step::kEraseDoneFence);
      Finish(&work);
      return work.outcome;
    }
  }

  /// A value made ready for publication, kept over retries.
  struct NewValue {
    const std::byte* source = nullptr;  ///< the value
    std::uint64_t reference = 0;
    std::uint32_t cell = 0;
    bool has_cell = false;  ///< a cell was taken and is not published
  };

  /// What an operation changes.
  enum class Change : std::uint8_t { kNothing, kUpdate, kErase, kInsert };

  /// An operation on its way through the steps of Apply, for those who take the same step of
  /// several operations at a time, with one fence for all: Begin (or TryBegin), and if there is
  /// something to change fence, Commit (begin again if it fails), fence, Finish.
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

  GPM_HD Work Start(const Candidates& candidates, const std::uint64_t* key, const Plan& plan,
                    std::uint32_t uses) const {
    Work work;
    work.candidates = candidates;
    work.key = key;
    work.plan = plan;
    work.uses = uses;
    work.covered = directory_.Covers(candidates);
    // With a directory, every writer holds the key's lock. Without, inserts do: at once, or, for an
    // upsert, which often finds the key, when it did not.
    work.lock_first = work.covered
                          ? plan.if_absent != Action::kKeep || plan.if_present != Action::kKeep
                          : plan.if_absent == Action::kWrite && plan.if_present == Action::kKeep;
    return work;
  }

  /// Writes a value to a free cell of the grant before it is known whether it is wanted there.
  GPM_HD void WriteAhead(std::uint32_t cell, const std::byte* value) const {
    std::byte* const target = table_.Cell(cell * table_.cell_bytes);
    media_.WriteCell(group_, target, value, table_.value_size);
    FlushOnce(Step::kCellFlush, target, table_.value_size);
  }

  /// Gives an operation a free cell of the grant, which was counted as taken: what it does not need
  /// it queues again. Before it begins.
  /// @param written the value that the cell has already, or null
  GPM_HD void GiveCell(Work* work, std::uint32_t cell, const std::byte* written = nullptr) const {
    work->fresh.source = written;
    work->fresh.cell = cell;
    work->fresh.reference = work->fresh.cell * table_.cell_bytes;
    work->fresh.has_cell = true;
  }

  /// Looks for the key, and makes ready what the plan says then: an update's cell, or an insert's
  /// slot, but for its state. Ends the operation when there is nothing to change. Waits for the
  /// key's lock.
  GPM_HD void Begin(Work* work) const {
    do {
      if (work->lock_first && !work->locked) {
        if (group_.IsLeader()) {
          media_.Acquire(Step::kKeyLock, locks_.Of(work->candidates.hash));
        }
        group_.Sync();
        work->locked = true;
      }
    } while (!LookAndPrepare(work));
  }

  /// The same, but does nothing when somebody else holds the lock. @return false then
  GPM_HD bool TryBegin(Work* work) const {
    do {
      if (work->lock_first && !work->locked) {
        std::uint64_t taken = 0;
        if (group_.IsLeader()) {
          taken = media_.TryAcquire(Step::kKeyLock, locks_.Of(work->candidates.hash)) ? 1 : 0;
        }
        work->locked = group_.Broadcast(taken) != 0;
        if (!work->locked) return false;
      }
    } while (!LookAndPrepare(work));
    return true;
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
        if (group_.IsLeader()) {
          media_.Store(state, word);
          media_.Flush(Step::kInsertStateFlush, state, sizeof *state);
        }
        break;
    }
    work->fresh.has_cell = false;
    return true;
  }

  /// Tells cache and directory of a change that persistent memory has, and ends the operation.
  GPM_HD void Finish(Work* work) const {
    const std::uint32_t position = work->outcome.position;
    const Slot slot = SlotOf(*work);
    if (work->covered && !table_.inline_values()) {
      const std::uint32_t bucket = BucketIndex(work->candidates, position);
      if (work->change == Change::kErase) {
        cache_.Drop(bucket, slot.index);
      } else {
        cache_.Put(bucket, slot.index, work->fresh.reference, work->fresh.source);
      }
    }
    group_.Sync();
    if (group_.IsLeader()) {
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
    End(work);
  }

  /// Apply of a plan that does nothing, for finds alone.
  /// @param uses of the key that this stands for, for the cache to count
  /// @param empty set to the candidate slots that are empty, if not null
  GPM_HD Outcome Find(const Candidates& candidates, const std::uint64_t* key,
                      std::uint32_t uses = 1, std::uint32_t* empty = nullptr) const {
    const bool covered = directory_.Covers(candidates);
    Outcome outcome;
    const Probe probe = ProbeSlots(candidates, key);
    if (empty != nullptr) *empty = probe.empty;
    if (probe.match == 0) return outcome;
    outcome.present = true;
    outcome.position = LowestBit(probe.match);
    outcome.reference = ReferenceAt(candidates, probe);
    if (covered && uses != 0) cache_.Count(BucketIndex(candidates, outcome.position), uses);
    return outcome;
  }
  /// Counts what Find was told not to.
  GPM_HD void CountUses(const Candidates& candidates, const Outcome& outcome,
                        std::uint32_t uses) const {
    if (directory_.Covers(candidates)) {
      cache_.Count(BucketIndex(candidates, outcome.position), uses);
    }
  }

  /// Looks for the value of an item that was found in the cache (CacheAccess::Find).
  GPM_HD bool FindCached(const Candidates& candidates, const Outcome& outcome,
                         typename CacheAccess<Group, Media>::Value* value) const {
    return !table_.inline_values() && directory_.Covers(candidates) &&
           cache_.Find(BucketIndex(candidates, outcome.position),
                       outcome.position & (table_.slots - 1), outcome.reference, value);
  }

  /// Copies out the value of an item that Apply found, as it was then.
  /// @param value value_size bytes
  /// @return whether the executor's memory had it
  GPM_HD bool ReadFound(const Candidates& candidates, const Outcome& outcome,
                        std::byte* value) const {
    if (ReadCached(candidates, outcome, value)) return true;
    ReadValue(outcome.reference, value);
    return table_.inline_values() && directory_.Covers(candidates);
  }
  /// The same from the cache alone. @return false when it does not have it; then `value` may hold
  /// anything
  GPM_HD bool ReadCached(const Candidates& candidates, const Outcome& outcome,
                         std::byte* value) const {
    return !table_.inline_values() && directory_.Covers(candidates) &&
           cache_.Read(BucketIndex(candidates, outcome.position),
                       outcome.position & (table_.slots - 1), outcome.reference, value);
  }

  /// The candidate slots of level top - i alone: for one thread it pays to look at the levels one
  /// by one, the highest, where most items are, first.
  /// @param buckets BucketAt of the candidate buckets of this level, at least
  GPM_HD Probe ProbeLevel(const Candidates& candidates, const std::uint64_t* key, std::uint32_t i,
                          std::byte* const* buckets) const {
    const std::uint32_t first = i * table_.locations;
    return ProbeBuckets(candidates, key, first, first + table_.locations,
                        [&](std::uint32_t c) { return buckets[c]; });
  }

  /// Where a new item goes: in the highest level that has room for it, the first empty slot of the
  /// bucket with the most empty slots (the first location, of equals); -1 when all are full.
  /// Filling the levels from the top reaches a load factor of 0.91 to 0.93 before the first resize;
  /// taking the least loaded bucket of all levels, it was 0.88 to 0.89 (2L-2H-8S, 196608 slots;
  /// test StoreTest.LoadFactorAtFirstResize, which records it).
  GPM_HD int PlaceFor(std::uint32_t empty) const {
    const std::uint32_t bucket_mask = table_.slots == 32 ? ~0u : (1u << table_.slots) - 1;
    int choice = -1;
    std::uint32_t most = 0;
    for (std::uint32_t c = 0; c < table_.candidate_buckets(); ++c) {
      if (choice >= 0 && (c & (table_.locations - 1)) == 0) break;  // a lower level begins
      const std::uint32_t bits = (empty >> (c * table_.slots)) & bucket_mask;
      const std::uint32_t count = PopCount(bits);
      if (count > most) {
        most = count;
        choice = static_cast<int>(c * table_.slots + LowestBit(bits));
      }
    }
    return choice;
  }

  /// The value reference of a slot where a probe of this batch found a key.
  GPM_HD std::uint64_t LoadReference(Slot slot) const { return LoadOnce(table_.Reference(slot)); }

  /// Names all that an earlier result for this key may rest on, to be durable after the next Fence:
  /// another batch may have published it and not have come to its own fence yet.
  GPM_HD void FlushCandidates(const Candidates& candidates) const {
    if (!group_.IsLeader()) return;
    for (std::uint32_t c = 0; c < table_.candidate_buckets(); ++c) {
      std::byte* const bucket = CandidateBucket(table_, candidates, c);
      if (bucket == nullptr) continue;
      // Keys and cells are durable before the state word or reference that gives access to them.
      media_.Flush(Step::kSettleFlush, bucket, 8 * table_.slots);
      media_.Flush(Step::kSettleFlush, bucket + table_.reference_offset, 8 * table_.slots);
    }
  }

  /// Inserts an item that keeps its value reference; for rehashing, while no batch runs.
  /// @return false when no slot was free; true when it is in the addressable levels (now, or
  ///         already)
  GPM_HD bool InsertReference(const std::uint64_t* key, std::uint64_t reference) const {
    Work work;
    work.candidates = LocateKey(table_, key);
    work.key = key;
    work.fresh.reference = reference;
    work.change = Change::kInsert;
    work.covered = directory_.Covers(work.candidates);
    for (;;) {
      const Probe probe = ProbeSlots(work.candidates, key);
      if (probe.match != 0) return true;
      const int choice = PlaceFor(probe.empty);
      if (choice < 0) return false;
      work.outcome.position = static_cast<std::uint32_t>(choice);
      work.slot = SlotAt(work.candidates, work.outcome.position);
      if (!ClaimSlot(work)) continue;
      media_.Fence(Step::kInsertContentsFence);
      group_.Sync();
      Commit(&work);
      media_.Fence(Step::kInsertDoneFence);
      if (work.covered && group_.IsLeader()) {
        directory_.Inserted(work.candidates, work.outcome.position, key, reference);
      }
      return true;
    }
  }

  /// Whether a copy of this slot's key that takes precedence over it exists in the addressable
  /// levels; for recovery. `word` is the slot's state, its key is `key`.
  GPM_HD bool IsDuplicate(Slot slot, const std::uint64_t* key) const {
    const Candidates candidates = LocateKey(table_, key);
    const Probe probe = ProbeSlots(candidates, key);
    if (probe.match == 0) return false;
    const Slot valid = SlotAt(candidates, LowestBit(probe.match));
    return valid.bucket != slot.bucket || valid.index != slot.index;
  }

  /// The same for a slot of a level that is being drained and that has no copy in the addressable
  /// levels: whether another one of the levels being drained has, the highest first. Only damage
  /// leaves such copies.
  GPM_HD bool IsDrainedDuplicate(Slot slot, const std::uint64_t* key) const {
    const Candidates candidates = LocateKey(table_, key);
    if (candidates.reserved >= 0) return false;
    for (std::uint32_t level = table_.top - table_.levels + 1; level-- > table_.bottom;) {
      for (std::uint32_t j = 0; j < table_.locations; ++j) {
        std::byte* const bucket =
            table_.Bucket(level, BucketNumber(table_, candidates.hash, level, j));
        for (std::uint32_t s = 0; s < table_.slots; ++s) {
          const Slot other{bucket, s};
          if (media_.Load(table_.State(other)) == candidates.word && HoldsKey(other, key)) {
            return bucket != slot.bucket || s != slot.index;
          }
        }
      }
    }
    return false;
  }

  /// Whether a slot of the bottom level is where its key hashes to, under the key's word.
  GPM_HD bool IsInPlace(Slot slot, std::uint64_t word, const std::uint64_t* key) const {
    const Candidates candidates = LocateKey(table_, key);
    for (std::uint32_t j = 0; j < table_.locations && candidates.word == word; ++j) {
      const std::uint64_t number = BucketNumber(table_, candidates.hash, table_.bottom, j);
      if (table_.Bucket(table_.bottom, number) == slot.bucket) return true;
    }
    return false;
  }

  /// Copies out the value that a reference names.
  /// @param value value_size bytes
  GPM_HD void ReadValue(std::uint64_t reference, std::byte* value) const {
    if (table_.inline_values()) {
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
      for (std::uint32_t i = group_.Lane(); i < table_.value_size; i += Group::kSize) {
        value[i] = static_cast<std::byte>(reference >> (8 * i));
      }
    } else {
      media_.ReadCell(group_, value, table_.Cell(reference), table_.value_size);
    }
  }

  /// Gives an erased slot back when its epoch has passed: frees its cell, then the slot.
  GPM_HD void GiveBackSlot(std::uint64_t slot_id) const {
    if (!group_.IsLeader()) return;
    const Slot slot = table_.SlotOf(slot_id);
    if (!table_.inline_values()) {
      reclaim_.RetireCell(CellOf(media_.Load(table_.Reference(slot))));
    }
    media_.Store(table_.State(slot), kEmptyState);
    media_.Flush(Step::kGiveBackFlush, table_.State(slot), sizeof(std::uint64_t));
    if (!directory_.enabled()) return;
    media_.FenceShared();  // who claims the slot next writes its state behind this
    directory_.GivenBack(slot);
  }

  /// For making the directory anew, while no batch runs.
  GPM_HD const DirectoryAccess<Group, Media>& directory() const { return directory_; }

  GPM_HD std::uint32_t CellOf(std::uint64_t reference) const {
    return static_cast<std::uint32_t>(reference / table_.cell_bytes);
  }

 private:
  /// Whether the key is in the slot of a hint: a slot's key does not change within a batch
  /// (invariant 1), and no other slot has a copy (KeyLocks).
  GPM_HD bool StillHolds(const Candidates& candidates, const Hint& hint) const {
    return hint.slot.bucket != nullptr && LoadOnce(table_.State(hint.slot)) == candidates.word;
  }

  /// One-shot access: reads the states of all candidate slots at once (GPHash section 3.1).
  GPM_HD Probe ProbeSlots(const Candidates& candidates, const std::uint64_t* key) const {
    if (directory_.Covers(candidates)) {
      Probe probe = directory_.Search(candidates, key);
      if (!directory_.has_keys()) probe.match = KeepEqualKeys(candidates, probe.match, key);
      return probe;
    }
    if constexpr (Group::kSize == 1) {
      return ProbeBuckets(candidates, key, 0, table_.candidate_buckets(),
                          [&](std::uint32_t c) { return CandidateBucket(table_, candidates, c); });
    } else {
      Probe probe;
      const std::uint32_t total = table_.candidate_buckets() * table_.slots;
      constexpr std::uint32_t kRounds = 32 / Group::kSize;
      std::uint64_t state[kRounds];
      for (std::uint32_t k = 0; k < kRounds; ++k) {  // all loads in flight before the first use
        const std::uint32_t position = k * Group::kSize + group_.Lane();
        state[k] = kInsertState;  // neither empty nor a word
        if (position < total) {
          const std::byte* bucket =
              CandidateBucket(table_, candidates, position >> table_.slot_bits);
          if (bucket != nullptr) {
            state[k] = media_.Load(reinterpret_cast<const std::uint64_t*>(bucket) +
                                   (position & (table_.slots - 1)));
          }
        }
      }
      for (std::uint32_t k = 0; k < kRounds; ++k) {
        probe.match |= group_.Ballot(state[k] == candidates.word) << (k * Group::kSize);
        probe.empty |= group_.Ballot(state[k] == kEmptyState) << (k * Group::kSize);
      }
      if (table_.key_words > 1) probe.match = KeepEqualKeys(candidates, probe.match, key);
      return probe;
    }
  }

  /// The same by one thread, for candidate buckets [first, last).
  template <class BucketOf>
  GPM_HD Probe ProbeBuckets(const Candidates& candidates, const std::uint64_t* key,
                            std::uint32_t first, std::uint32_t last,
                            const BucketOf& bucket_of) const {
    Probe probe;
    for (std::uint32_t c = first; c < last; ++c) {
      const std::byte* bucket = bucket_of(c);
      if (bucket == nullptr) continue;
      const auto bits = media_.MatchBucket(reinterpret_cast<const std::uint64_t*>(bucket),
                                           table_.slots, candidates.word);
      probe.match |= bits.match << (c * table_.slots);
      probe.empty |= bits.empty << (c * table_.slots);
    }
    if (table_.key_words > 1) probe.match = KeepEqualKeys(candidates, probe.match, key);
    return probe;
  }

  /// Of slots whose fingerprint matched, those whose key does.
  GPM_HD std::uint32_t KeepEqualKeys(const Candidates& candidates, std::uint32_t match,
                                     const std::uint64_t* key) const {
    std::uint32_t equal = 0;
    for (std::uint32_t rest = match; rest != 0; rest &= rest - 1) {
      const std::uint32_t position = LowestBit(rest);
      const std::uint64_t* stored = table_.Key(SlotAt(candidates, position));
      bool differs = false;
      for (std::uint32_t i = group_.Lane(); i < table_.key_words; i += Group::kSize) {
        differs |= media_.Load(stored + i) != key[i];
      }
      if (group_.Ballot(differs) == 0) equal |= 1u << position;
    }
    return equal;
  }

  /// Whether a slot whose word matched holds the key; by one thread.
  GPM_HD bool HoldsKey(Slot slot, const std::uint64_t* key) const {
    if (table_.key_words == 1) return true;
    const std::uint64_t* stored = table_.Key(slot);
    for (std::uint32_t i = 0; i < table_.key_words; ++i) {
      if (media_.Load(stored + i) != key[i]) return false;
    }
    return true;
  }

  GPM_HD Slot SlotAt(const Candidates& candidates, std::uint32_t position) const {
    return Slot{CandidateBucket(table_, candidates, position >> table_.slot_bits),
                (position & (table_.slots - 1))};
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

  /// One value of a word, the same for the whole group.
  GPM_HD std::uint64_t LoadOnce(const std::uint64_t* word) const {
    std::uint64_t value = 0;
    if (group_.IsLeader()) value = media_.Load(word);
    return group_.Broadcast(value);
  }

  GPM_HD bool CasOnce(Step step, std::uint64_t* word, std::uint64_t expected,
                      std::uint64_t desired) const {
    std::uint64_t swapped = 0;
    if (group_.IsLeader()) swapped = media_.Cas(step, word, expected, desired) ? 1 : 0;
    return group_.Broadcast(swapped) != 0;
  }

  GPM_HD void FlushOnce(Step step, const void* address, std::uint64_t bytes) const {
    if (group_.IsLeader()) media_.Flush(step, address, bytes);
  }

  GPM_HD void Unlock(const Candidates& candidates) const {
    if (group_.IsLeader()) media_.Release(Step::kKeyLock, locks_.Of(candidates.hash));
  }

  /// Makes the value ready behind a reference: in the word itself, or in a free cell.
  GPM_HD bool Prepare(const std::byte* value, NewValue* fresh) const {
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
      std::uint64_t taken = 0;
      if (group_.IsLeader()) taken = reclaim_.TakeCell(&cell) ? 1 : 0;
      if (group_.Broadcast(taken) == 0) return false;
      fresh->cell = static_cast<std::uint32_t>(group_.Broadcast(cell));
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

  /// The value reference of the key that a probe found.
  GPM_HD std::uint64_t ReferenceAt(const Candidates& candidates, const Probe& probe) const {
    if (probe.cell != 0) return probe.cell * table_.cell_bytes;
    const std::uint32_t position = LowestBit(probe.match);
    return directory_.Covers(candidates) ? directory_.Reference(candidates, position)
                                         : LoadOnce(table_.Reference(SlotAt(candidates, position)));
  }
  GPM_HD std::uint32_t BucketIndex(const Candidates& candidates, std::uint32_t position) const {
    return directory_.IndexOf(candidates, position >> table_.slot_bits);
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
      if (probe.match != 0) {
        if (work->locked && !work->covered) {
          Unlock(candidates);
          work->locked = false;
        }
        outcome.present = true;
        outcome.position = LowestBit(probe.match);
        work->slot = holds ? work->hint.slot : SlotAt(candidates, outcome.position);
        outcome.reference =
            work->covered ? ReferenceAt(candidates, probe) : LoadOnce(table_.Reference(work->slot));
        if (plan.if_present == Action::kErase) {
          work->change = Change::kErase;
        } else if (plan.if_present == Action::kWrite) {
          if (Prepare(plan.present_value, &work->fresh)) {
            work->change = Change::kUpdate;
          } else {
            outcome.lack = Lack::kCell;
          }
        }
      } else if (plan.if_absent == Action::kWrite) {
        if (!work->locked) {
          work->lock_first = true;
          return false;
        }
        const int choice = PlaceFor(probe.empty);
        if (choice < 0) {
          outcome.lack = Lack::kSlot;
        } else if (!Prepare(plan.absent_value, &work->fresh)) {
          outcome.lack = Lack::kCell;
        } else {
          outcome.position = static_cast<std::uint32_t>(choice);
          work->slot = SlotAt(candidates, outcome.position);
          again = !ClaimSlot(*work);  // another insert took it
          if (!again) work->change = Change::kInsert;
        }
      }
    }
    if (work->change == Change::kNothing) End(work);
    return true;
  }

  /// Counts the use, and gives back what the operation has left.
  GPM_HD void End(Work* work) const {
    if (work->covered && work->outcome.present) {
      cache_.Count(BucketIndex(work->candidates, work->outcome.position), work->uses);
    }
    if (work->locked) Unlock(work->candidates);
    work->locked = false;
    if (work->fresh.has_cell && group_.IsLeader()) reclaim_.RetireCell(work->fresh.cell);
    work->fresh.has_cell = false;
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

  /// Insert: claim the slot · write key and reference · fence · state <- word · fence. The cell was
  /// written before. Without a directory the claim is a compare-and-swap of the state from
  /// kEmptyState to kInsertState: a crash leaves nothing, a slot that recovery clears, or the item.
  /// With one it is made in the directory, and the state stays kEmptyState until it is the item's:
  /// what the slot holds otherwise means nothing until then.
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
    if (group_.IsLeader()) {
      media_.Store(table_.Reference(slot), work.fresh.reference);
      media_.Flush(Step::kInsertReferenceFlush, table_.Reference(slot),
                   sizeof work.fresh.reference);
    }
    return true;
  }

  const TableView& table_;
  const Reclaim& reclaim_;
  const KeyLocks& locks_;
  const Group group_;
  const Media media_;
  const DirectoryAccess<Group, Media> directory_;
  const CacheAccess<Group, Media> cache_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_TABLE_OPERATIONS_H_
