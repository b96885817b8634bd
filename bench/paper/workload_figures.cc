// Throughput and latency: by the parts of `workloads`.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/ablation.h"
#include "bench/kv_adapter.h"
#include "bench/paper/figures.h"
#include "bench/report.h"
#include "bench/workload_bench.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

WorkloadOptions OptionsOf(const PaperArguments& arguments) {
  WorkloadOptions options;
  options.records = arguments.records();
  options.operations = options.records;
  options.warm_up = options.records / 2;
  options.batches = {arguments.batch()};
  options.repeats = arguments.repeats;
  options.executor = arguments.executor;
  options.threads = arguments.threads;
  options.pool = TemporaryPoolPath();
  options.roofline = false;
  return options;
}

Configuration PaperConfiguration() { return {"directory, cache 0.2", PaperCache(), {}}; }

/// Adds the rows of workloads, each with its series and what the rows of this figure differ in.
/// @param series empty: that of a workload has its name
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

}  // namespace

void MeasureFigure9(const PaperArguments& arguments, json& report) {
  WorkloadBench bench(OptionsOf(arguments));
  const std::vector<Configuration> steps = AblationSteps(bench.stats().executor);
  for (const char* workload : {"insert", "a", "b", "c", "d", "f"}) {
    json rows = bench.Measure(workload, steps);
    AddFactors(steps.size(), rows);
    for (json& row : rows) {
      row["series"] = row.at("configuration");
      report["rows"].push_back(std::move(row));
    }
  }
  report["store"] = StoreFacts(bench.stats());
  if (bench.stats().executor == ExecutorKind::kCuda) AddStepsOfGpHash(arguments, report);
}

// Geometries of 32 slots, which a warp reads at once.
void MeasureFigure13(const PaperArguments& arguments, json& report) {
  for (const char* name :
       {"1L-1H-32S", "1L-2H-16S", "2L-1H-16S", "1L-4H-8S", "2L-2H-8S", "2L-4H-4S"}) {
    WorkloadOptions options = OptionsOf(arguments);
    options.geometry = ParseGeometry(name);
    const std::size_t first = report.at("rows").size();
    AddThroughput(options, {"insert", "c"}, name, report);
    const double most = MaximumLoadFactor(arguments, options.geometry);
    for (std::size_t i = first; i < report.at("rows").size(); ++i) {
      report["rows"][i]["maximum_load_factor"] = most;
    }
  }
}

// As many records as there are, or as many as take no more bytes than those of the paper's values.
void MeasureValues(const PaperArguments& arguments, json& report) {
  for (const std::uint32_t value_size : {8u, 16u, 32u, 64u, 128u, 256u, 512u, 1024u}) {
    WorkloadOptions options = OptionsOf(arguments);
    const std::uint64_t records = options.records * WorkloadOptions{}.value_size / value_size;
    options.value_size = value_size;
    options.records = std::min(options.records, std::max<std::uint64_t>(records, 1));
    options.operations = options.records;
    options.warm_up = std::max<std::uint64_t>(options.records / 2, 1);
    options.batches = {std::min(kPaperBatch, options.records)};
    AddThroughput(options, {"find", "insert", "update", "c"}, "", report);
  }
}

}  // namespace gpm::bench
