#ifndef GPM_SHARD_MANIFEST_H_
#define GPM_SHARD_MANIFEST_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shard/partition.h"

namespace gpm {

inline constexpr std::uint32_t kMaxShards = 1024;

/// What a folder of shards is: its pools, one a shard, in the shards' order, and which keys are in
/// which (docs/SHARDS.md). A file of JSON with a checksum.
struct Manifest {
  struct PoolFile {
    std::string file;  ///< its name in the folder (PoolFileName)
    std::string uuid;  ///< of the pool (HexOf)
  };

  std::string uuid;  ///< of the store, whatever the number of its shards
  std::array<std::uint64_t, 2> hash_seed{};
  std::uint32_t key_size = 0;    ///< bytes
  std::uint32_t value_size = 0;  ///< bytes
  std::uint64_t generation = 0;  ///< of the pools: another one each time that it is resharded
  std::vector<PoolFile> pools;   ///< 1 to kMaxShards

  std::uint32_t shards() const { return static_cast<std::uint32_t>(pools.size()); }
  Partition partition() const { return {{hash_seed[0], hash_seed[1]}, shards()}; }
};

/// The name of a pool's file: "000001-0003.pool".
std::string PoolFileName(std::uint64_t generation, std::uint32_t shard);
/// Whether that is what PoolFileName says of some pool.
bool IsPoolFileName(const std::string& name);

std::string ToText(const Manifest& manifest);
/// @param path of the manifest, for messages
/// @throws Error(kDamaged) saying what is wrong with it, or that it is of another version
Manifest ParseManifest(const std::string& text, const std::string& path);

/// @param shards that are asked for; 0: any number
/// @throws Error(kInvalidArgument) when the store has others, naming `path`
void RequireShards(const std::string& path, const Manifest& manifest, std::uint32_t shards);

}  // namespace gpm

#endif  // GPM_SHARD_MANIFEST_H_
