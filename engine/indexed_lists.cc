#include "engine/indexed_lists.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "engine/pair_wishes.h"

namespace gpm {
namespace {

constexpr std::uint64_t kQueriesAtOnce = 1024;
/// To put rows in order takes longer than to look at so many times as many items.
constexpr std::uint64_t kShareToSort = 32;

std::uint64_t PartsOf(std::uint64_t count) { return (count + kQueriesAtOnce - 1) / kQueriesAtOnce; }

/// Sorts numbers up to `most`. Many of them by counting their digits, the least one first.
void SortNumbers(std::span<std::uint32_t> numbers, std::uint64_t most) {
  constexpr std::size_t kFew = 256;
  constexpr std::uint32_t kDigitBits = 11;
  constexpr std::uint32_t kDigits = 1u << kDigitBits;
  if (numbers.size() < kFew) {
    std::sort(numbers.begin(), numbers.end());
    return;
  }
  std::vector<std::uint32_t> others(numbers.size());
  std::span<std::uint32_t> from = numbers;
  std::span<std::uint32_t> to = others;
  const auto bits = static_cast<std::uint32_t>(std::bit_width(most));
  for (std::uint32_t shift = 0; shift < bits; shift += kDigitBits) {
    std::uint32_t begins[kDigits] = {};
    for (const std::uint32_t number : from) ++begins[number >> shift & (kDigits - 1)];
    std::exclusive_scan(begins, begins + kDigits, begins, 0u);
    for (const std::uint32_t number : from) to[begins[number >> shift & (kDigits - 1)]++] = number;
    std::swap(from, to);
  }
  if (from.data() != numbers.data()) std::copy(from.begin(), from.end(), numbers.begin());
}

bool IsMet(const Condition& condition, std::uint64_t number) {
  return condition.least <= number && number <= condition.most;
}

}  // namespace

IndexedLists::IndexedLists(const AttributeIndex& index, std::span<const Query> queries, bool rows,
                           std::uint64_t limit, ThreadPool* threads)
    : index_(index), limit_(limit) {
  counts_.resize(queries.size());
  parts_.resize(rows ? PartsOf(queries.size()) : 0);
  threads->Run(PartsOf(queries.size()), [&](std::size_t part) {
    const std::uint64_t end = std::min<std::uint64_t>(queries.size(), (part + 1) * kQueriesAtOnce);
    Tally tally;
    for (std::uint64_t i = part * kQueriesAtOnce; i < end; ++i) {
      counts_[i] = Ask(queries[i], rows ? &parts_[part] : nullptr, &tally);
    }
    Wish(tally);
  });
  if (!rows) return;
  offsets_.resize(queries.size() + 1);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    offsets_[i + 1] = offsets_[i] + std::min(counts_[i], limit);
  }
}

IndexedLists::Lead IndexedLists::Meeting(const Condition& condition,
                                         const Condition* partner) const {
  Lead lead{&condition, partner};
  const bool is_empty =
      condition.least > condition.most || (partner != nullptr && partner->least > partner->most);
  if (is_empty) return lead;
  const AttributeColumn& column = ColumnOf(condition);
  if (partner == nullptr) {
    lead.first = column.First(condition.least);
    lead.last = column.Behind(condition.most);
  } else {
    lead.first = column.FirstOfPair(condition.least, partner->least);
    lead.last = column.BehindPair(condition.least, partner->most);
  }
  lead.rows = column.Between(lead.first, lead.last);
  return lead;
}

const Condition* IndexedLists::PartnerOf(const Query& query, const Condition& condition) const {
  const std::uint32_t partner = index_.pairs().PartnerOf(condition.attribute);
  if (partner == AttributePairs::kNone || condition.least != condition.most) return nullptr;
  const auto it = std::find_if(query.begin(), query.end(), [&](const Condition& other) {
    return other.attribute == partner && (other.least > 0 || other.most < ~std::uint64_t{0});
  });
  return it == query.end() ? nullptr : &*it;
}

IndexedLists::Lead IndexedLists::LeadOf(const Query& query) const {
  Lead lead{.rows = index_.items_};
  const auto look_at = [&](const Condition& condition, const Condition* partner) {
    const Lead its = Meeting(condition, partner);
    if (lead.condition == nullptr || its.rows < lead.rows) lead = its;
    return lead.rows > 1;
  };
  for (const Condition& condition : query) {
    const Condition* const partner = PartnerOf(query, condition);
    if (partner != nullptr && !look_at(condition, partner)) return lead;
  }
  // (No fewer rows meet one of the pair alone.)
  for (const Condition& condition : query) {
    const bool is_looked_at = lead.partner == &condition || lead.condition == &condition;
    if (!is_looked_at && !look_at(condition, nullptr)) return lead;
  }
  return lead;
}

bool IndexedLists::IsAscending(const Lead& lead) const {
  if (lead.partner != nullptr) return lead.partner->least == lead.partner->most;
  return lead.condition->least == lead.condition->most &&
         index_.pairs().IsByRow(lead.condition->attribute);
}

void IndexedLists::Wish(const Tally& tally) const {
  if (index_.wishes() == nullptr) return;
  for (std::uint32_t a = 0; a < kMaxAttributes; ++a) {
    if (tally.in_order[a] >= PairWishes::kFewRows) {
      index_.wishes()->NoteInOrder(a, tally.in_order[a]);
    }
  }
  if (tally.in_vain < PairWishes::kFewRows) return;
  std::vector<PairWishes::Met> met;
  for (const Condition& condition : *tally.query) {
    met.push_back({condition, Meeting(condition, nullptr).rows});
  }
  index_.wishes()->Note(met, tally.in_vain, index_.items_);
}

std::uint64_t IndexedLists::Ask(const Query& query, Rows* rows, Tally* tally) const {
  const Lead lead = LeadOf(query);
  const std::uint64_t conditions = lead.partner == nullptr ? 1 : 2;
  if (lead.rows == 0 || (rows == nullptr && query.size() <= conditions)) return lead.rows;
  const std::size_t begin = rows == nullptr ? 0 : rows->size();
  std::uint64_t count = 0;
  const auto look_at = [&](std::uint32_t row) {
    const bool met = std::all_of(query.begin(), query.end(), [&](const Condition& condition) {
      return IsMet(condition, ColumnOf(condition).NumberOf(row));
    });
    if (!met) return;
    ++count;
    if (rows != nullptr) rows->push_back(row);
  };
  // Many rows are met in their order where all are looked at, which is soon done.
  const bool all = lead.condition == nullptr || lead.rows > index_.items_ / kShareToSort;
  if (all) {
    for (std::uint32_t row = 0; row < index_.next_.size(); ++row) {
      if (!index_.IsVacant(row)) look_at(row);
    }
  } else {
    ColumnOf(*lead.condition).ForEach(lead.first, lead.last, look_at);
  }
  if (rows != nullptr) {
    const bool ascending = all || IsAscending(lead);
    Order(rows, begin, ascending);
    if (ascending && !all && lead.partner == nullptr) {
      tally->in_order[lead.condition->attribute] += std::min(count, limit_);
    }
  }
  if (query.size() > 1 && lead.rows > count) {
    tally->in_vain += lead.rows - count;
    if (lead.rows - count > tally->most) {
      tally->most = lead.rows - count;
      tally->query = &query;
    }
  }
  return count;
}

void IndexedLists::Order(Rows* rows, std::size_t begin, bool ascending) const {
  const auto from = rows->begin() + static_cast<std::ptrdiff_t>(begin);
  const auto is_made = [&](std::uint32_t row) { return !index_.IsLate(row); };
  const auto late = ascending ? std::partition_point(from, rows->end(), is_made)
                              : std::partition(from, rows->end(), is_made);
  const auto made = static_cast<std::uint64_t>(late - from);
  const auto kept = from + static_cast<std::ptrdiff_t>(std::min(made, limit_));
  if (!ascending) {
    if (kept != late) std::nth_element(from, kept, late);
    SortNumbers({from, kept}, index_.made_rows_);
  }
  const auto end = rows->erase(kept, late);  // where the late ones begin now
  if (end == rows->end()) return;
  SortByKey(end, rows->end());
  const std::uint64_t key_size = index_.key_size_;
  const auto first = rows->begin() + static_cast<std::ptrdiff_t>(begin);
  std::inplace_merge(first, end, rows->end(), [&](std::uint32_t x, std::uint32_t y) {
    return std::memcmp(index_.KeyOf(x), index_.KeyOf(y), key_size) < 0;
  });
  if (rows->size() - begin > limit_) rows->resize(begin + limit_);
}

void IndexedLists::SortByKey(Rows::iterator first, Rows::iterator last) const {
  struct Keyed {
    std::uint64_t prefix;  ///< the key's first bytes, as a number that has their order
    std::uint32_t row;
  };
  const std::uint64_t key_size = index_.key_size_;
  std::vector<Keyed> keyed;
  keyed.reserve(static_cast<std::size_t>(last - first));
  for (auto row = first; row != last; ++row) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t prefix = 0;
    std::memcpy(&prefix, index_.KeyOf(*row), std::min<std::uint64_t>(key_size, sizeof prefix));
    keyed.push_back({__builtin_bswap64(prefix), *row});
  }
  std::sort(keyed.begin(), keyed.end(), [&](const Keyed& x, const Keyed& y) {
    if (x.prefix != y.prefix) return x.prefix < y.prefix;
    return std::memcmp(index_.KeyOf(x.row), index_.KeyOf(y.row), key_size) < 0;
  });
  std::transform(keyed.begin(), keyed.end(), first, [](const Keyed& it) { return it.row; });
}

void IndexedLists::CopyRows(std::uint64_t count, std::byte* keys, std::byte* /*values*/,
                            ThreadPool* threads) const {
  const std::uint64_t key_size = index_.key_size_;
  threads->Run(parts_.size(), [&](std::size_t part) {
    std::uint64_t row = offsets_[part * kQueriesAtOnce];
    for (const std::uint32_t of_index : parts_[part]) {
      if (row >= count) return;
      std::memcpy(keys + row++ * key_size, index_.KeyOf(of_index), key_size);
    }
  });
}

}  // namespace gpm
