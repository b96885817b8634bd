#ifndef GPM_TABLE_DISPLACING_H_
#define GPM_TABLE_DISPLACING_H_

#include <cstdint>

#include "table/operation.h"
#include "table/protocol.h"

namespace gpm {

/// How a batch that lacks slots for a few of its keys gets them in a table that need not grow yet:
/// while no batch runs, a slot is freed for each such key by moving its item to another slot of its
/// own (Operations::MakeRoomFor). The batch then goes on as ever. Written once for both executors.
///
/// A move is an insert and then an erase, each durable before anything else happens to the item,
/// and both copies are the same in between. So nothing but the place of an item changes, whatever a
/// crash leaves; and a level that is being drained, or a snapshot that holds cells, is not touched.

/// Slots that a batch lacked, and those of them that it has now.
struct SlotsMade {
  std::uint64_t lacking = 0;
  std::uint64_t made = 0;
};

/// Frees a slot for the key of an operation, if it may be inserted and finds none. Any number of
/// groups at once, for keys of one batch. (One of them may take what another has freed, to move an
/// item there. Then a key lacks a slot again.)
/// @param counts what was lacking and made by all groups @param most of those are made
template <class Group, class Media>
GPM_HD void MakeSlotFor(const Operations<Group, Media>& operations, Op op,
                        const Candidates& candidates, const std::uint64_t* key, std::uint64_t most,
                        SlotsMade* counts) {
  if (!Inserts(op)) return;
  std::uint32_t empty = 0;
  if (operations.Find(candidates, key, 0, &empty).present || empty != 0) return;
  std::uint32_t few = 0;
  if (operations.group().IsLeader()) few = AtomicAdd(&counts->lacking, 1) < most ? 1 : 0;
  if (operations.group().Broadcast(few) == 0) return;
  if (operations.MakeRoomFor(candidates) && operations.group().IsLeader()) {
    AtomicAdd(&counts->made, 1);
  }
}

}  // namespace gpm

#endif  // GPM_TABLE_DISPLACING_H_
