// `gpmstore_bench paper`: what some figures of GPHash's evaluation show, of this store, by the
// parts of `workloads` and `elastic`.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/commands.h"
#include "bench/elastic_bench.h"
#include "bench/kv_adapter.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/workload_bench.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

/// The paper's setup (GPHash, FAST'25, section 4.1): records loaded, and operations of a batch.
constexpr double kRecords = 16e6;
constexpr std::uint64_t kBatch = std::uint64_t{1} << 12;
/// Inserts between two load factors of figure 7, or a 16th of all.
constexpr std::uint64_t kFillStep = std::uint64_t{1} << 14;

struct PaperArguments {
  unsigned figure = 5;
  double scale = 1;
  unsigned repeats = 3;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  std::string commit;
  std::string json;
};

WorkloadOptions OptionsOf(const PaperArguments& arguments) {
  WorkloadOptions options;
  options.records = static_cast<std::uint64_t>(kRecords * arguments.scale);
  options.operations = options.records;
  options.warm_up = options.records / 2;
  options.batches = {std::min(kBatch, options.records)};
  options.repeats = arguments.repeats;
  options.executor = arguments.executor;
  options.threads = arguments.threads;
  options.pool = TemporaryPoolPath();
  options.roofline = false;
  return options;
}

/// As the paper has it, what is cached is a fifth of the buckets; the directory is ours.
Configuration PaperConfiguration() {
  Configuration configuration;
  configuration.name = "directory, cache 0.2";
  configuration.cache.refresh_interval = 0;
  configuration.cache.directory = true;  // without it there is no cache
  configuration.cache.fraction = 0.2;
  return configuration;
}

/// Adds the rows of workloads, each with its series and what the rows of this figure differ in.
void AddThroughput(const WorkloadOptions& options, const std::vector<std::string>& workloads,
                   const std::string& series, json& report) {
  WorkloadBench bench(options);
  for (const std::string& workload : workloads) {
    for (json& row : bench.Measure(workload, {PaperConfiguration()})) {
      row["series"] = series.empty() ? workload : series;
      row["key_size"] = options.key_size;
      row["value_size"] = options.value_size;
      row["theta"] = options.theta;
      row["geometry"] = GeometryName(options.geometry);
      report["rows"].push_back(std::move(row));
    }
  }
  report["store"] = StoreFacts(bench.stats());
}

/// Load factors of a table that starts small, after each batch of inserts.
json MeasureFill(const PaperArguments& arguments, const Geometry& geometry) {
  ElasticOptions options;
  options.pool = TemporaryPoolPath();
  options.geometry = geometry;
  options.executor = arguments.executor;
  options.threads = arguments.threads;
  options.growths = {OpenOptions{}.growth};
  options.erases = 0;
  const auto records = static_cast<std::uint64_t>(kRecords * arguments.scale);
  options.batch = std::min(kFillStep, records / 16);
  const auto inserts = static_cast<unsigned>(records / options.batch);
  options.steps = 2 * inserts;  // the second half erases, and isn't looked at
  const json measured = MeasureElastic(options);
  json rows = json::array();
  for (unsigned step = 0; step < inserts; ++step) {
    const json& from = measured.at("steps").at(step);
    rows.push_back({{"series", GeometryName(geometry)},
                    {"geometry", GeometryName(geometry)},
                    {"items", from.at("items")},
                    {"load_factor", from.at("load_factor")},
                    {"resizes", from.at("resizes")}});
  }
  return {{"rows", std::move(rows)}, {"store", measured.at("store")}};
}

double MaximumLoadFactor(const json& rows) {
  double most = 0;
  for (const json& row : rows) most = std::max(most, row.at("load_factor").get<double>());
  return most;
}

/// Figures 5 and 6: throughput and latency over batch sizes.
void MeasureBatches(const PaperArguments& arguments, std::uint32_t key_size, json& report) {
  WorkloadOptions options = OptionsOf(arguments);
  options.key_size = key_size;
  options.batches.clear();
  for (unsigned log = 10; log <= 20; log += 2) {
    const std::uint64_t batch = std::uint64_t{1} << log;
    if (batch <= options.records) options.batches.push_back(batch);
  }
  AddThroughput(options,
                {"find", "find-missing", "insert", "update", "erase", "c", "b", "a", "d", "f"}, "",
                report);
}

void MeasureFigure7(const PaperArguments& arguments, json& report) {
  report.update(MeasureFill(arguments, Geometry{}));
  report["maximum_load_factor"] = MaximumLoadFactor(report.at("rows"));
}

void MeasureFigure12(const PaperArguments& arguments, json& report) {
  for (const std::uint32_t key_size : {8u, 16u, 32u, 64u, 128u}) {
    WorkloadOptions options = OptionsOf(arguments);
    options.key_size = key_size;
    AddThroughput(options, {"c"}, "key size", report);
  }
  for (const double theta : {0.5, 0.7, 0.9, 0.99}) {
    WorkloadOptions options = OptionsOf(arguments);
    options.theta = theta;
    AddThroughput(options, {"c"}, "skew", report);
  }
}

/// Figure 13: geometries of 32 slots that a warp reads at once, each with its maximum load factor.
void MeasureFigure13(const PaperArguments& arguments, json& report) {
  for (const char* name :
       {"1L-1H-32S", "1L-2H-16S", "2L-1H-16S", "1L-4H-8S", "2L-2H-8S", "2L-4H-4S"}) {
    WorkloadOptions options = OptionsOf(arguments);
    options.geometry = ParseGeometry(name);
    const std::size_t first = report.at("rows").size();
    AddThroughput(options, {"insert", "c"}, name, report);
    const double most = MaximumLoadFactor(MeasureFill(arguments, options.geometry).at("rows"));
    for (std::size_t i = first; i < report.at("rows").size(); ++i) {
      report["rows"][i]["maximum_load_factor"] = most;
    }
  }
}

void RunPaper(const PaperArguments& arguments) {
  json report = {{"benchmark", "paper"},
                 {"figure", arguments.figure},
                 {"scale", arguments.scale},
                 {"records", static_cast<std::uint64_t>(kRecords * arguments.scale)},
                 {"repeats", arguments.repeats},
                 {"commit", arguments.commit},
                 {"machine", MachineFacts()},
                 {"rows", json::array()}};
  switch (arguments.figure) {
    case 5:
      MeasureBatches(arguments, 8, report);
      break;
    case 6:
      MeasureBatches(arguments, 32, report);
      break;
    case 7:
      MeasureFigure7(arguments, report);
      break;
    case 12:
      MeasureFigure12(arguments, report);
      break;
    default:
      MeasureFigure13(arguments, report);
      break;
  }
  ShowProgress("");
  if (arguments.json != "-") {
    fmt::print("figure {}: {} rows\n", arguments.figure, report.at("rows").size());
  }
  WriteJson(report, arguments.json);
}

}  // namespace

void AddPaperCommand(CLI::App& program) {
  auto arguments = std::make_shared<PaperArguments>();
  CLI::App* command = program.add_subcommand(
      "paper", "What a figure of GPHash's evaluation shows, of our store on this machine");
  command
      ->add_option("--figure", arguments->figure,
                   "5, 6 (workloads over batch sizes, keys of 8 and 32 bytes), 7 (load factor over "
                   "inserts), 12 (key sizes, skew), 13 (geometries)")
      ->required()
      ->check(CLI::IsMember({5u, 6u, 7u, 12u, 13u}));
  command->add_option("--scale", arguments->scale, "Share of the paper's 16 million records")
      ->check(CLI::Range(0.0005, 100.0))
      ->capture_default_str();
  command->add_option("--repeats", arguments->repeats, "Repeats, of which medians are given")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--commit", arguments->commit, "Noted in the report");
  AddExecutorOptions(*command, &arguments->executor, &arguments->threads);
  AddJsonOption(*command, &arguments->json);
  command->get_option("--json")->required();
  command->callback([arguments] { RunPaper(*arguments); });
}

}  // namespace gpm::bench
