#ifndef GPM_PM_CLOCK_H_
#define GPM_PM_CLOCK_H_

#include <chrono>

namespace gpm {

/// What times are measured with.
using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace gpm

#endif  // GPM_PM_CLOCK_H_
