#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/ablation.h"
#include "bench/commands.h"
#include "bench/options.h"
#include "bench/published.h"
#include "bench/report.h"
#include "bench/user_bench.h"
#include "bench/workload_bench.h"
#include "pm/gpu_host.h"
#include "support/option_checks.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

struct Arguments {
  WorkloadOptions bench;
  std::vector<std::string> workloads;
  std::string geometry = GeometryName(Geometry{});
  const CLI::App* command = nullptr;  ///< which says what was given
  bool no_roofline = false;
  std::string json;
};

struct WorkloadsArguments : Arguments {
  unsigned min_log = 10;
  unsigned max_log = 22;
  bool directory = false;
  double cache = 0;
};

struct UserArguments : Arguments {
  std::vector<std::string> memory = {"auto"};
  bool no_workloads = false;
};

void AddCommonOptions(CLI::App& command, Arguments& arguments) {
  WorkloadOptions& bench = arguments.bench;
  arguments.command = &command;
  command
      .add_option(
          "--workloads", arguments.workloads,
          "Separated by commas: c, b, a, d, f (YCSB's), find, find-missing, update (uniform), "
          "erase (each record once), churn (half finds, a tenth updates, a fifth inserts, a fifth "
          "erases), insert (into an empty pool with room for all), bulk-load (the same in one "
          "call, whatever the batch sizes)")
      ->check(CLI::IsMember(WorkloadBench::Workloads()))
      ->delimiter(',')
      ->capture_default_str();
  AddNumber(command, "--records", &bench.records, WholeNumber(1, 1u << 31),
            "Items in the pool, and those that insert inserts");
  AddNumber(command, "--operations", &bench.operations, WholeNumber(1, 1u << 31),
            "Operations measured at once");
  command
      .add_option("--warm-up", bench.warm_up,
                  "Operations before each of the two loadings of the cache; default: half as many "
                  "as are measured")
      ->check(WholeNumber(1, 1u << 31));
  AddNumbers(command, "--batches", &bench.batches, WholeNumber(1, 1u << 30),
             "Operations of a batch, separated by commas");
  AddRepeatsOption(command, &bench.repeats);
  AddKeySizeOption(command, &bench.key_size);
  AddValueSizeOption(command, &bench.value_size);
  command
      .add_option("--geometry", arguments.geometry,
                  "Levels, hash locations and slots a bucket: powers of two with a product of at "
                  "most 32")
      ->capture_default_str();
  const std::map<std::string, ycsb::Distribution> distributions{
      {"zipf", ycsb::Distribution::kZipf},
      {"zipfian", ycsb::Distribution::kZipfian},
      {"uniform", ycsb::Distribution::kUniform}};
  command
      .add_option("--distribution", bench.distribution,
                  "Of a, b, c and f. zipf: Zipfian over the records; zipfian: YCSB's, much less "
                  "skewed; default: zipf")
      ->transform(CLI::CheckedTransformer(distributions))
      ->option_text("zipf|zipfian|uniform");
  AddThetaOption(command, &bench.theta, "Skew");
  AddSeedOption(command, &bench.seed, "Seed of the operations");
  AddExecutorOptions(command, &bench.executor, &bench.threads);
  AddPoolOption(command, &bench.pool, ". A copy of it takes as much again");
  command.add_flag("--no-roofline", arguments.no_roofline,
                   "Do not measure the machine's roofline first: no bounds then");
  AddJsonOption(command, &arguments.json);
}

/// Figures of other systems hold for what they were measured with alone.
bool ComparesWithPublished(const WorkloadOptions& options, const StoreStats& stats) {
  return stats.executor == ExecutorKind::kCuda &&
         options.records == PublishedConditions::kRecords &&
         options.value_size == PublishedConditions::kValueSize &&
         options.distribution == ycsb::Distribution::kZipf &&
         options.theta == PublishedConditions::kTheta;
}

json PublishedFacts(std::uint32_t key_size) {
  json figures = json::array();
  for (const PublishedFigure& figure : PublishedFigures()) {
    if (figure.key_size != key_size) continue;
    figures.push_back({{"system", figure.system},
                       {"workload", figure.workload},
                       {"batch", figure.batch},
                       {"mops", figure.mops}});
  }
  return {{"source", PublishedConditions::kSource},
          {"records", PublishedConditions::kRecords},
          {"value_size", PublishedConditions::kValueSize},
          {"theta", PublishedConditions::kTheta},
          {"figures", figures}};
}

/// A number of a row, or a dash where it has none.
std::string Cell(const json& row, const char* key, int digits) {
  if (!row.contains(key)) return "-";
  return fmt::format("{:.{}f}", row.at(key).get<double>(), digits);
}

void PrintRows(const json& rows, bool ablation) {
  fmt::print("\n{:<14}{:<17}{:>9}{:>10}{:>11}{:>11}{:>7}{:>10}{:>9}  {:<13}", "workload", "store",
             "batch", "Mops/s", "p50 us", "p99 us", "hits", "bound", "of bound", "bound by");
  fmt::print("{}\n", ablation ? fmt::format("{:>9}{:>10}", "factor", "/ GPHash") : "");
  for (const json& row : rows) {
    fmt::print("{:<14}{:<17}{:>9}{:>10}{:>11}{:>11}{:>7}{:>10}{:>9}  {:<13}",
               row.at("workload").get<std::string>(), row.at("configuration").get<std::string>(),
               row.at("batch").get<std::uint64_t>(), Cell(row, "mops", 2),
               Cell(row, "latency_us_p50", 1), Cell(row, "latency_us_p99", 1),
               Cell(row, "hit_rate", 3), Cell(row, "bound_mops", 1), Cell(row, "of_bound", 3),
               row.value("bound_limit", "-"));
    if (ablation) fmt::print("{:>9}{:>10}", Cell(row, "factor", 2), Cell(row, "over_gphash", 2));
    fmt::print("\n");
  }
  std::fflush(stdout);
}

/// Measures, prints and writes; the one loop of both commands.
/// @param alone what is measured; none: the steps of the ablation, of which each row has its factor
///        over the first, and over GPHash
void Run(Arguments& arguments, const char* name, const std::optional<Configuration>& alone) {
  const bool ablation = !alone;
  WorkloadOptions& options = arguments.bench;
  options.roofline = !arguments.no_roofline;
  options.geometry = ParseGeometry(arguments.geometry);
  if (arguments.command->count("--warm-up") == 0) {
    options.warm_up = std::max<std::uint64_t>(options.operations / 2, 1);
  }
  const bool table = PrintsTables(arguments.json);
  const auto start = std::chrono::steady_clock::now();
  WorkloadBench bench(options);
  json report = bench.Facts();
  report["rows"] = json::array();
  const StoreStats& stats = bench.stats();
  const std::vector<Configuration> configurations =
      ablation ? AblationSteps(stats.executor) : std::vector<Configuration>{*alone};
  const bool compares = ComparesWithPublished(options, stats);
  if (ablation) report["published"] = PublishedFacts(options.key_size);
  if (table) {
    fmt::print("{} records of {} + {} bytes, executor {}, {}, {} {}, medians of {}\n",
               options.records, options.key_size, options.value_size, ExecutorName(stats.executor),
               MediumName(stats.medium.medium), ycsb::DistributionName(options.distribution),
               options.theta, options.repeats);
  }
  for (const std::string& workload : arguments.workloads) {
    json rows = bench.Measure(workload, configurations);
    if (ablation) AddFactors(configurations.size(), rows);
    for (json& row : rows) {
      if (!ablation) break;
      const auto mops = row.at("mops").get<double>();
      const std::optional<double> published =
          PublishedMops(kGpHash, workload, options.key_size, row.at("batch").get<std::uint64_t>());
      if (compares && published) row["over_gphash"] = mops / *published;
    }
    ShowProgress("");
    if (table) PrintRows(rows, ablation);
    for (json& row : rows) report["rows"].push_back(std::move(row));
  }
  report["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  FinishReport(name, std::move(report), arguments.json);
}

/// Of batch sizes that nobody asked for, leaves those that there are records and operations for.
void DropTooLarge(Arguments& arguments) {
  const std::uint64_t most =
      std::min<std::uint64_t>(arguments.bench.records, arguments.bench.operations);
  std::erase_if(arguments.bench.batches, [&](std::uint64_t batch) { return batch > most; });
  if (arguments.bench.batches.empty()) arguments.bench.batches = {most};
}

void RunWorkloads(WorkloadsArguments& arguments) {
  if (arguments.bench.batches.empty()) {
    for (unsigned log = arguments.min_log; log <= arguments.max_log; ++log) {
      arguments.bench.batches.push_back(std::uint64_t{1} << log);
    }
    DropTooLarge(arguments);
  }
  Configuration configuration;
  configuration.name = "default";
  configuration.cache.refresh_interval = 0;
  if (arguments.command->count("--directory") > 0) {
    configuration.name = arguments.directory ? "directory" : "no directory";
    configuration.cache.directory = arguments.directory;
  }
  if (arguments.command->count("--cache") > 0) {
    configuration.name = fmt::format("cache {}", arguments.cache);
    configuration.cache.fraction = arguments.cache;
  }
  Run(arguments, "workloads", configuration);
}

/// Adds to the rows whose arrays are in `memory` what `workloads` measures of the same, and their
/// share of it.
void AddShareOfWorkloads(const WorkloadOptions& options, const std::string& memory, json& rows,
                         json& report) {
  WorkloadBench bench(options);
  Configuration configuration;
  configuration.name = "default";
  configuration.cache.refresh_interval = 0;
  json measured = json::array();
  std::string workload;
  for (json& row : rows) {
    if (row.at("memory") != memory) continue;
    if (row.at("workload") != workload) {
      workload = row.at("workload");
      measured = bench.Measure(workload, {configuration});
    }
    for (const json& of_bench : measured) {
      if (of_bench.at("batch") != row.at("batch")) continue;
      row["workloads_mops"] = of_bench.at("mops");
      row["of_workloads"] = row.at("mops").get<double>() / of_bench.at("mops").get<double>();
    }
  }
  report["workloads"] = bench.Facts();
}

void PrintUserRows(const json& rows) {
  const auto begin = [](const json& row) {
    fmt::print("{:<14}{:>9}{:>8}", row.at("workload").get<std::string>(),
               row.at("batch").get<std::uint64_t>(), row.at("memory").get<std::string>());
  };
  fmt::print("{:<14}{:>9}{:>8}{:>10}{:>11}{:>10}{:>7}{:>10}{:>7}{:>11}{:>11}{:>7}\n", "workload",
             "batch", "arrays", "load", "slowest ms", "cold", "hits", "then", "hits", "slowest ms",
             "workloads", "share");
  for (const json& row : rows) {
    begin(row);
    fmt::print("{:>10}{:>11}{:>10}{:>7}{:>10}{:>7}{:>11}{:>11}{:>7}\n", Cell(row, "load_mops", 2),
               Cell(row, "load_slowest_ms", 2), Cell(row, "cold_mops", 2),
               Cell(row, "cold_hit_rate", 3), Cell(row, "mops", 2), Cell(row, "hit_rate", 3),
               Cell(row, "slowest_ms", 2), Cell(row, "workloads_mops", 2),
               Cell(row, "of_workloads", 2));
  }
  fmt::print("\n{:<31}{:>22}{:>22}{:>17}{:>17}\n", "behind that, each batch in ms",
             fmt::format("batches of {}", kSmallBatch), "1 ms between", "refresh asked",
             "others popular");
  fmt::print("{:<14}{:>9}{:>8}{:>11}{:>11}{:>11}{:>11}{:>10}{:>7}{:>10}{:>7}\n", "workload",
             "batch", "arrays", "median", "slowest", "median", "slowest", "M/s", "hits", "M/s",
             "hits");
  for (const json& row : rows) {
    begin(row);
    fmt::print("{:>11}{:>11}{:>11}{:>11}{:>10}{:>7}{:>10}{:>7}\n", Cell(row, "small_median_ms", 3),
               Cell(row, "small_slowest_ms", 3), Cell(row, "spaced_median_ms", 3),
               Cell(row, "spaced_slowest_ms", 3), Cell(row, "asked_mops", 2),
               Cell(row, "asked_hit_rate", 3), Cell(row, "moved_mops", 2),
               Cell(row, "moved_hit_rate", 3));
  }
}

void RunUser(UserArguments& arguments) {
  WorkloadOptions& options = arguments.bench;
  options.roofline = false;
  options.geometry = ParseGeometry(arguments.geometry);
  if (options.batches.empty()) {
    options.batches = {std::uint64_t{1} << 12, std::uint64_t{1} << 14, std::uint64_t{1} << 16,
                       std::uint64_t{1} << 20};
    DropTooLarge(arguments);
  }
  if (arguments.command->count("--warm-up") == 0) options.warm_up = options.operations / 2 + 1;
  const bool gpu = options.executor != ExecutorKind::kCpu && GpuCount() > 0;
  std::ranges::replace(arguments.memory, "auto", gpu ? "device" : "host");
  json rows = json::array();
  for (const std::string& workload : arguments.workloads) {
    for (const std::string& memory : arguments.memory) {
      for (const std::uint64_t batch : options.batches) {
        rows.push_back(MeasureAsUser(options, workload, batch, memory));
      }
    }
  }
  json report;
  report["store"] = rows.front().at("store");
  // (With arrays in host memory there is nothing to compare with: `workloads` has them where the
  // executor works.)
  const bool on_device = report["store"].at("executor") == ExecutorName(ExecutorKind::kCuda);
  const std::string worked_on = on_device ? "device" : "host";
  if (!arguments.no_workloads && std::ranges::count(arguments.memory, worked_on) > 0) {
    AddShareOfWorkloads(options, worked_on, rows, report);
  }
  report["records"] = options.records;
  report["operations"] = options.operations;
  report["repeats"] = options.repeats;
  report["distribution"] = ycsb::DistributionName(options.distribution);
  report["rows"] = std::move(rows);
  FinishReport("user", std::move(report), arguments.json,
               [](const json& made) { PrintUserRows(made.at("rows")); });
}

}  // namespace

void AddWorkloadsCommand(CLI::App& program) {
  auto arguments = std::make_shared<WorkloadsArguments>();
  arguments->workloads = {"c", "b", "a", "find", "find-missing", "update", "insert", "bulk-load"};
  CLI::App* command = program.add_subcommand(
      "workloads", "Throughput, latency and their bound over batch sizes, for each workload");
  AddCommonOptions(*command, *arguments);
  AddNumber(*command, "--min-batch-log", &arguments->min_log, WholeNumber(0, 30),
            "Without --batches: the smallest is 2 to this power");
  AddNumber(*command, "--max-batch-log", &arguments->max_log, WholeNumber(0, 30),
            "Without --batches: the largest is 2 to this power");
  command->add_flag("--directory,!--no-directory", arguments->directory,
                    "With a directory, or without; default: on executor cuda");
  command
      ->add_option("--cache", arguments->cache,
                   "Share of the buckets of which values are cached; default: on cuda what a tenth "
                   "of the GPU's memory holds, 0 on cpu")
      ->check(NumberBetween(0.0, 1.0));
  command->callback([arguments] { RunWorkloads(*arguments); });
}

void AddUserCommand(CLI::App& program) {
  auto arguments = std::make_shared<UserArguments>();
  arguments->workloads = {"c", "b", "a"};
  CLI::App* command = program.add_subcommand(
      "user",
      "Workloads as users meet them: default options, a pool that starts empty, a cold "
      "cache; and what share that is of what `workloads` measures");
  AddCommonOptions(*command, *arguments);
  command->get_option("--workloads")->check(CLI::IsMember(UserWorkloads()));
  command
      ->add_option("--memory", arguments->memory,
                   "Where the arrays of batches are, one after the other: host, pinned (host "
                   "memory that the GPU reaches), device, or auto, which is device with executor "
                   "cuda")
      ->check(CLI::IsMember({"auto", "host", "pinned", "device"}))
      ->delimiter(',')
      ->capture_default_str();
  command->add_flag("--no-workloads", arguments->no_workloads, "Do not run `workloads` beside it");
  command->callback([arguments] { RunUser(*arguments); });
}

void AddAblationCommand(CLI::App& program) {
  auto arguments = std::make_shared<Arguments>();
  arguments->workloads = {"c", "a", "find", "find-missing", "insert"};
  CLI::App* command = program.add_subcommand(
      "ablation", "What each accelerator adds, from none to all, and the factor over GPHash");
  AddCommonOptions(*command, *arguments);
  command->callback([arguments] {
    if (arguments->bench.batches.empty()) {
      arguments->bench.batches = {std::uint64_t{1} << 12, std::uint64_t{1} << 16,
                                  std::uint64_t{1} << 20};
      DropTooLarge(*arguments);
    }
    Run(*arguments, "ablation", {});
  });
}

}  // namespace gpm::bench
