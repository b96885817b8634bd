#ifndef GPM_ENGINE_INDEXED_LISTS_H_
#define GPM_ENGINE_INDEXED_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/attribute_index.h"
#include "gpmstore/search.h"
#include "pm/thread_pool.h"

namespace gpm {

/// What queries match, by an index: as MatchLists, but for values. Read while the index stays as it
/// is.
class IndexedLists : public MatchedRows {
 public:
  /// @param index outlives it @param rows else counts alone @param limit rows of a query at most
  /// REQUIRES: the index has the attributes that conditions are on.
  IndexedLists(const AttributeIndex& index, std::span<const Query> queries, bool rows,
               std::uint64_t limit, ThreadPool* threads);

  /// REQUIRES: `values` is null.
  void CopyRows(std::uint64_t count, std::byte* keys, std::byte* values,
                ThreadPool* threads) const override;

 private:
  using Rows = std::vector<std::uint32_t>;
  using Place = AttributeColumn::Place;
  /// The condition of a query that the fewest items meet, with one on its attribute's partner, if
  /// they are a pair, and where those are in its column. Null: the query has no condition, and all
  /// rows do.
  struct Lead {
    const Condition* condition = nullptr;
    const Condition* partner = nullptr;
    Place first{};
    Place last{};
    std::uint64_t rows = 0;
  };
  /// What the index's wishes are told of some queries.
  struct Tally {
    std::uint64_t in_vain = 0;     ///< rows that were looked at and do not match
    const Query* query = nullptr;  ///< the one with the most of them
    std::uint64_t most = 0;
    std::uint64_t in_order[kMaxAttributes] = {};  ///< rows given as an attribute has them in order
  };
  const AttributeColumn& ColumnOf(const Condition& condition) const {
    return *index_.columns_[condition.attribute];
  }
  /// The rows that meet a condition, with the other one, if that is not null.
  Lead Meeting(const Condition& condition, const Condition* partner) const;
  /// The query's condition on the partner, if the two are a pair, and some number does not meet it;
  /// else null.
  const Condition* PartnerOf(const Query& query, const Condition& condition) const;
  Lead LeadOf(const Query& query) const;
  /// Whether rows of equal numbers are met in ascending order.
  bool IsAscending(const Lead& lead) const;
  /// @param rows null: they are not wanted; else the first ones are put behind it
  std::uint64_t Ask(const Query& query, Rows* rows, Tally* tally) const;
  void Wish(const Tally& tally) const;
  /// Puts rows from `begin` on in the order of their keys, and leaves out what is beyond the limit.
  /// @param ascending they are, by number
  void Order(Rows* rows, std::size_t begin, bool ascending) const;
  void SortByKey(Rows::iterator first, Rows::iterator last) const;

  const AttributeIndex& index_;
  const std::uint64_t limit_;
  std::vector<Rows> parts_;  ///< of some queries each
};

}  // namespace gpm

#endif  // GPM_ENGINE_INDEXED_LISTS_H_
