#include "ycsb/workload.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "gpmstore/error.h"
#include "gpmstore/options.h"
#include "pm/text.h"
#include "ycsb/generators.h"
#include "ycsb/property_names.h"

namespace gpm::ycsb {
namespace {

constexpr std::array<std::pair<std::string_view, Distribution>, 7> kDistributions = {{
    {"uniform", Distribution::kUniform},
    {"zipfian", Distribution::kZipfian},
    {"zipf", Distribution::kZipf},
    {"latest", Distribution::kLatest},
    {"hotspot", Distribution::kHotspot},
    {"sequential", Distribution::kSequential},
    {"exponential", Distribution::kExponential},
}};

constexpr std::uint64_t kMaxRecords = std::uint64_t{1} << 40;
constexpr std::string_view kNoScans =
    "scans are not supported: a hash index has no key order to scan in";

/// A property whose only usable value is YCSB's default.
void RequireDefault(const Properties& properties, const std::string& name,
                    const std::string& usable, const std::string& reason) {
  if (properties.Text(name, usable) != usable) properties.Refuse(name, reason);
}

}  // namespace

std::string_view DistributionName(Distribution distribution) {
  for (const auto& [name, value] : kDistributions) {
    if (value == distribution) return name;
  }
  return "unknown";
}

Distribution ParseDistribution(std::string_view name) {
  for (const auto& [known, value] : kDistributions) {
    if (known == name) return value;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no distribution {}; there are uniform, zipfian, zipf, "
                          "latest, hotspot, sequential and exponential",
                          Quoted(name)));
}

bool HasSkew(Distribution distribution) {
  return distribution == Distribution::kZipfian || distribution == Distribution::kZipf ||
         distribution == Distribution::kLatest;
}

WorkloadSpec PresetWorkload(std::string_view name) {
  WorkloadSpec spec;
  spec.name = name;
  if (name == "a") {
    spec.mix = {.find = 0.5, .update = 0.5};
  } else if (name == "b") {
    spec.mix = {.find = 0.95, .update = 0.05};
  } else if (name == "c" || name == "find") {
    spec.mix = {.find = 1};
  } else if (name == "d") {
    spec.mix = {.find = 0.95, .insert = 0.05};
  } else if (name == "f") {
    spec.mix = {.find = 0.5, .read_modify_write = 0.5};
  } else if (name == "find-missing") {
    spec.mix = {.missing = 1};
  } else if (name == "insert") {
    spec.mix = {.insert = 1};
  } else if (name == "update") {
    spec.mix = {.update = 1};
  } else if (name == "erase") {
    spec.mix = {.erase = 1};
  } else if (name == "churn") {
    spec.mix = {.find = 0.5, .update = 0.1, .insert = 0.2, .erase = 0.2};
  } else if (name == "ghsh1") {
    spec.mix = {.update = 0.2, .insert = 0.4, .erase = 0.4};
  } else if (name == "ghsh2") {
    spec.mix = {.update = 0.1, .insert = 0.2, .erase = 0.2, .search = 0.5};
  } else if (name == "ghsh3") {
    spec.mix = {.update = 0.1, .insert = 0.1, .erase = 0.1, .search = 0.7};
  } else if (name == "load") {
    spec.mix = {.insert = 1};
    spec.operations = 0;
  } else if (name == "e") {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("workload e: {}", kNoScans));
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no workload {}; there are a, b, c, d, f, load, find, "
                            "find-missing, insert, update, erase, churn, ghsh1, ghsh2 and ghsh3",
                            Quoted(name)));
  }
  if (name == "d") {
    spec.distribution = Distribution::kLatest;
  } else if (name.size() == 1) {
    spec.distribution = Distribution::kZipfian;
  } else if (name == "erase") {
    spec.distribution = Distribution::kSequential;
  }
  return spec;
}

PropertyWorkload ReadPropertyWorkload(const Properties& properties) {
  PropertyWorkload result;
  WorkloadSpec& spec = result.spec;
  spec.name = "properties";
  if (properties.Fraction("scanproportion", 0) > 0) {
    properties.Refuse("scanproportion", std::string(kNoScans));
  }
  spec.mix.find = properties.Fraction("readproportion", 0.95);
  spec.mix.update = properties.Fraction("updateproportion", 0.05);
  spec.mix.insert = properties.Fraction("insertproportion", 0);
  spec.mix.erase = properties.Fraction("deleteproportion", 0);
  spec.mix.search = properties.Fraction("searchproportion", 0);
  spec.mix.read_modify_write = properties.Fraction("readmodifywriteproportion", 0);
  // YCSB takes the proportions as weights.
  const double sum = spec.mix.find + spec.mix.update + spec.mix.insert + spec.mix.erase +
                     spec.mix.search + spec.mix.read_modify_write;
  if (!(sum > 0)) properties.Refuse("readproportion", "the proportions are all 0");
  for (double* share : {&spec.mix.find, &spec.mix.update, &spec.mix.insert, &spec.mix.erase,
                        &spec.mix.search, &spec.mix.read_modify_write}) {
    *share /= sum;
  }

  const std::string distribution = properties.Text("requestdistribution", "uniform");
  try {
    spec.distribution = ParseDistribution(distribution);
  } catch (const Error& error) {
    properties.Refuse("requestdistribution", error.what());
  }
  const std::string order = properties.Text("insertorder", "hashed");
  if (order != "hashed" && order != "ordered") {
    properties.Refuse("insertorder", "must be hashed or ordered");
  }
  spec.order = order == "ordered" ? KeyOrder::kOrdered : KeyOrder::kHashed;
  spec.records = properties.Count("recordcount", 0);
  spec.operations = properties.Count("operationcount", 0);
  spec.hotspot_data_fraction =
      properties.Fraction("hotspotdatafraction", spec.hotspot_data_fraction);
  spec.hotspot_operation_fraction =
      properties.Fraction("hotspotopnfraction", spec.hotspot_operation_fraction);
  spec.exponential_percentile =
      properties.Number("exponential.percentile", spec.exponential_percentile);
  spec.exponential_fraction = properties.Number("exponential.frac", spec.exponential_fraction);

  properties.Count("zeropadding", 1);  // the width of printed keys; keys here are numbers
  if (properties.Count("insertstart", 0) != 0) {
    properties.Refuse("insertstart", "loading starts with record 0 here");
  }
  if (properties.Has("insertcount") && properties.Count("insertcount", 0) != spec.records) {
    properties.Refuse("insertcount", "all records are loaded here: it must equal recordcount");
  }
  RequireDefault(properties, "fieldlengthdistribution", "constant",
                 "values of a pool have one size: only constant can be honoured");
  if (properties.Number("maxexecutiontime", 0) > 0) {
    properties.Refuse("maxexecutiontime", "a run ends after its operations, not after a time");
  }
  if (properties.Number("target", 0) > 0) {
    properties.Refuse("target", "a run goes as fast as it can: a rate can't be set");
  }

  const std::uint64_t fields = properties.Count("fieldcount", 10);
  const std::uint64_t field_bytes = properties.Count("fieldlength", 100);
  if (fields == 0 || field_bytes == 0 || fields > kMaxValueBytes || field_bytes > kMaxValueBytes ||
      fields * field_bytes > kMaxValueBytes) {
    properties.Refuse(
        properties.Has("fieldlength") ? "fieldlength" : "fieldcount",
        fmt::format("a value is fieldcount * fieldlength = {} * {} bytes here, and must be from 1 "
                    "to {}",
                    fields, field_bytes, kMaxValueBytes));
  }
  result.value_size = static_cast<std::uint32_t>(fields * field_bytes);
  result.warnings = UnknownNameWarnings(properties);
  return result;
}

void ValidateWorkload(const WorkloadSpec& spec) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  const Mix& mix = spec.mix;
  const double sum = mix.find + mix.missing + mix.update + mix.insert + mix.erase + mix.search +
                     mix.read_modify_write;
  if (std::abs(sum - 1) > 1e-9) refuse(fmt::format("the operations' shares sum to {}, not 1", sum));
  if (spec.records > kMaxRecords || spec.operations > kMaxRecords) {
    refuse(
        fmt::format("at most {} records and operations can be asked for (--records, --operations)",
                    kMaxRecords));
  }
  const bool chooses = mix.insert < 1;
  if (!spec.load_only() && chooses && spec.records == 0) {
    refuse("the workload works on existing records: at least 1 record is needed (--records)");
  }
  if (mix.erase == 1 && spec.operations > spec.records) {
    refuse(fmt::format("{} operations can't erase {} records once each: at most {} operations",
                       spec.operations, spec.records, spec.records));
  }
  if (mix.erase == 1 && spec.distribution != Distribution::kSequential) {
    refuse("erase takes each record once, in order: it has no distribution to choose");
  }
  if (spec.record_shift != 0 && mix.insert + mix.erase > 0) {
    refuse("the records of a workload that inserts or erases can't be shifted");
  }
  if (HasSkew(spec.distribution) && !(spec.theta >= 0 && spec.theta <= Zipfian::kMaxTheta)) {
    refuse(fmt::format("--theta {}: the skew is from 0 (uniform) to {}", spec.theta,
                       Zipfian::kMaxTheta));
  }
  if (!(spec.exponential_percentile > 0 && spec.exponential_percentile < 100) ||
      !(spec.exponential_fraction > 0)) {
    refuse("exponential.percentile must be between 0 and 100 and exponential.frac above 0");
  }
}

}  // namespace gpm::ycsb
