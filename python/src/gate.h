#ifndef GPM_PYTHON_SRC_GATE_H_
#define GPM_PYTHON_SRC_GATE_H_

#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>

namespace gpm::python {

/// Lets one Python thread close what others use: Store::Close is for a thread alone.
///
/// Thread safety: any thread, without the GIL.
///
/// Invariants:
/// 1. What closes runs when no use is counted, and none begins meanwhile: those wait, since the
///    closing may fail.
/// 2. A thread never waits here for itself: a call from within a call (a log may make one) neither
///    waits nor is counted, and what would wait for itself is refused. For that a thread has a list
///    of its uses.
/// 3. Nor does a log that the library's own thread tells wait here for who closes: it is refused.
/// 4. In a fork nothing is locked: a thread that is not there may hold the lock. The library then
///    refuses the call.
class Gate {
 public:
  enum class Kind {
    kCall,
    kVisit,   ///< excludes batches, so that the thread can't call again
    kWait,    ///< for a ticket, which may be done after the closing
    kLook,    ///< for a ticket as well, but never waits: see may_look
    kExport,  ///< of an export, which closing ends: neither waits nor is counted
    kClose,
  };

  /// A call on the thread's stack.
  class Use {
   public:
    /// @param what named in errors
    /// @throws Error(kInvalidArgument) when it is closed, kBusy from within a visit
    Use(Gate& gate, const char* what, Kind kind = Kind::kCall);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();
    /// Of a kLook: false while another thread closes what this would look at.
    bool may_look() const { return may_look_; }

   private:
    friend class Gate;
    explicit Use(Gate& gate);  ///< that closes it
    Gate& gate_;
    const char* const what_;
    const Kind kind_;
    const Use* const outer_;
    bool counted_ = false;
    bool may_look_ = true;
  };

  /// A log is told on this thread. Where that is no thread of Python's, but the library's own,
  /// which takes snapshots, closing waits for it: so nothing here may wait for who closes.
  class InLog {
   public:
    InLog() : outer_(in_log_) { in_log_ = true; }
    ~InLog() { in_log_ = outer_; }
    InLog(const InLog&) = delete;
    InLog& operator=(const InLog&) = delete;

   private:
    const bool outer_;
  };

  /// Whether a log is told on this thread, and it is in no call.
  static bool OnLogThread() { return in_log_ && innermost_ == nullptr; }

  /// Runs `action`, once. When it throws, this is closed too, but for Error(kBusy).
  /// @param ahead runs first, beside the uses that are counted: ends what those may wait for; it
  ///        throws nothing
  /// @throws Error(kBusy) from within a use, and what `action` throws
  void Close(
      const std::function<void()>& action, const std::function<void()>& ahead = [] {});

  bool closed() const;
  /// Whether Close has begun: its `ahead` sees what was there before this was false.
  bool closing() const;
  /// Whether this thread is in a visit, in which it can't wait.
  bool InVisit() const;
  /// Whether this is the process that made the gate, and not a fork of it.
  bool InHomeProcess() const { return getpid() == home_; }

 private:
  /// The innermost use of this thread, if any.
  const Use* UseOfThisThread() const;

  static thread_local const Use* innermost_;
  static thread_local bool in_log_;
  const pid_t home_ = getpid();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int uses_ = 0;
  bool closing_ = false;
  bool closed_ = false;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_GATE_H_
