// How a store with a capacity makes way for a batch (StoreImpl::MakeWay).

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/profiler_range.h"
#include "engine/snapshot.h"
#include "engine/store_impl.h"
#include "pm/clock.h"

namespace gpm {
namespace {

/// Of the capacity, a share of 1 in so many is evicted beyond what a batch needs, so that looking
/// at all items, which an eviction takes, is paid for by so many inserts.
constexpr std::uint64_t kSlackShare = 16;
/// Rows of evicted values that are read at once.
constexpr std::uint64_t kRowsBytes = 64 << 20;

}  // namespace

std::unique_ptr<KeysOfBatch> StoreImpl::LookAt(const Batch& batch, Stream stream) {
  return bound_->uses().LookAt(batch, [&](std::span<Result> results) {
    Await(Run({.op = Op::kFind, .keys = batch.keys, .results = results}, stream));
  });
}

/// True only if MakeWay would conclude the same when the batches in flight have ended, whatever
/// they do until then: as long as the look holds, none of them erases, and no other that adds
/// begins, as that takes the turn. So the keys that are there stay, those that are missing then are
/// missing now, and the items then are at most those counted now and `reserved`: a batch that ends
/// in between is in one of the two, or in both.
bool StoreImpl::FitsBeside(const Batch& batch, Stream stream, Bound::MayAdd* adds) {
  {
    const Admission::Entered entered(admission_);
    if (!entered.HasBatches()) return false;  // nobody has to be waited for
  }
  const Bound::Look look = bound_->BeginLook();
  if (!look.stays) return false;
  const std::uint64_t there = ItemsNow();
  const std::uint64_t missing = LookAt(batch, stream)->missing;
  if (missing > 0 && there + look.reserved + missing > bound_->capacity().items) return false;
  adds->look = look;
  adds->missing = missing;
  return bound_->Holds(look);
}

bool StoreImpl::MakeWay(const Batch* batch, Stream stream, Evicted* evicted, Bound::MayAdd* adds) {
  const std::uint64_t capacity = bound_->capacity().items;
  health_.Check();
  // First: what a batch that ends meanwhile has added may count twice, not at no time.
  const std::uint64_t reserved = bound_->reserved();
  if (ItemsNow() + reserved + adds->most <= capacity) return false;
  if (batch != nullptr && FitsBeside(*batch, stream, adds)) return false;
  {  // What it evicts must not hang on how far the batches before it have come.
    const Admission::Alone alone(admission_, Admission::Telling::kLater);
    FinishBatches();
  }
  const ProfilerRange range("make way");
  const Clock::time_point start = Clock::now();
  // Before the keys are looked at: an item that is erased in between counts twice, rather than not
  // at all.
  const Bound::Look look = bound_->BeginLook();
  const std::uint64_t there = ItemsNow();
  std::unique_ptr<KeysOfBatch> keys;
  if (batch != nullptr) {
    keys = LookAt(*batch, stream);
    adds->look = look;
    adds->missing = keys->missing;
  }
  const std::uint64_t missing = keys != nullptr ? keys->missing : adds->most;
  if (missing == 0) return false;  // also where the pool has more than the capacity: it keeps them
  const std::uint64_t stay = keys != nullptr ? keys->there : 0;
  if (there + missing <= capacity) return false;
  if (stay + missing > capacity) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("batch: it has {} different keys, which is more than the store's "
                            "capacity of {} items; split it",
                            stay + missing, capacity));
  }
  const std::uint64_t needed = there + missing - capacity;
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
  ItemUses& uses = bound_->uses();
  std::uint64_t count = Evict(ChooseVictims(wanted, keys.get()), evicted);
  if (const std::uint64_t now = there + missing - count; now > capacity) {
    // Kernels erased some that had been chosen before.
    uses.WithRanks([](ItemRanks& ranks) { ranks.ForgetSeen(); });
    count += Evict(ChooseVictims(now - capacity, keys.get()), evicted);
  }
  // What a scope adds has no rank: it is not among those that were chosen.
  if (batch == nullptr) uses.WithRanks([](ItemRanks& ranks) { ranks.ForgetSeen(); });
  const double seconds = SecondsSince(start);
  bound_->Count(count, seconds);
  return count > 0;
}

std::vector<std::byte> StoreImpl::ChooseVictims(std::uint64_t wanted, const KeysOfBatch* kept) {
  ItemUses& uses = bound_->uses();
  std::vector<std::byte> chosen =
      uses.WithRanks([&](ItemRanks& ranks) { return ranks.ChooseAgain(wanted, kept); });
  if (chosen.size() == wanted * key_size_) return chosen;
  const CopyShape shape{.room = RoomForCopy(ItemsNow()), .key_words = (key_size_ + 7) / 8};
  std::unique_ptr<TableCopy> copy = executor_->MakeCopy(shape);
  {
    const Admission::Alone alone(admission_, Admission::Telling::kLater);
    health_.Check();
    TakeWholeCopy(shape, &copy);
    if (bound_->capacity().policy == EvictionPolicy::kScore) {  // while nobody replaces values
      uses.WithRanks([&](ItemRanks& ranks) { ranks.ReadScores(copy.get()); });
    }
  }
  return uses.WithRanks([&](ItemRanks& ranks) { return ranks.Choose(copy.get(), wanted, kept); });
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
    Await(Run({.op = Op::kErase, .ops = ops, .keys = operands, .found = rows, .results = results},
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
