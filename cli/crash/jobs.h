#ifndef GPM_CLI_CRASH_JOBS_H_
#define GPM_CLI_CRASH_JOBS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/crash/rounds.h"

namespace gpm::cli {

/// A promise that was broken, and what replays the rounds up to there.
struct CrashFailure {
  std::uint64_t seed = 0;
  std::uint64_t rounds = 0;  ///< of the job
  std::uint64_t round = 0;   ///< in which it was broken, from 0
  std::string pool;          ///< kept
  std::vector<std::string> defects;
};

struct CrashOutcome {
  CrashTotals totals;
  std::vector<CrashFailure> failures;  ///< the first one ends the other jobs
};

/// Runs the rounds of crash-test as several jobs at once, each on a thread and a pool of its own:
/// the processes of one start while those of others work.
///
/// @param options of all; one of several jobs, number j, has seed + j and the pool's name with ".j"
/// @param stop ends the rounds when set; a failure sets it
/// @param progress is called now and then with the number of rounds begun, on the calling thread
/// @throws CrashStopped when `stop` was set from elsewhere; Error as CrashRounds. The pools are
///         removed then.
CrashOutcome RunCrashJobs(const CrashOptions& options, unsigned jobs, std::atomic<bool>& stop,
                          const std::function<void(std::uint64_t begun)>& progress);

/// The options of one of several jobs.
CrashOptions CrashJobOptions(const CrashOptions& options, unsigned jobs, unsigned job);

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_JOBS_H_
