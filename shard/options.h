#ifndef GPM_SHARD_OPTIONS_H_
#define GPM_SHARD_OPTIONS_H_

#include <cstdint>
#include <memory>

#include "engine/log.h"
#include "gpmstore/options.h"
#include "gpmstore/sharded_store.h"

namespace gpm {

/// A shard's part of so many items, and four standard deviations more: one of 30,000 shards gets
/// more keys than this.
std::uint64_t ShareOfItems(std::uint64_t items, std::uint32_t shards);

/// Shards that one process has, which options are divided among: [first, end) of all.
struct ShardRange {
  static ShardRange All(std::uint32_t shards) { return {.first = 0, .end = shards, .all = shards}; }

  std::uint32_t first, end, all;
};

/// How one of the shards is created and opened. @param shard its number among all
CreateOptions ShareOf(const CreateOptions& create, std::uint32_t shard, std::uint32_t shards);
OpenOptions ShareOf(const OpenOptions& open, const ShardOptions& options, std::uint32_t shard,
                    const ShardRange& mine);

/// Threads that divide batches in host memory, and bring rows together and back.
/// @param ranks that do so on this machine at once
unsigned ThreadsToDivide(const OpenOptions& open, std::uint32_t ranks);

/// @throws Error(kInvalidArgument) for what a store over several pools can't do
void ValidateForShards(const OpenOptions& open);
/// @throws Error(kInvalidArgument) for a number of shards that no store can have
void ValidateShardCount(std::uint32_t shards);

/// The user's log, and what shards get in its place, who tell it while this store holds locks: it
/// keeps what they say until the user's can be told.
std::shared_ptr<Log> KeepLog(OpenOptions* open);

}  // namespace gpm

#endif  // GPM_SHARD_OPTIONS_H_
