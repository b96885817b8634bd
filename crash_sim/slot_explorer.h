#ifndef GPM_CRASH_SIM_SLOT_EXPLORER_H_
#define GPM_CRASH_SIM_SLOT_EXPLORER_H_

#include <cstdint>
#include <string>

#include "pm/steps.h"

namespace gpm::crash {

struct SlotOptions {
  std::uint64_t seed = 1;         ///< of the first schedule; the next ones follow
  std::uint64_t count = 1;        ///< schedules, unless one has a violation
  Step leave_out = Step::kOther;  ///< see Machine::LeaveOut
};

struct SlotReport {
  std::uint64_t schedules = 0;
  std::uint64_t inserted = 0;  ///< items in slots that were given back meanwhile
  std::string violation;       ///< seed, and what is wrong; empty: there is none
  std::uint64_t violation_seed = 0;
};

/// Runs the protocols of the table on a simulated GPU (GridMachine) without a store around them:
/// a full bucket with erased slots, threads that give them back, and others that insert and find.
///
/// Checked is that the pool and the directory have the items of which it was said so, and no more.
SlotReport ExploreSlots(const SlotOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SLOT_EXPLORER_H_
