#include "engine/refresh_schedule.h"

#include <algorithm>
#include <utility>

namespace gpm {

double RefreshSchedule::HitRate(const FindTotals& from, const FindTotals& to) {
  const std::uint64_t found = to.found - from.found;
  const std::uint64_t hits = std::min(found, to.hits - from.hits);
  return found == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(found);
}

void RefreshSchedule::Reset(std::uint64_t slots) {
  until_due_ = std::max<std::uint64_t>(1, interval_.value_or(0) / 8);  // soon: the cache is empty
  is_fresh_ = true;
  is_refreshing_ = false;
  first_budget_ = std::clamp(slots / 4, kLeastFirstBudget, kMostFirstBudget);
  budget_ = first_budget_;
  rate_ = settled_ = not_before_ = 0;
  before_.reset();
}

/// Judges the last refresh by the first window behind it, and sees whether other items became hot.
CacheNeed RefreshSchedule::EndWindow(const FindTotals& totals) {
  const FindTotals begun = std::exchange(window_, totals);
  rate_ = HitRate(begun, totals);
  const bool fell = rate_ < settled_ - kFallen;
  if (before_) {
    const double saved = rate_ - *before_;
    const double misses = 1 - *before_;
    const bool paid = saved > kPaid * misses;
    if (paid) {
      not_before_ = ended_ + std::min(kPayback * misses / saved, kShareOfTime) * took_;
    }
    budget_ = paid || fell ? first_budget_ : std::min(2 * budget_, kMostBudget);
    before_.reset();
  } else if (!fell) {
    settled_ += (rate_ - settled_) / 8;
    return CacheNeed::kNothing;
  }
  settled_ = rate_;
  if (!fell) return CacheNeed::kNothing;
  budget_ = first_budget_;
  evidence_ = begun;
  return CacheNeed::kAgeing;
}

CacheNeed RefreshSchedule::Advance(std::uint64_t operations, const FindTotals& totals, double now) {
  if (interval_) {
    until_due_ -= std::min(until_due_, operations);
    return *interval_ != 0 && until_due_ == 0 ? CacheNeed::kRefresh : CacheNeed::kNothing;
  }
  if (is_refreshing_) return CacheNeed::kNothing;
  if (std::exchange(is_fresh_, false)) window_ = evidence_ = totals;
  if (totals.found - window_.found >= std::clamp(first_budget_, kLeastWindow, kMostWindow)) {
    if (const CacheNeed need = EndWindow(totals); need != CacheNeed::kNothing) return need;
  }
  const std::uint64_t found = totals.found - evidence_.found;
  const std::uint64_t misses = found - std::min(found, totals.hits - evidence_.hits);
  return misses >= budget_ && !before_ && now >= not_before_ ? CacheNeed::kRefresh
                                                             : CacheNeed::kNothing;
}

void RefreshSchedule::Begin() {
  until_due_ = interval_.value_or(0);
  before_ = rate_;
  is_refreshing_ = true;
}

void RefreshSchedule::End(const FindTotals& totals, double now, double seconds) {
  ended_ = now;
  took_ = seconds;
  not_before_ = now + kShareOfTime * seconds;
  window_ = evidence_ = totals;
  is_refreshing_ = false;
}

}  // namespace gpm
