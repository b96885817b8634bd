#ifndef GPM_CLI_STRESS_CONTENTS_H_
#define GPM_CLI_STRESS_CONTENTS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/stress/rows.h"
#include "gpmstore/store.h"

namespace gpm::stress {

/// What a store holds: ids of keys and tokens of their values, by id.
struct Contents {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> items;
  std::string defect;  ///< the first thing that is no item of a round's, or empty
};

/// By finds of these keys.
Contents FindAll(Store& store, const Shape& shape, std::span<const std::uint64_t> ids);

/// By a visit of all items.
Contents VisitAll(Store& store, const Shape& shape);
/// The same of items that `for_each` gives to its visitor, as Store::ForEach does.
Contents Visited(const Shape& shape, const std::function<void(const Store::Visitor&)>& for_each);

/// Empty, or the first difference.
std::string Difference(const Contents& expected, const Contents& contents);

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_CONTENTS_H_
