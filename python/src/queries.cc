#include "python/src/queries.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "gpmstore/error.h"
#include "python/src/calls.h"
#include "python/src/convert.h"

namespace gpm::python {

SearchOptions SearchOptionsOf(std::optional<std::uint64_t> limit, bool keys, bool values) {
  SearchOptions options{.keys = keys, .values = values};
  if (limit) options.limit = *limit;
  return options;
}

nb::tuple MatchesOf(const SearchResult& result, const SearchOptions& options,
                    std::uint32_t key_size) {
  const std::size_t rows = result.keys.size() / key_size;
  return nb::make_tuple(result.counts[0],
                        options.keys ? NewNumPyArray(result.keys, rows, key_size == 8) : nb::none(),
                        options.values ? NewNumPyArray(result.values, rows, false) : nb::none());
}

Store::RowsEditor EditorOf(const nb::object& values, std::uint32_t key_size,
                           std::uint32_t value_size) {
  if (nb::isinstance<nb::bytes>(values)) {
    const nb::bytes bytes = nb::borrow<nb::bytes>(values);
    CheckBytes("values", bytes.size(), value_size);
    const std::span<const std::byte> row = BytesOf(bytes);
    return [row](auto, std::span<std::byte> rows) {
      for (std::size_t at = 0; at < rows.size(); at += row.size()) {
        std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(at));
      }
    };
  }
  return [&values, key_size, value_size](std::span<const std::byte> keys,
                                         std::span<std::byte> rows) {
    const HeldGil gil;
    const std::size_t n = keys.size() / key_size;
    const nb::object edited = NewNumPyArray(rows, n, false);
    const nb::object given = values(NewNumPyArray(keys, n, key_size == 8), edited);
    const Array made(given.is_none() ? edited : given, {.name = "values"});
    made.CheckRows(n, value_size, "the bytes of a value");
    if (made.on_device()) {
      throw Error(ErrorCode::kUnsupported,
                  "values: the function's array is in the memory of a GPU; copy it to host memory");
    }
    const auto bytes = made.As<const std::byte>();
    std::copy(bytes.begin(), bytes.end(), rows.begin());
  };
}

nb::dict DictOf(const SnapshotResult& result) {
  nb::dict dict;
  dict["items"] = result.items;
  dict["written"] = result.written;
  dict["bytes"] = result.bytes;
  dict["pause_seconds"] = result.pause_seconds;
  dict["seconds"] = result.seconds;
  return dict;
}

}  // namespace gpm::python
