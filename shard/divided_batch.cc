#include "shard/divided_batch.h"

#include <exception>
#include <utility>

#include "gpmstore/error.h"

namespace gpm {

DividedBatch::DividedBatch(ShardSet& set, const Batch& batch)
    : set_(set),
      batch_(batch),
      finds_(!batch.ops.empty() || batch.op == Op::kFind || batch.op == Op::kFindOrInsert),
      splitter_(set.splitters().Take(DeviceOf(batch))) {
  const bool reads_values = !batch.ops.empty() || (batch.op != Op::kFind && batch.op != Op::kErase);
  splitter_->Begin();
  splitter_->Divide(batch.keys, set.key_size(), set.partition(), false);
  keys_ = Gather(batch.keys, set.key_size());
  ops_ = Gather(std::as_bytes(batch.ops), sizeof(Op));
  values_ = Gather(reads_values ? batch.values : std::span<const std::byte>(), set.value_size(),
                   WantedRows::Written(batch));
  found_ = splitter_->Take(finds_ ? batch.found.size() : 0);
  results_ = splitter_->Take(batch.results.size());
}

std::span<std::byte> DividedBatch::Gather(std::span<const std::byte> rows, std::size_t row_bytes,
                                          const WantedRows& wanted) {
  const std::span<std::byte> gathered = splitter_->Take(rows.size());
  splitter_->Gather(rows, row_bytes, gathered, wanted);
  return gathered;
}

Batch DividedBatch::PartOf(std::uint32_t shard, std::span<const std::uint64_t> starts) const {
  const std::uint64_t first = starts[shard];
  const std::uint64_t rows = starts[shard + 1] - first;
  const auto part_of = [&](std::span<std::byte> all, std::size_t row_bytes) {
    return all.empty() ? all : all.subspan(first * row_bytes, rows * row_bytes);
  };
  const std::span<std::byte> ops = part_of(ops_, sizeof(Op));
  const std::span<std::byte> results = part_of(results_, sizeof(Result));
  Batch part = batch_;
  part.keys = part_of(keys_, set_.key_size());
  part.ops = {reinterpret_cast<const Op*>(ops.data()), ops.size()};
  part.values = part_of(values_, set_.value_size());
  part.found = part_of(found_, set_.value_size());
  part.results = {reinterpret_cast<Result*>(results.data()), results.size()};
  return part;
}

void DividedBatch::BringBack() {
  splitter_->Scatter(results_, sizeof(Result), std::as_writable_bytes(batch_.results));
  splitter_->Scatter(found_, set_.value_size(), finds_ ? batch_.found : std::span<std::byte>(),
                     WantedRows::Found(batch_));
  splitter_->Finish();
}

void DividedBatch::CarryOut(ShardSet::Call call) {
  const std::span<const std::uint64_t> starts = splitter_->Starts();
  try {
    set_.ForAll([&](std::uint32_t shard) {
      const Batch part = PartOf(shard, starts);
      if (part.results.empty()) return;
      splitter_->Carry(
          shard - set_.first(), set_.device(shard), part,
          [&](const Batch& there, Stream stream) { call(set_.store(shard), there, stream); });
    });
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    try {
      BringBack();   // of the others
    } catch (...) {  // the first one says more
    }
    std::rethrow_exception(failure);
  }
  BringBack();
  set_.splitters().GiveBack(std::move(splitter_));
}

}  // namespace gpm
