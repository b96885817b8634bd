#include "cli/crash/jobs.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <thread>

namespace gpm::cli {
namespace {

/// What the jobs have come to. Thread safety: any thread.
class Outcomes {
 public:
  explicit Outcomes(std::atomic<bool>& stop) : stop_(stop) {}

  /// The rounds of one job, to their end or to the first failure of any.
  void Run(const CrashOptions& options, const std::function<void()>& begin_round) {
    try {
      CrashRounds rounds(options);
      RunRounds(rounds, options, begin_round);
      const std::lock_guard lock(mutex_);
      outcome_.totals += rounds.totals();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      // That the others are stopped, or fail as well, is the consequence.
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
  }

  CrashOutcome Take() {
    if (error_ && outcome_.failures.empty()) std::rethrow_exception(error_);
    return std::move(outcome_);
  }

 private:
  void RunRounds(CrashRounds& rounds, const CrashOptions& options,
                 const std::function<void()>& begin_round) {
    try {
      for (std::uint64_t round = 0; round < options.rounds; ++round) {
        begin_round();
        rounds.Run();
      }
    } catch (const CrashViolation& violation) {
      const std::lock_guard lock(mutex_);
      outcome_.failures.push_back(
          {options.seed, options.rounds, rounds.number(), options.pool, violation.texts});
      stop_ = true;
    } catch (const CrashStopped&) {
      const std::lock_guard lock(mutex_);
      if (outcome_.failures.empty() && !error_) throw;
    }
  }

  std::mutex mutex_;
  std::atomic<bool>& stop_;
  CrashOutcome outcome_;
  std::exception_ptr error_;
};

}  // namespace

CrashOptions CrashJobOptions(const CrashOptions& options, unsigned jobs, unsigned job) {
  CrashOptions own = options;
  own.seed += job;
  own.rounds = options.rounds / jobs + (job < options.rounds % jobs ? 1 : 0);
  if (jobs > 1) own.pool += fmt::format(".{}", job);
  return own;
}

CrashOutcome RunCrashJobs(const CrashOptions& options, unsigned jobs, std::atomic<bool>& stop,
                          const std::function<void(std::uint64_t begun)>& progress) {
  Outcomes outcomes(stop);
  std::atomic<std::uint64_t> begun{0};
  std::vector<std::thread> threads;
  const auto own = [&](unsigned job) {
    CrashOptions job_options = CrashJobOptions(options, jobs, job);
    job_options.stop = &stop;
    return job_options;
  };
  for (unsigned job = 1; job < jobs; ++job) {
    threads.emplace_back([&, job] { outcomes.Run(own(job), [&] { ++begun; }); });
  }
  outcomes.Run(own(0), [&] { progress(begun++); });
  for (std::thread& thread : threads) thread.join();
  return outcomes.Take();
}

}  // namespace gpm::cli
