#ifndef GPM_CRASH_SIM_DRAIN_EXPLORER_H_
#define GPM_CRASH_SIM_DRAIN_EXPLORER_H_

#include <cstdint>

#include "crash_sim/explore_seeds.h"

namespace gpm::crash {

struct DrainReport : SeedReport {
  std::uint64_t states = 0;  ///< that crashes could have left, looked at
};

/// Runs table/draining.h without a store around it: a level with a few items, a thread for each of
/// its buckets that drains it (of a GPU's memory also a block of one for each slot), and batches of
/// one operation on one key, which bring it up first. There is no directory, or one, or one that
/// has the level's fingerprints. Some items may be above, too, as where a composed level had no
/// slot for others.
///
/// Checked is, at the end and in the states that a crash can leave, that an item is there until its
/// erase began, is not there when that has ended, has the value that was written last, and is in
/// one place of the addressable level.
DrainReport ExploreDraining(const SeedOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_DRAIN_EXPLORER_H_
