#include "engine/draining.h"

#include <algorithm>
#include <cmath>

namespace gpm {
namespace {

/// The level is drained in so large a part of the inserts for which there is room.
constexpr double kShareOfRoom = 0.8;
/// Slots for an operation that inserts nothing: about as much work as it is itself.
constexpr double kSlotsPerOperation = 1;
/// More of the level than its share no batch has to drain.
constexpr double kMostOfBatch = 1.0 / 16;

}  // namespace

void Draining::Begin(std::uint64_t buckets, std::uint32_t bucket_slots, std::uint64_t room,
                     std::uint64_t least) {
  const auto all = static_cast<double>(buckets);
  *this = {};
  buckets_ = buckets;
  least_ = std::min(static_cast<double>(least), all * kMostOfBatch);
  per_operation_ = kSlotsPerOperation / bucket_slots;
  per_insert_ = std::max(all / (kShareOfRoom * static_cast<double>(room) + 1), per_operation_);
}

BucketRange Draining::Take(const Demand& demand) {
  const double share = demand.inserts ? per_insert_ : per_operation_;
  const double wanted =
      demand.operations == 0
          ? 0
          : std::max(least_, std::ceil(share * static_cast<double>(demand.operations)));
  const BucketRange range{given_, given_ + static_cast<std::uint64_t>(std::min(
                                               wanted, static_cast<double>(buckets_ - given_)))};
  given_ = range.last;
  return range;
}

void Draining::Done(const BucketRange& buckets, bool all) {
  done_ += buckets.count();
  left_some_ |= buckets.count() > 0 && !all;
}

}  // namespace gpm
