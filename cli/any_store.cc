#include "cli/any_store.h"

#include <filesystem>
#include <system_error>

#include "shard/folder.h"

namespace gpm::cli {
namespace {

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

}  // namespace

AnyStore AnyStore::Create(const std::string& path, const CreateOptions& create,
                          const OpenOptions& open, std::uint32_t shards) {
  if (shards == 0) return Store::Create(path, create, open);
  return ShardedStore::Create(path, create, {.shards = shards}, open);
}

AnyStore AnyStore::Open(const std::string& path, const OpenOptions& open, std::uint32_t shards) {
  if (shards == 0 && !IsFolder(path)) return Store::Open(path, open);
  return ShardedStore::Open(path, open, {.shards = shards});
}

AnyStore AnyStore::Restore(std::span<const std::string> files, const std::string& path,
                           const OpenOptions& open) {
  if (files.size() != 1 || !IsFolder(files[0])) return Store::Restore(files, path, open);
  if (ShardFolder::HasManifest(files[0])) return ShardedStore::Restore(files[0], path, open);
  return Store::RestoreNewest(files[0], path, open);
}

}  // namespace gpm::cli
