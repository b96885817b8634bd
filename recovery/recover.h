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
  std::function<void()> finish_resize;         ///< until no level is to be drained
};

/// Repairs a pool that was not closed in order: clears half-inserted slots, removes second copies,
/// goes on with an interrupted resize. From then on it is marked as not closed. The last scan has
/// looked at what is left.
/// @return what that found
/// @param stats set but for the time that it took
/// @throws Error kDamaged (nothing was changed), and what the steps throw
ScanCounters RecoverPool(Pool& pool, const RecoverySteps& steps, RecoveryStats* stats);

}  // namespace gpm

#endif  // GPM_RECOVERY_RECOVER_H_
