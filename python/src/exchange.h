#ifndef GPM_PYTHON_SRC_EXCHANGE_H_
#define GPM_PYTHON_SRC_EXCHANGE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "gpmstore/exchange.h"

namespace gpm::python {

namespace nb = nanobind;

/// An Exchange of which a Python object sends the bytes: gpmstore.distributed.Exchange says what it
/// has. Called without the GIL, which it takes while it calls the object.
///
/// Errors: what the object raises is Error(kIo), as is every later call, which does not reach the
/// object. What is no Exception (KeyboardInterrupt) is raised as it is, and ends its use, too.
///
/// The object is told to leave (`leave`) once: when a call failed, at Leave, or at destruction.
class PyExchange final : public Exchange {
 public:
  /// With the GIL. @throws Error(kInvalidArgument) where `rank` is not one of `ranks`
  explicit PyExchange(nb::object object);
  ~PyExchange() override;

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return ranks_; }
  void AllToAll(Send send, Receive receive) override;
  void Leave(const std::string& why) override;
  /// Whether this thread is in a call of such an object: a batch in flight may hang on it, so that
  /// it must wait for none.
  static bool InCall();

 private:
  /// @param failure of later calls. With the GIL; raises nothing
  void End(const std::string& failure, const std::string& why);

  nb::object object_;
  std::uint32_t rank_ = 0;
  std::uint32_t ranks_ = 0;
  std::string failure_;  ///< why it is of no use any more, or empty
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_EXCHANGE_H_
