#ifndef GPM_BENCH_WORKLOAD_BENCH_H_
#define GPM_BENCH_WORKLOAD_BENCH_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/loaded_pool.h"
#include "bench/prepared_run.h"
#include "bench/roofline.h"
#include "bench/workload_bound.h"
#include "gpmstore/store.h"
#include "pm/thread_pool.h"
#include "support/signals.h"

namespace gpm::bench {

struct WorkloadOptions {
  std::uint64_t records = 16'000'000;                 ///< in the pool; and what `insert` inserts
  std::uint64_t operations = std::uint64_t{1} << 24;  ///< measured at once
  std::uint64_t warm_up = std::uint64_t{1} << 23;     ///< before each of two loadings of the cache
  std::vector<std::uint64_t> batches;
  unsigned repeats = 3;
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  Geometry geometry{};
  ycsb::Distribution distribution = ycsb::Distribution::kZipf;  ///< of a, b, c and f
  double theta = 0.99;
  std::uint64_t seed = 1;
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;  ///< of the cpu executor; 0: all cores
  std::string pool;      ///< file, which must not exist and is removed
  bool roofline = true;  ///< measure it, and give bounds
};

/// How the store is opened.
struct Configuration {
  std::string name;
  CacheOptions cache{};
  AccessOptions access{};
};

/// Measures workloads over batch sizes, each beside the bound that follows from the machine's
/// roofline: c, b, a, d, f (YCSB's), find, find-missing, update (uniform), erase (each record
/// once), churn (records come and go: ycsb::PresetWorkload), insert (YCSB's load, into an empty
/// pool that has room for all), bulk-load (the same by one call of Store::BulkLoad, whatever the
/// batch sizes; its one row has the records as batch).
///
/// Throughput counts a read-modify-write of f as one operation; batches have two for it. d and
/// churn insert into the table as it was loaded, so that it may grow while it is measured. erase is
/// not warmed up, as each record is erased once, and measures no more operations than records.
///
/// Operations are generated once a workload, in the memory of the executor. Each batch size meets
/// the same table: what writes has the pool put back as it was loaded (LoadedPool), and warmed up
/// with batches of that size (what inserts or erases before each repeat); each run of inserts or of
/// a bulk load has a pool of its own. The
/// cache is loaded twice after a warm-up and never while something is measured. All results are
/// checked (PreparedRun::Settle), and in the end the pool (CheckPool): that of the last batch size,
/// of each configuration where operations write.
///
/// Thread safety: none.
class WorkloadBench {
 public:
  static const std::vector<std::string>& Workloads();  ///< all of them, by name

  /// Makes the pool, loads the records and measures the roofline.
  /// @throws as LoadedPool, MeasureRoofline; Error(kInvalidArgument) for a batch that is larger
  /// than
  ///         what it would be a batch of
  explicit WorkloadBench(const WorkloadOptions& options);
  ~WorkloadBench();
  WorkloadBench(const WorkloadBench&) = delete;
  WorkloadBench& operator=(const WorkloadBench&) = delete;

  /// A row for each configuration and batch size: throughput, latency, hit rate, bound, and the
  /// store's configuration and memory. @param workload one of Workloads()
  /// @throws as Store; Error(kDamaged) for wrong results and a pool that fails the check
  nlohmann::json Measure(const std::string& workload,
                         const std::vector<Configuration>& configurations);

  /// What the figures depend on: the options, the machine, the store, the roofline.
  nlohmann::json Facts() const;
  const StoreStats& stats() const { return pool_.stats(); }  ///< when the records had come in

 private:
  /// Of one workload, configuration and batch size.
  struct Measured {
    std::vector<double> seconds;  ///< of the repeats
    std::vector<double> latency;  ///< of all whole batches
    double hit_rate = 0;
    StoreStats stats;
  };
  /// Parts of a run; inserts have one.
  static constexpr std::size_t kWarmUp = 0;  ///< and 1
  static constexpr std::size_t kMeasured = 2;

  PreparedRun& Run(const std::string& workload);
  /// Applies a part once.
  void ApplyTimed(Store& store, PreparedRun& run, std::size_t part, std::uint64_t batch,
                  Measured& measured) const;
  // Measured, and that is added to the rows.
  void MeasureRun(const std::string& workload, const Configuration& configuration,
                  nlohmann::json& rows);
  void MeasureInserts(const std::string& workload, const Configuration& configuration,
                      nlohmann::json& rows);
  void RemoveInserts();
  nlohmann::json MakeRow(const std::string& workload, const Configuration& configuration,
                         std::uint64_t batch, std::size_t part, const Measured& measured);
  void AddBound(PreparedRun& run, std::size_t part, std::uint64_t batch, const Measured& measured,
                nlohmann::json& row);

  const WorkloadOptions options_;
  ThreadPool threads_;
  LoadedPool pool_;
  PoolSpec inserts_;            ///< makes the pools of `insert` and `bulk-load`
  bool inserts_there_ = false;  ///< the last of them
  std::optional<RemovedOnSignal> inserts_name_;
  std::optional<Roofline> roofline_;
  std::string run_name_;
  std::unique_ptr<PreparedRun> run_;  ///< of the workload that was measured last
};

/// The offline check. @throws Error(kDamaged) with the first defect, or when the pool has another
///         number of items
void CheckAfterwards(const std::string& pool, std::uint64_t items);

}  // namespace gpm::bench

#endif  // GPM_BENCH_WORKLOAD_BENCH_H_
