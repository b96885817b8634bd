#ifndef GPM_CLI_STRESS_WATCHED_KEYS_H_
#define GPM_CLI_STRESS_WATCHED_KEYS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "crash_sim/linearizability.h"

namespace gpm::stress {

/// Shared keys of which every operation is recorded, so that their histories can be checked. They
/// are used in *episodes*: few keys that some threads use at once, until half of those have made as
/// many operations on them as a history can hold; then come new keys and other threads. (Of how
/// many operations are in flight at once depends how long it takes to check their history.)
///
/// Thread safety: any thread; each `thread`, and RecordRead, by one at a time.
class WatchedKeys {
 public:
  static constexpr std::uint64_t kKeys = 4;     ///< in an episode
  static constexpr std::uint64_t kThreads = 4;  ///< in an episode, or all

  /// @param most keys that there may be
  WatchedKeys(unsigned threads, std::uint64_t most);

  /// A key that a thread may use now, in one operation, or kNone: it has used its share.
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t Take(unsigned thread, std::uint64_t choice);
  void Record(unsigned thread, const crash::HistoryOp& op) {
    threads_[thread].history.push_back(op);
  }

  /// A key was read by who uses none: in a snapshot. @return false: it was so as often as may be
  bool RecordRead(const crash::HistoryOp& op);

  /// Keys so far: 0 to keys() - 1.
  std::uint64_t keys() const { return std::min(episode_.load() + 1, episodes_) * kKeys; }
  /// All that was recorded. REQUIRES: no thread is recording.
  crash::History Histories() const;

 private:
  struct alignas(64) Thread {
    std::uint64_t episode = 0;
    std::uint32_t used[kKeys] = {};
    std::uint32_t used_up = 0;
    crash::History history;
  };
  const std::uint32_t share_;     ///< operations of a thread on a key
  const std::uint64_t episodes_;  ///< that there may be
  std::atomic<std::uint64_t> episode_{0};
  std::atomic<std::uint64_t> done_{0};  ///< threads that used up their share, over all episodes
  std::vector<Thread> threads_;
  crash::History reads_;
  std::vector<std::uint8_t> reads_of_;  ///< by key
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_WATCHED_KEYS_H_
