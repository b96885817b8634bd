#ifndef GPM_TABLE_PROBE_H_
#define GPM_TABLE_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pm/annotate.h"
#include "pm/steps.h"
#include "table/directory.h"
#include "table/plan.h"
#include "table/state_probe.h"
#include "table/value_cache.h"

namespace gpm {

/// Finding keys in the table, and reading their values: what the protocols (table/protocol.h) begin
/// with. Writes nothing but what the cache counts.
///
/// @tparam Group, Media as for Operations
template <class Group, class Media>
class TableProbe : public StateProbe<Group, Media> {
  using States = StateProbe<Group, Media>;

 public:
  using States::BucketOf;
  using States::HoldsKey;
  using States::LoadReference;
  using States::SlotAt;
  using CachedValue = typename CacheAccess<Group, Media>::Value;

  /// Empty slots that PlaceFor looks for in a bucket of the newest level (in small buckets, one).
  static constexpr std::uint32_t kSpareSlots = 2;

  GPM_HD TableProbe(const TableView& table, const Accelerators& accelerators, const Group& group,
                    const Media& media)
      : States(table, group, media),
        directory_(accelerators.directory, table_, group_, media_),
        cache_(accelerators.cache, table_, group_, media_) {}

  /// Before Locate, for a Find that looks for the value in the cache, too.
  GPM_HD CachedValue BeginFind() const { return cache_.Begin(); }

  /// Where a key may live.
  GPM_HD Candidates Locate(const std::uint64_t* key) const { return LocateKey(table_, key); }

  /// Apply of a plan that does nothing, for finds alone.
  /// @param uses of the key that this stands for, for the cache to count
  /// @param empty set to the candidate slots that are empty if the key is not there, if not null
  /// @param cached what BeginFind gave, or null; set to the value in the cache
  GPM_HD Outcome Find(const Candidates& candidates, const std::uint64_t* key,
                      std::uint32_t uses = 1, std::uint32_t* empty = nullptr,
                      CachedValue* cached = nullptr) const {
    const bool covered = directory_.enabled();
    Outcome outcome;
    if (cached != nullptr) cache_.FenceBegin();
    const Probe probe = ProbeSlots(candidates, key);
    if (empty != nullptr) *empty = probe.empty;
    if (probe.match == 0) return outcome;
    outcome.present = true;
    outcome.position = LowestBit(probe.match);
    outcome.reference = ReferenceAt(candidates, probe);
    const std::uint32_t bucket = covered ? BucketIndex(candidates, outcome.position) : 0;
    const std::uint32_t slot = outcome.position & (table_.slots - 1);
    if (cached != nullptr && probe.tagged) {
      cache_.Tagged(bucket, slot, outcome.reference, cached);
    } else if (cached != nullptr && covered && probe.cell == 0 && !table_.inline_values()) {
      *cached = cache_.Find(bucket, slot, outcome.reference);
    }
    if (covered && uses != 0) cache_.Count(bucket, uses);
    return outcome;
  }
  /// Counts what Find was told not to.
  GPM_HD void CountUses(const Candidates& candidates, const Outcome& outcome,
                        std::uint32_t uses) const {
    if (directory_.enabled()) {
      cache_.Count(BucketIndex(candidates, outcome.position), uses);
    }
  }

  /// Copies out the value of an item that Apply found, as it was then.
  /// @param value value_size bytes
  /// @return whether the executor's memory had it
  GPM_HD bool ReadFound(const Candidates& candidates, const Outcome& outcome,
                        std::byte* value) const {
    if (ReadCached(candidates, outcome, value)) return true;
    ReadValue(outcome.reference, value);
    return table_.inline_values() && directory_.enabled();
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
    return !table_.inline_values() && directory_.enabled() &&
           cache_.Read(BucketIndex(candidates, outcome.position),
                       outcome.position & (table_.slots - 1), outcome.reference, value);
  }
  /// The same of what Find found there.
  GPM_HD bool ReadCached(const CachedValue& cached, std::byte* value) const {
    return cached.bytes != nullptr && cache_.Read(cached, value);
  }
  /// Puts a value that a find has read into the cache, if there is a place for it. REQUIRES: as
  /// ReadAndKeep.
  GPM_HD void Keep(const Candidates& candidates, const Outcome& outcome,
                   const std::byte* value) const {
    if (table_.inline_values() || !directory_.enabled()) return;
    group_.Sync();
    cache_.Keep(directory_.view(), BucketIndex(candidates, outcome.position),
                outcome.position & (table_.slots - 1), outcome.reference, value);
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

  /// Copies out the value that a reference names.
  /// @param value value_size bytes
  GPM_HD void ReadValue(std::uint64_t reference, std::byte* value) const {
    if (table_.inline_values()) {
      if (table_.value_size == sizeof reference &&
          reinterpret_cast<std::uintptr_t>(value) % sizeof reference == 0) {
        if (group_.IsLeader()) std::memcpy(__builtin_assume_aligned(value, 8), &reference, 8);
        return;
      }
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

 protected:
  using States::group_;
  using States::LoadOnce;
  using States::media_;
  using States::table_;

  /// Searches the directory, or else the states of all candidate slots.
  /// @param whole as for DirectoryAccess::Search
  GPM_HD Probe ProbeSlots(const Candidates& candidates, const std::uint64_t* key,
                          bool whole = false) const {
    if (!directory_.enabled()) {
      if constexpr (MatchesManyBuckets<Media>) {
        return States::ProbeAllStates(candidates, key);
      } else {
        return ProbeStates(table_, group_, media_, candidates, key);
      }
    }
    Probe probe = directory_.Search(candidates, key, whole);
    if (!directory_.has_keys() && probe.match != 0) {
      probe.match = KeepEqual(table_, group_, media_, candidates, probe.match, key);
    }
    return probe;
  }

  /// ProbeSlots and KeepEqualKeys where the directory does not know: out of line, since that is
  /// rare where there is one.
  GPM_NOINLINE static GPM_HD Probe ProbeStates(const TableView& table, Group group, Media media,
                                               Candidates candidates, const std::uint64_t* key) {
    return States(table, group, media).ProbeAllStates(candidates, key);
  }
  GPM_NOINLINE static GPM_HD std::uint32_t KeepEqual(const TableView& table, Group group,
                                                     Media media, Candidates candidates,
                                                     std::uint32_t match,
                                                     const std::uint64_t* key) {
    return States(table, group, media).KeepEqualKeys(candidates, match, key);
  }
  /// The value reference of the key that a probe found.
  GPM_HD std::uint64_t ReferenceAt(const Candidates& candidates, const Probe& probe) const {
    if (probe.cell != 0) return probe.cell * table_.cell_bytes;
    const std::uint32_t position = LowestBit(probe.match);
    return directory_.enabled() ? directory_.Reference(candidates, position)
                                : StoredReference(table_, group_, media_, candidates, position);
  }
  GPM_NOINLINE static GPM_HD std::uint64_t StoredReference(const TableView& table, Group group,
                                                           Media media, Candidates candidates,
                                                           std::uint32_t position) {
    const States probe(table, group, media);
    return probe.LoadOnce(table.Reference(probe.SlotAt(candidates, position)));
  }
  GPM_HD std::uint32_t BucketIndex(const Candidates& candidates, std::uint32_t position) const {
    return directory_.IndexOf(candidates, position >> table_.slot_bits);
  }

  const DirectoryAccess<Group, Media> directory_;
  const CacheAccess<Group, Media> cache_;
};

}  // namespace gpm

#endif  // GPM_TABLE_PROBE_H_
