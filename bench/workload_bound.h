#ifndef GPM_BENCH_WORKLOAD_BOUND_H_
#define GPM_BENCH_WORKLOAD_BOUND_H_

#include <cstdint>
#include <span>

#include "bench/roofline.h"
#include "gpmstore/batch.h"
#include "pm/format.h"
#include "pm/thread_pool.h"

namespace gpm::bench {

/// What the operations of some batches are, all batches together. A key that several operations of
/// a batch have is counted once for that batch: it can be searched once, read once and written
/// once, as batches are sequential per key.
struct WorkloadCounts {
  std::uint64_t operations = 0;
  std::uint64_t finds = 0;
  std::uint64_t keys = 0;      ///< distinct ones
  double read = 0;             ///< of those, whose value the store must give: the first is a find
  double cached = 0;           ///< of those, expected in the cache
  std::uint64_t written = 0;   ///< distinct keys whose value some operation writes
  std::uint64_t inserted = 0;  ///< of those, the ones that are new
  std::uint64_t erased = 0;    ///< distinct keys that some operation erases
};

/// Counts operations in batches of `batch`, the last of which may be shorter.
///
/// Which values the cache holds is not known here. Of its hit rate (share of finds) it follows how
/// many there are if they are those used most by these very operations, which is what a cache of
/// hot values aims at: the most used records are taken for cached until their finds make up that
/// share; of the last ones, used equally often, a part.
///
/// @param records of the operations, each below `record_count`
/// @param threads count, each its own range of records
WorkloadCounts CountWorkload(std::span<const std::uint32_t> records, std::span<const Op> kinds,
                             std::uint64_t record_count, std::uint64_t batch, double hit_rate,
                             ThreadPool& threads);

/// What the accesses of a workload depend on besides its operations.
struct WorkloadShape {
  std::uint32_t key_size = 8;
  std::uint32_t value_size = 128;
  Geometry geometry{};
  bool gpu = false;        ///< directory, cache and the arrays of batches are in GPU memory
  bool directory = false;  ///< searches read it, and not the slots
  bool missing = false;    ///< no find finds its key
};

/// The accesses that an operation of the workload must make, on average: what is left when nothing
/// is done twice within a batch and everything is done in the order of addresses, or dealt out by
/// address where that is faster. Assumed:
///
/// Persistent memory
/// - a key is searched without it where there is a directory, but for the comparison of keys longer
///   than 8 bytes, which the directory does not have: one touch of key_size bytes for a key that is
///   there. Without a directory the pairs of state and reference of one candidate bucket for a key
///   that is there, and those of all candidate buckets for one that is not, each a touch;
/// - a value that is read and not cached: one ordered read of value_size bytes. None for values
///   that the slots hold (up to 8 bytes);
/// - a write, of a key and batch only the last: value_size bytes in sequence with others, and
///   small writes, each ordered: an update the 8-byte reference; an insert the pair of state, which
///   is the key where that has 8 bytes, and reference, or where the slots hold the values or there
///   is no directory first the one, then the other; a longer key is another, as it lies elsewhere
///   in the bucket (Operations::ClaimSlot); an erase the state word. However long they are, they
///   count as one small write each. None of them shares a posted write with another;
/// - what a resize, a retired cell or a fence costs: nothing.
///
/// GPU memory (executor cuda), in sectors of 32 bytes and lines of 128
/// - writes are counted as reads of as much;
/// - a search of the directory: the fingerprints of each candidate bucket (2 bytes a slot, at least
///   one sector); for a key that is there, its reference and, of 8 bytes, the key, a sector each;
/// - a write changes the directory: an update the reference, an erase the fingerprint; an insert
/// that, the fingerprint and,
///   of 8 bytes, the key, a sector each, and one compare-and-swap for its claim;
/// - arrays of the batch, all in sequence: keys and results of all operations, values of the
///   written keys, found rows of all finds that find; and a cached value that is read, once for a
///   key and batch.
///
/// Nothing is taken to be in a cache of the hardware, and no two keys of a batch to share a bucket:
/// small tables may exceed a bound that follows from this.
///
/// On executor cpu all of this is one memory: a sector of the directory is a touch of it, a cached
/// value is read like another, and the arrays of the batch, which stay in the processor's cache at
/// best, count as nothing.
Accesses AccessesOf(const WorkloadCounts& counts, const WorkloadShape& shape);

/// Accesses to persistent memory, of all kinds.
double LinkAccesses(const Accesses& accesses);

}  // namespace gpm::bench

#endif  // GPM_BENCH_WORKLOAD_BOUND_H_
