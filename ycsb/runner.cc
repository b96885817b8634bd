#include "ycsb/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/thread_pool.h"
#include "ycsb/items.h"

namespace gpm::ycsb {
namespace {

/// Marks in Runner::versions_; OperationSource::VersionOf leaves these two numbers free.
constexpr Version kUnknown = 0xFFFF'FFFFu;  ///< not known what the store holds
constexpr Version kAbsent = 0xFFFF'FFFEu;   ///< the store must not have it

constexpr std::uint64_t kSampleEvery = 16;

/// Batches one right after the other, so that they are not all the first one after a pause.
constexpr std::uint64_t kBatchesAhead = 4;

/// The place of the attribute over the records' numbers, whatever its name.
std::uint32_t FindRecordAttribute(Target store) {
  store.RequireSearches();
  const std::vector<Attribute> attributes = store.Stats().attributes;
  const Attribute wanted = RecordAttribute();
  for (std::uint32_t place = 0; place < attributes.size(); ++place) {
    const Attribute& one = attributes[place];
    if (one.offset == wanted.offset && one.bytes == wanted.bytes) return place;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the workload searches by the numbers of records, and the pool has no "
                          "attribute over them: it is created with {}:{}:{}",
                          wanted.name, wanted.offset, wanted.bytes));
}

}  // namespace

Runner::Runner(Target store, const WorkloadSpec& spec, const RunnerOptions& options)
    : store_(store),
      spec_(spec),
      options_(options),
      threads_(ThreadsOf(options.generator_threads)) {
  ValidateWorkload(spec_);
  RequireKeyBytes(store.key_size());
  constexpr std::size_t kMaxBatchRows = std::size_t{1} << 30;
  if (options_.batch_rows == 0 || options_.batch_rows > kMaxBatchRows) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a batch of {} operations can't be run: it has from 1 to {}",
                            options_.batch_rows, kMaxBatchRows));
  }
  if (spec_.mix.search > 0) attribute_ = FindRecordAttribute(store);
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
  shape.searches = source.searches();
  const std::uint64_t row_bytes =
      sizeof(Op) + sizeof(Result) + sizeof(OperationSource::Row) + shape.key_size +
      std::uint64_t{shape.values} * shape.value_size +
      std::uint64_t{shape.found} * shape.value_size +
      std::uint64_t{shape.searches} * (5 * sizeof(std::uint64_t) + shape.key_size);
  const std::uint64_t needed = (source.operations() + batch_rows - 1) / batch_rows;
  const std::uint64_t batch_bytes = row_bytes * batch_rows;
  const std::uint64_t fitting =
      std::max(options_.chunk_bytes / batch_bytes,
               std::min(kBatchesAhead, kBatchesAhead * options_.chunk_bytes / batch_bytes));
  shape.rows = source.RowsFor(std::clamp<std::uint64_t>(fitting, 1, needed));
  const std::unique_ptr<BatchBuffers> buffers = options_.buffers(shape);

  if (source.searches()) PrepareSearches();
  OperationSource::Chunk chunk;
  std::vector<std::chrono::nanoseconds> times;  // of the chunk's batches
  while (!source.done()) {
    source.Fill(*buffers, threads_, chunk);
    buffers->Upload(chunk.rows);
    // One after the other, as fast as the store takes them: what they took is counted behind them.
    times.clear();
    for (const OperationSource::Range& range : chunk.batches) {
      times.push_back(ApplyBatch(*buffers, range, times.size(), source.only_kind()));
      if (options_.progress) {
        options_.progress(phase, chunk.first_operation + range.operations_end, source.operations());
      }
    }
    for (std::size_t b = 0; b < times.size(); ++b) {
      const OperationSource::Range& range = chunk.batches[b];
      const auto of_batch = std::span(chunk.row).subspan(range.first, range.rows);
      report.AddBatch(times[b], buffers->ops().subspan(range.first, range.rows),
                      static_cast<std::uint64_t>(
                          std::ranges::count_if(of_batch, &OperationSource::Row::paired)),
                      range.searches);
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
  report.wall_seconds = SecondsSince(start);
  return report;
}

std::chrono::nanoseconds Runner::ApplyBatch(BatchBuffers& buffers,
                                            const OperationSource::Range& range, std::size_t batch,
                                            std::optional<Op> only) {
  const Batch operations = buffers.View(range.first, range.rows, only);
  SearchBatch searches;
  if (range.searches > 0) {
    searches = buffers.SearchView(range.first + range.rows, range.searches, batch, attribute_);
  }
  const Clock::time_point start = Clock::now();
  if (range.rows > 0) store_.Apply(operations);
  if (range.searches > 0) store_.Search(searches.queries, &searches.matches);
  return Clock::now() - start;
}

void Runner::PrepareSearches() {
  const std::array<std::uint64_t, 2> nothing = {~std::uint64_t{0}, ~std::uint64_t{0}};
  std::array<std::uint64_t, 1> count;
  Matches matches{.counts = count};
  // By the second search of an attribute an index is made.
  for (int i = 0; i < 2; ++i) {
    store_.Search({.attributes = {&attribute_, 1}, .bounds = nothing}, &matches);
  }
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
  for (std::size_t b = 0; b < chunk.batches.size(); ++b) {
    const OperationSource::Range& range = chunk.batches[b];
    const std::size_t searches = range.first + range.rows;
    report.AddOutcomes(buffers.ops().subspan(range.first, range.rows),
                       buffers.results().subspan(range.first, range.rows));
    const bool verify = options_.verify != Verify::kNone;
    for (std::size_t i = range.first; verify && i < searches; ++i) {
      VerifyOperation(buffers, source, i, chunk, report);
    }
    for (std::size_t i = searches; i < searches + range.searches; ++i) {
      const Result result = buffers.counts()[i] > 0 ? Result::kOk : Result::kNotFound;
      ++report.outcomes[kSearchKind][static_cast<std::size_t>(result)];
      if (verify) VerifySearch(buffers, i, searches, b, chunk, report);
    }
  }
}

/// Operations on a key take effect in order, so the version that a find must see is the last one
/// written before it.
void Runner::VerifyOperation(BatchBuffers& buffers, const OperationSource& source, std::size_t i,
                             const OperationSource::Chunk& chunk, PhaseReport& report) {
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
    right = CheckValue(row.record, known ? std::optional(version) : std::nullopt, buffers.found(i));
  }
  if (!right && report.wrong++ == 0) {
    report.first_wrong = fmt::format(
        "operation {}, {} of record {}: {}", operation, OpName(op), row.record,
        result == expected
            ? "the value is not the one written last"
            : fmt::format("{}, but it must be {}", ResultName(result), ResultName(expected)));
  }
  if (result != Result::kOk) return;
  if (op == Op::kErase) version = kAbsent;
  if (op == Op::kInsert || op == Op::kUpdate) version = source.VersionOf(operation);
}

void Runner::VerifySearch(BatchBuffers& buffers, std::size_t i, std::size_t first,
                          std::size_t batch, const OperationSource::Chunk& chunk,
                          PhaseReport& report) {
  const OperationSource::Row& row = chunk.row[i];
  const Version version = VersionSlot(row.record);
  const std::uint64_t count = buffers.counts()[i];
  const auto offset = buffers.offsets().subspan(BatchBuffers::OffsetAt(i, batch), 2);
  bool right = version == kUnknown ? count <= 1 : count == (version == kAbsent ? 0 : 1);
  right = right && offset[1] == offset[0] + count;
  bool right_key = true;
  if (right && count == 1) {
    const std::size_t key_size = buffers.shape().key_size;
    right_key =
        offset[0] <= i - first &&
        std::ranges::equal(buffers.matched().subspan((first + offset[0]) * key_size, key_size),
                           buffers.key(i));
  }
  ++report.verified;
  if ((right && right_key) || report.wrong++ > 0) return;
  report.first_wrong = fmt::format("operation {}, search of record {}: {}",
                                   chunk.first_operation + row.operation, row.record,
                                   right ? "it found another key"
                                         : fmt::format("{} matches, but there must be {}", count,
                                                       version == kUnknown  ? "at most one"
                                                       : version == kAbsent ? "none"
                                                                            : "one"));
}

}  // namespace gpm::ycsb
