#include "python/src/lent_tensors.h"

#include <cstddef>
#include <deque>
#include <utility>

namespace gpm::python {
namespace {

using nb::dlpack::dltensor;

/// The part of DLPack's table (DLPackExchangeAPI) that is the same in all versions.
struct TableHeader {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  const TableHeader* older = nullptr;  ///< a table of an earlier major version
};

/// DLPack's table of major version 1. Both functions return 0, or another number with a Python
/// error set.
struct Table {
  TableHeader header;
  void* unused[3];  ///< to make tensors, and to export them with a reference
  int (*lend)(void* object, dltensor* to);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

/// A type whose tensors can be lent. A table says neither whether a tensor shows other numbers than
/// its memory has, nor whether it may be written to: torch's methods do, and a type without them
/// lends nothing.
struct Lender {
  nb::object type;
  const Table* table = nullptr;
  nb::object is_conj, is_neg;  ///< methods of the type
  nb::object requires_grad;    ///< the attribute's name
};

/// @return nullptr where the type has no table that this can use
const Table* TableOf(nb::handle type) {
  constexpr const char* kCapsule = "dlpack_exchange_api";
  // (In the type's own dictionary: a subclass may have redefined what its tensors are.)
  const nb::object capsule =
      type.attr("__dict__").attr("get")("__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), kCapsule) == 0) return nullptr;
  const auto* header =
      static_cast<const TableHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header != nullptr && header->major != 1) header = header->older;
  const auto* table = reinterpret_cast<const Table*>(header);
  const bool has_both =
      table != nullptr && table->lend != nullptr && table->current_stream != nullptr;
  return has_both ? table : nullptr;
}

/// @return nullptr where tensors of the type can't be lent. (What can lend is few types, which
///         stay; of others nothing is kept, as a type may go and another have its address.)
const Lender* LenderOf(nb::handle type) {
  static auto& lenders = *new std::deque<Lender>();
  for (const Lender& lender : lenders) {
    if (lender.type.is(type)) return &lender;
  }
  try {
    if (const Table* const table = TableOf(type)) {
      lenders.push_back({nb::borrow(type), table, type.attr("is_conj"), type.attr("is_neg"),
                         nb::str("requires_grad")});
      return &lenders.back();
    }
  } catch (const nb::python_error&) {  // it has none of them: not torch's
  }
  return nullptr;
}

bool IsTrue(const nb::object& answer) { return !answer.is(nb::handle(Py_False)); }

/// Whether the package would take the tensor as it is. @throws nb::python_error
bool MayBeUsed(const Lender& lender, nb::handle tensor, const dltensor& lent, bool written) {
  if (IsTrue(lender.is_neg(tensor))) return false;
  switch (static_cast<nb::dlpack::dtype_code>(lent.dtype.code)) {
    case nb::dlpack::dtype_code::Int:  // which have neither conjugates nor gradients
    case nb::dlpack::dtype_code::UInt:
    case nb::dlpack::dtype_code::Bool:
      return true;
    default:
      return !IsTrue(lender.is_conj(tensor)) &&
             !(written && IsTrue(nb::getattr(tensor, lender.requires_grad)));
  }
}

/// @param to is filled @param stream as of LentTensors::Lend; the current one, where there is none
bool LendOne(nb::handle tensor, bool written, dltensor* to, std::optional<std::uintptr_t>* stream) {
  const Lender* const lender = LenderOf(tensor.type());
  if (lender == nullptr) return false;
  if (lender->table->lend(tensor.ptr(), to) != 0) {
    PyErr_Clear();
    return false;
  }
  if (!MayBeUsed(*lender, tensor, *to, written)) return false;
  if (to->device.device_type != nb::device::cuda::value) return true;
  void* current = nullptr;
  if (lender->table->current_stream(to->device.device_type, to->device.device_id, &current) != 0) {
    PyErr_Clear();
    return false;
  }
  if (!*stream) *stream = reinterpret_cast<std::uintptr_t>(current);
  return **stream == reinterpret_cast<std::uintptr_t>(current);
}

}  // namespace

bool LentTensors::Lend(Call* call, std::optional<std::uintptr_t> stream) {
  std::size_t n = 0;
  for (const auto& [source, written] :
       {std::pair(&call->keys, false), std::pair(&call->values, false),
        std::pair(&call->found, true), std::pair(&call->results, true),
        std::pair(&call->ops, false)}) {
    if (source->object.is_none()) continue;
    dltensor& lent = lent_[n++];
    if (!LendOne(source->object, written, &lent, &stream)) return false;
    source->lent = &lent;
  }
  stream_ = stream.value_or(0);
  return true;
}

}  // namespace gpm::python
