#ifndef GPM_CLI_CRASH_LEFT_POOLS_H_
#define GPM_CLI_CRASH_LEFT_POOLS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "gpmstore/store.h"

namespace gpm::cli {

/// What crash-test's child leaves at a path, which names a pool or a folder of shards.

/// Whether there is a pool, whole or not, or a folder of shards that has a manifest: then a store
/// is opened, and else created.
bool IsStoreThere(const std::string& path);

/// Waits until nobody has the pools open any more: the driver of a GPU may hold what a killed
/// process had mapped for some time after the process is gone.
/// @throws CrashStopped when `stop` is set
void AwaitRelease(const std::string& path, std::chrono::seconds patience,
                  const std::atomic<bool>& stop);

/// CheckReport of all pools.
struct LeftPools {
  std::uint64_t items = 0;
  std::uint64_t half_inserted_pools = 0;
  std::uint64_t resizing_pools = 0;
  bool clean = true;                 ///< all were closed in order
  std::uint64_t unnamed_pools = 0;   ///< in a folder of shards, beside those of its manifest
  std::vector<std::string> defects;  ///< those of a shard say which one it is
};

/// Checks the pools, which no store has open, and writes nothing.
/// @throws Error kNotFound, kDamaged (no store can be opened here), kBusy, kIo
LeftPools CheckPools(const std::string& path);

/// Calls `visit` for every item in the pools, and writes nothing.
/// @return items that are in another shard than theirs, the first ones @throws as CheckPools
std::vector<std::string> VisitPools(const std::string& path, const Store::Visitor& visit);

/// Looks, now and then, whether pools that another process changes are being resized. What it reads
/// may be half-written: it decides about the time of a kill only.
class ResizeWatch {
 public:
  explicit ResizeWatch(const std::string& path);
  bool ResizeUnderWay();  ///< of any pool

 private:
  std::vector<std::ifstream> pools_;
};

}  // namespace gpm::cli

#endif  // GPM_CLI_CRASH_LEFT_POOLS_H_
