#ifndef GPM_STATS_H_
#define GPM_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/options.h"

namespace gpm {

/// Where a pool lives. What each promises is in MediumInfo; nothing claims more.
enum class Medium {
  kDax,         ///< file on a DAX file system, mapped with MAP_SYNC (real PM, CXL, NVDIMM)
  kTmpfs,       ///< file on tmpfs: the emulation of persistent memory that a GPU can register
  kFile,        ///< file on an ordinary file system, through the page cache
  kHostPinned,  ///< anonymous memory, pinned when a GPU uses it; gone when the store closes
  kDaxDevice,   ///< a DAX device, such as /dev/dax0.0 (CXL, PM); survives what the device says
};

struct MediumInfo {
  Medium medium = Medium::kFile;
  bool survives_process_crash = false;
  bool survives_power_loss = false;
  bool gpu_can_register = false;  ///< whether this kind of memory can be mapped into a GPU
  bool needs_flush = false;       ///< stores are flushed through libpmem to become durable
  /// Node of the machine's memory that the pool's new pages are taken of
  /// (OpenOptions::memory_node); -1: as the system has it, or of shards different ones.
  int memory_node = -1;
};

std::string_view MediumName(Medium medium);  ///< "dax", "tmpfs", "file", ...

struct CacheStats {
  bool directory = false;
  std::uint64_t directory_bytes = 0;  ///< of the executor's memory
  CachePolicy policy = CachePolicy::kOff;
  std::uint64_t frames = 0;     ///< buckets whose values may be cached
  std::uint64_t bytes = 0;      ///< of the executor's memory that they take, in all
  std::uint64_t refreshes = 0;  ///< completed
  double refresh_seconds = 0;   ///< of the last one, from its start to its end
  std::uint64_t found = 0;      ///< StoreStats::finds_found, if there is a directory
  std::uint64_t hits = 0;       ///< of those, that read no persistent memory for the value
};

/// What recovery did when the store was opened.
struct RecoveryStats {
  bool was_clean = true;          ///< the pool had been closed in order
  bool resize_continued = false;  ///< an interrupted resize was, or is being, finished
  std::uint64_t insert_slots_cleared = 0;
  std::uint64_t duplicates_removed = 0;
  double seconds = 0;  ///< of the slot pass and what follows it, mapping excluded
};

struct StoreStats {
  std::uint64_t items = 0;
  std::uint64_t capacity_slots = 0;  ///< slots of the addressable levels
  double load_factor = 0;            ///< items / capacity_slots
  /// Of each level, the newest first. There is one more than the geometry has while the oldest is
  /// being drained beside batches, and there are more where a resize was cut off by
  /// a crash.
  std::vector<std::uint64_t> level_buckets;
  std::uint64_t buckets_to_drain = 0;  ///< of the oldest level, before it is dropped
  std::uint64_t resizes = 0;           ///< since open
  std::uint64_t composed_resizes = 0;  ///< of those, that wrote new levels as a whole
  double resize_seconds = 0;           ///< that they took; no batch ran
  double growth_seconds = 0;     ///< of that, until the medium had room and the executor saw it
  double composing_seconds = 0;  ///< of that, writing new levels as a whole, and their memory
  double directory_seconds = 0;  ///< making directory and cache, of that and at opening
  /// Since open: items that were moved to another slot of theirs so that an insert found one, and
  /// the table need not grow yet; and what that took. No batch ran.
  std::uint64_t displaced_items = 0;
  double displacing_seconds = 0;
  /// Operations since open that have ended, by Op: of batches of one kind. Those of mixed batches,
  /// of which a device may have the kinds, are counted together. What kernels do through a
  /// DeviceView is not counted; what a store does to keep to its capacity is.
  std::array<std::uint64_t, kOpKinds> operations{};
  std::uint64_t mixed_operations = 0;
  /// Finds and find-or-inserts that found their key, of all batches that have ended.
  std::uint64_t finds_found = 0;
  /// Values that threads of the host read for batches, and that they wrote to the pool
  /// (AccessOptions::by_host); executor cuda.
  std::uint64_t read_by_host = 0;
  std::uint64_t written_by_host = 0;
  std::uint64_t capacity_items = 0;  ///< Capacity::items; 0: there is none
  std::uint64_t evicted = 0;         ///< items since open
  std::uint64_t evictions = 0;       ///< batches that evicted
  double eviction_seconds = 0;       ///< that they took for it; no other batch could insert
  std::uint64_t value_cells = 0;     ///< in all segments; 0 when values are inline
  std::uint64_t free_cells = 0;      ///< not in use by an item; exact when no batch runs
  std::uint64_t pm_bytes = 0;        ///< of the medium that the pool takes
  /// Of those, made ready for the next growth, or being made so, while batches run; given back by
  /// Compact and Close.
  std::uint64_t pm_bytes_ready = 0;
  /// Of the others, those in no level and no segment: what a level that was dropped has left, until
  /// cells or another level take its place, and what lies behind the last.
  std::uint64_t pm_bytes_free = 0;
  std::uint64_t pm_bytes_given_back = 0;  ///< by Compact, since open
  std::uint64_t pool_growths = 0;         ///< since open, that found less room than they needed
  /// Of those, that needed more than was ready, and so waited for the medium.
  std::uint64_t pool_growth_waits = 0;
  double pool_growth_wait_seconds = 0;
  /// Of the executor's memory, for free cells, and erased slots, on their way to their next use.
  std::uint64_t queue_bytes = 0;
  std::uint64_t snapshots = 0;        ///< taken since open
  std::uint64_t snapshot_bytes = 0;   ///< of their files
  double snapshot_pause_seconds = 0;  ///< that batches were excluded for at the last one's instant
  std::uint64_t snapshot_failures = 0;  ///< of OpenOptions::snapshot, since open
  std::string snapshot_error;           ///< of the last of those, if it failed; else empty
  std::uint64_t searches = 0;           ///< calls of Search that ended well, since open
  std::uint64_t search_scans = 0;       ///< of those, that looked at all items
  /// Of the executor's memory, that searches keep; may be out of date.
  std::uint64_t search_index_bytes = 0;
  std::uint64_t search_indexes_made = 0;   ///< of all items, since open
  std::uint64_t search_index_updates = 0;  ///< searches that brought the index up to date
  /// Attributes whose index goes on by another one's numbers (OpenOptions::search_indexed), now.
  std::uint64_t search_pairs = 0;
  std::uint64_t gpu_bytes = 0;  ///< GPU memory this store allocated
  /// Beside those: GPU memory that it keeps for its next arrays, a 256th of the device's at most;
  /// given back by Compact and Close. With CacheOptions::bytes none.
  std::uint64_t gpu_bytes_kept = 0;
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  Geometry geometry;
  std::vector<Attribute> attributes;           ///< of the values
  ExecutorKind executor = ExecutorKind::kCpu;  ///< kCpu or kCuda
  unsigned threads = 0;                        ///< cpu executor
  MediumInfo medium;
  RecoveryStats recovery;
  CacheStats cache;
};

}  // namespace gpm

#endif  // GPM_STATS_H_
