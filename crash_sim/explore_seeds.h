#ifndef GPM_CRASH_SIM_EXPLORE_SEEDS_H_
#define GPM_CRASH_SIM_EXPLORE_SEEDS_H_

#include <cstdint>

#include "pm/steps.h"

namespace gpm::crash {

/// Which schedules are run of protocols without a store around them.
struct SeedOptions {
  std::uint64_t seed = 1;         ///< of the first schedule; the next ones follow
  std::uint64_t count = 1;        ///< schedules, unless one has a violation
  Step leave_out = Step::kOther;  ///< see Machine::LeaveOut
};

/// Runs them, one after another, on a Runner: Run(seed, leave_out, &report).
/// What a schedule does must depend on its seed alone, not on what the one before it left.
template <class Runner, class Report, class Options>
Report ExploreSeeds(const Options& options) {
  Report report;
  Runner runner;
  for (std::uint64_t i = 0; i < options.count && report.violation.empty(); ++i) {
    runner.Run(options.seed + i, options.leave_out, &report);
  }
  return report;
}

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_EXPLORE_SEEDS_H_
