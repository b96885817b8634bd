#ifndef GPM_SNAPSHOT_H_
#define GPM_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace gpm {

/// How a snapshot is taken (Store::Snapshot).
struct SnapshotOptions {
  /// The file of the last snapshot that was taken of this store with `track_changes`, since it was
  /// opened: this one is then an increment, which has what was inserted, updated or erased since.
  /// Both are needed to restore it. Empty: a whole snapshot.
  std::string base{};
  /// Instead of `base`: the files of a chain of this pool, the whole one first. This one is an
  /// increment on the last of them, whoever took that, and when. What changed since is found by
  /// comparing: the files are read, and all items looked at, while batches go on, in memory for the
  /// keys and references of the items and some 8 to 16 bytes for each. If that fails, the next
  /// snapshot is a whole one.
  std::vector<std::string> chain{};
  /// Whether the next snapshot may be an increment on this one. The store then marks what changes
  /// from now on: it takes 2 to 4 bytes for each item, in the executor's memory, and a change one
  /// more write of a byte there. Without it, the base of the next increment stays what it was, if
  /// there is one, and with it what is marked; with `chain`, it is the last file of that.
  bool track_changes = true;
  /// That copy values and write them; 0: some of the machine's. Writes are in flight at once.
  unsigned threads = 0;
};

/// What a snapshot came to.
struct SnapshotResult {
  std::uint64_t items = 0;    ///< in the store at the instant
  std::uint64_t written = 0;  ///< of those, in the file: all of them, but for an increment
  std::uint64_t bytes = 0;    ///< of the file
  double pause_seconds = 0;   ///< that batches were excluded for, at the instant
  double seconds = 0;         ///< in all
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_H_
