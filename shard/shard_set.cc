#include "shard/shard_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/count_not_ok.h"
#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "shard/divided_batch.h"

namespace gpm {
void RequireHostMemory(const Batch& batch, const char* why) {
  const auto require = [&](const char* name, const void* array) {
    if (array == nullptr || !IsGpuMemory(array)) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("batch: '{}' is in GPU memory, but {}", name, why));
  };
  require("keys", batch.keys.data());
  require("ops", batch.ops.data());
  require("values", batch.values.data());
  require("found", batch.found.data());
  require("results", batch.results.data());
}

std::uint64_t CountNotOkOf(std::span<const Result> results) {
  if (IsGpuMemory(results.data())) return kNotCounted;
  return CountNotOk(results);
}

std::uint64_t ApplyTo(Store& store, const Batch& batch, Stream stream) {
  if (stream == nullptr) return store.Apply(batch);
  store.ApplyAsync(batch, stream).Wait();
  return kNotCounted;
}
std::uint64_t InsertInto(Store& store, const Batch& batch, Stream stream) {
  if (stream != nullptr) AwaitGpu(stream);
  return store.Insert(batch.keys, batch.values, batch.results);
}
std::uint64_t BulkLoadInto(Store& store, const Batch& batch, Stream stream) {
  if (stream != nullptr) AwaitGpu(stream);
  return store.BulkLoad(batch.keys, batch.values, batch.results);
}

ShardSet::ShardSet(const Partition& partition, std::uint32_t first, std::vector<std::string> paths,
                   unsigned threads,
                   const std::function<Store(std::uint32_t, const std::string&)>& make)
    : partition_(partition),
      first_(first),
      paths_(std::move(paths)),
      threads_(
          std::make_unique<ThreadPool>(std::max(threads, static_cast<unsigned>(paths_.size())))),
      stores_(paths_.size()),
      splitters_(std::make_unique<SplitterPool>(*threads_, count())) {
  ForAll([&](std::uint32_t shard) { store(shard) = make(shard, paths_[shard - first_]); });
  key_size_ = stores_.front().key_size();
  value_size_ = stores_.front().value_size();
  for (Store& each : stores_) devices_.push_back(each.impl()->executor().device());
}

ShardSet::~ShardSet() {
  // In a child of the process, these threads do not run, and can't be joined.
  if (process_.IsThis()) return;
  static_cast<void>(threads_.release());
}

void ShardSet::ThrowOf(std::uint32_t shard, const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    if (partition_.shards == 1) throw;
    const std::string& path = paths_[shard - first_];
    const bool named = std::string_view(cause.what()).starts_with(path);
    throw Error(cause.code(), fmt::format("shard {} of {}: {}{}{}", shard, partition_.shards,
                                          named ? "" : path, named ? "" : ": ", cause.what()));
  }
}

void ShardSet::RequireKeySize(std::span<const std::byte> key) const {
  if (key.size() == key_size_) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the key has {} bytes, the store's have {}", key.size(), key_size_));
}

void ShardSet::ForAll(const std::function<void(std::uint32_t shard)>& work) {
  std::vector<std::exception_ptr> errors(count());
  threads_->Run(count(), [&](std::size_t i) {
    try {
      work(first_ + static_cast<std::uint32_t>(i));
    } catch (...) {
      errors[i] = std::current_exception();
    }
  });
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (errors[i]) ThrowOf(first_ + i, errors[i]);
  }
}

void ShardSet::Validate(const Batch& batch) const {
  ValidateBatch(batch, key_size_, value_size_);
  if (device(first_) < 0) RequireHostMemory(batch, "the shards are on executor cpu");
}

std::uint64_t ShardSet::Run(const Batch& batch, Call call) {
  if (count() == 1) return call(stores_.front(), batch, nullptr);
  Validate(batch);
  if (batch.results.empty()) return 0;
  DividedBatch(*this, batch).CarryOut(call);
  return CountNotOkOf(batch.results);
}

}  // namespace gpm
