#ifndef GPM_ENGINE_ATTRIBUTE_INDEX_H_
#define GPM_ENGINE_ATTRIBUTE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/held_items.h"
#include "gpmstore/search.h"
#include "pm/thread_pool.h"

namespace gpm {

/// The keys and attributes of all items of one state, in host memory: for searches of that state,
/// which then look at no value. It is never changed: another state gets another one.
///
/// An item is named by its *rank*, its place in the order of keys, so that ranks in ascending order
/// are rows in the order in which a search gives them back.
///
/// Thread safety: several threads may read it.
class AttributeIndex {
 public:
  /// Bytes that one of so many items takes.
  static std::uint64_t BytesFor(std::uint64_t items, std::uint32_t key_size,
                                std::size_t attributes);
  /// Whether there can be one.
  static bool CanBe(std::uint64_t items) { return items <= ~std::uint32_t{0}; }
  /// REQUIRES: CanBe.
  AttributeIndex(const HeldItems& items, std::uint32_t key_size,
                 std::span<const Attribute> attributes, ThreadPool* threads);

  /// Admission::changers of the state.
  std::uint64_t version() const { return version_; }
  std::uint64_t bytes() const { return BytesFor(count_, key_size_, columns_.size()); }

 private:
  friend class IndexedLists;
  struct Column {
    std::vector<std::uint64_t> by_rank;  ///< numbers
    std::vector<std::uint64_t> sorted;   ///< the same, in ascending order
    std::vector<std::uint32_t> ranks;    ///< of `sorted`; ascending where numbers are equal
  };

  const std::uint64_t version_;
  const std::uint64_t count_;
  const std::uint32_t key_size_;
  std::vector<std::byte> keys_;  ///< by rank
  std::vector<Column> columns_;  ///< by attribute
};

/// What queries match, by an index: as MatchLists, but for values.
class IndexedLists {
 public:
  /// @param index outlives it @param rows else counts alone @param limit rows of a query at most
  /// REQUIRES: conditions are on attributes that there are.
  IndexedLists(const AttributeIndex& index, std::span<const Query> queries, bool rows,
               std::uint64_t limit, ThreadPool* threads);

  const std::vector<std::uint64_t>& counts() const { return counts_; }
  const std::vector<std::uint64_t>& offsets() const { return offsets_; }
  /// REQUIRES: `values` is null.
  void CopyRows(std::uint64_t count, std::byte* keys, std::byte* values, ThreadPool* threads) const;

 private:
  /// The condition of a query that the fewest items meet, and those: places [first, last) of its
  /// column. Null: the query has no condition, and all ranks do.
  struct Lead {
    const Condition* condition = nullptr;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
  };
  Lead LeadOf(const Query& query) const;
  /// @param ranks null: they are not wanted; else those of the first rows are put behind it
  std::uint64_t Ask(const Query& query, std::vector<std::uint32_t>* ranks) const;

  const AttributeIndex& index_;
  const std::uint64_t limit_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::vector<std::uint32_t>> parts_;  ///< ranks, of some queries each
};

}  // namespace gpm

#endif  // GPM_ENGINE_ATTRIBUTE_INDEX_H_
