#include "ycsb/held_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ycsb/items.h"

namespace gpm::ycsb {
namespace {

constexpr std::uint64_t kSample = 1024;

/// How many of `count` records from `first` on, evenly spread, the store has.
std::uint64_t CountFound(Target store, KeyOrder order, std::uint64_t first, std::uint64_t records,
                         std::uint64_t count) {
  const std::size_t key_size = store.key_size();
  std::vector<std::byte> keys(count * key_size);
  std::vector<std::byte> values(count * store.value_size());
  std::vector<Result> results(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    // The first and the last one are among them.
    const std::uint64_t record = first + (count == 1 ? 0 : (records - 1) * i / (count - 1));
    WriteKey(KeyWord(record, order), std::span(keys).subspan(i * key_size, key_size));
  }
  store.Apply({.op = Op::kFind, .keys = keys, .found = values, .results = results});
  return static_cast<std::uint64_t>(std::count(results.begin(), results.end(), Result::kOk));
}

}  // namespace

std::string MissingRecords(Target store, const WorkloadSpec& spec) {
  RequireKeyBytes(store.key_size());
  const Mix& mix = spec.mix;
  const bool needs_records = spec.load_only() || mix.insert + mix.missing < 1;
  if (needs_records && spec.records > 0) {
    const std::uint64_t items = store.Stats().items;
    if (items < spec.records) {
      return fmt::format("the pool holds {} items, and {} records are asked for", items,
                         spec.records);
    }
    const std::uint64_t sample = std::min(spec.records, kSample);
    const std::uint64_t found = CountFound(store, spec.order, 0, spec.records, sample);
    if (found < sample) {
      return fmt::format(
          "the pool holds {} items, but of {} records looked up, from 0 to {}, only {} are there",
          items, sample, spec.records - 1, found);
    }
  }
  if (!spec.load_only() && mix.insert > 0 &&
      CountFound(store, spec.order, spec.records, 1, 1) > 0) {
    return fmt::format("the pool has record {} already, with which inserts would begin",
                       spec.records);
  }
  return {};
}

}  // namespace gpm::ycsb
