#ifndef GPM_PYTHON_SRC_QUERIES_H_
#define GPM_PYTHON_SRC_QUERIES_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "gpmstore/search.h"
#include "gpmstore/snapshot.h"
#include "gpmstore/store.h"
#include "python/src/arrays.h"

namespace gpm::python {

/// @param limit rows at most, or none
SearchOptions SearchOptionsOf(std::optional<std::uint64_t> limit, bool keys, bool values);

/// How many items match one query, and arrays of their keys and values, or None where those are not
/// wanted. @param result of that query alone
nb::tuple MatchesOf(const SearchResult& result, const SearchOptions& options,
                    std::uint32_t key_size);

/// Gives items other values. Without the GIL it takes it.
/// @param values bytes of one value for all of them; or a function of n keys and n rows of values,
///        which are copies, that gives back other rows, or None: it has edited those. It outlives
///        this. @throws Error(kInvalidArgument) bytes of another size
Store::RowsEditor EditorOf(const nb::object& values, std::uint32_t key_size,
                           std::uint32_t value_size);

nb::dict DictOf(const SnapshotResult& result);

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_QUERIES_H_
