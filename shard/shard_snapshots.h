#ifndef GPM_SHARD_SHARD_SNAPSHOTS_H_
#define GPM_SHARD_SHARD_SNAPSHOTS_H_

#include <cstdint>
#include <span>
#include <string>

#include "gpmstore/snapshot.h"
#include "shard/shard_set.h"

namespace gpm {

/// The file of a shard in the folder of a store's snapshot.
std::string ShardSnapshotPath(const std::string& folder, std::uint32_t shard);

/// Writes a snapshot of each of these shards to a folder that is there, at once. No batch runs
/// meanwhile. @return their sum @throws as Store::Snapshot; then there is no file of them
SnapshotResult SnapshotShards(ShardSet& set, const std::string& folder);

/// Removes files of shards [first, end); errors are lost.
void RemoveShardSnapshots(const std::string& folder, std::uint32_t first,
                          std::uint32_t end) noexcept;

/// Of snapshots that were taken at once, while no batch ran.
SnapshotResult SumSnapshots(std::span<const SnapshotResult> parts);

}  // namespace gpm

#endif  // GPM_SHARD_SHARD_SNAPSHOTS_H_
