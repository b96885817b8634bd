#ifndef GPM_ENGINE_TABLE_KEY_LOCKS_H_
#define GPM_ENGINE_TABLE_KEY_LOCKS_H_

#include <cstdint>

#include "engine/table/hash.h"

namespace gpm {

/// Locks in the executor's volatile memory, of which each key has one, shared with others by hash:
/// a trivially copyable view. Who may add a key holds its lock from the probe that did not find it
/// until the item is published and durable. Without it, two batches that insert one key at once
/// could both find it absent and publish a copy each, and whichever of the copies were taken away
/// later, somebody may have been told its value. (GPHash section 3.2.2 tolerates the copies and
/// gives up on that.) No other operation takes a lock; a crash needs none, since they are volatile.
///
/// Nobody waits while holding a lock, so there is no deadlock; among the threads of one warp,
/// because those that hold it are scheduled independently of those that wait (compute
/// capability 7.0).
struct KeyLocks {
  std::uint32_t* words = nullptr;  ///< 0: free, 1: taken
  std::uint64_t mask = 0;          ///< locks - 1, a power of two less one

  GPM_HD std::uint32_t* Of(const KeyHash& hash) const { return words + (hash.g & mask); }
};

}  // namespace gpm

#endif  // GPM_ENGINE_TABLE_KEY_LOCKS_H_
