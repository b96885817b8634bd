#ifndef GPM_PYTHON_SRC_CONVERT_H_
#define GPM_PYTHON_SRC_CONVERT_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>

#include "gpmstore/options.h"
#include "gpmstore/sharded_store.h"
#include "gpmstore/stats.h"

namespace gpm::python {

namespace nb = nanobind;

/// What the keyword arguments `given` say; what they do not say has its default.
/// @param creates whether a pool may be created; else its options are refused
/// @throws nb::type_error for a name that no option has, or a value of another type;
///         Error(kInvalidArgument) for a name of no executor, policy or geometry
struct Options {
  CreateOptions create;
  OpenOptions open;
  ShardOptions shards;
};
Options OptionsOf(const nb::dict& given, bool creates);

nb::dict DictOf(const StoreStats& stats);

/// Raises gpm::Error as the classes of the module gpmstore._errors.
void RegisterErrors(nb::module_& module);

inline std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}
inline nb::bytes PythonBytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_CONVERT_H_
