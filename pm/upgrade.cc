#include "pm/upgrade.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "gpmstore/error.h"
#include "pm/crc32c.h"
#include "pm/mapping.h"
#include "pm/superblock.h"

namespace gpm {
namespace {

/// A superblock of version 1: level i has 2^i buckets, and its offset at level_offset[i].
struct Superblock1 {
  std::byte before[72];  ///< as in version 2
  std::uint32_t bottom;
  std::uint32_t top;
  std::uint32_t segment_count;
  std::uint32_t reserved1;
  std::uint64_t level_offset[40];
  SegmentEntry segments[kMaxSegments];
  std::uint8_t padding[488];
};
static_assert(sizeof(Superblock1) == kSuperblockBytes);

/// What both versions begin with.
Superblock BeginningOf(const Superblock1& old) {
  Superblock superblock{};
  std::memcpy(static_cast<void*>(&superblock), old.before, sizeof old.before);
  return superblock;
}

bool IsWhole(const Superblock1& old) {
  const Superblock beginning = BeginningOf(old);
  if (beginning.magic != kPoolMagic || beginning.version != 1) return false;
  Superblock1 bytes = old;
  std::memset(bytes.before + offsetof(Superblock, crc), 0, sizeof beginning.crc);
  return Crc32c(&bytes, sizeof bytes) == beginning.crc;
}

/// The same of version 2, but for its checksum. @throws Error
Superblock Converted(const Superblock1& old, const std::string& path) {
  Superblock superblock = BeginningOf(old);
  superblock.version = kPoolVersion;
  const std::uint32_t locations = superblock.geometry.locations;
  if (const std::string defect =
          ConfigDefect(superblock.key_size, superblock.value_size, superblock.geometry);
      !defect.empty()) {
    throw Error(ErrorCode::kDamaged, fmt::format("{}: damaged pool: {}", path, defect));
  }
  if (old.top >= std::size(old.level_offset) || old.bottom > old.top) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged pool: levels {} to {}", path, old.bottom, old.top));
  }
  for (std::uint32_t level = old.top + 1; level-- > old.bottom;) {
    const std::uint64_t buckets = std::uint64_t{1} << level;
    if (buckets < locations || buckets > kMaxLevelBuckets) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: its level {} has {} buckets, and format version {} has levels "
                              "of {} to {}; dump the pool with a build of version 1",
                              path, level, buckets, kPoolVersion, locations, kMaxLevelBuckets));
    }
    superblock.levels[superblock.level_count++] = {old.level_offset[level], buckets};
  }
  superblock.segment_count = old.segment_count;
  std::copy(std::begin(old.segments), std::end(old.segments), superblock.segments);
  return superblock;
}

}  // namespace

bool UpgradePool(const std::string& path) {
  const Mapping mapping(path, Mapping::Options{});
  const Persist& persist = mapping.persist();
  const auto write = [&](int copy, const Superblock& superblock) {
    std::byte* const target = mapping.base() + copy * kSuperblockBytes;
    persist.Write(target, &superblock, sizeof superblock);
    persist.Flush(Step::kCommitCopyFlush, target, sizeof superblock);
    persist.Fence(Step::kCommitDoneFence);
  };
  if (mapping.file_bytes() < 2 * kSuperblockBytes) {
    throw Error(ErrorCode::kDamaged, path + ": not a GPMStore pool: the file is too short");
  }
  // What a process wrote and did not live to flush is relied on from here on.
  persist.Flush(Step::kOpenFlush, mapping.base(), 2 * kSuperblockBytes);
  persist.Fence(Step::kCommitContentsFence);
  Superblock1 old[2];
  std::memcpy(static_cast<void*>(old), mapping.base(), sizeof old);
  std::optional<int> in_force;
  for (const int copy : {0, 1}) {
    if (!IsWhole(old[copy])) continue;
    const auto ahead = [&] {
      return static_cast<std::int64_t>(BeginningOf(old[copy]).sequence -
                                       BeginningOf(old[*in_force]).sequence) > 0;
    };
    if (!in_force || ahead()) in_force = copy;
  }
  // A crash may have left the copy that was not in force whole, and of this version, or torn.
  std::optional<Superblock> upgraded;
  if (!in_force || BeginningOf(old[1 - *in_force]).version == kPoolVersion) {
    try {
      const int copy = ChooseSuperblock(mapping.base(), mapping.file_bytes(), path);
      if (!in_force) return false;
      std::memcpy(&upgraded.emplace(), mapping.base() + copy * kSuperblockBytes,
                  sizeof(Superblock));
    } catch (const Error&) {
      if (!in_force) throw;  // else it was torn by a crash
    }
  }
  if (!upgraded) {
    upgraded = Converted(old[*in_force], path);
    ++upgraded->sequence;
    upgraded->crc = SuperblockCrc(*upgraded);
    if (const std::string defect = ContentsDefect(*upgraded, mapping.file_bytes());
        !defect.empty()) {
      throw Error(ErrorCode::kDamaged, fmt::format("{}: damaged pool: {}", path, defect));
    }
    write(1 - *in_force, *upgraded);
  }
  // Builds of version 1 would take the other copy for the one in force.
  ++upgraded->sequence;
  upgraded->crc = SuperblockCrc(*upgraded);
  write(*in_force, *upgraded);
  return true;
}

}  // namespace gpm
