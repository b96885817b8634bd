#include "engine/refresh_schedule.h"

#include <algorithm>
#include <utility>

namespace gpm {

double RefreshSchedule::HitRate(const FindSums& from, const FindSums& to) {
  const std::uint64_t found = to.found - from.found;
  return found == 0 ? 0 : static_cast<double>(to.hits - from.hits) / static_cast<double>(found);
}

void RefreshSchedule::Reset(std::uint64_t slots, const FindSums& sums) {
  // Soon, with an interval: nothing is cached yet.
  due_at_ = sums.operations + std::max<std::uint64_t>(1, interval_.value_or(0) / 8);
  first_budget_ = std::clamp(slots / 4, kLeastBudget, kMostFirstBudget);
  budget_ = first_budget_;
  window_ = evidence_ = sums;
  rate_ = settled_ = 0;
  before_.reset();
}

/// Judges the last refresh by the first window behind it, and sees whether other items became hot.
void RefreshSchedule::EndWindow(const FindSums& sums) {
  const FindSums begun = std::exchange(window_, sums);
  rate_ = HitRate(begun, sums);
  const bool fell = rate_ < settled_ - kFallen;
  if (before_) {
    const bool paid = rate_ - *before_ > kPaid * (1 - *before_);
    budget_ = paid || fell ? first_budget_ : std::min(2 * budget_, kMostBudget);
    settled_ = rate_;
    before_.reset();
  } else if (fell) {
    budget_ = first_budget_;
    evidence_ = begun;
    settled_ = rate_;
  }
  settled_ = std::max(settled_, rate_);
}

bool RefreshSchedule::IsDue(const FindSums& sums, double now) {
  if (interval_) return *interval_ != 0 && sums.operations >= due_at_;
  if (sums.found - window_.found >= std::min(kWindow, first_budget_)) EndWindow(sums);
  const std::uint64_t found = sums.found - evidence_.found;
  const std::uint64_t misses = found - std::min(found, sums.hits - evidence_.hits);
  return misses >= budget_ && !before_ && now >= not_before_;
}

void RefreshSchedule::Begin(const FindSums& sums, double now) {
  due_at_ = sums.operations + interval_.value_or(0);
  began_at_ = now;
  before_ = rate_;
}

void RefreshSchedule::End(const FindSums& sums, double now) {
  not_before_ = now + kShareOfTime * (now - began_at_);
  window_ = evidence_ = sums;
}

}  // namespace gpm
