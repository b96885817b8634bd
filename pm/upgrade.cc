#include "pm/upgrade.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "gpmstore/error.h"
#include "pm/file_access.h"
#include "pm/mapping.h"
#include "pm/old_format.h"
#include "pm/space.h"

namespace gpm {
namespace {

/// What follows the pool's name in that of the new one, until it takes its place.
constexpr const char* kSuffix = ".gpmstore-upgrade";

[[noreturn]] void ThrowIo(const std::string& path, const char* what, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

/// A file, or a directory with its names, that is to be durable.
class Syncable {
 public:
  explicit Syncable(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) ThrowIo(path_, "can't open to make it durable", errno);
  }
  ~Syncable() { ::close(fd_); }
  Syncable(const Syncable&) = delete;
  Syncable& operator=(const Syncable&) = delete;

  void Sync() const {
    if (fsync(fd_) != 0) ThrowIo(path_, "can't make it durable", errno);
  }

 private:
  std::string path_;
  int fd_;
};

/// Removes what an upgrade of this pool left that was killed: a file that is no pool yet, or one of
/// the same UUID. @throws Error kExists, when it is something else; kBusy
void RemoveLeftOver(const std::string& path, const Superblock& superblock) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  Mapping file(path, Mapping::Options{});
  Superblock there{};
  std::memcpy(static_cast<void*>(&there), file.base(),
              std::min<std::uint64_t>(sizeof there, file.file_bytes()));
  const bool same_pool = std::memcmp(there.uuid, superblock.uuid, sizeof there.uuid) == 0;
  if (there.magic != 0 && (there.magic != kPoolMagic || !same_pool)) {
    throw Error(ErrorCode::kExists,
                fmt::format("{}: exists, and no upgrade left it; move it away", path));
  }
  file.RemoveOnClose(true);
}

/// Writes all but the superblock: what holds zeros there is what the format has as empty.
/// @throws Error(kDamaged)
void WriteContents(const Mapping& old, const Superblock& superblock, std::byte* target) {
  const std::uint64_t bucket_bytes = BucketBytes(superblock.key_size, superblock.geometry);
  const auto write_level = [&](const std::string& name, const LevelEntry& level) {
    for (std::uint64_t b = 0; b < level.buckets; ++b) {
      const std::uint64_t offset = level.offset + b * bucket_bytes;
      if (const auto slot = UpgradeBucket(superblock, old.base() + offset, target + offset)) {
        throw Error(ErrorCode::kDamaged,
                    fmt::format("{}: damaged pool: {}, bucket {}, slot {}: the item has no value",
                                old.path(), name, b, *slot));
      }
    }
  };
  write_level("reserved level", {kReservedOffset, 2});
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    write_level(fmt::format("level {}", i), superblock.levels[i]);
  }
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    std::memcpy(target + segment.offset, old.base() + segment.offset, segment.bytes);
  }
}

/// The word that makes it a pool comes last.
void WriteSuperblock(const Superblock& superblock, std::byte* target) {
  constexpr std::size_t kMagicBytes = sizeof superblock.magic;
  std::memcpy(target + kMagicBytes, reinterpret_cast<const std::byte*>(&superblock) + kMagicBytes,
              sizeof superblock - kMagicBytes);
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(target))
      .store(superblock.magic, std::memory_order_release);
}

/// Room for the new pool, in a file that nobody else can read yet.
std::unique_ptr<Mapping> MakeFile(const std::string& path, const Mapping& old,
                                  const Superblock& superblock) {
  const std::uint64_t bytes = UsedEnd(superblock);
  try {
    RemoveLeftOver(path, superblock);
    auto file = std::make_unique<Mapping>(
        path, Mapping::Options{.max_bytes = old.mapped_bytes(), .create = true, .mode = 0600});
    file->Grow(bytes);
    return file;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: no upgraded pool, of {} bytes, can be made beside "
                                          "it: {}",
                                          old.path(), bytes, error.what()));
  }
}

}  // namespace

bool UpgradePool(const std::string& path) {
  Mapping old(path, Mapping::Options{});
  if (old.file_bytes() < 2 * kSuperblockBytes) {
    throw Error(ErrorCode::kDamaged, path + ": not a GPMStore pool: the file is too short");
  }
  const std::optional<Superblock> superblock =
      UpgradedSuperblock(old.base(), old.file_bytes(), path);
  if (!superblock) return false;
  if (old.is_device()) {  // (No build of those versions had pools on devices.)
    throw Error(ErrorCode::kUnsupported,
                path + ": a pool on a device can't be upgraded: there is no room for a second one");
  }

  std::error_code error;
  const std::filesystem::path pool = std::filesystem::canonical(path, error);
  // A link may lead elsewhere by now. No other upgrade replaces the file, which is locked.
  if (error || !old.IsAt(pool)) {
    throw Error(ErrorCode::kBusy, path + ": was moved or replaced meanwhile; try again");
  }
  old.Populate();  // also what is read of a file on tmpfs must have memory
  const std::string copy = pool.string() + kSuffix;
  const Syncable directory(pool.parent_path());
  const std::unique_ptr<Mapping> file = MakeFile(copy, old, *superblock);
  WriteContents(old, *superblock, file->base());
  WriteSuperblock(*superblock, file->base());
  CopyAccess(pool, copy);
  Syncable(copy).Sync();
  if (std::rename(copy.c_str(), pool.c_str()) != 0) {
    ThrowIo(path, "can't be replaced by the upgraded pool", errno);
  }
  file->RemoveOnClose(false);
  directory.Sync();
  return true;
}

}  // namespace gpm
