#include "bench/peer_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "bench/blocks.h"
#include "bench/operations.h"
#include "gpmstore/error.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using ycsb::Buffer;
using ycsb::Memory;

constexpr std::uint64_t kStagedBytes = std::uint64_t{128} << 20;
/// Share of the operations of kD and kB that write.
constexpr double kWrites = 0.05;

using Kind = PeerPhase::Kind;

/// Whether batches have finds and writes.
bool IsMixed(Kind kind) {
  return kind == Kind::kD || kind == Kind::kB || kind == Kind::kA || kind == Kind::kF;
}
bool UpdatesItems(Kind kind) {
  return kind == Kind::kB || kind == Kind::kA || kind == Kind::kF || kind == Kind::kUpdate;
}
bool InsertsItems(Kind kind) { return kind == Kind::kInsert || kind == Kind::kD; }
bool WritesValues(Kind kind) { return UpdatesItems(kind) || InsertsItems(kind); }
bool FindsItems(Kind kind) { return !WritesValues(kind) ? kind != Kind::kErase : IsMixed(kind); }
/// REQUIRES: WritesValues(kind).
Op WriteOf(Kind kind) { return InsertsItems(kind) ? Op::kInsert : Op::kUpdate; }

}  // namespace

const char* PeerPhase::NameOf(Kind kind) {
  constexpr const char* kNames[] = {"insert", "find", "find-missing", "c",    "latest", "d", "b",
                                    "a",      "f",    "update",       "erase"};
  return kNames[static_cast<unsigned>(kind)];
}

bool PeerPhase::IsFor(Kind kind, const Capabilities& can) {
  if (UpdatesItems(kind) && !can.Has(Op::kUpdate) && !can.Has(Op::kUpsert)) return false;
  if (InsertsItems(kind) && !can.Has(Op::kInsert) && !can.Has(Op::kUpsert)) return false;
  if (kind == Kind::kD && can.builds_once) return false;
  if (kind == Kind::kErase) return can.Has(Op::kErase);
  return !FindsItems(kind) || can.Has(Op::kFind);
}

bool PeerPhase::IsSplitFor(Kind kind, const Capabilities& can) {
  return IsMixed(kind) && (!can.mixed || !can.Has(WriteOf(kind)));
}

PeerPhase::PeerPhase(const PeerWorkload& workload, Kind kind, bool split, ThreadPool& threads,
                     Staging& staging, std::vector<ycsb::Version>& contents)
    : workload_(workload), kind_(kind), threads_(threads), staging_(staging) {
  ChooseRecords();
  if (kind_ == Kind::kLatest || kind_ == Kind::kD) ChooseLatest();
  if (kind_ == Kind::kF) AddUpdates();
  if (split && IsMixed(kind_)) Split();
  keys_.resize(records_.size());
  ForBlocks(threads_, keys_.size(), [&](std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t i = first; i < end; ++i) keys_[i] = KeyOf(records_[i]);
  });
  FollowVersions(contents);
  FillArrays();
}

std::uint64_t PeerPhase::KeyOf(std::uint64_t record) const {
  if (workload_.key_bytes >= 8) return ycsb::FnvHash64(record);
  // A bijection of 32-bit words (Murmur's finalizer).
  auto x = static_cast<std::uint32_t>(record + 1);
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

ycsb::Version PeerPhase::VersionOf(std::uint64_t row) const {
  if (!UpdatesItems(kind_)) return 0;
  const auto batch = static_cast<ycsb::Version>(row / workload_.batch);
  // What a phase writes differs from what others wrote.
  const auto phase = static_cast<ycsb::Version>(kind_) - static_cast<ycsb::Version>(Kind::kB);
  return (phase << 30) + 1 + batch;
}

bool PeerPhase::Finds(std::uint64_t row) const {
  return kinds_.empty() ? FindsItems(kind_) : kinds_[row] == Op::kFind;
}

/// Of operations, and what they are.
void PeerPhase::ChooseRecords() {
  operations_ = workload_.operations;
  if (kind_ == Kind::kInsert) operations_ = workload_.records;
  if (kind_ == Kind::kErase) operations_ = std::min(workload_.operations, workload_.records);
  const bool in_order = kind_ == Kind::kInsert || kind_ == Kind::kErase;
  const bool latest = kind_ == Kind::kLatest || kind_ == Kind::kD;
  const bool skewed = latest || kind_ == Kind::kC || (IsMixed(kind_) && UpdatesItems(kind_));
  const double writes = kind_ == Kind::kA || kind_ == Kind::kF ? 0.5 : kWrites;
  const ycsb::RecordZipfian zipfian(workload_.records, workload_.theta);
  const ycsb::Zipfian ranks(workload_.records, workload_.theta);
  records_.resize(operations_);
  if (IsMixed(kind_)) kinds_.resize(operations_);
  ForBlocks(threads_, operations_, [&](std::uint64_t first, std::uint64_t end) {
    ycsb::Random random(workload_.seed * 16 + static_cast<unsigned>(kind_), first);
    for (std::uint64_t i = first; i < end; ++i) {
      std::uint64_t record = i;
      if (latest) {
        record = ranks.Draw(random);  // before the newest record
      } else if (skewed) {
        record = zipfian.Draw(random);
      } else if (!in_order) {
        record = random.NextBelow(workload_.records);
      }
      if (kind_ == Kind::kFindMissing) record += workload_.records;
      records_[i] = record;
      if (IsMixed(kind_)) {
        kinds_[i] = random.NextDouble() < writes ? WriteOf(kind_) : Op::kFind;
      }
    }
  });
}

/// Records of ranks that count from the newest one before a batch.
void PeerPhase::ChooseLatest() {
  for (std::uint64_t first = 0; first < records_.size(); first += workload_.batch) {
    const std::uint64_t end = std::min<std::uint64_t>(records_.size(), first + workload_.batch);
    const std::uint64_t newest = workload_.records + new_records_ - 1;
    for (std::uint64_t i = first; i < end; ++i) {
      records_[i] = Finds(i) ? newest - records_[i] : workload_.records + new_records_++;
    }
  }
}

/// A find, where it is one operation with an update, gets a row before that.
void PeerPhase::AddUpdates() {
  const std::vector<std::uint64_t> records = std::move(records_);
  const std::vector<Op> kinds = std::move(kinds_);
  records_.clear();
  kinds_.clear();
  for (std::uint64_t i = 0; i < records.size(); ++i) {
    for (const Op op : {Op::kFind, Op::kUpdate}) {
      if (op != Op::kFind && kinds[i] == Op::kFind) continue;
      records_.push_back(records[i]);
      kinds_.push_back(op);
    }
  }
}

/// Brings the finds of each batch to its front.
void PeerPhase::Split() {
  const std::uint64_t n = records_.size();
  for (std::uint64_t first = 0; first < n; first += workload_.batch) {
    const std::uint64_t end = std::min(n, first + workload_.batch);
    std::vector<std::uint64_t> written;
    std::uint64_t row = first;
    for (std::uint64_t i = first; i < end; ++i) {
      if (Finds(i)) {
        records_[row++] = records_[i];
      } else {
        written.push_back(records_[i]);
      }
    }
    finds_.push_back(row - first);
    for (std::uint64_t i = first; i < end; ++i) {
      kinds_[i] = i < row ? Op::kFind : WriteOf(kind_);
    }
    std::ranges::copy(written, records_.begin() + static_cast<std::ptrdiff_t>(row));
  }
}

void PeerPhase::FollowVersions(std::vector<ycsb::Version>& contents) {
  const std::uint64_t n = records_.size();
  contents.resize(workload_.records);
  versions_.assign(n, 0);
  written_.assign(n, Written::kNever);
  if (!UpdatesItems(kind_)) {
    ForBlocks(threads_, n, [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t row = first; row < end; ++row) {
        if (records_[row] < workload_.records) versions_[row] = contents[records_[row]];
      }
    });
    return;
  }
  for (std::uint64_t first = 0; first < n; first += workload_.batch) {
    const std::uint64_t end = std::min(n, first + workload_.batch);
    for (std::uint64_t row = first; row < end; ++row) versions_[row] = contents[records_[row]];
    for (std::uint64_t row = first; row < end; ++row) {
      if (contents[records_[row]] == VersionOf(row)) written_[row] = Written::kEarlier;
      if (!Finds(row)) contents[records_[row]] = VersionOf(row);
    }
    for (std::uint64_t row = first; row < end; ++row) {
      const bool in_batch = contents[records_[row]] == VersionOf(row);
      if (in_batch && written_[row] == Written::kNever) written_[row] = Written::kLater;
    }
  }
  if (kind_ != Kind::kUpdate) return;
  last_versions_.resize(n);
  for (std::uint64_t row = 0; row < n; ++row) last_versions_[row] = contents[records_[row]];
}

void PeerPhase::FillArrays() {
  const std::uint64_t n = keys_.size();
  const Memory memory = workload_.memory;
  const std::uint32_t value_bytes = workload_.value_bytes;
  std::vector<std::byte> keys(n * workload_.key_bytes);
  ForBlocks(threads_, n, [&](std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t i = first; i < end; ++i) {
      ycsb::WriteKey(keys_[i],
                     std::span(keys).subspan(i * workload_.key_bytes, workload_.key_bytes));
    }
  });
  device_keys_ = Buffer::Untouched(memory, keys.size());
  device_keys_.CopyFrom(keys);
  results_ = Buffer(memory, n * sizeof(Result));
  if (!kinds_.empty()) {
    device_ops_ = Buffer::Untouched(memory, n * sizeof(Op));
    device_ops_.CopyFrom(std::as_bytes(std::span(kinds_)));
  }
  // What is updated or erased is looked for in the end.
  if (kind_ != Kind::kInsert) found_ = Buffer(memory, n * value_bytes);
  if (!WritesValues(kind_)) return;
  values_ = Buffer::Untouched(memory, n * value_bytes);
  const std::uint64_t staged_rows =
      std::min(n, std::max(kBlockRows, kStagedBytes / value_bytes / kBlockRows * kBlockRows));
  const std::span<std::byte> staged = staging_.Bytes(staged_rows * value_bytes);
  for (std::uint64_t start = 0; start < n; start += staged_rows) {
    const std::uint64_t rows = std::min(staged_rows, n - start);
    ForBlocks(threads_, rows, [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t i = first; i < end; ++i) {
        FillValues({&keys_[start + i], 1}, VersionOf(start + i), value_bytes,
                   staged.subspan(i * value_bytes, value_bytes));
      }
    });
    values_.CopyFrom(staged.first(rows * value_bytes), start * value_bytes);
  }
}

Batch PeerPhase::All(const Capabilities& can) const {
  Batch all;
  if (WritesValues(kind_) && !IsMixed(kind_)) {
    all.op = can.Has(WriteOf(kind_)) ? WriteOf(kind_) : Op::kUpsert;
  }
  if (kind_ == Kind::kErase) all.op = Op::kErase;
  all.keys = device_keys_.bytes();
  all.values = values_.bytes();
  if (FindsItems(kind_)) all.found = found_.bytes();
  if (IsMixed(kind_)) all.ops = device_ops_.as<const Op>();
  all.results = results_.as<Result>();
  return all;
}

std::vector<double> PeerPhase::RunSplit(KvAdapter& adapter, const Capabilities& can) const {
  std::vector<double> seconds;
  const Batch all = All(can);
  std::uint64_t first = 0;
  for (const std::uint64_t finds : finds_) {
    const std::uint64_t rows = std::min(workload_.batch, keys_.size() - first);
    double sum = 0;
    for (const Op op : {Op::kFind, can.Has(WriteOf(kind_)) ? WriteOf(kind_) : Op::kUpsert}) {
      const bool reads = op == Op::kFind;
      Batch part = PartOf(all, reads ? first : first + finds, reads ? finds : rows - finds,
                          workload_.key_bytes, workload_.value_bytes);
      part.op = op;
      part.ops = {};
      if (part.results.empty()) continue;
      if (reads) part.values = {};
      if (!reads) part.found = {};
      sum += SecondsOfBatches(adapter, part, part.results.size()).front();
    }
    seconds.push_back(sum);
    first += rows;
  }
  return seconds;
}

std::vector<double> PeerPhase::Run(KvAdapter& adapter, const Capabilities& can) const {
  results_.Zero();
  found_.Zero();
  const bool at_once = kind_ == Kind::kInsert && can.builds_once;
  const std::vector<double> seconds =
      finds_.empty() ? SecondsOfBatches(adapter, All(can), at_once ? keys_.size() : workload_.batch)
                     : RunSplit(adapter, can);
  Check(can, false);
  return seconds;
}

void PeerPhase::Rehearse(KvAdapter& adapter, const Capabilities& can) const {
  const std::uint64_t rows = std::min<std::uint64_t>(workload_.batch, keys_.size());
  Batch batch = PartOf(All(can), 0, rows, workload_.key_bytes, workload_.value_bytes);
  batch.op = can.Has(Op::kUpdate) ? Op::kUpdate : Op::kFind;
  if (batch.op == Op::kFind) batch.values = {};
  adapter.Apply(batch);
  std::vector<Result> results(keys_.size());
  results_.CopyTo(std::as_writable_bytes(std::span(results)));
  if (std::all_of(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(rows),
                  [](Result result) { return result == Result::kNotFound; })) {
    return;
  }
  throw Error(ErrorCode::kDamaged, "a key was found before it was inserted");
}

void PeerPhase::CheckAfterwards(KvAdapter& adapter) const {
  Batch finds = All({});
  finds.op = Op::kFind;
  finds.values = {};
  finds.found = found_.bytes();
  results_.Zero();
  found_.Zero();
  SecondsOfBatches(adapter, finds, workload_.batch);
  Check({.sequential = true}, true);
}

void PeerPhase::Check(const Capabilities& can, bool afterwards) const {
  const std::uint64_t n = keys_.size();
  const std::uint32_t value_bytes = workload_.value_bytes;
  const bool missing = kind_ == Kind::kFindMissing || (kind_ == Kind::kErase && afterwards);
  const Result expected = missing ? Result::kNotFound : Result::kOk;
  std::vector<Result> results(n);
  results_.CopyTo(std::as_writable_bytes(std::span(results)));
  const bool values = !missing && (FindsItems(kind_) || afterwards);
  std::span<std::byte> found;
  if (values) {
    found = staging_.Bytes(n * value_bytes);
    found_.CopyTo(found);
  }
  // Who carries out a batch in two has found before it wrote.
  const bool ordered = can.sequential || !finds_.empty();
  std::mutex mutex;
  std::uint64_t wrong = n;
  ForBlocks(threads_, n, [&](std::uint64_t first, std::uint64_t end) {
    std::vector<std::byte> before(value_bytes), now(value_bytes);
    const auto is_right = [&](std::uint64_t row) {
      if (results[row] != expected) return false;
      if (!values || (!afterwards && !Finds(row))) return true;
      const std::byte* const value = &found[row * value_bytes];
      const std::span<const std::uint64_t> key(&keys_[row], 1);
      const bool is_now = ordered && written_[row] == Written::kEarlier;
      FillValues(key,
                 afterwards ? last_versions_[row]
                 : is_now   ? VersionOf(row)
                            : versions_[row],
                 value_bytes, before);
      if (std::memcmp(value, before.data(), value_bytes) == 0) return true;
      if (afterwards || ordered || written_[row] == Written::kNever) return false;
      FillValues(key, VersionOf(row), value_bytes, now);
      if (can.whole_values) return std::memcmp(value, now.data(), value_bytes) == 0;
      for (std::uint32_t at = 0; at < value_bytes; at += 8) {
        const std::uint32_t bytes = std::min(8u, value_bytes - at);
        if (std::memcmp(value + at, &before[at], bytes) != 0 &&
            std::memcmp(value + at, &now[at], bytes) != 0) {
          return false;
        }
      }
      return true;
    };
    for (std::uint64_t row = first; row < end; ++row) {
      if (is_right(row)) continue;
      const std::lock_guard lock(mutex);
      wrong = std::min(wrong, row);
      return;
    }
  });
  if (wrong == n) return;
  throw Error(ErrorCode::kDamaged,
              fmt::format("{}{}: operation {} (key {}) gave {}{}", NameOf(kind_),
                          afterwards ? ", found afterwards" : "", wrong, keys_[wrong],
                          ResultName(results[wrong]),
                          results[wrong] == expected ? " and a wrong value" : ""));
}

}  // namespace gpm::bench
