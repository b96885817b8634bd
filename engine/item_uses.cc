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
  constexpr std::size_t kAhead = 8;  // as many cache misses as overlap
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (i + kAhead < uses.size()) ranks_.Prefetch(uses[i + kAhead]);
    const std::uint64_t id = uses[i] & ~kKindMask;
    const auto kind = static_cast<UseKind>(uses[i] & kKindMask);
    if (kind == UseKind::kErased) {
      ranks_.Erase(id);
      continue;
    }
    if (policy_ == EvictionPolicy::kOldest) {
      // (One that was there when the store was opened stays unknown.)
      if (kind == UseKind::kUsed) continue;
      std::uint64_t& rank = ranks_.At(id);
      if (rank == 0 || kind == UseKind::kAdded) rank = batch;
      continue;
    }
    std::uint64_t& rank = ranks_.At(id);
    const std::uint64_t before = kind == UseKind::kAdded ? 0 : rank >> kBatchBits;
    rank = policy_ == EvictionPolicy::kLfu ? RankOf(before + 1, batch) : batch;
  }
}

std::vector<std::uint64_t> ItemUses::Rank(const std::vector<std::uint64_t>& ids) {
  constexpr std::uint64_t kFew = 1024;
  std::vector<std::uint64_t> ranks(ids.size());
  const MutexLock lock(mutex_);
  TakeEnded();
  constexpr std::size_t kAhead = 16;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) ranks_.Prefetch(ids[i + kAhead]);
    const std::uint64_t* const rank = std::as_const(ranks_).Find(ids[i]);
    ranks[i] = rank == nullptr ? 0 : *rank;
  }
  if (ranks_.size() > 2 * ids.size() + kFew) {
    WordMap kept;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ranks[i] != 0) kept.At(ids[i]) = ranks[i];
    }
    ranks_ = std::move(kept);
  }
  if (policy_ == EvictionPolicy::kLfu) {
    ranks_.ForEach([](std::uint64_t, std::uint64_t& rank) {
      rank = RankOf((rank >> kBatchBits) / 2, rank & kBatchMask);
    });
  }
  return ranks;
}

}  // namespace gpm
