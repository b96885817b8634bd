#include "ycsb/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "gpmstore/error.h"
#include "pm/clock.h"

namespace gpm::ycsb {
namespace {

/// Whether keys are numbers; else they are texts, as for `gpmstore get`.
bool AreNumbers(std::uint32_t key_size) { return key_size == sizeof(std::uint64_t); }

/// Copies a text to a row, with zeros behind it.
void FillText(std::string_view text, std::span<std::byte> row) {
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), row.begin());
  std::fill(row.begin() + static_cast<std::ptrdiff_t>(text.size()), row.end(), std::byte{0});
}

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

void FillRow(BatchBuffers& buffers, std::size_t row, const TraceLine& line, bool is_number) {
  buffers.ops()[row] = line.op;
  if (is_number) {
    std::memcpy(buffers.key(row).data(), &line.key, sizeof line.key);
  } else {
    FillText(line.text, buffers.key(row));
  }
  if (line.op == Op::kInsert || line.op == Op::kUpdate) FillText(line.value, buffers.value(row));
}

void WriteResult(std::ostream& out, const TraceLine& line, Result result,
                 std::span<const std::byte> found) {
  out << TraceWord(line.op) << '\t' << line.text << '\t' << ResultName(result);
  if (line.op == Op::kFind && result == Result::kOk) {
    std::size_t length = found.size();
    while (length > 0 && found[length - 1] == std::byte{0}) --length;
    out << '\t';
    out.write(reinterpret_cast<const char*>(found.data()), static_cast<std::streamsize>(length));
  }
  out << '\n';
}

}  // namespace

void RequireFit(const Trace& trace, std::uint32_t key_size, std::uint32_t value_size) {
  if (!AreNumbers(key_size) && trace.longest_key() > key_size) {
    Refuse(fmt::format(
        "the trace's longest key has {} bytes as it is written, and the pool's keys have {}",
        trace.longest_key(), key_size));
  }
  if (trace.longest_value() > value_size) {
    Refuse(fmt::format("the trace's longest value has {} bytes, and the pool's values have {}",
                       trace.longest_value(), value_size));
  }
}

PhaseReport Replay(Target store, const Trace& trace, const ReplayOptions& options) {
  if (options.batch_lines == 0) Refuse("a batch needs at least 1 trace line");
  RequireFit(trace, store.key_size(), store.value_size());
  PhaseReport report;
  const Clock::time_point start = Clock::now();
  const std::vector<TraceLine>& lines = trace.lines();

  BatchBuffers::Shape shape;
  shape.rows = std::min(options.batch_lines, lines.size());
  shape.key_size = store.key_size();
  shape.value_size = store.value_size();
  BatchBuffers buffers(shape);
  const bool are_numbers = AreNumbers(store.key_size());

  for (std::size_t first = 0; first < lines.size(); first += shape.rows) {
    const std::size_t rows = std::min(shape.rows, lines.size() - first);
    for (std::size_t i = 0; i < rows; ++i) FillRow(buffers, i, lines[first + i], are_numbers);
    const Clock::time_point batch_start = Clock::now();
    store.Apply(buffers.View(0, rows, std::nullopt));
    report.AddBatch(Clock::now() - batch_start, buffers.ops().first(rows));
    report.AddOutcomes(buffers.ops().first(rows), buffers.results().first(rows));
    report.operations += rows;
    if (options.results != nullptr) {
      for (std::size_t i = 0; i < rows; ++i) {
        WriteResult(*options.results, lines[first + i], buffers.results()[i], buffers.found(i));
      }
      if (!*options.results) throw Error(ErrorCode::kIo, "the results can't be written");
    }
    if (options.progress) options.progress(first + rows, lines.size());
  }
  report.wall_seconds = SecondsSince(start);
  return report;
}

}  // namespace gpm::ycsb
