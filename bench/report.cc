#include "bench/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "gpmstore/version.h"
#include "pm/gpu_host.h"
#include "table/geometry.h"

namespace gpm::bench {
namespace {

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    return start == std::string::npos ? "unknown" : line.substr(start);
  }
  return "unknown";
}

/// @param file "-" is the standard output
void WriteJson(const nlohmann::json& report, const std::string& file) {
  if (file == "-") {
    std::cout << report.dump(2) << '\n' << std::flush;
    if (!std::cout) throw Error(ErrorCode::kIo, "can't write the report to the standard output");
    return;
  }
  std::ofstream stream(file);
  stream << report.dump(2) << '\n';
  stream.close();
  if (!stream) throw Error(ErrorCode::kIo, "can't write the report to " + file);
}

}  // namespace

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Quantile(std::vector<double> values, double fraction) {
  std::ranges::sort(values);
  const auto rank =
      static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::max<std::size_t>(rank, 1) - 1];
}

double HitRate(const CacheStats& from, const CacheStats& to) {
  if (to.found == from.found) return 0;
  return static_cast<double>(to.hits - from.hits) / static_cast<double>(to.found - from.found);
}

nlohmann::json MachineFacts() {
  return {{"cpu_model", CpuModel()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                               static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))},
          {"gpus", GpuCount()},
          {"gpu_model", GpuName(0)},
          {"compiler", __VERSION__}};
}

nlohmann::json StoreFacts(const StoreStats& stats) {
  return {{"executor", ExecutorName(stats.executor)},
          {"medium", MediumName(stats.medium.medium)},
          {"key_size", stats.key_size},
          {"value_size", stats.value_size},
          {"geometry", GeometryName(stats.geometry)},
          {"items", stats.items},
          {"load_factor", stats.load_factor},
          {"resizes", stats.resizes},
          {"composed_resizes", stats.composed_resizes},
          {"resize_seconds", stats.resize_seconds},
          {"growth_seconds", stats.growth_seconds},
          {"composing_seconds", stats.composing_seconds},
          {"directory_seconds", stats.directory_seconds},
          {"pool_growths", stats.pool_growths},
          {"pool_growth_waits", stats.pool_growth_waits},
          {"pool_growth_wait_seconds", stats.pool_growth_wait_seconds},
          {"pm_bytes", stats.pm_bytes},
          {"gpu_bytes", stats.gpu_bytes}};
}

std::string& NotedCommit() {
  static std::string commit;
  return commit;
}

bool PrintsTables(const std::string& json_file) { return json_file != "-"; }

void FinishReport(const char* benchmark, nlohmann::json report, const std::string& json_file,
                  const std::function<void(const nlohmann::json& report)>& print) {
  ShowProgress("");
  report["benchmark"] = benchmark;
  report["machine"] = MachineFacts();
  report["commit"] = NotedCommit();
  report["gpmstore_version"] = Version();
  // (First, so that it is there where the table can't be printed.)
  if (!json_file.empty()) WriteJson(report, json_file);
  if (print && PrintsTables(json_file)) print(report);
}

void ShowProgress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
}

}  // namespace gpm::bench
