#ifndef GPM_CRASH_SIM_SLOT_EXPLORER_H_
#define GPM_CRASH_SIM_SLOT_EXPLORER_H_

#include <cstdint>

#include "crash_sim/explore_seeds.h"

namespace gpm::crash {

struct SlotReport : SeedReport {
  std::uint64_t inserted = 0;  ///< items in slots that were freed meanwhile
  std::uint64_t states = 0;    ///< that crashes may have left, and were looked at
};

/// Runs the protocols of the table on a simulated GPU (GridMachine) without a store around them:
/// a full bucket with erased slots, threads that free them, and others that insert and find. Values
/// are in slots or in cells, and there is a directory or none.
///
/// Checked is that the pool and the directory have the items of which it was said so, and no more.
/// Of each crash point, what a few states have: items that were acknowledged, each with its own
/// value, and none that nobody inserts.
SlotReport ExploreSlots(const SeedOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SLOT_EXPLORER_H_
