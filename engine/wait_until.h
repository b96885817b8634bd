#ifndef GPM_ENGINE_WAIT_UNTIL_H_
#define GPM_ENGINE_WAIT_UNTIL_H_

#include <condition_variable>

#include "pm/mutex.h"
#include "pm/tracer.h"

namespace gpm {

/// Waits until `ready` holds; who changes that notifies `changed`. On a pool that is traced,
/// threads may be fibers of one thread, so that the tracer lets the others go on. REQUIRES: `lock`
/// is held; it is whenever `ready` is called.
template <class Ready>
void WaitUntil(MutexLock& lock, std::condition_variable& changed, PmTracer* tracer,
               const Ready& ready) GPM_NOT_CHECKED {
  if (tracer == nullptr) {
    changed.wait(lock.native(), ready);
    return;
  }
  while (!ready()) {
    lock.Unlock();
    tracer->Pause();
    lock.Lock();
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_WAIT_UNTIL_H_
