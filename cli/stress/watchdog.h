#ifndef GPM_CLI_STRESS_WATCHDOG_H_
#define GPM_CLI_STRESS_WATCHDOG_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace gpm::stress {

/// Ends the process, with status 1 and a report on stderr, when something stands still: threads
/// that hang in the store can't be ended otherwise.
class Watchdog {
 public:
  /// @param count grows while things go on @param report of what was going on; on any thread
  Watchdog(double seconds, std::function<std::uint64_t()> count,
           std::function<std::string()> report);
  ~Watchdog();

 private:
  void Watch();

  const double seconds_;
  const std::function<std::uint64_t()> count_;
  const std::function<std::string()> report_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;  ///< last, since it uses the others
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_WATCHDOG_H_
