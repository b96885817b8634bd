#ifndef GPM_SHARD_SHARD_SET_H_
#define GPM_SHARD_SHARD_SET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/home_process.h"
#include "gpmstore/store.h"
#include "pm/thread_pool.h"
#include "shard/partition.h"
#include "shard/splitter_pool.h"

namespace gpm {

/// @param why a batch with an array in GPU memory can't be carried out
/// @throws Error(kUnsupported) when an array is in GPU memory
void RequireHostMemory(const Batch& batch, const char* why);

/// How many operations were not kOk; kNotCounted in GPU memory.
std::uint64_t CountNotOkOf(std::span<const Result> results);

/// Calls of a shard's store (ShardSet::Call).
std::uint64_t ApplyTo(Store& store, const Batch& batch, Stream stream);
std::uint64_t InsertInto(Store& store, const Batch& batch, Stream stream);
std::uint64_t BulkLoadInto(Store& store, const Batch& batch, Stream stream);

/// The open pools of a store's shards, or of some, which carry out a batch together.
///
/// Thread safety: any thread, but for destruction.
///
/// Invariants:
///  1. The operations of a batch on one key go to one shard, in one batch of its own, in their
///     order: so they are sequential per key, as one store's are.
///  2. A call returns or throws when all shards have ended their part.
class ShardSet {
 public:
  /// Opens or creates all pools, at once.
  /// @param first the first of these shards @param paths of their pools, for messages and `make`
  /// @param threads that work on a batch outside the shards, at least; as many as shards in any
  /// case
  /// @throws what `make` threw for one, when those of the others are closed
  ShardSet(const Partition& partition, std::uint32_t first, std::vector<std::string> paths,
           unsigned threads,
           const std::function<Store(std::uint32_t shard, const std::string& path)>& make);
  ~ShardSet();  ///< closes; errors are lost
  ShardSet(const ShardSet&) = delete;
  ShardSet& operator=(const ShardSet&) = delete;

  const Partition& partition() const { return partition_; }
  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }
  std::uint32_t first() const { return first_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(stores_.size()); }
  /// REQUIRES: it is one of these.
  Store& store(std::uint32_t shard) { return stores_[shard - first_]; }
  const Store& store(std::uint32_t shard) const { return stores_[shard - first_]; }
  const HomeProcess& process() const { return process_; }

  /// The CUDA device of a shard; -1 of executor cpu, which all or none have.
  int device(std::uint32_t shard) const { return devices_[shard - first_]; }

  /// What a shard does with its part of a batch: such as Store::Apply, behind what is on a stream
  /// of its device, if that is not null. @return as that
  using Call = std::uint64_t (*)(Store& store, const Batch& batch, Stream stream);
  /// REQUIRES: all keys are of these shards.
  /// @param batch arrays in host memory; with executor cuda, each in that or any GPU's
  /// @return operations that were not kOk; kNotCounted with results in GPU memory
  /// @throws Error(kInvalidArgument), with nothing applied; as `call`, naming the shard: the others
  ///         have carried out their parts, and given back results
  std::uint64_t Run(const Batch& batch, Call call);

  // What Run consists of, for who does it in steps (DividedBatch).

  /// @throws Error(kInvalidArgument), and kUnsupported for arrays that the shards can't reach
  void Validate(const Batch& batch) const;
  SplitterPool& splitters() { return *splitters_; }

  /// The shard of a key. REQUIRES: it has key_size bytes.
  std::uint32_t ShardOf(std::span<const std::byte> key) const {
    return partition_.Of(key.data(), key_size_);
  }
  /// @throws Error(kInvalidArgument) when a key has another size
  void RequireKeySize(std::span<const std::byte> key) const;

  /// `work(shard)` for all of these shards at once. @throws what one threw, when all have ended,
  /// naming it
  void ForAll(const std::function<void(std::uint32_t shard)>& work);
  /// `work()` of one shard, whose errors name it.
  template <class Work>
  auto InShard(std::uint32_t shard, const Work& work) {
    try {
      return work(store(shard));
    } catch (const Error&) {
      ThrowOf(shard, std::current_exception());
    }
  }
  /// The sum of what `work` returns for each shard, for all of them at once. @throws as ForAll
  template <class Work>
  std::uint64_t SumAtOnce(const Work& work) {
    std::atomic<std::uint64_t> sum{0};
    ForAll([&](std::uint32_t shard) { sum += work(store(shard)); });
    return sum;
  }
  /// The same, one after the other.
  template <class Work>
  std::uint64_t SumInTurn(const Work& work) {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < count(); ++i) sum += InShard(first_ + i, work);
    return sum;
  }

 private:
  [[noreturn]] void ThrowOf(std::uint32_t shard, const std::exception_ptr& error) const;

  const Partition partition_;
  const std::uint32_t first_;
  const std::vector<std::string> paths_;
  const HomeProcess process_;
  std::unique_ptr<ThreadPool> threads_;
  std::vector<Store> stores_;
  std::vector<int> devices_;
  std::uint32_t key_size_ = 0;
  std::uint32_t value_size_ = 0;
  std::unique_ptr<SplitterPool> splitters_;
};

}  // namespace gpm

#endif  // GPM_SHARD_SHARD_SET_H_
