#ifndef GPM_CLI_CRASH_CHILD_H_
#define GPM_CLI_CRASH_CHILD_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/crash_workload.h"
#include "engine/options.h"

namespace gpm::cli {

/// The process of `gpmstore crash-test` that is killed, seen from both sides.

/// What it reports over its standard output, one record a write(): as records are shorter than
/// PIPE_BUF, those of several threads do not mix, and a kill leaves none half-written.
struct CrashRecord {
  enum class Kind : std::uint32_t {
    kCreating,      ///< about to create the pool
    kOpening,       ///< about to open it
    kOpened,        ///< created or opened; has what recovery did
    kStarting,      ///< a batch is about to start
    kAcknowledged,  ///< a batch is complete; has the digest of its answers
    kClosing,       ///< about to close the pool; kOpening follows
  };
  Kind kind = Kind::kCreating;
  std::uint32_t thread = 0;
  std::uint64_t batch = 0;
  std::uint64_t digest[2] = {0, 0};
  std::uint64_t slots_cleared = 0;
  std::uint64_t resizes_continued = 0;
};

/// What the child does.
struct CrashChildPlan {
  std::string pool;
  CrashRound round;
  /// Batches of each thread between opening the pool and closing it, after which it is opened
  /// again; 0: it is opened and closed only.
  std::uint64_t session_batches = 0;
  CreateOptions create;
  ExecutorKind executor = ExecutorKind::kCpu;
};

/// Runs the plan until the process is killed, which it is at the latest when its parent ends.
/// @throws Error as the store
[[noreturn]] void RunCrashChild(const CrashChildPlan& plan);

/// The parent's handle of the child: destroying it kills the child. Thread safety: none.
class CrashChild {
 public:
  using Clock = std::chrono::steady_clock;

  /// Starts this program once more, with these arguments. @throws Error(kIo)
  explicit CrashChild(const std::vector<std::string>& arguments);
  ~CrashChild();
  CrashChild(const CrashChild&) = delete;
  CrashChild& operator=(const CrashChild&) = delete;

  /// Takes records until there is one that makes `done` true, the time has come, or the child has
  /// ended. @return whether `done`
  template <class Done>
  bool WatchUntil(Clock::time_point deadline, const Done& done) {
    while (Read(deadline)) {
      if (done(records_.back())) return true;
    }
    return false;
  }
  /// Kills the child, takes the records that are left and waits for its end. Idempotent.
  /// @return how it ended, as from waitpid
  int Kill();

  const std::vector<CrashRecord>& records() const { return records_; }

 private:
  /// Takes one record. @return false when the time has come or the child has ended
  bool Read(Clock::time_point deadline);

  int pipe_ = -1;
  pid_t process_ = -1;
  int status_ = 0;
  std::vector<CrashRecord> records_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_CHILD_H_
