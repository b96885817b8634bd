#ifndef GPM_TABLE_PROBE_H_
#define GPM_TABLE_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "pm/annotate.h"
#include "pm/steps.h"
#include "table/layout.h"
#include "table/matching.h"
#include "table/plan.h"
#include "table/value_cache.h"

namespace gpm {

/// Finding keys in the table, and reading their values: what the protocols (table/protocol.h) begin
/// with. Writes nothing but what the cache counts.
///
/// @tparam Group, Media as for Operations
template <class Group, class Media>
class TableProbe {
 public:
  /// Empty slots that PlaceFor looks for in a bucket of the newest level (in small buckets, one).
  static constexpr std::uint32_t kSpareSlots = 2;

  GPM_HD TableProbe(const TableView& table, const Accelerators& accelerators, const Group& group,
                    const Media& media)
      : table_(table),
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
  /// The same, and the cache keeps what was read. REQUIRES: nobody else writes `value` meanwhile.
  GPM_HD bool ReadAndKeep(const Candidates& candidates, const Outcome& outcome,
                          std::byte* value) const {
    const bool hit = ReadFound(candidates, outcome, value);
    if (!hit) Keep(candidates, outcome, value);
    return hit;
  }
  /// The same from the cache alone. @return false when it does not have it; then `value` may hold
  /// anything
  GPM_HD bool ReadCached(const Candidates& candidates, const Outcome& outcome,
                         std::byte* value) const {
    return !table_.inline_values() && directory_.Covers(candidates) &&
           cache_.Read(BucketIndex(candidates, outcome.position),
                       outcome.position & (table_.slots - 1), outcome.reference, value);
  }
  /// Puts a value that a find has read into the cache, if there is a place for it. REQUIRES: as
  /// ReadAndKeep.
  GPM_HD void Keep(const Candidates& candidates, const Outcome& outcome,
                   const std::byte* value) const {
    if (table_.inline_values() || !directory_.Covers(candidates)) return;
    group_.Sync();
    cache_.Keep(directory_.view(), BucketIndex(candidates, outcome.position),
                outcome.position & (table_.slots - 1), outcome.reference, value);
  }

  /// The candidate slots of level i alone: for one thread it pays to look at the levels one by one,
  /// the newest, where most items are, first.
  /// @param buckets BucketAt of the candidate buckets of this level, at least
  GPM_HD Probe ProbeLevel(const Candidates& candidates, const std::uint64_t* key, std::uint32_t i,
                          std::byte* const* buckets) const {
    const std::uint32_t first = i * table_.locations;
    return ProbeBuckets(candidates, key, first, first + table_.locations,
                        [&](std::uint32_t c) { return buckets[c]; });
  }

  /// Where a new item goes: to the newest level of which a bucket has kSpareSlots empty ones; if
  /// none has so many, to the bucket of any level that has the most (the oldest, of equal levels).
  /// There it gets the first empty slot of the emptier bucket (the first location, of equals).
  /// -1 when all are full.
  ///
  /// So the last slot of a bucket of the newest level is kept for who finds no other: an older one,
  /// which was the newest once, is nearly full after a growth, and helps few. Of a table that has
  /// grown by quarters to 16 M slots, some item finds no slot from a load factor of 0.85 on; with
  /// the newest level filled to the last slot, from 0.80 on. One that is filled for the first time
  /// comes to 0.88 for it, instead of 0.89 (or of 0.92, where levels are a factor of 2 apart).
  /// @param rather a location whose bucket of the newest level takes it if that has kSpareSlots
  ///        empty ones, whatever the others have; negative: none
  GPM_HD int PlaceFor(std::uint32_t empty, int rather = -1) const {
    const std::uint32_t bucket_mask = table_.slots == 32 ? ~0u : (1u << table_.slots) - 1;
    const std::uint32_t spare = table_.slots < 2 * kSpareSlots ? 1 : kSpareSlots;
    if (rather >= 0) {
      const std::uint32_t first = static_cast<std::uint32_t>(rather) * table_.slots;
      const std::uint32_t bits = (empty >> first) & bucket_mask;
      if (PopCount(bits) >= spare) return static_cast<int>(first + LowestBit(bits));
    }
    int choice = -1;
    std::uint32_t most = 0;
    for (std::uint32_t c = 0; c < table_.candidate_buckets() && most < spare;) {
      int place = -1;
      std::uint32_t most_of_level = 0;
      for (const std::uint32_t end = c + table_.locations; c < end; ++c) {
        const std::uint32_t bits = (empty >> (c * table_.slots)) & bucket_mask;
        const std::uint32_t count = PopCount(bits);
        if (count <= most_of_level) continue;
        most_of_level = count;
        place = static_cast<int>(c * table_.slots + LowestBit(bits));
      }
      if (place < 0 || most_of_level < most) continue;
      most = most_of_level;
      choice = place;
    }
    return choice;
  }

  /// The value reference of a slot where a probe of this batch found a key.
  GPM_HD std::uint64_t LoadReference(Slot slot) const { return LoadOnce(table_.Reference(slot)); }

  /// Whether the addressable levels have a copy of this slot's key that takes precedence over it.
  /// For recovery. @param key the slot's
  GPM_HD bool IsDuplicate(Slot slot, const std::uint64_t* key) const {
    const Slot valid = FindWhole(LocateKey(table_, key), key);
    return valid.bucket != nullptr && (valid.bucket != slot.bucket || valid.index != slot.index);
  }

  /// Where a key is in the addressable levels after a crash: of its copies the valid one, and none
  /// that is half-inserted; its bucket is null when it is nowhere.
  GPM_HD Slot FindWhole(const Candidates& candidates, const std::uint64_t* key) const {
    std::uint32_t match = ProbeSlots(candidates, key).match;
    for (; match != 0; match &= match - 1) {
      const Slot slot = SlotAt(candidates, LowestBit(match));
      if (!table_.IsHalf(candidates.word, LoadReference(slot))) return slot;
    }
    return {};
  }

  /// The same among the levels that are being drained, for a slot there whose key has no copy in
  /// the addressable levels. Only damage leaves such copies.
  GPM_HD bool IsDrainedDuplicate(Slot slot, const std::uint64_t* key) const {
    const Slot valid = FindDrained(LocateKey(table_, key), key);
    return valid.bucket != nullptr && (valid.bucket != slot.bucket || valid.index != slot.index);
  }

  /// Where a key is in the levels that are being drained, the newest of which takes precedence; its
  /// bucket is null when it is nowhere.
  /// @param key null: any key with this word, in these buckets
  GPM_HD Slot FindDrained(const Candidates& candidates, const std::uint64_t* key) const {
    const bool knows = directory_.knows_drained();
    const std::uint16_t fingerprint = DirectoryView::FingerprintOf(candidates.hash);
    Slot found;
    ForEachDrained(candidates, [&](std::byte* bucket) {
      std::uint32_t match = 0;
      for (std::uint32_t first = 0; found.bucket == nullptr && first < table_.slots;
           first += Group::kSize) {
        const Slot slot{bucket, first + group_.Lane()};
        const bool mine = slot.index < table_.slots &&
                          (!knows || directory_.DrainedPrint(slot) == fingerprint) &&
                          media_.Load(table_.State(slot)) == candidates.word;
        match |= group_.Ballot(mine) << first;
      }
      for (; match != 0 && found.bucket == nullptr; match &= match - 1) {
        const Slot slot{bucket, LowestBit(match)};
        if (key == nullptr || HoldsKey(slot, key)) found = slot;
      }
    });
    return found;
  }

  /// Whether a key may have an item in a level that is being drained, or one that has just been
  /// moved up and of which that is not durable. Reads no persistent memory where the directory
  /// knows the level's fingerprints, unless one of them is the key's.
  /// @param closely looks at the words behind such fingerprints, too: most are then the key's
  GPM_HD bool MayBeBelow(const Candidates& candidates, bool closely) const {
    const bool knows = directory_.knows_drained();
    if (knows && !directory_.MayBeDrained(candidates)) return false;
    if (knows && !closely) return true;
    const std::uint16_t fingerprint = DirectoryView::FingerprintOf(candidates.hash);
    bool may_be = false;
    ForEachDrained(candidates, [&](std::byte* bucket) {
      for (std::uint32_t s = group_.Lane(); s < table_.slots; s += Group::kSize) {
        const Slot slot{bucket, s};
        if (knows && directory_.DrainedPrint(slot) != fingerprint) continue;
        const std::uint64_t word = media_.Load(table_.State(slot));
        may_be |= word == candidates.word || word == kInsertState || (knows && word == kEmptyState);
      }
    });
    return group_.Ballot(may_be) != 0;
  }

  /// Calls visit(bucket) for each bucket where a key may be in the levels that are being drained,
  /// those of the newest first.
  template <class Visit>
  GPM_HD void ForEachDrained(const Candidates& candidates, const Visit& visit) const {
    if (candidates.reserved >= 0) return;
    for (std::uint32_t level = table_.levels; level < table_.level_count; ++level) {
      for (std::uint32_t j = 0; j < table_.locations; ++j) visit(BucketOf(candidates, level, j));
    }
  }

  /// At which of its key's locations a slot of the oldest level is, under the key's word; negative:
  /// it is not where the key hashes to.
  GPM_HD int LocationIn(Slot slot, std::uint64_t word, const Candidates& candidates) const {
    for (std::uint32_t j = 0; j < table_.locations && candidates.word == word; ++j) {
      if (BucketOf(candidates, table_.level_count - 1, j) == slot.bucket)
        return static_cast<int>(j);
    }
    return -1;
  }
  GPM_HD bool IsInPlace(Slot slot, std::uint64_t word, const std::uint64_t* key) const {
    return LocationIn(slot, word, LocateKey(table_, key)) >= 0;
  }

  /// The bucket at a location of any level. REQUIRES: the key does not live in the reserved level.
  GPM_HD std::byte* BucketOf(const Candidates& candidates, std::uint32_t level,
                             std::uint32_t location) const {
    return table_.Bucket(
        level, BucketNumber(candidates.hash, location, table_.level_views[level].part_buckets));
  }

  GPM_HD std::uint64_t LoadState(Slot slot) const { return LoadOnce(table_.State(slot)); }
  /// Both words of a slot.
  GPM_HD void LoadItem(Slot slot, std::uint64_t* word, std::uint64_t* reference) const {
    if (group_.IsLeader()) media_.LoadPair(table_.State(slot), word, reference);
    *word = group_.Broadcast(*word);
    *reference = group_.Broadcast(*reference);
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

  GPM_HD const DirectoryAccess<Group, Media>& directory() const { return directory_; }

  GPM_HD std::uint32_t CellOf(std::uint64_t reference) const { return table_.CellOf(reference); }

  GPM_HD const TableView& table() const { return table_; }
  GPM_HD const Group& group() const { return group_; }
  GPM_HD const Media& media() const { return media_; }

 protected:
  /// One-shot access: reads the fingerprints, or the states, of all candidate slots at once (GPHash
  /// section 3.1).
  GPM_HD Probe ProbeSlots(const Candidates& candidates, const std::uint64_t* key) const {
    if (!directory_.Covers(candidates)) {
      if constexpr (MatchesManyBuckets<Media>) {
        return ProbeAllStates(candidates, key);
      } else {
        return ProbeStates(table_, group_, media_, candidates, key);
      }
    }
    Probe probe = directory_.Search(candidates, key);
    if (!directory_.has_keys() && probe.match != 0) {
      probe.match = KeepEqual(table_, group_, media_, candidates, probe.match, key);
    }
    return probe;
  }

  /// ProbeSlots and KeepEqualKeys where the directory does not know: out of line, since that is
  /// rare where there is one.
  GPM_NOINLINE static GPM_HD Probe ProbeStates(const TableView& table, Group group, Media media,
                                               Candidates candidates, const std::uint64_t* key) {
    return TableProbe(table, Accelerators{}, group, media).ProbeAllStates(candidates, key);
  }
  GPM_NOINLINE static GPM_HD std::uint32_t KeepEqual(const TableView& table, Group group,
                                                     Media media, Candidates candidates,
                                                     std::uint32_t match,
                                                     const std::uint64_t* key) {
    return TableProbe(table, Accelerators{}, group, media).KeepEqualKeys(candidates, match, key);
  }
  GPM_HD Probe ProbeAllStates(const Candidates& candidates, const std::uint64_t* key) const {
    if constexpr (MatchesManyBuckets<Media>) {
      const std::uint32_t total = table_.candidate_buckets();
      std::byte* buckets[32];
      for (std::uint32_t c = 0; c < total; ++c) buckets[c] = CandidateBucket(table_, candidates, c);
      BucketMatch bits;
      media_.MatchBuckets(buckets, table_.slots, total, &candidates.word, 1, &bits);
      Probe probe{bits.match, bits.empty};
      if (table_.key_words > 1) probe.match = KeepEqualKeys(candidates, probe.match, key);
      return probe;
    } else if constexpr (Group::kSize == 1) {
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
                                   2 * (position & (table_.slots - 1)));
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

  /// One value of a word, the same for the whole group.
  GPM_HD std::uint64_t LoadOnce(const std::uint64_t* word) const {
    std::uint64_t value = 0;
    if (group_.IsLeader()) value = media_.Load(word);
    return group_.Broadcast(value);
  }

  /// The value reference of the key that a probe found.
  GPM_HD std::uint64_t ReferenceAt(const Candidates& candidates, const Probe& probe) const {
    if (probe.cell != 0) return probe.cell * table_.cell_bytes;
    const std::uint32_t position = LowestBit(probe.match);
    return directory_.Covers(candidates)
               ? directory_.Reference(candidates, position)
               : StoredReference(table_, group_, media_, candidates, position);
  }
  GPM_NOINLINE static GPM_HD std::uint64_t StoredReference(const TableView& table, Group group,
                                                           Media media, Candidates candidates,
                                                           std::uint32_t position) {
    const TableProbe probe(table, Accelerators{}, group, media);
    return probe.LoadOnce(table.Reference(probe.SlotAt(candidates, position)));
  }
  GPM_HD std::uint32_t BucketIndex(const Candidates& candidates, std::uint32_t position) const {
    return directory_.IndexOf(candidates, position >> table_.slot_bits);
  }

  const TableView& table_;
  const Group group_;
  const Media media_;
  const DirectoryAccess<Group, Media> directory_;
  const CacheAccess<Group, Media> cache_;
};

}  // namespace gpm

#endif  // GPM_TABLE_PROBE_H_
