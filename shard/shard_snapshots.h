#ifndef GPM_SHARD_SHARD_SNAPSHOTS_H_
#define GPM_SHARD_SHARD_SNAPSHOTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/snapshot.h"
#include "shard/shard_set.h"

namespace gpm {

/// The file of a shard in the folder of a store's snapshot.
std::string ShardSnapshotPath(const std::string& folder, std::uint32_t shard);

/// The files of a snapshot that some shards write. Those that were written go with this, and the
/// folder, if it is empty then, unless they are kept.
class ShardSnapshots {
 public:
  /// @param set, folder outlive it
  ShardSnapshots(ShardSet& set, const std::string& folder)
      : set_(set), folder_(folder), written_(set.count()) {}
  ~ShardSnapshots();
  ShardSnapshots(const ShardSnapshots&) = delete;
  ShardSnapshots& operator=(const ShardSnapshots&) = delete;

  /// All at once, while no batch runs. @return their sum @throws as Store::Snapshot
  SnapshotResult Write();
  void Keep() { written_.assign(set_.count(), 0); }

 private:
  ShardSet& set_;
  const std::string& folder_;
  std::vector<char> written_;  ///< of each shard, whether it was and is to go
};

/// Removes the files of all shards of a folder; errors are lost.
void RemoveShardSnapshots(const std::string& folder, std::uint32_t shards) noexcept;

/// Of snapshots that were taken at once, while no batch ran.
SnapshotResult SumSnapshots(std::span<const SnapshotResult> parts);

}  // namespace gpm

#endif  // GPM_SHARD_SHARD_SNAPSHOTS_H_
