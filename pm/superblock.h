#ifndef GPM_PM_SUPERBLOCK_H_
#define GPM_PM_SUPERBLOCK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "pm/format.h"

namespace gpm {

/// What makes a superblock one that can be relied on.

/// Of a copy's bytes, with the field `crc` 0.
std::uint32_t SuperblockCrc(Superblock superblock);

/// Why a geometry is not legal and what would be right, or empty.
std::string GeometryDefect(Geometry geometry);

/// Why key size, value size or geometry are not legal, or empty.
std::string ConfigDefect(std::uint32_t key_size, std::uint32_t value_size, Geometry geometry);

/// Why a copy that was written whole can't be right, or empty.
std::string ContentsDefect(const Superblock& copy, std::uint64_t pool_bytes);

/// Chooses the copy in force, that with the higher sequence number of those that
/// were written whole (magic, version, CRC), and validates it. A copy in force whose contents can't
/// be right, such as one that names more space than the file has, is an error: the older copy may
/// name space that was since used for something else.
/// @param copies the pool's first 2 * kSuperblockBytes; zeros where the file is shorter
/// @param pool_bytes size of the file
/// @throws Error(kDamaged) saying what is wrong with each copy
/// @return index of the copy in force, 0 or 1
int ChooseSuperblock(const std::byte* copies, std::uint64_t pool_bytes, const std::string& path);

}  // namespace gpm

#endif  // GPM_PM_SUPERBLOCK_H_
