#ifndef GPM_ENGINE_MATCH_LISTS_H_
#define GPM_ENGINE_MATCH_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/held_items.h"
#include "engine/query_plan.h"
#include "engine/search_index.h"
#include "pm/thread_pool.h"

namespace gpm {

/// What queries match, by a look at all items: all values are read once, for all queries.
class MatchLists : public MatchedRows {
 public:
  struct Shape {
    std::uint64_t queries = 0;
    std::uint32_t key_size = 0;    ///< bytes
    std::uint32_t value_size = 0;  ///< bytes
    bool rows = true;              ///< else counts alone
    std::uint64_t limit = 0;       ///< rows of a query at most
  };
  /// @param items outlive it
  MatchLists(const HeldItems& items, const QueryPlan& plan, const Shape& shape,
             ThreadPool* threads);

  std::uint64_t ItemOf(std::uint64_t row) const { return rows_[row].item; }
  void CopyRows(std::uint64_t count, std::byte* keys, std::byte* values,
                ThreadPool* threads) const override;

 private:
  struct Found {
    std::uint64_t item;
    std::uint32_t query;
  };
  struct Row {
    std::uint64_t prefix;  ///< the key's first bytes, as a number that has their order
    std::uint64_t item;
  };
  using Parts = std::vector<std::vector<Found>>;

  /// @return matches, by part of the items; none of counts alone
  Parts Scan(const QueryPlan& plan, ThreadPool* threads);
  void Group(Parts found);
  void Order(ThreadPool* threads);
  std::uint64_t PrefixOf(std::uint64_t item) const;

  const HeldItems& items_;
  const Shape shape_;
  std::vector<Row> rows_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_MATCH_LISTS_H_
