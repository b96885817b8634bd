#include "ycsb/property_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "pm/text.h"

namespace gpm::ycsb {
namespace {

/// Of YCSB's Client, CoreWorkload, measurements and status reports, of which many have no meaning
/// here; and deleteproportion and searchproportion.
constexpr auto kNames = std::to_array<std::string_view>({
    "core_workload_insertion_retry_interval",
    "core_workload_insertion_retry_limit",
    "dataintegrity",
    "db",
    "deleteproportion",
    "exponential.frac",
    "exponential.percentile",
    "exporter",
    "exportfile",
    "fieldcount",
    "fieldlength",
    "fieldlengthdistribution",
    "fieldlengthhistogram",
    "fieldnameprefix",
    "hdrhistogram.fileoutput",
    "hdrhistogram.output.path",
    "hdrhistogram.percentiles",
    "histogram.buckets",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "insertcount",
    "insertorder",
    "insertproportion",
    "insertstart",
    "maxexecutiontime",
    "maxscanlength",
    "measurement.interval",
    "measurement.raw.no_summary",
    "measurement.raw.output_file",
    "measurement.trackjvm",
    "measurementtype",
    "minfieldlength",
    "minscanlength",
    "operationcount",
    "readallfields",
    "readallfieldsbyname",
    "readmodifywriteproportion",
    "readproportion",
    "recordcount",
    "reportlatencyforeacherror",
    "requestdistribution",
    "scanlengthdistribution",
    "scanproportion",
    "searchproportion",
    "status",
    "status.interval",
    "table",
    "target",
    "threadcount",
    "timeseries.granularity",
    "updateproportion",
    "workload",
    "writeallfields",
    "zeropadding",
    "zipfian.items",
});

/// Letters to insert, drop or change to make `a` of `b`.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// The known name that is closest, if it is close.
std::string_view Meant(std::string_view name) {
  constexpr std::size_t kLongest = 64;
  if (name.size() > kLongest) return {};
  const auto closest =
      std::min_element(kNames.begin(), kNames.end(), [&](std::string_view a, std::string_view b) {
        return Distance(name, a) < Distance(name, b);
      });
  return Distance(name, *closest) <= 1 + closest->size() / 6 ? *closest : std::string_view();
}

}  // namespace

std::vector<std::string> UnknownNameWarnings(const Properties& properties) {
  std::vector<std::string> warnings;
  for (const std::string& name : properties.Names()) {
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) continue;
    const std::string_view meant = Meant(name);
    warnings.push_back(fmt::format("{}: there is no property {}: it is ignored{}",
                                   properties.Where(name), Quoted(name),
                                   meant.empty() ? "" : fmt::format("; did you mean {}?", meant)));
  }
  return warnings;
}

}  // namespace gpm::ycsb
