#ifndef GPM_PYTHON_SRC_GIL_H_
#define GPM_PYTHON_SRC_GIL_H_

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace gpm::python {

/// Guards of the GIL, for threads that are still there when the interpreter ends: daemon threads,
/// and the library's own. Up to Python 3.13 who wants the GIL then is ended by pthread_exit, whose
/// unwinding no noexcept function lets through, such as nanobind's guards and its calls. Here such
/// a thread waits until the process has ended, as Python does itself from 3.14 on.

/// Runs `take`, which takes the GIL.
template <class Take>
auto TakeGilOrPark(const Take& take) noexcept {
  try {
    return take();
  } catch (...) {  // pthread_exit: it may stop here, but go on nowhere else
    for (;;) pause();
  }
}

/// Lets go of the GIL during its life.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    TakeGilOrPark([&] { PyEval_RestoreThread(state_); });
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* const state_;
};

/// Has the GIL during its life, on any thread.
class HeldGil {
 public:
  HeldGil() : state_(TakeGilOrPark([] { return PyGILState_Ensure(); })) {}
  ~HeldGil() { PyGILState_Release(state_); }
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_GIL_H_
