#include "pm/old_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "gpmstore/error.h"
#include "pm/superblock.h"

namespace gpm {
namespace {

/// A superblock of version 1: level i has 2^i buckets, and its offset at level_offset[i]. Version 2
/// has this version's.
struct Superblock1 {
  std::byte before[72];  ///< as in this version
  std::uint32_t bottom;
  std::uint32_t top;
  std::uint32_t segment_count;
  std::uint32_t reserved1;
  std::uint64_t level_offset[40];
  SegmentEntry segments[kMaxSegments];
  std::uint8_t padding[488];
};
static_assert(sizeof(Superblock1) == kSuperblockBytes);

/// Whether a copy says that it is of an old version.
bool IsOld(const Superblock& copy) {
  return copy.magic == kPoolMagic && copy.version >= 1 && copy.version < kPoolVersion;
}

/// The one in force of two copies, as it is; null when neither is old and was written whole. They
/// are of both old versions where an upgrade from 1 to 2 was interrupted: the newer one counts.
const Superblock* InForce(const Superblock (&copies)[2]) {
  const Superblock* in_force = nullptr;
  for (const Superblock& copy : copies) {
    // (All versions have the checksum of the same bytes at the same place.)
    if (!IsOld(copy) || copy.crc != SuperblockCrc(copy)) continue;
    if (in_force == nullptr || static_cast<std::int64_t>(copy.sequence - in_force->sequence) > 0) {
      in_force = &copy;
    }
  }
  return in_force;
}

/// @throws Error
Superblock WithLevelList(const Superblock& old_copy, const std::string& path) {
  Superblock1 old;
  std::memcpy(&old, &old_copy, sizeof old);
  Superblock superblock{};
  std::memcpy(static_cast<void*>(&superblock), old.before, sizeof old.before);
  if (old.top >= std::size(old.level_offset) || old.bottom > old.top) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged pool: levels {} to {}", path, old.bottom, old.top));
  }
  const std::uint32_t locations = superblock.geometry.locations;
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

std::optional<Superblock> UpgradedSuperblock(const std::byte* copies, std::uint64_t pool_bytes,
                                             const std::string& path) {
  const auto throw_damaged = [&](const std::string& why) {
    throw Error(ErrorCode::kDamaged, fmt::format("{}: damaged pool: {}", path, why));
  };
  Superblock copy[2];
  std::memcpy(copy, copies, sizeof copy);
  const Superblock* const in_force = InForce(copy);
  if (in_force == nullptr) {
    if (IsOld(copy[0]) && IsOld(copy[1])) {
      throw_damaged("both superblock copies: checksum mismatch");
    }
    ChooseSuperblock(copies, pool_bytes, path);
    return std::nullopt;
  }
  if (const std::string defect =
          ConfigDefect(in_force->key_size, in_force->value_size, in_force->geometry);
      !defect.empty()) {
    throw_damaged(defect);
  }
  if (in_force->key_size % 8 != 0) {  // which this version has, but no old one had
    throw_damaged(fmt::format("key size {}", in_force->key_size));
  }
  Superblock superblock = in_force->version == 1 ? WithLevelList(*in_force, path) : *in_force;
  superblock.version = kPoolVersion;
  std::fill(std::begin(superblock.attributes), std::end(superblock.attributes), AttributeEntry{});
  ++superblock.sequence;
  superblock.crc = SuperblockCrc(superblock);
  if (const std::string defect = ContentsDefect(superblock, pool_bytes); !defect.empty()) {
    throw_damaged(defect);
  }
  return superblock;
}

std::optional<std::uint32_t> UpgradeBucket(const Superblock& superblock, const std::byte* old,
                                           std::byte* bucket) {
  // S state words, S keys if they are longer than 8 bytes, S references: now the keys come last.
  const std::uint32_t slots = superblock.geometry.slots;
  const std::uint64_t key_bytes =
      superblock.key_size > 8 ? std::uint64_t{slots} * superblock.key_size : 0;
  const std::byte* const keys = old + sizeof(std::uint64_t) * slots;
  const auto* const states = reinterpret_cast<const std::uint64_t*>(old);
  const auto* const references = reinterpret_cast<const std::uint64_t*>(keys + key_bytes);
  auto* const pairs = reinterpret_cast<std::uint64_t*>(bucket);
  for (std::uint32_t s = 0; s < slots; ++s) {
    if (states[s] == kEmptyState || states[s] == kInsertState) continue;
    // This version would take it for half an item, and clear it.
    if (references[s] == 0 && !InlineValues(superblock.value_size)) return s;
    pairs[2 * s] = states[s];
    pairs[2 * s + 1] = references[s];
  }
  std::memcpy(pairs + 2 * slots, keys, key_bytes);
  return std::nullopt;
}

}  // namespace gpm
