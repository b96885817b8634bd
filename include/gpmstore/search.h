#ifndef GPM_SEARCH_H_
#define GPM_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpmstore/options.h"

namespace gpm {

/// What an attribute of an item has to be: a number from `least` to `most`. None is, where `least`
/// is the larger one.
struct Condition {
  std::uint32_t attribute = 0;  ///< its place among those of the pool (StoreStats::attributes)
  std::uint64_t least = 0;
  std::uint64_t most = ~std::uint64_t{0};

  friend bool operator==(const Condition&, const Condition&) = default;
};

/// The items that are wanted: those that meet all conditions; all items, if there are none.
using Query = std::vector<Condition>;

/// Reads a query from text, such as "session = 7 and model < 3". Conditions are joined by "and",
/// and each is an attribute's name, one of = < <= > >=, and a whole number: decimal, or hexadecimal
/// with 0x. An empty text is a query without conditions.
/// @throws Error(kInvalidArgument) naming what is wrong and where; of an unknown attribute, which
///         ones there are
Query ParseQuery(std::string_view text, std::span<const Attribute> attributes);

/// What a search gives back.
struct SearchOptions {
  /// Items of each query, at most: those with the least keys, compared as bytes.
  std::uint64_t limit = ~std::uint64_t{0};
  bool keys = true;     ///< else their number alone
  bool values = false;  ///< too; only with keys
};

/// What a search found: rows of each query behind those of the one before, in the order of their
/// keys as bytes. It depends on the items alone, not on the executor or on timing.
struct SearchResult {
  std::vector<std::uint64_t> counts;  ///< of each query: the items that match, in all
  /// Query i has rows [offsets[i], offsets[i + 1]); fewer than counts[i], where `limit` is. Of
  /// counts alone, empty.
  std::vector<std::uint64_t> offsets;
  std::vector<std::byte> keys;    ///< rows of key_size bytes
  std::vector<std::byte> values;  ///< rows of value_size bytes, if they are wanted
};

/// Queries of one shape, in an array: each has a condition on each of some attributes.
struct QueryArray {
  std::span<const std::uint32_t> attributes{};  ///< their places, 1 to kMaxAttributes; host memory
  /// Rows of 2 * attributes.size() numbers, a query each: `least` and `most` of each condition.
  std::span<const std::uint64_t> bounds{};

  std::uint64_t count() const {
    return attributes.empty() ? 0 : bounds.size() / (2 * attributes.size());
  }
};

/// The same, in arrays of the caller's, in host memory where nothing else is said.
struct Matches {
  std::span<std::uint64_t> counts{};   ///< one for each query
  std::span<std::uint64_t> offsets{};  ///< and one more, or empty: counts alone are wanted
  std::span<std::byte> keys{};         ///< room for rows of key_size bytes
  std::span<std::byte> values{};       ///< for as many of value_size bytes, or empty
  /// Queries that have their rows: all, or as many, from the first one on, as there is room for. To
  /// those behind them the offsets give no row; their counts are right.
  std::uint64_t answered = 0;
  std::uint64_t rows = 0;  ///< that there have to be room for, if all queries are to be answered
};

}  // namespace gpm

#endif  // GPM_SEARCH_H_
