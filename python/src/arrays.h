#ifndef GPM_PYTHON_SRC_ARRAYS_H_
#define GPM_PYTHON_SRC_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpm::python {

namespace nb = nanobind;

/// What the elements of an array may be.
enum class Elements {
  kAny,       ///< the bytes of a row are what counts
  kIntegers,  ///< keys: of any width, as long as a row has the bytes of a key
  kCodes,     ///< 8-bit integers
};

/// What an array must be.
struct Expected {
  const char* name;
  Elements elements = Elements::kAny;
  bool written = false;
};

/// An array that Python gave: an object with a buffer (NumPy), __dlpack__ or a capsule of it
/// (torch, CuPy, JAX), or __cuda_array_interface__; or what is lent of one (LentTensors).
struct Source {
  Source(nb::handle given = {}) : object(given) {}
  nb::handle object;
  const nb::dlpack::dltensor* lent = nullptr;
};

/// The memory of an array that Python gave, which is kept alive, unless it is lent. Made, copied
/// and destroyed with the GIL.
class Array {
 public:
  Array() = default;

  /// @throws nb::type_error when it is none, or has other elements;
  ///         Error(kInvalidArgument) when it is not C-contiguous, or read-only and to be written
  Array(const Source& source, const Expected& expected);

  const char* name() const { return name_; }
  std::size_t rows() const { return rows_; }
  bool on_device() const { return on_device_; }
  /// @throws Error(kInvalidArgument) when it has other rows
  void CheckRows(std::size_t rows, std::size_t row_bytes, const char* one_row) const;
  template <class T>
  std::span<T> As() const {
    return {static_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  /// @throws Error(kInvalidArgument) when the two share memory
  void CheckApart(const Array& other) const;

 private:
  nb::ndarray<nb::ro> kept_;
  nb::dlpack::dltensor view_;
  const char* name_ = "";
  void* data_ = nullptr;
  std::size_t rows_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t bytes_ = 0;
  bool on_device_ = false;
};

/// A new NumPy array that owns a copy of `bytes`: `rows` unsigned 64-bit integers for rows of 8
/// bytes if `integers`, else `rows` rows of bytes.
nb::object NewNumPyArray(std::span<const std::byte> bytes, std::size_t rows, bool integers);

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_ARRAYS_H_
