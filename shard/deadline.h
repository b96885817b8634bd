#ifndef GPM_SHARD_DEADLINE_H_
#define GPM_SHARD_DEADLINE_H_

#include <algorithm>
#include <chrono>

namespace gpm {

/// When a wait that begins now has taken so long. The clock can't tell times that are centuries
/// away: such a wait ends after one century.
inline std::chrono::steady_clock::time_point DeadlineIn(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kCentury = std::chrono::hours(100 * 365 * 24);
  return std::chrono::steady_clock::now() +
         std::clamp(timeout, std::chrono::milliseconds::zero(), kCentury);
}

}  // namespace gpm

#endif  // GPM_SHARD_DEADLINE_H_
