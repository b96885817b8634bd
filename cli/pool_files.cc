#include "cli/pool_files.h"

#include <filesystem>
#include <system_error>

namespace gpm::cli {

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

PoolFiles::PoolFiles(const std::string& path, ShardFolder::Use use, Pools pools) {
  if (!IsFolder(path)) {
    paths_.push_back(path);
    return;
  }
  folder_ = std::make_unique<ShardFolder>(path, use);
  if (pools == Pools::kRequired) folder_->RequirePools();
  for (std::uint32_t i = 0; i < folder_->manifest().shards(); ++i) {
    paths_.push_back(folder_->PathOf(i));
  }
}

std::size_t PoolFiles::ShardOf(std::span<const std::byte> key) const {
  if (folder_ == nullptr) return 0;
  return folder_->manifest().partition().Of(key.data(), folder_->manifest().key_size);
}

}  // namespace gpm::cli
