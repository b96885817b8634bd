#include "engine/bound.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/host_item_ranks.h"
#include "engine/thread_number.h"
#include "gpmstore/error.h"
#include "pm/text.h"

namespace gpm {
namespace {

constexpr std::pair<EvictionPolicy, std::string_view> kPolicies[] = {
    {EvictionPolicy::kLru, "lru"},
    {EvictionPolicy::kLfu, "lfu"},
    {EvictionPolicy::kOldest, "oldest"},
    {EvictionPolicy::kScore, "score"},
};

// Of what a pool takes for its items, to know how many fit into so many bytes.
constexpr double kLateGrowth =
    0.85;  ///< from this OpenOptions::grow_above on, only what is full grows
constexpr double kGapsInLevels = 3;
constexpr double kFreeCells = 1.0 / 8;  ///< for each in use

/// Candidate slots of a key in the two newest levels, or the only one.
unsigned NewestSlots(const Geometry& geometry) {
  return std::min<unsigned>(geometry.levels, 2) * geometry.locations * geometry.slots;
}
/// Whether a table may have to grow when half of its slots are in use, or fewer.
bool GrowsEarly(const Geometry& geometry) {
  return geometry.locations == 1 || NewestSlots(geometry) < 16;
}
/// Share of the slots in use when another table grows, at least.
/// @param early it may where it need not yet (OpenOptions::grow_above)
double FullTable(const Geometry& geometry, bool early) {
  return (NewestSlots(geometry) < 32 ? 0.6 : 0.8) - (early ? 0.05 : 0);
}

/// Bytes of the pool for an item: of the cell, and of slots while the table grows.
double BytesOfItem(std::uint32_t key_size, std::uint32_t value_size, const Growth& growth,
                   double grow_above) {
  const double factor = growth.factor;
  const Geometry geometry = growth.geometry;
  double levels = 0;  // addressed, by the newest
  double oldest = 1;
  for (unsigned level = 0; level < geometry.levels; ++level, oldest /= factor) levels += oldest;
  // The new level, and gaps of levels before, but for what levels soon fit into.
  const double gaps = std::min(oldest * factor / (factor - 1), kGapsInLevels * factor);
  const double slots =
      (levels + factor + gaps) / (levels * FullTable(geometry, grow_above < kLateGrowth));
  const double slot_bytes = static_cast<double>(BucketBytes(key_size, geometry)) / geometry.slots;
  const double cells =
      InlineValues(value_size) ? 0 : static_cast<double>(CellBytes(value_size)) * (1 + kFreeCells);
  return slots * slot_bytes + cells;
}

/// By the executor's own kernels, if it has some, else by threads.
std::unique_ptr<ItemRanks> MakeRanks(const RankedItems& items, BatchExecutor& executor) {
  std::unique_ptr<ItemRanks> ranks = executor.MakeItemRanks(items);
  if (ranks == nullptr) ranks = std::make_unique<HostItemRanks>(items, executor);
  return ranks;
}

/// Bytes of a pool that has hardly any items.
std::uint64_t LeastPoolBytes(std::uint32_t key_size, std::uint32_t value_size,
                             const Growth& growth) {
  constexpr std::uint64_t kFewCells = 16;
  constexpr std::uint64_t kSegmentBytes = std::uint64_t{1} << 16;
  std::uint64_t buckets = 0;
  for (const std::uint64_t level : growth.Smallest()) buckets += level;
  const std::uint64_t segments =
      InlineValues(value_size) ? 0 : 2 * std::max(kSegmentBytes, kFewCells * CellBytes(value_size));
  return FirstExtentOffset(key_size, growth.geometry) +
         buckets * BucketBytes(key_size, growth.geometry) + segments;
}

}  // namespace

std::string_view EvictionPolicyName(EvictionPolicy policy) {
  for (const auto& [known, name] : kPolicies) {
    if (known == policy) return name;
  }
  return "unknown";
}

std::vector<std::string> EvictionPolicyNames() {
  std::vector<std::string> names;
  for (const auto& [policy, name] : kPolicies) names.emplace_back(name);
  return names;
}

EvictionPolicy EvictionPolicyOf(std::string_view name) {
  for (const auto& [policy, known] : kPolicies) {
    if (known == name) return policy;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("eviction policy {} is none of {}", Quoted(name),
                          fmt::join(EvictionPolicyNames(), ", ")));
}

void ValidateCapacity(const Capacity& capacity, std::uint32_t value_size) {
  if (capacity.policy > EvictionPolicy::kScore) {
    throw Error(ErrorCode::kInvalidArgument, "capacity: its policy is none of EvictionPolicy's");
  }
  if (capacity.items == 0 || capacity.policy != EvictionPolicy::kScore) return;
  const std::uint64_t end = std::uint64_t{capacity.score_offset} + capacity.score_bytes;
  if (capacity.score_bytes != 4 && capacity.score_bytes != 8) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("score: {} bytes; it must have 4 or 8", capacity.score_bytes));
  }
  if (end > value_size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("score: {} bytes at {} are not within a value of {}",
                            capacity.score_bytes, capacity.score_offset, value_size));
  }
}

Capacity CapacityInItems(const Capacity& capacity, std::uint32_t key_size, std::uint32_t value_size,
                         const Growth& growth, double grow_above) {
  Capacity in_items = capacity;
  if (capacity.bytes > 0) {
    if (capacity.items > 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("capacity: {} items and {} bytes; give one of the two",
                              capacity.items, capacity.bytes));
    }
    if (GrowsEarly(growth.geometry)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("capacity: how full a table of {} becomes can't be said; give items "
                              "instead of bytes, or a geometry with 2 locations and 16 candidates "
                              "in two levels or more",
                              GeometryName(growth.geometry)));
    }
    const std::uint64_t least = LeastPoolBytes(key_size, value_size, growth);
    const double of_item = BytesOfItem(key_size, value_size, growth, grow_above);
    const double room = static_cast<double>(capacity.bytes) - static_cast<double>(least);
    if (room < of_item) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("capacity: a pool of {} bytes has no room for an item; with such keys "
                      "and values it takes {} and some {:.0f} for each item",
                      capacity.bytes, least, of_item));
    }
    in_items.items = static_cast<std::uint64_t>(room / of_item);
    in_items.bytes = 0;
  }
  ValidateCapacity(in_items, value_size);
  return in_items;
}

Bound::Bound(const RankedItems& items, BatchExecutor& executor)
    : capacity_(items.capacity), uses_(capacity_.policy, MakeRanks(items, executor)) {}

Bound::Turn::Turn(Bound& bound, bool wait) : bound_(bound), lock_(bound.turn_, std::defer_lock) {
  if (bound.turn_of_ == ThreadNumber()) return;
  if (wait) {
    lock_.lock();
  } else if (!lock_.try_lock()) {
    throw Error(ErrorCode::kBusy,
                "another batch is being begun, which may have to be alone, and the calling thread "
                "has a device scope open; close it first");
  }
  bound.turn_of_ = ThreadNumber();
}

Bound::Turn::~Turn() {
  if (!nested()) bound_.turn_of_ = 0;
}

/// Whether it may erase items. (Its kinds may be in device memory.)
bool Bound::MayErase(const Batch* batch) {
  return batch == nullptr || !batch->ops.empty() || batch->op == Op::kErase;
}

/// What a batch may add and erase, and how it used items.
class Bound::BatchUses : public BatchWatch {
 public:
  BatchUses(Bound& bound, const Batch* batch, bool wanted, const MayAdd& adds)
      : bound_(bound), erases_(MayErase(batch)), most_(adds.most) {
    if (wanted) {
      batch_ = *batch;
      number_ = bound.uses_.Begin();
    }
    const MutexLock lock(bound.mutex_);
    if (erases_) {
      ++bound.erasers_;
      ++bound.erasers_begun_;
      bound.erased_beside_ |= bound.adders_ > 0;
    }
    if (most_ == 0) return;
    missing_ = bound.HoldsStill(adds.look) ? adds.missing : most_;
    ++bound.adders_;
    bound.reserved_ += most_;
    bound.missing_ += missing_;
  }
  ~BatchUses() override {
    {
      const MutexLock lock(bound_.mutex_);
      if (erases_) --bound_.erasers_;
      if (most_ > 0) {
        bound_.reserved_ -= most_;
        bound_.missing_ -= missing_;
        if (--bound_.adders_ == 0) bound_.erased_beside_ = false;
      }
    }
    if (number_ != 0) bound_.uses_.Forget(number_);
  }
  BatchUses(const BatchUses&) = delete;
  BatchUses& operator=(const BatchUses&) = delete;

  void Ended() noexcept override {
    if (number_ != 0) bound_.uses_.End(std::exchange(number_, 0), batch_);
  }

 private:
  Bound& bound_;
  Batch batch_{};
  std::uint64_t number_ = 0;  ///< of ItemUses; 0: nobody wants to know
  const bool erases_;
  const std::uint64_t most_;
  std::uint64_t missing_ = 0;
};

Bound::Look Bound::BeginLook() {
  const MutexLock lock(mutex_);
  return {
      .stays = erasers_ == 0 && !erased_beside_, .erasers = erasers_begun_, .reserved = missing_};
}

bool Bound::Holds(const Look& look) {
  const MutexLock lock(mutex_);
  return HoldsStill(look);
}

std::uint64_t Bound::reserved() {
  const MutexLock lock(mutex_);
  return reserved_;
}

std::unique_ptr<BatchWatch> Bound::Watch(const Batch* batch, const MayAdd& adds) {
  const bool wanted =
      batch != nullptr && uses_.WantsAny() && (!batch->ops.empty() || uses_.Wants(batch->op));
  if (!wanted && adds.most == 0 && !MayErase(batch)) return nullptr;
  return std::make_unique<BatchUses>(*this, batch, wanted, adds);
}

void Bound::Count(std::uint64_t evicted, double seconds) {
  evicted_ += evicted;
  ++evictions_;
  seconds_ = seconds_ + seconds;  // by who has the turn
}

void Bound::AddTo(StoreStats* stats) const {
  stats->capacity_items = capacity_.items;
  stats->evicted = evicted_;
  stats->evictions = evictions_;
  stats->eviction_seconds = seconds_;
}

}  // namespace gpm
