#ifndef GPM_TABLE_COMPOSING_H_
#define GPM_TABLE_COMPOSING_H_

#include <cstddef>
#include <cstdint>

#include "table/protocol.h"

namespace gpm {

/// How a new level takes the items of the oldest one at once, while no batch runs: the level is
/// composed where nothing in the pool names it, and one switch of the superblock then names it and
/// drops the oldest (Resizer). Written once for both executors.
///
/// Until that switch nothing that the pool names changes: an item goes to a slot of the new level
/// or nowhere, and its slot in the oldest level keeps it. So a crash leaves the table as it was, or
/// the larger one, and no store here needs an order of persistence. The level is made durable as a
/// whole before the switch. An item that finds no slot stays in the oldest level, which is then
/// drained as ever (table/draining.h): the others are there twice, like those of a drain that a
/// crash cut off between two stores.

/// The media policy for what nothing in the pool names yet. Threads see each other's stores in
/// order; what makes them durable is left to who names them.
template <class Media>
class UnnamedMedia : public Media {
 public:
  GPM_HD explicit UnnamedMedia(const Media& media) : Media(media) {}
  GPM_HD void Flush(Step, const void*, std::size_t) const {}
  GPM_HD void Fence(Step step) const { Media::FenceShared(step); }
};

/// Puts the item of a slot of the oldest level, which is not addressable any more, into the newest,
/// if there is one. (Damage may have left a copy of it in another level, which then takes
/// precedence over it, as while a level is drained.)
/// @param operations with an UnnamedMedia
/// @param read where its words are read: the slot, or a copy of it
/// @return false when it found no slot there, or lies where only damage has put it
template <class Group, class Media>
GPM_HD bool ComposeSlot(const Operations<Group, Media>& operations, Slot slot, Slot read) {
  const std::uint64_t word = operations.LoadState(read);
  if (word == kEmptyState || word == kInsertState) return true;
  KeyBuffer key;
  LoadSlotKey(operations.table(), operations.media(), read, word, key.words);
  return operations.IsInPlace(slot, word, key.words) &&
         operations.InsertReference(key.words, operations.LoadReference(read), 1);
}

}  // namespace gpm

#endif  // GPM_TABLE_COMPOSING_H_
