#include "bench/scale_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/report.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/gpu_host.h"
#include "shard/options.h"
#include "ycsb/items.h"

namespace gpm::bench {
namespace {

constexpr unsigned kRepeats = 7;
constexpr std::uint64_t kKeyBytes = 8;

/// A word that no other place of any rank's part has.
std::uint64_t WordOf(std::uint32_t from, std::uint32_t to, std::uint64_t place) {
  return (std::uint64_t{from} << 56 | std::uint64_t{to} << 48 | place) * 0x9E3779B97F4A7C15;
}

}  // namespace

ScaleBoundsOfRank::ScaleBoundsOfRank(const ScaleArguments& arguments, std::uint32_t rank,
                                     std::uint32_t ranks, std::unique_ptr<Exchange> exchange,
                                     StartLine* start, Inboxes* inboxes)
    : rank_(rank),
      ranks_(ranks),
      device_(arguments.memory == "device" ? arguments.DeviceOf(rank) : -1),
      rows_(arguments.BatchOf(ranks)),
      value_size_(arguments.value_size),
      part_bytes_((rows_ * (kKeyBytes + value_size_) / ranks + 7) / 8 * 8),
      partition_{.seed = {arguments.seed, ~arguments.seed}, .shards = ranks},
      start_(*start),
      inboxes_(*inboxes),
      exchange_(std::move(exchange)),
      threads_(ThreadsToDivide({.threads = arguments.threads}, ranks)) {
  if (on_gpu()) UseGpu(device_);
  splitter_ = on_gpu() ? MakeGpuSplitter(device_, 0) : MakeHostSplitter(threads_);
  const ycsb::Memory memory = on_gpu() ? ycsb::Memory::kDevice : ycsb::Memory::kHost;
  outbox_ = ycsb::Buffer(memory, ranks * part_bytes_);
  inbox_ = ycsb::Buffer(memory, ranks * part_bytes_);
  keys_ = ycsb::Buffer(memory, rows_ * kKeyBytes);
  values_ = ycsb::Buffer(memory, rows_ * value_size_);
  inboxes_[rank] = inbox_.bytes();
  FillOutbox();
  std::vector<std::uint64_t> keys(rows_);
  for (std::uint64_t i = 0; i < rows_; ++i) {
    keys[i] = ycsb::KeyWord(i * ranks + rank, ycsb::KeyOrder::kHashed);
  }
  keys_.CopyFrom(std::as_bytes(std::span(keys)));
  std::vector<std::byte> values(rows_ * value_size_);
  for (std::uint64_t i = 0; i < rows_; ++i) {
    ycsb::WriteValue(i, 0, std::span(values).subspan(i * value_size_, value_size_));
  }
  values_.CopyFrom(values);
}

void ScaleBoundsOfRank::FillOutbox() {
  std::vector<std::uint64_t> words(part_bytes_ / 8);
  for (std::uint32_t to = 0; to < ranks_; ++to) {
    for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = WordOf(rank_, to, i);
    outbox_.CopyFrom(std::as_bytes(std::span(words)), to * part_bytes_);
  }
}

void ScaleBoundsOfRank::RequireReceived(const char* what) {
  std::vector<std::uint64_t> words(part_bytes_ / 8);
  for (std::uint32_t from = 0; from < ranks_; ++from) {
    if (from == rank_) continue;
    inbox_.CopyTo(std::as_writable_bytes(std::span(words)), from * part_bytes_);
    for (std::uint64_t i = 0; i < words.size(); ++i) {
      if (words[i] == WordOf(from, rank_, i)) continue;
      throw Error(ErrorCode::kDamaged,
                  fmt::format("{}: word {} of what rank {} sends rank {} is another one", what, i,
                              from, rank_));
    }
  }
  inbox_.Zero();
}

double ScaleBoundsOfRank::Rate(std::uint64_t bytes, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (unsigned repeat = 0; repeat <= kRepeats; ++repeat) {
    start_.Wait();
    const Clock::time_point start = Clock::now();
    work();
    if (repeat > 0) seconds.push_back(SecondsSince(start));
  }
  start_.Wait();  // all have ended
  return static_cast<double>(bytes) / Median(seconds);
}

void ScaleBoundsOfRank::Copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (on_gpu()) return CopyByGpu(to.data(), from.data(), from.size(), nullptr);
  const std::size_t part = (from.size() + threads_.threads() - 1) / threads_.threads();
  threads_.Run(threads_.threads(), [&](std::size_t i) {
    const std::size_t at = std::min(i * part, from.size());
    std::memcpy(to.data() + at, from.data() + at, std::min(part, from.size() - at));
  });
}

double ScaleBoundsOfRank::MeasureMultisplit() {
  std::span<std::byte> ordered;
  const double rate = Rate(2 * rows_ * (kKeyBytes + value_size_), [&] {
    splitter_->Begin();
    splitter_->Divide(keys_.bytes(), kKeyBytes, partition_, false);
    static_cast<void>(splitter_->Starts());
    ordered = splitter_->Take(rows_ * kKeyBytes);
    splitter_->Gather(keys_.bytes(), kKeyBytes, ordered);
    splitter_->Gather(values_.bytes(), value_size_, splitter_->Take(rows_ * value_size_));
    splitter_->Finish();
  });
  const std::vector<std::uint64_t>& starts = splitter_->Starts();
  std::vector<std::byte> keys(ordered.size());
  if (on_gpu()) {
    CopyByGpu(keys.data(), ordered.data(), keys.size(), splitter_->stream());
    AwaitGpu(splitter_->stream());
  } else {
    std::copy(ordered.begin(), ordered.end(), keys.begin());
  }
  for (std::uint32_t shard = 0; shard < ranks_; ++shard) {
    for (std::uint64_t i = starts[shard]; i < starts[shard + 1]; ++i) {
      if (partition_.Of(keys.data() + i * kKeyBytes, kKeyBytes) == shard) continue;
      throw Error(ErrorCode::kDamaged,
                  fmt::format("multisplit: row {} is not of rank {}", i, shard));
    }
  }
  return rate;
}

double ScaleBoundsOfRank::MeasureExchange() {
  if (on_gpu() && !exchange_->TakesGpuMemory(device_)) return 0;
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (std::uint32_t i = 0; i < ranks_; ++i) {
    const bool self = i == rank_;
    send.push_back(self ? std::span<std::byte>() : PartOf(outbox_.bytes(), i));
    receive.push_back(self ? std::span<std::byte>() : PartOf(inbox_.bytes(), i));
  }
  const double rate = Rate((ranks_ - 1) * part_bytes_, [&] {
    if (!on_gpu()) return exchange_->AllToAll(send, receive);
    exchange_->AllToAllOnGpu(send, receive, splitter_->stream());
    AwaitGpu(splitter_->stream());
  });
  RequireReceived("exchange");
  return rate;
}

ScaleBounds ScaleBoundsOfRank::Measure() {
  const auto await = [&] {
    if (on_gpu()) AwaitGpu(nullptr);
  };
  ScaleBounds bounds;
  start_.Wait();  // all inboxes are there
  bounds.copy = Rate(2 * outbox_.bytes().size(), [&] {
    Copy(inbox_.bytes(), outbox_.bytes());
    await();
  });
  inbox_.Zero();
  start_.Wait();
  if (ranks_ > 1) {
    for (std::uint32_t i = 0; on_gpu() && i < ranks_; ++i) {
      ConnectGpus(device_, GpuOf(inboxes_[i].data()));
    }
    bounds.to_others = Rate((ranks_ - 1) * part_bytes_, [&] {
      for (std::uint32_t step = 1; step < ranks_; ++step) {  // each begins with another one
        const std::uint32_t to = (rank_ + step) % ranks_;
        Copy(PartOf(inboxes_[to], rank_), PartOf(outbox_.bytes(), to));
      }
      await();
    });
    RequireReceived("copies");
    bounds.exchange = MeasureExchange();
    bounds.multisplit = MeasureMultisplit();
  }
  if (on_gpu()) {
    const ycsb::Buffer pinned(ycsb::Memory::kPinned, outbox_.bytes().size());
    const auto over_link = [&](std::span<std::byte> to, std::span<const std::byte> from) {
      return Rate(from.size(), [&] {
        Copy(to, from);
        await();
      });
    };
    bounds.to_host = over_link(pinned.bytes(), outbox_.bytes());
    bounds.from_host = over_link(inbox_.bytes(), pinned.bytes());
  }
  return bounds;
}

nlohmann::json ToJson(const ScaleBounds& bounds, std::uint32_t ranks) {
  return {{"ranks", ranks},
          {"copy_gb_s", bounds.copy / 1e9},
          {"to_others_gb_s", bounds.to_others / 1e9},
          {"from_host_gb_s", bounds.from_host / 1e9},
          {"to_host_gb_s", bounds.to_host / 1e9},
          {"multisplit_gb_s", bounds.multisplit / 1e9},
          {"exchange_gb_s", bounds.exchange / 1e9}};
}

}  // namespace gpm::bench
