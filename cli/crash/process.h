#ifndef GPM_CLI_CRASH_PROCESS_H_
#define GPM_CLI_CRASH_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "cli/crash/answers.h"
#include "cli/crash/child.h"

namespace gpm::cli {

/// Thrown where a person, or another job's failure, ends the test early.
struct CrashStopped {};

/// The parent's handle of the child: destroying it kills the child, and so does the end of the
/// thread that made it. Thread safety: none.
class CrashProcess {
 public:
  using Clock = std::chrono::steady_clock;

  /// Starts this program once more, with these arguments, in a process group of its own: what a
  /// terminal sends goes to the parent alone.
  /// @param answers that it inherits, or null
  /// @param stop outlives this
  /// @throws Error(kIo)
  CrashProcess(const std::vector<std::string>& arguments, const CrashAnswers* answers,
               const std::atomic<bool>& stop);
  ~CrashProcess();
  CrashProcess(const CrashProcess&) = delete;
  CrashProcess& operator=(const CrashProcess&) = delete;

  /// Takes records until there is one that makes `done` true, the time has come, or the child has
  /// ended. @return whether `done`. @throws CrashStopped
  template <class Done>
  bool WatchUntil(Clock::time_point deadline, const Done& done) {
    while (Read(deadline, &stop_)) {
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
  /// @throws CrashStopped when `stop`, if not null, is set
  bool Read(Clock::time_point deadline, const std::atomic<bool>* stop);

  const std::atomic<bool>& stop_;
  int pipe_ = -1;
  pid_t process_ = -1;
  int status_ = 0;
  std::vector<CrashRecord> records_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_PROCESS_H_
