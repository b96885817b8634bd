#include "pm/superblock.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "gpmstore/error.h"
#include "pm/attributes.h"
#include "pm/crc32c.h"
#include "pm/space.h"

namespace gpm {
namespace {

constexpr const char* kEmptyCopy = "empty";

/// Why a copy is not one that was written whole by this version, or empty.
std::string CopyDefect(const Superblock& copy) {
  if (copy.magic != kPoolMagic) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&copy);
    const bool empty =
        std::all_of(bytes, bytes + sizeof copy, [](unsigned char b) { return b == 0; });
    return empty ? kEmptyCopy : "not a GPMStore superblock";
  }
  if (copy.version != kPoolVersion) {
    return fmt::format(
        "format version {}, this build reads version {}{}", copy.version, kPoolVersion,
        copy.version < kPoolVersion ? ": `gpmstore upgrade` makes it one of that version" : "");
  }
  return copy.crc == SuperblockCrc(copy) ? "" : "checksum mismatch";
}

}  // namespace

std::uint32_t SuperblockCrc(Superblock superblock) {
  superblock.crc = 0;
  return Crc32c(&superblock, sizeof superblock);
}

std::string GeometryDefect(Geometry geometry) {
  const std::uint32_t levels = geometry.levels;
  const std::uint32_t locations = geometry.locations;
  const std::uint32_t slots = geometry.slots;
  if (std::has_single_bit(levels) && std::has_single_bit(locations) && std::has_single_bit(slots) &&
      levels * locations * slots <= 32) {
    return "";
  }
  return fmt::format(
      "geometry {}L-{}H-{}S: levels, locations and slots must be powers of two with a product of "
      "at "
      "most 32, such as 2L-2H-8S",
      levels, locations, slots);
}

std::string ConfigDefect(std::uint32_t key_size, std::uint32_t value_size, Geometry geometry) {
  if (key_size < 1 || key_size > kMaxKeyBytes) {
    return fmt::format("key size {} is not between 1 and {} bytes", key_size, kMaxKeyBytes);
  }
  if (value_size < 1 || value_size > kMaxValueBytes) {
    return fmt::format("value size {} is not between 1 and {} bytes", value_size, kMaxValueBytes);
  }
  return GeometryDefect(geometry);
}

std::string ContentsDefect(const Superblock& copy, std::uint64_t pool_bytes) {
  std::string defect = ConfigDefect(copy.key_size, copy.value_size, copy.geometry);
  if (defect.empty() && copy.clean > 1) defect = "the mark of an orderly close is neither 0 nor 1";
  if (defect.empty()) defect = LayoutDefect(copy, pool_bytes);
  return defect.empty() ? AttributesDefect(copy.attributes, copy.value_size) : defect;
}

int ChooseSuperblock(const std::byte* copies, std::uint64_t pool_bytes, const std::string& path) {
  if (pool_bytes == 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: not a GPMStore pool: the file is empty", path));
  }
  Superblock copy[2];
  std::memcpy(copy, copies, sizeof copy);
  std::string defect[2] = {CopyDefect(copy[0]), CopyDefect(copy[1])};
  if (!defect[0].empty() && !defect[1].empty()) {
    // Copy A alone is written when a pool is created.
    const bool is_foreign = copy[0].magic != 0 && copy[0].magic != kPoolMagic;
    if (defect[1] == kEmptyCopy && !is_foreign) {
      defect[1] += "; perhaps the pool's creation was interrupted";
    }
    if (copy[0].magic != kPoolMagic && copy[1].magic != kPoolMagic) {
      throw Error(ErrorCode::kDamaged,
                  fmt::format("{}: not a GPMStore pool: superblock copy A: {}; "
                              "copy B: {}",
                              path, defect[0], defect[1]));
    }
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged pool: superblock copy A: {}; copy B: {}", path, defect[0],
                            defect[1]));
  }
  int in_force = defect[0].empty() ? 0 : 1;
  // Numbers may wrap, as those of a damaged copy soon do: the change behind another is one ahead.
  const auto ahead = static_cast<std::int64_t>(copy[1].sequence - copy[0].sequence);
  if (defect[0].empty() && defect[1].empty() && ahead > 0) in_force = 1;
  const std::string contents = ContentsDefect(copy[in_force], pool_bytes);
  if (!contents.empty()) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged pool: superblock copy {}, the one in force: {}", path,
                            in_force == 0 ? 'A' : 'B', contents));
  }
  return in_force;
}

}  // namespace gpm
