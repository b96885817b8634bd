#include "engine/match_lists.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "engine/item_parts.h"
#include "engine/parallel_sort.h"

namespace gpm {
namespace {

constexpr std::uint64_t kQueriesAtOnce = 256;
constexpr std::uint64_t kLongList = std::uint64_t{1} << 16;  // which all threads put in order

}  // namespace

MatchLists::MatchLists(const HeldItems& items, const QueryPlan& plan, const Shape& shape,
                       ThreadPool* threads)
    : items_(items), shape_(shape) {
  Parts found = Scan(plan, threads);
  if (!shape_.rows) return;
  Group(std::move(found));
  Order(threads);
}

MatchLists::Parts MatchLists::Scan(const QueryPlan& plan, ThreadPool* threads) {
  const std::uint64_t items = items_.count();
  Parts found(PartsOf(items, kItemsAtOnce));
  std::vector<std::atomic<std::uint64_t>> counts(shape_.queries);
  threads->Run(found.size(), [&](std::size_t part) {
    std::uint32_t last_query = 0;
    std::uint64_t of_last = 0;  // which its count has not got yet
    const std::uint64_t end = std::min(items, (part + 1) * kItemsAtOnce);
    for (std::uint64_t i = part * kItemsAtOnce; i < end; ++i) {
      if (i + kAhead < end) plan.Prefetch(items_.ValueOf(i + kAhead));
      plan.Ask(items_.ValueOf(i), [&](std::uint32_t query) {
        if (query != last_query) {
          if (of_last > 0) counts[last_query].fetch_add(of_last, std::memory_order_relaxed);
          last_query = query;
          of_last = 0;
        }
        ++of_last;
        if (shape_.rows) found[part].push_back({i, query});
      });
    }
    if (of_last > 0) counts[last_query].fetch_add(of_last, std::memory_order_relaxed);
  });
  counts_.assign(counts.begin(), counts.end());
  return found;
}

std::uint64_t MatchLists::PrefixOf(std::uint64_t item) const {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t prefix = 0;  // (Behind a key are zeros up to a whole word.)
  std::memcpy(&prefix, items_.KeyOf(item), sizeof prefix);
  return __builtin_bswap64(prefix);
}

/// Puts the matches of each query side by side.
void MatchLists::Group(Parts found) {
  std::vector<std::uint64_t> next(shape_.queries);
  std::uint64_t all = 0;
  for (std::uint64_t i = 0; i < shape_.queries; ++i) {
    next[i] = all;
    all += counts_[i];
  }
  rows_.resize(all);
  for (std::vector<Found>& part : found) {
    for (const Found& match : part) {
      rows_[next[match.query]++] = {PrefixOf(match.item), match.item};
    }
    part = {};
  }
}

/// Puts those of each query in order, and leaves out what is beyond the limit.
void MatchLists::Order(ThreadPool* threads) {
  const auto less = [&](const Row& a, const Row& b) {
    if (a.prefix != b.prefix) return a.prefix < b.prefix;
    return std::memcmp(items_.KeyOf(a.item), items_.KeyOf(b.item), shape_.key_size) < 0;
  };
  std::vector<std::uint64_t> starts(shape_.queries + 1);
  offsets_.resize(shape_.queries + 1);
  for (std::uint64_t i = 0; i < shape_.queries; ++i) {
    starts[i + 1] = starts[i] + counts_[i];
    offsets_[i + 1] = offsets_[i] + std::min(counts_[i], shape_.limit);
  }
  const auto order = [&](std::uint64_t i) {
    const auto first = rows_.begin() + static_cast<std::ptrdiff_t>(starts[i]);
    const auto last = rows_.begin() + static_cast<std::ptrdiff_t>(starts[i + 1]);
    const auto kept = first + static_cast<std::ptrdiff_t>(offsets_[i + 1] - offsets_[i]);
    if (kept != last) std::nth_element(first, kept, last, less);
    SortInParallel(first, kept, less, threads);
  };
  const auto is_long = [&](std::uint64_t i) { return counts_[i] > kLongList; };
  threads->Run(PartsOf(shape_.queries, kQueriesAtOnce), [&](std::size_t part) {
    const std::uint64_t end = std::min(shape_.queries, (part + 1) * kQueriesAtOnce);
    for (std::uint64_t i = part * kQueriesAtOnce; i < end; ++i) {
      if (!is_long(i)) order(i);
    }
  });
  for (std::uint64_t i = 0; i < shape_.queries; ++i) {
    if (is_long(i)) order(i);
  }
  for (std::uint64_t i = 0; i < shape_.queries; ++i) {
    if (starts[i] == offsets_[i]) continue;
    std::copy_n(rows_.begin() + static_cast<std::ptrdiff_t>(starts[i]),
                offsets_[i + 1] - offsets_[i],
                rows_.begin() + static_cast<std::ptrdiff_t>(offsets_[i]));
  }
  rows_.resize(offsets_.back());
}

void MatchLists::CopyRows(std::uint64_t count, std::byte* keys, std::byte* values,
                          ThreadPool* threads) const {
  const std::uint64_t key_size = shape_.key_size;
  const std::uint64_t value_size = shape_.value_size;
  threads->Run(PartsOf(count, kItemsAtOnce), [&](std::size_t part) {
    const std::uint64_t end = std::min(count, (part + 1) * kItemsAtOnce);
    for (std::uint64_t i = part * kItemsAtOnce; i < end; ++i) {
      const std::uint64_t item = rows_[i].item;
      std::memcpy(keys + i * key_size, items_.KeyOf(item), key_size);
      if (values == nullptr) continue;
      if (i + kAhead < end) __builtin_prefetch(items_.ValueOf(rows_[i + kAhead].item));
      std::memcpy(values + i * value_size, items_.ValueOf(item), value_size);
    }
  });
}

}  // namespace gpm
