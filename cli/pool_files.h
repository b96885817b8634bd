#ifndef GPM_CLI_POOL_FILES_H_
#define GPM_CLI_POOL_FILES_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shard/folder.h"

namespace gpm::cli {

/// Whether there is a folder at a path.
bool IsFolder(const std::string& path);

/// The pools that a command's POOL names: a pool file, or a folder of shards, which is then locked
/// during the object's life. Thread safety: none.
class PoolFiles {
 public:
  enum class Pools {
    kRequired,   ///< each has to be there, and the one that the manifest names
    kAsTheyAre,  ///< for a command that looks into that itself
  };

  /// @throws Error as ShardFolder and ShardFolder::RequirePools for a folder; of a file, none
  PoolFiles(const std::string& path, ShardFolder::Use use, Pools pools = Pools::kRequired);

  const std::vector<std::string>& paths() const { return paths_; }  ///< in the shards' order
  const ShardFolder* folder() const { return folder_.get(); }       ///< or null
  /// The shard that a key belongs to; 0 of a pool file.
  std::size_t ShardOf(std::span<const std::byte> key) const;

 private:
  std::unique_ptr<ShardFolder> folder_;
  std::vector<std::string> paths_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_POOL_FILES_H_
