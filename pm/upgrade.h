#ifndef GPM_PM_UPGRADE_H_
#define GPM_PM_UPGRADE_H_

#include <string>

namespace gpm {

/// Makes a pool of format version 1 or 2 one of this build's version, in whatever state it is:
/// closed in order, crashed, amid a resize. Writes the new pool to a file beside it,
/// `<pool>.gpmstore-upgrade`, and renames that when it is whole and durable: a crash in the middle
/// leaves the old pool or the new one, and at most that file, which the next call replaces.
/// Levels, cells and free space stay where they are. Permissions and owner are kept; other hard
/// links of the file still lead to the old pool. Of a symbolic link the file is replaced that it
/// leads to.
/// @return false: it is of this version already, and unchanged
/// @throws Error kDamaged, as Pool::Open; kUnsupported (levels that this version can't have);
///         kNoSpace (the new pool takes as much as the old one, up to its last level and segment);
///         kNotFound, kBusy (a store has it open), kExists (a file of that name that no upgrade
///         left), kIo. The pool is unchanged then, and nothing is left beside it;
///         but when making the directory durable fails, which comes last, it is upgraded.
bool UpgradePool(const std::string& path);

}  // namespace gpm

#endif  // GPM_PM_UPGRADE_H_
