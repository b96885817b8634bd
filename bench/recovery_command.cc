#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/options.h"
#include "bench/recovery_bench.h"
#include "bench/report.h"
#include "support/option_checks.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct RecoveryArguments {
  PoolSpec pool;
  unsigned repeats = 3;
  std::string json;
};

void Print(const json& report) {
  fmt::print(
      "{} records of {} + {} bytes, executor {}, {}, medians of {}\n\n{:<24}{:>10}{:>10}"
      "{:>16}{:>12}{:>10}{:>10}\n",
      report.at("records").get<std::uint64_t>(), report.at("store").at("key_size").get<unsigned>(),
      report.at("store").at("value_size").get<unsigned>(),
      report.at("store").at("executor").get<std::string>(),
      report.at("store").at("medium").get<std::string>(), report.at("repeats").get<unsigned>(),
      "milliseconds", "in all", "mapping", "slots and rest", "slot MB", "bound", "of bound");
  for (const json& row : report.at("rows")) {
    const auto ms = [&](const char* key) { return row.at(key).get<double>() * 1e3; };
    fmt::print("{:<24}{:>10.1f}{:>10.1f}{:>16.1f}{:>12.1f}{:>10.1f}{:>10.3f}\n",
               row.at("what").get<std::string>(), ms("seconds"), ms("mapping_seconds"),
               ms("recovery_seconds"), row.at("read_bytes").get<double>() / 1e6,
               ms("bound_seconds"), row.at("recovery_of_bound").get<double>());
  }
}

void RunRecovery(RecoveryArguments& arguments) {
  using Clock = std::chrono::steady_clock;
  PoolSpec& spec = arguments.pool;
  const Clock::time_point start = Clock::now();
  json report = MeasureRecovery(spec, arguments.repeats, true);
  report["records"] = spec.records;
  report["repeats"] = arguments.repeats;
  report["seed"] = spec.seed;
  report["seconds"] = std::chrono::duration<double>(Clock::now() - start).count();
  FinishReport("recovery", std::move(report), arguments.json, Print);
}

}  // namespace

void AddRecoveryCommand(CLI::App& program) {
  auto arguments = std::make_shared<RecoveryArguments>();
  PoolSpec& pool = arguments->pool;
  pool.records = 16'000'000;
  CLI::App* command = program.add_subcommand(
      "recovery", "Time to open a pool, closed in order and crashed, and of a resize");
  AddNumber(*command, "--records", &pool.records, WholeNumber(1000, 1u << 31), "Items in the pool");
  AddKeySizeOption(*command, &pool.key_size);
  AddValueSizeOption(*command, &pool.value_size);
  AddRepeatsOption(*command, &arguments->repeats);
  AddSeedOption(*command, &pool.seed, "Seed of the hash");
  AddExecutorOptions(*command, &pool.executor, &pool.threads, "What recovers");
  AddPoolOption(*command, &pool.path, ". A copy of it takes as much again");
  AddJsonOption(*command, &arguments->json);
  command->callback([arguments] { RunRecovery(*arguments); });

  auto child = std::make_shared<PoolSpec>();
  CLI::App* child_command = program.add_subcommand(kCrashCommand, "The process that is killed");
  child_command->group("");  // not in the help: `recovery` starts it
  child_command->add_option("--pool", child->path)->required();
  AddExecutorOptions(*child_command, &child->executor, &child->threads, "What recovers");
  child_command->callback([child] { CrashInPool(*child); });
}

}  // namespace gpm::bench
