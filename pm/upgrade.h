#ifndef GPM_PM_UPGRADE_H_
#define GPM_PM_UPGRADE_H_

#include <string>

namespace gpm {

/// Makes a pool of format version 1 one of this build's version, in whatever state it is: closed in
/// order, crashed, amid a resize. Levels, cells and free space stay where they are; superblocks
/// alone are written. A crash in the middle leaves a pool that this can be called for again.
/// @return false: it is of this version already, and unchanged
/// @throws Error kDamaged, as Pool::Open; kUnsupported (levels that this version can't have);
///         kNotFound, kBusy (a store has it open), kIo
bool UpgradePool(const std::string& path);

}  // namespace gpm

#endif  // GPM_PM_UPGRADE_H_
