#include "bench/scale_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/gpu_host.h"
#include "ycsb/device_buffers.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

constexpr std::uint32_t kKeySize = 8;

}  // namespace

ScaleRank::ScaleRank(const ScaleArguments& arguments, std::uint32_t rank, std::uint32_t ranks,
                     std::unique_ptr<Exchange> exchange, StartLine* start)
    : arguments_(arguments),
      records_(arguments.strong ? arguments.records : arguments.records * ranks),
      batch_(arguments.BatchOf(ranks)),
      rank_(rank),
      ranks_(ranks),
      start_(*start),
      zipf_(records_),
      random_(arguments.seed, rank) {
  OpenOptions open;
  open.executor = arguments.executor;
  open.threads = arguments.threads;
  open.device = arguments.DeviceOf(rank);
  const ycsb::BatchBuffers::Shape shape{
      .rows = batch_, .key_size = kKeySize, .value_size = arguments.value_size};
  if (arguments.executor != ExecutorKind::kCpu && GpuCount() > 0) UseGpu(open.device);
  for (unsigned i = 0; i < arguments.in_flight; ++i) {
    if (arguments.memory == "device") {
      buffers_.push_back(std::make_unique<ycsb::DeviceBatchBuffers>(shape));
    } else {
      buffers_.push_back(std::make_unique<ycsb::BatchBuffers>(shape));
    }
  }
  const CreateOptions create{.key_size = kKeySize, .value_size = arguments.value_size};
  if (exchange == nullptr) {
    alone_ = Store::Create(arguments.folder + "/alone.pool", create, open);
    streams_ = std::make_unique<Streams>(arguments.in_flight, alone_.Stats().executor);
  } else {
    store_ = DistributedStore::Create(arguments.folder, std::move(exchange), create,
                                      {.shards = ranks}, open);
  }
}

double ScaleRank::Load() {
  const std::uint64_t all = (records_ + ranks_ - 1) / ranks_;
  double seconds = 0;
  ycsb::BatchBuffers& buffers = *buffers_.front();
  for (std::uint64_t at = 0; at < all; at += batch_) {
    std::uint64_t n = 0;
    for (; n < std::min(batch_, all - at); ++n) {
      const std::uint64_t record = (at + n) * ranks_ + rank_;
      if (record >= records_) break;
      Put(buffers, n, record, true);
    }
    buffers.Upload(n);
    Batch batch = buffers.View(0, n, Op::kInsert);
    batch.found = {};
    seconds += Timed(std::span(&batch, 1), 1);
    Require(buffers, n, Result::kOk);
  }
  return seconds;
}

ScaleRank::Measured ScaleRank::Measure(const ScaleWork& work) {
  std::vector<double> batch_seconds;
  std::vector<ExchangeStats> exchanged;
  std::vector<Batch> round(buffers_.size());
  const std::size_t count = BatchesOfRound(work);
  const std::uint64_t all_of_round = count * batch_ * ranks_;
  std::uint64_t repeats = arguments_.batches;
  std::uint64_t inserted = 0;
  if (work.inserts()) {  // as many as there are: room for more takes longer than they do
    repeats = std::clamp<std::uint64_t>(records_ / all_of_round, 1, repeats);
    Reserve(records_ + (repeats + 1) * all_of_round);
  }
  for (std::uint64_t repeat = 0; repeat <= repeats; ++repeat) {
    for (std::size_t j = 0; j < round.size(); ++j) {
      ycsb::BatchBuffers& buffers = *buffers_[j];
      for (std::uint64_t i = 0; i < batch_; ++i) {
        const std::uint64_t record = work.zipf ? zipf_.Draw(random_) : random_.NextBelow(records_);
        buffers.ops()[i] = i % 2 == 0 ? work.op : Op::kUpdate;
        Put(buffers, i,
            work.there       ? record
            : work.inserts() ? 2 * records_ + inserted++ * ranks_ + rank_
                             : records_ + record,
            work.writes());
      }
      buffers.Upload(batch_);
      const auto only = work.updates_half ? std::nullopt : std::optional(work.op);
      round[j] = buffers.View(0, batch_, only);
      if (!work.writes()) round[j].values = {};
      if (!work.finds()) round[j].found = {};
    }
    const double took = Timed(round, count);
    const ExchangeStats of_batch = NewlyExchanged(count);
    for (const auto& buffers : buffers_) Require(*buffers, batch_, work.expected());
    if (repeat == 0) continue;  // memory is allocated
    batch_seconds.push_back(took);
    exchanged.push_back(of_batch);
  }
  const auto median = [&](double ExchangeStats::*phase) {
    std::vector<double> seconds;
    for (const ExchangeStats& each : exchanged) seconds.push_back(each.*phase);
    return Median(seconds);
  };
  Measured measured;
  measured.batch = Median(batch_seconds);
  ExchangeStats& all = measured.exchanged;
  all.split_seconds = median(&ExchangeStats::split_seconds);
  all.send_seconds = median(&ExchangeStats::send_seconds);
  all.local_seconds = median(&ExchangeStats::local_seconds);
  all.return_seconds = median(&ExchangeStats::return_seconds);
  for (const ExchangeStats& each : exchanged) {
    all.asked += each.asked;
    all.sent += each.sent;
    all.carried_out += each.carried_out;
  }
  return measured;
}

void ScaleRank::Put(ycsb::BatchBuffers& buffers, std::uint64_t row, std::uint64_t record,
                    bool value) {
  ycsb::WriteKey(ycsb::KeyWord(record, ycsb::KeyOrder::kHashed), buffers.key(row));
  if (value) ycsb::WriteValue(record, 0, buffers.value(row));
}

Ticket ScaleRank::Begin(const Batch& batch, std::size_t stream) {
  return alone_ ? alone_.ApplyAsync(batch, streams_->Of(stream)) : store_.ApplyAsync(batch);
}

double ScaleRank::Timed(std::span<const Batch> batches, std::size_t count) {
  const std::size_t n = batches.size();
  std::vector<Ticket> tickets(n);
  start_.Wait();
  const Clock::time_point start = Clock::now();
  if (n > 1) {
    for (std::size_t i = 0; i < count; ++i) {
      if (i >= n) tickets[i % n].Wait();
      tickets[i % n] = Begin(batches[i % n], i % n);
    }
    for (std::size_t i = 0; i < n; ++i) tickets[i].Wait();
  } else if (alone_) {
    alone_.Apply(batches.front());
  } else {
    store_.Apply(batches.front());
  }
  const double seconds = SecondsSince(start);
  of_alone_.local_seconds += seconds;
  of_alone_.asked += count * batches.front().results.size();
  of_alone_.sent = of_alone_.carried_out = of_alone_.asked;
  return seconds / static_cast<double>(count);
}

ExchangeStats ScaleRank::NewlyExchanged(std::size_t batches) {
  const ExchangeStats now = alone_ ? of_alone_ : store_.Exchanged();
  const ExchangeStats before = std::exchange(before_, now);
  const auto n = static_cast<double>(batches);
  return {.split_seconds = (now.split_seconds - before.split_seconds) / n,
          .send_seconds = (now.send_seconds - before.send_seconds) / n,
          .local_seconds = (now.local_seconds - before.local_seconds) / n,
          .return_seconds = (now.return_seconds - before.return_seconds) / n,
          .asked = now.asked - before.asked,
          .sent = now.sent - before.sent,
          .carried_out = now.carried_out - before.carried_out};
}

void ScaleRank::Require(ycsb::BatchBuffers& buffers, std::uint64_t rows, Result expected) {
  buffers.Download(rows);
  for (std::uint64_t i = 0; i < rows; ++i) {
    const Result result = buffers.results()[i];
    if (result == expected) continue;
    throw Error(ErrorCode::kDamaged, fmt::format("operation {}: {} instead of {}", i,
                                                 ResultName(result), ResultName(expected)));
  }
}

}  // namespace gpm::bench
