#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <random>

#include "crash_sim/schedule_explorer.h"
#include "pm/thread_pool.h"

/// Explores schedules for as long as one likes; prints its counts last. Exit status 1 for a
/// violation.
int main(int argc, char** argv) {
  using namespace gpm;
  crash::ScheduleOptions options;
  options.seed = std::random_device{}();
  options.count = 0;
  options.threads = ThreadsOf(0);
  std::string step;
  CLI::App app("Explores schedules of concurrent batches on small tables");
  const CLI::Option* const seed =
      app.add_option("--seed", options.seed, "of the first schedule; alone: replays that one");
  app.add_option("--count", options.count, "schedules");
  app.add_option("--threads", options.threads, "that explore");
  app.add_option("--seconds", options.seconds, "end after so long");
  app.add_option("--crash-states", options.crash_states, "also recover so many in each schedule");
  app.add_flag("--grid", options.grid, "batches run as on a GPU");
  app.add_option("--leave-out", step, "a step of the protocols, such as key-lock");
  bool go_on = false;
  app.add_flag("--go-on", go_on, "after a violation");
  app.add_flag("--trace", options.print_trace, "of a schedule with a violation");
  CLI11_PARSE(app, argc, argv);
  for (int i = 0; i < static_cast<int>(Step::kCount); ++i) {
    if (StepName(static_cast<Step>(i)) == step) options.leave_out = static_cast<Step>(i);
  }
  if (!step.empty() && options.leave_out == Step::kOther) {
    fmt::print(stderr, "no step is called {}\n", step);
    return 2;
  }
  options.stop_at_violation = !go_on;
  if (options.count == 0)
    options.count = seed->count() > 0 && options.seconds == 0 ? 1 : ~0ull >> 1;

  const auto start = std::chrono::steady_clock::now();
  double shown = 0;
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto counts = [&](const crash::ScheduleReport& report) {
    return fmt::format(
        "seed {}: {} schedules, {} distinct, {} accesses, {} switches, {} resizes ({} unfinished), "
        "{} items displaced, {} "
        "operations without space, {} crash states, {} violations in {:.1f} s",
        options.seed, report.schedules, report.distinct, report.steps, report.switches,
        report.resizes, report.stuck, report.displaced, report.no_space, report.crash_states,
        report.violations, seconds());
  };
  options.progress = [&](const crash::ScheduleReport& report) {
    if (seconds() < shown + 10) return;
    shown = seconds();
    fmt::print(stderr, "{}\n", counts(report));
  };
  if (go_on) {
    options.violated = [](const std::string& text) { fmt::print("{}\n", text); };
  }
  const crash::ScheduleReport report = crash::ExploreSchedules(options);
  if (!report.violation.empty() && !go_on) fmt::print("{}\n", report.violation);
  if (options.leave_out != Step::kOther) {
    fmt::print("{} was left out {} times\n", step, report.times_left_out);
  }
  fmt::print("{}\n", counts(report));
  return report.violation.empty() ? 0 : 1;
}
