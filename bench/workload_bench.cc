#include "bench/workload_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/report.h"
#include "pm/thread_pool.h"
#include "recovery/check.h"

namespace gpm::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

const std::string kInsert = "insert";
const std::string kBulkLoad = "bulk-load";
const std::string kErase = "erase";

/// What a batch of Store::BulkLoad has at most.
constexpr std::uint64_t kBulkBatch = std::uint64_t{1} << 22;

/// Whether it loads the records into an empty pool.
bool Loads(const std::string& workload) { return workload == kInsert || workload == kBulkLoad; }

/// Options that can't be met, before a pool is made.
const WorkloadOptions& Checked(const WorkloadOptions& options) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  if (options.operations + 2 * options.warm_up >= ~0u) {
    refuse("operations and two warm-ups together are below 2^32");
  }
  if (options.batches.empty()) refuse("no batch size was given");
  const std::uint64_t most = std::min(options.operations, options.records);
  for (const std::uint64_t batch : options.batches) {
    if (batch == 0 || batch > most) {
      refuse(
          fmt::format("a batch of {}: it has 1 to {} operations, the least of records and "
                      "operations measured",
                      batch, most));
    }
  }
  return options;
}

std::uint64_t MaxBatch(const WorkloadOptions& options) {
  return *std::ranges::max_element(options.batches);
}

RooflineOptions RooflineOptionsOf(const WorkloadOptions& options, const LoadedPool& pool) {
  RooflineOptions roofline;
  roofline.executor = pool.spec().executor;
  roofline.value_size = options.value_size;
  roofline.threads = options.threads;
  roofline.pool = options.pool + ".range";
  // What the values take, which are most of what is accessed.
  roofline.range_bytes = InlineValues(options.value_size)
                             ? pool.stats().pm_bytes
                             : options.records * CellBytes(options.value_size);
  // For batches between two of these the next larger one holds. Fewer accesses than a thousand at
  // once are no range's limit, but the launch's.
  roofline.accesses.clear();
  for (const std::uint64_t batch : options.batches) {
    const auto log = static_cast<unsigned>(std::ceil(std::log2(static_cast<double>(batch)) / 2));
    roofline.accesses.push_back(std::uint64_t{1} << std::max(10u, 2 * log));
  }
  roofline.repeats = std::max(3u, options.repeats);
  return roofline;
}

json ToJson(const Accesses& accesses) {
  return {{"read_bytes", accesses.read_bytes},
          {"write_bytes", accesses.write_bytes},
          {"ordered_reads", accesses.ordered_reads},
          {"ordered_touches", accesses.ordered_touches},
          {"ordered_writes", accesses.ordered_writes},
          {"small_writes", accesses.small_writes},
          {"gpu_sectors", accesses.gpu_sectors},
          {"gpu_lines", accesses.gpu_lines},
          {"gpu_cas", accesses.gpu_cas}};
}

}  // namespace

void CheckAfterwards(const std::string& pool, std::uint64_t items) {
  ShowProgress("checking the pool");
  const CheckReport report = CheckPool(pool);
  if (!report.defects.empty() || !report.clean || report.items != items) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: after the benchmark the check found {} items where {} belong, and "
                            "{}",
                            pool, report.items, items,
                            report.defects.empty() ? "no other defect" : report.defects.front()));
  }
}

const std::vector<std::string>& WorkloadBench::Workloads() {
  static const std::vector<std::string> names = {
      "c",      "b",    "a",     "d",     "f",      "find", "find-missing",
      "update", kErase, "churn", kInsert, kBulkLoad};
  return names;
}

WorkloadBench::WorkloadBench(const WorkloadOptions& options)
    : options_(Checked(options)),
      threads_(ThreadsOf(options.threads)),
      pool_({options.pool, options.records, options.key_size, options.value_size, options.seed,
             options.executor, options.threads, options.geometry},
            threads_) {
  inserts_ = pool_.spec();
  inserts_.path += ".inserts";
  inserts_name_.emplace(inserts_.path);
  if (options.roofline) roofline_ = MeasureRoofline(RooflineOptionsOf(options_, pool_));
}

WorkloadBench::~WorkloadBench() { RemoveInserts(); }

void WorkloadBench::RemoveInserts() {
  std::error_code ignored;
  if (inserts_there_) std::filesystem::remove(inserts_.path, ignored);
  inserts_there_ = false;
}

json WorkloadBench::Measure(const std::string& workload,
                            const std::vector<Configuration>& configurations) {
  json rows = json::array();
  for (const Configuration& configuration : configurations) {
    if (Loads(workload)) {
      MeasureInserts(workload, configuration, rows);
      CheckAfterwards(inserts_.path, inserts_.records);
      RemoveInserts();
    } else {
      MeasureRun(workload, configuration, rows);
      if (run_->changes()) {
        CheckAfterwards(options_.pool,
                        options_.records + static_cast<std::uint64_t>(run_->added_items()));
      }
    }
  }
  if (!run_->changes()) CheckAfterwards(options_.pool, options_.records);
  return rows;
}

PreparedRun& WorkloadBench::Run(const std::string& workload) {
  const std::string& name = Loads(workload) ? kInsert : workload;
  if (run_name_ == name) return *run_;
  ShowProgress(fmt::format("generating workload {}", workload));
  run_.reset();  // its memory is needed
  RunSpec spec;
  if (name == kInsert) {
    spec.workload = ycsb::PresetWorkload("load");
    spec.phase = ycsb::Phase::kLoad;
    spec.parts = {options_.records};
  } else {
    spec.workload = ycsb::PresetWorkload(workload);
    spec.workload.records = options_.records;
    spec.parts = {options_.warm_up, options_.warm_up, options_.operations};
    if (name == kErase) spec.parts = {0, 0, std::min(options_.operations, options_.records)};
    if (spec.workload.distribution == ycsb::Distribution::kZipfian) {
      spec.workload.distribution = options_.distribution;
    }
    if (ycsb::HasSkew(spec.workload.distribution)) spec.workload.theta = options_.theta;
  }
  spec.workload.seed = options_.seed;
  run_ = std::make_unique<PreparedRun>(spec, options_.key_size, options_.value_size,
                                       MaxBatch(options_), pool_.memory(), threads_);
  run_name_ = name;
  return *run_;
}

void WorkloadBench::ApplyTimed(Store& store, PreparedRun& run, std::size_t part,
                               std::uint64_t batch, Measured& measured) const {
  Clock::time_point last = Clock::now();
  const double seconds = run.Apply(store, part, batch, [&](std::uint64_t operations) {
    const Clock::time_point now = Clock::now();
    if (operations == batch) {
      measured.latency.push_back(std::chrono::duration<double>(now - last).count());
    }
    last = now;
  });
  measured.seconds.push_back(seconds);
}

void WorkloadBench::MeasureRun(const std::string& workload, const Configuration& configuration,
                               json& rows) {
  PreparedRun& run = Run(workload);
  std::optional<Store> store;
  const auto open = [&](std::uint64_t batch) {
    if (store) store->Close();
    store.emplace(pool_.Open(configuration.cache, configuration.access));
    if (run.changes()) pool_.MarkAged();
    for (const std::size_t part : {kWarmUp, kWarmUp + 1}) {
      run.Apply(*store, part, batch);
      run.Settle(part, batch, pool_.contents());
      store->RefreshCache().Wait();
    }
  };
  for (const std::uint64_t batch : options_.batches) {
    ShowProgress(fmt::format("workload {}, {}, batch {}", workload, configuration.name, batch));
    if (!store || run.changes()) open(run.changes() ? batch : MaxBatch(options_));
    if (!run.changes()) run.Apply(*store, kWarmUp, batch);  // the size is new to the store
    Measured measured;
    CacheStats before = store->Stats().cache;
    for (unsigned repeat = 0; repeat < options_.repeats; ++repeat) {
      if (repeat > 0 && run.changes_items()) {
        open(batch);
        before = store->Stats().cache;
      }
      ApplyTimed(*store, run, kMeasured, batch, measured);
      run.Settle(kMeasured, batch, pool_.contents());
    }
    measured.stats = store->Stats();
    measured.hit_rate = HitRate(before, measured.stats.cache);
    rows.push_back(MakeRow(workload, configuration, batch, kMeasured, measured));
  }
  store->Close();
}

void WorkloadBench::MeasureInserts(const std::string& workload, const Configuration& configuration,
                                   json& rows) {
  PreparedRun& run = Run(workload);
  OpenOptions open;
  open.executor = inserts_.executor;
  open.threads = inserts_.threads;
  open.cache = configuration.cache;
  open.access = configuration.access;
  const bool bulk = workload == kBulkLoad;
  const std::vector<std::uint64_t> all = {options_.records};
  for (const std::uint64_t batch : bulk ? all : options_.batches) {
    Measured measured;
    for (unsigned repeat = 0; repeat < options_.repeats; ++repeat) {
      ShowProgress(fmt::format("{}, {}, batch {}", workload, configuration.name, batch));
      RemoveInserts();
      Store store = Store::Create(inserts_.path, CreateOptionsOf(inserts_), open);
      inserts_there_ = true;
      inserts_name_->Made();
      run.Rehearse(store, 0, bulk ? kBulkBatch : batch);
      if (bulk) {
        measured.seconds.push_back(run.BulkLoad(store, 0));
        measured.latency.push_back(measured.seconds.back());
      } else {
        ApplyTimed(store, run, 0, batch, measured);
      }
      Contents none;
      run.Settle(0, batch, none);
      measured.stats = store.Stats();
      store.Close();
    }
    rows.push_back(MakeRow(workload, configuration, batch, 0, measured));
  }
}

json WorkloadBench::MakeRow(const std::string& workload, const Configuration& configuration,
                            std::uint64_t batch, std::size_t part, const Measured& measured) {
  PreparedRun& run = Run(workload);
  const auto operations = static_cast<double>(run.workload_operations(part));
  json runs = json::array();
  for (const double seconds : measured.seconds) runs.push_back(operations / seconds / 1e6);
  const CacheStats& cache = measured.stats.cache;
  json row = {{"workload", workload},
              {"configuration", configuration.name},
              {"batch", batch},
              {"operations", run.workload_operations(part)},
              {"mops", operations / Median(measured.seconds) / 1e6},
              {"mops_runs", runs},
              {"latency_us_p50", Quantile(measured.latency, 0.5) * 1e6},
              {"latency_us_p99", Quantile(measured.latency, 0.99) * 1e6},
              {"latencies", measured.latency.size()},
              {"hit_rate", measured.hit_rate},
              {"directory", cache.directory},
              {"directory_bytes", cache.directory_bytes},
              {"cache_policy", CachePolicyName(cache.policy)},
              {"cache_blocks", cache.frames},
              {"cache_bytes", cache.bytes},
              {"gpu_bytes", measured.stats.gpu_bytes},
              {"pm_bytes", measured.stats.pm_bytes},
              {"load_factor", measured.stats.load_factor}};
  if (roofline_) AddBound(run, part, batch, measured, row);
  return row;
}

void WorkloadBench::AddBound(PreparedRun& run, std::size_t part, std::uint64_t batch,
                             const Measured& measured, json& row) {
  WorkloadShape shape;
  shape.key_size = options_.key_size;
  shape.value_size = options_.value_size;
  shape.geometry = measured.stats.geometry;
  shape.gpu = measured.stats.executor == ExecutorKind::kCuda;
  shape.directory = measured.stats.cache.directory;
  shape.missing = run.missing();
  const WorkloadCounts counts = CountWorkload(
      run.records(part), run.kinds(part), run.record_count(), batch, measured.hit_rate, threads_);
  const Accesses accesses = AccessesOf(counts, shape);
  const double at_once = std::ceil(LinkAccesses(accesses) * static_cast<double>(batch));
  const std::vector<BoundTerm> terms =
      BoundTerms(*roofline_, accesses, static_cast<std::uint64_t>(at_once), batch);
  const double share = static_cast<double>(run.workload_operations(part)) /
                       static_cast<double>(run.operations(part));
  row["accesses"] = ToJson(accesses);
  row["bound_terms"] = json::array();
  for (const BoundTerm& term : terms) {
    row["bound_terms"].push_back({{"limit", term.limit}, {"mops", term.per_second * share / 1e6}});
  }
  if (terms.empty()) return;
  const double bound = terms.front().per_second * share / 1e6;
  row["bound_mops"] = bound;
  row["bound_limit"] = terms.front().limit;
  row["of_bound"] = row.at("mops").get<double>() / bound;
}

json WorkloadBench::Facts() const {
  json facts = {{"machine", MachineFacts()},
                {"store", StoreFacts(pool_.stats())},
                {"records", options_.records},
                {"operations", options_.operations},
                {"warm_up", options_.warm_up},
                {"repeats", options_.repeats},
                {"distribution", ycsb::DistributionName(options_.distribution)},
                {"theta", options_.theta},
                {"seed", options_.seed},
                {"threads", threads_.threads()}};
  if (roofline_) facts["roofline"] = bench::ToJson(*roofline_);
  return facts;
}

}  // namespace gpm::bench
