#include "bench/cache_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/report.h"
#include "pm/thread_pool.h"

namespace gpm::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// Where these are not what is studied:
constexpr CachePolicy kPolicy = CachePolicy::kTinyLfu;
constexpr double kFraction = 0.2;
constexpr double kWindow = 0.010;  ///< seconds

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Throughput in windows of time: the operations of a batch spread evenly over its time.
class Windows {
 public:
  /// @param begin, end seconds
  void Add(double begin, double end, std::uint64_t operations) {
    const double rate = static_cast<double>(operations) / (end - begin);
    for (double from = begin; from < end;) {
      const auto window = static_cast<std::size_t>(from / kWindow);
      const double to = std::min(end, static_cast<double>(window + 1) * kWindow);
      if (to <= from) break;
      operations_.resize(std::max(operations_.size(), window + 1));
      operations_[window] += rate * (to - from);
      from = to;
    }
  }

  /// Mops/s of the whole windows; the last one may not be whole.
  std::vector<double> Mops() const {
    std::vector<double> mops;
    for (std::size_t i = 0; i + 1 < operations_.size(); ++i) {
      mops.push_back(operations_[i] / kWindow / 1e6);
    }
    return mops;
  }

 private:
  std::vector<double> operations_;
};

/// The windows that touch [begin, end].
std::vector<double> Between(const std::vector<double>& mops, double begin, double end) {
  std::vector<double> result;
  for (std::size_t i = 0; i < mops.size(); ++i) {
    const double from = static_cast<double>(i) * kWindow;
    if (from + kWindow > begin && from <= end) result.push_back(mops[i]);
  }
  return result;
}

double MedianOrZero(const std::vector<double>& values) {
  return values.empty() ? 0 : Median(values);
}

}  // namespace

CacheBench::CacheBench(const CacheBenchOptions& options)
    : options_(options),
      threads_(ThreadsOf(options.threads)),
      pool_({options.pool, options.records, options.key_size, options.value_size, options.seed,
             options.executor, options.threads},
            threads_) {}

CacheOptions CacheBench::MakeCacheOptions(CachePolicy policy, double fraction,
                                          bool directory) const {
  CacheOptions cache;
  cache.directory = directory;
  cache.policy = policy;
  cache.fraction = fraction;
  cache.refresh_interval = 0;
  return cache;
}

std::uint64_t CacheBench::min_batch() const { return *std::ranges::min_element(options_.batches); }

std::uint64_t CacheBench::max_batch() const { return *std::ranges::max_element(options_.batches); }

PreparedRun& CacheBench::Run(const std::string& workload, double theta, bool shift) {
  std::unique_ptr<PreparedRun>& run = runs_[{workload, theta, shift}];
  if (run == nullptr) {
    ShowProgress(fmt::format("generating workload {}, theta {}", workload, theta));
    RunSpec spec;
    spec.workload = ycsb::PresetWorkload(workload);
    spec.workload.distribution = options_.distribution;
    spec.workload.records = options_.records;
    spec.workload.theta = theta;
    spec.workload.seed = options_.seed;
    spec.parts = {options_.warm_up, options_.warm_up, options_.operations};
    spec.workload.record_shift = shift ? options_.records / 2 + 1 : 0;
    run = std::make_unique<PreparedRun>(spec, options_.key_size, options_.value_size, max_batch(),
                                        pool_.memory(), threads_);
  }
  return *run;
}

const BucketUses& CacheBench::Uses(const std::string& workload, double theta) {
  pool_.Restore();
  const Key key{workload, theta, false};
  if (const auto known = uses_.find(key); known != uses_.end()) return known->second;
  if (!map_) map_.emplace(options_.pool, options_.records, ycsb::KeyOrder::kHashed, threads_);
  const BucketUses uses(*map_, Run(workload, theta).records(kMeasured));
  return uses_.emplace(key, uses).first->second;
}

double CacheBench::ApplyPart(Store& store, PreparedRun& run, std::size_t part, std::uint64_t batch,
                             const PreparedRun::BatchDone& done) {
  if (run.writes()) pool_.MarkAged();
  const double seconds = run.Apply(store, part, batch, done);
  run.Settle(part, batch, pool_.contents());
  return seconds;
}

void CacheBench::WarmUp(Store& store, PreparedRun& run, std::uint64_t batch) {
  for (const std::size_t part : {kWarmUp, kWarmUp + 1}) {
    ApplyPart(store, run, part, batch);
    store.RefreshCache().Wait();
  }
}

CacheBench::Measured CacheBench::Measure(Store& store, PreparedRun& run, std::uint64_t batch,
                                         unsigned repeats) {
  const CacheStats before = store.Stats().cache;
  Measured measured;
  for (unsigned i = 0; i < repeats; ++i) {
    measured.seconds.push_back(ApplyPart(store, run, kMeasured, batch));
  }
  measured.cache = store.Stats().cache;
  measured.hit_rate = HitRate(before, measured.cache);
  return measured;
}

double CacheBench::Mops(double seconds) const {
  return static_cast<double>(options_.operations) / seconds / 1e6;
}

std::vector<double> CacheBench::Mops(const std::vector<double>& seconds) const {
  std::vector<double> mops;
  for (const double each : seconds) mops.push_back(Mops(each));
  return mops;
}

json CacheBench::Sizes() {
  json rows = json::array();
  std::map<std::uint64_t, double> without;  // Mops/s of the workload with no cache, by batch size
  const auto measure = [&](bool directory, CachePolicy policy, double fraction,
                           const std::string& workload) {
    PreparedRun& run = Run(workload, options_.theta);
    const BucketUses& uses = Uses(workload, options_.theta);
    // Opened for each workload, so that nothing is known of the operations to be measured.
    Store store = pool_.Open(MakeCacheOptions(policy, fraction, directory));
    WarmUp(store, run, min_batch());
    for (const std::uint64_t batch : options_.batches) {
      ShowProgress(fmt::format("{} {}, workload {}, batch {}", CachePolicyName(policy), fraction,
                               workload, batch));
      const Measured measured = Measure(store, run, batch, options_.repeats);
      const double best = uses.BestShare(measured.cache.frames);
      const double mops = Mops(Median(measured.seconds));
      if (!directory) without[batch] = mops;
      rows.push_back({{"workload", workload},
                      {"batch", batch},
                      {"directory", directory},
                      {"policy", CachePolicyName(policy)},
                      {"fraction", fraction},
                      {"blocks", measured.cache.frames},
                      {"cache_bytes", measured.cache.bytes},
                      {"load_seconds", measured.cache.refresh_seconds},
                      {"mops", mops},
                      {"mops_runs", Mops(measured.seconds)},
                      {"speedup", mops / without.at(batch)},
                      {"hit_rate", measured.hit_rate},
                      {"best_static", best},
                      {"of_best_static", best > 0 ? measured.hit_rate / best : 0}});
    }
    store.Close();
  };
  for (const std::string& workload : options_.workloads) {
    measure(false, CachePolicy::kOff, 0, workload);
    measure(true, CachePolicy::kOff, 0, workload);
    for (const CachePolicy policy : options_.policies) {
      for (const double fraction : options_.fractions) measure(true, policy, fraction, workload);
    }
  }
  return rows;
}

json CacheBench::Theta() {
  json rows = json::array();
  for (const double theta : options_.thetas) {
    PreparedRun& run = Run("c", theta);
    const BucketUses& uses = Uses("c", theta);
    std::vector<double> without;  // Mops/s, by batch size
    for (const bool cached : {false, true}) {
      Store store =
          pool_.Open(MakeCacheOptions(cached ? kPolicy : CachePolicy::kOff, kFraction, cached));
      WarmUp(store, run, min_batch());
      for (std::size_t i = 0; i < options_.batches.size(); ++i) {
        const std::uint64_t batch = options_.batches[i];
        ShowProgress(
            fmt::format("theta {}, {}, batch {}", theta, cached ? "cache" : "no cache", batch));
        const Measured measured = Measure(store, run, batch, options_.repeats);
        const double mops = Mops(Median(measured.seconds));
        if (!cached) {
          without.push_back(mops);
          continue;
        }
        const double best = uses.BestShare(measured.cache.frames);
        rows.push_back({{"theta", theta},
                        {"batch", batch},
                        {"mops_no_cache", without[i]},
                        {"mops", mops},
                        {"speedup", mops / without[i]},
                        {"hit_rate", measured.hit_rate},
                        {"best_static", best},
                        {"of_best_static", best > 0 ? measured.hit_rate / best : 0}});
      }
      store.Close();
    }
    if (theta != options_.theta) runs_.erase({"c", theta, false});
  }
  return rows;
}

json CacheBench::Load() {
  json rows = json::array();
  for (const std::string& workload : options_.workloads) {
    for (const double fraction : options_.load_fractions) {
      for (const bool beside : {true, false}) rows.push_back(LoadOnce(workload, fraction, beside));
    }
    runs_.erase({workload, options_.theta, true});
  }
  return rows;
}

json CacheBench::LoadOnce(const std::string& workload, double fraction, bool beside) {
  const std::uint64_t batch = min_batch();
  PreparedRun& old = Run(workload, options_.theta);
  PreparedRun& shifted = Run(workload, options_.theta, true);
  ShowProgress(
      fmt::format("loading, workload {}, {} batches", workload, beside ? "beside" : "between"));
  Store store = pool_.Open(MakeCacheOptions(kPolicy, fraction, true));
  WarmUp(store, old, batch);
  // Twice what was counted of the old operations: the new ones decide now.
  ApplyPart(store, shifted, kWarmUp, batch);
  ApplyPart(store, shifted, kWarmUp + 1, batch);
  const CacheStats before = store.Stats().cache;

  // The first pass shows the steady rate. The loading begins in the middle of the second, and one
  // pass follows that begins after its end. Settling the first is cut out of the time.
  Windows windows;
  double now = 0;
  double load_begin = -1;
  double load_end = -1;
  Ticket load;
  Clock::time_point last;
  std::uint64_t until_load = options_.operations + options_.operations / 2;
  const auto done = [&](std::uint64_t operations) {
    const Clock::time_point time = Clock::now();
    const double end = now + Seconds(last, time);
    windows.Add(now, end, operations);
    now = end;
    last = time;
    if (load_begin >= 0) {
      if (load_end < 0 && store.Stats().cache.refreshes > before.refreshes) load_end = now;
      return;
    }
    until_load -= std::min(until_load, operations);
    if (until_load > 0) return;
    load_begin = now;
    load = store.RefreshCache();
    if (beside) return;
    load.Wait();
    last = Clock::now();
    now = load_end = load_begin + Seconds(time, last);
  };
  last = Clock::now();
  ApplyPart(store, shifted, kMeasured, batch, done);
  const double hits_before = HitRate(before, store.Stats().cache);
  CacheStats pass;
  last = Clock::now();
  for (bool loaded = false; !loaded;) {
    loaded = load_end >= 0;
    pass = store.Stats().cache;
    shifted.Apply(store, kMeasured, batch, done);
  }
  shifted.Settle(kMeasured, batch, pool_.contents());
  load.Wait();
  const CacheStats cache = store.Stats().cache;
  store.Close();

  const std::vector<double> mops = windows.Mops();
  const double steady = MedianOrZero(Between(mops, 0, load_begin - kWindow));
  const std::vector<double> during = Between(mops, load_begin, load_end);
  const double lowest = during.empty() ? 0 : *std::ranges::min_element(during);
  return {{"workload", workload},
          {"mode", beside ? "beside" : "between"},
          {"batch", batch},
          {"fraction", fraction},
          {"blocks", cache.frames},
          {"cache_bytes", cache.bytes},
          {"hit_rate_before", hits_before},
          {"hit_rate_after", HitRate(pass, cache)},
          {"load_begin_ms", load_begin * 1e3},
          {"load_end_ms", load_end * 1e3},
          {"load_seconds", cache.refresh_seconds},
          {"steady_mops", steady},
          {"after_mops", MedianOrZero(Between(mops, load_end + kWindow, now))},
          {"lowest_mops", lowest},
          {"lowest_of_steady", steady > 0 ? lowest / steady : 0},
          {"window_ms", kWindow * 1e3},
          {"window_mops", mops}};
}

json CacheBench::Cost() {
  json rows = json::array();
  RunSpec inserts;
  inserts.phase = ycsb::Phase::kLoad;
  inserts.workload = ycsb::PresetWorkload("load");
  inserts.parts = {options_.inserts};
  PreparedRun insert_run(inserts, options_.key_size, options_.value_size, max_batch(),
                         pool_.memory(), threads_);
  for (const std::uint64_t batch : options_.batches) {
    for (const bool insert : {false, true}) {
      std::array<std::vector<double>, 2> mops;  // without and with a cache
      for (unsigned i = 0; i < 2 * options_.repeats; ++i) {
        const bool cached = (i + i / 2) % 2 == 1;  // whoever is second in one turn begins the next
        ShowProgress(fmt::format("{}, {}, batch {}, turn {}", insert ? "inserts" : "workload a",
                                 cached ? "cache" : "no cache", batch, i / 2 + 1));
        mops[cached].push_back(insert ? InsertOnce(insert_run, batch, cached)
                                      : UpdateOnce(batch, cached));
      }
      rows.push_back({{"workload", insert ? "load" : "a"},
                      {"batch", batch},
                      {"mops_no_cache", Median(mops[0])},
                      {"mops_no_cache_runs", mops[0]},
                      {"mops", Median(mops[1])},
                      {"mops_runs", mops[1]},
                      {"ratio", Median(mops[1]) / Median(mops[0])}});
    }
  }
  return rows;
}

double CacheBench::UpdateOnce(std::uint64_t batch, bool cached) {
  Store store = pool_.Open(CostOptions(cached, options_.operations));
  PreparedRun& run = Run("a", options_.theta);
  WarmUp(store, run, batch);
  const double seconds = ApplyPart(store, run, kMeasured, batch);
  store.Close();
  return Mops(seconds);
}

double CacheBench::InsertOnce(PreparedRun& run, std::uint64_t batch, bool cached) {
  PoolSpec spec = pool_.spec();
  spec.path += ".inserts";
  spec.records = options_.inserts;
  OpenOptions open;
  open.executor = spec.executor;
  open.threads = spec.threads;
  open.cache = CostOptions(cached, options_.inserts);
  const RemovedOnSignal name(spec.path);
  Store store = Store::Create(spec.path, CreateOptionsOf(spec), open);
  std::filesystem::remove(spec.path);  // it goes with the store
  const double seconds = run.Apply(store, 0, batch);
  Contents none;
  run.Settle(0, batch, none);
  store.Close();
  return static_cast<double>(options_.inserts) / seconds / 1e6;
}

CacheOptions CacheBench::CostOptions(bool cached, std::uint64_t operations) const {
  CacheOptions cache = MakeCacheOptions(cached ? kPolicy : CachePolicy::kOff, kFraction, cached);
  // A few times in any case.
  constexpr std::uint64_t kInterval = 64'000'000;
  cache.refresh_interval = std::min(kInterval, operations / 4);
  return cache;
}

}  // namespace gpm::bench
