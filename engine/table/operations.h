#ifndef GPM_ENGINE_TABLE_OPERATIONS_H_
#define GPM_ENGINE_TABLE_OPERATIONS_H_

#include <cstddef>
#include <cstdint>

#include "engine/table/bucket_cache.h"
#include "engine/table/key_locks.h"
#include "engine/table/layout.h"
#include "engine/table/reclaim.h"
#include "pm/annotate.h"
#include "pm/steps.h"

namespace gpm {

/// What to do with a key, depending on whether it is there. Every operation is a plan, and so is
/// any sequence of operations on one key (engine/combine.h).
enum class Action : std::uint8_t { kKeep, kWrite, kErase };

struct Plan {
  Action if_absent = Action::kKeep;  ///< kKeep or kWrite
  Action if_present = Action::kKeep;
  const std::byte* absent_value = nullptr;   ///< value_size bytes; written if absent
  const std::byte* present_value = nullptr;  ///< written if present
};

/// What an operation could not go on for want of; nothing was changed then.
enum class Lack : std::uint8_t { kNothing, kSlot, kCell };

/// What Apply found, and did.
struct Outcome {
  bool present = false;         ///< the key was there before
  bool copied = false;          ///< present: and found in a copy of its bucket
  bool cached = false;          ///< copied: and its value is cached, too
  Lack lack = Lack::kNothing;   ///< the plan could not be carried out
  std::uint64_t reference = 0;  ///< present: the value reference it had
  CacheHit hit;                 ///< copied: where
};

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
                    const CacheView& cache, const Group& group, const Media& media)
      : table_(table),
        reclaim_(reclaim),
        locks_(locks),
        group_(group),
        media_(media),
        cache_(cache, table_, group_, media_) {}

  GPM_HD const CacheAccess<Group, Media>& cache() const { return cache_; }

  /// Where a key may live.
  GPM_HD Candidates Locate(const std::uint64_t* key) const { return LocateKey(table_, key); }

  /// Calls visit(bucket) for the key's candidate buckets in level top - i, to prefetch them.
  template <class Visit>
  void VisitBucketsOfLevel(const Candidates& candidates, std::uint32_t i,
                           const Visit& visit) const {
    for (std::uint32_t j = 0; j < table_.locations; ++j) {
      const std::byte* bucket = CandidateBucket(table_, candidates, i * table_.locations + j);
      if (bucket != nullptr) visit(bucket);
    }
  }

  /// Carries out a plan on one key, atomically.
  /// @param candidates Locate of the key
  /// @param uses of the key that this stands for, for the cache to count
  GPM_HD Outcome Apply(const Candidates& candidates, const std::uint64_t* key, const Plan& plan,
                       std::uint32_t uses = 1) const {
    NewValue fresh;
    bool locked = false;  // the key's lock is held
    // An insert takes it at once; an upsert, which often finds the key, when it did not.
    bool lock_first = plan.if_absent == Action::kWrite && plan.if_present == Action::kKeep;
    bool look_in_cache = cache_.enabled();
    for (;;) {
      if (lock_first && !locked) {
        if (group_.IsLeader()) media_.Acquire(Step::kInsertLock, locks_.Of(candidates.hash));
        group_.Sync();
        locked = true;
      }
      Outcome outcome;
      Probe probe;
      std::uint32_t position = 0;
      const CacheAnswer answer = look_in_cache
                                     ? cache_.Find(candidates, key, &outcome.hit, &probe.empty)
                                     : CacheAnswer::kUnknown;
      if (answer == CacheAnswer::kPresent) {
        outcome.present = true;
        outcome.copied = true;
        outcome.cached = cache_.HasValue(outcome.hit);
        position = outcome.hit.position;
        outcome.reference = outcome.hit.reference;
      } else if (answer == CacheAnswer::kUnknown) {
        probe = ProbeSlots(candidates, key);
        if (probe.match != 0) {
          outcome.present = true;
          position = LowestBit(probe.match);
          outcome.reference = LoadOnce(table_.Reference(SlotAt(candidates, position)));
        }
      }
      if (outcome.present) {
        if (locked) Unlock(candidates);
        locked = false;
        if (plan.if_present == Action::kWrite) {
          if (!Prepare(plan.present_value, &fresh)) {
            outcome.lack = Lack::kCell;
          } else if (!Update(candidates, position, outcome, fresh)) {
            continue;  // another update came first: look again
          } else {
            fresh.has_cell = false;
          }
        } else if (plan.if_present == Action::kErase) {
          if (!Erase(candidates, position, outcome)) continue;  // somebody erased it first
        }
        cache_.Count(candidates, position >> table_.slot_bits, uses);
      } else if (plan.if_absent == Action::kWrite && !locked) {
        lock_first = true;
        continue;
      } else if (plan.if_absent == Action::kWrite) {
        const int choice = PlaceFor(probe.empty);
        const bool by_copies = answer == CacheAnswer::kAbsent;
        if (choice < 0 && by_copies) {
          look_in_cache = false;  // slots that were given back are not empty in copies
          continue;
        }
        if (choice < 0) {
          outcome.lack = Lack::kSlot;
        } else if (!Prepare(plan.absent_value, &fresh)) {
          outcome.lack = Lack::kCell;
        } else if (!Insert(candidates, static_cast<std::uint32_t>(choice), key, fresh)) {
          look_in_cache = false;  // another insert took the slot: look again
          continue;
        } else {
          fresh.has_cell = false;
        }
      }
      if (locked) Unlock(candidates);
      if (fresh.has_cell && group_.IsLeader()) reclaim_.RetireCell(fresh.cell);
      return outcome;
    }
  }

  /// Copies out the value of an item that Apply found, as it was then.
  /// @param value value_size bytes
  GPM_HD void ReadFound(const Outcome& outcome, std::byte* value) const {
    if (outcome.cached && !table_.inline_values() && cache_.ReadValue(outcome.hit, value)) return;
    ReadValue(outcome.reference, value);
  }

  /// FindSlot in level top - i alone: for one thread it pays to look at the levels one by one, the
  /// highest, where most items are, first.
  bool FindSlotInLevel(const Candidates& candidates, const std::uint64_t* key, std::uint32_t i,
                       Slot* slot) const {
    const std::uint32_t first = i * table_.locations;
    const Probe probe = ProbeBuckets(candidates, key, first, first + table_.locations);
    if (probe.match == 0) return false;
    *slot = SlotAt(candidates, LowestBit(probe.match));
    return true;
  }

  /// The value reference of a slot that FindSlot found in this batch.
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
    const Candidates candidates = LocateKey(table_, key);
    for (;;) {
      const Probe probe = ProbeSlots(candidates, key);
      if (probe.match != 0) return true;
      const int choice = PlaceFor(probe.empty);
      if (choice < 0) return false;
      if (ClaimAndPublish(candidates, static_cast<std::uint32_t>(choice), key, reference)) {
        return true;
      }
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
  }

  GPM_HD std::uint32_t CellOf(std::uint64_t reference) const {
    return static_cast<std::uint32_t>(reference / table_.cell_bytes);
  }

 private:
  /// Candidate slots that hold the key, and that are empty; bit c * slots + s.
  struct Probe {
    std::uint32_t match = 0;
    std::uint32_t empty = 0;
  };

  /// A value made ready for publication, kept over retries.
  struct NewValue {
    const std::byte* source = nullptr;  ///< the value
    std::uint64_t reference = 0;
    std::uint32_t cell = 0;
    bool has_cell = false;  ///< a cell was taken and is not published
  };

  /// One-shot access: reads the states of all candidate slots at once (GPHash section 3.1).
  GPM_HD Probe ProbeSlots(const Candidates& candidates, const std::uint64_t* key) const {
    if constexpr (Group::kSize == 1) {
      return ProbeBuckets(candidates, key, 0, table_.candidate_buckets());
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
  GPM_HD Probe ProbeBuckets(const Candidates& candidates, const std::uint64_t* key,
                            std::uint32_t first, std::uint32_t last) const {
    Probe probe;
    for (std::uint32_t c = first; c < last; ++c) {
      const std::byte* bucket = CandidateBucket(table_, candidates, c);
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
    if (group_.IsLeader()) media_.Release(Step::kInsertLock, locks_.Of(candidates.hash));
  }

  /// Makes the value ready behind a reference: in the word itself, or in a free cell.
  GPM_HD bool Prepare(const std::byte* value, NewValue* fresh) const {
    if (table_.inline_values()) {
      fresh->source = value;
      fresh->reference = 0;
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

  GPM_HD CacheLock LockFound(const Candidates& candidates, std::uint32_t position,
                             const Outcome& found) const {
    return cache_.Lock(candidates, position >> table_.slot_bits,
                       found.copied ? &found.hit : nullptr);
  }

  /// The writes, each with what keeps a copy of the bucket equal to it.
  GPM_HD bool Update(const Candidates& candidates, std::uint32_t position, const Outcome& found,
                     const NewValue& fresh) const {
    const CacheLock lock = LockFound(candidates, position, found);
    const Slot slot = SlotAt(candidates, position);
    const bool done = ReplaceReference(slot, found.reference, fresh.reference);
    if (done) {
      cache_.UnlockUpdated(lock, slot.index, fresh.reference, fresh.source);
    } else {
      cache_.Unlock(lock);
    }
    return done;
  }
  GPM_HD bool Erase(const Candidates& candidates, std::uint32_t position,
                    const Outcome& found) const {
    const CacheLock lock = LockFound(candidates, position, found);
    const Slot slot = SlotAt(candidates, position);
    const bool done = EraseSlot(slot, candidates.word);
    if (done) {
      cache_.UnlockErased(lock, slot.index);
    } else {
      cache_.Unlock(lock);
    }
    return done;
  }
  GPM_HD bool Insert(const Candidates& candidates, std::uint32_t position, const std::uint64_t* key,
                     const NewValue& fresh) const {
    const CacheLock lock = cache_.Lock(candidates, position >> table_.slot_bits, nullptr);
    const bool done = ClaimAndPublish(candidates, position, key, fresh.reference);
    if (done) {
      cache_.UnlockInserted(lock, position & (table_.slots - 1), candidates.word, key,
                            fresh.reference, fresh.source);
    } else {
      cache_.Unlock(lock);
    }
    return done;
  }

  /// Update: cell · fence · CAS reference · fence · retire the old cell. A crash leaves the old
  /// value or the new one. If the slot was erased after the probe, the CAS may still succeed: the
  /// update took effect just before that erase, and reclaim frees the cell that the reference then
  /// names.
  GPM_HD bool ReplaceReference(Slot slot, std::uint64_t old_reference,
                               std::uint64_t new_reference) const {
    std::uint64_t* reference = table_.Reference(slot);
    media_.Fence(Step::kUpdateCellFence);
    group_.Sync();
    if (!CasOnce(Step::kUpdateReferenceCas, reference, old_reference, new_reference)) return false;
    FlushOnce(Step::kUpdateReferenceFlush, reference, sizeof *reference);
    media_.Fence(Step::kUpdateDoneFence);
    if (!table_.inline_values() && group_.IsLeader()) reclaim_.RetireCell(CellOf(old_reference));
    return true;
  }

  /// Erase: CAS state word -> kInsertState · fence · retire the slot. A crash leaves the item, or a
  /// slot that recovery clears.
  GPM_HD bool EraseSlot(Slot slot, std::uint64_t word) const {
    std::uint64_t* state = table_.State(slot);
    if (!CasOnce(Step::kEraseStateCas, state, word, kInsertState)) return false;
    FlushOnce(Step::kEraseStateFlush, state, sizeof *state);
    media_.Fence(Step::kEraseDoneFence);
    if (group_.IsLeader()) reclaim_.RetireSlot(table_.SlotId(slot));
    return true;
  }

  /// Insert: CAS state kEmptyState -> kInsertState · write key and reference · fence · state <-
  /// word · fence. The cell was written before. A crash leaves nothing, a slot that recovery
  /// clears, or the item.
  GPM_HD bool ClaimAndPublish(const Candidates& candidates, std::uint32_t position,
                              const std::uint64_t* key, std::uint64_t reference) const {
    const Slot slot = SlotAt(candidates, position);
    std::uint64_t* state = table_.State(slot);
    if (!CasOnce(Step::kInsertClaimCas, state, kEmptyState, kInsertState)) return false;
    if (table_.key_words > 1) {
      std::uint64_t* stored = table_.Key(slot);
      for (std::uint32_t i = group_.Lane(); i < table_.key_words; i += Group::kSize) {
        media_.Store(stored + i, key[i]);
      }
      FlushOnce(Step::kInsertKeyFlush, stored, 8 * table_.key_words);
    }
    if (group_.IsLeader()) {
      media_.Store(table_.Reference(slot), reference);
      media_.Flush(Step::kInsertReferenceFlush, table_.Reference(slot), sizeof reference);
    }
    media_.Fence(Step::kInsertContentsFence);
    group_.Sync();
    if (group_.IsLeader()) {
      media_.Store(state, candidates.word);
      media_.Flush(Step::kInsertStateFlush, state, sizeof *state);
    }
    media_.Fence(Step::kInsertDoneFence);
    return true;
  }

  const TableView& table_;
  const Reclaim& reclaim_;
  const KeyLocks& locks_;
  const Group group_;
  const Media media_;
  const CacheAccess<Group, Media> cache_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_TABLE_OPERATIONS_H_
