#include "engine/attribute_index.h"

#include <algorithm>
#include <cstring>

#include "engine/match_lists.h"
#include "engine/parallel_sort.h"
#include "engine/query_plan.h"

namespace gpm {
namespace {

constexpr std::uint64_t kQueriesAtOnce = 1024;
constexpr std::uint64_t kItemsAtOnce = std::uint64_t{1} << 14;
/// To put ranks in order takes longer than to look at so many times as many items.
constexpr std::uint64_t kShareToSort = 32;

std::uint64_t PartsOf(std::uint64_t count, std::uint64_t at_once) {
  return (count + at_once - 1) / at_once;
}

bool IsMet(const Condition& condition, std::uint64_t number) {
  return condition.least <= number && number <= condition.most;
}

}  // namespace

std::uint64_t AttributeIndex::BytesFor(std::uint64_t items, std::uint32_t key_size,
                                       std::size_t attributes) {
  return items * (key_size + attributes * (2 * sizeof(std::uint64_t) + sizeof(std::uint32_t)));
}

AttributeIndex::AttributeIndex(const HeldItems& items, std::uint32_t key_size,
                               std::span<const Attribute> attributes, ThreadPool* threads)
    : version_(items.version()),
      count_(items.count()),
      key_size_(key_size),
      columns_(attributes.size()) {
  // All items, in the order of their keys.
  const Query all;
  const MatchLists lists(items, QueryPlan({&all, 1}, attributes),
                         {.queries = 1, .key_size = key_size, .limit = count_}, threads);
  keys_.resize(count_ * key_size);
  lists.CopyRows(count_, keys_.data(), nullptr, threads);
  for (Column& column : columns_) column.by_rank.resize(count_);
  threads->Run(PartsOf(count_, kItemsAtOnce), [&](std::size_t part) {
    constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
    const std::uint64_t end = std::min(count_, (part + 1) * kItemsAtOnce);
    for (std::uint64_t rank = part * kItemsAtOnce; rank < end; ++rank) {
      for (std::size_t a = 0; a < attributes.size(); ++a) {
        const Attribute& attribute = attributes[a];
        if (rank + kAhead < end) {
          __builtin_prefetch(items.ValueOf(lists.ItemOf(rank + kAhead)) + attribute.offset);
        }
        std::memcpy(&columns_[a].by_rank[rank],
                    items.ValueOf(lists.ItemOf(rank)) + attribute.offset, attribute.bytes);
      }
    }
  });
  struct Entry {
    std::uint64_t number;
    std::uint32_t rank;
  };
  std::vector<Entry> entries(count_);
  for (Column& column : columns_) {
    for (std::uint64_t rank = 0; rank < count_; ++rank) {
      entries[rank] = {column.by_rank[rank], static_cast<std::uint32_t>(rank)};
    }
    SortInParallel(
        entries.begin(), entries.end(),
        [](const Entry& x, const Entry& y) {
          return x.number != y.number ? x.number < y.number : x.rank < y.rank;
        },
        threads);
    column.sorted.reserve(count_);
    column.ranks.reserve(count_);
    for (const Entry& entry : entries) {
      column.sorted.push_back(entry.number);
      column.ranks.push_back(entry.rank);
    }
  }
}

IndexedLists::IndexedLists(const AttributeIndex& index, std::span<const Query> queries, bool rows,
                           std::uint64_t limit, ThreadPool* threads)
    : index_(index), limit_(limit), counts_(queries.size()) {
  parts_.resize(rows ? PartsOf(queries.size(), kQueriesAtOnce) : 0);
  threads->Run(PartsOf(queries.size(), kQueriesAtOnce), [&](std::size_t part) {
    const std::uint64_t end = std::min<std::uint64_t>(queries.size(), (part + 1) * kQueriesAtOnce);
    for (std::uint64_t i = part * kQueriesAtOnce; i < end; ++i) {
      counts_[i] = Ask(queries[i], rows ? &parts_[part] : nullptr);
    }
  });
  if (!rows) return;
  offsets_.resize(queries.size() + 1);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    offsets_[i + 1] = offsets_[i] + std::min(counts_[i], limit);
  }
}

IndexedLists::Lead IndexedLists::LeadOf(const Query& query) const {
  Lead lead;
  lead.last = index_.count_;
  for (const Condition& condition : query) {
    if (condition.least > condition.most) return {&condition, 0, 0};
    const std::vector<std::uint64_t>& sorted = index_.columns_[condition.attribute].sorted;
    const auto first = std::lower_bound(sorted.begin(), sorted.end(), condition.least);
    const auto last = std::upper_bound(first, sorted.end(), condition.most);
    if (lead.condition != nullptr &&
        static_cast<std::uint64_t>(last - first) >= lead.last - lead.first) {
      continue;
    }
    lead = {&condition, static_cast<std::uint64_t>(first - sorted.begin()),
            static_cast<std::uint64_t>(last - sorted.begin())};
  }
  return lead;
}

std::uint64_t IndexedLists::Ask(const Query& query, std::vector<std::uint32_t>* ranks) const {
  const Lead lead = LeadOf(query);
  if (ranks == nullptr && query.size() <= 1) return lead.last - lead.first;
  // Many ranks are met in their order where all are looked at, which is soon done.
  const bool all =
      lead.condition == nullptr || lead.last - lead.first > index_.count_ / kShareToSort;
  const std::uint64_t first = all ? 0 : lead.first;
  const std::uint64_t last = all ? index_.count_ : lead.last;
  const std::size_t begin = ranks == nullptr ? 0 : ranks->size();
  std::uint64_t count = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    const auto rank =
        all ? static_cast<std::uint32_t>(i) : index_.columns_[lead.condition->attribute].ranks[i];
    const bool met = std::all_of(query.begin(), query.end(), [&](const Condition& condition) {
      return IsMet(condition, index_.columns_[condition.attribute].by_rank[rank]);
    });
    if (!met) continue;
    ++count;
    if (ranks != nullptr) ranks->push_back(rank);
  }
  if (ranks == nullptr) return count;
  const auto from = ranks->begin() + static_cast<std::ptrdiff_t>(begin);
  const auto kept = from + static_cast<std::ptrdiff_t>(std::min(count, limit_));
  if (!all && lead.condition->least != lead.condition->most) {
    if (kept != ranks->end()) std::nth_element(from, kept, ranks->end());
    std::sort(from, kept);
  }
  ranks->erase(kept, ranks->end());
  return count;
}

void IndexedLists::CopyRows(std::uint64_t count, std::byte* keys, std::byte* /*values*/,
                            ThreadPool* threads) const {
  const std::uint64_t key_size = index_.key_size_;
  threads->Run(parts_.size(), [&](std::size_t part) {
    std::uint64_t row = offsets_[part * kQueriesAtOnce];
    for (const std::uint32_t rank : parts_[part]) {
      if (row == count) return;
      std::memcpy(keys + row++ * key_size, index_.keys_.data() + rank * key_size, key_size);
    }
  });
}

}  // namespace gpm
