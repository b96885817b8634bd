#include "ycsb/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "gpmstore/error.h"
#include "ycsb/items.h"

namespace gpm::ycsb {
namespace {

using Clock = std::chrono::steady_clock;

/// Marks in Runner::versions_; OperationSource::VersionOf leaves these two numbers free.
constexpr Version kUnknown = 0xFFFF'FFFFu;  ///< not known what the store holds
constexpr Version kAbsent = 0xFFFF'FFFEu;   ///< the store must not have it

constexpr std::uint64_t kSampleEvery = 16;

/// Batches one right after the other, so that they are not all the first one after a pause.
constexpr std::uint64_t kBatchesAhead = 4;

unsigned GeneratorThreads(unsigned asked) {
  return asked > 0 ? asked : std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

Runner::Runner(Target store, const WorkloadSpec& spec, const RunnerOptions& options)
    : store_(store),
      spec_(spec),
      options_(options),
      threads_(GeneratorThreads(options.generator_threads)) {
  ValidateWorkload(spec_);
  RequireKeyBytes(store.key_size());
  constexpr std::size_t kMaxBatchRows = std::size_t{1} << 30;
  if (options_.batch_rows == 0 || options_.batch_rows > kMaxBatchRows) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a batch of {} operations can't be run: it has from 1 to {}",
                            options_.batch_rows, kMaxBatchRows));
  }
  if (!options_.buffers) {
    options_.buffers = [](const BatchBuffers::Shape& shape) {
      return std::make_unique<BatchBuffers>(shape);
    };
  }
}

PhaseReport Runner::Load() { return RunPhase(Phase::kLoad); }

PhaseReport Runner::Run() { return RunPhase(Phase::kRun); }

PhaseReport Runner::RunPhase(Phase phase) {
  PhaseReport report;
  const Clock::time_point start = Clock::now();
  // At most: each operation may be a read-modify-write, which is two rows.
  const std::uint64_t rows = phase == Phase::kLoad ? spec_.records : 2 * spec_.operations;
  const std::size_t batch_rows =
      std::clamp<std::uint64_t>(rows, 1, options_.batch_rows);  // no larger than it can get
  OperationSource source(spec_, phase, batch_rows);
  if (source.done()) return report;

  BatchBuffers::Shape shape;
  shape.key_size = store_.key_size();
  shape.value_size = store_.value_size();
  shape.values = source.writes();
  shape.found = source.reads();
  const std::uint64_t row_bytes = sizeof(Op) + sizeof(Result) + sizeof(OperationSource::Row) +
                                  shape.key_size + std::uint64_t{shape.values} * shape.value_size +
                                  std::uint64_t{shape.found} * shape.value_size;
  const std::uint64_t needed = (source.operations() + batch_rows - 1) / batch_rows;
  const std::uint64_t batch_bytes = row_bytes * batch_rows;
  const std::uint64_t fitting =
      std::max(options_.chunk_bytes / batch_bytes,
               std::min(kBatchesAhead, kBatchesAhead * options_.chunk_bytes / batch_bytes));
  shape.rows = source.RowsFor(std::clamp<std::uint64_t>(fitting, 1, needed));
  const std::unique_ptr<BatchBuffers> buffers = options_.buffers(shape);

  OperationSource::Chunk chunk;
  std::vector<std::chrono::nanoseconds> times;  // of the chunk's batches
  while (!source.done()) {
    source.Fill(*buffers, threads_, chunk);
    buffers->Upload(chunk.rows);
    // One after the other, as fast as the store takes them: what they took is counted behind them.
    times.clear();
    for (const OperationSource::Range& range : chunk.batches) {
      times.push_back(ApplyBatch(*buffers, range, source.only_kind()));
      if (options_.progress) {
        const std::size_t end = range.first + range.rows;
        options_.progress(phase,
                          end == chunk.rows ? chunk.first_operation + chunk.operations
                                            : chunk.first_operation + chunk.row[end].operation,
                          source.operations());
      }
    }
    for (std::size_t b = 0; b < times.size(); ++b) {
      const OperationSource::Range& range = chunk.batches[b];
      const auto of_batch = std::span(chunk.row).subspan(range.first, range.rows);
      report.AddBatch(times[b], buffers->ops().subspan(range.first, range.rows),
                      static_cast<std::uint64_t>(
                          std::ranges::count_if(of_batch, &OperationSource::Row::paired)));
    }
    buffers->Download(chunk.rows);
    report.operations += chunk.operations;
    VerifyChunk(*buffers, source, chunk, report);
    if (phase == Phase::kLoad && report.outcome(Result::kNoSpace) > 0) {
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("the pool has no room for {} records: it was full after {}; allow it "
                              "to grow (--pool-max) or use a medium with more space",
                              spec_.records, store_.Stats().items));
    }
  }
  report.wall_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

std::chrono::nanoseconds Runner::ApplyBatch(BatchBuffers& buffers, OperationSource::Range range,
                                            std::optional<Op> only) {
  const Batch batch = buffers.View(range.first, range.rows, only);
  const Clock::time_point start = Clock::now();
  store_.Apply(batch);
  return Clock::now() - start;
}

Version& Runner::VersionSlot(std::uint64_t record) {
  if (record >= versions_.size()) {
    versions_.resize(std::max<std::size_t>({record + 1, spec_.records, versions_.size() * 2}),
                     options_.contents_known ? kAbsent : kUnknown);
  }
  return versions_[record];
}

void Runner::VerifyChunk(BatchBuffers& buffers, const OperationSource& source,
                         const OperationSource::Chunk& chunk, PhaseReport& report) {
  report.AddOutcomes(buffers.ops().first(chunk.rows), buffers.results().first(chunk.rows));
  if (options_.verify == Verify::kNone) return;

  // Operations on a key take effect in order, so the version that a find must see is the last one
  // written before it.
  for (std::size_t i = 0; i < chunk.rows; ++i) {
    const OperationSource::Row& row = chunk.row[i];
    const Op op = buffers.ops()[i];
    const Result result = buffers.results()[i];
    const std::uint64_t operation = chunk.first_operation + row.operation;
    Version missing = kAbsent;
    Version& version = row.missing ? missing : VersionSlot(row.record);
    const bool known = version != kUnknown;
    Result expected = Result::kOk;
    if (op == Op::kInsert) {
      expected = version == kAbsent ? Result::kOk : Result::kExists;
      if (result == Result::kNoSpace) expected = result;
    } else if (version == kAbsent) {
      expected = Result::kNotFound;
    }
    bool right = !known || result == expected;
    if (known) ++report.verified;
    const bool compare = options_.verify == Verify::kAll || i % kSampleEvery == 0;
    if (right && op == Op::kFind && result == Result::kOk && compare) {
      if (!known) ++report.verified;
      ++report.values_compared;
      right =
          CheckValue(row.record, known ? std::optional(version) : std::nullopt, buffers.found(i));
    }
    if (!right && report.wrong++ == 0) {
      report.first_wrong = fmt::format(
          "operation {}, {} of record {}: {}", operation, OpName(op), row.record,
          result == expected
              ? "the value is not the one written last"
              : fmt::format("{}, but it must be {}", ResultName(result), ResultName(expected)));
    }
    if (result != Result::kOk) continue;
    if (op == Op::kErase) version = kAbsent;
    if (op == Op::kInsert || op == Op::kUpdate) version = source.VersionOf(operation);
  }
}

}  // namespace gpm::ycsb
