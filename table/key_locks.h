#ifndef GPM_TABLE_KEY_LOCKS_H_
#define GPM_TABLE_KEY_LOCKS_H_

#include <cstdint>

#include "table/hash.h"

namespace gpm {

/// Locks in the executor's volatile memory. Each key has one, which it shares with others by hash.
/// A trivially copyable view.
///
/// Who may add a key holds its lock from the probe that did not find it until the item is published
/// and durable. Without it, two batches that insert one key at once could both find it absent and
/// publish a copy each. Whichever copy were taken away later, somebody may have been told its
/// value. (GPHash section 3.2.2 tolerates the copies.) With a directory, every write holds its
/// key's lock until the directory tells of it (DirectoryView, invariant 1). Who moves an item of a
/// level that is being drained holds its lock (table/draining.h). A crash leaves no locks.
///
/// There is no deadlock. Who holds a lock waits for nobody but a writer of a slot of a frame
/// (CacheAccess), who goes on without waiting, and at barriers for the members of its team
/// (table/commit.h), none of whom waits for a lock. Threads of one warp that hold a lock are
/// scheduled independently of those that wait for it (compute capability 7.0).
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
