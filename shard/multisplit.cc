#include "shard/multisplit.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace gpm {
namespace {

/// Below this, waking a thread takes longer than the rows do.
constexpr std::size_t kLeastRowsAPart = 4096;

std::size_t PartsOf(std::size_t rows, const ThreadPool& threads) {
  return std::clamp<std::size_t>(rows / kLeastRowsAPart, 1, threads.threads());
}

std::size_t BeginOf(std::size_t part, std::size_t parts, std::size_t rows) {
  return rows / parts * part + std::min(part, rows % parts);
}

/// Calls `copy(j, bytes)` for each row; the compiler sees the size of the commonest.
template <class Copy>
void CopyRows(std::size_t row_bytes, std::size_t rows, ThreadPool& threads, const Copy& copy) {
  const std::size_t parts = PartsOf(rows, threads);
  threads.Run(parts, [&](std::size_t part) {
    const std::size_t end = BeginOf(part + 1, parts, rows);
    const auto all = [&](auto bytes) {
      for (std::size_t j = BeginOf(part, parts, rows); j < end; ++j) copy(j, bytes);
    };
    if (row_bytes == 1) return all(std::integral_constant<std::size_t, 1>{});
    if (row_bytes == 8) return all(std::integral_constant<std::size_t, 8>{});
    all(row_bytes);
  });
}

}  // namespace

Split Multisplit(std::span<const std::byte> keys, std::uint32_t key_size,
                 const Partition& partition, ThreadPool& threads) {
  const std::size_t n = keys.size() / key_size;
  const std::size_t parts = PartsOf(n, threads);
  const std::size_t shards = partition.shards;
  Split split;
  split.starts.assign(shards + 1, 0);
  split.order.resize(n);
  std::vector<std::uint32_t> shard_of(n);
  // Of each part and shard: how many, then where the next one goes. Shards come first, and within
  // one the parts, so that the order is that of the batch.
  std::vector<std::uint64_t> next(parts * shards);
  threads.Run(parts, [&](std::size_t part) {
    std::vector<std::uint64_t> count(shards);  // its own lines of the CPU's cache
    const std::size_t end = BeginOf(part + 1, parts, n);
    for (std::size_t i = BeginOf(part, parts, n); i < end; ++i) {
      shard_of[i] = partition.Of(keys.data() + i * key_size, key_size);
      ++count[shard_of[i]];
    }
    std::copy(count.begin(), count.end(),
              next.begin() + static_cast<std::ptrdiff_t>(part * shards));
  });
  std::uint64_t begin = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    split.starts[shard] = begin;
    for (std::size_t part = 0; part < parts; ++part) {
      std::uint64_t& slot = next[part * shards + shard];
      const std::uint64_t count = slot;
      slot = begin;
      begin += count;
    }
  }
  split.starts[shards] = begin;
  threads.Run(parts, [&](std::size_t part) {
    std::vector<std::uint64_t> to(next.begin() + static_cast<std::ptrdiff_t>(part * shards),
                                  next.begin() + static_cast<std::ptrdiff_t>((part + 1) * shards));
    const std::size_t end = BeginOf(part + 1, parts, n);
    for (std::size_t i = BeginOf(part, parts, n); i < end; ++i) {
      split.order[to[shard_of[i]]++] = static_cast<std::uint32_t>(i);
    }
  });
  return split;
}

void GatherRows(std::span<const std::byte> from, std::size_t row_bytes,
                std::span<const std::uint32_t> order, std::span<std::byte> to,
                ThreadPool& threads) {
  CopyRows(row_bytes, order.size(), threads, [&](std::size_t j, auto bytes) {
    std::memcpy(to.data() + j * bytes, from.data() + order[j] * std::size_t{bytes}, bytes);
  });
}

void ScatterRows(std::span<const std::byte> from, std::size_t row_bytes,
                 std::span<const std::uint32_t> order, std::span<std::byte> to,
                 ThreadPool& threads) {
  CopyRows(row_bytes, order.size(), threads, [&](std::size_t j, auto bytes) {
    std::memcpy(to.data() + order[j] * std::size_t{bytes}, from.data() + j * bytes, bytes);
  });
}

}  // namespace gpm
