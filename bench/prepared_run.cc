#include "bench/prepared_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <numeric>

#include "bench/blocks.h"
#include "gpmstore/error.h"

namespace gpm::bench {
namespace {

/// Generated together. Some 70 MB of 8 + 128 bytes.
constexpr std::uint64_t kChunkRows = std::uint64_t{1} << 19;

std::uint64_t Sum(const std::vector<std::uint64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
}

ycsb::WorkloadSpec WholeWorkload(const RunSpec& spec) {
  ycsb::WorkloadSpec workload = spec.workload;
  (spec.phase == ycsb::Phase::kLoad ? workload.records : workload.operations) = Sum(spec.parts);
  return workload;
}

}  // namespace

PreparedRun::PreparedRun(const RunSpec& spec, std::uint32_t key_size, std::uint32_t value_size,
                         std::uint64_t max_batch, ycsb::Memory memory, ThreadPool& threads)
    : source_(WholeWorkload(spec), spec.phase,
              std::clamp<std::uint64_t>(Sum(spec.parts), 1, kChunkRows)),
      threads_(threads),
      missing_(spec.workload.mix.missing > 0),
      key_size_(key_size),
      value_size_(value_size),
      memory_(memory),
      parts_(spec.parts),
      record_count_(spec.workload.records),
      starts_{0} {
  const ycsb::Mix& mix = spec.workload.mix;
  if (spec.phase == ycsb::Phase::kLoad) {
    record_count_ = Sum(spec.parts);
  } else {
    changes_items_ = mix.insert > 0 || mix.erase > 0;
  }
  if (missing_ && mix.missing != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "a prepared run of which some finds find nothing: all must, or none");
  }
  if (source_.searches()) {
    throw Error(ErrorCode::kUnsupported, "a prepared run has no searches by attributes");
  }
  std::uint64_t operation = 0;
  for (const std::uint64_t part : spec.parts) {
    starts_.push_back(starts_.back() + source_.RowsOf(operation, operation + part));
    operation += part;
  }
  const std::uint64_t rows = starts_.back();
  // Not more than one record is inserted by each.
  if (rows >= kNone || spec.workload.records >= kNone - rows) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a prepared run of {} operations on {} records: both together are "
                            "below 2^32 - 1",
                            rows, spec.workload.records));
  }
  const bool mixed = !source_.only_kind().has_value();
  if (mixed && memory == ycsb::Memory::kDevice) ops_ = ycsb::Buffer::Untouched(memory, rows);
  keys_ = ycsb::Buffer::Untouched(memory, rows * key_size);
  if (source_.writes()) values_ = ycsb::Buffer::Untouched(memory, rows * value_size);
  results_ = ycsb::Buffer(memory, rows);
  if (source_.reads()) found_ = ycsb::Buffer(memory, std::min(max_batch, rows) * value_size);
  kinds_ = std::make_unique_for_overwrite<Op[]>(rows);
  records_ = std::make_unique_for_overwrite<std::uint32_t[]>(rows);
  if (mix.erase > 0) gone_ = std::make_unique_for_overwrite<bool[]>(rows);
  Generate(spec);
  if (changes_items_) CountItems();
  if (source_.reads() && source_.writes()) LinkWrites(max_batch);
}

void PreparedRun::CountItems() {
  for (std::uint64_t row = 0; row < starts_.back(); ++row) {
    if (kinds_[row] == Op::kInsert) {
      ++added_items_;
      record_count_ = std::max<std::uint64_t>(record_count_, records_[row] + 1);
    }
    if (kinds_[row] == Op::kErase && !gone_[row]) --added_items_;
  }
}

void PreparedRun::Generate(const RunSpec& spec) {
  ycsb::BatchBuffers::Shape shape;
  shape.rows = source_.RowsFor(1);
  shape.key_size = key_size_;
  shape.value_size = value_size_;
  shape.values = source_.writes();
  shape.found = false;
  ycsb::BatchBuffers buffers(shape);
  ycsb::OperationSource::Chunk chunk;
  // Versions are those of rows: where an operation has two, the source's are others.
  const bool rewrites = spec.workload.mix.read_modify_write > 0;
  for (std::uint64_t start = 0; !source_.done(); start += chunk.rows) {
    source_.Fill(buffers, threads_, chunk);
    ForBlocks(threads_, chunk.rows, [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t i = first; i < end; ++i) {
        const std::uint64_t record = chunk.row[i].record;
        const Op op = buffers.ops()[i];
        if (rewrites && op != Op::kFind) {
          ycsb::WriteValue(record, source_.VersionOf(start + i), buffers.value(i));
        }
        kinds_[start + i] = op;
        records_[start + i] = static_cast<std::uint32_t>(record);
        if (gone_) gone_[start + i] = chunk.row[i].gone();
      }
      if (memory_ == ycsb::Memory::kHost) CopyRows(buffers, start, first, end);
    });
    if (memory_ == ycsb::Memory::kDevice) CopyRows(buffers, start, 0, chunk.rows);
  }
}

void PreparedRun::CopyRows(ycsb::BatchBuffers& from, std::uint64_t start, std::uint64_t first,
                           std::uint64_t end) {
  const auto copy = [&](ycsb::Buffer& to, std::span<const std::byte> rows,
                        std::uint64_t row_bytes) {
    if (to.bytes().empty()) return;
    to.CopyFrom(rows.subspan(first * row_bytes, (end - first) * row_bytes),
                (start + first) * row_bytes);
  };
  copy(ops_, std::as_bytes(from.ops()), sizeof(Op));
  copy(keys_, from.keys(), key_size_);
  copy(values_, from.values(), value_size_);
}

/// By records, of which each thread has a range: it looks at all operations, but what it remembers
/// of its records stays in its processor's cache.
void PreparedRun::LinkWrites(std::uint64_t max_batch) {
  const std::size_t parts = starts_.size() - 1;
  for (std::size_t part = 0; part < parts; ++part) {
    last_write_.emplace_back(std::min(max_batch, operations(part)));
  }
  const std::size_t ranges = threads_.threads();
  std::vector<std::vector<std::uint32_t>> final_writes(ranges * parts);
  threads_.Run(ranges, [&](std::size_t range) {
    const std::uint64_t begin = record_count_ * range / ranges;
    const std::uint64_t end = record_count_ * (range + 1) / ranges;
    std::vector<std::uint32_t> last(end - begin);
    for (std::size_t part = 0; part < parts; ++part) {
      std::ranges::fill(last, kNone);
      const std::uint64_t linked = starts_[part + 1] - last_write_[part].size();
      for (std::uint64_t i = starts_[part]; i < starts_[part + 1]; ++i) {
        if (records_[i] < begin || records_[i] >= end) continue;
        std::uint32_t& last_write = last[records_[i] - begin];
        if (i >= linked) last_write_[part][i - linked] = last_write;
        if (Writes(i)) last_write = static_cast<std::uint32_t>(i);
      }
      std::ranges::copy_if(last, std::back_inserter(final_writes[part * ranges + range]),
                           [](std::uint32_t row) { return row != kNone; });
    }
  });
  final_writes_.resize(parts);
  for (std::size_t i = 0; i < final_writes.size(); ++i) {
    std::ranges::copy(final_writes[i], std::back_inserter(final_writes_[i / ranges]));
  }
}

Batch PreparedRun::View(std::uint64_t first, std::uint64_t rows, std::optional<Op> only) const {
  const auto part = [&](const ycsb::Buffer& buffer, std::uint64_t row_bytes) {
    return buffer.bytes().subspan(first * row_bytes, rows * row_bytes);
  };
  Batch batch;
  if (only) {
    batch.op = *only;
  } else if (memory_ == ycsb::Memory::kDevice) {
    batch.ops = ops_.as<const Op>().subspan(first, rows);
  } else {
    batch.ops = {kinds_.get() + first, rows};
  }
  batch.keys = part(keys_, key_size_);
  if (source_.writes()) batch.values = part(values_, value_size_);
  batch.results = results_.as<Result>().subspan(first, rows);
  return batch;
}

double PreparedRun::Apply(Store& store, std::size_t part, std::uint64_t batch,
                          const BatchDone& done) {
  return Apply([&](const Batch& view) { store.Apply(view); }, part, batch, done);
}

double PreparedRun::Apply(const ApplyBatch& apply, std::size_t part, std::uint64_t batch,
                          const BatchDone& done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (std::uint64_t first = starts_[part]; first < starts_[part + 1]; first += batch) {
    const std::uint64_t rows = std::min(batch, starts_[part + 1] - first);
    Batch view = View(first, rows, source_.only_kind());
    if (source_.reads()) view.found = found_.bytes().first(rows * value_size_);
    apply(view);
    if (done) done(rows);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void PreparedRun::Rehearse(Store& store, std::size_t part, std::uint64_t batch) {
  store.Apply(View(starts_[part], std::min(batch, operations(part)), Op::kUpdate));
}

double PreparedRun::BulkLoad(Store& store, std::size_t part) {
  using Clock = std::chrono::steady_clock;
  const Batch all = View(starts_[part], operations(part), Op::kInsert);
  const Clock::time_point start = Clock::now();
  store.BulkLoad(all.keys, all.values, all.results);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::pair<std::uint64_t, std::string> PreparedRun::FirstWrong(std::uint64_t first,
                                                              std::uint64_t end,
                                                              const Check& check) {
  std::mutex mutex;
  std::pair<std::uint64_t, std::string> wrong{end, {}};
  ForBlocks(threads_, end - first, [&](std::uint64_t begin, std::uint64_t block_end) {
    for (std::uint64_t row = first + begin; row < first + block_end; ++row) {
      const std::string_view what = check(row);
      if (what.empty()) continue;
      const std::lock_guard lock(mutex);
      if (row < wrong.first) wrong = {row, std::string(what)};
      return;
    }
  });
  return wrong;
}

void PreparedRun::Settle(std::size_t part, std::uint64_t batch, Contents& contents) {
  const std::uint64_t begin = starts_[part];
  const std::uint64_t end = starts_[part + 1];
  if (begin == end) return;
  host_results_.resize(end - begin);
  results_.CopyTo(std::as_writable_bytes(std::span(host_results_)), begin * sizeof(Result));
  if (source_.reads() && contents.size() < record_count_) contents.resize(record_count_);
  std::pair<std::uint64_t, std::string> wrong =
      FirstWrong(begin, end, [&](std::uint64_t row) -> std::string_view {
        const Result result = host_results_[row - begin];
        return result == Expected(row) ? "" : ResultName(result);
      });
  if (wrong.first == end && source_.reads() && !missing_) {
    const std::uint64_t first = begin + (end - begin - 1) / batch * batch;
    const std::uint64_t bytes = (end - first) * value_size_;
    if (host_found_.bytes().size() < bytes) {
      host_found_ = ycsb::Buffer(ycsb::Memory::kHost, found_.bytes().size());
    }
    const auto found = host_found_.bytes().first(bytes);
    found_.CopyTo(found);
    wrong = FirstWrong(first, end, [&](std::uint64_t row) -> std::string_view {
      if (Writes(row) || Expected(row) != Result::kOk) return "";
      const std::uint32_t last =
          last_write_.empty() ? kNone : last_write_[part][last_write_[part].size() - (end - row)];
      const ycsb::Version version =
          last == kNone ? contents[records_[row]] : source_.VersionOf(last);
      const auto value = found.subspan((row - first) * value_size_, value_size_);
      const bool right = ycsb::CheckValue(records_[row], version, value);
      return right ? "" : "the value is not the one written last";
    });
  }
  if (wrong.first != end) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("operation {}, {} of record {}: {}", wrong.first,
                            OpName(kinds_[wrong.first]), records_[wrong.first], wrong.second));
  }
  if (final_writes_.empty()) return;
  const std::vector<std::uint32_t>& last = final_writes_[part];
  ForBlocks(threads_, last.size(), [&](std::uint64_t block, std::uint64_t block_end) {
    for (std::uint64_t i = block; i < block_end; ++i) {
      contents[records_[last[i]]] = source_.VersionOf(last[i]);
    }
  });
}

}  // namespace gpm::bench
