#include "engine/query_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "gpmstore/error.h"

namespace gpm {

QueryPlan::QueryPlan(std::span<const Query> queries, std::span<const Attribute> attributes) {
  if (queries.size() > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("search: {} queries; there may be 2147483647 at most", queries.size()));
  }
  std::vector<bool> asked(attributes.size());
  first_.reserve(queries.size() + 1);
  first_.push_back(0);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    for (const Condition& condition : queries[i]) {
      if (condition.attribute >= attributes.size()) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("search: query {} has a condition on attribute {}, and the pool's "
                                "values have {}, which are numbered from 0",
                                i, condition.attribute, attributes.size()));
      }
      asked[condition.attribute] = true;
      conditions_.push_back(condition);
    }
    first_.push_back(conditions_.size());
  }
  for (std::uint32_t a = 0; a < attributes.size(); ++a) {
    if (asked[a]) fields_.push_back({a, attributes[a].offset, attributes[a].bytes});
  }
  for (std::uint32_t i = 0; i < queries.size(); ++i) Place(i);
}

void QueryPlan::Place(std::uint32_t query) {
  const auto begin = conditions_.begin() + static_cast<std::ptrdiff_t>(first_[query]);
  const auto end = conditions_.begin() + static_cast<std::ptrdiff_t>(first_[query + 1]);
  if (std::any_of(begin, end, [](const Condition& c) { return c.least > c.most; })) return;
  const auto lead = std::find_if(begin, end, [](const Condition& c) { return c.least == c.most; });
  if (lead == end) {
    others_.push_back(query);
    return;
  }
  auto equals = std::find_if(equals_.begin(), equals_.end(),
                             [&](const Equals& e) { return e.attribute == lead->attribute; });
  if (equals == equals_.end()) equals = equals_.insert(equals, {lead->attribute, {}});
  equals->by_number[lead->least].push_back(query);
}

}  // namespace gpm
