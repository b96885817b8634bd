#ifndef GPM_BENCH_CACHE_BENCH_H_
#define GPM_BENCH_CACHE_BENCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bench/bucket_uses.h"
#include "bench/loaded_pool.h"
#include "bench/prepared_run.h"
#include "gpmstore/store.h"
#include "pm/thread_pool.h"

namespace gpm::bench {

struct CacheBenchOptions {
  std::uint64_t records = 16'000'000;
  std::uint64_t operations = std::uint64_t{1} << 24;  ///< measured at once
  std::uint64_t warm_up = std::uint64_t{1} << 23;     ///< before each of two loadings
  std::uint64_t inserts = std::uint64_t{1} << 22;     ///< into an empty pool
  std::vector<std::uint64_t> batches = {65536, 1048576};
  unsigned repeats = 3;
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  ycsb::Distribution distribution = ycsb::Distribution::kZipf;  ///< of every section's operations
  double theta = 0.99;
  std::uint64_t seed = 1;
  std::vector<std::string> workloads = {"c", "a"};        ///< of Sizes and Load
  std::vector<CachePolicy> policies;                      ///< of Sizes, beside no cache
  std::vector<double> fractions = {0.05, 0.1, 0.2, 0.4};  ///< of Sizes
  std::vector<double> load_fractions = {0.2};             ///< of Load
  std::vector<double> thetas = {0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2};  ///< of Theta
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;
  std::string pool;  ///< file, which must not exist and is removed
};

/// Measures the bucket cache on one pool, which is opened again with one cache after another.
///
/// Each cache is measured on a pool of the same age (LoadedPool).
///
/// A figure is of operations that come after two loadings, each with a warm-up before it, so that
/// the cache holds what its policy chooses; the operations measured are others than those that it
/// was chosen by. But for Cost, loading happens only then.
///
/// Thread safety: none.
class CacheBench {
 public:
  /// Makes the pool and loads the records. @throws as Store::Create, Store::Apply
  explicit CacheBench(const CacheBenchOptions& options);

  // The sections: rows for the report. @throws Error; kDamaged for wrong results

  /// Throughput and hit rate over size, policy, workload and batch size, with the speedup over no
  /// cache and the hit rate that the best fixed choice of as many buckets would have had with those
  /// very operations.
  nlohmann::json Sizes();
  /// The same over the skew, for workload C and a fifth of the buckets, and without a cache.
  nlohmann::json Theta();
  /// Throughput over time, for each size of the cache: other keys become popular, and it is loaded
  /// anew, beside the batches and between them.
  nlohmann::json Load();
  /// Workload A and inserts into an empty pool, with a cache as it is by default and without.
  nlohmann::json Cost();

  const StoreStats& stats() const {
    return pool_.stats();
  }  ///< of the store after the records came in

 private:
  struct Measured {
    std::vector<double> seconds;
    double hit_rate = 0;
    CacheStats cache;
  };
  /// Parts of a run.
  static constexpr std::size_t kWarmUp = 0;  ///< and 1
  static constexpr std::size_t kMeasured = 2;

  CacheOptions MakeCacheOptions(CachePolicy policy, double fraction, bool directory) const;
  std::uint64_t min_batch() const;
  std::uint64_t max_batch() const;

  /// @param shift other keys are popular
  PreparedRun& Run(const std::string& workload, double theta, bool shift = false);
  /// Of the pool that is opened next. REQUIRES: no store has it open.
  const BucketUses& Uses(const std::string& workload, double theta);
  double ApplyPart(Store& store, PreparedRun& run, std::size_t part, std::uint64_t batch,
                   const PreparedRun::BatchDone& done = {});
  /// A warm-up and a loading, twice.
  void WarmUp(Store& store, PreparedRun& run, std::uint64_t batch);
  /// REQUIRES: warmed up.
  Measured Measure(Store& store, PreparedRun& run, std::uint64_t batch, unsigned repeats);
  double Mops(double seconds) const;
  std::vector<double> Mops(const std::vector<double>& seconds) const;

  nlohmann::json LoadOnce(const std::string& workload, double fraction, bool beside);
  // Mops/s, with a cache that is loaded every so often, or without.
  double UpdateOnce(std::uint64_t batch, bool cached);
  double InsertOnce(PreparedRun& run, std::uint64_t batch, bool cached);
  CacheOptions CostOptions(bool cached, std::uint64_t operations) const;

  const CacheBenchOptions options_;
  ThreadPool threads_;
  LoadedPool pool_;
  std::optional<BucketMap> map_;  ///< of the pool, once it was asked for
  using Key = std::tuple<std::string, double, bool>;
  std::map<Key, std::unique_ptr<PreparedRun>> runs_;
  std::map<Key, BucketUses> uses_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_CACHE_BENCH_H_
