#include "bench/workload_bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gpm::bench {
namespace {

constexpr double kSectorBytes = 32;
constexpr double kLineBytes = 128;
constexpr double kWordBytes = 8;

/// The records that are taken for cached: those with more uses than `uses`, and this share of those
/// with as many.
struct CachedRecords {
  std::uint32_t uses = ~0u;
  double share = 0;

  double Of(std::uint32_t record_uses) const {
    return record_uses > uses ? 1 : record_uses == uses ? share : 0;
  }
};

CachedRecords MostUsed(const std::vector<std::uint32_t>& uses, double finds) {
  if (finds <= 0) return {};
  std::vector<std::uint64_t> records_with(std::size_t{*std::ranges::max_element(uses)} + 1);
  for (const std::uint32_t n : uses) ++records_with[n];
  for (std::size_t n = records_with.size() - 1; n > 0; --n) {
    const double more = static_cast<double>(n * records_with[n]);
    if (more >= finds) return {static_cast<std::uint32_t>(n), finds / more};
    finds -= more;
  }
  return {0, 0};
}

}  // namespace

WorkloadCounts CountWorkload(std::span<const std::uint32_t> records, std::span<const Op> kinds,
                             std::uint64_t record_count, std::uint64_t batch, double hit_rate,
                             ThreadPool& threads) {
  WorkloadCounts total;
  total.operations = records.size();
  total.finds = static_cast<std::uint64_t>(std::ranges::count(kinds, Op::kFind));
  const std::size_t parts = threads.threads();
  // Calls visit(operation, part) for all operations, those on a record by one thread and in order.
  const auto for_each = [&](const auto& visit) {
    threads.Run(parts, [&](std::size_t part) {
      const std::uint64_t begin = record_count * part / parts;
      const std::uint64_t end = record_count * (part + 1) / parts;
      for (std::size_t i = 0; i < records.size(); ++i) {
        if (records[i] >= begin && records[i] < end) visit(i, part);
      }
    });
  };
  std::vector<std::uint32_t> finds_of(record_count);
  for_each([&](std::size_t i, std::size_t) { finds_of[records[i]] += kinds[i] == Op::kFind; });
  const CachedRecords cached = MostUsed(finds_of, hit_rate * static_cast<double>(total.finds));

  std::vector<std::uint32_t> seen(record_count);   // the last batch with the record, from 1
  std::vector<std::uint32_t> wrote(record_count);  // the last one that writes it
  std::vector<WorkloadCounts> counts(parts);
  for_each([&](std::size_t i, std::size_t part) {
    const auto number = static_cast<std::uint32_t>(i / batch + 1);
    const std::uint32_t record = records[i];
    WorkloadCounts& mine = counts[part];
    if (seen[record] != number) {
      seen[record] = number;
      ++mine.keys;
      if (kinds[i] == Op::kFind) {
        mine.read += 1;
        mine.cached += cached.Of(finds_of[record]);
      }
    }
    // No record is inserted or erased twice.
    if (kinds[i] == Op::kErase) {
      ++mine.erased;
    } else if (kinds[i] != Op::kFind && wrote[record] != number) {
      wrote[record] = number;
      ++mine.written;
      mine.inserted += kinds[i] == Op::kInsert;
    }
  });
  for (const WorkloadCounts& part : counts) {
    total.keys += part.keys;
    total.read += part.read;
    total.cached += part.cached;
    total.written += part.written;
    total.inserted += part.inserted;
    total.erased += part.erased;
  }
  return total;
}

Accesses AccessesOf(const WorkloadCounts& counts, const WorkloadShape& shape) {
  const auto operations = static_cast<double>(counts.operations);
  const double keys = static_cast<double>(counts.keys) / operations;
  const double written = static_cast<double>(counts.written) / operations;
  const double inserted = static_cast<double>(counts.inserted) / operations;
  const double updated = written - inserted;
  const double erased = static_cast<double>(counts.erased) / operations;
  const double there = shape.missing ? 0 : keys - inserted;  // keys that a search finds
  const double read = shape.missing ? 0 : counts.read / operations;
  const double cached = shape.directory && !shape.missing ? counts.cached / operations : 0;
  const double found = shape.missing ? 0 : static_cast<double>(counts.finds) / operations;
  const double buckets = shape.geometry.levels * shape.geometry.locations;
  const bool long_keys = shape.key_size > kWordBytes;
  const bool inline_values = InlineValues(shape.value_size);
  const double value_bytes = shape.value_size;

  Accesses a;
  const auto touch = [&](double touches, double bytes) {
    a.ordered_touches += touches;
    a.read_bytes += touches * bytes;
  };
  double sectors = 0;  // of the executor's memory
  // Search.
  if (shape.directory) {
    const double prints = std::max(1.0, std::ceil(2 * shape.geometry.slots / kSectorBytes));
    sectors += keys * buckets * prints + there * (long_keys ? 1 : 2);
    if (long_keys) touch(there, shape.key_size);
  } else {
    touch(there + (keys - there) * buckets, 2 * kWordBytes * shape.geometry.slots);
  }
  // Values that are read.
  if (!inline_values) {
    const double from_link = shape.gpu ? read - cached : read;
    a.ordered_reads += from_link;
    a.read_bytes += from_link * value_bytes;
  }
  // Writes.
  if (!inline_values) a.write_bytes += written * value_bytes;
  const bool as_pair = shape.directory && !inline_values;
  const double words = as_pair ? 1 : 2;  // of an insert: reference, state
  a.small_writes = updated + erased + inserted * (words + (long_keys ? 1 : 0));
  a.ordered_writes += a.small_writes;
  if (shape.directory) sectors += updated + erased + inserted * (long_keys ? 2 : 3);

  if (shape.gpu) {
    a.gpu_sectors = sectors + (shape.key_size + sizeof(Result)) / kSectorBytes;
    const double cached_lines = inline_values ? 0 : cached * std::ceil(value_bytes / kLineBytes);
    a.gpu_lines = cached_lines + (found + written) * value_bytes / kLineBytes;
    if (shape.directory) a.gpu_cas = inserted;
  } else {
    touch(sectors, kSectorBytes);
  }
  return a;
}

double LinkAccesses(const Accesses& a) {
  return a.random_reads + a.ordered_reads + a.random_touches + a.ordered_touches + a.random_writes +
         a.ordered_writes + a.random_cas + a.ordered_cas;
}

}  // namespace gpm::bench
