#ifndef GPM_TABLE_STATE_PROBE_H_
#define GPM_TABLE_STATE_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "table/layout.h"
#include "table/matching.h"

namespace gpm {

/// Finding keys by the words of slots in persistent memory: what searches do without a directory,
/// and with one for what it does not know.
///
/// @tparam Group, Media as for Operations
template <class Group, class Media>
class StateProbe {
 public:
  GPM_HD StateProbe(const TableView& table, const Group& group, const Media& media)
      : table_(table), group_(group), media_(media) {}

  /// Candidate bucket c of a key, or null (CandidateBucket).
  GPM_HD std::byte* BucketAt(const Candidates& candidates, std::uint32_t c) const {
    return CandidateBucket(table_, candidates, c);
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

  /// The value reference of a slot where a probe of this batch found a key.
  GPM_HD std::uint64_t LoadReference(Slot slot) const { return LoadOnce(table_.Reference(slot)); }

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

  /// The candidate slots of level i alone: for one thread it pays to look at the levels one by one,
  /// the newest, where most items are, first.
  /// @param buckets BucketAt of the candidate buckets of this level, at least
  GPM_HD Probe ProbeLevel(const Candidates& candidates, const std::uint64_t* key, std::uint32_t i,
                          std::byte* const* buckets) const {
    const std::uint32_t first = i * table_.locations;
    return ProbeBuckets(candidates, key, first, first + table_.locations,
                        [&](std::uint32_t c) { return buckets[c]; });
  }

  /// One-shot access: reads the states of all candidate slots at once (GPHash section 3.1).
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

  GPM_HD const TableView& table() const { return table_; }
  GPM_HD const Group& group() const { return group_; }
  GPM_HD const Media& media() const { return media_; }

 protected:
  const TableView& table_;
  const Group group_;
  const Media media_;
};

}  // namespace gpm

#endif  // GPM_TABLE_STATE_PROBE_H_
