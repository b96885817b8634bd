#include "shard/merge_matches.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace gpm {
namespace {

/// The next row of a query in what a shard gave.
struct Cursor {
  const SearchResult* part;
  std::uint64_t row;
  std::uint64_t end;
};

void Append(const std::vector<std::byte>& rows, std::uint64_t row, std::uint64_t row_bytes,
            std::vector<std::byte>* to) {
  const auto from = rows.begin() + static_cast<std::ptrdiff_t>(row * row_bytes);
  to->insert(to->end(), from, from + static_cast<std::ptrdiff_t>(row_bytes));
}

}  // namespace

SearchResult MergeMatches(std::span<const SearchResult> parts, const SearchOptions& options,
                          std::uint32_t key_size, std::uint32_t value_size) {
  SearchResult all;
  all.counts.resize(parts.front().counts.size());
  std::uint64_t most_rows = 0;
  for (const SearchResult& part : parts) {
    for (std::size_t i = 0; i < all.counts.size(); ++i) all.counts[i] += part.counts[i];
    if (options.keys) most_rows += part.offsets.back();
  }
  if (!options.keys) return all;
  all.keys.reserve(most_rows * key_size);
  if (options.values) all.values.reserve(most_rows * value_size);
  all.offsets.push_back(0);
  const auto is_behind = [key_size](const Cursor& a, const Cursor& b) {
    return std::memcmp(a.part->keys.data() + a.row * key_size,
                       b.part->keys.data() + b.row * key_size, key_size) > 0;
  };
  std::vector<Cursor> heap;  // the one with the least key in front
  for (std::size_t i = 0; i < all.counts.size(); ++i) {
    heap.clear();
    for (const SearchResult& part : parts) {
      if (part.offsets[i] < part.offsets[i + 1]) {
        heap.push_back({&part, part.offsets[i], part.offsets[i + 1]});
      }
    }
    std::make_heap(heap.begin(), heap.end(), is_behind);
    std::uint64_t left = options.limit;
    for (; !heap.empty() && left > 0; --left) {
      std::pop_heap(heap.begin(), heap.end(), is_behind);
      Cursor& least = heap.back();
      Append(least.part->keys, least.row, key_size, &all.keys);
      if (options.values) Append(least.part->values, least.row, value_size, &all.values);
      if (++least.row == least.end) {
        heap.pop_back();
      } else {
        std::push_heap(heap.begin(), heap.end(), is_behind);
      }
    }
    all.offsets.push_back(all.keys.size() / key_size);
  }
  return all;
}

}  // namespace gpm
