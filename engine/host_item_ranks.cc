#include "engine/host_item_ranks.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/maintenance.h"
#include "table/operation.h"

namespace gpm {
namespace {

constexpr unsigned kMostThreads = 16;
/// A share of 1 in so many of the items is chosen at once, where their order stays.
constexpr std::uint64_t kChosenShare = 2;

/// Whether items that were not used keep their order: all others come behind them.
bool KeepsOrder(EvictionPolicy policy) {
  return policy == EvictionPolicy::kLru || policy == EvictionPolicy::kOldest;
}

}  // namespace

/// Ids with their kinds, in batch order.
struct HostItemRanks::Uses : NotedUses {
  std::vector<std::uint64_t> words;
};

struct HostItemRanks::Keys : KeysOfBatch {
  WordMap ids;  ///< of those that are there
};

HostItemRanks::HostItemRanks(const RankedItems& of, BatchExecutor& executor)
    : of_(of),
      executor_(executor),
      threads_(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads)),
      victims_(of.key_size, threads_) {}

std::unique_ptr<NotedUses> HostItemRanks::Note(const Batch& batch) {
  constexpr std::uint64_t kPart = 4096;
  const std::uint64_t n = batch.results.size();
  std::vector<std::byte> copies[3];
  const std::byte* const keys = executor_.OnHost(batch.keys.data(), batch.keys.size(), &copies[0]);
  const auto* const results =
      reinterpret_cast<const Result*>(executor_.OnHost(batch.results.data(), n, &copies[1]));
  const auto* const ops =
      reinterpret_cast<const Op*>(executor_.OnHost(batch.ops.data(), batch.ops.size(), &copies[2]));
  auto uses = std::make_unique<Uses>();
  uses->words.resize(n);
  threads_.Run((n + kPart - 1) / kPart, [&](std::size_t part) {
    for (std::uint64_t i = part * kPart; i < std::min(n, (part + 1) * kPart); ++i) {
      const UseKind kind = UseOf(batch.ops.empty() ? batch.op : ops[i], results[i]);
      if (kind == UseKind::kNone) continue;
      uses->words[i] =
          IdOfKey(keys + i * of_.key_size, of_.key_size) | static_cast<std::uint64_t>(kind);
    }
  });
  return uses;
}

void HostItemRanks::Take(std::uint64_t batch, const NotedUses& noted) {
  constexpr std::size_t kFew = 4096;  // which are not worth waking threads for
  constexpr std::size_t kAhead = 8;   // as many cache misses as overlap
  const std::vector<std::uint64_t>& uses = static_cast<const Uses&>(noted).words;
  const std::size_t parts =
      uses.size() < kFew ? 1 : std::min<std::size_t>(threads_.threads(), kMaps);
  threads_.Run(parts, [&](std::size_t part) {
    const auto is_ours = [&](std::uint64_t use) { return MapOf(use) % parts == part; };
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (i + kAhead < uses.size() && is_ours(uses[i + kAhead])) {
        ranks_[MapOf(uses[i + kAhead])].Prefetch(uses[i + kAhead] & ~kUseKindMask);
      }
      if (is_ours(uses[i]) && uses[i] != 0) TakeOne(batch, uses[i]);
    }
  });
}

void HostItemRanks::TakeOne(std::uint64_t batch, std::uint64_t use) {
  const std::uint64_t id = use & ~kUseKindMask;
  const auto kind = static_cast<UseKind>(use & kUseKindMask);
  WordMap& ranks = ranks_[MapOf(id)];
  if (kind == UseKind::kErased) return ranks.Erase(id);
  if (of_.capacity.policy == EvictionPolicy::kOldest) {
    // (One that was there when the store was opened stays unknown.)
    if (kind == UseKind::kUsed) return;
    std::uint64_t& rank = ranks.At(id);
    if (rank == 0 || kind == UseKind::kAdded) rank = batch;
    return;
  }
  std::uint64_t& rank = ranks.At(id);
  const std::uint64_t before = kind == UseKind::kAdded ? 0 : rank >> kRankBatchBits;
  rank = of_.capacity.policy == EvictionPolicy::kLfu ? RankOfUses(before + 1, batch) : batch;
}

std::unique_ptr<KeysOfBatch> HostItemRanks::LookAt(const Batch& batch, const Find& find) {
  const std::uint64_t n = batch.results.size();
  std::vector<Result> results(n);
  find(results);
  std::vector<std::byte> copies[2];
  const std::byte* key = executor_.OnHost(batch.keys.data(), batch.keys.size(), &copies[0]);
  const auto* const ops =
      reinterpret_cast<const Op*>(executor_.OnHost(batch.ops.data(), batch.ops.size(), &copies[1]));
  auto keys = std::make_unique<Keys>();
  WordMap missing;
  for (std::uint64_t i = 0; i < n; ++i, key += of_.key_size) {
    const std::uint64_t id = IdOfKey(key, of_.key_size);
    if (results[i] == Result::kOk) {
      keys->ids.At(id) = 1;
    } else if (Inserts(batch.ops.empty() ? batch.op : ops[i])) {
      missing.At(id) = 1;
    }
  }
  keys->there = keys->ids.size();
  keys->missing = missing.size();
  return keys;
}

template <class IdOf>
std::vector<std::uint64_t> HostItemRanks::Look(std::uint64_t count, const IdOf& id_of) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 14;
  constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
  std::vector<std::uint64_t> ranks(count);
  threads_.Run((count + kPart - 1) / kPart, [&](std::size_t part) {
    const std::uint64_t end = std::min(count, (part + 1) * kPart);
    std::uint64_t ids[kAhead];
    for (std::uint64_t first = part * kPart; first < end; first += kAhead) {
      const std::uint64_t n = std::min(kAhead, end - first);
      for (std::uint64_t i = 0; i < n; ++i) {
        ids[i] = id_of(first + i);
        ranks_[MapOf(ids[i])].Prefetch(ids[i]);
      }
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t* const rank = std::as_const(ranks_[MapOf(ids[i])]).Find(ids[i]);
        ranks[first + i] = rank == nullptr ? 0 : *rank;
      }
    }
  });
  return ranks;
}

std::vector<std::uint64_t> HostItemRanks::Rank(const std::byte* keys, std::uint64_t stride,
                                               std::uint64_t count) {
  const auto id_of = [&](std::uint64_t i) { return IdOfKey(keys + i * stride, of_.key_size); };
  std::vector<std::uint64_t> ranks = Look(count, id_of);
  std::uint64_t known = 0;
  for (const WordMap& map : ranks_) known += map.size();
  if (known > kMostRanksOfItem * count + kFewRanks) {
    std::array<WordMap, kMaps> kept;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (ranks[i] != 0) kept[MapOf(id_of(i))].At(id_of(i)) = ranks[i];
    }
    ranks_ = std::move(kept);
  }
  if (of_.capacity.policy == EvictionPolicy::kLfu) {
    threads_.Run(kMaps, [&](std::size_t map) {
      ranks_[map].ForEach([](std::uint64_t, std::uint64_t& rank) {
        rank = RankOfUses((rank >> kRankBatchBits) / 2, rank);
      });
    });
  }
  return ranks;
}

void HostItemRanks::ReadScores(TableCopy* items) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 14;
  constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
  items->Fetch();
  scores_.assign(items->items, 0);
  const auto place = [&](std::uint64_t i) {
    const std::byte* const value = of_.cells == nullptr
                                       ? reinterpret_cast<const std::byte*>(items->references + i)
                                       : of_.cells + items->references[i];
    return value + of_.capacity.score_offset;
  };
  threads_.Run((items->items + kAtOnce - 1) / kAtOnce, [&](std::size_t part) {
    const std::uint64_t end = std::min(items->items, (part + 1) * kAtOnce);
    for (std::uint64_t i = part * kAtOnce; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(place(i + kAhead));
      std::memcpy(&scores_[i], place(i), of_.capacity.score_bytes);
    }
  });
}

std::vector<std::byte> HostItemRanks::ChooseAgain(std::uint64_t wanted, const KeysOfBatch* kept) {
  if (victims_.empty()) return {};
  const auto ranks_of = [&](const std::vector<std::uint64_t>& ids) {
    return Look(ids.size(), [&](std::uint64_t i) { return ids[i]; });
  };
  const WordMap none;
  return victims_.Take(wanted, kept == nullptr ? none : static_cast<const Keys*>(kept)->ids,
                       ranks_of);
}

std::vector<std::byte> HostItemRanks::Choose(TableCopy* items, std::uint64_t wanted,
                                             const KeysOfBatch* kept) {
  const bool by_score = of_.capacity.policy == EvictionPolicy::kScore;
  const bool stay = KeepsOrder(of_.capacity.policy);
  const std::uint64_t stride = std::uint64_t{8} * ((of_.key_size + 7) / 8);
  if (!by_score) items->Fetch();
  const auto* const keys = reinterpret_cast<const std::byte*>(items->keys);
  std::vector<std::uint64_t> ranks =
      by_score ? std::exchange(scores_, {}) : Rank(keys, stride, items->items);
  const WordMap none;
  const WordMap& ids = kept == nullptr ? none : static_cast<const Keys*>(kept)->ids;
  std::uint64_t seen = wanted + ids.size();
  if (stay) seen = std::max(seen, items->items / kChosenShare);
  victims_.Choose({keys, stride, ranks}, seen);
  std::vector<std::byte> chosen = victims_.Take(wanted, ids, nullptr);
  // (Of one without a rank nobody could tell whether it is still there.)
  if (!stay || victims_.empty() || victims_.NextRank() == 0) victims_.Clear();
  return chosen;
}

}  // namespace gpm
