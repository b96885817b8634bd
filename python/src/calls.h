#ifndef GPM_PYTHON_SRC_CALLS_H_
#define GPM_PYTHON_SRC_CALLS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/error.h"
#include "python/src/arrays.h"
#include "python/src/gil.h"

namespace gpm::python {

/// Runs `call` without the GIL.
template <class Call>
auto WithoutGil(const Call& call) {
  const ReleasedGil released;
  return call();
}

inline void CheckBytes(const char* name, std::size_t bytes, std::uint32_t expected) {
  if (bytes == expected) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": it has " + std::to_string(bytes) +
                                               " bytes; the store's have " +
                                               std::to_string(expected));
}

using VisitItem = std::function<bool(std::span<const std::byte>, std::span<const std::byte>)>;

/// Collects items into pages of at most `rows` and hands those to `visit`, with the GIL, which the
/// caller does not have. @return whether all items were seen
class Pages {
 public:
  Pages(const nb::callable& visit, std::size_t rows, std::uint32_t key_size)
      : visit_(visit), rows_(rows), key_size_(key_size) {
    if (rows == 0) throw Error(ErrorCode::kInvalidArgument, "rows: it must be at least 1");
  }

  bool operator()(const std::function<bool(const VisitItem&)>& for_each) {
    const bool all = for_each([&](auto key, auto value) {
      keys_.insert(keys_.end(), key.begin(), key.end());
      values_.insert(values_.end(), value.begin(), value.end());
      return ++filled_ < rows_ || Show();
    });
    return all && (filled_ == 0 || Show());
  }

 private:
  bool Show() {
    const HeldGil gil;
    const nb::object answer = visit_(NewNumPyArray(keys_, filled_, key_size_ == 8),
                                     NewNumPyArray(values_, filled_, false));
    keys_.clear();
    values_.clear();
    filled_ = 0;
    return !answer.is(nb::handle(Py_False));
  }

  const nb::callable& visit_;
  const std::size_t rows_;
  const std::uint32_t key_size_;
  std::size_t filled_ = 0;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_CALLS_H_
