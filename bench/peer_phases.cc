#include "bench/peer_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "bench/operations.h"
#include "gpmstore/error.h"
#include "ycsb/generators.h"

namespace gpm::bench {
namespace {

using ycsb::Buffer;
using ycsb::Memory;

constexpr std::uint64_t kBlockRows = 1 << 14;  ///< that a thread fills or checks at once
constexpr std::uint64_t kStagedBytes = std::uint64_t{128} << 20;
/// Versions of what updates write, so that it differs from what kA wrote.
constexpr std::uint32_t kFirstUpdate = 1u << 30;

void ForBlocks(ThreadPool& threads, std::uint64_t n,
               const std::function<void(std::uint64_t, std::uint64_t)>& work) {
  threads.Run((n + kBlockRows - 1) / kBlockRows, [&](std::size_t block) {
    work(block * kBlockRows, std::min(n, (block + 1) * kBlockRows));
  });
}

}  // namespace

const char* PeerPhase::NameOf(Kind kind) {
  switch (kind) {
    case Kind::kInsert:
      return "insert";
    case Kind::kFind:
      return "find";
    case Kind::kFindMissing:
      return "find-missing";
    case Kind::kC:
      return "c";
    case Kind::kA:
      return "a";
    case Kind::kUpdate:
      return "update";
  }
  return "";
}

bool PeerPhase::IsFor(Kind kind, const Capabilities& can) {
  const bool updates = can.Has(Op::kUpdate) || can.Has(Op::kUpsert);
  if (kind == Kind::kInsert) return can.Has(Op::kInsert) || can.Has(Op::kUpsert);
  if (kind == Kind::kUpdate) return updates;
  if (kind == Kind::kA) return updates && can.Has(Op::kFind);
  return can.Has(Op::kFind);
}

PeerPhase::PeerPhase(const PeerWorkload& workload, Kind kind, bool split, ThreadPool& threads,
                     Staging& staging)
    : workload_(workload), kind_(kind), threads_(threads), staging_(staging) {
  ChooseRecords(split);
  FollowVersions();
  FillArrays();
}

std::uint64_t PeerPhase::KeyOf(std::uint64_t record) const {
  if (workload_.key_bytes == 8) return ycsb::FnvHash64(record);
  // A bijection of 32-bit words (Murmur's finalizer).
  auto x = static_cast<std::uint32_t>(record + 1);
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

std::uint32_t PeerPhase::VersionOf(std::uint64_t row) const {
  const auto batch = static_cast<std::uint32_t>(row / workload_.batch);
  if (kind_ == Kind::kA) return 1 + batch;
  return kind_ == Kind::kUpdate ? kFirstUpdate + batch : 0;
}

void PeerPhase::ChooseRecords(bool split) {
  const std::uint64_t n = kind_ == Kind::kInsert ? workload_.records : workload_.operations;
  const ycsb::RecordZipfian zipfian(workload_.records, workload_.theta);
  records_.resize(n);
  keys_.resize(n);
  if (kind_ == Kind::kA) kinds_.resize(n);
  ForBlocks(threads_, n, [&](std::uint64_t first, std::uint64_t end) {
    ycsb::Random random(workload_.seed * 16 + static_cast<unsigned>(kind_), first);
    for (std::uint64_t i = first; i < end; ++i) {
      std::uint64_t record = i;
      if (kind_ == Kind::kC || kind_ == Kind::kA) {
        record = zipfian.Draw(random);
      } else if (kind_ != Kind::kInsert) {
        record = random.NextBelow(workload_.records);
      }
      if (kind_ == Kind::kFindMissing) record += workload_.records;
      records_[i] = record;
      if (kind_ == Kind::kA) kinds_[i] = random.Next() >> 63 != 0 ? Op::kUpdate : Op::kFind;
    }
  });
  if (split && kind_ == Kind::kA) {
    for (std::uint64_t first = 0; first < n; first += workload_.batch) {
      const std::uint64_t end = std::min(n, first + workload_.batch);
      std::vector<std::uint64_t> updated;
      std::uint64_t row = first;
      for (std::uint64_t i = first; i < end; ++i) {
        if (kinds_[i] == Op::kUpdate) {
          updated.push_back(records_[i]);
        } else {
          records_[row++] = records_[i];
        }
      }
      finds_.push_back(row - first);
      std::fill(kinds_.begin() + static_cast<std::ptrdiff_t>(first),
                kinds_.begin() + static_cast<std::ptrdiff_t>(row), Op::kFind);
      for (const std::uint64_t record : updated) {
        kinds_[row] = Op::kUpdate;
        records_[row++] = record;
      }
    }
  }
  for (std::uint64_t i = 0; i < n; ++i) keys_[i] = KeyOf(records_[i]);
}

void PeerPhase::FollowVersions() {
  const std::uint64_t n = records_.size();
  versions_.assign(n, 0);
  written_.assign(n, Written::kNever);
  if (kind_ != Kind::kA && kind_ != Kind::kUpdate) return;
  std::vector<std::uint32_t> last(workload_.records, 0);
  const auto writes = [&](std::uint64_t row) {
    return kind_ == Kind::kUpdate || kinds_[row] == Op::kUpdate;
  };
  for (std::uint64_t first = 0; first < n; first += workload_.batch) {
    const std::uint64_t end = std::min(n, first + workload_.batch);
    for (std::uint64_t row = first; row < end; ++row) versions_[row] = last[records_[row]];
    for (std::uint64_t row = first; row < end; ++row) {
      if (last[records_[row]] == VersionOf(row)) written_[row] = Written::kEarlier;
      if (writes(row)) last[records_[row]] = VersionOf(row);
    }
    for (std::uint64_t row = first; row < end; ++row) {
      const bool in_batch = last[records_[row]] == VersionOf(row);
      if (in_batch && written_[row] == Written::kNever) written_[row] = Written::kLater;
    }
  }
  if (kind_ != Kind::kUpdate) return;
  last_versions_.resize(n);
  for (std::uint64_t row = 0; row < n; ++row) last_versions_[row] = last[records_[row]];
}

void PeerPhase::FillArrays() {
  const std::uint64_t n = keys_.size();
  const Memory memory = workload_.memory;
  const std::uint32_t value_bytes = workload_.value_bytes;
  std::vector<std::byte> keys(n * workload_.key_bytes);
  for (std::uint64_t i = 0; i < n; ++i) {
    std::memcpy(&keys[i * workload_.key_bytes], &keys_[i], workload_.key_bytes);
  }
  device_keys_ = Buffer::Untouched(memory, keys.size());
  device_keys_.CopyFrom(keys);
  results_ = Buffer(memory, n * sizeof(Result));
  if (!kinds_.empty()) {
    device_ops_ = Buffer::Untouched(memory, n * sizeof(Op));
    device_ops_.CopyFrom(std::as_bytes(std::span(kinds_)));
  }
  if (kind_ != Kind::kInsert) found_ = Buffer(memory, n * value_bytes);
  if (kind_ != Kind::kInsert && kind_ != Kind::kA && kind_ != Kind::kUpdate) return;
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
  const auto first_of = [&](Op op, Op otherwise) { return can.Has(op) ? op : otherwise; };
  if (kind_ == Kind::kInsert) all.op = first_of(Op::kInsert, Op::kUpsert);
  if (kind_ == Kind::kUpdate) all.op = first_of(Op::kUpdate, Op::kUpsert);
  all.keys = device_keys_.bytes();
  all.values = values_.bytes();
  if (kind_ != Kind::kInsert && kind_ != Kind::kUpdate) all.found = found_.bytes();
  if (kind_ == Kind::kA) all.ops = device_ops_.as<const Op>();
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
    for (const Op op : {Op::kFind, can.Has(Op::kUpdate) ? Op::kUpdate : Op::kUpsert}) {
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
  if (kind_ != Kind::kInsert) found_.Zero();
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

void PeerPhase::CheckUpdated(KvAdapter& adapter) const {
  Batch finds = All({});
  finds.op = Op::kFind;
  finds.values = {};
  finds.found = found_.bytes();
  results_.Zero();
  found_.Zero();
  SecondsOfBatches(adapter, finds, workload_.batch);
  Check({.sequential = true}, true);
}

void PeerPhase::Check(const Capabilities& can, bool updated) const {
  const std::uint64_t n = keys_.size();
  const std::uint32_t value_bytes = workload_.value_bytes;
  const Result expected = kind_ == Kind::kFindMissing ? Result::kNotFound : Result::kOk;
  std::vector<Result> results(n);
  results_.CopyTo(std::as_writable_bytes(std::span(results)));
  const bool values =
      updated || (kind_ != Kind::kInsert && kind_ != Kind::kUpdate && kind_ != Kind::kFindMissing);
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
      if (!values || (!updated && !kinds_.empty() && kinds_[row] != Op::kFind)) return true;
      const std::byte* const value = &found[row * value_bytes];
      const std::span<const std::uint64_t> key(&keys_[row], 1);
      const bool is_now = ordered && written_[row] == Written::kEarlier;
      FillValues(key,
                 updated  ? last_versions_[row]
                 : is_now ? VersionOf(row)
                          : versions_[row],
                 value_bytes, before);
      if (std::memcmp(value, before.data(), value_bytes) == 0) return true;
      if (updated || ordered || written_[row] == Written::kNever) return false;
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
                          updated ? ", found afterwards" : "", wrong, keys_[wrong],
                          ResultName(results[wrong]),
                          results[wrong] == expected ? " and a wrong value" : ""));
}

}  // namespace gpm::bench
