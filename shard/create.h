#ifndef GPM_SHARD_CREATE_H_
#define GPM_SHARD_CREATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpmstore/store.h"
#include "shard/folder.h"
#include "shard/shard_set.h"

namespace gpm {

/// Makes the pools of a folder's next generation, which no manifest names yet, and opens them.
/// @param manifest with a generation and a hash seed; gets the pools and their sizes
/// @param make one of them, at the path
/// @throws what `make` throws
std::unique_ptr<ShardSet> MakeShards(
    const ShardFolder& folder, std::uint32_t shards, const OpenOptions& open, Manifest* manifest,
    const std::function<Store(std::uint32_t shard, const std::string& path)>& make);

}  // namespace gpm

#endif  // GPM_SHARD_CREATE_H_
