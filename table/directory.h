#ifndef GPM_TABLE_DIRECTORY_H_
#define GPM_TABLE_DIRECTORY_H_

#include <cstddef>
#include <cstdint>

#include "pm/steps.h"
#include "table/layout.h"
#include "table/volatile_ops.h"

namespace gpm {

/// The directory: of every slot of the addressable levels a 16-bit fingerprint, its value reference
/// and its key, in the executor's own memory. A search reads persistent memory for the value alone
/// (and, where there was no room for the keys, to compare the key). A miss, and the search for a
/// free slot, read none of it. A trivially copyable, non-owning view, the same on host and device.
///
/// With a directory, searches look nowhere else, so it decides what batches see: an operation takes
/// effect when the directory says so, and it is durable by then.
///
/// Invariants:
///  1. Who inserts, updates or erases a key holds its lock (KeyLocks) from its search until the
///     directory tells of the change, which persistent memory has by then.
///  2. So while nobody holds a key's lock, the directory has the key in the same slot, and with the
///     same reference, as persistent memory, or both do not have it.
///  3. A slot's entry is written by who claimed the slot, replaced its reference or erased it, and
///     no two of them at once. Key and reference are there before the fingerprint is.
///
/// The two keys that live in the reserved level are not in it.
struct DirectoryView {
  static constexpr std::uint16_t kEmpty = 0;
  static constexpr std::uint16_t kTaken = 1;  ///< claimed, or erased and not given back
  static constexpr std::uint32_t kPrintsInWord = 4;
  static constexpr std::uint32_t kNoIndex = 0xFFFFFFFF;  ///< of a bucket that is not in it

  std::uint16_t* fingerprints = nullptr;  ///< `stride` for each bucket; null: there is no directory
  std::uint32_t* cells = nullptr;         ///< of slots: number of the value's cell
  std::uint64_t* references = nullptr;    ///< instead, where values are inline
  std::uint64_t* keys = nullptr;          ///< of slots, key_words each; null: they are not here
  std::uint32_t stride = 0;               ///< fingerprints of a bucket: its slots, but at least 4
  /// The same fingerprints of the level that is being drained beside batches, as they were when
  /// that began; kEmpty once the slot's item was moved up. Null: its state words tell
  /// (table/draining.h).
  std::uint16_t* drained = nullptr;

  GPM_HD bool enabled() const { return fingerprints != nullptr; }
  static GPM_HD std::uint16_t FingerprintOf(const KeyHash& hash) {
    const auto fingerprint = static_cast<std::uint16_t>(hash.g);
    return fingerprint <= kTaken ? static_cast<std::uint16_t>(fingerprint + 2) : fingerprint;
  }
};

/// Candidate slots that hold the key, and that are empty; bit c * slots + s.
struct Probe {
  std::uint32_t match = 0;
  std::uint32_t empty = 0;
  std::uint32_t cell = 0;  ///< number of the key's value cell; 0: not known
};

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

  /// Whether it has the key, if anything has.
  GPM_HD bool Covers(const Candidates& candidates) const {
    return view_.enabled() && candidates.reserved < 0;
  }

  /// Index of candidate bucket c.
  GPM_HD std::uint32_t IndexOf(const Candidates& candidates, std::uint32_t c) const {
    const std::uint32_t level = c >> table_.location_bits;
    const std::uint32_t location = c & (table_.locations - 1);
    return table_.BucketIndex(
        level, BucketNumber(candidates.hash, location, table_.level_views[level].part_buckets));
  }

  GPM_HD bool has_keys() const { return view_.keys != nullptr; }

  /// Candidate slots with the key's fingerprint (and key, if keys are here), and empty ones.
  /// REQUIRES: Covers.
  GPM_HD Probe Search(const Candidates& candidates, const std::uint64_t* key) const {
    const std::uint16_t fingerprint = DirectoryView::FingerprintOf(candidates.hash);
    const std::uint32_t words_of_bucket = view_.stride / DirectoryView::kPrintsInWord;
    const std::uint32_t words = table_.candidate_buckets() * words_of_bucket;
    const std::uint32_t slots_of_word =
        table_.slots < DirectoryView::kPrintsInWord ? table_.slots : DirectoryView::kPrintsInWord;
    Probe mine;
    // As many words at once as the candidates have if a bucket has four slots or more, so that the
    // loads are in flight together.
    constexpr std::uint32_t kWords = 8 / Group::kSize == 0 ? 1 : 8 / Group::kSize;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (std::uint32_t begin = 0; begin < words; begin += kWords * Group::kSize) {
      std::uint64_t four[kWords];
      bool loaded = false;
      if constexpr (Group::kSize == 1) {
        loaded = words_of_bucket % 2 == 0;
        for (std::uint32_t k = 0; loaded && k < kWords; k += 2) {
          const std::uint64_t* const word = WordAt(candidates, begin + k, words_of_bucket, words);
          four[k] = four[k + 1] = kAllTaken;
          if (word != nullptr) media_.LoadSharedPair(word, &four[k], &four[k + 1]);
        }
      }
      if (!loaded) {
        for (std::uint32_t k = 0; k < kWords; ++k) {
          const std::uint64_t* const word =
              WordAt(candidates, begin + k * Group::kSize + group_.Lane(), words_of_bucket, words);
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
    if (view_.keys == nullptr || probe.match == 0) return probe;
    // One lane looks at one of those that look alike: at the key and, in flight with it, the cell.
    std::uint32_t equal = 0;
    std::uint32_t cell = 0;
    std::uint32_t rank = 0;
    for (std::uint32_t rest = probe.match; rest != 0; rest &= rest - 1, ++rank) {
      if (rank % Group::kSize != group_.Lane()) continue;
      const std::uint32_t position = LowestBit(rest);
      const std::uint64_t slot = SlotAt(candidates, position);
      const std::uint64_t* const stored = KeyAt(slot);
      const std::uint32_t cell_there =
          view_.cells == nullptr ? 0 : media_.LoadShared(view_.cells + slot);
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
    }
    probe.match = group_.Or(equal);
    if ((probe.match & (probe.match - 1)) == 0) probe.cell = group_.Or(cell);  // the only one
    return probe;
  }

  /// The value reference of a candidate slot.
  GPM_HD std::uint64_t Reference(const Candidates& candidates, std::uint32_t position) const {
    const std::uint64_t slot = SlotAt(candidates, position);
    std::uint64_t reference = 0;
    if (group_.IsLeader()) {
      reference = view_.cells == nullptr
                      ? media_.LoadShared(view_.references + slot)
                      : media_.LoadShared(view_.cells + slot) * table_.cell_bytes;
    }
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
        StoreReference(slot, view_.cells == nullptr || IsCell(reference) ? reference : 0);
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
    const std::uint64_t slot = std::uint64_t{index} * table_.slots + s;
    return view_.cells == nullptr ? media_.LoadShared(view_.references + slot)
                                  : media_.LoadShared(view_.cells + slot) * table_.cell_bytes;
  }
  /// REQUIRES: has_keys.
  GPM_HD void LoadKey(std::uint32_t index, std::uint32_t s, std::uint64_t* words) const {
    const std::uint64_t* const key = KeyAt(std::uint64_t{index} * table_.slots + s);
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

  /// Word w of the fingerprints of the candidate buckets, or null.
  GPM_HD const std::uint64_t* WordAt(const Candidates& candidates, std::uint32_t w,
                                     std::uint32_t words_of_bucket, std::uint32_t words) const {
    const std::uint32_t c = w >> LowestBit(words_of_bucket);  // a power of two
    if (w >= words) return nullptr;
    return reinterpret_cast<const std::uint64_t*>(
        view_.fingerprints + std::uint64_t{IndexOf(candidates, c)} * view_.stride +
        (w & (words_of_bucket - 1)) * DirectoryView::kPrintsInWord);
  }

  GPM_HD std::uint64_t SlotAt(const Candidates& candidates, std::uint32_t position) const {
    return std::uint64_t{IndexOf(candidates, position >> table_.slot_bits)} * table_.slots +
           (position & (table_.slots - 1));
  }
  GPM_HD std::uint64_t* KeyAt(std::uint64_t slot) const {
    return view_.keys + slot * table_.key_words;
  }
  GPM_HD void StoreKey(std::uint64_t slot, const std::uint64_t* key) const {
    if (view_.keys == nullptr) return;
    for (std::uint32_t w = 0; w < table_.key_words; ++w) {
      media_.StoreShared(KeyAt(slot) + w, key[w]);
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
  GPM_HD void StoreReference(std::uint64_t slot, std::uint64_t reference) const {
    if (view_.cells == nullptr) {
      media_.StoreShared(view_.references + slot, reference);
    } else {
      media_.StoreShared(view_.cells + slot, table_.CellOf(reference));
    }
  }

  const DirectoryView& view_;
  const TableView& table_;
  const Group group_;
  const Media media_;
};

}  // namespace gpm

#endif  // GPM_TABLE_DIRECTORY_H_
