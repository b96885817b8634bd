#ifndef GPM_ENGINE_SEARCH_TIERS_H_
#define GPM_ENGINE_SEARCH_TIERS_H_

#include <cstdint>

#include "engine/attribute_pairs.h"
#include "gpmstore/options.h"
#include "pm/format.h"

namespace gpm {

/// A search index in sorted arrays, which a GPU asks with many threads
/// (engine/cuda/search/device_index.h): two *tiers* of items, each in the order of its keys.
/// Of the *base*, some rows are dead: their items have changed since it was made. What became of
/// those, and what has come since, is in the *delta*. Trivially copyable views, of the same memory
/// on host and device.
///
/// A row is named by its number in the base, or, of the delta, by that behind the base's last.
/// Keys are in *ordered words*: as numbers, one word after the other, they have the order of the
/// keys' bytes.

/// The word whose order as a number is that of the bytes of `word`, or the other way round.
GPM_HD inline std::uint64_t OrderedWord(std::uint64_t word) {
  word = (word & 0x00FF00FF00FF00FFull) << 8 | (word >> 8 & 0x00FF00FF00FF00FFull);
  word = (word & 0x0000FFFF0000FFFFull) << 16 | (word >> 16 & 0x0000FFFF0000FFFFull);
  return word << 32 | word >> 32;
}

/// @return less than 0, 0, or more, as of memcmp
GPM_HD inline int CompareOrdered(const std::uint64_t* x, const std::uint64_t* y,
                                 std::uint32_t words) {
  for (std::uint32_t w = 0; w < words; ++w) {
    if (x[w] != y[w]) return x[w] < y[w] ? -1 : 1;
  }
  return 0;
}

/// Who searches: a thread by itself. Several that search together look at as many places at once.
struct OneLane {
  static constexpr std::uint32_t kLanes = 1;
  /// For how many of the lanes, which are numbered from 0 on, test(lane) is true.
  template <class Test>
  GPM_HD std::uint32_t Count(const Test& test) const {
    return test(0) ? 1 : 0;
  }
};

/// The first of `count` numbers, 0, 1, ..., for which is_before says no; none before it may be one.
template <class IsBefore, class Lanes = OneLane>
GPM_HD std::uint32_t PartitionPoint(std::uint32_t count, const IsBefore& is_before,
                                    const Lanes& lanes = {}) {
  std::uint32_t first = 0;
  while (count > 0) {
    // Each lane looks at the last of so many numbers, which leave fewer behind the last lane's.
    const std::uint32_t step = count / (Lanes::kLanes + 1) + 1;
    const std::uint32_t before = lanes.Count([&](std::uint32_t lane) {
      const std::uint32_t at = (lane + 1) * step - 1;
      return at < count && is_before(first + at);
    });
    first += before * step;
    const std::uint32_t left = count - before * step;
    count = left < step - 1 ? left : step - 1;
  }
  return first;
}

/// From `first` on, the first of the numbers up to `count` for which is_in says no. (Most ranges
/// are short.)
template <class IsIn, class Lanes = OneLane>
GPM_HD std::uint32_t EndOfRange(std::uint32_t first, std::uint32_t count, const IsIn& is_in,
                                const Lanes& lanes = {}) {
  std::uint32_t step = Lanes::kLanes;
  while (step < count - first && is_in(first + step - 1)) {
    first += step;
    step *= 2;
  }
  const std::uint32_t left = step < count - first ? step : count - first;
  return first + PartitionPoint(
                     left, [&](std::uint32_t i) { return is_in(first + i); }, lanes);
}

/// One attribute of a tier's rows.
struct TierColumn {
  const std::uint64_t* wide = nullptr;    ///< its number by row, if some need 8 bytes; else null
  const std::uint32_t* narrow = nullptr;  ///< if all fit into 4
  /// Rows in the order of (number, row), or, with a partner, of (number, partner's number, row).
  const std::uint32_t* order = nullptr;

  GPM_HD std::uint64_t NumberOf(std::uint32_t row) const {
    return wide != nullptr ? wide[row] : narrow[row];
  }
  /// The first place of the order, of `rows`, whose number is not less.
  template <class Lanes = OneLane>
  GPM_HD std::uint32_t First(std::uint32_t rows, std::uint64_t number,
                             const Lanes& lanes = {}) const {
    return PartitionPoint(
        rows, [&](std::uint32_t i) { return NumberOf(order[i]) < number; }, lanes);
  }
  /// The first place from `first` on whose number is more.
  template <class Lanes = OneLane>
  GPM_HD std::uint32_t Behind(std::uint32_t rows, std::uint32_t first, std::uint64_t number,
                              const Lanes& lanes = {}) const {
    return EndOfRange(
        first, rows, [&](std::uint32_t i) { return NumberOf(order[i]) <= number; }, lanes);
  }
  /// The same among rows with this number, by that of the partner's column.
  template <class Lanes = OneLane>
  GPM_HD std::uint32_t FirstOfPair(std::uint32_t rows, std::uint64_t number,
                                   const TierColumn& partner, std::uint64_t least,
                                   const Lanes& lanes = {}) const {
    return PartitionPoint(
        rows,
        [&](std::uint32_t i) {
          const std::uint64_t its = NumberOf(order[i]);
          return its < number || (its == number && partner.NumberOf(order[i]) < least);
        },
        lanes);
  }
  template <class Lanes = OneLane>
  GPM_HD std::uint32_t BehindPair(std::uint32_t rows, std::uint32_t first, std::uint64_t number,
                                  const TierColumn& partner, std::uint64_t most,
                                  const Lanes& lanes = {}) const {
    return EndOfRange(
        first, rows,
        [&](std::uint32_t i) {
          return NumberOf(order[i]) == number && partner.NumberOf(order[i]) <= most;
        },
        lanes);
  }
};

/// Some items, by row.
struct SearchTier {
  std::uint32_t rows = 0;
  const std::uint64_t* keys = nullptr;   ///< ordered words of each
  const std::uint32_t* dead = nullptr;   ///< a bit for each row, or null
  TierColumn columns[kMaxAttributes]{};  ///< by attribute

  GPM_HD bool IsDead(std::uint32_t row) const {
    return dead != nullptr && (dead[row / 32] >> (row % 32) & 1) != 0;
  }
  /// Rows with a smaller key. @param key ordered words
  GPM_HD std::uint32_t RowsBefore(const std::uint64_t* key, std::uint32_t words) const {
    return PartitionPoint(rows, [&](std::uint32_t row) {
      return CompareOrdered(keys + std::uint64_t{row} * words, key, words) < 0;
    });
  }
  /// @return `rows`: there is none
  GPM_HD std::uint32_t RowOf(const std::uint64_t* key, std::uint32_t words) const {
    const std::uint32_t row = RowsBefore(key, words);
    const bool has =
        row < rows && CompareOrdered(keys + std::uint64_t{row} * words, key, words) == 0;
    return has ? row : rows;
  }
};

/// Conditions that each of some queries has on the same attributes.
struct TierQueries {
  std::uint32_t conditions = 0;                ///< none: all items match
  std::uint32_t attributes[kMaxAttributes]{};  ///< of each
  const std::uint64_t* bounds = nullptr;       ///< by query: least and most of each condition
  /// Conditions on an attribute and on its partner, which go together in queries where the first is
  /// an equality (SearchTiers::FindPairs).
  struct Pair {
    std::uint32_t first, partner;
  };
  std::uint32_t pairs = 0;
  Pair pair[kMaxAttributes]{};

  GPM_HD const std::uint64_t* BoundsOf(std::uint64_t query) const {
    return bounds + query * 2 * conditions;
  }
};

/// What a query looks at: the rows in a range of one attribute's order, in each tier.
struct TierCandidates {
  static constexpr std::uint32_t kAllRows = kMaxAttributes;

  std::uint32_t attribute = kAllRows;  ///< kAllRows: of no attribute, but in the order of keys
  std::uint32_t base_first = 0;
  std::uint32_t base_count = 0;
  std::uint32_t delta_first = 0;
  std::uint32_t delta_count = 0;
  bool ordered = true;  ///< the base's are in the order of keys, and so are the delta's

  GPM_HD std::uint64_t count() const { return std::uint64_t{base_count} + delta_count; }
};

/// Both tiers.
struct SearchTiers {
  std::uint32_t key_words = 1;
  SearchTier base;
  SearchTier delta;
  const std::uint32_t* places = nullptr;  ///< of each row of the delta: rows of the base before it
  AttributePairs partners;                ///< of both tiers' orders

  GPM_HD std::uint64_t rows() const { return std::uint64_t{base.rows} + delta.rows; }
  GPM_HD const std::uint64_t* KeyOf(std::uint32_t row) const {
    return row < base.rows ? base.keys + std::uint64_t{row} * key_words
                           : delta.keys + std::uint64_t{row - base.rows} * key_words;
  }
  GPM_HD std::uint64_t NumberOf(std::uint32_t attribute, std::uint32_t row) const {
    return row < base.rows ? base.columns[attribute].NumberOf(row)
                           : delta.columns[attribute].NumberOf(row - base.rows);
  }

  /// Sets the pairs of the queries: each condition is the first of one at most.
  void FindPairs(TierQueries* queries) const {
    queries->pairs = 0;
    for (std::uint32_t c = 0; c < queries->conditions; ++c) {
      const std::uint32_t partner = partners.PartnerOf(queries->attributes[c]);
      for (std::uint32_t d = 0; d < queries->conditions; ++d) {
        if (queries->attributes[d] != partner) continue;
        queries->pair[queries->pairs++] = {c, d};
        break;
      }
    }
  }
  /// The rows that meet one condition.
  template <class Lanes = OneLane>
  GPM_HD TierCandidates Meeting(std::uint32_t attribute, const std::uint64_t* bounds,
                                const Lanes& lanes = {}) const {
    TierCandidates its;
    its.attribute = attribute;
    its.ordered = bounds[0] == bounds[1] && partners.IsByRow(attribute);
    const auto look = [&](const SearchTier& tier, std::uint32_t* first, std::uint32_t* n) {
      const TierColumn& column = tier.columns[attribute];
      *first = column.First(tier.rows, bounds[0], lanes);
      *n = column.Behind(tier.rows, *first, bounds[1], lanes) - *first;
    };
    look(base, &its.base_first, &its.base_count);
    look(delta, &its.delta_first, &its.delta_count);
    return its;
  }
  /// Those that have a number of an attribute and meet the condition on its partner.
  template <class Lanes = OneLane>
  GPM_HD TierCandidates MeetingPair(std::uint32_t attribute, std::uint64_t number,
                                    const std::uint64_t* bounds, const Lanes& lanes = {}) const {
    TierCandidates its;
    its.attribute = attribute;
    its.ordered = bounds[0] == bounds[1];
    const auto look = [&](const SearchTier& tier, std::uint32_t* first, std::uint32_t* n) {
      const TierColumn& column = tier.columns[attribute];
      const TierColumn& partner = tier.columns[partners.PartnerOf(attribute)];
      *first = column.FirstOfPair(tier.rows, number, partner, bounds[0], lanes);
      *n = column.BehindPair(tier.rows, *first, number, partner, bounds[1], lanes) - *first;
    };
    look(base, &its.base_first, &its.base_count);
    look(delta, &its.delta_first, &its.delta_count);
    return its;
  }
  /// The condition, or pair of them, that the fewest rows meet decides, or the first one that a
  /// single row meets. @tparam kPairs whether pairs are looked at, first; else as if there were
  /// none
  template <bool kPairs, class Lanes = OneLane>
  GPM_HD TierCandidates CandidatesOf(const TierQueries& queries, std::uint64_t query,
                                     const Lanes& lanes = {}) const {
    TierCandidates all;
    all.base_count = base.rows;
    all.delta_count = delta.rows;
    const std::uint64_t* bounds = queries.BoundsOf(query);
    std::uint32_t looked = 0;  // conditions of a pair, a bit for each: no fewer rows meet it alone
    if constexpr (kPairs) {
      for (std::uint32_t p = 0; p < queries.pairs; ++p) {
        const TierQueries::Pair pair = queries.pair[p];
        const std::uint64_t number = bounds[2 * pair.first];
        if (number != bounds[2 * pair.first + 1]) continue;
        const TierCandidates its =
            MeetingPair(queries.attributes[pair.first], number, bounds + 2 * pair.partner, lanes);
        if (its.count() < all.count()) all = its;
        if (all.count() <= 1) return all;
        looked |= 1u << pair.first | 1u << pair.partner;
      }
    }
    for (std::uint32_t c = 0; c < queries.conditions; ++c, bounds += 2) {
      if (kPairs && (looked >> c & 1) != 0) continue;
      if (bounds[0] > bounds[1]) return {};
      const TierCandidates its = Meeting(queries.attributes[c], bounds, lanes);
      if (its.count() < all.count()) all = its;
      if (all.count() <= 1) break;
    }
    return all;
  }
  GPM_HD std::uint32_t CandidateAt(const TierCandidates& candidates, std::uint64_t i) const {
    const bool of_base = i < candidates.base_count;
    const SearchTier& tier = of_base ? base : delta;
    auto at = static_cast<std::uint32_t>(
        of_base ? candidates.base_first + i : candidates.delta_first + i - candidates.base_count);
    if (candidates.attribute != TierCandidates::kAllRows) {
      at = tier.columns[candidates.attribute].order[at];
    }
    return of_base ? at : base.rows + at;
  }
  /// Whether the row's item meets all conditions of the query.
  GPM_HD bool IsMatch(const TierQueries& queries, std::uint64_t query, std::uint32_t row) const {
    if (row < base.rows && base.IsDead(row)) return false;
    const std::uint64_t* bounds = queries.BoundsOf(query);
    for (std::uint32_t c = 0; c < queries.conditions; ++c, bounds += 2) {
      const std::uint64_t number = NumberOf(queries.attributes[c], row);
      if (number < bounds[0] || number > bounds[1]) return false;
    }
    return true;
  }

  /// A row's place in the order of the keys of all rows; RowAt has it back.
  GPM_HD std::uint32_t PlaceOf(std::uint32_t row) const {
    if (row >= base.rows) return places[row - base.rows] + (row - base.rows);
    return row + PartitionPoint(delta.rows, [&](std::uint32_t d) { return places[d] <= row; });
  }
  GPM_HD std::uint32_t RowAt(std::uint32_t place) const {
    const std::uint32_t before =
        PartitionPoint(delta.rows, [&](std::uint32_t d) { return places[d] + d < place; });
    const bool is_of_delta = before < delta.rows && places[before] + before == place;
    return is_of_delta ? base.rows + before : place - before;
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_SEARCH_TIERS_H_
