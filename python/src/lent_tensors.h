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
/// What holds: a lent tensor's memory stays where it is while its object lives, which the caller's
/// arguments see to, and has the memory that it was lent with. What is not promised: that another
/// thread does not resize it (`resize_`) or give it other memory (`set_`) during the call, which
/// has let go of the GIL. That is the caller's to avoid, as for torch's own calls and for NumPy's
/// `resize(refcheck=False)`. So a call that returns before it is done can't use this.
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
