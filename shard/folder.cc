#include "shard/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "pm/mapping.h"
#include "pm/pool.h"
#include "pm/random_id.h"
#include "snapshot/new_file.h"

namespace gpm {
namespace {

constexpr const char* kManifest = "/manifest.json";
constexpr const char* kNewManifest = "/manifest.json.new";

/// Names of files in a folder that are those of pools.
std::vector<std::string> PoolNamesIn(const std::string& folder) {
  std::vector<std::string> names = NamesIn(folder);
  std::erase_if(names, [](const std::string& name) { return !IsPoolFileName(name); });
  return names;
}

/// Whether a file is of a pool that was being restored (Store::Restore).
bool IsOfRestore(const std::string& name) {
  const std::size_t end = name.find(".restoring-");
  return end != std::string::npos && IsPoolFileName(name.substr(0, end));
}

}  // namespace

bool ShardFolder::HasManifest(const std::string& path) {
  return access((path + kManifest).c_str(), F_OK) == 0;
}

std::vector<std::string> ShardFolder::PoolsIn(const std::string& path) {
  std::vector<std::string> paths = PoolNamesIn(path);
  for (std::string& name : paths) name = path + "/" + name;
  return paths;
}

ShardFolder::ShardFolder(const std::string& path, Use use) : path_(path) {
  if (path == Mapping::kPinnedPath) {
    throw Error(ErrorCode::kInvalidArgument,
                path + ": shards can't be in pinned memory; name a folder");
  }
  if (path.empty()) throw Error(ErrorCode::kNotFound, "the folder's path is empty");
  RequireNoZeroByte(path);
  if (use == Use::kCreate) {
    made_ = mkdir(path.c_str(), 0777) == 0;
    if (!made_ && (errno == ENOENT || errno == ENOTDIR)) {
      throw Error(ErrorCode::kNotFound, path + ": the folder for it does not exist");
    }
    if (!made_ && errno != EEXIST) ThrowFileError(path, "make", errno);
  }
  try {
    Lock(use);
    const bool has_manifest = ReadManifest();
    if (use == Use::kCreate) {
      if (has_manifest) {
        throw Error(ErrorCode::kExists, path + ": there is a store of shards in it already");
      }
      BeginCreation();
    } else if (!has_manifest) {
      throw Error(
          ErrorCode::kNotFound,
          fmt::format("{}{}: there is none, so this is no store of shards", path, kManifest));
    }
  } catch (...) {
    if (made_) rmdir(path.c_str());  // unless another has made something in it
    Close();
    throw;
  }
}

ShardFolder::~ShardFolder() { Close(); }

void ShardFolder::Close() noexcept {
  if (fd_ < 0) return;
  // Closing alone would not, while a child of a fork still has it open.
  if (getpid() == process_) flock(fd_, LOCK_UN);
  close(std::exchange(fd_, -1));
}

void ShardFolder::Lock(Use use) {
  fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0 && errno == ENOENT) {
    throw Error(ErrorCode::kNotFound, path_ + ": there is no such folder");
  }
  if (fd_ < 0 && errno == ENOTDIR) {
    throw Error(ErrorCode::kInvalidArgument, path_ + ": a store of shards is a folder, not a file");
  }
  if (fd_ < 0) ThrowFileError(path_, "open", errno);
  if (flock(fd_, (use == Use::kRead ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) ThrowFileError(path_, "lock", errno);
  throw Error(ErrorCode::kBusy, path_ + ": another store or process has the shards in it open");
}

bool ShardFolder::ReadManifest() {
  std::string text;
  if (!ReadWholeFile(path_ + kManifest, &text)) return false;
  manifest_ = ParseManifest(text, path_ + kManifest);
  return true;
}

void ShardFolder::BeginCreation() {
  const std::string mark = path_ + kNewManifest;
  struct stat status {};
  if (lstat(mark.c_str(), &status) != 0) {
    if (errno != ENOENT) ThrowFileError(mark, "look for it", errno);
    const std::vector<std::string> pools = PoolNamesIn(path_);
    if (!pools.empty()) {
      throw Error(ErrorCode::kExists,
                  fmt::format("{}{}: there is none, but pools are there, such as {}: put it back, "
                              "or remove them",
                              path_, kManifest, pools.front()));
    }
    const int fd = open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) ThrowFileError(mark, "create", errno);
    close(fd);
    if (fsync(fd_) != 0 && errno != EINVAL) {
      const int error = errno;
      RemoveFile(mark);
      ThrowFileError(path_, "sync", error);
    }
  }
  RemoveOthers();
}

std::string ShardFolder::PathOf(std::uint64_t generation, std::uint32_t shard) const {
  return fmt::format("{}/{}", path_, PoolFileName(generation, shard));
}

void ShardFolder::RequirePool(std::uint32_t shard) const {
  const std::string path = PathOf(shard);
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: the pool of shard {} is missing; put it back", path, shard));
  }
  const Superblock superblock = Pool::Open(path, {.read_only = true})->superblock();
  const std::string& expected = manifest_.pools[shard].uuid;
  if (HexOf(std::to_array(superblock.uuid)) == expected) return;
  throw Error(
      ErrorCode::kDamaged,
      fmt::format("{}: not the pool of shard {}: its UUID is {}, and {}{} says {}", path, shard,
                  HexOf(std::to_array(superblock.uuid)), path_, kManifest, expected));
}

void ShardFolder::RequirePools() const {
  for (std::uint32_t i = 0; i < manifest_.shards(); ++i) RequirePool(i);
}

void ShardFolder::SetManifest(const Manifest& manifest) {
  Manifest copy = manifest;
  const std::string temporary = path_ + kNewManifest;
  try {
    ReplaceFile(path_ + kManifest, temporary, ToText(manifest), true);
  } catch (...) {
    if (manifest_.shards() > 0) RemoveFile(temporary);  // else it marks pools, until they are gone
    throw;
  }
  manifest_ = std::move(copy);
}

void ShardFolder::RemoveOthers() noexcept {
  try {
    for (const std::string& name : NamesIn(path_)) {
      if (!IsPoolFileName(name) && !IsOfRestore(name)) continue;
      const bool is_named =
          std::any_of(manifest_.pools.begin(), manifest_.pools.end(),
                      [&](const Manifest::PoolFile& pool) { return pool.file == name; });
      if (!is_named) RemoveFile(path_ + "/" + name);
    }
    // Beside a manifest it marks no creation, and must not when that is lost.
    if (manifest_.shards() > 0) RemoveFile(path_ + kNewManifest);
  } catch (const std::exception&) {  // they take room, and nothing else
  }
}

void ShardFolder::Abandon() noexcept {
  manifest_ = {};
  RemoveOthers();
  RemoveFile(path_ + kManifest);
  RemoveFile(path_ + kNewManifest);
  if (made_) rmdir(path_.c_str());
}

}  // namespace gpm
