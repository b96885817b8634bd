#ifndef GPM_BENCH_LOADED_POOL_H_
#define GPM_BENCH_LOADED_POOL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "bench/prepared_run.h"
#include "bench/removed_at_end.h"
#include "gpmstore/store.h"
#include "pm/thread_pool.h"
#include "ycsb/buffer.h"

namespace gpm::bench {

/// Makes pools of which the same records make the same table.
struct PoolSpec {
  std::string path;  ///< file, which must not exist and is removed
  std::uint64_t records = 0;
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  std::uint64_t seed = 1;  ///< of the hash
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;  ///< 0: all cores
  Geometry geometry{};
};

/// @throws Error(kInvalidArgument) when there can't be as many records, or when the pool is not a
///         file, as benchmarks that open a pool again need
void ValidatePoolSpec(const PoolSpec& spec);
/// An empty pool with room for the records.
CreateOptions CreateOptionsOf(const PoolSpec& spec);

/// A pool that holds records 0 ... records - 1, as YCSB loads them: opened as often as is wanted,
/// and always found as it was when it had been loaded.
///
/// Updates move values to other cells, so that the values no longer lie in the order in which they
/// were loaded, and later operations are slower; and batches may make the pool larger. So after
/// those the file's first contents, of which a copy is kept (in a file without a name, beside the
/// pool), are put back: who opens it next meets the same pool, in whatever order.
///
/// Thread safety: none.
class LoadedPool {
 public:
  /// @param threads copy; outlives this @throws as ValidatePoolSpec, Store::Create, Store::Apply;
  ///        Error(kIo) for the copy
  LoadedPool(const PoolSpec& spec, ThreadPool& threads);
  ~LoadedPool();  ///< removes the file
  LoadedPool(const LoadedPool&) = delete;
  LoadedPool& operator=(const LoadedPool&) = delete;

  const PoolSpec& spec() const { return spec_; }      ///< with the executor that there is
  const StoreStats& stats() const { return stats_; }  ///< when the records had come in
  /// Where the batches of the executor should be.
  ycsb::Memory memory() const { return memory_; }

  /// Puts the loaded pool back if it has aged. REQUIRES: no store has it open. @throws Error(kIo)
  void Restore();
  /// The same, and opens it. @param cache of the store @throws as Restore, Store::Open
  Store Open(const CacheOptions& cache, const AccessOptions& access = {});
  /// To be told of whatever is written to the pool.
  void MarkAged() { aged_ = true; }
  Contents& contents() { return contents_; }  ///< of the pool as it is now

 private:
  class File;
  void Load();
  /// The first bytes_ bytes, by all threads. @throws Error(kIo)
  void CopyBytes(const File& from, const File& to);

  PoolSpec spec_;
  RemovedAtEnd file_;
  ThreadPool& threads_;
  ycsb::Memory memory_ = ycsb::Memory::kHost;
  StoreStats stats_;
  Contents contents_;
  bool aged_ = false;
  std::unique_ptr<File> copy_;
  std::uint64_t bytes_ = 0;  ///< of the copy
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_LOADED_POOL_H_
