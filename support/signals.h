#ifndef GPM_SUPPORT_SIGNALS_H_
#define GPM_SUPPORT_SIGNALS_H_

#include <atomic>
#include <string>

namespace gpm {

/// What the programs do when a signal ends them: Ctrl-C, a terminal that goes away, `kill`, a pipe
/// that nobody reads. The library itself touches no signal.

/// A name that does not outlive the process: a signal that ends it (SIGHUP, SIGINT, SIGPIPE or
/// SIGTERM) removes the file, the empty directory, or behind MadeFolder the folder with its files,
/// first; then the process ends by that signal. The owner removes it in every other case. A name
/// that was there before is somebody else's and is left alone; so is the empty one, and another
/// file that took the name after Made.
///
/// Thread safety: any thread.
///
/// Invariants:
///  1. The handler only reads atomics and makes system calls, such as lstat and unlink: it
///     allocates nothing, and takes no lock.
///  2. A path that the handler may still read is never freed: they are kept until the process ends.
class RemovedOnSignal {
 public:
  /// @param made the owner has made it already; else it is about to
  explicit RemovedOnSignal(const std::string& path, bool made = false);
  ~RemovedOnSignal();  ///< from now on the name is left alone
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

  /// The owner has made the file: from now on only that file goes. Again for one made anew.
  void Made();
  /// The same of a folder, which goes with all files in it, if there is no folder in it.
  void MadeFolder();

  struct Name;  ///< what the handler knows

 private:
  std::atomic<Name*>* entry_ = nullptr;
};

/// During its life, the first SIGHUP, SIGINT or SIGTERM only sets `stop`, so that work ends in
/// order; the second ends the process, as one without this object does. Signals that the process
/// was started to ignore stay so. One at a time.
class StopOnSignal {
 public:
  explicit StopOnSignal(std::atomic<bool>& stop);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
};

/// The signal that a StopOnSignal took last, or 0.
int SignalTaken();

/// Ends the process by the signal that a StopOnSignal took, so that who waits for it sees what
/// ended it. REQUIRES: SignalTaken() != 0, and that object is gone.
[[noreturn]] void EndBySignalTaken();

}  // namespace gpm

#endif  // GPM_SUPPORT_SIGNALS_H_
