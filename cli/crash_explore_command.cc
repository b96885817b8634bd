#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "cli/common.h"
#include "cli/validators.h"
#include "crash_sim/crash_explorer.h"

namespace gpm::cli {
namespace {

/// Unless told otherwise, it ends so soon.
constexpr double kSeconds = 25;

volatile std::sig_atomic_t interrupted = 0;

int RunCrashExplore(crash::CrashOptions options) {
  // An interrupt ends it in order: the counts are printed, and no pool is left behind.
  std::signal(SIGINT, [](int) { interrupted = 1; });
  crash::CrashReport report;
  {
    Progress progress;
    options.progress = [&](std::uint64_t images) {
      progress.Show("states", std::min(images, options.max_states), options.max_states);
      return interrupted == 0;
    };
    report = crash::ExploreCrashes(options);
  }
  Print(crash::Describe(report));
  return report.violation.empty() ? kExitOk : kExitNo;
}

}  // namespace

void AddCrashExploreCommand(CLI::App& app, Commands& commands) {
  CLI::App* const explore =
      app.add_subcommand("crash-explore", "Explore the states that a crash may leave of a pool");
  auto options = std::make_shared<crash::CrashOptions>();
  options->processes = std::max(std::thread::hardware_concurrency(), 1u);
  explore->add_option("--seed", options->seed, "Of the first sequence of batches; counted up")
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
      ->check(CLI::Range(1u, crash::CrashOptions::kMaxProcesses))
      ->capture_default_str();
  explore->footer(
      "Small stores run batches, resizes and recovery on a simulated persistent memory, and the\n"
      "states that a crash at any instant may leave are opened, recovered, checked and used: all\n"
      "of them where there are few, else a sample. Counts come last. Exit status 1 when a state\n"
      "was not as promised: its seed is printed, and finds it again.\n\n"
      "Examples:\n"
      "  gpmstore crash-explore --seed 7\n"
      "  gpmstore crash-explore --states 10000000");
  commands.push_back({explore, [options, states, seconds] {
                        if (states->count() + seconds->count() == 0) options->seconds = kSeconds;
                        return RunCrashExplore(*options);
                      }});
}

}  // namespace gpm::cli
