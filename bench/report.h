#ifndef GPM_BENCH_REPORT_H_
#define GPM_BENCH_REPORT_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gpmstore/store.h"

namespace gpm::bench {

/// The middle value; of an even number the mean of the two in the middle. REQUIRES: not empty.
double Median(std::vector<double> values);

/// The smallest value that at least `fraction` of the values do not exceed. REQUIRES: not empty,
/// 0 < fraction <= 1.
double Quantile(std::vector<double> values, double fraction);

/// Share of the finds that found their key between two states of a cache that read no persistent
/// memory for the value; 0 where there were none.
double HitRate(const CacheStats& from, const CacheStats& to);

/// What a figure depends on besides the program: CPU model, cores, bytes of memory, GPUs.
nlohmann::json MachineFacts();

/// What the store under test was: executor, medium, key and value size, geometry, items, load
/// factor, resizes, bytes of PM.
nlohmann::json StoreFacts(const StoreStats& stats);

/// The commit that reports say they are of, as the command line has it.
std::string& NotedCommit();

/// Whether a command prints tables: not where its report is to stand alone on the standard output.
bool PrintsTables(const std::string& json_file);

/// What a command ends with. Writes its report, where a file is named, with what every report has:
/// benchmark, machine, version of the store, commit. And prints it as a table.
/// @param json_file as --json has it: "-" is the standard output, "" none
/// @param print none: the command has printed what there is
/// @throws Error(kIo) naming the file
void FinishReport(const char* benchmark, nlohmann::json report, const std::string& json_file,
                  const std::function<void(const nlohmann::json& report)>& print = {});

/// Shows what is going on, on stderr and only when that is a terminal; empty clears the line.
void ShowProgress(const std::string& text);

}  // namespace gpm::bench

#endif  // GPM_BENCH_REPORT_H_
