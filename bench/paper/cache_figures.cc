// What is cached, and how it is loaded: by the parts of `cache`.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/cache_bench.h"
#include "bench/kv_adapter.h"
#include "bench/paper/figures.h"
#include "bench/report.h"

namespace gpm::bench {
namespace {

using nlohmann::json;

CacheBenchOptions OptionsOf(const PaperArguments& arguments) {
  CacheBenchOptions options;
  options.records = arguments.records();
  options.operations = options.records;
  options.warm_up = std::max<std::uint64_t>(options.records / 2, 1);
  options.batches = {arguments.batch()};
  options.repeats = arguments.repeats;
  options.executor = arguments.executor;
  options.threads = arguments.threads;
  options.pool = TemporaryPoolPath();
  return options;
}

}  // namespace

void MeasureFigure11(const PaperArguments& arguments, json& report) {
  CacheBenchOptions options = OptionsOf(arguments);
  // Those of the paper, and the one that is default.
  options.policies = {CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom,
                      CachePolicy::kTinyLfu};
  options.fractions = {0.05, 0.1, 0.2, 0.4};
  CacheBench bench(options);
  for (json& row : bench.Sizes()) {
    row["series"] = row.at("directory") ? row.at("policy") : json("no directory");
    report["rows"].push_back(std::move(row));
  }
  report["store"] = StoreFacts(bench.stats());
}

void MeasureFigure15(const PaperArguments& arguments, json& report) {
  CacheBenchOptions options = OptionsOf(arguments);
  options.workloads = {"c"};
  options.load_fractions = {0.05, 0.1, 0.2, 0.4};
  CacheBench bench(options);
  for (json& row : bench.Load()) {
    row["series"] = row.at("mode");
    report["rows"].push_back(std::move(row));
  }
  report["store"] = StoreFacts(bench.stats());
}

}  // namespace gpm::bench
