#ifndef GPM_CRASH_SIM_SCHEDULER_H_
#define GPM_CRASH_SIM_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpm::crash {

/// A schedule that can't be run to its end: every fiber waits for another one, or one goes on for
/// ever.
class ScheduleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs a program of several threads as fibers of one thread, which take turns at switch points
/// chosen from a seed: the same seed and program give the same schedule.
///
///   kRandom  at each switch point the running fiber stays with a probability (chosen from the
///            seed, so that coarse and fine interleavings come up), else any that can run goes on
///   kPct     fibers have random priorities, the highest that can run does; at depth - 1 random
///            steps the running one falls below all others (Burckhardt et al., "A Randomized
///            Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010), and so does
///            one that waits in vain for long
///
/// Thread safety: one thread at a time; the fibers run on it.
///
/// Invariants:
///  1. Outside Run no fiber lives: all have ended, by themselves, or because the schedule was given
///     up and their next Yield or Pause threw.
///  2. Each fiber has the state of C++ exception handling to itself, so that it may be switched
///     away from inside a handler or while it is unwound.
class Scheduler {
 public:
  enum class Strategy : std::uint8_t { kRandom, kPct };
  struct Options {
    std::uint64_t seed = 1;
    Strategy strategy = Strategy::kRandom;
    std::uint32_t depth = 3;              ///< kPct: priority changes + 1
    std::uint64_t expected_steps = 300;   ///< kPct: changes come at random steps below this
    std::uint64_t max_steps = 1'000'000;  ///< a schedule of more steps is given up
  };

  /// Of a few steps: either strategy, by chance.
  template <class Random>
  static Options RandomOptions(Random& random) {
    Options options;
    options.seed = random();
    options.strategy = random() % 2 == 0 ? Strategy::kRandom : Strategy::kPct;
    options.depth = 2 + static_cast<std::uint32_t>(random() % 5);
    options.expected_steps = 100;
    options.max_steps = 10'000;
    return options;
  }

  Scheduler();
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// For the next Run.
  void SetOptions(const Options& options) { options_ = options; }
  const Options& options() const { return options_; }

  /// Runs the bodies as fibers 1, 2, ... to their ends.
  /// @throws what a body threw (the first that did; the others run to their ends if they can), else
  ///         ScheduleError
  void Run(std::vector<std::function<void()>> bodies);

  /// A switch point: the scheduler chooses who goes on. Outside Run, nothing.
  void Yield();

  /// The running fiber waits for another one: others go first. To be called again and again until
  /// what it waits for has happened.
  /// @throws ScheduleError outside Run, where nobody else can do anything
  void Pause();

  /// Runs part(0) ... part(parts - 1), each as a fiber with a number of its own, while the running
  /// fiber waits; outside Run, as Run does. One part alone runs in the fiber that calls.
  /// @throws what a part threw (the first that did), when all have ended
  void RunParts(std::size_t parts, const std::function<void(std::size_t)>& part);

  /// Number of the running fiber: 0 outside Run, else 1, 2, ... in the order in which they were
  /// made; no number is given twice in a Run.
  std::uint32_t current() const;
  bool running() const { return running_ != nullptr; }

  // Of the running or last Run:
  std::uint64_t steps() const { return steps_; }        ///< switch points passed
  std::uint64_t switches() const { return switches_; }  ///< times that another fiber went on
  std::uint64_t choices() const { return choices_; }    ///< hash of who made each step

 private:
  struct Fiber;
  struct Stopped {};  ///< ends a fiber when the schedule is given up

  static void Entry();
  void Spawn(std::function<void()> body, Fiber* parent);
  void Advanced();
  Fiber* Choose(bool may_stay);
  void SwitchTo(Fiber* next);
  void Arrived();
  void GiveUp(std::string reason);
  void ThrowIfGivenUp() const;

  Options options_;
  std::mt19937_64 random_;
  std::uint64_t stay_of_64_ = 0;             ///< kRandom: probability of staying, in 1/64
  std::vector<std::uint64_t> change_steps_;  ///< kPct: those to come, descending
  std::uint64_t lowest_ = 0;                 ///< kPct: priority

  std::unique_ptr<Fiber> main_;                 ///< the caller of Run
  std::vector<std::unique_ptr<Fiber>> fibers_;  ///< all ever made; stacks are used again
  std::vector<Fiber*> idle_;                    ///< of those, without a body
  std::vector<Fiber*> live_;                    ///< not ended yet, in order of number
  std::vector<Fiber*> ready_;                   ///< for Choose
  Fiber* running_ = nullptr;                    ///< null outside Run
  Fiber* arriving_from_ = nullptr;              ///< who switched last
  std::uint32_t next_number_ = 1;
  std::uint64_t steps_ = 0;
  std::uint64_t switches_ = 0;
  std::uint64_t choices_ = 0;
  std::uint64_t idle_pauses_ = 0;  ///< pauses since some fiber advanced
  std::exception_ptr error_;       ///< what a body threw first
  std::string given_up_;           ///< why the schedule is given up; empty while it is not
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SCHEDULER_H_
