// Figure 8: what an operation does to persistent memory, and what it takes, by phase.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/kv_adapter.h"
#include "bench/loaded_pool.h"
#include "bench/paper/counting_tracer.h"
#include "bench/paper/figures.h"
#include "bench/prepared_run.h"
#include "bench/report.h"
#include "engine/store_impl.h"
#include "pm/thread_pool.h"

namespace gpm::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

/// Operations that are measured at most: what one does is no other for more.
constexpr std::uint64_t kMostOperations = std::uint64_t{1} << 20;
const std::string kInsert = "insert";

/// What a store has in memory when it is measured.
struct Caching {
  const char* name;
  bool directory;
  bool warm;  ///< values of hot buckets, too
};
constexpr Caching kNoDirectory{"no directory", false, false};
constexpr Caching kCold{"cold", true, false};
constexpr Caching kWarm{"warm", true, true};

struct Measured {
  std::vector<double> seconds{};  ///< of the repeats
  std::vector<double> latency{};  ///< of all whole batches
  double hit_rate = 0;
};

/// The operations of the figure, each on a pool that is as it was loaded; inserts on an empty one
/// with room for all. By one thread, as the tracer has it, so that both runs do the same.
class PhasesBench {
 public:
  explicit PhasesBench(const PaperArguments& arguments)
      : repeats_(arguments.repeats),
        batch_(arguments.batch()),
        operations_(std::min(kMostOperations, arguments.records())),
        threads_(ThreadsOf(0)),
        pool_({.path = TemporaryPoolPath(),
               .records = arguments.records(),
               .executor = ExecutorKind::kCpu,
               .threads = 1},
              threads_),
        warm_up_(MakeRun("find", {operations_, operations_})) {}

  const StoreStats& stats() const { return pool_.stats(); }

  void AddRows(const std::string& operation, const std::vector<Caching>& cachings, json& rows) {
    const std::unique_ptr<PreparedRun> run = MakeRun(operation, {operations_});
    for (const Caching& caching : cachings) {
      ShowProgress(operation + ", " + caching.name);
      Measured direct;
      for (unsigned i = 0; i < repeats_; ++i) Apply(operation, *run, caching, nullptr, &direct);
      CountingTracer tracer;
      Measured traced;
      Apply(operation, *run, caching, &tracer, &traced);
      const auto operations = static_cast<double>(run->operations(0));
      json row = {{"series", caching.name},
                  {"workload", operation},
                  {"batch", batch_},
                  {"operations", run->operations(0)},
                  {"mops", operations / Median(direct.seconds) / 1e6},
                  {"latency_us_p50", Quantile(direct.latency, 0.5) * 1e6},
                  {"latency_us_p99", Quantile(direct.latency, 0.99) * 1e6},
                  {"hit_rate", traced.hit_rate},
                  {"counted_mops", operations / traced.seconds.front() / 1e6}};
      AddCounts(tracer, operations, row);
      rows.push_back(std::move(row));
    }
  }

 private:
  std::unique_ptr<PreparedRun> MakeRun(const std::string& operation,
                                       const std::vector<std::uint64_t>& parts) {
    RunSpec spec;
    spec.parts = parts;
    if (operation == kInsert) {
      spec.workload = ycsb::PresetWorkload("load");
      spec.phase = ycsb::Phase::kLoad;
    } else {
      spec.workload = ycsb::PresetWorkload(operation);
      spec.workload.records = pool_.spec().records;
      const bool chooses = operation == "find" || operation == "update";
      if (chooses) spec.workload.distribution = ycsb::Distribution::kZipf;
    }
    return std::make_unique<PreparedRun>(spec, pool_.spec().key_size, pool_.spec().value_size,
                                         batch_, ycsb::Memory::kHost, threads_);
  }

  /// Applies a run once, after the cache was loaded if it is to be warm.
  /// @param tracer of the store, counts the run; null: it is measured alone
  void Apply(const std::string& operation, PreparedRun& run, const Caching& caching,
             CountingTracer* tracer, Measured* measured) {
    const bool inserts = operation == kInsert;
    PoolSpec spec = pool_.spec();
    OpenOptions open;
    open.executor = spec.executor;
    open.threads = spec.threads;
    open.cache.directory = caching.directory;
    open.cache.fraction = caching.directory ? kPaperCacheFraction : 0;
    open.cache.refresh_interval = 0;
    std::unique_ptr<StoreImpl> store;
    std::optional<RemovedOnSignal> name;
    if (inserts) {
      spec.path += ".inserts";
      spec.records = operations_;
      name.emplace(spec.path);
      store = StoreImpl::Create(spec.path, CreateOptionsOf(spec), open, tracer);
      std::filesystem::remove(spec.path);  // it goes with the store
    } else {
      pool_.Restore();
      if (run.changes()) pool_.MarkAged();
      store = StoreImpl::Open(spec.path, open, tracer);
    }
    Contents none;
    Contents& contents = inserts ? none : pool_.contents();
    const auto apply = [&](const Batch& batch) {
      store->Wait(store->Start(batch, nullptr));
      if (tracer != nullptr) tracer->Rest();
    };
    for (const std::size_t part : {0, 1}) {
      if (!caching.warm) continue;
      warm_up_->Apply(apply, part, batch_);
      warm_up_->Settle(part, batch_, contents);
      store->AwaitCacheRefresh(store->RefreshCache());
    }
    const StoreStats before = store->Stats();
    if (tracer != nullptr) tracer->Start();
    Clock::time_point last = Clock::now();
    measured->seconds.push_back(run.Apply(apply, 0, batch_, [&](std::uint64_t operations) {
      const Clock::time_point now = Clock::now();
      if (operations == batch_) {
        measured->latency.push_back(std::chrono::duration<double>(now - last).count());
      }
      last = now;
    }));
    if (tracer != nullptr) tracer->Stop();
    const StoreStats after = store->Stats();
    measured->hit_rate = HitRate(before.cache, after.cache);
    run.Settle(0, batch_, contents);
    store->Close();
    if (after.resizes == before.resizes) return;
    throw Error(ErrorCode::kNoSpace, "the table grew while it was measured; it must not");
  }

  /// Adds what was counted, an operation.
  static void AddCounts(const CountingTracer& tracer, double operations, json& row) {
    const auto each = [&](auto total) { return static_cast<double>(total) / operations; };
    PhaseCounts all;
    row["phases"] = json::array();
    for (std::size_t i = 0; i < static_cast<std::size_t>(Phase::kCount); ++i) {
      const PhaseCounts& counts = tracer.of(static_cast<Phase>(i));
      row["phases"].push_back({{"phase", PhaseName(static_cast<Phase>(i))},
                               {"us", each(counts.seconds * 1e6)},
                               {"reads", each(counts.reads)},
                               {"writes", each(counts.writes)}});
      all.reads += counts.reads;
      all.read_lines += counts.read_lines;
      all.writes += counts.writes;
      all.written_lines += counts.written_lines;
      all.swaps += counts.swaps;
      all.flushes += counts.flushes;
      all.flushed_lines += counts.flushed_lines;
      all.fences += counts.fences;
    }
    row["pm"] = {{"reads", each(all.reads)},
                 {"read_bytes", each(all.reads * sizeof(std::uint64_t))},
                 {"read_lines", each(all.read_lines)},
                 {"writes", each(all.writes)},
                 {"written_bytes", each(all.writes * sizeof(std::uint64_t))},
                 {"written_lines", each(all.written_lines)},
                 {"swaps", each(all.swaps)},
                 {"flushes", each(all.flushes)},
                 {"flushed_lines", each(all.flushed_lines)},
                 {"fences", each(all.fences)}};
    row["steps"] = json::object();
    for (std::size_t i = 0; i < static_cast<std::size_t>(Step::kCount); ++i) {
      const auto step = static_cast<Step>(i);
      if (tracer.met(step) > 0) row["steps"][std::string(StepName(step))] = each(tracer.met(step));
    }
  }

  const unsigned repeats_;
  const std::uint64_t batch_;
  const std::uint64_t operations_;
  ThreadPool threads_;  ///< make and check what is applied
  LoadedPool pool_;
  std::unique_ptr<PreparedRun> warm_up_;
};

}  // namespace

void MeasureFigure8(const PaperArguments& arguments, json& report) {
  if (arguments.executor == ExecutorKind::kCuda) return MeasureCountedContest(arguments, report);
  PhasesBench bench(arguments);
  json& rows = report["rows"];
  bench.AddRows("find", {kNoDirectory, kCold, kWarm}, rows);
  bench.AddRows("find-missing", {kNoDirectory, kCold, kWarm}, rows);
  bench.AddRows(kInsert, {kNoDirectory, kCold}, rows);  // into a table that holds nothing hot
  bench.AddRows("update", {kNoDirectory, kCold, kWarm}, rows);
  bench.AddRows("erase", {kNoDirectory, kCold, kWarm}, rows);
  report["store"] = StoreFacts(bench.stats());
  report["threads"] = 1;
}

}  // namespace gpm::bench
