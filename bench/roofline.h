#ifndef GPM_BENCH_ROOFLINE_H_
#define GPM_BENCH_ROOFLINE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpmstore/options.h"
#include "pm/medium.h"

namespace gpm::bench {

/// What the machine itself can do, whatever a store makes of it: the accesses a second that an
/// executor makes to a range of persistent memory of a pool's size, and to its own memory; and the
/// bound that follows for operations that must make certain accesses.

struct RooflineOptions {
  ExecutorKind executor = ExecutorKind::kAuto;
  std::uint64_t range_bytes = std::uint64_t{2} << 30;  ///< that the accesses spread over
  std::uint32_t value_size = 128;                      ///< bytes; an access is to a value's cell
  /// Accesses of one kernel (cuda) or one job of the threads (cpu), each measured. Where the range
  /// has fewer cells, that many.
  std::vector<std::uint64_t> accesses = {std::uint64_t{1} << 12, std::uint64_t{1} << 20};
  unsigned repeats = 5;  ///< of which medians are taken, after one that is not counted
  unsigned threads = 0;  ///< of the cpu executor; 0: all cores
  std::string pool;      ///< a file, which must not exist and is removed, or "pinned:"
};

struct Rate {
  double per_second = 0;  ///< accesses
  /// What gave it, the best of those tried: blocks of 256 threads (cuda), accesses prefetched ahead
  /// (cpu); 0 where nothing was tried.
  std::uint32_t in_flight = 0;
};

/// In what order cells are accessed. `kRandom` and `kOrdered` are the same choices, spread evenly
/// over the range; `kSequential` are cells side by side, as an empty pool is filled. `kDealt`, on
/// cuda only, are the choices of kRandom, dealt out by address: the range is divided among the
/// multiprocessors, 2 MiB at a time, and each makes the accesses to its own part, the same in every
/// kernel, so that it finds their address translations near it.
enum class AccessOrder { kRandom, kOrdered, kSequential, kDealt };

/// One thing for each order.
struct Rates {
  Rate random;
  Rate ordered;
  Rate sequential;
  Rate dealt;  ///< 0 on cpu
};

/// Of `accesses` made at once to persistent memory: over the link (cuda), or in DRAM (cpu).
struct LinkRates {
  std::uint64_t accesses = 0;
  Rates touch;          ///< reads of a cell's first 16 bytes: addresses a second, hardly any bytes
  Rates read;           ///< of whole cells
  Rates write;          ///< of whole cells
  Rates read_or_write;  ///< half of them reads of whole cells, half writes
  Rates small_write;    ///< of a cell's first 8 bytes, as words of slots are
  Rates cas;            ///< of a cell's first 8 bytes; each succeeds
};

/// Of accesses to GPU memory, to every cell of a range far larger than the GPU's caches, in random
/// order.
struct MemoryRates {
  std::uint64_t range_bytes = 0;
  Rate read_32;   ///< a sector: 32 bytes
  Rate read_128;  ///< a line: 128 bytes, four sectors side by side
  Rate cas_4;     ///< of 4 bytes; each succeeds
};

struct Roofline {
  ExecutorKind executor = ExecutorKind::kCpu;
  Medium medium = Medium::kTmpfs;
  std::uint64_t range_bytes = 0;
  std::uint64_t cell_bytes = 0;       ///< of an access: the value size, rounded up as in a pool
  std::vector<LinkRates> link;        ///< by increasing number of accesses; not empty
  std::optional<MemoryRates> memory;  ///< cuda only
  /// Of one kernel that does nothing, launched as a store launches those of a small batch
  /// (KernelGraph), from the call until the host has read what it wrote; 0 on cpu.
  double empty_batch_seconds = 0;
};

/// Measures. Every byte that is read, written or compared is checked.
///
/// The range is a file, mapped and (cuda) registered as a store's pool is, filled with random
/// bytes; it loses its name at once, so that an interrupted run leaves nothing. On cuda the time of
/// a kernel is between two events, with no launch in it; on cpu that of a job includes waking its
/// threads.
///
/// @throws Error kUnsupported (executor cuda without CUDA, without a GPU, or on a medium that it
///         can't map), kInvalidArgument (options out of range), kGpu, kDamaged (what was read or
///         written is wrong), and as Mapping
Roofline MeasureRoofline(const RooflineOptions& options);

/// A flat report: the options' facts, "link" (rows of accesses, kind, order, bytes, mops,
/// gb_per_second, in_flight; none for an order that the executor does not have) and "memory" (rows
/// likewise; empty on cpu).
nlohmann::json ToJson(const Roofline& roofline);

/// What one operation must make, on average. Sequential accesses to persistent memory cost bytes
/// alone.
struct Accesses {
  // Persistent memory.
  double read_bytes = 0;    ///< of all reads
  double write_bytes = 0;   ///< of all writes but small ones
  double random_reads = 0;  ///< of a cell or more; each at a place of its own in the pool's range
  double ordered_reads = 0;
  double random_touches = 0;  ///< reads of less than a cell
  double ordered_touches = 0;
  double random_writes = 0;
  double ordered_writes = 0;
  double small_writes = 0;  ///< of the random and ordered ones, those that write less than a cell
  double random_cas = 0;
  double ordered_cas = 0;
  // GPU memory, at random places.
  double gpu_sectors = 0;  ///< reads of 32 bytes
  double gpu_lines = 0;    ///< reads of 128 bytes
  double gpu_cas = 0;
};

/// How many operations a second one part of the machine's roofline allows.
struct BoundTerm {
  std::string_view limit;  ///< "read bytes", "writes", "both directions", "translations",
                           ///< "ordered", "cas", "gpu", "launch"
  double per_second = 0;
};

/// The parts of the roofline that bind some accesses, the lowest first; none where no accesses are
/// made.
///
/// An operation takes max(bytes / link rate, translations / translation rate, GPU-memory accesses /
/// GPU rate) seconds, to which small writes are added (below).
/// It is a maximum and no sum because a batch has all of them in flight at once; so no store
/// exceeds the bound, and none need reach it. With the rates r measured here, seconds of an
/// operation:
///
/// - read bytes: read_bytes / (r(read, best order) * cell_bytes)
/// - writes: write_bytes / (r(write, best order) * cell_bytes) + small_writes / r(small write); a
///   link has both directions
/// - translations, with r(k) the best of kind k in random order, ordered and dealt: the most of
///   random_reads / r(read),
///   (random_reads + random_touches) / max(r(touch), r(read)),
///   (random_writes + random_cas) / r(best kind),
///   and all random accesses / max(r(best kind, random or ordered), 2 * r(best kind, dealt))
/// - ordered: likewise, with the ordered ones: what a batch accesses can be put in any order
/// - both directions: with the two terms above, R of read bytes and W of writes, and the share s of
///   the shorter one that passes beside the longer: R + W - s * min(R, W). Of r(read or write), in
///   the best order but sequential, s is (1 / r(read) + 1 / r(write) - 2 / r(read or write)) /
///   min(1 / r(read), 1 / r(write)), no less than 0 and no more than 1; 1 where it was not measured
/// - cas: (random_cas + ordered_cas) / r(cas, best order)
/// - gpu: gpu_sectors / r(32 bytes) + gpu_lines / r(128 bytes) + gpu_cas / r(cas on GPU memory)
/// - launch: empty_batch_seconds / batch
///
/// Beyond some 512 MiB an access that is not dealt out costs an address translation, the same for 4
/// bytes and for 512, for a read and for a write: hence one rate for all of them. Dealt out, reads
/// and writes share nothing but a link with both directions: hence twice that rate. The last is a
/// sum because the three share one memory.
///
/// A posted write takes its time on the link however few bytes it has, and one begins when the one
/// before it has ended: hence the sum for writes. It assumes that no two small writes become one
/// (those of slots lie anywhere, so that sequential ones do not count: r(small write) is the best
/// in random order, ordered and dealt). Few at once take mostly their latency, which the rate of
/// cells contains: so r(small write) is that of the most accesses measured. On cpu, where writes of
/// both sizes are bound by the lines that a core has under way, it is an estimate.
///
/// Rates are those of accesses to cells of the value size that was measured: where it is below 128
/// bytes, larger accesses may move more bytes.
///
/// @param at_once accesses to persistent memory that a batch makes: the rates hold that were
///        measured with the fewest accesses that are not less, or the most; 0: the most. More at
///        once are never slower an access, so that the bound stays one.
/// @param batch operations; 0: as many as you like
/// @throws Error(kInvalidArgument) when there are GPU-memory accesses, but no rates of that
std::vector<BoundTerm> BoundTerms(const Roofline& roofline, const Accesses& accesses,
                                  std::uint64_t at_once = 0, std::uint64_t batch = 0);

/// Operations a second: that of the first of BoundTerms; infinity where no accesses are made.
double Bound(const Roofline& roofline, const Accesses& accesses, std::uint64_t at_once = 0);

}  // namespace gpm::bench

#endif  // GPM_BENCH_ROOFLINE_H_
