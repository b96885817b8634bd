// How a store with a capacity makes way for a batch (StoreImpl::MakeWay).

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/profiler_range.h"
#include "engine/snapshot.h"
#include "engine/store_impl.h"
#include "engine/word_map.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"
#include "table/operation.h"

namespace gpm {
namespace {

/// Of the capacity, a share of 1 in so many is evicted beyond what a batch needs, so that looking
/// at all items, which an eviction takes, is paid for by so many inserts.
constexpr std::uint64_t kSlackShare = 16;
/// Rows of evicted values that are read at once.
constexpr std::uint64_t kRowsBytes = 64 << 20;

/// A share of 1 in so many of the items is chosen at once, where their order stays.
constexpr std::uint64_t kChosenShare = 2;

/// Whether items that were not used keep their order: all others come behind them.
bool KeepsOrder(EvictionPolicy policy) {
  return policy == EvictionPolicy::kLru || policy == EvictionPolicy::kOldest;
}

/// The scores of all items of a copy.
std::vector<std::uint64_t> Scores(const TableCopy& copy, const Capacity& capacity,
                                  const std::byte* pool, bool inline_values, ThreadPool* threads) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 14;
  constexpr std::uint64_t kAhead = 16;  // as many cache misses as overlap
  std::vector<std::uint64_t> scores(copy.items);
  const auto place = [&](std::uint64_t i) {
    const std::byte* const value = inline_values
                                       ? reinterpret_cast<const std::byte*>(copy.references + i)
                                       : pool + copy.references[i];
    return value + capacity.score_offset;
  };
  threads->Run((copy.items + kAtOnce - 1) / kAtOnce, [&](std::size_t part) {
    const std::uint64_t end = std::min(copy.items, (part + 1) * kAtOnce);
    for (std::uint64_t i = part * kAtOnce; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(place(i + kAhead));
      std::memcpy(&scores[i], place(i), capacity.score_bytes);
    }
  });
  return scores;
}

}  // namespace

/// The keys of a batch: those that are there, and how many it may add.
struct StoreImpl::BatchKeys {
  WordMap there;
  std::uint64_t missing = 0;  ///< different ones
};

StoreImpl::BatchKeys StoreImpl::LookAtKeys(const Batch& batch, Stream stream) {
  const std::uint64_t n = batch.results.size();
  std::vector<Result> results(n);
  Wait(Run({.op = Op::kFind, .keys = batch.keys, .results = results}, stream));
  std::vector<std::byte> copies[2];
  const std::byte* key = executor_->OnHost(batch.keys.data(), batch.keys.size(), &copies[0]);
  const auto* const ops =
      batch.ops.empty()
          ? nullptr
          : reinterpret_cast<const Op*>(executor_->OnHost(batch.ops.data(), n, &copies[1]));
  BatchKeys keys;
  WordMap missing;
  for (std::uint64_t i = 0; i < n; ++i, key += key_size_) {
    const std::uint64_t id = IdOfKey(key, key_size_);
    if (results[i] == Result::kOk) {
      keys.there.At(id) = 1;
    } else if (ops == nullptr || Inserts(ops[i])) {
      missing.At(id) = 1;
    }
  }
  keys.missing = missing.size();
  return keys;
}

void StoreImpl::MakeWay(const Batch* batch, std::uint64_t may_add, Stream stream,
                        Evicted* evicted) {
  const std::uint64_t capacity = bound_->capacity().items;
  const auto items = [&] {
    const Admission::Entered entered(admission_);
    return space_.items();
  };
  health_.Check();
  if (items() + bound_->reserved() + may_add <= capacity) return;
  {  // What it evicts must not hang on how far the batches before it have come.
    const Admission::Alone alone(admission_, Admission::Telling::kLater);
    FinishBatches();
  }
  const ProfilerRange range("make way");
  const Clock::time_point start = Clock::now();
  BatchKeys keys;
  if (batch != nullptr) {
    keys = LookAtKeys(*batch, stream);
  } else {
    keys.missing = may_add;
  }
  const std::uint64_t there = items();
  if (there + keys.missing <= capacity) return;
  if (keys.there.size() + keys.missing > capacity) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch: it has {} different keys, which is more than the store's "
                            "capacity of {} items; split it",
                            keys.there.size() + keys.missing, capacity));
  }
  const std::uint64_t needed = there + keys.missing - capacity;
  std::uint64_t wanted = needed + capacity / kSlackShare;
  if (evicted != nullptr) {
    const std::uint64_t room = evicted->keys.size() / key_size_;
    if (needed > room) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} items have to be evicted, and there is room for {}", needed, room));
    }
    wanted = std::min(wanted, room);
  }
  std::uint64_t count = Evict(ChooseVictims(wanted, keys.there), evicted);
  if (const std::uint64_t now = items() + keys.missing; now > capacity) {
    // Kernels erased some that had been chosen before.
    bound_->victims().Clear();
    count += Evict(ChooseVictims(now - capacity, keys.there), evicted);
  }
  // What a scope adds has no rank: it is not among those that were chosen.
  if (batch == nullptr) bound_->victims().Clear();
  const double seconds = SecondsSince(start);
  bound_->Count(count, seconds);
}

std::vector<std::byte> StoreImpl::ChooseVictims(std::uint64_t wanted, const WordMap& kept) {
  Victims& victims = bound_->victims();
  if (!victims.empty()) {
    std::vector<std::byte> chosen = victims.Take(
        wanted, kept,
        [&](const std::vector<std::uint64_t>& ids) { return bound_->uses().RanksOf(ids); });
    if (chosen.size() == wanted * key_size_) return chosen;
  }
  LookAtItems(wanted + kept.size());
  std::vector<std::byte> chosen = victims.Take(wanted, kept, nullptr);
  // (Of one without a rank nobody could tell whether it is still there.)
  const bool stay = KeepsOrder(bound_->capacity().policy) && !victims.empty();
  if (!stay || victims.NextRank() == 0) victims.Clear();
  return chosen;
}

void StoreImpl::LookAtItems(std::uint64_t wanted) {
  const Capacity& capacity = bound_->capacity();
  const std::uint64_t stride = std::uint64_t{8} * ((key_size_ + 7) / 8);
  const bool by_score = capacity.policy == EvictionPolicy::kScore;
  CopyShape shape{.key_words = static_cast<std::uint32_t>(stride / 8)};
  {
    const Admission::Entered entered(admission_);
    shape.room = RoomForCopy(space_.items());
  }
  ThreadPool& threads = bound_->threads();
  std::unique_ptr<TableCopy> copy = executor_->MakeCopy(shape);
  std::vector<std::uint64_t> ranks;
  {
    const Admission::Alone alone(admission_, Admission::Telling::kLater);
    health_.Check();
    TakeWholeCopy(shape, &copy);
    if (by_score) {  // while nobody replaces values
      copy->Fetch();
      ranks = Scores(*copy, capacity, pool_->base(), InlineValues(value_size_), &threads);
    }
  }
  if (!by_score) copy->Fetch();
  const auto* const keys = reinterpret_cast<const std::byte*>(copy->keys);
  if (!by_score) ranks = bound_->uses().Rank(keys, stride, copy->items, key_size_);
  if (KeepsOrder(capacity.policy)) wanted = std::max(wanted, copy->items / kChosenShare);
  bound_->victims().Choose({keys, stride, ranks}, wanted);
}

std::uint64_t StoreImpl::Evict(const std::vector<std::byte>& victims, Evicted* evicted) {
  const bool wants_values = evicted != nullptr && !evicted->values.empty();
  const std::uint64_t all = victims.size() / key_size_;
  const std::uint64_t most =
      wants_values ? std::max<std::uint64_t>(kRowsBytes / value_size_ / 2, 1) : all;
  std::uint64_t count = 0;
  for (std::uint64_t first = 0; first < all; first += most) {
    const std::uint64_t n = std::min(most, all - first);
    const auto* const keys = victims.data() + first * key_size_;
    // A find and an erase of each key in one batch: nobody comes between the two.
    const std::uint64_t finds = wants_values ? n : 0;
    std::vector<std::byte> operands(keys, keys + n * key_size_);
    std::vector<Op> ops;
    std::vector<std::byte> rows;
    if (wants_values) {
      operands.insert(operands.end(), keys, keys + n * key_size_);
      ops.assign(n, Op::kFind);
      ops.resize(2 * n, Op::kErase);
      rows.resize(2 * n * value_size_);
    }
    std::vector<Result> results(finds + n);
    Wait(Run({.op = Op::kErase, .ops = ops, .keys = operands, .found = rows, .results = results},
             nullptr));
    for (std::uint64_t i = 0; i < n; ++i) {
      if (results[finds + i] != Result::kOk) continue;  // another thread erased it
      ++count;
      if (evicted == nullptr) continue;
      const std::uint64_t row = evicted->count++;
      std::memcpy(evicted->keys.data() + row * key_size_, keys + i * key_size_, key_size_);
      if (wants_values) {
        std::memcpy(evicted->values.data() + row * value_size_, rows.data() + i * value_size_,
                    value_size_);
      }
    }
  }
  return count;
}

}  // namespace gpm
