#include "shard/shard_snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "snapshot/new_file.h"

namespace gpm {

std::string ShardSnapshotPath(const std::string& folder, std::uint32_t shard) {
  return fmt::format("{}/{:04}.snap", folder, shard);
}

SnapshotResult SnapshotShards(ShardSet& set, const std::string& folder) {
  std::vector<SnapshotResult> results(set.count());
  try {
    set.ForAll([&](std::uint32_t shard) {
      results[shard - set.first()] =
          set.store(shard).Snapshot(ShardSnapshotPath(folder, shard), {.track_changes = false});
    });
  } catch (...) {
    RemoveShardSnapshots(folder, set.first(), set.first() + set.count());
    throw;
  }
  return SumSnapshots(results);
}

void RemoveShardSnapshots(const std::string& folder, std::uint32_t first,
                          std::uint32_t end) noexcept {
  try {
    for (std::uint32_t shard = first; shard < end; ++shard) {
      RemoveFile(ShardSnapshotPath(folder, shard));
    }
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
