#ifndef GPM_SHARD_FOLDER_H_
#define GPM_SHARD_FOLDER_H_

#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/manifest.h"

namespace gpm {

/// The folder of a store's shards: a manifest, manifest.json, and the pools that it names. Locked
/// during the object's life.
///
/// Invariants:
///  1. The manifest is replaced as a whole, when the pools that it names are whole. So what it says
///     is a whole store, or there is none.
///  2. A pool that it does not name is of a creation or a resharding that a crash cut off, and
///     counts for nothing. Without a manifest, that is said by the file manifest.json.new; else
///     somebody has lost the manifest, and nothing is removed. So one that a resharding leaves
///     beside the manifest goes when the store is opened next.
///
/// Thread safety: none.
class ShardFolder {
 public:
  enum class Use {
    kRead,    ///< nothing is written; beside other readers
    kWrite,   ///< by one store or process alone
    kCreate,  ///< the same: the folder is made, if it is not there, and has no manifest yet
  };

  /// Whether there is a manifest in a folder, so that there is a store in it, or a snapshot of one.
  static bool HasManifest(const std::string& path);
  /// Paths of files in a folder that have names of pools, whatever the manifest says, in no order.
  /// @throws Error(kIo)
  static std::vector<std::string> PoolsIn(const std::string& path);

  /// @throws Error kNotFound (no folder, none with a manifest, or none to make it in), kExists
  ///         (kCreate: there is a store, or pools without manifest), kBusy, kDamaged (the
  ///         manifest), kInvalidArgument (no folder has this name), kIo, kNoSpace
  ShardFolder(const std::string& path, Use use);
  ~ShardFolder();
  ShardFolder(const ShardFolder&) = delete;
  ShardFolder& operator=(const ShardFolder&) = delete;

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }  ///< empty until one was written
  std::string PathOf(std::uint64_t generation, std::uint32_t shard) const;
  std::string PathOf(std::uint32_t shard) const { return PathOf(manifest_.generation, shard); }

  /// Requires the pool of a shard to be there, and to be the one that the manifest names.
  /// Writes nothing. @throws Error kNotFound, kDamaged, kBusy: they name the file
  void RequirePool(std::uint32_t shard) const;
  void RequirePools() const;  ///< of each shard
  /// Names other pools, which are whole. @throws Error kIo, kNoSpace: it names those or the former
  void SetManifest(const Manifest& manifest);
  /// Removes pools that the manifest does not name, also those that were being restored, and what
  /// there is of a newer manifest, if there is one. Errors are lost: the next one tries again.
  void RemoveOthers() noexcept;
  /// Gives up a creation: removes what was made of it.
  void Abandon() noexcept;

 private:
  void Lock(Use use);
  bool ReadManifest();
  void BeginCreation();
  void Close() noexcept;

  const std::string path_;
  const pid_t process_ = getpid();  ///< whose lock it is
  int fd_ = -1;
  bool made_ = false;  ///< the folder
  Manifest manifest_;
};

}  // namespace gpm

#endif  // GPM_SHARD_FOLDER_H_
