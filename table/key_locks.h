#ifndef GPM_TABLE_KEY_LOCKS_H_
#define GPM_TABLE_KEY_LOCKS_H_

#include <cstdint>

#include "table/hash.h"

namespace gpm {

/// Locks in the executor's volatile memory, of which each key has one, shared with others by hash:
/// a trivially copyable view. Who may add a key holds its lock from the probe that did not find it
/// until the item is published and durable. Without it, two batches that insert one key at once
/// could both find it absent and publish a copy each, and whichever of the copies were taken away
/// later, somebody may have been told its value. (GPHash section 3.2.2 tolerates the copies and
/// gives up on that.) With a directory, every write holds its key's lock until the directory tells
/// of it (DirectoryView, invariant 1). A crash needs no locks, since they are volatile.
///
/// Who holds a lock waits, if at all, for somebody who is writing a slot of a block (Take) and goes
/// on without waiting: there is no deadlock; among the threads of one warp, because those that hold
/// it are scheduled independently of those that wait (compute capability 7.0).
struct KeyLocks {
  std::uint32_t* words = nullptr;  ///< 0: free, 1: taken
  std::uint64_t mask = 0;          ///< locks - 1, a power of two less one

  /// Ordered by the high bits of g, by which the cpu executor deals operations to threads: the
  /// locks of two threads are then in different cache lines.
  GPM_HD std::uint32_t* Of(const KeyHash& hash) const {
    return words + ((hash.g >> 32) * (mask + 1) >> 32);
  }
};

}  // namespace gpm

#endif  // GPM_TABLE_KEY_LOCKS_H_
