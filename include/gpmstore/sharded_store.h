#ifndef GPM_SHARDED_STORE_H_
#define GPM_SHARDED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/batch_calls.h"
#include "gpmstore/error.h"
#include "gpmstore/options.h"
#include "gpmstore/stats.h"
#include "gpmstore/store.h"

namespace gpm {

/// Over how many pools a store is spread, and where each one's batches run.
struct ShardOptions {
  /// 1 to 1024. To create a store it has to be given; of one that exists, 0 takes as many as it
  /// has, and any other number is refused (ShardedStore::Reshard).
  std::uint32_t shards = 0;
  /// Executor cuda: shard i uses device devices[i mod their number]. Empty: OpenOptions::device.
  /// Of a DistributedStore, i counts the shards of all ranks: a device for each shard, such as
  /// {0, 0, 1, 1}, gives two ranks of two shards a GPU each. By default its pool takes memory next
  /// to that device (OpenOptions::memory_node), also when executor cpu creates or fills it.
  std::vector<int> devices{};
};

/// A store over several pools, the *shards*, in one folder (docs/SHARDS.md): a key is in the pool
/// that a hash of it says. The calls, batches and promises are Store's. A batch is divided by a
/// stable multisplit (WarpDrive, Jünger et al. 2018, section V), all shards work at once, and
/// results and values come back to their places. So it is sequential per key, and durable when the
/// call returns. With one shard it is passed on as it is.
///
/// Of Store's calls, there are none yet that use a device scope, evict, or keep snapshots by a
/// schedule.
///
/// Options: OpenOptions::threads, max_bytes, search_index_bytes and cache.bytes are for all shards
/// together, and each gets its part (of `threads` one at least; of cache.bytes, of those on its
/// device). A capacity, and a snapshot schedule, are refused: what is evicted would not follow from
/// the batches alone, and snapshots of shards would not be of one instant.
/// CreateOptions::initial_capacity is for all, too: each gets its part, and four standard
/// deviations more, since a hash does not divide evenly.
///
/// The log is told when a call, or the wait for a ticket, has let go of all locks (with one shard,
/// of a ticket, at the next call): it may call the store.
///
/// Memory: each array of a batch is in host memory or, with executor cuda, in any GPU's; with one
/// shard, where Store takes it. With several, a batch is copied in and out by way of memory that
/// the store keeps: as much as the arrays of the largest batch, for each thread that called at
/// once. In host memory it takes 12 bytes for each operation more meanwhile, in GPU memory some 20.
/// One array in GPU memory is enough for the batch to be divided there; results there are not
/// counted (kNotCounted). What the default stream of that device does is waited for, as by
/// Store::Apply.
///
/// Errors: as Store's; they name the shard. When a call throws, each shard is as Store has it, as
/// it was or unusable, and the others have done their part. Calls that need an unusable shard
/// throw; calls whose keys are in others do not (docs/FAILURES.md).
///
/// Thread safety, processes, being empty: as Store's.
class ShardedStore : public BatchCalls<ShardedStore> {
 public:
  ShardedStore() noexcept;  ///< empty

  /// Creates pools and then the manifest that names them. A crash before the end leaves no store,
  /// and what it leaves is removed when this is called again.
  /// @param folder made if it is not there, but none above it; else without a store
  /// @throws Error kInvalidArgument, kExists, kBusy, and as Store::Create; nothing is left behind
  static ShardedStore Create(const std::string& folder, const CreateOptions& create,
                             const ShardOptions& shards, const OpenOptions& open = {});

  /// Opens all pools, at once, and removes what an interrupted Reshard left.
  /// @throws Error kNotFound (no manifest, or a pool is missing), kInvalidArgument (options;
  /// another
  ///         number of shards), kBusy, kDamaged (the manifest; a pool that is not the one it
  ///         names), and as Store::Open
  static ShardedStore Open(const std::string& folder, const OpenOptions& open = {},
                           const ShardOptions& shards = {});

  /// Opens the store if there is one, and else creates it. @throws as Create and Open;
  /// kInvalidArgument for one of other sizes
  static ShardedStore OpenOrCreate(const std::string& folder, const CreateOptions& create,
                                   const ShardOptions& shards, const OpenOptions& open = {});

  /// Divides a store that nobody has open anew: inserts all items into new pools beside the old
  /// ones, syncs them, makes the manifest name those, and removes the old ones. A crash at any
  /// point leaves the old store or the new one; what is left over is removed by the next call of
  /// this or Open. Needs room for both. The new pools have the first old one's owner and
  /// permissions. Where there are so many shards already, it does nothing.
  /// @throws Error kInvalidArgument, kNoSpace, kDamaged (also for a key that several shards have),
  ///         and as Open; then there is the old store, or (where the folder could not be synced)
  ///         the new one
  static void Reshard(const std::string& folder, const ShardOptions& shards,
                      const OpenOptions& open = {});

  ShardedStore(ShardedStore&&) noexcept;
  ShardedStore& operator=(ShardedStore&&) noexcept;
  ~ShardedStore();  ///< closes; an error is lost

  explicit operator bool() const { return impl_ != nullptr; }  ///< whether it is not empty

  std::uint32_t key_size() const;                    ///< bytes
  std::uint32_t value_size() const;                  ///< bytes
  const std::vector<Attribute>& attributes() const;  ///< of the values
  std::uint32_t shards() const;
  /// The shard that a key of key_size bytes belongs to. @throws Error(kInvalidArgument) of another
  /// size
  std::uint32_t ShardOf(std::span<const std::byte> key) const;

  // As Store's.

  std::uint64_t Apply(const Batch& batch);
  /// Starts a batch: divides it, behind what is on the default stream of its device, and leaves the
  /// rest to a thread of the store, which carries out such batches in the order in which they were
  /// started. So one is divided while another is carried out; a third call waits. Every other call
  /// that begins later comes behind them, and sees what they did. The arrays stay as they are until
  /// Ticket::Wait, which throws what Apply would; answers are there when that has returned. With
  /// one shard it is Store::ApplyAsync.
  /// @throws as Apply where nothing was applied: kInvalidArgument, kUnsupported; std::bad_alloc
  [[nodiscard]] Ticket ApplyAsync(const Batch& batch);
  std::uint64_t Insert(std::span<const std::byte> keys, std::span<const std::byte> values,
                       std::span<Result> results);
  std::uint64_t BulkLoad(std::span<const std::byte> keys, std::span<const std::byte> values,
                         std::span<Result> results);
  [[nodiscard]] bool Get(std::span<const std::byte> key, std::span<std::byte> value);
  [[nodiscard]] Result Put(std::span<const std::byte> key, std::span<const std::byte> value);
  bool Delete(std::span<const std::byte> key);

  /// Store::Reserve of each shard's part of so many items, as of an initial capacity.
  void Reserve(std::uint64_t items);
  void Compact();  ///< Store::Compact of all shards, at once

  /// Calls `visit` for every item, one shard after the other, with batches excluded from all.
  void ForEach(const Store::Visitor& visit);
  /// With a visitor that returns bool: until it returns false. @return whether it saw all items
  template <StoppableVisit Visit>
  bool ForEach(Visit&& visit) {
    return ForEachUntil(std::ref(visit));
  }

  /// Store::Search, at once in all shards: each is seen as at an instant of its own within the
  /// call, so that of a batch beside it the part in one shard may be seen, and that in another not.
  /// Rows and their order are those of one store with the same items.
  SearchResult Search(std::span<const Query> queries, const SearchOptions& options = {});
  /// Store::EraseWhere of all shards, at once. @return items that were erased. When it throws, some
  /// of them are.
  std::uint64_t EraseWhere(const Query& query);

  /// Store::UpdateWhere, and UpdateRowsWhere, of one shard after the other, on the calling thread.
  /// Batches are excluded from the shard whose items are edited; `change` must not call the store.
  /// @return items that were changed. When it throws, those of later shards are as they were.
  std::uint64_t UpdateWhere(const Query& query, const Store::ValueEditor& change);
  std::uint64_t UpdateRowsWhere(const Query& query, const Store::RowsEditor& change);

  /// Store::Export, of one instant in all shards, for which batches are excluded; the items of one
  /// shard come behind those of another.
  /// @throws also Error(kInvalidArgument) with ExportOptions::changed_since
  [[nodiscard]] Exporter Export(const ExportOptions& options = {});

  /// Writes a snapshot of each shard to a new folder, with a manifest; batches wait until all are
  /// written, so that it is of one instant.
  /// @param folder that does not exist @throws Error kExists, kIo, kNoSpace, and as Store::Snapshot
  /// @return sums over the shards; pause_seconds is `seconds`
  SnapshotResult Snapshot(const std::string& folder);

  /// Creates a store, with as many shards, of a folder that Snapshot wrote.
  /// @throws Error kInvalidArgument (another number of shards), kNotFound, kDamaged (a file, which
  ///         is named), and as Create
  static ShardedStore Restore(const std::string& snapshot, const std::string& folder,
                              const OpenOptions& open = {}, const ShardOptions& shards = {});

  /// Sums over the shards; of times that pass at once, such as recovery's, the longest. What is the
  /// same for all (sizes, geometry, executor, medium) is that of the first.
  StoreStats Stats() const;
  StoreStats ShardStats(std::uint32_t shard) const;  ///< Store::Stats of one. REQUIRES: < shards()

  /// Store::Close of all shards. @throws what one threw, when all are closed
  void Close();

 private:
  class Impl;
  explicit ShardedStore(std::unique_ptr<Impl> impl);
  Impl& Opened() const;
  bool ForEachUntil(const Store::StoppableVisitor& visit);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpm

#endif  // GPM_SHARDED_STORE_H_
