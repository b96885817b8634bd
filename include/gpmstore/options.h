#ifndef GPM_OPTIONS_H_
#define GPM_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpm {

/// What runs batches.
enum class ExecutorKind {
  kAuto,  ///< cuda when there is a GPU that can register the pool's medium, else cpu; Stats says
  kCpu,   ///< host threads
  kCuda,  ///< warps of a GPU; an error when there is none or it can't register the medium
};
std::string_view ExecutorName(ExecutorKind kind);  ///< "auto", "cpu", "cuda"

/// Which buckets are cached.
enum class CachePolicy : std::uint8_t {
  kOff,
  kTinyLfu,  ///< those used most of late; how far back that goes depends on the cache's size
  kLfu,      ///< those used most; uses before the last refresh count half, and so on (GPHash)
  kLru,      ///< those used last
  kRandom,   ///< any
};
std::string_view CachePolicyName(CachePolicy policy);  ///< "off", "tinylfu", "lfu", ...
std::vector<std::string> CachePolicyNames();           ///< of all, "off" first
/// @throws Error(kInvalidArgument) naming the policies
CachePolicy CachePolicyOf(std::string_view name);

/// The directory and the frozen bucket cache of a store, in the executor's memory. To ask for a
/// cache (by a fraction, a refresh interval, or a policy other than the default) where there is no
/// directory is kInvalidArgument.
struct CacheOptions {
  /// Whether there is a directory; by default on executor cuda. Without one there is no cache.
  std::optional<bool> directory{};
  CachePolicy policy = CachePolicy::kTinyLfu;
  /// The share of the addressable buckets of which the values are cached, 0 to 1. Default: on
  /// executor cuda as many as a tenth of the GPU's memory holds, or half of what is free when the
  /// store is opened or resized; on cpu 0 (no cache). Values that the slots hold themselves need no
  /// cache.
  std::optional<double> fraction{};
  /// If not 0: what the store may take of GPU memory, in bytes, but for the workspaces of batches
  /// (on executor cpu: what the two may take of DRAM). The directory comes first: without keys of
  /// more than 8 bytes if only then it fits, and not at all if it does not. The cache gets what is
  /// left; `fraction` is then an upper bound, by default 1.
  std::uint64_t bytes = 0;
  /// The cache is refreshed after so many operations (first after an eighth of them); 0: when asked
  /// to alone (Store::RefreshCache). Default: when it is expected to pay, first after 262144
  /// finds that missed the cache (in tables of fewer than a million slots, after a quarter as many
  /// finds). Where all values have room, and with policy kTinyLfu, the cache has what batches write
  /// and what small batches of finds read without a refresh, too.
  std::optional<std::uint64_t> refresh_interval{};
};

/// What the cuda executor does about a batch's accesses to persistent memory: to measure what each
/// step brings, since none changes a result.
struct AccessOptions {
  /// They are dealt out to multiprocessors by address, or put in its order; else made as they come.
  bool by_address = true;
  bool combine = true;  ///< several finds of a value read it once, or, with no directory, of a key
  /// Bytes of a pool up to which they are dealt out, else put in order; 0: 28 MiB for each
  /// multiprocessor, for which a GPU keeps the address translations.
  std::uint64_t dealt_up_to = 0;
  /// Threads of the host do some of this, on up to half of the cores, 8 at most for a batch: of the
  /// many reads of one in a larger pool, for which the GPU waits for address translations; and of a
  /// large batch that only writes they write the values, if those are in pinned memory, so that the
  /// GPU writes slots alone.
  bool by_host = true;
};

enum class LogLevel : std::uint8_t { kInfo, kWarning };
using LogFunction = std::function<void(LogLevel level, std::string_view message)>;

/// Snapshots that a store takes of itself, in the background and when it is closed, so that what is
/// in memory survives a reboot (docs/SNAPSHOTS.md). One that fails is told of by Stats and the log,
/// and the next is tried in its turn; the store goes on.
struct SnapshotSchedule {
  /// A folder, of this store alone; made if it is not there. It stays this one when the process
  /// changes its directory. Empty: no snapshots are taken.
  std::string path{};
  double interval = 300;  ///< seconds from the beginning of one to that of the next, at least
  unsigned chains = 2;    ///< that are kept, the newest: each a whole snapshot and its increments
  bool at_close = true;   ///< one more is taken by Close, if anything may have changed since
  /// Open and OpenOrCreate of a pool that is not there make it of the newest chain, as far as that
  /// is whole; else of one before. What could not be used is logged. Where there are snapshots, and
  /// none can be used, it is kDamaged. "pinned:" is never there.
  bool restore = false;
};

/// Which items of a store with a capacity go first. Of those that are equal, the order is that of a
/// hash of their keys, which is the same in every pool.
enum class EvictionPolicy : std::uint8_t {
  kLru,  ///< those used longest ago: by batches, of which those of one are equally long ago
  kLfu,  ///< those used least often, and of these by kLru; at each eviction all uses so far count
         ///< half from then on
  kOldest,  ///< those added longest ago, by batches
  kScore,   ///< those whose value has the lowest score: an unsigned number in it, little-endian
};
std::string_view EvictionPolicyName(EvictionPolicy policy);  ///< "lru", "lfu", "oldest", "score"
std::vector<std::string> EvictionPolicyNames();
/// @throws Error(kInvalidArgument) naming the policies
EvictionPolicy EvictionPolicyOf(std::string_view name);

/// How many items a store may have (docs/CAPACITY.md). A batch that would leave more evicts others
/// first: a 16th of the capacity more than it needs, so that not every batch has to. What it
/// evicts follows from the batches before it alone, in the order in which they were started; it
/// is the same on both executors.
///
/// Uses are not in the pool, but volatile: of what was in it when it was opened none are
/// known, and it goes first. Nor do operations of a DeviceView count as uses.
struct Capacity {
  std::uint64_t items = 0;  ///< 0: as many as the pool has room for
  /// Instead of `items`: bytes of the pool, at most. The store has as many items as it will keep
  /// there for good (StoreStats::capacity_items): with slots as when its table has just grown, gaps
  /// that outgrown levels leave, and free cells. What is not counted: a larger initial_capacity,
  /// and cells that are held while updates of a large batch, a snapshot or an export go on. Not of
  /// geometries with one location or fewer than 16 candidates in two levels. A pool in memory takes
  /// 2 MiB at the least, unless max_bytes says less.
  std::uint64_t bytes = 0;
  EvictionPolicy policy = EvictionPolicy::kLru;
  // Of kScore: where in a value the score is, and how long, 4 or 8.
  std::uint32_t score_offset = 0;  ///< bytes
  std::uint32_t score_bytes = 8;
};

/// OpenOptions::memory_node: the node next to the device, on executor cuda; or no one in
/// particular.
inline constexpr int kMemoryNearGpu = -1;
inline constexpr int kMemoryAnywhere = -2;

/// How a store is opened.
struct OpenOptions {
  ExecutorKind executor = ExecutorKind::kAuto;
  unsigned threads = 0;         ///< cpu executor: worker threads; 0: one for each core
  std::uint64_t max_bytes = 0;  ///< the pool may grow up to here; 0: what the medium could hold
  int device = 0;               ///< cuda executor: device ordinal
  /// Where a pool in memory (tmpfs, "pinned:") takes what it grows by, on a machine whose memory
  /// has several nodes (NUMA): the number of one, as long as that has room; or one of the constants
  /// above. What is there stays where it is. MediumInfo::memory_node says what came of it.
  int memory_node = kMemoryNearGpu;
  /// When the table is full, it gets a level with so many times the buckets of the newest one, and
  /// the oldest is emptied into it: from 1.1 to 4. A small step leaves the table fuller, and moves
  /// items more often: with two levels it is 0.71 full after a growth by 1.25, and 0.44 by 2, with
  /// which it loads a fifth to a third faster on a GPU (docs/PERFORMANCE.md). Nothing of it is in
  /// the pool, so it may differ from one opening to the next.
  double growth = 2;
  /// In a table that is less full than this, a few inserts that find no slot get one by moving
  /// other items to another slot of theirs, for which no batch runs; in a fuller one, or for many
  /// inserts, the table grows. From 0 (always) to 1. In one that has grown before, some insert
  /// finds no slot from a load factor of 0.85 on, and at 0.89 one of a thousand.
  double grow_above = 0.89;
  /// A growth may keep batches waiting for about so many seconds, or three times as long as the
  /// batch takes that wants it: where that is enough, the oldest level's items go to the new level
  /// at once, which is then written as a whole. Else they are moved beside the batches that follow,
  /// each of which takes a little longer; 0: always so; at most 1e9. (On executor cuda a batch that
  /// more than doubles the table waits until that is done, unless this is 0.)
  double growth_pause = 0.001;
  /// A batch that leaves fewer items than there were, and a load factor below this, compacts the
  /// store when it is waited for (Store::Compact), if the table becomes smaller by a quarter at
  /// least, and no device scope is open; 0: never. Up to 0.4, so that the smaller table does not
  /// grow again at once.
  double compact_below = 0;
  Capacity capacity{};   ///< of items; a pool that has more keeps them until a batch adds some
  CacheOptions cache{};  ///< directory and cache, in the executor's memory
  AccessOptions access{};
  SnapshotSchedule snapshot{};
  /// What searches by attributes (Store::Search) may keep from one to the next, in bytes of the
  /// executor's memory: an index of the keys of all items and of the attributes that are asked for.
  /// The second search makes it; those after it look there alone. It follows what batches change,
  /// and may take a little more until the next change, when items are added.
  /// 0: each search looks at all items (docs/SEARCH.md).
  std::uint64_t search_index_bytes = 0;
  /// Names of attributes that are indexed from the first search of one of them on, and before all
  /// others; else which are follows the searches. "session+model" names a pair: both are indexed,
  /// and queries that want an equal session look at those items alone that meet a condition on the
  /// model, too. An attribute is the first of one pair at most, which stays its own; else which
  /// pairs there are follows the searches. Only with search_index_bytes.
  std::vector<std::string> search_indexed{};
  /// Told when a pool was recovered, when a resize has begun and ended, when the cache was
  /// refreshed, why kAuto did not take the cuda executor, and when the medium has no room for the
  /// pool to grow (once, until it has again). By the threads that call the store and the one that
  /// takes snapshots, on which the store can't be closed, and must not be destroyed; perhaps by
  /// several at once; never while the store holds a lock or excludes batches, so that it may call
  /// the store: a resize is told of when it is over. What it throws is lost.
  LogFunction log{};
};

/// xL-yH-zS: x addressable levels, y hash locations, z slots a bucket; powers of two, x*y*z <= 32.
struct Geometry {
  std::uint8_t levels = 2;
  std::uint8_t locations = 2;
  std::uint8_t slots = 8;

  constexpr std::uint32_t candidates() const { return levels * locations * slots; }
  friend constexpr bool operator==(const Geometry&, const Geometry&) = default;
};
/// Parses "2L-2H-8S". @throws Error(kInvalidArgument) saying what would be right
Geometry ParseGeometry(std::string_view text);

/// "2L-2H-8S".
std::string GeometryName(Geometry geometry);

inline constexpr std::uint32_t kMaxValueBytes = 16 << 20;

/// A field of the values of a pool, by which items can be searched (gpmstore/search.h): an unsigned
/// number, little-endian. Fields may overlap.
struct Attribute {
  std::string name;          ///< 1 to 15 letters, digits and _, no digit first; not "and"
  std::uint32_t offset = 0;  ///< in the value, bytes
  std::uint32_t bytes = 8;   ///< 4 or 8

  friend bool operator==(const Attribute&, const Attribute&) = default;
};
inline constexpr std::uint32_t kMaxAttributes = 8;

/// What is fixed when a pool is created.
struct CreateOptions {
  std::uint32_t key_size = 8;      ///< bytes: 1 to 255
  std::uint32_t value_size = 128;  ///< bytes: 1 to 16 MiB
  Geometry geometry{};             ///< default 2L-2H-8S
  /// Items that fit without resizing (nobody knows in a table of one location or fewer than 8
  /// candidates: Store::Reserve); 0: start small. The pool grows by itself in any case.
  std::uint64_t initial_capacity = 0;
  /// Of a DAX device: what it holds is lost. Else one that is not empty is refused, as is any file.
  bool overwrite = false;
  std::optional<std::uint64_t> hash_seed{};  ///< for reproducible layouts in tests; else random
  std::vector<Attribute> attributes{};       ///< kMaxAttributes at most, of different names
};

}  // namespace gpm

#endif  // GPM_OPTIONS_H_
