#include "engine/item_uses.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "table/hash.h"
#include "table/operation.h"

namespace gpm {
namespace {

constexpr std::uint64_t kKindMask = 7;

// The rank of kLfu: uses, and below them the number of the batch that used it last.
constexpr std::uint32_t kBatchBits = 40;
constexpr std::uint64_t kBatchMask = (std::uint64_t{1} << kBatchBits) - 1;
constexpr std::uint64_t kMostUses = (std::uint64_t{1} << (64 - kBatchBits)) - 1;

std::uint64_t RankOf(std::uint64_t uses, std::uint64_t batch) {
  return std::min(uses, kMostUses) << kBatchBits | (batch & kBatchMask);
}

}  // namespace

std::uint64_t IdOfKey(const std::byte* key, std::uint32_t key_size) {
  constexpr std::uint64_t kSeed[2] = {0x243F6A8885A308D3, 0x13198A2E03707345};
  constexpr std::uint32_t kMostWords = 32;
  std::uint64_t words[kMostWords];
  const std::uint32_t count = (key_size + 7) / 8;
  words[count - 1] = 0;
  std::memcpy(words, key, key_size);
  return (HashKey(kSeed, words, count).h | (kKindMask + 1)) & ~kKindMask;
}

UseKind UseOf(Op op, Result result) {
  if (result == Result::kExists) return UseKind::kUsed;
  if (result != Result::kOk) return UseKind::kNone;
  switch (op) {
    case Op::kFind:
    case Op::kUpdate:
    case Op::kAccumulate:
      return UseKind::kUsed;
    case Op::kUpsert:
      return UseKind::kPut;
    case Op::kInsert:
    case Op::kFindOrInsert:
      return UseKind::kAdded;
    case Op::kErase:
      return UseKind::kErased;
  }
  return UseKind::kNone;
}

bool ItemUses::Wants(Op op) const {
  if (policy_ == EvictionPolicy::kOldest) return Inserts(op) || op == Op::kErase;
  return WantsAny();
}

std::uint64_t ItemUses::Begin() {
  const MutexLock lock(mutex_);
  running_.insert(begun_ + 1);
  return ++begun_;
}

void ItemUses::End(std::uint64_t batch, std::vector<std::uint64_t> uses) noexcept {
  const MutexLock lock(mutex_);
  running_.erase(batch);
  try {
    waiting_.emplace(batch, std::move(uses));
    TakeEnded();
  } catch (const std::bad_alloc&) {  // its items are as if used longer ago
  }
}

void ItemUses::Forget(std::uint64_t batch) noexcept {
  const MutexLock lock(mutex_);
  running_.erase(batch);
}

void ItemUses::TakeEnded() {
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    if (!running_.empty() && *running_.begin() < first->first) return;
    const auto ended = waiting_.extract(first);
    Take(ended.key(), ended.mapped());
  }
}

void ItemUses::Take(std::uint64_t batch, const std::vector<std::uint64_t>& uses) {
  constexpr std::size_t kFew = 4096;  // which are not worth waking threads for
  constexpr std::size_t kAhead = 8;   // as many cache misses as overlap
  const std::size_t parts =
      uses.size() < kFew ? 1 : std::min<std::size_t>(threads_.threads(), kMaps);
  threads_.Run(parts, [&](std::size_t part) GPM_NOT_CHECKED {
    const auto is_ours = [&](std::uint64_t use) { return MapOf(use) % parts == part; };
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (i + kAhead < uses.size() && is_ours(uses[i + kAhead])) {
        ranks_[MapOf(uses[i + kAhead])].Prefetch(uses[i + kAhead]);
      }
      if (is_ours(uses[i]) && uses[i] != 0) TakeOne(batch, uses[i]);
    }
  });
}

void ItemUses::TakeOne(std::uint64_t batch, std::uint64_t use) {
  const std::uint64_t id = use & ~kKindMask;
  const auto kind = static_cast<UseKind>(use & kKindMask);
  WordMap& ranks = ranks_[MapOf(id)];
  if (kind == UseKind::kErased) return ranks.Erase(id);
  if (policy_ == EvictionPolicy::kOldest) {
    // (One that was there when the store was opened stays unknown.)
    if (kind == UseKind::kUsed) return;
    std::uint64_t& rank = ranks.At(id);
    if (rank == 0 || kind == UseKind::kAdded) rank = batch;
    return;
  }
  std::uint64_t& rank = ranks.At(id);
  const std::uint64_t before = kind == UseKind::kAdded ? 0 : rank >> kBatchBits;
  rank = policy_ == EvictionPolicy::kLfu ? RankOf(before + 1, batch) : batch;
}

template <class IdOf>
std::vector<std::uint64_t> ItemUses::Look(std::uint64_t count, const IdOf& id_of) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 14;
  constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
  std::vector<std::uint64_t> ranks(count);
  threads_.Run((count + kPart - 1) / kPart, [&](std::size_t part) GPM_NOT_CHECKED {
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

std::vector<std::uint64_t> ItemUses::RanksOf(const std::vector<std::uint64_t>& ids) {
  const MutexLock lock(mutex_);
  TakeEnded();
  return Look(ids.size(), [&](std::uint64_t i) { return ids[i]; });
}

std::vector<std::uint64_t> ItemUses::Rank(const std::byte* keys, std::uint64_t stride,
                                          std::uint64_t count, std::uint32_t key_size) {
  constexpr std::uint64_t kFew = 1024;
  const auto id_of = [&](std::uint64_t i) { return IdOfKey(keys + i * stride, key_size); };
  const MutexLock lock(mutex_);
  TakeEnded();
  std::vector<std::uint64_t> ranks = Look(count, id_of);
  std::uint64_t known = 0;
  for (const WordMap& map : ranks_) known += map.size();
  if (known > 2 * count + kFew) {
    std::array<WordMap, kMaps> kept;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (ranks[i] != 0) kept[MapOf(id_of(i))].At(id_of(i)) = ranks[i];
    }
    ranks_ = std::move(kept);
  }
  if (policy_ == EvictionPolicy::kLfu) {
    threads_.Run(kMaps, [&](std::size_t map) GPM_NOT_CHECKED {
      ranks_[map].ForEach([](std::uint64_t, std::uint64_t& rank) {
        rank = RankOf((rank >> kBatchBits) / 2, rank & kBatchMask);
      });
    });
  }
  return ranks;
}

}  // namespace gpm
