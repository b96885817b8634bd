#include "bench/prepared_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <numeric>

#include "pm/error.h"
#include "ycsb/device_buffers.h"

namespace gpm::bench {
namespace {

std::uint64_t Sum(const std::vector<std::uint64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
}

ycsb::WorkloadSpec WholeWorkload(const RunSpec& spec) {
  ycsb::WorkloadSpec workload = spec.workload;
  (spec.phase == ycsb::Phase::kLoad ? workload.records : workload.operations) = Sum(spec.parts);
  return workload;
}

/// Calls block(first, end) for blocks of [0, rows).
template <class Block>
void ForBlocks(ThreadPool& threads, std::uint64_t rows, const Block& block) {
  constexpr std::uint64_t kRows = 1 << 14;
  threads.Run((rows + kRows - 1) / kRows, [&](std::size_t part) {
    block(part * kRows, std::min<std::uint64_t>(rows, (part + 1) * kRows));
  });
}

}  // namespace

PreparedRun::PreparedRun(const RunSpec& spec, std::uint32_t key_size, std::uint32_t value_size,
                         std::uint64_t max_batch, ycsb::Memory memory, ThreadPool& threads)
    : source_(WholeWorkload(spec), spec.phase, Sum(spec.parts)),
      threads_(threads),
      missing_(spec.workload.mix.missing > 0),
      starts_{0} {
  if (missing_ && spec.workload.mix.missing != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "a prepared run of which some finds find nothing: all must, or none");
  }
  for (const std::uint64_t part : spec.parts) starts_.push_back(starts_.back() + part);
  ycsb::BatchBuffers::Shape shape;
  shape.rows = source_.RowsFor(1);
  shape.key_size = key_size;
  shape.value_size = value_size;
  shape.values = source_.writes();
  shape.found = false;
  if (memory == ycsb::Memory::kDevice) {
    buffers_ = std::make_unique<ycsb::DeviceBatchBuffers>(shape);
  } else {
    buffers_ = std::make_unique<ycsb::BatchBuffers>(shape);
  }
  if (source_.reads()) {
    found_ = ycsb::Buffer(memory, std::min(max_batch, starts_.back()) * value_size);
  }

  ycsb::OperationSource::Chunk chunk;
  source_.Fill(*buffers_, threads, chunk);
  records_.resize(chunk.rows);
  for (std::size_t i = 0; i < chunk.rows; ++i) {
    records_[i] = static_cast<std::uint32_t>(chunk.row[i].record);
  }
  if (spec.record_shift != 0) {
    Shift(spec.workload.records, spec.record_shift, spec.workload.order, threads);
  }
  if (source_.reads() && source_.writes()) LinkWrites(spec.workload.records);
  buffers_->Upload(chunk.rows);
}

void PreparedRun::Shift(std::uint64_t records, std::uint64_t shift, ycsb::KeyOrder order,
                        ThreadPool& threads) {
  ForBlocks(threads, records_.size(), [&](std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t i = first; i < end; ++i) {
      const std::uint64_t record = (records_[i] + shift) % records;
      records_[i] = static_cast<std::uint32_t>(record);
      ycsb::WriteKey(ycsb::KeyWord(record, order), buffers_->key(i));
      if (Writes(i)) ycsb::WriteValue(record, source_.VersionOf(i), buffers_->value(i));
    }
  });
}

void PreparedRun::LinkWrites(std::uint64_t records) {
  last_write_.resize(records_.size());
  std::vector<std::uint32_t> last(records);
  for (std::size_t part = 0; part + 1 < starts_.size(); ++part) {
    std::ranges::fill(last, kNone);
    for (std::uint64_t i = starts_[part]; i < starts_[part + 1]; ++i) {
      last_write_[i] = last[records_[i]];
      if (Writes(i)) last[records_[i]] = static_cast<std::uint32_t>(i);
    }
    final_writes_.emplace_back();
    std::ranges::copy_if(last, std::back_inserter(final_writes_.back()),
                         [](std::uint32_t row) { return row != kNone; });
  }
}

double PreparedRun::Apply(Store& store, std::size_t part, std::uint64_t batch,
                          const BatchDone& done) {
  using Clock = std::chrono::steady_clock;
  const std::uint64_t value_size = buffers_->shape().value_size;
  const Clock::time_point start = Clock::now();
  for (std::uint64_t first = starts_[part]; first < starts_[part + 1]; first += batch) {
    const std::uint64_t rows = std::min(batch, starts_[part + 1] - first);
    Batch view = buffers_->View(first, rows, source_.only_kind());
    if (source_.reads()) view.found = found_.bytes().first(rows * value_size);
    store.Apply(view);
    if (done) done(rows);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void PreparedRun::Rehearse(Store& store, std::size_t part, std::uint64_t batch) {
  store.Apply(buffers_->View(starts_[part], std::min(batch, operations(part)), Op::kUpdate));
}

double PreparedRun::BulkLoad(Store& store, std::size_t part) {
  using Clock = std::chrono::steady_clock;
  const Batch all = buffers_->View(starts_[part], operations(part), Op::kInsert);
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
  buffers_->Download(end);
  const std::span<const Result> results = buffers_->results();
  const Result expected = missing_ ? Result::kNotFound : Result::kOk;
  std::pair<std::uint64_t, std::string> wrong =
      FirstWrong(begin, end, [&](std::uint64_t row) -> std::string_view {
        return results[row] == expected ? "" : ResultName(results[row]);
      });
  if (wrong.first == end && source_.reads() && !missing_) {
    const std::uint64_t value_size = buffers_->shape().value_size;
    const std::uint64_t first = begin + (end - begin - 1) / batch * batch;
    const std::uint64_t bytes = (end - first) * value_size;
    if (host_found_.bytes().size() < bytes) {
      host_found_ = ycsb::Buffer(ycsb::Memory::kHost, found_.bytes().size());
    }
    const auto found = host_found_.bytes().first(bytes);
    found_.CopyTo(found);
    wrong = FirstWrong(first, end, [&](std::uint64_t row) -> std::string_view {
      if (Writes(row)) return "";
      const bool linked = !last_write_.empty() && last_write_[row] != kNone;
      const ycsb::Version version =
          linked ? source_.VersionOf(last_write_[row]) : contents[records_[row]];
      const auto value = found.subspan((row - first) * value_size, value_size);
      const bool right = ycsb::CheckValue(records_[row], version, value);
      return right ? "" : "the value is not the one written last";
    });
  }
  if (wrong.first != end) {
    throw Error(ErrorCode::kDamaged, fmt::format("operation {}, {} of record {}: {}", wrong.first,
                                                 OpName(buffers_->ops()[wrong.first]),
                                                 records_[wrong.first], wrong.second));
  }
  if (final_writes_.empty()) return;
  for (const std::uint32_t row : final_writes_[part]) {
    contents[records_[row]] = source_.VersionOf(row);
  }
}

}  // namespace gpm::bench
