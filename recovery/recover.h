#ifndef GPM_RECOVERY_RECOVER_H_
#define GPM_RECOVERY_RECOVER_H_

#include <functional>

#include "gpmstore/stats.h"
#include "pm/pool.h"
#include "recovery/slot_scan.h"

namespace gpm {

/// What recovery has done by who runs batches on the pool.
struct RecoverySteps {
  std::function<ScanCounters(ScanMode)> scan;  ///< all levels and the reserved level
  /// Drains levels until none is left to be drained, or leaves that to batches. @return whether it
  /// drained
  std::function<bool()> finish_resize;
};

/// Repairs a pool that was not closed in order: clears half slots, removes second copies,
/// goes on with an interrupted resize. From then on it is marked as not closed. The last scan has
/// looked at what is left.
/// @return what that found, copies in a level that is still to be drained left out
/// @param stats set but for the time that it took
/// @throws Error kDamaged (nothing was changed), and what the steps throw
ScanCounters RecoverPool(Pool& pool, const RecoverySteps& steps, RecoveryStats* stats);

}  // namespace gpm

#endif  // GPM_RECOVERY_RECOVER_H_
