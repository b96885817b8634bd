#include "cli/crash/writer.h"

#include <algorithm>
#include <cstring>

#include "cli/crash/child.h"
#include "gpmstore/error.h"
#include "table/operation.h"

namespace gpm::cli {
namespace {

ycsb::Buffer HostArray(std::size_t rows, std::size_t row_bytes) {
  return ycsb::Buffer::Untouched(ycsb::Memory::kHost, rows * row_bytes);
}

/// One batch in eight runs in one call, and in host memory.
bool IsPlain(std::uint64_t batch) { return batch % 8 == 7; }

}  // namespace

CrashWriter::CrashWriter(const CrashRound& round, unsigned number, const CrashItems& items,
                         bool gpu, std::span<Result> answers)
    : round_(round),
      number_(number),
      items_(items),
      ops_(HostArray(round.max_batch, 1)),
      keys_(HostArray(round.max_batch, items.key_size())),
      values_(HostArray(round.max_batch, items.value_size())),
      found_(HostArray(round.max_batch, items.value_size())),
      results_(HostArray(round.max_batch, 1)),
      answers_(answers) {
  if (gpu) gpu_ = MakeGpuBatch(round.max_batch, items.key_size(), items.value_size());
}

void CrashWriter::Fill(const CrashBatch& made) {
  const std::size_t n = made.operations.size();
  const std::size_t key_size = items_.key_size();
  const std::size_t value_size = items_.value_size();
  const std::span<Op> ops = ops_.as<Op>().first(n);
  const std::span<std::byte> keys = keys_.bytes().first(n * key_size);
  const std::span<std::byte> values = values_.bytes().first(n * value_size);
  for (std::size_t i = 0; i < n; ++i) {
    const CrashOperation& operation = made.operations[i];
    ops[i] = operation.op;
    items_.PutKey(operation.key, &keys[i * key_size]);
    items_.PutValue(operation.key, operation.version, &values[i * value_size]);
  }
  batch_ = Batch{};
  batch_.op = ops[0];
  if (!made.one_kind) batch_.ops = ops;
  batch_.keys = keys;
  batch_.values = values;
  batch_.found = found_.bytes().first(n * value_size);
  batch_.results = results_.as<Result>().first(n);
  batch_.element = made.element;
}

void CrashWriter::Start(AnyStore& store, Stream stream) {
  CrashRecord record;
  record.writer = number_;
  record.batch = next_batch_++;
  made_ = MakeCrashBatch(round_, number_, record.batch);
  Fill(made_);
  const bool in_scope = round_.IsInScope(number_);
  const bool loads = round_.IsFirstLoad(number_, record.batch);
  on_gpu_ = gpu_ != nullptr && (in_scope || !IsPlain(record.batch));
  Batch batch = batch_;
  if (on_gpu_) {
    batch = gpu_->Upload(batch_);
  } else {
    std::memset(batch.found.data(), kCrashPoison, batch.found.size());
    std::memset(batch.results.data(), kCrashPoison, batch.results.size());
  }
  if (in_scope) std::memset(answers_.data(), kCrashPoison, answers_.size_bytes());
  record.kind = CrashRecord::Kind::kStarting;
  Report(record);
  if (on_gpu_ && in_scope) {
    StartInScope(store, stream);
  } else if (loads) {
    store.BulkLoad(batch.keys, batch.values, batch.results);
  } else if (IsPlain(record.batch)) {
    store.Apply(batch);
  } else {
    ticket_ = store.ApplyAsync(batch, stream);
  }
}

void CrashWriter::StartInScope(AnyStore& store, Stream stream) {
  const auto count = [&](auto... kinds) {
    return static_cast<std::uint64_t>(std::count_if(
        made_.operations.begin(), made_.operations.end(),
        [&](const CrashOperation& operation) { return (... || (operation.op == kinds)); }));
  };
  gpu_->ApplyInScope(*store.one(), stream, count(Op::kInsert, Op::kUpdate, Op::kUpsert),
                     count(Op::kErase), answers_);
}

/// A scope can't make room: what found none goes to the store in a batch.
void CrashWriter::FinishWithoutRoom(AnyStore& store) {
  std::vector<std::size_t> rows;
  std::vector<Op> ops;
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  for (std::size_t i = 0; i < batch_.results.size(); ++i) {
    if (batch_.results[i] != Result::kNoSpace) continue;
    rows.push_back(i);
    ops.push_back(made_.operations[i].op);
    const auto append = [i](std::vector<std::byte>& to, std::span<const std::byte> from,
                            std::size_t row) {
      const std::span<const std::byte> bytes = from.subspan(i * row, row);
      to.insert(to.end(), bytes.begin(), bytes.end());
    };
    append(keys, batch_.keys, items_.key_size());
    append(values, batch_.values, items_.value_size());
  }
  if (rows.empty()) return;
  std::vector<Result> results(rows.size(), Result::kInvalid);
  Batch batch;
  batch.ops = ops;
  batch.keys = keys;
  batch.values = values;
  batch.results = results;
  store.Apply(batch);
  for (std::size_t i = 0; i < rows.size(); ++i) batch_.results[rows[i]] = results[i];
}

void CrashWriter::Finish(AnyStore& store) {
  if (made_.operations.empty()) return;
  ticket_.Wait();
  ticket_ = Ticket();  // which would keep a closed store
  if (on_gpu_) gpu_->Download(batch_);
  if (on_gpu_ && round_.IsInScope(number_)) FinishWithoutRoom(store);
  const std::size_t value_size = items_.value_size();
  CrashDigest digest;
  for (std::size_t i = 0; i < batch_.results.size(); ++i) {
    const Result result = batch_.results[i];
    if (result == Result::kNoSpace) {
      throw Error(ErrorCode::kNoSpace,
                  "crash-test: the pool's medium is full; choose another place for it");
    }
    const bool found = HasFound(made_.operations[i].op, result);
    digest.Add(result, batch_.found.subspan(i * value_size, found ? value_size : 0));
  }
  CrashRecord record;
  record.kind = CrashRecord::Kind::kAcknowledged;
  record.writer = number_;
  record.batch = next_batch_ - 1;
  record.digest[0] = digest.sum();
  record.digest[1] = digest.weighted();
  made_.operations.clear();
  Report(record);
}

}  // namespace gpm::cli
