#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>

#include "cli/common.h"
#include "cli/stress/stress.h"
#include "pm/gpu_host.h"
#include "support/option_checks.h"
#include "support/signals.h"

namespace gpm::cli {
namespace {

std::atomic<bool> stop_stress{false};

std::string TotalsText(const stress::Totals& totals, double seconds) {
  std::string text;
  const auto add = [&](std::string_view name, std::uint64_t count) {
    text += fmt::format("{:<26}{}\n", name, count);
  };
  add("rounds", totals.rounds);
  add("batches", totals.batches);
  add("operations", totals.operations);
  add("watched histories", totals.histories);
  add("operations in them", totals.history_operations);
  add("resizes", totals.resizes);
  add("cache loadings", totals.cache_loads);
  add("device scopes", totals.scopes);
  add("snapshots compared", totals.snapshots);
  add("increments of these", totals.increments);
  add("no-space results", totals.no_space);
  add("rounds out of space", totals.given_up);
  return text + fmt::format("{:<26}{:.1f}\n", "seconds", seconds);
}

int RunStress(const stress::StressOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  stress::Stress stress(options, stop_stress,
                        [](const std::string& report) { Print("FAILED with " + report); });
  Print(fmt::format("GPM_TEST_SEED={}\n", options.seed));
  bool sound = false;
  {
    const StopOnSignal signals(stop_stress);  // the round ends in order
    Progress progress;
    sound = stress.Run([&] {
      progress.Show("seconds", static_cast<std::uint64_t>(std::min(seconds(), options.seconds)),
                    static_cast<std::uint64_t>(options.seconds));
    });
  }
  std::string text = TotalsText(stress.totals(), seconds());
  if (stop_stress) text += "interrupted\n";
  Print(text);
  if (!sound) return kExitNo;
  if (stop_stress) EndBySignalTaken();
  return kExitOk;
}

}  // namespace

void AddStressCommand(CLI::App& app, Commands& commands) {
  auto options = std::make_shared<stress::StressOptions>();
  auto executor = std::make_shared<std::string>("cpu");
  CLI::App* command = app.add_subcommand(
      "stress",
      "Batches of all sizes and kinds from several threads (on cuda: and streams) on temporary "
      "pools of all configurations, a round each; every answer is checked, histories of shared "
      "keys for linearizability, snapshots taken meanwhile, and at the end of each round items, "
      "cells "
      "and the file");
  command->add_option("--seconds", options->seconds, "Rounds begin for so long")
      ->check(NumberBetween(0, kMostSeconds))
      ->capture_default_str();
  options->seed = std::random_device{}();
  command
      ->add_option("--seed", options->seed,
                   "Of the first round, otherwise a random one; each next round's is one more. A "
                   "failure prints the seed of its round")
      ->check(WholeNumber())
      ->envname("GPM_TEST_SEED");
  command->add_option("--threads", options->threads, "Threads that run batches at once")
      ->check(WholeNumber(1, stress::kMaxStressThreads))
      ->capture_default_str();
  command->add_option("--executor", *executor, "What runs batches: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--round-seconds", options->round_seconds, "Length of a round")
      ->check(NumberBetween(1e-3, kMostSeconds))
      ->capture_default_str();
  command
      ->add_option(
          "--max-batch", options->max_batch,
          "Operations of a batch at most; fewer for tools under which large ones take long")
      ->check(WholeNumber(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--hang-seconds", options->hang_seconds,
                   "Without a batch that ends for so long, the store hangs: a failure")
      ->check(NumberBetween(1e-3, kMostSeconds))
      ->capture_default_str();
  commands.push_back({command, [options, executor] {
                        if (*executor == "cuda") {
                          options->executor = ExecutorKind::kCuda;
                          if (GpuCount() == 0) {
                            throw Error(ErrorCode::kUnsupported,
                                        "stress: no CUDA device; use --executor cpu");
                          }
                        }
                        return RunStress(*options);
                      }});
}

}  // namespace gpm::cli
