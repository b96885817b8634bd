#include "shard/multisplit.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "shard/row_copy.h"
#include "shard/row_parts.h"

namespace gpm {
namespace {

/// What it takes to divide a key, in bytes that could be copied meanwhile.
constexpr std::size_t kBytesToDivide = 40;
/// What it takes to find a row's place.
constexpr std::size_t kBytesToFind = 8;

/// Arrays from this size on are larger than a CPU's own caches.
constexpr std::size_t kLeastStreamed = std::size_t{32} << 20;
constexpr std::size_t kLineBytes = 64;

/// Of a place that is another operation's.
constexpr std::uint32_t kShared = std::uint32_t{1} << 31;
constexpr std::uint32_t kNone = 0xFFFFFFFF;

/// Makes room, but none less: what is there need not be set to zero for each batch.
/// @param more that is made room for, for larger batches
template <class Element>
void Reserve(std::size_t n, std::size_t more, std::vector<Element>* elements) {
  if (elements->size() >= n) return;
  *elements = {};
  elements->resize(n + more);
}

bool AreMultiples(const std::byte* rows, std::size_t row_bytes, std::size_t of) {
  return (reinterpret_cast<std::uintptr_t>(rows) | row_bytes) % of == 0;
}

/// Calls `all(bytes)`; the compiler sees the sizes of the commonest rows.
template <class All>
void WithSize(std::size_t bytes, const All& all) {
  if (bytes == 1) return all(std::integral_constant<std::size_t, 1>{});
  if (bytes == 8) return all(std::integral_constant<std::size_t, 8>{});
  all(bytes);
}

/// Which operations stand for all on their keys: a hash table of their numbers, for several
/// threads.
template <class KeyBytes>
struct FirstOfKey {
  const std::byte* keys;
  KeyBytes key_size;
  std::uint32_t* slots;
  std::uint64_t mask;

  const std::byte* Key(std::uint32_t i) const { return keys + std::size_t{i} * key_size; }
  /// Of the key of operation i: whichever came first.
  std::uint32_t Of(std::uint32_t i, std::uint64_t hash) const {
    for (std::uint64_t at = hash & mask;; at = (at + 1) & mask) {
      // (Relaxed: nobody writes the keys that the numbers stand for.)
      const std::atomic_ref<std::uint32_t> slot(slots[at]);
      std::uint32_t other = slot.load(std::memory_order_relaxed);
      if (other == kNone && slot.compare_exchange_strong(other, i, std::memory_order_relaxed)) {
        return i;
      }
      if (std::memcmp(Key(i), Key(other), key_size) == 0) return other;
    }
  }
};

}  // namespace

void Multisplit::Divide(std::span<const std::byte> keys, std::uint32_t key_size,
                        const Partition& partition, bool once) {
  n_ = keys.size() / key_size;
  Reserve(n_, n_ / 8, &shard_of_);
  Reserve(n_, n_ / 8, &places_);
  const std::size_t slots = once ? std::bit_ceil(2 * n_) : 0;
  Reserve(slots, 0, &firsts_);
  RowParts::Of(slots, sizeof kNone, threads_)
      .Run(threads_, [&](std::size_t, std::size_t begin, std::size_t end) {
        std::fill(firsts_.data() + begin, firsts_.data() + end, kNone);
      });
  const RowParts parts = RowParts::Of(n_, kBytesToDivide, threads_);
  // A part's counters have lines of the CPU's cache of their own.
  const std::size_t stride = (partition.shards + 7) / 8 * 8;
  std::vector<std::uint64_t> counts(parts.count * stride);
  WithSize(key_size, [&](auto bytes) {
    const FirstOfKey<decltype(bytes)> first_of{keys.data(), bytes, firsts_.data(), slots - 1};
    parts.Run(threads_, [&](std::size_t part, std::size_t begin, std::size_t end) {
      Number(first_of, partition, once, begin, end, counts.data() + part * stride);
    });
  });
  starts_.assign(partition.shards + 1, 0);
  for (std::size_t shard = 0; shard < partition.shards; ++shard) {
    std::uint64_t before = 0;  // in the parts before
    for (std::size_t part = 0; part < parts.count; ++part) {
      before += std::exchange(counts[part * stride + shard], before);
    }
    starts_[shard + 1] = starts_[shard] + before;
  }
  if (parts.count > 1) {
    parts.Run(threads_, [&](std::size_t part, std::size_t begin, std::size_t end) {
      const std::uint64_t* const before = counts.data() + part * stride;
      for (std::size_t i = begin; i < end; ++i) {
        if ((places_[i] & kShared) != 0) continue;
        places_[i] += static_cast<std::uint32_t>(before[shard_of_[i]]);
      }
    });
  }
  if (!once) return;
  parts.Run(threads_, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if ((places_[i] & kShared) != 0) places_[i] = places_[places_[i] & ~kShared] | kShared;
    }
  });
}

template <class First>
void Multisplit::Number(const First& first_of, const Partition& partition, bool once,
                        std::size_t begin, std::size_t end, std::uint64_t* counts) {
  // The table is larger than the caches: some of its lines are fetched at once.
  constexpr std::size_t kAhead = 16;
  std::array<std::uint64_t, kAhead> hashes;
  for (; begin < end; begin += kAhead) {
    const std::size_t some = std::min(kAhead, end - begin);
    for (std::size_t k = 0; k < some; ++k) {
      const auto i = static_cast<std::uint32_t>(begin + k);
      const KeyHash hash = partition.HashOf(first_of.Key(i), first_of.key_size);
      shard_of_[i] = static_cast<std::uint16_t>(partition.OfHash(hash));
      hashes[k] = hash.g;
      if (once) __builtin_prefetch(first_of.slots + (hash.g & first_of.mask));
    }
    for (std::size_t k = 0; k < some; ++k) {
      const auto i = static_cast<std::uint32_t>(begin + k);
      const std::uint32_t first = once ? first_of.Of(i, hashes[k]) : i;
      places_[i] =
          first == i ? static_cast<std::uint32_t>(counts[shard_of_[i]]++) : first | kShared;
    }
  }
}

std::vector<std::byte*> Multisplit::RowsOf(Parts parts, std::size_t row_bytes) const {
  std::vector<std::byte*> rows;
  std::size_t part = 0;
  std::uint64_t first = 0;  // place of the part
  for (std::size_t shard = 0; shard + 1 < starts_.size(); ++shard) {
    while (part + 1 < parts.size() && starts_[shard] >= first + parts[part].size() / row_bytes) {
      first += parts[part++].size() / row_bytes;
    }
    rows.push_back(parts[part].data() + (starts_[shard] - first) * row_bytes);
  }
  return rows;
}

template <class Move>
void Multisplit::ForRows(std::size_t row_bytes, bool streams, const Move& move) {
  const auto by = [&](auto copy) {
    RowParts::Of(n_, row_bytes + kBytesToFind, threads_)
        .Run(threads_, [&](std::size_t, std::size_t begin, std::size_t end) {
          WithSize(row_bytes, [&](auto bytes) { move(begin, end, bytes, copy); });
          copy.Finish();
        });
  };
  if (streams && n_ * row_bytes >= kLeastStreamed) return by(StreamedCopy{});
  by(PlainCopy{});
}

// (What the loops read is in variables of their own: rows are bytes, which for the compiler might
// be part of anything else.)

void Multisplit::Gather(std::span<const std::byte> from, std::size_t row_bytes, Parts to,
                        const WantedRows& wanted) {
  const std::vector<std::byte*> rows_of = RowsOf(to, row_bytes);
  // Lines of several rows would be written in pieces.
  const bool lines = std::all_of(rows_of.begin(), rows_of.end(), [&](const std::byte* rows) {
    return AreMultiples(rows, row_bytes, kLineBytes);
  });
  ForRows(
      row_bytes, lines,
      [from = from.data(), rows = rows_of.data(), shard_of = shard_of_.data(),
       places = places_.data(), wanted](std::size_t begin, std::size_t end, auto bytes, auto copy) {
        for (std::size_t i = begin; i < end; ++i) {
          if ((places[i] & kShared) != 0 || !wanted.Has(i)) continue;
          copy(rows[shard_of[i]] + places[i] * std::size_t{bytes}, from + i * bytes, bytes);
        }
      });
}

void Multisplit::Scatter(Parts from, std::size_t row_bytes, std::span<std::byte> to,
                         const WantedRows& wanted) {
  const std::vector<std::byte*> rows_of = RowsOf(from, row_bytes);
  ForRows(
      row_bytes, AreMultiples(to.data(), row_bytes, 16),
      [to = to.data(), rows = rows_of.data(), shard_of = shard_of_.data(), places = places_.data(),
       wanted](std::size_t begin, std::size_t end, auto bytes, auto copy) {
        for (std::size_t i = begin; i < end; ++i) {
          if (!wanted.Has(i)) continue;
          const std::size_t place = places[i] & ~kShared;
          copy(to + i * bytes, rows[shard_of[i]] + place * bytes, bytes);
        }
      });
}

}  // namespace gpm
