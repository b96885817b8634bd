#ifndef GPM_YCSB_WORKLOAD_H_
#define GPM_YCSB_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ycsb/properties.h"

namespace gpm::ycsb {

/// How the record of an operation is chosen: as YCSB does, or `zipf`.
enum class Distribution {
  kUniform,
  kZipfian,  ///< YCSB's, over 10^10 ranks that are folded into the records
  /// Over the records that were loaded, one rank each: what published evaluations of GPU hash
  /// tables mean by "Zipf 0.99".
  kZipf,
  kLatest,
  kHotspot,
  kSequential,
  kExponential,
};
std::string_view DistributionName(Distribution distribution);
/// @throws Error(kInvalidArgument) naming the distributions there are
Distribution ParseDistribution(std::string_view name);

/// Whether WorkloadSpec::theta matters.
bool HasSkew(Distribution distribution);

/// Key of record i: a hash of i (YCSB's insertorder=hashed), or i.
enum class KeyOrder { kHashed, kOrdered };

/// Shares of the operations in the run phase; they sum to 1. `missing` is a find of a key that is
/// never inserted; a read-modify-write is a find and then an update of the same key; a search is
/// for the item whose value has a record's number (RecordAttribute).
struct Mix {
  double find = 0;
  double missing = 0;
  double update = 0;
  double insert = 0;
  double erase = 0;
  double search = 0;
  double read_modify_write = 0;
};

/// What a YCSB run does: everything that its operations follow from.
struct WorkloadSpec {
  std::string name;  ///< the preset's letter or word, or the property file
  Mix mix;
  Distribution distribution = Distribution::kUniform;
  double theta = 0.99;  ///< skew of zipf, zipfian and latest
  KeyOrder order = KeyOrder::kHashed;
  std::uint64_t records = 1'000'000;     ///< loaded before the run
  std::uint64_t operations = 1'000'000;  ///< in the run; a read-modify-write is one
  std::uint64_t seed = 0;
  /// Added to the record that is chosen, modulo those loaded, so that others are the popular ones.
  /// 0 where operations insert or erase.
  std::uint64_t record_shift = 0;
  double hotspot_data_fraction = 0.2;          ///< of the records are hot
  double hotspot_operation_fraction = 0.8;     ///< of the operations go to those
  double exponential_percentile = 95;          ///< per cent of the operations go to ...
  double exponential_fraction = 0.8571428571;  ///< ... this share of the records, the newest ones

  bool load_only() const { return operations == 0; }
};

/// The presets: YCSB's a, b, c, d and f; and load (no run phase), find, find-missing, insert,
/// update and erase, which are one kind of operation alone over uniformly chosen records (insert:
/// new records; erase: each record once, in the order of the records); and churn, where records
/// come and go: half finds, a tenth updates, a fifth inserts and as many erases (the second mix of
/// GHSH's evaluation, with finds for its attribute searches), of which finds and updates choose
/// uniformly. And ghsh1, ghsh2 and ghsh3, the mixes of GHSH's evaluation (Ren et al. 2021) with
/// searches by an attribute, of records chosen uniformly.
/// @throws Error(kInvalidArgument) for other names; for e with the reason why it is refused
WorkloadSpec PresetWorkload(std::string_view name);

/// What a property file asks for, with YCSB's defaults where it is silent.
struct PropertyWorkload {
  WorkloadSpec spec;
  std::uint32_t value_size = 0;       ///< bytes: fieldcount * fieldlength
  std::vector<std::string> warnings;  ///< of properties that neither this nor YCSB knows
};

/// Reads YCSB's core properties, and deleteproportion and searchproportion, which YCSB lacks.
/// Unknown properties are ignored, as YCSB does, but for a warning.
/// @throws Error(kInvalidArgument) with file and line for a value that can't be honoured, such as
///         scans (a hash index has no key order)
PropertyWorkload ReadPropertyWorkload(const Properties& properties);

/// @throws Error(kInvalidArgument) unless the shares, counts and parameters make a workload
void ValidateWorkload(const WorkloadSpec& spec);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_WORKLOAD_H_
