#ifndef GPM_ENGINE_TABLE_BUCKET_CACHE_H_
#define GPM_ENGINE_TABLE_BUCKET_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "engine/table/layout.h"
#include "engine/table/volatile_ops.h"
#include "pm/steps.h"

namespace gpm {

/// What is kept of the uses of a bucket.
enum class CacheScore : std::uint8_t { kNothing, kUses, kLastUse };

/// The frozen bucket cache (GPHash section 3.3): copies of buckets in the executor's own memory,
/// and of the hottest ones also the values of their items, in *blocks*. A trivially copyable,
/// non-owning view, the same on host and device. Which buckets have a copy changes only when the
/// cache is loaded (cache/cache_loader.h); what the copies hold follows every write.
///
/// A copy without values is small, a block of values is not: where both are made for the same
/// buckets, most of the memory holds values that are hardly used, while most operations still probe
/// persistent memory. So copies are made of many buckets, if they fit of all that are used, and
/// blocks of few. Blocks are of whole buckets: single items would find more in the same bytes (for
/// Zipf 0.99 over 16 M items 0.85 instead of 0.79 of the operations, in the bytes of a tenth of the
/// buckets; scripts/cache_granularity.py), but need a counter and an index for each slot.
///
/// A bucket's *index* counts the buckets of the addressable levels, lowest level first.
///
/// A copy's *version* says what it is worth: bit 0, a writer is at work on the bucket; bit 1, it
/// was not filled yet; the rest counts changes.
///
/// Invariants:
///  1. Who changes a bucket that has a copy holds the copy's version locked from before the change
///     in persistent memory until the copy has it too. So a copy that is filled and not locked
///     equals its bucket, as far as states of valid items, their keys, references and, if it has a
///     block, values go. Which block a copy has changes under that lock, too.
///  2. A copy is filled, under that lock, only when every batch has ended that began before
///     slot_of named it: those may write without knowing of it.
///  3. A reader takes what it read for true only if the version was the same, filled and unlocked,
///     before and after, and the copy was this bucket's. Otherwise it reads persistent memory.
/// From 1 and 3: a reader sees what is there at some moment of its own operation, whichever way it
/// goes. Nothing here is needed for recovery.
struct CacheView {
  std::uint32_t* slot_of = nullptr;    ///< F: copy of a bucket, by index, + 1; 0: it has none
  std::uint32_t* bucket_of = nullptr;  ///< G: index of the bucket of a copy
  std::uint32_t* versions = nullptr;   ///< of copies
  std::uint32_t* scores = nullptr;     ///< of buckets, by index: uses, or the clock of the last
  std::uint32_t* block_of = nullptr;   ///< of copies: the block of its values, + 1; 0: none
  std::byte* copies = nullptr;         ///< the buckets' bytes
  std::byte* blocks = nullptr;         ///< a value for each slot
  std::uint64_t copy_bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t value_stride = 0;  ///< bytes; 0: values are inline
  std::uint32_t size = 0;          ///< copies; 0: there is no cache
  std::uint32_t lowest = 0;        ///< addressable level
  std::uint32_t clock = 0;         ///< number of the batch
  CacheScore score = CacheScore::kNothing;

  static constexpr std::uint32_t kNoBucket = ~0u;
  static constexpr std::uint32_t kLocked = 1;
  static constexpr std::uint32_t kUnfilled = 2;
  static constexpr std::uint32_t kChange = 4;

  GPM_HD bool enabled() const { return size != 0; }
  GPM_HD std::uint32_t Index(std::uint32_t level, std::uint64_t number) const {
    return static_cast<std::uint32_t>((std::uint64_t{1} << level) - (std::uint64_t{1} << lowest) +
                                      number);
  }
  GPM_HD std::byte* Copy(std::uint32_t copy) const { return copies + copy * copy_bytes; }
  GPM_HD std::byte* Value(std::uint32_t block, std::uint32_t slot) const {
    return blocks + block * block_bytes + slot * value_stride;
  }
};

/// What the copies of a key's candidate buckets say.
enum class CacheAnswer : std::uint8_t { kUnknown, kPresent, kAbsent };

/// An item that was found in a copy.
struct CacheHit {
  std::uint32_t copy = 0;
  std::uint32_t version = 0;
  std::uint32_t block = 0;      ///< of its value, + 1; 0: there is none
  std::uint32_t position = 0;   ///< candidate slot
  std::uint64_t reference = 0;  ///< the item's value reference
};

/// A bucket's copy, locked for a change; or none.
struct CacheLock {
  bool held = false;
  std::uint32_t copy = 0;
  std::uint32_t version = 0;  ///< before it was locked
  GPM_HD bool filled() const { return held && (version & CacheView::kUnfilled) == 0; }
};

/// The cache's protocols, for one operation at a time.
///
/// @tparam Group, Media as for Operations
template <class Group, class Media>
class CacheAccess {
 public:
  GPM_HD CacheAccess(const CacheView& view, const TableView& table, const Group& group,
                     const Media& media)
      : view_(view), table_(table), group_(group), media_(media) {}

  GPM_HD bool enabled() const { return view_.enabled(); }

  /// Whether the value of a hit is in the executor's memory.
  GPM_HD bool HasValue(const CacheHit& hit) const {
    return hit.block != 0 || view_.value_stride == 0;
  }

  /// Looks for a key in the copies of its candidate buckets.
  /// @param hit set when it is present
  /// @param empty set when it is absent: the candidate slots that are probably empty, as bits
  GPM_HD CacheAnswer Find(const Candidates& candidates, const std::uint64_t* key, CacheHit* hit,
                          std::uint32_t* empty) const {
    if (!enabled() || candidates.reserved >= 0) return CacheAnswer::kUnknown;
    constexpr std::uint32_t kRounds = 32 / Group::kSize;
    const std::uint32_t total = table_.candidate_buckets() * table_.slots;
    std::uint32_t copy[kRounds];
    std::uint32_t version[kRounds];
    std::uint64_t state[kRounds];
    bool unknown = false;  // some candidate bucket has no copy that can be used
    // Stage by stage, so that the loads of a stage are in flight together.
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t position = k * Group::kSize + group_.Lane();
      const std::uint32_t c = position >> table_.slot_bits;
      copy[k] = kNone;
      if (position >= total || IsRepeated(table_, c)) continue;
      copy[k] = CopyOf(candidates, c);
      unknown |= copy[k] == kNone;
    }
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      version[k] = CacheView::kUnfilled;
      if (copy[k] == kNone) continue;
      version[k] = media_.LoadShared(view_.versions + copy[k]);
      if ((version[k] & (CacheView::kUnfilled | CacheView::kLocked)) == 0) continue;
      copy[k] = kNone;
      unknown = true;
    }
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t position = k * Group::kSize + group_.Lane();
      state[k] = copy[k] == kNone
                     ? kInsertState
                     : media_.LoadShared(State(copy[k], position & (table_.slots - 1)));
    }
    bool looked_alike = false;
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      for (std::uint32_t match = group_.Ballot(state[k] == candidates.word); match != 0;
           match &= match - 1) {
        const std::uint32_t lane = LowestBit(match);
        const auto matching = static_cast<std::uint32_t>(group_.Shuffle(copy[k], lane));
        const auto at = static_cast<std::uint32_t>(group_.Shuffle(version[k], lane));
        if (Verify(candidates, key, matching, at, k * Group::kSize + lane, hit)) {
          return CacheAnswer::kPresent;
        }
        looked_alike = true;
      }
    }
    if (looked_alike || group_.Ballot(unknown) != 0) return CacheAnswer::kUnknown;
    // Each copy was its bucket's when its version was looked at, and is not filled for another one
    // while this batch runs (invariant 2), so that each bucket was seen as it was at some moment
    // since. A key is in one bucket at a time, and between two of them in none.
    *empty = 0;
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      *empty |= group_.Ballot(state[k] == kEmptyState) << (k * Group::kSize);
    }
    return CacheAnswer::kAbsent;
  }

  /// Copies out the value of a hit. @return false when the copy has changed since
  /// REQUIRES: HasValue, and values are not inline.
  GPM_HD bool ReadValue(const CacheHit& hit, std::byte* value) const {
    media_.ReadShared(group_, value, view_.Value(hit.block - 1, hit.position & (table_.slots - 1)),
                      table_.value_size);
    return IsCurrent(hit.copy, hit.version);
  }

  /// Before candidate bucket c is changed.
  /// @param hit in it, that the change rests on; null: none
  GPM_HD CacheLock Lock(const Candidates& candidates, std::uint32_t c, const CacheHit* hit) const {
    CacheLock lock;
    if (!enabled() || candidates.reserved >= 0) return lock;
    if (hit != nullptr && LockAt(hit->copy, hit->version)) {
      return CacheLock{true, hit->copy, hit->version};
    }
    const std::uint32_t copy = CopyOf(candidates, c);
    if (copy == kNone) return lock;
    std::uint64_t version = 0;
    if (group_.IsLeader()) {
      const std::uint32_t index = IndexOf(candidates, c);
      for (;;) {
        version = media_.LoadShared(view_.versions + copy);
        if (media_.LoadShared(view_.bucket_of + copy) != index) {
          version = CacheView::kLocked;  // it is another bucket's by now
          break;
        }
        if ((version & CacheView::kLocked) == 0 &&
            CasLocked(copy, static_cast<std::uint32_t>(version))) {
          // Its bucket changes under the lock alone.
          if (media_.LoadShared(view_.bucket_of + copy) == index) break;
          media_.StoreShared(view_.versions + copy, static_cast<std::uint32_t>(version));
          version = CacheView::kLocked;
          break;
        }
        media_.Wait();
      }
    }
    version = group_.Broadcast(version);
    lock.held = (version & CacheView::kLocked) == 0;
    lock.copy = copy;
    lock.version = static_cast<std::uint32_t>(version);
    return lock;
  }

  /// After it was not changed.
  GPM_HD void Unlock(const CacheLock& lock) const {
    if (lock.held && group_.IsLeader()) {
      media_.StoreShared(view_.versions + lock.copy, lock.version);
    }
  }

  /// After a slot's item was erased.
  GPM_HD void UnlockErased(const CacheLock& lock, std::uint32_t slot) const {
    if (!lock.held) return;
    if (lock.filled() && group_.IsLeader()) {
      media_.StoreShared(State(lock.copy, slot), kInsertState);
    }
    Publish(lock);
  }

  /// After a slot's value was replaced.
  /// @param value value_size bytes
  GPM_HD void UnlockUpdated(const CacheLock& lock, std::uint32_t slot, std::uint64_t reference,
                            const std::byte* value) const {
    if (!lock.held) return;
    if (lock.filled()) WriteValue(lock.copy, slot, reference, value);
    Publish(lock);
  }

  /// After an item was inserted.
  GPM_HD void UnlockInserted(const CacheLock& lock, std::uint32_t slot, std::uint64_t word,
                             const std::uint64_t* key, std::uint64_t reference,
                             const std::byte* value) const {
    if (!lock.held) return;
    if (lock.filled()) {
      WriteValue(lock.copy, slot, reference, value);
      if (table_.key_words > 1) {
        for (std::uint32_t i = group_.Lane(); i < table_.key_words; i += Group::kSize) {
          media_.StoreShared(Key(lock.copy, slot) + i, key[i]);
        }
      }
      if (group_.IsLeader()) media_.StoreShared(State(lock.copy, slot), word);
    }
    Publish(lock);
  }

  /// Counts `uses` of candidate bucket c.
  GPM_HD void Count(const Candidates& candidates, std::uint32_t c, std::uint32_t uses) const {
    if (!enabled() || candidates.reserved >= 0 || !group_.IsLeader()) return;
    std::uint32_t* const score = view_.scores + IndexOf(candidates, c);
    if (view_.score == CacheScore::kUses) AtomicAdd32(score, uses);
    if (view_.score == CacheScore::kLastUse) media_.StoreShared(score, view_.clock);
  }

  /// Fills a copy from persistent memory; for loading. REQUIRES: invariant 2.
  /// @param block that it gets, + 1; 0: it keeps the one that it has, if any
  GPM_HD void Fill(std::uint32_t copy, std::uint32_t block) const {
    const std::uint32_t index = view_.bucket_of[copy];
    const std::uint32_t level = 31 - LeadingZeros(index + (1u << view_.lowest));
    const std::byte* const bucket =
        table_.Bucket(level, index + (1u << view_.lowest) - (1u << level));
    CacheLock lock;
    lock.held = true;
    lock.copy = copy;
    if (group_.IsLeader()) {
      for (;;) {
        lock.version = media_.LoadShared(view_.versions + copy);
        if ((lock.version & CacheView::kLocked) == 0 &&
            media_.CasShared(Step::kCacheFillLock, view_.versions + copy, lock.version,
                             lock.version | CacheView::kLocked)) {
          break;
        }
        media_.Wait();
      }
      media_.FenceShared();
    }
    group_.Sync();
    const auto words = static_cast<std::uint32_t>(table_.bucket_bytes / 8);
    const auto* const source = reinterpret_cast<const std::uint64_t*>(bucket);
    auto* const target = reinterpret_cast<std::uint64_t*>(view_.Copy(copy));
    for (std::uint32_t i = group_.Lane(); i < words; i += Group::kSize) {
      media_.StoreShared(target + i, media_.Load(source + i));
    }
    group_.Sync();
    if (block != 0) {
      for (std::uint32_t s = 0; s < table_.slots; ++s) {
        const std::uint64_t word = media_.LoadShared(State(copy, s));
        if (word == kEmptyState || word == kInsertState) continue;
        const std::uint64_t reference = media_.LoadShared(Reference(copy, s));
        media_.FillShared(group_, view_.Value(block - 1, s), table_.Cell(reference),
                          table_.value_size);
      }
      if (group_.IsLeader()) media_.StoreShared(view_.block_of + copy, block);
    }
    lock.version &= ~CacheView::kUnfilled;
    Publish(lock);
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;

  GPM_HD std::uint32_t IndexOf(const Candidates& candidates, std::uint32_t c) const {
    const std::uint32_t level = table_.top - (c >> table_.location_bits);
    const std::uint32_t location = c & (table_.locations - 1);
    return view_.Index(level, BucketNumber(table_, candidates.hash, level, location));
  }
  GPM_HD std::uint32_t CopyOf(const Candidates& candidates, std::uint32_t c) const {
    if (IsRepeated(table_, c)) return kNone;
    return media_.LoadShared(view_.slot_of + IndexOf(candidates, c)) - 1;  // 0 - 1 is kNone
  }
  GPM_HD std::uint64_t* State(std::uint32_t copy, std::uint32_t slot) const {
    return table_.State(Slot{view_.Copy(copy), slot});
  }
  GPM_HD std::uint64_t* Key(std::uint32_t copy, std::uint32_t slot) const {
    return table_.Key(Slot{view_.Copy(copy), slot});
  }
  GPM_HD std::uint64_t* Reference(std::uint32_t copy, std::uint32_t slot) const {
    return table_.Reference(Slot{view_.Copy(copy), slot});
  }

  GPM_HD bool CasLocked(std::uint32_t copy, std::uint32_t version) const {
    return media_.CasShared(Step::kCacheLock, view_.versions + copy, version,
                            version | CacheView::kLocked);
  }
  /// Locks a copy if its version, one that was seen unlocked, is still this.
  GPM_HD bool LockAt(std::uint32_t copy, std::uint32_t version) const {
    std::uint64_t locked = 0;
    if (group_.IsLeader()) locked = CasLocked(copy, version) ? 1 : 0;
    return group_.Broadcast(locked) != 0;
  }

  /// Whether what was read of a copy since its version was this is true.
  GPM_HD bool IsCurrent(std::uint32_t copy, std::uint32_t version) const {
    group_.Sync();
    std::uint64_t same = 0;
    if (group_.IsLeader()) {
      media_.FenceShared();
      same = media_.Validate(Step::kCacheValidate, view_.versions + copy, version) ? 1 : 0;
    }
    return group_.Broadcast(same) != 0;
  }

  /// Whether the candidate slot at `position`, of which the state matched, holds the key.
  GPM_HD bool Verify(const Candidates& candidates, const std::uint64_t* key, std::uint32_t copy,
                     std::uint32_t version, std::uint32_t position, CacheHit* hit) const {
    const std::uint32_t slot = position & (table_.slots - 1);
    bool differs = media_.LoadShared(view_.bucket_of + copy) !=
                   IndexOf(candidates, position >> table_.slot_bits);
    if (table_.key_words > 1) {
      for (std::uint32_t i = group_.Lane(); i < table_.key_words; i += Group::kSize) {
        differs |= media_.LoadShared(Key(copy, slot) + i) != key[i];
      }
    }
    const std::uint64_t reference = media_.LoadShared(Reference(copy, slot));
    const std::uint32_t block = media_.LoadShared(view_.block_of + copy);
    if (group_.Ballot(differs) != 0 || !IsCurrent(copy, version)) return false;
    *hit = CacheHit{copy, version, static_cast<std::uint32_t>(group_.Broadcast(block)), position,
                    group_.Broadcast(reference)};
    return true;
  }

  GPM_HD void WriteValue(std::uint32_t copy, std::uint32_t slot, std::uint64_t reference,
                         const std::byte* value) const {
    if (group_.IsLeader()) media_.StoreShared(Reference(copy, slot), reference);
    const std::uint32_t block = media_.LoadShared(view_.block_of + copy);
    if (block != 0) {
      media_.WriteShared(group_, view_.Value(block - 1, slot), value, table_.value_size);
    }
  }

  /// Makes a change of a copy visible as a whole, and unlocks it.
  GPM_HD void Publish(const CacheLock& lock) const {
    group_.Sync();
    if (!group_.IsLeader()) return;
    media_.FenceShared();
    media_.StoreShared(view_.versions + lock.copy, lock.version + CacheView::kChange);
  }

  const CacheView& view_;
  const TableView& table_;
  const Group& group_;
  const Media& media_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_TABLE_BUCKET_CACHE_H_
