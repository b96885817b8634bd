#ifndef GPM_YCSB_REPORT_H_
#define GPM_YCSB_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "gpmstore/store.h"
#include "ycsb/phase_report.h"
#include "ycsb/workload.h"

namespace gpm::ycsb {

/// Reports as JSON (latencies in microseconds, sizes in bytes) and as text for people.
/// Thread safety: pure functions.

nlohmann::ordered_json ToJson(const PhaseReport& report);
nlohmann::ordered_json ToJson(const StoreStats& stats);
nlohmann::ordered_json ToJson(const WorkloadSpec& spec);

/// Lines "name  value" of a store's executor, medium, items and space.
/// @param removed the pool is gone after the run, whatever its medium survives
std::string StoreTable(const StoreStats& stats, bool removed);

/// Throughput, latency percentiles and outcomes of a phase.
/// @param title such as "run"
std::string PhaseTable(const std::string& title, const PhaseReport& report);

/// A line of what a phase's verification found.
std::string VerifiedLine(const PhaseReport& report);

/// 1536 -> "1.5 KiB".
std::string BytesText(std::uint64_t bytes);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_REPORT_H_
