#ifndef GPM_BENCH_SECONDS_SINCE_H_
#define GPM_BENCH_SECONDS_SINCE_H_

#include <chrono>

namespace gpm::bench {

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace gpm::bench

#endif  // GPM_BENCH_SECONDS_SINCE_H_
