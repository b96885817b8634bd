#ifndef GPM_SHARD_MERGE_MATCHES_H_
#define GPM_SHARD_MERGE_MATCHES_H_

#include <cstdint>
#include <span>

#include "gpmstore/search.h"

namespace gpm {

/// What a search of one store would give that has the items of all shards.
/// @param parts what each shard gave for the same queries and options; no key is in two of them
/// @param key_size, value_size bytes
SearchResult MergeMatches(std::span<const SearchResult> parts, const SearchOptions& options,
                          std::uint32_t key_size, std::uint32_t value_size);

}  // namespace gpm

#endif  // GPM_SHARD_MERGE_MATCHES_H_
