#include "shard/shard_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "shard/splitter.h"

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
  return static_cast<std::uint64_t>(std::count_if(
      results.begin(), results.end(), [](Result result) { return result != Result::kOk; }));
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

/// Takes a splitter that nobody uses, and gives it back when all went well.
class ShardSet::SplitterLease {
 public:
  /// @param device whose memory it works in; -1: the host's
  SplitterLease(ShardSet& set, int device) : set_(set) {
    {
      const MutexLock lock(set.mutex_);
      const auto idle = std::find_if(set.idle_.begin(), set.idle_.end(), [&](const auto& splitter) {
        return splitter->device() == device;
      });
      if (idle != set.idle_.end()) {
        splitter_ = std::move(*idle);
        set.idle_.erase(idle);
        return;
      }
    }
    splitter_ = device < 0 ? MakeHostSplitter(*set.threads_) : MakeGpuSplitter(device, set.count());
  }
  SplitterLease(const SplitterLease&) = delete;
  SplitterLease& operator=(const SplitterLease&) = delete;
  Splitter* operator->() { return splitter_.get(); }
  void GiveBack() {
    const MutexLock lock(set_.mutex_);
    try {
      set_.idle_.push_back(std::move(splitter_));
    } catch (const std::bad_alloc&) {  // the next one makes its own
    }
  }

 private:
  ShardSet& set_;
  std::unique_ptr<Splitter> splitter_;
};

ShardSet::ShardSet(const Partition& partition, std::uint32_t first, std::vector<std::string> paths,
                   unsigned threads,
                   const std::function<Store(std::uint32_t, const std::string&)>& make)
    : partition_(partition),
      first_(first),
      paths_(std::move(paths)),
      threads_(
          std::make_unique<ThreadPool>(std::max(threads, static_cast<unsigned>(paths_.size())))),
      stores_(paths_.size()) {
  ForAll([&](std::uint32_t shard) { store(shard) = make(shard, paths_[shard - first_]); });
  key_size_ = stores_.front().key_size();
  value_size_ = stores_.front().value_size();
  for (Store& each : stores_) devices_.push_back(each.impl()->executor().device());
}

ShardSet::~ShardSet() {
  // In a child of the process, these threads do not run, and can't be joined.
  if (process_.IsThis()) return;
  static_cast<void>(threads_.release());
  // What a splitter has on a GPU is the parent's.
  for (std::unique_ptr<Splitter>& splitter : idle_) static_cast<void>(splitter.release());
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

std::uint64_t ShardSet::Run(const Batch& batch, Call call) {
  if (count() == 1) return call(stores_.front(), batch, nullptr);
  ValidateBatch(batch, key_size_, value_size_);
  if (device(first_) < 0) RequireHostMemory(batch, "the shards are on executor cpu");
  const std::size_t n = batch.results.size();
  if (n == 0) return 0;

  const bool mixed = !batch.ops.empty();
  const bool reads_values = mixed || (batch.op != Op::kFind && batch.op != Op::kErase);
  const bool finds = mixed || batch.op == Op::kFind || batch.op == Op::kFindOrInsert;
  SplitterLease splitter(*this, DeviceOf(batch));
  splitter->Begin();
  splitter->Divide(batch.keys, key_size_, partition_, false);
  // Of all shards, one after the other.
  const auto gather = [&](std::span<const std::byte> rows, std::size_t row_bytes) {
    const std::span<std::byte> gathered = splitter->Take(rows.size());
    splitter->Gather(rows, row_bytes, gathered);
    return gathered;
  };
  const std::span<std::byte> keys = gather(batch.keys, key_size_);
  const std::span<std::byte> ops = gather(std::as_bytes(batch.ops), sizeof(Op));
  const std::span<std::byte> values =
      gather(reads_values ? batch.values : std::span<const std::byte>(), value_size_);
  const std::span<std::byte> found = splitter->Take(finds ? batch.found.size() : 0);
  const std::span<std::byte> results = splitter->Take(n);
  const std::vector<std::uint64_t>& starts = splitter->Starts();

  const auto bring_back = [&] {
    splitter->Scatter(results, sizeof(Result), std::as_writable_bytes(batch.results));
    splitter->Scatter(found, value_size_, finds ? batch.found : std::span<std::byte>());
    splitter->Finish();
  };
  try {
    ForAll([&](std::uint32_t shard) {
      const std::uint64_t first = starts[shard];
      const std::uint64_t rows = starts[shard + 1] - first;
      if (rows == 0) return;
      const auto part_of = [&](std::span<std::byte> all, std::size_t row_bytes) {
        return all.empty() ? all : all.subspan(first * row_bytes, rows * row_bytes);
      };
      const std::span<std::byte> shard_ops = part_of(ops, sizeof(Op));
      const std::span<std::byte> shard_results = part_of(results, sizeof(Result));
      Batch part = batch;
      part.keys = part_of(keys, key_size_);
      part.ops = {reinterpret_cast<const Op*>(shard_ops.data()), shard_ops.size()};
      part.values = part_of(values, value_size_);
      part.found = part_of(found, value_size_);
      part.results = {reinterpret_cast<Result*>(shard_results.data()), shard_results.size()};
      splitter->Carry(shard - first_, device(shard), part, [&](const Batch& there, Stream stream) {
        call(store(shard), there, stream);
      });
    });
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    try {
      bring_back();           // of the others
    } catch (const Error&) {  // the first one says more
    }
    std::rethrow_exception(failure);
  }
  bring_back();
  splitter.GiveBack();
  return CountNotOkOf(batch.results);
}

}  // namespace gpm
