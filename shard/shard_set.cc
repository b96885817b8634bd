#include "shard/shard_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "pm/format.h"
#include "pm/gpu_host.h"
#include "shard/multisplit.h"

namespace gpm {
void RequireHostMemory(const Batch& batch) {
  const auto require = [](const char* name, const void* array) {
    if (array == nullptr || !IsGpuMemory(array)) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("batch: '{}' is in GPU memory, and a batch for several shards has to "
                            "be in host memory",
                            name));
  };
  require("keys", batch.keys.data());
  require("ops", batch.ops.data());
  require("values", batch.values.data());
  require("found", batch.found.data());
  require("results", batch.results.data());
}

class ShardSet::Arena {
 public:
  /// @param bytes that Take gives out in all: what was given out before is not used any more
  void Reset(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(new std::byte[bytes]);
      bytes_ = bytes;
    }
    next_ = memory_.get();
  }
  std::span<std::byte> Take(std::size_t bytes) {
    return {std::exchange(next_, next_ + RoundUp(bytes, kAlignment)), bytes};
  }
  static constexpr std::size_t kAlignment = 64;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
  std::byte* next_ = nullptr;
};

/// Takes an arena that nobody uses, and gives it back.
class ShardSet::ArenaLease {
 public:
  explicit ArenaLease(ShardSet& set) : set_(set) {
    {
      const MutexLock lock(set.mutex_);
      if (!set.idle_.empty()) {
        arena_ = std::move(set.idle_.back());
        set.idle_.pop_back();
        return;
      }
    }
    arena_ = std::make_unique<Arena>();
  }
  ~ArenaLease() {
    const MutexLock lock(set_.mutex_);
    try {
      set_.idle_.push_back(std::move(arena_));
    } catch (const std::bad_alloc&) {  // the next one makes its own
    }
  }
  ArenaLease(const ArenaLease&) = delete;
  ArenaLease& operator=(const ArenaLease&) = delete;
  Arena* operator->() { return arena_.get(); }

 private:
  ShardSet& set_;
  std::unique_ptr<Arena> arena_;
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
}

ShardSet::~ShardSet() {
  // In a child of the process, these threads do not run, and can't be joined.
  if (!process_.IsThis()) static_cast<void>(threads_.release());
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
  if (count() == 1) {
    return call(stores_.front(), batch);
  }
  ValidateBatch(batch, key_size_, value_size_);
  RequireHostMemory(batch);
  const std::size_t n = batch.results.size();
  if (n == 0) return 0;

  const bool mixed = !batch.ops.empty();
  const bool reads_values = mixed || (batch.op != Op::kFind && batch.op != Op::kErase);
  const bool finds = mixed || batch.op == Op::kFind || batch.op == Op::kFindOrInsert;
  const std::size_t value_bytes = reads_values ? batch.values.size() : 0;
  const std::size_t found_bytes = finds ? batch.found.size() : 0;
  const Split split = Multisplit(batch.keys, key_size_, partition_, *threads_);
  ArenaLease arena(*this);
  arena->Reset(batch.keys.size() + batch.ops.size() + value_bytes + found_bytes + n +
               5 * Arena::kAlignment);
  // Of all shards, one after the other, as Split has them.
  const std::span<std::byte> keys = arena->Take(batch.keys.size());
  const std::span<std::byte> ops = arena->Take(batch.ops.size());
  const std::span<std::byte> values = arena->Take(value_bytes);
  const std::span<std::byte> found = arena->Take(found_bytes);
  const std::span<std::byte> results = arena->Take(n);

  std::vector<std::uint64_t> not_ok(count());
  ForAll([&](std::uint32_t shard) {
    const std::span<const std::uint32_t> order = split.Of(shard);
    if (order.empty()) return;
    const auto part_of = [&](std::span<std::byte> rows, std::size_t row_bytes) {
      return rows.empty() ? rows
                          : rows.subspan(split.starts[shard] * row_bytes, order.size() * row_bytes);
    };
    const auto gather = [&](std::span<const std::byte> from, std::span<std::byte> to,
                            std::size_t row_bytes) {
      if (!to.empty()) GatherRows(from, row_bytes, order, to, *threads_);
    };
    const auto scatter = [&](std::span<const std::byte> from, std::span<std::byte> to,
                             std::size_t row_bytes) {
      if (!from.empty()) ScatterRows(from, row_bytes, order, to, *threads_);
    };
    const std::span<std::byte> shard_keys = part_of(keys, key_size_);
    const std::span<std::byte> shard_ops = part_of(ops, sizeof(Op));
    const std::span<std::byte> shard_values = part_of(values, value_size_);
    const std::span<std::byte> shard_found = part_of(found, value_size_);
    const std::span<std::byte> shard_results = part_of(results, sizeof(Result));
    gather(batch.keys, shard_keys, key_size_);
    gather(std::as_bytes(batch.ops), shard_ops, sizeof(Op));
    gather(batch.values, shard_values, value_size_);
    Batch part = batch;
    part.keys = shard_keys;
    part.ops = {reinterpret_cast<const Op*>(shard_ops.data()), shard_ops.size()};
    part.values = shard_values;
    part.found = shard_found;
    part.results = {reinterpret_cast<Result*>(shard_results.data()), shard_results.size()};
    not_ok[shard - first_] = call(store(shard), part);
    scatter(shard_results, std::as_writable_bytes(batch.results), sizeof(Result));
    scatter(shard_found, batch.found, value_size_);
  });
  std::uint64_t sum = 0;
  for (const std::uint64_t count : not_ok) sum += count;
  return sum;
}

}  // namespace gpm
