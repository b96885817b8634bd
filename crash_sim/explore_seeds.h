#ifndef GPM_CRASH_SIM_EXPLORE_SEEDS_H_
#define GPM_CRASH_SIM_EXPLORE_SEEDS_H_

#include <cstdint>
#include <random>
#include <string>

#include "crash_sim/crash_states.h"
#include "pm/steps.h"

namespace gpm::crash {

/// Which schedules are run of protocols without a store around them.
struct SeedOptions {
  std::uint64_t seed = 1;         ///< of the first schedule; the next ones follow
  std::uint64_t count = 1;        ///< schedules, unless one has a violation
  bool grid = false;              ///< of a GPU's memory (GridMachine), where there is a choice
  Step leave_out = Step::kOther;  ///< see Machine::LeaveOut
};

struct SeedReport {
  std::uint64_t schedules = 0;
  std::string violation;  ///< seed, and what is wrong; empty: there is none
  std::uint64_t violation_seed = 0;
};

/// Calls check(image, event) for some of the states that a crash can leave before each event: with
/// nothing that is open, with all of it, and with some of it. @return how many
template <class Check>
std::uint64_t ForSomeStates(const Trace& trace, const Image& before, std::mt19937_64& random,
                            const Check& check) {
  std::uint64_t states = 0;
  CrashPoints points(trace, before);
  while (points.Next()) {
    for (int kind = 0; kind < 4; ++kind) {
      Image image = points.durable();
      for (const OpenWord& word : points.open_words()) {
        const bool persists = kind == 1 || (kind > 1 && random() % 2 == 0);
        if (persists) image[word.offset / 8] = word.choices[random() % word.choices.size()];
      }
      ++states;
      check(image, points.event());
    }
  }
  return states;
}

/// Runs them, one after another, on a Runner: Run(seed, leave_out, &report).
/// What a schedule does must depend on its seed alone, not on what the one before it left.
template <class Runner, class Report>
Report ExploreSeeds(const SeedOptions& options) {
  Report report;
  Runner runner;
  for (std::uint64_t i = 0; i < options.count && report.violation.empty(); ++i) {
    runner.Run(options.seed + i, options.leave_out, &report);
  }
  return report;
}

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_EXPLORE_SEEDS_H_
