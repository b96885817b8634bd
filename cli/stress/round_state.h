#ifndef GPM_CLI_STRESS_ROUND_STATE_H_
#define GPM_CLI_STRESS_ROUND_STATE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <semaphore>
#include <string>
#include <utility>

#include "cli/stress/round_plan.h"
#include "cli/stress/watched_keys.h"
#include "gpmstore/store.h"

namespace gpm::stress {

/// What a run has done; the watchdog looks whether `batches` grows.
struct Totals {
  std::atomic<std::uint64_t> rounds{0};
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> histories{0};  ///< of watched keys, checked
  std::atomic<std::uint64_t> history_operations{0};
  std::atomic<std::uint64_t> scopes{0};
  std::atomic<std::uint64_t> snapshots{0};   ///< restored and compared
  std::atomic<std::uint64_t> increments{0};  ///< of these
  std::atomic<std::uint64_t> resizes{0};
  std::atomic<std::uint64_t> cache_loads{0};
  std::atomic<std::uint64_t> no_space{0};  ///< operations
  std::atomic<std::uint64_t> given_up{0};  ///< rounds whose store could not finish a resize
  std::atomic<std::uint64_t> steps{0};     ///< of checks, for the watchdog
};

/// The first thing that was wrong is told at once: what is broken may break the process, too.
/// Thread safety: any thread.
class Findings {
 public:
  explicit Findings(std::function<void(const std::string&)> tell) : tell_(std::move(tell)) {}
  void Fail(const std::string& text) {
    if (!failed_.exchange(true)) tell_(text);
  }
  bool failed() const { return failed_; }

 private:
  const std::function<void(const std::string&)> tell_;
  std::atomic<bool> failed_{false};
};

/// What the threads of a round share.
struct RoundState {
  RoundState(const RoundPlan& round_plan, unsigned threads, Store& round_store, Totals& run_totals,
             Findings& run_findings)
      : plan(round_plan),
        store(round_store),
        totals(run_totals),
        findings(run_findings),
        watched(threads, round_plan.shape.numbers) {}

  bool ends() const { return stop || findings.failed(); }

  const RoundPlan& plan;
  Store& store;
  Totals& totals;
  Findings& findings;
  WatchedKeys watched;
  std::atomic<bool> stop{false};
  /// A resize could not be finished for want of space: the store says so to every call.
  std::atomic<bool> unusable{false};
  /// Odd while a snapshot is being taken: lanes keep what their batches do (cli/key_log.h).
  std::atomic<std::uint64_t> recording{0};
  /// DeviceScopes that may still be opened, so that batches of the store's own run beside them.
  std::counting_semaphore<> scopes{3};
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_ROUND_STATE_H_
