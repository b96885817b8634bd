#include "bench/user_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "ycsb/device_buffers.h"
#include "ycsb/runner.h"
#include "ycsb/workload.h"

namespace gpm::bench {
namespace {

/// A figure of each repeat.
struct Figures {
  std::vector<double> mops;
  std::vector<double> median_ms;
  std::vector<double> slowest_ms;
  std::vector<double> hit_rate;

  /// @throws Error(kDamaged) for wrong results
  void Add(const ycsb::PhaseReport& report, const CacheStats& before, const CacheStats& after) {
    if (report.wrong != 0) {
      throw Error(ErrorCode::kDamaged,
                  fmt::format("{} of {} verified results were wrong, first {}", report.wrong,
                              report.verified, report.first_wrong));
    }
    mops.push_back(report.mops());
    median_ms.push_back(static_cast<double>(report.batch_latency.Percentile(0.5)) / 1e6);
    slowest_ms.push_back(static_cast<double>(report.batch_latency.max()) / 1e6);
    hit_rate.push_back(HitRate(before, after));
  }
  void AddTo(nlohmann::json* row, const std::string& prefix) const {
    (*row)[prefix + "mops"] = Median(mops);
    (*row)[prefix + "mops_runs"] = mops;
    (*row)[prefix + "median_ms"] = Median(median_ms);
    (*row)[prefix + "slowest_ms"] = Median(slowest_ms);
    (*row)[prefix + "hit_rate"] = Median(hit_rate);
  }
};

}  // namespace

const std::vector<std::string>& UserWorkloads() {
  static const std::vector<std::string> workloads = {"c",     "b", "a", "find", "find-missing",
                                                     "update"};
  return workloads;
}

nlohmann::json MeasureAsUser(const WorkloadOptions& options, const std::string& workload,
                             std::uint64_t batch, const std::string& memory) {
  ycsb::WorkloadSpec spec = ycsb::PresetWorkload(workload);
  if (ycsb::HasSkew(spec.distribution)) {
    spec.distribution = options.distribution;
    spec.theta = options.theta;
  }
  spec.records = options.records;
  ycsb::RunnerOptions run;
  run.batch_rows = batch;
  run.generator_threads = options.threads;
  if (memory != "host") {
    const ycsb::Memory kind = memory == "device" ? ycsb::Memory::kDevice : ycsb::Memory::kPinned;
    run.buffers = [kind](const ycsb::BatchBuffers::Shape& shape) {
      return std::make_unique<ycsb::DeviceBatchBuffers>(shape, kind);
    };
  }
  run.progress = [&](ycsb::Phase, std::uint64_t done, std::uint64_t total) {
    ShowProgress(fmt::format("user {}, batch {}: {} of {}", workload, batch, done, total));
  };
  Figures load;
  Figures cold;
  Figures after;
  std::vector<double> refreshes;
  StoreStats stats;
  for (unsigned repeat = 0; repeat < options.repeats; ++repeat) {
    RemovedAtEnd pool(options.pool);
    OpenOptions open;
    open.executor = options.executor;
    open.threads = options.threads;
    Store store = Store::Create(options.pool,
                                {.key_size = options.key_size,
                                 .value_size = options.value_size,
                                 .geometry = options.geometry},
                                open);
    pool.Made();
    const auto measure = [&](Figures& figures, auto&& phase) {
      const CacheStats before = store.Stats().cache;
      const ycsb::PhaseReport report = phase();
      stats = store.Stats();
      figures.Add(report, before, stats.cache);
    };
    spec.operations = std::min(kColdOperations, 16 * options.records);
    spec.seed = options.seed + 2 * repeat;
    ycsb::Runner first(store, spec, run);
    measure(load, [&] { return first.Load(); });
    measure(cold, [&] { return first.Run(); });
    spec.operations = options.operations;
    ++spec.seed;
    ycsb::RunnerOptions again = run;
    again.contents_known = false;  // the first runner's operations may have changed values
    measure(after, [&] { return ycsb::Runner(store, spec, again).Run(); });
    refreshes.push_back(static_cast<double>(stats.cache.refreshes));
    store.Close();
  }
  nlohmann::json row = {{"workload", workload},
                        {"batch", batch},
                        {"memory", memory},
                        {"refreshes", Median(refreshes)},
                        {"store", StoreFacts(stats)}};
  load.AddTo(&row, "load_");
  cold.AddTo(&row, "cold_");
  after.AddTo(&row, "");
  return row;
}

}  // namespace gpm::bench
