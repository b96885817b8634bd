#ifndef GPM_ENGINE_HEALTH_H_
#define GPM_ENGINE_HEALTH_H_

#include <atomic>
#include <exception>

#include "pm/mutex.h"

namespace gpm {

/// Whether a store can be used. What may fail half-way, and would leave the table or the queues in
/// a state that batches do not know, is done by AllOrUnusable: no batch runs from then on, the pool
/// is not marked clean, and opening it again finds every item.
///
/// Thread safety: any thread.
class Health {
 public:
  bool usable() const { return unusable_.load() == nullptr; }
  /// @throws Error once something was left half done
  void Check() const;
  /// Keeps batches from running until the pool is opened again, for the exception at hand.
  /// @param what a literal that says what could not be done
  void SetUnusable(const char* what) noexcept;
  /// Does what must not be left half done: what it throws makes the store unusable.
  template <class Action>
  void AllOrUnusable(const char* what, const Action& action) GPM_NOT_CHECKED {
    try {
      action();
    } catch (...) {
      SetUnusable(what);
      throw;
    }
  }

 private:
  /// What could not be done; null when everything was.
  std::atomic<const char*> unusable_{nullptr};
  std::atomic<bool> is_set_{false};
  std::exception_ptr cause_;  ///< written by who set that, before `unusable_`
};

}  // namespace gpm

#endif  // GPM_ENGINE_HEALTH_H_
