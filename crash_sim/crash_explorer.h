#ifndef GPM_CRASH_SIM_CRASH_EXPLORER_H_
#define GPM_CRASH_SIM_CRASH_EXPLORER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "pm/steps.h"

namespace gpm::crash {

/// What to explore.
struct CrashOptions {
  std::uint64_t seed = 1;              ///< of the first workload; the next has seed + 1, and so on
  std::uint64_t max_states = 100'000;  ///< ends when so many different states were tried
  double seconds = 0;                  ///< ends after this time; 0: no limit
  unsigned processes = 1;              ///< that explore, at most kMaxProcesses
  std::uint64_t states_per_workload = 400;  ///< about; shared out among its crash points
  std::uint64_t nested_states = 60;         ///< the same, for crashes in one recovery
  std::uint64_t one_in_nested = 64;  ///< of recoveries with work to do, how many are crashed again
  int max_depth = 1;                 ///< of crashes in recoveries
  Step left_out = Step::kOther;  ///< a step that the traced store leaves out (Machine::LeaveOut)
  /// Told now and then how many different states were tried. @return whether to go on
  std::function<bool(std::uint64_t images)> progress;

  static constexpr unsigned kMaxProcesses = 64;
};

/// Sums over workloads.
struct CrashCounts {
  std::uint64_t workloads = 0;
  std::uint64_t points = 0;            ///< crash points, those in recoveries included
  std::uint64_t exhausted_points = 0;  ///< of which all states were visited
  double states_possible = 0;          ///< at those points
  std::uint64_t states = 0;            ///< tried: opened, recovered, checked, used
  /// Different contents of a workload's pool file, of those tried; the same contents are tried once
  /// for each set of items that is allowed there.
  std::uint64_t images = 0;
  std::uint64_t repaired = 0;       ///< states where recovery had slots to clear, or a resize
  std::uint64_t refused = 0;        ///< states in which the pool's creation was not complete
  std::uint64_t recoveries = 0;     ///< that were traced, and crashed in turn
  std::uint64_t nested_states = 0;  ///< of `states`, those after a crash in or after a recovery
  std::array<std::uint64_t, static_cast<std::size_t>(Step::kCount)> steps{};  ///< met, traced

  void Add(const CrashCounts& other);
};

/// What was explored.
struct CrashReport : CrashCounts {
  double seconds = 0;
  std::uint64_t violation_seed = 0;  ///< of the workload; explores it first when given as the seed
  std::string violation;             ///< with how it came about; empty: none
};

/// Runs workloads, and from each tries the states that a crash at any instant may leave. Ends at
/// the first violation. With one thread and no limit of time, the same options give the same report
/// (but for its seconds).
/// @throws Error(kIo) when there is no place for pools
CrashReport ExploreCrashes(const CrashOptions& options);

/// Whether a step is one that the cpu executor does not take, or where its processor orders without
/// a fence: those are for the explorer of the GPU's executor.
bool IsOfGpu(Step step);

/// Whether its workloads can't meet a step: what takes two batches at once, or a cache, is for the
/// schedules.
bool IsNeverMet(Step step);

/// The counts, a line each.
std::string Describe(const CrashReport& report);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_CRASH_EXPLORER_H_
