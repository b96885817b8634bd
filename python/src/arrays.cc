#include "python/src/arrays.h"

#include <nanobind/stl/string.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpmstore/error.h"

namespace gpm::python {
namespace {

using nb::dlpack::dltensor;
using nb::dlpack::dtype_code;
using AnyArray = nb::ndarray<nb::ro>;

std::string DtypeName(const nb::dlpack::dtype& dtype) {
  if (static_cast<dtype_code>(dtype.code) == dtype_code::Bool) return "bool";
  const auto name = [&] {
    switch (static_cast<dtype_code>(dtype.code)) {
      case dtype_code::Int:
        return "int";
      case dtype_code::UInt:
        return "uint";
      case dtype_code::Float:
        return "float";
      case dtype_code::Bfloat:
        return "bfloat";
      case dtype_code::Complex:
        return "complex";
      default:
        return "elements of bits ";
    }
  }();
  return name + std::to_string(dtype.bits);
}

std::string ShapeName(const dltensor& view) {
  std::string text = "(";
  for (int i = 0; i < view.ndim; ++i) {
    text += std::to_string(view.shape[i]) + (i + 1 < view.ndim ? ", " : "");
  }
  return text + (view.ndim == 1 ? ",)" : ")");
}

[[noreturn]] void Refuse(const char* name, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": " + why);
}

[[noreturn]] void RefuseStrides(const char* name, const std::string& shape) {
  Refuse(name, "the array of shape " + shape +
                   " is not C-contiguous; numpy.ascontiguousarray, or .contiguous() of torch, "
                   "makes a copy that is");
}

bool IsContiguous(const dltensor& view) {
  std::int64_t expected = 1;
  bool in_order = true;
  for (int i = view.ndim; i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != expected) in_order = false;
    expected *= view.shape[i];
  }
  return in_order || expected == 0;
}

/// An array of a library that has no DLPack, such as Numba.
std::optional<AnyArray> FromCudaArrayInterface(nb::handle source, const Expected& expected) {
  const nb::object attribute = nb::getattr(source, "__cuda_array_interface__", nb::none());
  if (attribute.is_none()) return {};
  const auto interface = nb::cast<nb::dict>(attribute);
  const auto data = nb::cast<nb::tuple>(interface["data"]);
  if (expected.written && nb::cast<bool>(data[1])) Refuse(expected.name, "the array is read-only");
  // Such as "<f4": byte order, kind, bytes.
  const auto type = nb::cast<std::string>(nb::str(interface["typestr"]));
  const char kind = type.size() < 3 ? '?' : type[1];
  std::size_t element = type.size() < 3 ? 0 : std::strtoul(type.c_str() + 2, nullptr, 10);
  static_assert(std::endian::native == std::endian::little);
  if (type[0] == '>' && element > 1) Refuse(expected.name, "the array's byte order is foreign");
  const bool bytes = kind == 'V' || kind == 'S';  // then an element is a row of them
  dtype_code code = dtype_code::UInt;
  if (kind == 'i') code = dtype_code::Int;
  if (kind == 'f') code = dtype_code::Float;
  if (kind == 'c') code = dtype_code::Complex;
  if (kind == 'b') code = dtype_code::Bool;
  if (std::string_view("iufcbVS").find(kind) == std::string_view::npos ||
      (element == 0 && !bytes)) {
    Refuse(expected.name, "an array of '" + type + "'");
  }
  std::vector<std::size_t> shape;
  for (const nb::handle extent : nb::cast<nb::tuple>(interface["shape"])) {
    shape.push_back(nb::cast<std::size_t>(extent));
  }
  if (bytes) shape.push_back(std::exchange(element, 1));
  std::vector<std::int64_t> strides;
  const nb::object given = interface.attr("get")("strides");
  if (!given.is_none()) {
    for (const nb::handle stride : nb::cast<nb::tuple>(given)) {
      const auto in_bytes = nb::cast<std::int64_t>(stride);
      if (in_bytes % static_cast<std::int64_t>(element) != 0) {
        Refuse(expected.name, "the array is not C-contiguous: its strides are no whole elements");
      }
      strides.push_back(in_bytes / static_cast<std::int64_t>(element));
    }
    if (bytes) strides.push_back(1);
  }
  return AnyArray(reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(data[0])), shape.size(),
                  shape.data(), source, strides.empty() ? nullptr : strides.data(),
                  {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * element), 1},
                  nb::device::cuda::value);
}

AnyArray Import(nb::handle source, const Expected& expected) {
  if (expected.written) {
    if (nb::ndarray<> array; nb::try_cast(source, array)) return AnyArray(array);
  }
  if (AnyArray array; nb::try_cast(source, array)) {
    if (expected.written) Refuse(expected.name, "the array is read-only");
    return array;
  }
  if (auto array = FromCudaArrayInterface(source, expected)) return *array;
  // NumPy's whose strides are no whole elements, which it does not hand over.
  const nb::object flags = nb::getattr(source, "flags", nb::none());
  if (nb::hasattr(flags, "c_contiguous") && !nb::cast<bool>(flags.attr("c_contiguous"))) {
    RefuseStrides(expected.name, nb::repr(source.attr("shape")).c_str());
  }
  const std::string text = std::string(expected.name) + ": not an array: '" +
                           nb::type_name(source.type()).c_str() +
                           "'; give a NumPy array, or one with __dlpack__ or "
                           "__cuda_array_interface__";
  throw nb::type_error(text.c_str());
}

dltensor ViewOf(const AnyArray& array) {
  dltensor view;
  // (The array reads, and Import has found it writable where it must be.)
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  view.device = {array.device_type(), array.device_id()};
  view.ndim = static_cast<std::int32_t>(array.ndim());
  view.dtype = array.dtype();
  view.shape = const_cast<std::int64_t*>(array.shape_ptr());
  view.strides = const_cast<std::int64_t*>(array.stride_ptr());
  return view;
}

void CheckElements(const nb::dlpack::dtype& dtype, const Expected& expected) {
  const auto code = static_cast<dtype_code>(dtype.code);
  const bool integers = code == dtype_code::Int || code == dtype_code::UInt;
  const char* wanted = nullptr;
  if (expected.elements == Elements::kIntegers && !integers) {
    wanted = "keys are integers or rows of bytes (uint8)";
  }
  if (expected.elements == Elements::kCodes && !(integers && dtype.bits == 8)) {
    wanted = "it must be uint8";
  }
  if (wanted == nullptr) return;
  const std::string text =
      std::string(expected.name) + ": an array of " + DtypeName(dtype) + "; " + wanted;
  throw nb::type_error(text.c_str());
}

}  // namespace

Array::Array(const Source& source, const Expected& expected) : name_(expected.name) {
  if (source.lent == nullptr) kept_ = Import(source.object, expected);
  view_ = source.lent == nullptr ? ViewOf(kept_) : *source.lent;
  CheckElements(view_.dtype, expected);
  const int device = view_.device.device_type;
  on_device_ = device == nb::device::cuda::value;
  if (!on_device_ && device != nb::device::cpu::value && device != nb::device::cuda_host::value &&
      device != nb::device::cuda_managed::value) {
    Refuse(name_, "the array is neither in host memory nor in that of a CUDA device");
  }
  if (view_.ndim == 0) Refuse(name_, "a single number; it must be an array of n rows");
  if (!IsContiguous(view_)) RefuseStrides(name_, ShapeName(view_));
  data_ = static_cast<std::byte*>(view_.data) + view_.byte_offset;
  rows_ = static_cast<std::size_t>(view_.shape[0]);
  row_bytes_ = (std::size_t{view_.dtype.bits} * view_.dtype.lanes + 7) / 8;
  for (int i = 1; i < view_.ndim; ++i) row_bytes_ *= static_cast<std::size_t>(view_.shape[i]);
  bytes_ = rows_ * row_bytes_;
}

void Array::CheckRows(std::size_t rows, std::size_t row_bytes, const char* one_row) const {
  if (row_bytes_ == row_bytes && rows_ == rows) return;
  const std::string is =
      "an array of " + DtypeName(view_.dtype) + " of shape " + ShapeName(view_) + " has ";
  if (row_bytes_ != row_bytes) {
    Refuse(name_, is + std::to_string(row_bytes_) + " bytes a row; it must have " +
                      std::to_string(row_bytes) + ": " + one_row);
  }
  Refuse(name_, is + std::to_string(rows_) + " rows; it must have " + std::to_string(rows) +
                    ", one for each key");
}

void Array::CheckApart(const Array& other) const {
  if (bytes_ == 0 || other.bytes_ == 0 || on_device_ != other.on_device_) return;
  const auto* mine = static_cast<const std::byte*>(data_);
  const auto* its = static_cast<const std::byte*>(other.data_);
  if (mine < its + other.bytes_ && its < mine + bytes_) {
    Refuse(name_, std::string("it shares memory with '") + other.name_ + "'");
  }
}

nb::object NewNumPyArray(std::span<const std::byte> bytes, std::size_t rows, bool integers) {
  auto copy = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  std::byte* data = copy.get();
  const nb::capsule owner(copy.release(),
                          [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  if (integers) {
    return nb::cast(nb::ndarray<nb::numpy, std::uint64_t>(data, {rows}, owner));
  }
  const std::size_t row = rows == 0 ? 0 : bytes.size() / rows;
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, {rows, row}, owner));
}

}  // namespace gpm::python
