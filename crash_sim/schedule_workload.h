#ifndef GPM_CRASH_SIM_SCHEDULE_WORKLOAD_H_
#define GPM_CRASH_SIM_SCHEDULE_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "crash_sim/linearizability.h"
#include "crash_sim/scheduler.h"
#include "crash_sim/scratch_pool.h"
#include "crash_sim/trace.h"
#include "gpmstore/batch.h"
#include "pm/pool.h"

namespace gpm::crash {

/// What schedule exploration runs: tiny tables, a few clients with a few batches over a few keys,
/// and how they are scheduled; all from a seed.

/// A found value that no operation wrote: neither one value nor another.
inline constexpr std::uint64_t kTorn = ~std::uint64_t{0} - 1;

void PutValue(std::uint64_t number, std::span<std::byte> value);
/// (The first word of a value, an attribute of the pools, is its number.)
/// @return kTorn for bytes that PutValue did not put there
std::uint64_t ValueNumber(std::span<const std::byte> value);

/// A table and what it holds first.
struct TableSetup {
  enum class Contents : std::uint8_t { kNothing, kSomeKeys, kNearlyFull };
  PoolConfig config;
  Contents contents = Contents::kNothing;
  std::uint64_t max_bytes = 0;  ///< roomy, or so that few or no resizes fit
  bool equal_hashes = false;    ///< all keys have the same places and the same fingerprint
  bool has_room = false;        ///< no workload is told that there is no space
  bool growing = false;         ///< a level was added and is to be drained

  /// The key with a number. Of 8-byte keys, 0 and ~0 are those with a place of their own; longer
  /// ones differ in their last word only, or (equal_hashes) in several.
  void PutKey(std::uint64_t number, std::span<std::byte> key) const;
};

/// Values of base pools have the number of their key plus this; those of workloads are smaller.
inline constexpr std::uint64_t kBaseValues = 1 << 20;

inline constexpr std::size_t kTableSetups = 5 * 2 * 3 * 3 * 3 * 4;
TableSetup MakeTableSetup(std::size_t index);
std::string Describe(const TableSetup& setup);

/// A pool, closed in order, with something else than zeros in its free space; and what it holds.
struct BasePool {
  Image image;
  KeyValues values;  ///< also of keys that no workload uses
};
/// @param pool where it is made; afterwards there is no file
BasePool MakeBasePool(const TableSetup& setup, ScratchPool* pool);

/// One call of a client, with its arrays.
struct ClientCall {
  enum class Kind : std::uint8_t { kBatch, kForEach, kSearch, kLoadCache };
  Kind kind = Kind::kBatch;
  bool mixed = true;            ///< kinds in an array; else all operations are of one kind
  bool without_values = false;  ///< mixed: what would write is invalid
  bool overlaps_next = false;   ///< the next call is made before this one is waited for
  std::uint64_t id = 0;         ///< from 1
  std::vector<std::uint64_t> key_numbers;
  std::vector<std::uint64_t> value_numbers;  ///< unique in the workload
  std::vector<Op> ops;
  std::vector<std::byte> keys, values, found;
  std::vector<Result> results;

  gpm::Batch Batch();
};

struct Workload {
  std::size_t table = 0;  ///< MakeTableSetup
  unsigned threads = 1;   ///< of the executor
  /// A directory or none; with it, no cache or one that is loaded every few operations, or when
  /// asked.
  CacheOptions cache;
  double growth_pause = 0;  ///< OpenOptions'
  double grow_above = 0;    ///< the same
  std::vector<std::uint64_t> key_numbers;
  std::vector<std::vector<ClientCall>> clients;
  Scheduler::Options schedule;
  std::uint64_t hash = 0;  ///< of all but the schedule
};
Workload MakeWorkload(std::uint64_t seed);
std::string Describe(const Workload& workload);

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SCHEDULE_WORKLOAD_H_
