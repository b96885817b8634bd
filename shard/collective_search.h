#ifndef GPM_SHARD_COLLECTIVE_SEARCH_H_
#define GPM_SHARD_COLLECTIVE_SEARCH_H_

#include <cstdint>
#include <functional>
#include <span>

#include "gpmstore/exchange.h"
#include "gpmstore/search.h"
#include "shard/shard_set.h"
#include "shard/together.h"

namespace gpm {

/// Searches of several ranks, each of which has some of the shards. All ranks call these, in the
/// same order.

/// Each rank asks what it wants of all shards: queries go to all ranks, and each sends back the
/// rows that its shards have.
/// @param set this rank's shards @param mine may be none
/// @return as ShardedStore::Search of all shards
/// @throws Error kInvalidArgument (a rank's query), and as Together; kIo (Exchange)
SearchResult SearchTogether(Exchange& exchange, ShardSet& set, std::span<const Query> mine,
                            const SearchOptions& options);

/// Changes what matches a query, which all ranks give: `change` does it in this rank's shards.
/// @param call kErase or kUpdate @return the sum of what `change` returned on all ranks
/// @throws Error kInvalidArgument (no query that the shards know; not the same on all ranks), with
///         nothing changed; as Together: then each rank has done its part, or failed in it
std::uint64_t ChangeTogether(Exchange& exchange, ShardSet& set, CollectiveCall call,
                             const Query& query, const std::function<std::uint64_t()>& change);

}  // namespace gpm

#endif  // GPM_SHARD_COLLECTIVE_SEARCH_H_
