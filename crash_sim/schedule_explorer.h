#ifndef GPM_CRASH_SIM_SCHEDULE_EXPLORER_H_
#define GPM_CRASH_SIM_SCHEDULE_EXPLORER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "pm/steps.h"

namespace gpm::crash {

/// What was explored so far.
struct ScheduleReport {
  std::uint64_t schedules = 0;
  std::uint64_t distinct = 0;  ///< by workload and sequence of choices
  std::uint64_t steps = 0;     ///< accesses to persistent memory, by clients
  std::uint64_t switches = 0;
  std::uint64_t resizes = 0;
  std::uint64_t displaced = 0;       ///< items that were moved so that an insert found a slot
  std::uint64_t index_updates = 0;   ///< searches that brought an index up to date
  std::uint64_t stuck = 0;           ///< schedules with a resize that there was no room to finish
  std::uint64_t no_space = 0;        ///< operations with this result
  std::uint64_t crash_states = 0;    ///< recovered
  std::uint64_t team_states = 0;     ///< of those, of crashes just before a fence of a team
  std::uint64_t times_left_out = 0;  ///< how often the step to leave out was met
  std::uint64_t violations = 0;      ///< schedules with one
  /// Of the lowest seed that has one: seed, workload, what is wrong, history. Empty: there is none.
  std::string violation;
  std::uint64_t violation_seed = 0;
};

struct ScheduleOptions {
  std::uint64_t seed = 1;   ///< of the first schedule; the next ones follow
  std::uint64_t count = 1;  ///< schedules
  unsigned threads = 1;     ///< that explore, each with a pool of its own
  double seconds = 0;       ///< ends after so long, when that is not 0
  bool stop_at_violation = true;
  /// Also crashes in each schedule, and recovers about so many of the states that this can leave.
  std::uint64_t crash_states = 0;
  std::uint64_t max_team_states = 0;  ///< ends at so many of these, if not 0
  bool grid = false;                  ///< batches run as on a GPU (GridMachine)
  /// Many calls are searches, by an index that follows the batches (KeptIndex). Not on a grid.
  bool indexed_searches = false;
  Step leave_out = Step::kOther;  ///< see Machine::LeaveOut
  bool print_trace = false;       ///< the violation's text has the trace of the schedule
  /// Told now and then how far it is.
  std::function<void(const ScheduleReport&)> progress = {};
  /// Told each violation's text.
  std::function<void(const std::string&)> violated = {};
};

/// Runs clients of a store as fibers, which switch at every access to persistent memory, and checks
/// after each schedule that
///
///  - the history is linearizable key by key, with what a find of every key says at the end;
///  - the store counts its items right, and each value cell is an item's or free: none leaked, none
///    is used twice;
///  - the pool closes clean, and the offline check finds no defect and no second copy of a key;
///
/// and after each crash that
///
///  - the pool opens, and what it then holds is what the history allows with the operations that
///    had not returned pending (durable linearizability: Izraelevitz, Mendes, Scott,
///    "Linearizability of persistent memory objects under a full-system-crash failure model", DISC
///    2016);
///  - the same sums are right, and the same check passes.
///
/// A schedule depends on its seed alone.
ScheduleReport ExploreSchedules(const ScheduleOptions& options);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SCHEDULE_EXPLORER_H_
