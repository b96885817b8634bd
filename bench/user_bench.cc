#include "bench/user_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/removed_at_end.h"
#include "bench/report.h"
#include "gpmstore/error.h"
#include "ycsb/device_buffers.h"
#include "ycsb/runner.h"
#include "ycsb/workload.h"

namespace gpm::bench {
namespace {

constexpr std::uint64_t kRowBytes = 64;  ///< of an operation, beside key and values, at most
constexpr unsigned kPhases = 8;          ///< at most, each of which has a seed

/// A figure of each repeat.
struct Figures {
  std::vector<double> mops;
  std::vector<double> median_ms;
  std::vector<double> slowest_ms;
  std::vector<double> hit_rate;

  /// @param missing the workload's keys are not there
  /// @throws Error(kDamaged) for wrong results
  void Add(const ycsb::PhaseReport& report, bool missing, const CacheStats& before,
           const CacheStats& after) {
    const std::uint64_t lost = missing ? 0 : report.outcome(Result::kNotFound);
    if (lost != 0) {
      throw Error(ErrorCode::kDamaged, fmt::format("{} keys that are there were not found", lost));
    }
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
  run.generator_threads = options.threads;
  if (memory != "host") {
    const ycsb::Memory kind = memory == "device" ? ycsb::Memory::kDevice : ycsb::Memory::kPinned;
    run.buffers = [kind](const ycsb::BatchBuffers::Shape& shape) {
      return std::make_unique<ycsb::DeviceBatchBuffers>(shape, kind);
    };
  }
  std::map<std::string, Figures> figures;  // by prefix
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
    spec.seed = options.seed + kPhases * repeat;
    spec.record_shift = 0;
    std::string phase;
    std::chrono::milliseconds pause{};
    run.progress = [&](ycsb::Phase, std::uint64_t done, std::uint64_t total) {
      ShowProgress(
          fmt::format("user {}, batch {}: {} {} of {}", workload, batch, phase, done, total));
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
    };
    const auto measure = [&](const std::string& name, const auto& apply) {
      phase = name;
      const CacheStats before = store.Stats().cache;
      const ycsb::PhaseReport report = apply();
      stats = store.Stats();
      figures[name].Add(report, spec.mix.missing > 0, before, stats.cache);
    };
    const std::uint64_t some = std::min(kColdOperations, 16 * options.records);
    run.batch_rows = batch;
    run.contents_known = true;
    spec.operations = some;
    // The cold start in one chunk: while operations are made the store goes on filling its cache,
    // and that time does not count.
    ycsb::RunnerOptions in_one = run;
    in_one.chunk_bytes = std::max<std::uint64_t>(
        run.chunk_bytes, some * (kRowBytes + store.key_size() + 2 * store.value_size()));
    ycsb::Runner first(store, spec, in_one);
    measure("load", [&] { return first.Load(); });
    measure("cold", [&] { return first.Run(); });
    run.contents_known = false;  // the first runner's operations may have changed values
    const auto more = [&](const std::string& name, std::uint64_t rows, std::uint64_t operations) {
      run.batch_rows = rows;
      spec.operations = operations;
      ++spec.seed;
      ycsb::Runner runner(store, spec, run);
      measure(name, [&] { return runner.Run(); });
    };
    more("", batch, options.operations);
    more("small", kSmallBatch, std::min(some, kSmallBatches * kSmallBatch));
    pause = std::chrono::milliseconds(1);
    more("spaced", batch, std::min(some, kSpacedBatches * batch));
    pause = {};
    store.RefreshCache().Wait();
    more("asked", batch, some);
    if (ycsb::HasSkew(spec.distribution)) {
      spec.record_shift = options.records / 2;
      more("moved", batch, some);
    }
    refreshes.push_back(static_cast<double>(stats.cache.refreshes));
    store.Close();
  }
  nlohmann::json row = {{"workload", workload},
                        {"batch", batch},
                        {"memory", memory},
                        {"refreshes", Median(refreshes)},
                        {"store", StoreFacts(stats)}};
  for (const auto& [name, of_phase] : figures) {
    of_phase.AddTo(&row, name.empty() ? "" : name + "_");
  }
  return row;
}

}  // namespace gpm::bench
