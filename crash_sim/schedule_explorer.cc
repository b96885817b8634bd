#include "crash_sim/schedule_explorer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "crash_sim/schedule_runner.h"

namespace gpm::crash {
namespace {

/// Takes seeds until there are none left, and adds what it finds to a report that all share.
class Exploration {
 public:
  explicit Exploration(const ScheduleOptions& options) : options_(options) {}

  ScheduleReport Run() {
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < options_.threads; ++i) threads.emplace_back([this] { Work(); });
    Work();
    for (std::thread& thread : threads) thread.join();
    if (error_ != nullptr) std::rethrow_exception(error_);
    report_.distinct = distinct_.size();
    return report_;
  }

 private:
  static constexpr std::uint64_t kSeedsAtATime = 64;

  void Work() {
    try {
      ScheduleRunner runner(options_);
      std::vector<std::uint64_t> hashes;
      while (!stop_) {
        const std::uint64_t first = next_.fetch_add(kSeedsAtATime);
        if (first >= options_.count) return;
        ScheduleReport mine;
        hashes.clear();
        for (std::uint64_t i = first; i < std::min(first + kSeedsAtATime, options_.count); ++i) {
          const std::uint64_t seed = options_.seed + i;
          std::string wrong = runner.Run(seed, &mine);
          hashes.push_back(runner.hash());
          if (!wrong.empty() && options_.violated) {
            const std::lock_guard lock(mutex_);
            options_.violated(wrong);
          }
          if (!wrong.empty() && mine.violation.empty()) {
            mine.violation = std::move(wrong);
            mine.violation_seed = seed;
            if (options_.stop_at_violation) break;
          }
        }
        Add(std::move(mine), hashes);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      stop_ = true;
    }
  }

  void Add(ScheduleReport mine, const std::vector<std::uint64_t>& hashes) {
    const std::lock_guard lock(mutex_);
    distinct_.insert(hashes.begin(), hashes.end());
    report_.schedules += mine.schedules;
    report_.steps += mine.steps;
    report_.resizes += mine.resizes;
    report_.displaced += mine.displaced;
    report_.index_updates += mine.index_updates;
    report_.no_space += mine.no_space;
    report_.stuck += mine.stuck;
    report_.switches += mine.switches;
    report_.crash_states += mine.crash_states;
    report_.team_states += mine.team_states;
    report_.times_left_out += mine.times_left_out;
    report_.violations += mine.violations;
    if (!mine.violation.empty() &&
        (report_.violation.empty() || mine.violation_seed < report_.violation_seed)) {
      report_.violation = std::move(mine.violation);
      report_.violation_seed = mine.violation_seed;
    }
    if (!report_.violation.empty() && options_.stop_at_violation) stop_ = true;
    if (options_.seconds > 0 && Seconds() > options_.seconds) stop_ = true;
    if (options_.max_team_states > 0 && report_.team_states >= options_.max_team_states) {
      stop_ = true;
    }
    report_.distinct = distinct_.size();
    if (options_.progress) options_.progress(report_);
  }

  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const ScheduleOptions& options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  ///< guards what follows
  ScheduleReport report_;
  std::unordered_set<std::uint64_t> distinct_;
  std::exception_ptr error_;
};

}  // namespace

ScheduleReport ExploreSchedules(const ScheduleOptions& options) {
  return Exploration(options).Run();
}

}  // namespace gpm::crash
