#include "shard/shard_snapshots.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "snapshot/new_file.h"

namespace gpm {

std::string ShardSnapshotPath(const std::string& folder, std::uint32_t shard) {
  return fmt::format("{}/{:04}.snap", folder, shard);
}

SnapshotResult ShardSnapshots::Write() {
  std::vector<SnapshotResult> results(set_.count());
  set_.ForAll([&](std::uint32_t shard) {
    const std::uint32_t i = shard - set_.first();
    results[i] =
        set_.store(shard).Snapshot(ShardSnapshotPath(folder_, shard), {.track_changes = false});
    written_[i] = 1;
  });
  return SumSnapshots(results);
}

ShardSnapshots::~ShardSnapshots() {
  bool removes = false;
  try {
    for (std::uint32_t i = 0; i < written_.size(); ++i) {
      if (written_[i] == 0) continue;
      removes = true;
      RemoveFile(ShardSnapshotPath(folder_, set_.first() + i));
    }
  } catch (const std::exception&) {  // no memory for a name
  }
  if (removes) rmdir(folder_.c_str());
}

void RemoveShardSnapshots(const std::string& folder, std::uint32_t shards) noexcept {
  try {
    for (std::uint32_t i = 0; i < shards; ++i) RemoveFile(ShardSnapshotPath(folder, i));
  } catch (const std::exception&) {  // no memory for a name
  }
}

SnapshotResult SumSnapshots(std::span<const SnapshotResult> parts) {
  SnapshotResult sum;
  for (const SnapshotResult& part : parts) {
    sum.items += part.items;
    sum.written += part.written;
    sum.bytes += part.bytes;
    sum.seconds = std::max(sum.seconds, part.seconds);
  }
  sum.pause_seconds = sum.seconds;
  return sum;
}

}  // namespace gpm
