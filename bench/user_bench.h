#ifndef GPM_BENCH_USER_BENCH_H_
#define GPM_BENCH_USER_BENCH_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/workload_bench.h"

namespace gpm::bench {

/// Operations of a cold start, and of what comes behind a change; 16 for each record where those
/// are fewer.
inline constexpr std::uint64_t kColdOperations = std::uint64_t{1} << 22;
inline constexpr std::uint64_t kSmallBatch = 256;
inline constexpr std::uint64_t kSmallBatches = 4096;
inline constexpr std::uint64_t kSpacedBatches = 512;  ///< at most: kColdOperations in all

/// Workloads that MeasureAsUser knows.
const std::vector<std::string>& UserWorkloads();

/// Runs a workload as `gpmstore ycsb`, or an embedder, would: a new pool with default options,
/// with no word of how many items will come and no refresh asked for, is loaded in batches, and
/// the workload then runs, cold, for kColdOperations, and for options.operations more. Behind that
/// come, with the workload's operations:
/// - "small": kSmallBatches of kSmallBatch;
/// - "spaced": kSpacedBatches, with a millisecond of other work between them;
/// - "asked": kColdOperations, behind a refresh that was asked for;
/// - "moved": the same, after the two halves of the records have exchanged their popularity (where
///   some are more popular).
/// @param options records, operations, repeats, sizes, distribution, executor and pool count
/// @param memory where the arrays of batches are: "host", "pinned" or "device"
/// @return a row, with what the store was at the end: medians of the repeats, which have a pool
///         each; of the load, cold, behind that (without a prefix) and each of the others, million
///         operations a second, the hit rate, the median and the slowest batch in milliseconds
/// @throws as Store, ycsb::Runner; Error(kDamaged) for wrong results
nlohmann::json MeasureAsUser(const WorkloadOptions& options, const std::string& workload,
                             std::uint64_t batch, const std::string& memory);

}  // namespace gpm::bench

#endif  // GPM_BENCH_USER_BENCH_H_
