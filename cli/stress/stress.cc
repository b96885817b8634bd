#include "cli/stress/stress.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "cli/stress/companion.h"
#include "cli/stress/lane.h"
#include "cli/stress/round_end.h"
#include "cli/stress/snapshots.h"
#include "cli/stress/watchdog.h"
#include "cli/work_pool.h"
#include "gpmstore/error.h"

namespace gpm::stress {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Runs `work`; what it throws is a finding, but for a resize that can't be finished in a pool that
/// may not grow enough.
template <class Work>
void Guard(RoundState& round, const char* who, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNoSpace && round.plan.tight) {
      round.unusable = true;
      round.stop = true;
    } else {
      round.findings.Fail(
          fmt::format("{} got an error ({}): {}", who, ErrorName(error.code()), error.what()));
    }
  } catch (const std::exception& error) {
    round.findings.Fail(fmt::format("{} got an exception: {}", who, error.what()));
  }
}

/// Until the round ends: one lane after another has its batch waited for and gets a new one, so
/// that the batches of the others are in flight meanwhile.
void RunLanes(RoundState& round, std::span<const std::unique_ptr<Lane>> lanes, unsigned thread) {
  Random random(round.plan.seed * 0xD6E8FEB86659FD93ull + thread);
  while (!round.ends()) {
    Lane& lane = *lanes[random.Below(lanes.size())];
    if (lane.in_flight()) lane.Finish();
    lane.Start();
  }
  for (const auto& lane : lanes) {
    if (lane->in_flight()) lane->Finish();
    lane->Leave();
  }
}

}  // namespace

Stress::Stress(const StressOptions& options, const std::atomic<bool>& interrupted,
               std::function<void(const std::string&)> tell)
    : options_(options),
      interrupted_(interrupted),
      tell_(std::move(tell)),
      findings_([this](const std::string& wrong) { Tell(wrong); }),
      seed_(options.seed) {}
Stress::~Stress() = default;

void Stress::Tell(const std::string& wrong) const {
  const std::uint64_t seed = seed_;
  tell_(
      fmt::format("seed {}:\n{}{}\nreplay: gpmstore stress --seed {} --threads {} --executor {} "
                  "--round-seconds {} --max-batch {} --seconds {}\n",
                  seed, Describe(PlanRound(seed, options_)), wrong, seed, options_.threads,
                  ExecutorName(options_.executor), options_.round_seconds, options_.max_batch,
                  options_.round_seconds));
}

void Stress::RunRound(const RoundPlan& plan) {
  cli::WorkPool pool("", false, options_.executor);
  Store store = pool.Create(plan.create, plan.open);
  RoundState round(plan, options_.threads, store, totals_, findings_);
  const unsigned per_thread = plan.lanes_per_thread;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (unsigned number = 0; number < options_.threads * per_thread; ++number) {
    if (memory_.size() == number) memory_.push_back(std::make_unique<LaneMemory>(options_.gpu()));
    const unsigned thread = number / per_thread;
    const unsigned first = plan.shared_streams ? thread * per_thread : number;
    lanes.push_back(
        std::make_unique<Lane>(round, number, thread, *memory_[number], memory_[first]->stream));
  }
  if (plan.loads_first) {
    Guard(round, "the first load", [&] {
      lanes.front()->Start(true);
      lanes.front()->Finish();
    });
  }
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < options_.threads; ++thread) {
      threads.emplace_back([&, thread] {
        Guard(round, "a batch", [&] {
          RunLanes(round, std::span(lanes).subspan(thread * per_thread, per_thread), thread);
        });
      });
    }
    threads.emplace_back([&] { Guard(round, "a snapshot", [&] { RunSnapshots(round, lanes); }); });
    threads.emplace_back(
        [&] { Guard(round, "what goes on beside batches", [&] { RunCompanion(round); }); });
    const Clock::time_point end = After(options_.round_seconds);
    while (Clock::now() < end && !round.ends() && !interrupted_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    round.stop = true;
  }
  if (findings_.failed()) return;
  std::string wrong;
  Guard(round, "the end of the round", [&] {
    wrong = round.unusable ? CheckUnusable(round, pool.path())
                           : CheckRoundEnd(round, lanes, pool.path());
  });
  if (!wrong.empty()) findings_.Fail(wrong);
  ++totals_.rounds;
}

bool Stress::Run(const std::function<void()>& progress) {
  const Watchdog watchdog(
      options_.hang_seconds, [&] { return totals_.batches + totals_.steps + totals_.rounds; },
      [&] {
        Tell(fmt::format("it hangs: no batch has ended for {} s", options_.hang_seconds));
        std::_Exit(1);  // threads that hang in the store can't be ended otherwise
      });
  const Clock::time_point end = After(options_.seconds);
  for (std::uint64_t number = 0; number == 0 || Clock::now() < end; ++number) {
    progress();
    seed_ = options_.seed + number;
    try {
      RunRound(PlanRound(seed_, options_));
    } catch (const std::exception& error) {
      findings_.Fail(fmt::format("the round can't begin: {}", error.what()));
    }
    if (findings_.failed()) return false;
    if (interrupted_) break;
  }
  return true;
}

}  // namespace gpm::stress
