#ifndef GPM_BENCH_ROOFLINE_CELLS_H_
#define GPM_BENCH_ROOFLINE_CELLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "pm/annotate.h"
#include "pm/mapping.h"
#include "pm/thread_pool.h"
#include "table/hash.h"

namespace gpm::bench {

/// Inside of the measuring of a roofline: the range, what it holds, and how an executor accesses
/// it.

enum class AccessKind { kTouch, kRead, kWrite, kReadOrWrite, kSmallWrite, kCas };

/// Of touches, a cell's first. Small writes and CAS are of its first word.
inline constexpr std::uint32_t kTouchBytes = 16;

/// Whether an access changes the cell: of kReadOrWrite, those to every other cell do.
GPM_HD constexpr bool Changes(AccessKind kind, std::uint64_t cell) {
  return kind == AccessKind::kReadOrWrite ? cell % 2 != 0
                                          : kind != AccessKind::kTouch && kind != AccessKind::kRead;
}

/// The 8-byte word number `index` of a memory that is measured. Between two runs all words have
/// version 0; writes and CAS make version 1 of them, until they have been checked; version 2 is
/// nowhere.
GPM_HD inline std::uint64_t CellWord(std::uint64_t index, std::uint64_t version) {
  return Scramble(4 * index + version + 0x9E3779B97F4A7C15ull);
}

/// A bijection of [0, cells) without visible pattern: steps that can each be undone, within the
/// next power of two, walked until the value is below `cells` (less than two walks on average).
struct CellPermutation {
  std::uint32_t cells = 0;
  std::uint32_t mask = 0;
  std::uint32_t shift = 0;

  /// @param cells 1 ... 2^31
  static CellPermutation Of(std::uint64_t cells) {
    CellPermutation permutation;
    permutation.cells = static_cast<std::uint32_t>(cells);
    std::uint32_t bits = 1;
    while ((std::uint64_t{1} << bits) < cells) ++bits;
    permutation.mask = static_cast<std::uint32_t>((std::uint64_t{1} << bits) - 1);
    permutation.shift = bits / 2 + 1;
    return permutation;
  }
  GPM_HD std::uint32_t operator()(std::uint32_t x) const {
    do {
      x = Mix(Mix(Mix(x, 0x9E3779B1u), 0x85EBCA77u), 0xC2B2AE3Du);
    } while (x >= cells);
    return x;
  }
  /// @param odd an odd number
  GPM_HD std::uint32_t Mix(std::uint32_t x, std::uint32_t odd) const {
    x = ((x ^ 0x5BD1E995u) * odd) & mask;
    return x ^ (x >> shift);
  }
};

/// Some different cells. The order in which they are accessed is the executor's part: it sorts
/// those of AccessOrder::kOrdered, and deals out those of kDealt.
struct CellChoice {
  AccessOrder order = AccessOrder::kRandom;
  std::uint64_t count = 0;  ///< at most permutation.cells
  std::uint64_t first = 0;  ///< < permutation.cells; other choices have other first positions
  CellPermutation permutation;

  GPM_HD std::uint32_t operator[](std::uint64_t i) const {
    std::uint64_t position = first + i;
    if (position >= permutation.cells) position -= permutation.cells;
    const auto x = static_cast<std::uint32_t>(position);
    return order == AccessOrder::kSequential ? x : permutation(x);
  }
};

/// Calls work(begin, end) for parts of [0, n) by all threads, and returns the exclusive or of what
/// it returns.
std::uint64_t XorOver(ThreadPool& threads, std::uint64_t n,
                      const std::function<std::uint64_t(std::uint64_t, std::uint64_t)>& work);

/// The range of persistent memory: cells side by side in a file that has no name any more.
///
/// Thread safety: none; its own work is done by the threads that it is given.
class CellRange {
 public:
  /// Makes the file and fills all of it. @throws as Mapping; Error(kInvalidArgument) when the range
  /// is smaller than a page or has too many cells
  CellRange(const std::string& path, std::uint64_t range_bytes, std::uint32_t value_size,
            ThreadPool& threads);

  Mapping& mapping() { return mapping_; }
  std::byte* base() const { return mapping_.base(); }
  std::uint32_t cell_bytes() const { return cell_bytes_; }
  std::uint64_t words() const { return cell_bytes_ / 8; }  ///< of a cell
  const CellPermutation& permutation() const { return permutation_; }

  /// Cells that were not accessed lately. REQUIRES: 1 <= count <= permutation().cells
  CellChoice Choose(AccessOrder order, std::uint64_t count);

  /// Checks that accesses to the cells chosen took place, and makes all words version 0 again.
  /// @param sum that the run returned
  /// @throws Error(kDamaged) when something else was read, or is there now
  void Settle(AccessKind kind, const CellChoice& choice, std::uint64_t sum);

 private:
  std::uint64_t* Words(std::uint64_t cell) const {
    return reinterpret_cast<std::uint64_t*>(base() + cell * cell_bytes_);
  }
  /// Words of a cell that an access concerns.
  std::uint64_t WordsOf(AccessKind kind) const;

  ThreadPool& threads_;
  std::uint32_t cell_bytes_;
  CellPermutation permutation_;
  Mapping mapping_;
  std::uint64_t next_ = 0;  ///< position of the next choice
};

/// How an executor accesses a range. Made for one range, which outlives it.
class Accessor {
 public:
  struct Timed {
    double seconds = 0;
    /// Of CAS: how many succeeded; else the exclusive or of all 8-byte words read.
    std::uint64_t sum = 0;
  };

  virtual ~Accessor() = default;
  /// What is worth trying; empty for an order that the executor does not have.
  virtual std::vector<std::uint32_t> InFlight(AccessOrder order, std::uint64_t accesses) const = 0;
  /// Accesses the cells chosen, once each. Writes and CAS make version 1 of version 0.
  virtual Timed Run(AccessKind kind, const CellChoice& choice, std::uint32_t in_flight) = 0;
  /// Rates of the executor's own memory, where they are known to differ from the range's.
  virtual std::optional<MemoryRates> MeasureMemory(unsigned repeats) = 0;
  /// Roofline::empty_batch_seconds.
  virtual double MeasureEmptyBatch() = 0;
};

std::unique_ptr<Accessor> MakeCpuAccessor(CellRange& range, ThreadPool& threads);
/// @throws Error kUnsupported (built without CUDA, no GPU, or a medium that it can't map), kGpu
std::unique_ptr<Accessor> MakeCudaAccessor(CellRange& range, ThreadPool& threads);

}  // namespace gpm::bench

#endif  // GPM_BENCH_ROOFLINE_CELLS_H_
