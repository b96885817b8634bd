#ifndef GPM_BENCH_RECOVERY_BENCH_H_
#define GPM_BENCH_RECOVERY_BENCH_H_

#include <nlohmann/json_fwd.hpp>

#include "bench/loaded_pool.h"

namespace gpm::bench {

/// Measures how long it takes to open a loaded pool, closed in order and after a crash, and to make
/// its table one level larger.
/// @param bounds measure the roofline, and give each time's bound
/// @return a report: rows of the three, `store`, its `capacity_slots`, and with bounds `roofline`
/// @throws as LoadedPool, MeasureRoofline; Error(kDamaged) for wrong results, kIo when the process
///         that is to crash can't be started
nlohmann::json MeasureRecovery(const PoolSpec& spec, unsigned repeats, bool bounds);

/// The subcommand that MeasureRecovery starts this program with, in a process of its own, with
/// --pool, --executor and --threads: it is CrashInPool.
inline constexpr const char* kCrashCommand = "recovery-child";

/// Opens the pool, updates some records to the values that they have, and is killed.
/// @throws as Store
[[noreturn]] void CrashInPool(const PoolSpec& spec);

}  // namespace gpm::bench

#endif  // GPM_BENCH_RECOVERY_BENCH_H_
