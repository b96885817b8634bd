#include "cli/stress/watchdog.h"

#include <chrono>
#include <utility>

namespace gpm::stress {

Watchdog::Watchdog(double seconds, std::function<std::uint64_t()> count, std::function<void()> tell)
    : seconds_(seconds),
      count_(std::move(count)),
      tell_(std::move(tell)),
      thread_([this] { Watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Watchdog::Watch() {
  using Clock = std::chrono::steady_clock;
  std::uint64_t last = count_();
  Clock::time_point since = Clock::now();
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(200), [&] { return end_; })) {
    const std::uint64_t count = count_();
    if (count != last) {
      last = count;
      since = Clock::now();
    } else if (std::chrono::duration<double>(Clock::now() - since).count() > seconds_) {
      tell_();
      return;
    }
  }
}

}  // namespace gpm::stress
