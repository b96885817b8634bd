#include "cli/any_store.h"

#include "cli/pool_files.h"
#include "gpmstore/error.h"
#include "shard/folder.h"

namespace gpm::cli {
namespace {

void RequireNoDevices(const std::string& path, const ShardOptions& shards) {
  if (shards.devices.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              path +
                  ": --devices has no effect: it is one pool, on one GPU; a folder of shards, "
                  "which --shards makes, has several");
}

}  // namespace

AnyStore AnyStore::Create(const std::string& path, const CreateOptions& create,
                          const OpenOptions& open, const ShardOptions& shards) {
  if (shards.shards > 0) return ShardedStore::Create(path, create, shards, open);
  RequireNoDevices(path, shards);
  return Store::Create(path, create, open);
}

AnyStore AnyStore::Open(const std::string& path, const OpenOptions& open,
                        const ShardOptions& shards) {
  if (shards.shards > 0 || IsFolder(path)) return ShardedStore::Open(path, open, shards);
  RequireNoDevices(path, shards);
  return Store::Open(path, open);
}

AnyStore AnyStore::Restore(std::span<const std::string> files, const std::string& path,
                           const OpenOptions& open, const ShardOptions& shards) {
  const bool is_folder = files.size() == 1 && IsFolder(files[0]);
  if (is_folder && ShardFolder::HasManifest(files[0])) {
    return ShardedStore::Restore(files[0], path, open, shards);
  }
  RequireNoDevices(path, shards);
  return is_folder ? Store::RestoreNewest(files[0], path, open) : Store::Restore(files, path, open);
}

}  // namespace gpm::cli
