#ifndef GPM_PYTHON_SRC_LENT_TENSORS_H_
#define GPM_PYTHON_SRC_LENT_TENSORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <optional>

#include "python/src/batch_arrays.h"

namespace gpm::python {

/// The tensors of a call that waits, as their library lends them: by the table of C functions that
/// DLPack 1.3 has at their type (torch's, since 2.10). A tensor that is lent is described in place:
/// no object is made, as __dlpack__ does.
///
/// The memory of a lent tensor stays where it is while the tensor's object lives, which the
/// caller's arguments see to. That needs one thing of the caller: the call lets go of the GIL, and
/// no other thread may resize the tensor meanwhile (`resize_`) or give it other memory (`set_`), as
/// with torch's own calls, and with NumPy's `resize(refcheck=False)`. A call that returns before it
/// is done can't use this, as then nothing holds the object.
///
/// Thread safety: with the GIL.
class LentTensors {
 public:
  LentTensors() = default;
  LentTensors(const LentTensors&) = delete;
  LentTensors& operator=(const LentTensors&) = delete;

  /// Has the arrays of `call` lent to it, all or none; they refer to this.
  /// @param stream of the batch; none: the current one of the first tensor on a GPU
  /// @return false: one of them can't be lent, so that the package has to export them. It may be of
  ///         another library or a subclass, may have to wait for `stream`, or is one that the
  ///         package refuses and has the message for
  bool Lend(Call* call, std::optional<std::uintptr_t> stream);
  /// The stream of the batch, once they are lent; 0: the default stream.
  std::uintptr_t stream() const { return stream_; }

 private:
  std::array<nb::dlpack::dltensor, 5> lent_;
  std::uintptr_t stream_ = 0;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_LENT_TENSORS_H_
