#ifndef GPM_CRASH_SIM_DRAIN_EXPLORER_H_
#define GPM_CRASH_SIM_DRAIN_EXPLORER_H_

#include <cstdint>
#include <string>

#include "crash_sim/explore_seeds.h"

namespace gpm::crash {

struct DrainReport {
  std::uint64_t schedules = 0;
  std::uint64_t states = 0;  ///< that crashes could have left, looked at
  std::string violation;     ///< seed, and what is wrong; empty: there is none
};

/// Runs table/draining.h without a store around it: a level with a few items, a thread that drains
/// it, and batches of one operation on one key, which bring it up first.
///
/// Checked is, at the end and in the states that a crash can leave, that an item is there until its
/// erase began, is not there when that has ended, has the value that was written last, and is in
/// one place of the addressable level.
DrainReport ExploreDraining(const SeedOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_DRAIN_EXPLORER_H_
