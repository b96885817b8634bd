#ifndef GPM_PYTHON_SRC_HOME_PROCESS_H_
#define GPM_PYTHON_SRC_HOME_PROCESS_H_

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace gpm::python {

/// The process that made this. Thread safety: any thread, without the GIL.
class HomeProcess {
 public:
  HomeProcess() : forks_(Forks()) {}
  /// Whether it is this one, and not a child that it forked.
  bool IsThis() const { return Forks() == forks_; }

 private:
  /// Forks that made this process out of the one that first asked. (Every call asks twice, for
  /// which getpid would take 0.2 us.)
  static std::uint32_t Forks() {
    static std::atomic<std::uint32_t> forks{0};
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    if (registered != 0) return static_cast<std::uint32_t>(getpid());  // no memory for it
    return forks.load(std::memory_order_relaxed);
  }

  const std::uint32_t forks_;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_HOME_PROCESS_H_
