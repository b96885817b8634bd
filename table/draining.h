#ifndef GPM_TABLE_DRAINING_H_
#define GPM_TABLE_DRAINING_H_

#include <cstdint>

#include "table/protocol.h"

namespace gpm {

/// How the oldest level is drained when a new one was added (GPHash section 3.2.3, "Resizing"): its
/// items are moved up into the addressable levels, and each keeps its value cell. Written once for
/// both executors.
///
/// An item is inserted above first, then erased below: a crash in between leaves it in both places,
/// of which the one above is addressable.
///
/// Batches may run meanwhile, since operations look at addressable levels alone, and each batch
/// begins by moving the items of its own keys up (BringUp). What is not there then does not come
/// back: nothing is inserted into a level that is being drained. (Of a damaged pool, an item that
/// is not where its key hashes to comes when its bucket is drained.) So whoever else moves an item
/// up meets no operation on its key, and only needs the key's lock against others who move it. The
/// last store of a move says that it is durable:
///
///   item -> kInsertState, and its reference -> 0 · fence · kInsertState -> kEmptyState
///
/// Who sees neither the item nor kInsertState knows that no crash brings the item back. (Else an
/// operation that erases it above might be durable before its erase below is.) In recovery
/// kInsertState means nothing there.
///
/// Where there is a directory, it has the level's fingerprints (DirectoryView::drained), which say
/// the same, so that a key that is not below costs no access to persistent memory:
///
///   item -> kEmptyState · fence · fingerprint -> kEmpty

/// Moves the item in a slot of a level that is being drained up. It is not durable yet that it is
/// not there any more.
/// @param word, key the slot's @return false when it found no slot above; it stays
template <class Group, class Media>
GPM_HD bool MoveUp(const Operations<Group, Media>& operations, Slot slot, std::uint64_t word,
                   const std::uint64_t* key) {
  // Damage may have left an item where no operation finds it: it does not take the place of one
  // that is found, should its key have been inserted again.
  const bool valid =
      operations.IsInPlace(slot, word, key) || !operations.IsDrainedDuplicate(slot, key);
  if (valid && !operations.InsertReference(key, operations.LoadReference(slot))) return false;
  if (operations.group().IsLeader()) {
    std::uint64_t* const state = operations.table().State(slot);
    operations.media().Store(state, kEmptyState);
    operations.media().Flush(Step::kDrainFlush, state, sizeof *state);
  }
  return true;
}

/// The same of members of a team, while batches run, and durably: two fences for all of them, or
/// three (PreparesItems). All members call it. Items that lie side by side come to lie so above:
/// each rather takes a slot at the location where it was, which is a part of the level in the order
/// of one hash, so that a block's writes are of whole lines, most of them.
/// @param moves whether this member has an item to move. REQUIRES: it holds the key's lock
/// @param slot, word, reference, key of that @return false when it found no slot above; it stays
template <class Team, class Group, class Media>
GPM_HD bool MoveUpDurably(const Team& team, const Operations<Group, Media>& operations, bool moves,
                          Slot slot, std::uint64_t word, std::uint64_t reference,
                          const std::uint64_t* key) {
  using Claim = typename Operations<Group, Media>::Claim;
  const TableView& table = operations.table();
  const auto& media = operations.media();
  const auto& directory = operations.directory();
  const bool leads = operations.group().IsLeader();
  const bool lists = directory.knows_drained();
  typename Operations<Group, Media>::Work item;
  Claim claim = Claim::kIsThere;
  if (moves) {
    item = operations.StartItem(key, reference);
    const int location = operations.LocationIn(slot, word, item.candidates);
    // (As in MoveUp.)
    if (location >= 0 || !operations.IsDrainedDuplicate(slot, key)) {
      claim = operations.ClaimFor(&item, kMaxLevels, location);
    }
  }
  const bool places = claim == Claim::kMade;
  moves = moves && claim != Claim::kNoSlot;
  if (!team.Or(moves)) return claim != Claim::kNoSlot;
  if (operations.PreparesItems()) {
    FenceBeforePublish(team, media, Step::kInsertContentsFence, places);
  }
  if (places) operations.Commit(&item);
  FenceBeforeAck(team, media, Step::kInsertDoneFence, places);
  if (places) operations.Placed(item);
  if (moves && leads) {
    EmptySlot(table, media, slot, Step::kDrainFlush, lists ? kEmptyState : kInsertState);
  }
  FenceBeforeAck(team, media, Step::kDrainFence, moves);
  if (moves && leads) {
    if (lists) {
      directory.MovedUp(slot);
    } else {
      media.Store(table.State(slot), kEmptyState);
    }
  }
  operations.group().Sync();  // none of the group takes it for an item any more
  return claim != Claim::kNoSlot;
}

/// Moves the items of one bucket of a level that is being drained up, while no batch runs. It is
/// durable when the bucket is done. (Were it not, and another item finds no slot, so that one more
/// level is added, then the level above might be drained too, and an item be in two levels of which
/// neither is addressable.)
/// @param displaces moves other items aside to make room. REQUIRES then: no key in the level has a
///        copy above, as after a first pass
/// @return items that found no slot above; they stay
template <class Group, class Media>
GPM_HD std::uint64_t DrainBucket(const Operations<Group, Media>& operations, std::byte* bucket,
                                 bool displaces) {
  constexpr int kMostTries = 4;  // others may take the slot
  const TableView& table = operations.table();
  const Media& media = operations.media();
  std::uint64_t left = 0;
  bool erased = false;
  for (std::uint32_t s = 0; s < table.slots; ++s) {
    const Slot slot{bucket, s};
    const std::uint64_t word = operations.LoadState(slot);
    if (word == kEmptyState) continue;
    if (word == kInsertState) {
      if (operations.group().IsLeader()) {
        media.Store(table.State(slot), kEmptyState);
        media.Flush(Step::kDrainFlush, table.State(slot), sizeof word);
      }
    } else {
      KeyBuffer key;
      LoadSlotKey(table, media, slot, word, key.words);
      bool moved = MoveUp(operations, slot, word, key.words);
      for (int i = 0; displaces && !moved && i < kMostTries; ++i) {
        if (!operations.MakeRoomFor(operations.Locate(key.words))) break;
        moved = MoveUp(operations, slot, word, key.words);
      }
      if (!moved) {
        ++left;
        continue;
      }
    }
    erased = true;
  }
  FenceBeforeAck(TeamOfOne(operations.group()), media, Step::kDrainFence, erased);
  return left;
}

/// The same of slots while batches run, one of each member of a team. All members call it.
/// @param slot its bucket is null where a member has none
/// @return false when its item found no slot above
template <class Team, class Group, class Media>
GPM_HD bool DrainSlotsBesideBatches(const Team& team, const Operations<Group, Media>& operations,
                                    Slot slot) {
  const auto& directory = operations.directory();
  const bool lists = directory.knows_drained();
  const auto is_listed = [&] {  // the same for the whole group
    return operations.group().Ballot(directory.DrainedPrint(slot) != DirectoryView::kEmpty) != 0;
  };
  std::uint64_t word = kEmptyState;
  std::uint64_t reference = 0;
  if (slot.bucket != nullptr && (!lists || is_listed())) {
    operations.LoadItem(slot, &word, &reference);
  }
  bool active = word != kEmptyState && word != kInsertState;
  KeyBuffer key;
  Candidates candidates{};
  if (active) {
    LoadSlotKey(operations.table(), operations.media(), slot, word, key.words);
    candidates = operations.Locate(key.words);
  }
  bool moved = true;
  while (team.Or(active)) {
    const bool has = team.Lock(operations, candidates, active);
    // (Somebody may have moved it.)
    const bool is_there = has && (lists ? is_listed() : operations.LoadState(slot) == word);
    moved &= MoveUpDurably(team, operations, is_there, slot, word, reference, key.words);
    team.Unlock(operations, candidates, has);
    active = active && !has;
  }
  return moved;
}

/// The same of one bucket.
template <class Group, class Media>
GPM_HD std::uint64_t DrainBucketBesideBatches(const Operations<Group, Media>& operations,
                                              std::byte* bucket) {
  std::uint64_t left = 0;
  for (std::uint32_t s = 0; s < operations.table().slots; ++s) {
    const TeamOfOne alone(operations.group());
    left += DrainSlotsBesideBatches(alone, operations, Slot{bucket, s}) ? 0 : 1;
  }
  return left;
}

/// Moves the item of a key up, if it is in a level that is being drained, so that operations on the
/// key find it: at the beginning of a batch, for each of its keys. Items with the same hash come
/// with it, since in no level of any size would there be room for them beside more such items.
///
/// Of many that come for one key at once, one moves it. The others do not wait for the lock in
/// turn, but until the item is not below any more.
/// @return false when one found no slot above: the batch can't be carried out
template <class Group, class Media>
GPM_HD bool BringUp(const Operations<Group, Media>& operations, const Candidates& candidates) {
  for (bool closely = true; operations.MayBeBelow(candidates, closely); closely = false) {
    if (!operations.TryLock(candidates)) {
      operations.media().Wait();
      continue;
    }
    bool moved = true;
    while (moved) {
      const Slot slot = operations.FindDrained(candidates, nullptr);
      if (slot.bucket == nullptr) break;
      KeyBuffer key;
      LoadSlotKey(operations.table(), operations.media(), slot, candidates.word, key.words);
      moved = MoveUpDurably(TeamOfOne(operations.group()), operations, true, slot, candidates.word,
                            operations.LoadReference(slot), key.words);
    }
    operations.Unlock(candidates);
    return moved;
  }
  return true;
}

}  // namespace gpm

#endif  // GPM_TABLE_DRAINING_H_
