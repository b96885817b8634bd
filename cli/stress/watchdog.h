#ifndef GPM_CLI_STRESS_WATCHDOG_H_
#define GPM_CLI_STRESS_WATCHDOG_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace gpm::stress {

/// Tells when something stands still.
class Watchdog {
 public:
  /// @param count grows while things go on @param tell is called on a thread of the watchdog's
  Watchdog(double seconds, std::function<std::uint64_t()> count, std::function<void()> tell);
  ~Watchdog();

 private:
  void Watch();

  const double seconds_;
  const std::function<std::uint64_t()> count_;
  const std::function<void()> tell_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;  ///< last, since it uses the others
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_WATCHDOG_H_
