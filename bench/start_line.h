#ifndef GPM_BENCH_START_LINE_H_
#define GPM_BENCH_START_LINE_H_

#include <atomic>
#include <barrier>
#include <chrono>

#include "pm/pause_cpu.h"

namespace gpm::bench {

/// Where threads wait for each other, to begin within a microsecond. (To be woken up takes some
/// tens of them, and not the same for all.)
class StartLine {
 public:
  explicit StartLine(unsigned threads) : all_here_(threads, SetTime{&time_}) {}

  void Wait() {
    all_here_.arrive_and_wait();
    while (Clock::now().time_since_epoch().count() < time_) PauseCpu();
  }
  /// This thread does not come any more.
  void Leave() { all_here_.arrive_and_drop(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct SetTime {
    std::atomic<Clock::rep>* time;
    void operator()() noexcept {
      constexpr std::chrono::microseconds kWakingUp{300};
      *time = (Clock::now() + kWakingUp).time_since_epoch().count();
    }
  };
  std::atomic<Clock::rep> time_{0};
  std::barrier<SetTime> all_here_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_START_LINE_H_
