#ifndef GPM_ENGINE_PAIR_WISHES_H_
#define GPM_ENGINE_PAIR_WISHES_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "engine/attribute_pairs.h"
#include "gpmstore/search.h"

namespace gpm {

/// Which attribute is to have which partner (AttributePair) follows the queries: those that no pair
/// narrows tell how many rows they looked at in vain, which the best pair of theirs would have
/// spared them.
///
/// - A pair is due once that is as many rows as there are items: what a search without an index
///   looks at, for which an index is made. To sort an attribute's rows takes some times as long.
/// - It is not due where its first attribute, which has no partner yet, gave more rows in the order
///   of their keys meanwhile: those would have to be sorted. Then both are counted anew. (The
///   host's index alone tells of such rows. On a GPU all that a search matches is sorted together.)
/// - Once the attribute has a partner, twice as many make it due to get another, and each time
///   twice as many again: with n times as many rows in vain as items, it is sorted log2(n + 1)
///   times at most.
/// - The attribute that gets the partner has to be one that the query wants to equal a number: the
///   one that the fewest rows meet, as queries on it alone then have few rows to put in order; but
///   one without a partner rather than one with another. The partner is the one of the others that
///   the fewest rows meet.
/// - Pairs may be fixed: the attributes that have a partner by that keep it.
///
/// Thread safety: any thread.
class PairWishes {
 public:
  /// A condition of a query, and the rows that meet it.
  struct Met {
    Condition condition;
    std::uint64_t rows = 0;
  };
  /// Fewer rows of a query, or of a part of some, are not worth telling.
  static constexpr std::uint64_t kFewRows = 64;

  explicit PairWishes(const AttributePairs& fixed) : fixed_(fixed), chosen_(fixed) {}

  /// @param query typical of those that looked at so many rows in vain, among so many items
  void Note(std::span<const Met> query, std::uint64_t rows, std::uint64_t items);
  /// Adds rows that an attribute without a partner gave in the order of their keys.
  void NoteInOrder(std::uint32_t attribute, std::uint64_t rows) {
    in_order_[attribute].fetch_add(rows, std::memory_order_relaxed);
  }
  /// For who looks for a typical query now and then: adds rows that were looked at. @return those
  /// since the last time that it did not return 0, once they are a sixteenth of the items
  std::uint64_t RowsToSample(std::uint64_t rows, std::uint64_t items);
  /// Items of the index that lacks the pair that is due; 0 if none is due.
  std::uint64_t DueItems() const { return due_items_.load(std::memory_order_relaxed); }
  /// A pair that is due, and counts as chosen from then on.
  std::optional<AttributePair> Take();
  AttributePairs chosen() const;

 private:
  /// Whether a pair that is chosen narrows it, or would, if there had been memory to sort by it.
  bool IsNarrowed(std::span<const Met> query, std::uint64_t items) const;
  /// The best pair for a query that none narrows.
  std::optional<AttributePair> PairFor(std::span<const Met> query, std::uint64_t items) const;

  const AttributePairs fixed_;
  std::atomic<std::uint64_t> due_items_{0};
  std::atomic<std::uint64_t> looked_at_{0};                   ///< rows, for the next sample
  std::atomic<std::uint64_t> in_order_[kMaxAttributes] = {};  ///< rows, by attribute
  mutable std::mutex mutex_;                                  ///< guards what follows
  AttributePairs chosen_;
  std::optional<AttributePair> due_;
  std::uint64_t in_vain_[kMaxAttributes][kMaxAttributes] = {};  ///< rows, by pair
  std::uint32_t changes_[kMaxAttributes] = {};                  ///< partners that it got so far
};

}  // namespace gpm

#endif  // GPM_ENGINE_PAIR_WISHES_H_
