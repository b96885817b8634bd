#include "cli/crash_explore_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/common.h"
#include "pm/thread_pool.h"
#include "support/option_checks.h"
#include "support/signals.h"

namespace gpm::cli {
namespace {

/// Unless told otherwise, it ends so soon.
constexpr double kSeconds = 25;

std::atomic<bool> stop_exploring{false};

}  // namespace

int RunCrashExplore(crash::CrashOptions options) {
  crash::CrashReport report;
  {
    // A signal ends it in order: the counts are printed, and no pool is left behind.
    const StopOnSignal signals(stop_exploring);
    Progress progress;
    options.progress = [&](std::uint64_t images) {
      progress.Show("states", std::min(images, options.max_states), options.max_states);
      return !stop_exploring;
    };
    report = crash::ExploreCrashes(options);
  }
  Print(crash::Describe(report));
  if (!report.violation.empty()) return kExitNo;
  if (!report.out_of_memory.empty()) {
    std::fputs(fmt::format("gpmstore: {}: use fewer --processes\n", report.out_of_memory).c_str(),
               stderr);
    return kExitNoMemory;
  }
  if (SignalTaken() != 0) {
    Print("interrupted\n");
    EndBySignalTaken();
  }
  return kExitOk;
}

void AddCrashExploreCommand(CLI::App& app, Commands& commands) {
  CLI::App* const explore =
      app.add_subcommand("crash-explore", "Explore the states that a crash may leave of a pool");
  auto options = std::make_shared<crash::CrashOptions>();
  options->processes = ThreadsOf(0);
  explore->add_option("--seed", options->seed, "Of the first sequence of batches; counted up")
      ->check(WholeNumber())
      ->capture_default_str();
  CLI::Option* const states =
      explore->add_option("--states", options->max_states, "End after so many different states")
          ->check(WholeNumber(1))
          ->capture_default_str();
  CLI::Option* const seconds =
      explore
          ->add_option("--seconds", options->seconds,
                       "End after this time; 0: no limit; default: none with --states, else 25")
          ->check(NumberBetween(0, kMostSeconds));
  explore->add_option("--processes", options->processes, "That explore at once")
      ->check(WholeNumber(1, crash::CrashOptions::kMaxProcesses))
      ->capture_default_str();
  explore->footer(
      "Small stores run batches, resizes and recovery on a simulated persistent memory, and the\n"
      "states that a crash at any instant may leave are opened, recovered, checked and used: all\n"
      "of them where there are few, else a sample. Counts come last. Exit status 1 when a state\n"
      "was not as promised: its seed is printed, and finds it again. 3 when memory ran out.\n\n"
      "Examples:\n"
      "  gpmstore crash-explore --seed 7\n"
      "  gpmstore crash-explore --states 10000000");
  commands.push_back({explore, [options, states, seconds] {
                        if (states->count() + seconds->count() == 0) options->seconds = kSeconds;
                        return RunCrashExplore(*options);
                      }});
}

}  // namespace gpm::cli
