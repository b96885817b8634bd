#ifndef GPM_CRASH_SIM_DRAIN_EXPLORER_H_
#define GPM_CRASH_SIM_DRAIN_EXPLORER_H_

#include <cstdint>
#include <string>

#include "pm/steps.h"

namespace gpm::crash {

struct DrainOptions {
  std::uint64_t seed = 1;         ///< of the first schedule; the next ones follow
  std::uint64_t count = 1;        ///< schedules, unless one has a violation
  bool grid = false;              ///< of a GPU's memory (GridMachine)
  Step leave_out = Step::kOther;  ///< see Machine::LeaveOut
};

struct DrainReport {
  std::uint64_t schedules = 0;
  std::uint64_t states = 0;  ///< that crashes could have left, looked at
  std::string violation;     ///< seed, and what is wrong; empty: there is none
  std::uint64_t violation_seed = 0;
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
DrainReport ExploreDraining(const DrainOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_DRAIN_EXPLORER_H_
