#ifndef GPM_BENCH_OPERATIONS_H_
#define GPM_BENCH_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/batch.h"

namespace gpm::bench {

/// Operations, all computed before anything is timed, and what they must come to. Keys are 8 bytes;
/// record r has the key that YCSB gives it (the FNV hash of r).

/// How the records of a phase are chosen.
enum class Choice {
  kInOrder,  ///< each record of the range once, in order
  kUniform,
  kZipf,  ///< YCSB's scrambled Zipfian
};

/// Records first..first + count - 1.
struct Records {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// `n` keys of records of a range. REQUIRES: the range is not empty.
/// @param theta skew of kZipf @throws Error(kInvalidArgument) for a theta out of range
std::vector<std::uint64_t> MakeKeys(Choice choice, Records records, std::uint64_t n, double theta,
                                    std::uint64_t seed);

/// One part of a benchmark: operations of one kind that all have the same outcome.
struct Phase {
  std::string name;
  Op op = Op::kFind;
  std::vector<std::uint64_t> keys;
  Result expected = Result::kOk;
  /// Values are a function of key and version: of those written, or of those a find must return.
  std::uint32_t version = 0;
};

/// Writes the values of `keys` in `version`, value_size bytes each, to `values`.
void FillValues(std::span<const std::uint64_t> keys, std::uint32_t version,
                std::uint32_t value_size, std::span<std::byte> values);

/// @param found of a find: rows of value_size bytes that were zero before; else empty
/// @throws Error(kDamaged) naming the first operation whose result or value is not what the phase
///         must come to, so that no figure is given for wrong work
/// @return a checksum of the results and values, for the report
std::uint64_t Verify(const Phase& phase, std::uint32_t value_size, std::span<const Result> results,
                     std::span<const std::byte> found);

}  // namespace gpm::bench

#endif  // GPM_BENCH_OPERATIONS_H_
