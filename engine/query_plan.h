#ifndef GPM_ENGINE_QUERY_PLAN_H_
#define GPM_ENGINE_QUERY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpmstore/search.h"

namespace gpm {

/// Queries in a shape in which a value is asked for all of them at once: those that want an
/// attribute to equal a number are found by that number (after GHSH, Ren et al. 2021, 4.1.1, which
/// expands queries into queues by bucket for the same end: each record is read once for many
/// queries). The others are asked one by one.
///
/// Thread safety: several threads may call Ask at once.
class QueryPlan {
 public:
  /// @throws Error(kInvalidArgument) a condition is on no attribute of the pool
  QueryPlan(std::span<const Query> queries, std::span<const Attribute> attributes);

  /// Fetches what Ask reads of a value into the cache.
  void Prefetch(const std::byte* value) const {
    for (const Field& field : fields_) __builtin_prefetch(value + field.offset);
  }

  /// Calls match(i) for each query that the value meets, in no order.
  /// @param value at any alignment
  template <class Match>
  void Ask(const std::byte* value, const Match& match) const {
    Numbers numbers;
    for (const Field& field : fields_) {
      numbers.of[field.attribute] = 0;
      std::memcpy(&numbers.of[field.attribute], value + field.offset, field.bytes);
    }
    for (const Equals& equals : equals_) {
      const auto queries = equals.by_number.find(numbers.of[equals.attribute]);
      if (queries == equals.by_number.end()) continue;
      for (const std::uint32_t query : queries->second) {
        if (IsMetBy(query, numbers)) match(query);
      }
    }
    for (const std::uint32_t query : others_) {
      if (IsMetBy(query, numbers)) match(query);
    }
  }

 private:
  struct Numbers {
    std::uint64_t of[kMaxAttributes];  ///< by attribute; those of `fields_` alone
  };
  /// An attribute that some query asks for.
  struct Field {
    std::uint32_t attribute;
    std::uint32_t offset;
    std::uint32_t bytes;
  };
  /// Queries of which the first condition of equality is on one attribute.
  struct Equals {
    std::uint32_t attribute;
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> by_number;
  };

  bool IsMetBy(std::uint32_t query, const Numbers& numbers) const {
    for (std::uint64_t i = first_[query]; i < first_[query + 1]; ++i) {
      const Condition& condition = conditions_[i];
      const std::uint64_t number = numbers.of[condition.attribute];
      if (number < condition.least || number > condition.most) return false;
    }
    return true;
  }
  void Place(std::uint32_t query);

  std::vector<Condition> conditions_;  ///< of all queries
  std::vector<std::uint64_t> first_;   ///< of each query, and one more
  std::vector<Field> fields_;
  std::vector<Equals> equals_;
  std::vector<std::uint32_t> others_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_QUERY_PLAN_H_
