#ifndef GPM_SHARD_SUM_STATS_H_
#define GPM_SHARD_SUM_STATS_H_

#include <span>

#include "gpmstore/stats.h"

namespace gpm {

/// As ShardedStore::Stats has it. @param shards at least one
StoreStats SumStats(std::span<const StoreStats> shards);

}  // namespace gpm

#endif  // GPM_SHARD_SUM_STATS_H_
