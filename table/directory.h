#ifndef GPM_TABLE_DIRECTORY_H_
#define GPM_TABLE_DIRECTORY_H_

#include <cstddef>
#include <cstdint>

#include "pm/steps.h"
#include "table/directory_view.h"
#include "table/matching.h"

namespace gpm {

/// The directory's part in the protocols, for one operation at a time.
///
/// @tparam Group, Media as for Operations
template <class Group, class Media>
class DirectoryAccess {
 public:
  GPM_HD DirectoryAccess(const DirectoryView& view, const TableView& table, const Group& group,
                         const Media& media)
      : view_(view), table_(table), group_(group), media_(media) {}

  GPM_HD bool enabled() const { return view_.enabled(); }
  GPM_HD const DirectoryView& view() const { return view_; }

  /// Index of candidate bucket c; of a key in the reserved level, which has one, whatever c is.
  GPM_HD std::uint32_t IndexOf(const Candidates& candidates, std::uint32_t c) const {
    if (candidates.reserved >= 0) return static_cast<std::uint32_t>(candidates.reserved);
    const std::uint32_t level = c >> table_.location_bits;
    const std::uint32_t location = c & (table_.locations - 1);
    return table_.BucketIndex(
        level, BucketNumber(candidates.hash, location, table_.level_views[level].part_buckets));
  }

  GPM_HD bool has_keys() const { return view_.has_keys(); }

  /// Candidate slots with the key's fingerprint (and key, if keys are here), and empty ones. A
  /// group looks at all levels at once. A thread begins with the newest, where most items are, and
  /// ends where the key is: large batches are bound by what they read. REQUIRES: enabled.
  /// @param whole a thread looks at all levels, too: for who wants the empty slots of a key's
  GPM_HD Probe Search(const Candidates& candidates, const std::uint64_t* key,
                      bool whole = false) const {
    const std::uint32_t words_of_bucket = view_.stride / DirectoryView::kPrintsInWord;
    const std::uint32_t buckets = candidates.reserved < 0 ? table_.candidate_buckets() : 1;
    const std::uint32_t words = buckets * words_of_bucket;
    if (Group::kSize > 1 || whole || !has_keys() || buckets == 1) {
      return SearchWords(candidates, key, 0, words);
    } else {
      const std::uint32_t of_level = table_.locations * words_of_bucket;
      Probe probe;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
      for (std::uint32_t first = 0; first < words && probe.match == 0; first += of_level) {
        const Probe level = SearchWords(candidates, key, first, first + of_level);
        probe = {level.match, probe.empty | level.empty, level.cell, level.tagged};
      }
      return probe;
    }
  }

  /// The value reference of a candidate slot.
  GPM_HD std::uint64_t Reference(const Candidates& candidates, std::uint32_t position) const {
    std::uint64_t reference = 0;
    if (group_.IsLeader()) reference = LoadReference(SlotAt(candidates, position));
    return group_.Broadcast(reference);
  }

  /// Takes an empty candidate slot for an insert. @return false when somebody else did
  GPM_HD bool Claim(const Candidates& candidates, std::uint32_t position) const {
    std::uint32_t claimed = 0;
    if (group_.IsLeader()) {
      claimed = media_.CasShared(Step::kDirectoryClaimCas, FingerprintAt(candidates, position),
                                 DirectoryView::kEmpty, DirectoryView::kTaken)
                    ? 1
                    : 0;
    }
    return group_.Broadcast(claimed) != 0;
  }

  // What was done in persistent memory, durably, to a candidate slot; by a leader. Who takes the
  // key's lock afterwards, or the cell or slot that was retired, sees it.
  GPM_HD void Inserted(const Candidates& candidates, std::uint32_t position,
                       const std::uint64_t* key, std::uint64_t reference) const {
    const std::uint64_t slot = SlotAt(candidates, position);
    StoreKey(slot, key);
    StoreReference(slot, reference);
    media_.FenceShared(Step::kDirectoryContentsFence);
    StoreFingerprint(candidates, position, DirectoryView::FingerprintOf(candidates.hash));
    media_.FenceShared(Step::kDirectoryInsertedFence);
  }
  GPM_HD void Updated(const Candidates& candidates, std::uint32_t position,
                      std::uint64_t reference) const {
    StoreReference(SlotAt(candidates, position), reference);
    media_.FenceShared(Step::kDirectoryUpdatedFence);
  }
  GPM_HD void Erased(const Candidates& candidates, std::uint32_t position) const {
    StoreFingerprint(candidates, position, DirectoryView::kTaken);
    media_.FenceShared(Step::kDirectoryErasedFence);
  }
  /// The same for a slot that anybody may claim again. REQUIRES: Has.
  GPM_HD void Freed(Slot slot) const {
    StoreFingerprint(IndexOf(slot), slot.index, DirectoryView::kEmpty);
  }

  /// Whether it has an entry of a slot.
  GPM_HD bool Has(Slot slot) const {
    return view_.enabled() && IndexOf(slot) != DirectoryView::kNoIndex;
  }

  // The level that is being drained beside batches.

  /// Whether its fingerprints are here.
  GPM_HD bool knows_drained() const { return view_.drained != nullptr; }
  /// Whether some slot of it may hold the key; by the whole group. REQUIRES: knows_drained.
  GPM_HD bool MayBeDrained(const Candidates& candidates) const {
    if (candidates.reserved >= 0) return false;
    const std::uint16_t fingerprint = DirectoryView::FingerprintOf(candidates.hash);
    const std::uint32_t words_of_bucket = view_.stride / DirectoryView::kPrintsInWord;
    const std::uint32_t slots_of_word =
        table_.slots < DirectoryView::kPrintsInWord ? table_.slots : DirectoryView::kPrintsInWord;
    const std::uint32_t part_buckets = table_.level_views[table_.levels].part_buckets;
    bool mine = false;
    for (std::uint32_t w = group_.Lane(); w < table_.locations * words_of_bucket;
         w += Group::kSize) {
      const std::uint32_t location = w >> LowestBit(words_of_bucket);  // a power of two
      const std::uint64_t number = BucketNumber(candidates.hash, location, part_buckets);
      const std::uint64_t four = media_.LoadShared(reinterpret_cast<const std::uint64_t*>(
          view_.drained + number * view_.stride +
          (w & (words_of_bucket - 1)) * DirectoryView::kPrintsInWord));
      for (std::uint32_t i = 0; i < slots_of_word; ++i) {
        mine |= static_cast<std::uint16_t>(four >> (16 * i)) == fingerprint;
      }
    }
    return group_.Ballot(mine) != 0;
  }
  /// The fingerprint of a slot of it. REQUIRES: knows_drained.
  GPM_HD std::uint16_t DrainedPrint(Slot slot) const {
    return media_.LoadShared(DrainedPrintAt(slot));
  }
  /// An item was moved up from a slot of it, durably; by a leader. Who takes the key's lock
  /// afterwards sees it.
  GPM_HD void MovedUp(Slot slot) const {
    media_.StoreShared(DrainedPrintAt(slot), DirectoryView::kEmpty);
    media_.FenceShared(Step::kDirectoryMovedUpFence);
  }
  /// Makes the fingerprints of one of its buckets, as Build.
  GPM_HD void BuildDrained(std::uint64_t number) const {
    std::byte* const bucket = table_.Bucket(table_.levels, number);
    for (std::uint32_t s = group_.Lane(); s < table_.slots; s += Group::kSize) {
      KeyBuffer key;
      const Slot slot{bucket, s};
      media_.StoreShared(DrainedPrintAt(slot),
                         PrintOf(slot, media_.Load(table_.State(slot)), key.words));
    }
  }

  /// Makes the entries of a bucket from persistent memory, while no batch runs. A slot whose word
  /// is not its key's, which only damage leaves, is one that no search finds.
  GPM_HD void Build(std::uint32_t index) const {
    std::byte* const bucket = table_.BucketAt(index);
    for (std::uint32_t s = group_.Lane(); s < table_.slots; s += Group::kSize) {
      const std::uint64_t word = media_.Load(table_.State(Slot{bucket, s}));
      const std::uint64_t reference = media_.Load(table_.Reference(Slot{bucket, s}));
      const bool half = table_.IsHalf(word, reference);
      KeyBuffer key;
      const std::uint16_t fingerprint =
          half ? DirectoryView::kTaken : PrintOf(Slot{bucket, s}, word, key.words);
      if (word != kEmptyState && !half) {
        const std::uint64_t slot = std::uint64_t{index} * table_.slots + s;
        StoreKey(slot, key.words);
        StoreReference(slot, table_.inline_values() || IsCell(reference) ? reference : 0);
      }
      StoreFingerprint(index, s, fingerprint);
    }
  }

  // What Build made of slot s of a bucket, for passes over the table while no batch runs.
  GPM_HD std::uint16_t Print(std::uint32_t index, std::uint32_t s) const {
    return media_.LoadShared(view_.fingerprints + std::uint64_t{index} * view_.stride + s);
  }
  /// The item's reference; 0 where the value is in a cell and it names none.
  GPM_HD std::uint64_t Reference(std::uint32_t index, std::uint32_t s) const {
    return LoadReference(std::uint64_t{index} * table_.slots + s);
  }
  /// REQUIRES: has_keys.
  GPM_HD void LoadKey(std::uint32_t index, std::uint32_t s, std::uint64_t* words) const {
    const std::uint64_t* const key = view_.KeyAt(std::uint64_t{index} * table_.slots + s);
    for (std::uint32_t w = 0; w < table_.key_words; ++w) words[w] = media_.LoadShared(key + w);
  }
  /// The slot was made empty.
  GPM_HD void Cleared(std::uint32_t index, std::uint32_t s) const {
    StoreFingerprint(index, s, DirectoryView::kEmpty);
  }

 private:
  static constexpr std::uint64_t kAllTaken =
      DirectoryView::kTaken * std::uint64_t{0x0001'0001'0001'0001};

  /// Index of a slot's bucket, or DirectoryView::kNoIndex.
  GPM_HD std::uint32_t IndexOf(Slot slot) const {
    const auto offset = static_cast<std::uint64_t>(slot.bucket - table_.base);
    const std::uint64_t reserved = (offset - kReservedOffset) / table_.bucket_bytes;
    if (reserved < TableView::kReservedBuckets) return static_cast<std::uint32_t>(reserved);
    for (std::uint32_t level = 0; level < table_.levels; ++level) {
      const std::uint64_t first = table_.level_views[level].offset;
      const std::uint64_t number = (offset - first) / table_.bucket_bytes;
      if (offset >= first && number < table_.Buckets(level)) {
        return table_.BucketIndex(level, number);
      }
    }
    return DirectoryView::kNoIndex;
  }

  /// The fingerprint of a slot with this word. @param key set to the slot's, if there is an item
  GPM_HD std::uint16_t PrintOf(Slot slot, std::uint64_t word, std::uint64_t* key) const {
    if (word == kEmptyState) return DirectoryView::kEmpty;
    if (word == kInsertState) return DirectoryView::kTaken;
    LoadSlotKey(table_, media_, slot, word, key);
    const Candidates candidates = LocateKey(table_, key);
    return candidates.word == word ? DirectoryView::FingerprintOf(candidates.hash)
                                   : DirectoryView::kTaken;
  }
  GPM_HD std::uint16_t* DrainedPrintAt(Slot slot) const {
    const auto offset = static_cast<std::uint64_t>(slot.bucket - table_.base);
    const std::uint64_t number =
        (offset - table_.level_views[table_.levels].offset) / table_.bucket_bytes;
    return view_.drained + number * view_.stride + slot.index;
  }

  /// Search among words [first, last) of the candidate buckets' fingerprints.
  GPM_HD Probe SearchWords(const Candidates& candidates, const std::uint64_t* key,
                           std::uint32_t first, std::uint32_t last) const {
    const std::uint16_t fingerprint = DirectoryView::FingerprintOf(candidates.hash);
    const std::uint32_t words_of_bucket = view_.stride / DirectoryView::kPrintsInWord;
    const std::uint32_t slots_of_word =
        table_.slots < DirectoryView::kPrintsInWord ? table_.slots : DirectoryView::kPrintsInWord;
    Probe mine;
    // As many words at once as the buckets of all levels have in most geometries (by a thread,
    // those of one level), so that the loads are in flight together.
    constexpr std::uint32_t kWords = Group::kSize == 1 ? 4 : (7 + Group::kSize) / Group::kSize;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (std::uint32_t begin = first; begin < last; begin += kWords * Group::kSize) {
      std::uint64_t four[kWords];
      bool loaded = false;
      if constexpr (Group::kSize == 1) {
        loaded = words_of_bucket % 2 == 0;
        for (std::uint32_t k = 0; loaded && k < kWords; k += 2) {
          const std::uint64_t* const word = WordAt(candidates, begin + k, words_of_bucket, last);
          four[k] = four[k + 1] = kAllTaken;
          if (word != nullptr) media_.LoadSharedPair(word, &four[k], &four[k + 1]);
        }
      }
      if (!loaded) {
        for (std::uint32_t k = 0; k < kWords; ++k) {
          const std::uint64_t* const word =
              WordAt(candidates, begin + k * Group::kSize + group_.Lane(), words_of_bucket, last);
          four[k] = word == nullptr ? kAllTaken : media_.LoadShared(word);
        }
      }
      for (std::uint32_t k = 0; k < kWords; ++k) {
        const std::uint32_t w = begin + k * Group::kSize + group_.Lane();
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
        for (std::uint32_t i = 0; i < slots_of_word; ++i) {
          const auto found = static_cast<std::uint16_t>(four[k] >> (16 * i));
          const std::uint32_t bit = 1u << ((w * slots_of_word + i) & 31);
          if (found == fingerprint) mine.match |= bit;
          if (found == DirectoryView::kEmpty) mine.empty |= bit;
        }
      }
    }
    Probe probe{group_.Or(mine.match), group_.Or(mine.empty)};
    if (!has_keys() || probe.match == 0) return probe;
    // One lane looks at one of those that look alike: at its whole entry at once.
    std::uint32_t equal = 0;
    std::uint32_t cell = 0;
    std::uint32_t tag = 0;
    std::uint32_t rank = 0;
    for (std::uint32_t rest = probe.match; rest != 0; rest &= rest - 1, ++rank) {
      if (rank % Group::kSize != group_.Lane()) continue;
      const std::uint32_t position = LowestBit(rest);
      const std::uint64_t slot = SlotAt(candidates, position);
      const std::uint64_t* const stored = view_.KeyAt(slot);
      const bool in_cell = !table_.inline_values();
      const std::uint32_t cell_there = in_cell ? media_.LoadShared(view_.CellAt(slot)) : 0;
      const std::uint32_t tag_there = in_cell ? media_.LoadShared(view_.TagAt(slot)) : 0;
      std::uint64_t differing = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
      for (std::uint32_t w = 0; w < table_.key_words; ++w) {
        differing |= media_.LoadShared(stored + w) ^ key[w];
      }
      if (differing != 0) continue;
      equal |= 1u << position;
      cell = cell_there;
      tag = tag_there;
    }
    probe.match = group_.Or(equal);
    if ((probe.match & (probe.match - 1)) != 0) return probe;
    probe.cell = group_.Or(cell);  // the only one
    probe.tagged = group_.Ballot(cell != 0 && tag == cell) != 0;
    return probe;
  }

  /// Word w of the fingerprints of the candidate buckets, or null from `last` on.
  GPM_HD const std::uint64_t* WordAt(const Candidates& candidates, std::uint32_t w,
                                     std::uint32_t words_of_bucket, std::uint32_t last) const {
    const std::uint32_t c = w >> LowestBit(words_of_bucket);  // a power of two
    if (w >= last) return nullptr;
    return reinterpret_cast<const std::uint64_t*>(
        view_.fingerprints + std::uint64_t{IndexOf(candidates, c)} * view_.stride +
        (w & (words_of_bucket - 1)) * DirectoryView::kPrintsInWord);
  }

  GPM_HD std::uint64_t SlotAt(const Candidates& candidates, std::uint32_t position) const {
    return std::uint64_t{IndexOf(candidates, position >> table_.slot_bits)} * table_.slots +
           (position & (table_.slots - 1));
  }
  GPM_HD void StoreKey(std::uint64_t slot, const std::uint64_t* key) const {
    if (!has_keys()) return;
    for (std::uint32_t w = 0; w < table_.key_words; ++w) {
      media_.StoreShared(view_.KeyAt(slot) + w, key[w]);
    }
  }
  GPM_HD std::uint16_t* FingerprintAt(const Candidates& candidates, std::uint32_t position) const {
    return view_.fingerprints +
           std::uint64_t{IndexOf(candidates, position >> table_.slot_bits)} * view_.stride +
           (position & (table_.slots - 1));
  }
  GPM_HD void StoreFingerprint(const Candidates& candidates, std::uint32_t position,
                               std::uint16_t fingerprint) const {
    media_.StoreShared(FingerprintAt(candidates, position), fingerprint);
  }
  GPM_HD void StoreFingerprint(std::uint32_t index, std::uint32_t s,
                               std::uint16_t fingerprint) const {
    media_.StoreShared(view_.fingerprints + std::uint64_t{index} * view_.stride + s, fingerprint);
  }
  /// Whether a reference is the offset of a cell that has a number.
  GPM_HD bool IsCell(std::uint64_t reference) const {
    const std::uint64_t cell = reference / table_.cell_bytes;
    return cell * table_.cell_bytes == reference && cell >> 32 == 0;
  }
  GPM_HD std::uint64_t LoadReference(std::uint64_t slot) const {
    return table_.inline_values() ? media_.LoadShared(view_.InlineAt(slot))
                                  : media_.LoadShared(view_.CellAt(slot)) * table_.cell_bytes;
  }
  GPM_HD void StoreReference(std::uint64_t slot, std::uint64_t reference) const {
    if (table_.inline_values()) {
      media_.StoreShared(view_.InlineAt(slot), reference);
    } else {
      media_.StoreShared(view_.CellAt(slot), table_.CellOf(reference));
    }
  }

  const DirectoryView& view_;
  const TableView& table_;
  const Group group_;
  const Media media_;
};

}  // namespace gpm

#endif  // GPM_TABLE_DIRECTORY_H_
