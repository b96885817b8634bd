#ifndef GPM_TABLE_VALUE_CACHE_H_
#define GPM_TABLE_VALUE_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "pm/steps.h"
#include "table/cache_policies.h"
#include "table/directory_view.h"

namespace gpm {

/// The frozen bucket cache (GPHash section 3.3): the values of hot buckets in the executor's own
/// memory, a *frame* for each. Keys and references of all buckets are in the directory, without
/// which there is no cache. A trivially copyable, non-owning view, the same on host and device.
/// Which buckets have a frame changes only at a refresh (cache/refresh.h); but where there is one
/// for each bucket, all have theirs before (opens). What the frames hold follows every write. So
/// where the cache opens, the values that batches write are there at once, and those that small
/// batches of finds read; a refresh brings the others.
///
/// A frame is of a whole bucket. Single items would need a counter and an index for each slot, and
/// find somewhat more in the same bytes (for Zipf 0.99 over 16 M items 0.85 instead of 0.79 of the
/// operations, in the bytes of a tenth of the buckets; scripts/cache_granularity.py).
///
/// Each slot of a bucket has a *tag*, in its entry of the directory: the number of the value cell
/// of which the bucket's frame has a copy, or one of the marks below. A cell is not written while
/// anything refers to it, nor until every batch has ended that ran when it was retired (Reclaim).
/// So the tag says all. A reader has a reference from the directory, copies the value, and finds
/// the cell's number as the tag before and after: then it has that value. Only a filling in between
/// could have brought a tag back, so readers look at the count of fillings, too.
///
/// Invariants:
///  1. A slot of a frame is written only by who changed its bucket's tag from something else to
///     kBusy or kFilling, and what it loads then is loaded behind that: an atomic operation has
///     taken place when its outcome is known. Finds do so only where there is kNone.
///  2. A bucket gets a frame, and loses it, only while all of its tags are kClosed.
///  3. Before a reference is published in the directory, its writer makes sure that the slot's tag
///     is not that cell's from its former use. (It may be another older cell's, if a loader or a
///     find came in between: then the slot is not cached until it is written.)
/// Nothing here is needed for recovery.
struct CacheView {
  std::uint32_t* frame_of = nullptr;   ///< F: a bucket's frame, by its index, + 1; 0: it has none
  std::uint32_t* bucket_of = nullptr;  ///< G: index of a frame's bucket
  std::uint32_t* scores = nullptr;     ///< of buckets, by index; what they say is the policy's
  std::uint32_t* tags = nullptr;       ///< of slots of buckets, by index (TagAt)
  std::byte* values = nullptr;         ///< of slots of frames
  std::uint32_t* fills = nullptr;      ///< counted up between the closing and the filling of frames
  std::uint32_t tag_stride = 0;        ///< from one to the next, in so many tags
  std::uint32_t value_stride = 0;      ///< bytes from one to the next
  std::uint32_t size = 0;              ///< frames; 0: there is no cache
  bool holds_all = false;              ///< there are as many frames as buckets
  std::uint32_t clock = 0;             ///< number of the batch
  CachePolicy policy = CachePolicy::kOff;

  static constexpr std::uint32_t kNoBucket = ~0u;
  static constexpr std::uint32_t kClosed = ~0u;    ///< no frame, or not filled: nobody's to write
  static constexpr std::uint32_t kNone = ~0u - 1;  ///< no value
  static constexpr std::uint32_t kBusy = ~0u - 2;  ///< a writer is at work, or a find
  static constexpr std::uint32_t kFilling = ~0u - 3;  ///< so is the loader
  static constexpr std::uint32_t kGivenUp = ~0u - 4;  ///< and what it copies is not current
  /// The item is gone, or about to be: until another comes, finds put nothing there.
  static constexpr std::uint32_t kErased = ~0u - 5;
  static constexpr std::uint32_t kFirstMark = kErased;  ///< cells from here on are not cached

  GPM_HD bool enabled() const { return size != 0; }
  GPM_HD std::uint32_t* TagAt(std::uint64_t slot) const { return tags + slot * tag_stride; }
  /// Whether each bucket has a frame, whatever its score. (The published policies leave buckets
  /// without uses out.)
  GPM_HD bool opens() const { return holds_all && policy == CachePolicy::kTinyLfu; }
};

/// What makes searches fast and is never needed for recovery.
struct Accelerators {
  DirectoryView directory;
  CacheView cache;
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

  /// A value that the cache has, until it has another one in its place.
  struct Value {
    const std::byte* bytes = nullptr;  ///< null: it has none
    const std::uint32_t* tag = nullptr;
    std::uint64_t at = 0;     ///< slot, of all buckets'
    std::uint32_t cell = 0;   ///< that the value was copied from
    std::uint32_t fills = 0;  ///< when it was
  };

  /// Looks for the value of a slot that has this reference. What the caller then reads of it counts
  /// only if IsCurrent says so afterwards.
  /// @param bucket its index
  GPM_HD Value Find(std::uint32_t bucket, std::uint32_t slot, std::uint64_t reference) const {
    const std::uint32_t cell = table_.CellOf(reference);
    if (!enabled() || cell >= CacheView::kFirstMark) return {};
    return At(Number(bucket, slot), cell);
  }
  /// The same, where it was found before: `at` as in Value.
  GPM_HD Value At(std::uint64_t at, std::uint32_t cell) const {
    Value value = Begin();
    FenceBegin();
    const std::uint32_t tag = LoadOnce(view_.TagAt(at));
    Bind(at, cell, &value);
    if (tag != cell) value.bytes = nullptr;
    return value;
  }

  // The same in three steps, for who has the tag from the slot's entry.

  /// First, some time before the directory is read. No value yet. (All of the group load, so that
  /// nobody waits for the leader.)
  GPM_HD Value Begin() const {
    Value value;
    if (enabled()) value.fills = media_.LoadShared(view_.fills);
    return value;
  }
  /// Then, right before that. What anybody of the group reads next is read behind the leader's
  /// count of fillings.
  GPM_HD void FenceBegin() const {
    media_.FenceReads(Step::kCacheFillsReadFence);
    group_.Sync();
  }
  /// Then, if the tag was the number of the reference's cell.
  GPM_HD void Tagged(std::uint32_t bucket, std::uint32_t slot, std::uint64_t reference,
                     Value* value) const {
    const std::uint32_t cell = table_.CellOf(reference);
    if (enabled() && cell < CacheView::kFirstMark) Bind(Number(bucket, slot), cell, value);
  }

  GPM_HD bool IsCurrent(const Value& value) const {
    group_.Sync();
    std::uint32_t same = 0;
    if (group_.IsLeader()) {
      media_.FenceReads(Step::kCacheValueReadFence);
      same = media_.Validate(Step::kCacheValidate, value.tag, value.cell) ? 1 : 0;
      media_.FenceReads(Step::kCacheTagReadFence);
      if (!media_.Validate(Step::kCacheValidateFills, view_.fills, value.fills)) same = 0;
    }
    return group_.Broadcast(same) != 0;
  }

  /// Whether a filling may have ended what was found.
  GPM_HD bool IsOutdated(const Value& value) const {
    return media_.LoadShared(view_.fills) != value.fills;
  }

  /// Copies out the value of a slot that has this reference.
  /// @return false when it is not in the cache; then `value` may hold anything
  GPM_HD bool Read(std::uint32_t bucket, std::uint32_t slot, std::uint64_t reference,
                   std::byte* value) const {
    const Value cached = Find(bucket, slot, reference);
    return cached.bytes != nullptr && Read(cached, value);
  }
  GPM_HD bool Read(const Value& cached, std::byte* value) const {
    media_.ReadShared(group_, value, cached.bytes, table_.value_size);
    return IsCurrent(cached);
  }

  /// Before a slot's new reference is published.
  /// @param was the cell of its reference so far, or kNone
  /// @param value value_size bytes
  GPM_HD void Put(std::uint32_t bucket, std::uint32_t slot, std::uint32_t was,
                  std::uint64_t reference, const std::byte* value) const {
    const std::uint32_t cell = table_.CellOf(reference);
    const bool fits = cell < CacheView::kFirstMark;
    const std::uint64_t at = Number(bucket, slot);
    if (Take(at, was, fits ? CacheView::kBusy : CacheView::kErased) && fits) Write(at, cell, value);
  }

  /// Before a slot is published as erased.
  /// @param was as for Put
  GPM_HD void Drop(std::uint32_t bucket, std::uint32_t slot, std::uint32_t was) const {
    Take(Number(bucket, slot), was, CacheView::kErased);
  }

  /// Before a slot is published as that of an item whose value is not at hand.
  GPM_HD void Clear(std::uint32_t bucket, std::uint32_t slot) const {
    Take(Number(bucket, slot), CacheView::kErased, CacheView::kNone);
  }

  /// Puts a value there that a find has read from its cell, if the slot's frame has nothing, and
  /// each bucket has one (CacheView::opens).
  GPM_HD void Keep(const DirectoryView& directory, std::uint32_t bucket, std::uint32_t slot,
                   std::uint64_t reference, const std::byte* value) const {
    const std::uint32_t cell = table_.CellOf(reference);
    if (!view_.opens() || cell >= CacheView::kFirstMark) return;
    const std::uint64_t at = Number(bucket, slot);
    std::uint32_t* const tag = view_.TagAt(at);
    std::uint32_t taken = 0;
    if (group_.IsLeader() &&
        media_.CasShared(Step::kCacheKeepCas, tag, +CacheView::kNone, +CacheView::kBusy)) {
      // A tag that was there before must not come back behind a newer value's: readers would take
      // it for one that stayed.
      taken = CellToFill(directory, bucket, slot) == cell ? 1 : 0;
      if (taken == 0) media_.StoreShared(tag, +CacheView::kNone);
    }
    if (group_.Broadcast(taken) != 0) Write(at, cell, value);
  }

  /// Counts `uses` of a bucket.
  GPM_HD void Count(std::uint32_t bucket, std::uint32_t uses) const {
    if (!enabled() || !group_.IsLeader()) return;
    AllCachePolicies::With(view_.policy, [&](auto policy) {
      policy.Count(media_, view_.scores + bucket, uses, view_.clock);
    });
  }

  /// For a refresh: whether the frame was filled since it was closed.
  GPM_HD bool IsFilled(std::uint32_t frame) const {
    return media_.LoadShared(view_.TagAt(Number(view_.bucket_of[frame], 0))) != CacheView::kClosed;
  }
  /// For a refresh: from now on until the frame is filled, nobody writes it, and no read of it
  /// counts.
  GPM_HD void Close(std::uint32_t frame) const {
    for (std::uint32_t s = group_.Lane(); s < table_.slots; s += Group::kSize) {
      std::uint32_t* const tag = view_.TagAt(Number(view_.bucket_of[frame], s));
      for (;;) {
        const std::uint32_t old = media_.LoadShared(tag);
        if (old == CacheView::kClosed) break;
        if (old != CacheView::kBusy &&
            media_.CasShared(Step::kCacheCloseCas, tag, old, CacheView::kClosed)) {
          break;
        }
        media_.Wait();
      }
    }
  }

  /// For a refresh: whether the cache has nothing of a slot of a frame, and nobody is about to put
  /// something there.
  GPM_HD bool IsToFill(std::uint32_t frame, std::uint32_t s) const {
    const std::uint32_t tag = media_.LoadShared(view_.TagAt(Number(view_.bucket_of[frame], s)));
    return tag == CacheView::kClosed || tag == CacheView::kNone;
  }
  /// For a refresh: copies the value of a slot of a frame's bucket from persistent memory, if the
  /// cache has nothing of it.
  GPM_HD void FillSlot(const DirectoryView& directory, std::uint32_t frame, std::uint32_t s) const {
    const std::uint32_t bucket = view_.bucket_of[frame];
    const std::uint64_t at = Number(bucket, s);
    std::uint32_t* const tag = view_.TagAt(at);
    std::uint32_t begun = 0;
    if (group_.IsLeader()) {
      const std::uint32_t old = media_.LoadShared(tag);
      const bool lacks =
          old == CacheView::kNone && CellToFill(directory, bucket, s) != CacheView::kNone;
      begun = (old == CacheView::kClosed || lacks) &&
                      media_.CasShared(Step::kCacheFillingCas, tag, old, CacheView::kFilling)
                  ? 1
                  : 0;
    }
    if (group_.Broadcast(begun) == 0) return;
    std::uint32_t cell = CacheView::kNone;
    if (group_.IsLeader()) cell = CellToFill(directory, bucket, s);
    cell = group_.Broadcast(cell);
    if (cell != CacheView::kNone) {
      media_.FillShared(group_, ValueAt(frame + 1, at), table_.Cell(cell * table_.cell_bytes),
                        table_.value_size);
    }
    group_.Sync();
    if (!group_.IsLeader()) return;
    media_.FenceShared(Step::kCacheFilledFence);
    if (!media_.CasShared(Step::kCacheFillCas, tag, CacheView::kFilling, cell)) {
      media_.StoreShared(tag, CacheView::kNone);
    }
  }
  GPM_HD void Fill(const DirectoryView& directory, std::uint32_t frame) const {
    for (std::uint32_t s = 0; s < table_.slots; ++s) FillSlot(directory, frame, s);
  }
  /// The cell that a slot's value is in, as of now; kNone where there is none to be cached. For one
  /// thread.
  GPM_HD std::uint32_t CellToFill(const DirectoryView& directory, std::uint32_t bucket,
                                  std::uint32_t s) const {
    const std::uint64_t fingerprint =
        media_.LoadShared(directory.fingerprints + std::uint64_t{bucket} * directory.stride + s);
    if (fingerprint <= DirectoryView::kTaken) return CacheView::kNone;
    const std::uint32_t cell = media_.LoadShared(directory.CellAt(Number(bucket, s)));
    return cell < CacheView::kFirstMark ? cell : CacheView::kNone;
  }

 private:
  template <class Word>
  GPM_HD Word LoadOnce(const Word* word) const {
    Word value = 0;
    if (group_.IsLeader()) value = media_.LoadShared(word);
    return group_.Broadcast(value);
  }

  /// Sets what `value` is where the tag is the cell's.
  GPM_HD void Bind(std::uint64_t at, std::uint32_t cell, Value* value) const {
    value->at = at;
    value->cell = cell;
    value->tag = view_.TagAt(at);
    value->bytes = ValueAt(LoadOnce(view_.frame_of + (at >> table_.slot_bits)), at);
  }

  /// Number of a slot among those of all buckets.
  GPM_HD std::uint64_t Number(std::uint32_t bucket, std::uint32_t s) const {
    return std::uint64_t{bucket} * table_.slots + s;
  }
  /// Where the value of slot `at` is. @param frame its bucket's, + 1; 0: null
  GPM_HD std::byte* ValueAt(std::uint64_t frame, std::uint64_t at) const {
    if (frame == 0) return nullptr;
    return view_.values +
           ((frame - 1) * table_.slots + (at & (table_.slots - 1))) * view_.value_stride;
  }

  /// Writes a value where the tag is kBusy, and its tag. Meanwhile the bucket has a frame.
  GPM_HD void Write(std::uint64_t at, std::uint32_t cell, const std::byte* value) const {
    const std::uint64_t frame = LoadOnce(view_.frame_of + (at >> table_.slot_bits));
    media_.WriteShared(group_, ValueAt(frame, at), value, table_.value_size);
    group_.Sync();
    if (!group_.IsLeader()) return;
    media_.FenceShared(Step::kCachePutFence);
    media_.StoreShared(view_.TagAt(at), cell);
  }

  /// Ends what the cache has of slot `at`.
  /// @param was the tag that it has, presumably
  /// @param next kBusy, kNone or kErased
  /// @return whether its tag became `next`; else there is no frame, or it is filled, or about to be
  GPM_HD bool Take(std::uint64_t at, std::uint32_t was, std::uint32_t next) const {
    if (!enabled()) return false;
    std::uint32_t* const tag = view_.TagAt(at);
    std::uint32_t taken = 0;
    if (group_.IsLeader()) {
      // (Mostly one access does. A cell may have the number of another mark.)
      if ((was <= CacheView::kErased || was == CacheView::kNone) &&
          media_.CasShared(Step::kCachePutCas, tag, was, next)) {
        taken = 1;
      }
      for (bool ended = taken != 0; !ended;) {
        const std::uint32_t old = media_.LoadShared(tag);
        if (old == CacheView::kClosed || old == CacheView::kGivenUp) break;
        if (old == CacheView::kBusy) {  // by a find
          media_.Wait();
          continue;
        }
        if (old == next) break;
        const bool filling = old == CacheView::kFilling;
        ended =
            media_.CasShared(Step::kCachePutCas, tag, old, filling ? CacheView::kGivenUp : next);
        taken = ended && !filling ? 1 : 0;
      }
    }
    return group_.Broadcast(taken) != 0;
  }

  const CacheView& view_;
  const TableView& table_;
  const Group group_;
  const Media media_;
};

}  // namespace gpm

#endif  // GPM_TABLE_VALUE_CACHE_H_
