#ifndef GPM_PYTHON_SRC_BATCH_ARRAYS_H_
#define GPM_PYTHON_SRC_BATCH_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/options.h"
#include "python/src/arrays.h"

namespace gpm::python {

/// What a batch is called with; null arrays are None.
struct Call {
  Op op = Op::kFind;
  Source ops;
  Source keys;
  Source values;
  Source found;
  Source results;
  Element element = Element::kNone;
  nb::handle initial = nb::none();  ///< None, or a tuple: the members of InitialValue
};

/// A call of one kind that writes values and gives none back.
inline Call Writes(Op op, nb::handle keys, nb::handle values, nb::handle results) {
  return {.op = op,
          .ops = nb::none(),
          .keys = keys,
          .values = values,
          .found = nb::none(),
          .results = results};
}

/// The arrays of a batch, checked against a store's sizes and executor.
class Arrays {
 public:
  Arrays() = default;
  /// @throws nb::type_error, Error(kInvalidArgument, kUnsupported) before anything is done
  Arrays(const Call& call, std::uint32_t key_size, std::uint32_t value_size, ExecutorKind executor);
  const Batch& batch() const { return batch_; }
  /// How many operations were not kOk; nothing where the results are in device memory.
  std::optional<std::uint64_t> CountNotOk() const;

 private:
  Array keys_, ops_, values_, found_, results_;
  std::vector<std::byte> initial_row_;
  Batch batch_{};
};

/// For a store whose batches are in the order of the default stream.
/// @param store what it is, for the error @throws Error(kUnsupported) of another stream
void RequireDefaultStream(std::uintptr_t stream, ExecutorKind executor, const char* store);

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_BATCH_ARRAYS_H_
