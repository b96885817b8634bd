#ifndef GPM_PM_OLD_FORMAT_H_
#define GPM_PM_OLD_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "pm/format.h"

namespace gpm {

/// What format versions 1 and 2 had otherwise, made this version's (docs/FORMAT.md, "Versions").

/// The superblock in force of a pool of version 1 or 2, as one of this version, the next in
/// sequence; nothing where the pool is of this version.
/// @param copies the pool's first 2 * kSuperblockBytes
/// @param pool_bytes size of the file
/// @throws Error kDamaged, saying what is wrong with it; kUnsupported (levels that this version
///         can't have)
std::optional<Superblock> UpgradedSuperblock(const std::byte* copies, std::uint64_t pool_bytes,
                                             const std::string& path);

/// Writes what a bucket of version 1 or 2 holds to one of this version. What is no item becomes an
/// empty slot: such pools may hold slots in state INSERT, which recovery would clear.
/// @param bucket holds zeros
/// @return the first slot whose item names no value, which is damage; or nothing, when it is done
std::optional<std::uint32_t> UpgradeBucket(const Superblock& superblock, const std::byte* old,
                                           std::byte* bucket);

}  // namespace gpm

#endif  // GPM_PM_OLD_FORMAT_H_
