#ifndef GPM_SNAPSHOT_WRITER_H_
#define GPM_SNAPSHOT_WRITER_H_

#include <cstdint>
#include <string>

#include "pm/thread_pool.h"
#include "snapshot/format.h"
#include "snapshot/new_file.h"

namespace gpm {

/// Who has the things of a snapshot: what its blocks are filled with. Called by several threads.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  /// Changed ranges [first, first + count), in ascending order.
  virtual void CopyRanges(std::uint64_t first, std::uint64_t count, std::byte* ranges) const = 0;
  /// Items [first, first + count), in any order.
  virtual void CopyItems(std::uint64_t first, std::uint64_t count, std::byte* keys,
                         std::byte* values) const = 0;
};

SnapshotId NewSnapshotId();

/// Writes a snapshot's file, which has its name when it is complete.
class SnapshotWriter {
 public:
  /// @throws Error kExists, kNotFound (the folder), kIo, kNoSpace
  explicit SnapshotWriter(const std::string& path) : file_(path) {}

  /// Each thread fills a block, and writes it where it belongs: so several writes are in flight,
  /// which a disk needs, and values are read meanwhile.
  /// @throws Error kExists, kIo, kNoSpace; std::bad_alloc
  void Write(SnapshotHeader header, const SnapshotSource& source, ThreadPool& threads);
  /// All of `source` was copied; now the file gets its name. @return bytes of the file
  std::uint64_t Finish();

 private:
  NewFile file_;
  std::uint64_t bytes_ = 0;
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_WRITER_H_
