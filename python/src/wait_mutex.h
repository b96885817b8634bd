#ifndef GPM_PYTHON_SRC_WAIT_MUTEX_H_
#define GPM_PYTHON_SRC_WAIT_MUTEX_H_

#include <atomic>
#include <mutex>
#include <thread>

#include "gpmstore/error.h"

namespace gpm::python {

/// The mutex of a ticket, which a thread has while it waits for the batch. That may tell a log, on
/// the same thread, which can't wait for the ticket again.
class WaitMutex {
 public:
  /// @throws Error(kBusy) when this thread has it
  void lock() {
    if (IsMine()) {
      throw Error(ErrorCode::kBusy,
                  "a ticket: this thread waits for it; its log can't, as it would wait for itself");
    }
    mutex_.lock();
    owner_ = std::this_thread::get_id();
  }
  bool try_lock() {
    if (IsMine() || !mutex_.try_lock()) return false;
    owner_ = std::this_thread::get_id();
    return true;
  }
  void unlock() {
    owner_ = std::thread::id();
    mutex_.unlock();
  }

 private:
  bool IsMine() const { return owner_ == std::this_thread::get_id(); }
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_WAIT_MUTEX_H_
