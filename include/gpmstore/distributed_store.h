#ifndef GPM_DISTRIBUTED_STORE_H_
#define GPM_DISTRIBUTED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "gpmstore/options.h"
#include "gpmstore/search.h"
#include "gpmstore/sharded_store.h"
#include "gpmstore/snapshot.h"
#include "gpmstore/stats.h"
#include "gpmstore/store.h"

namespace gpm {

/// What a rank's collective batches took so far; of one rank alone, all is `local_seconds`. Of
/// batches that are in flight at once, times are added, though they overlap.
struct ExchangeStats {
  double split_seconds = 0;   ///< agreeing on the batch, and dividing this rank's part by owner
  double send_seconds = 0;    ///< bringing rows together, and all to all, until the owner has them
  double local_seconds = 0;   ///< the owner's batch, and waiting for its turn, and for the others
  double return_seconds = 0;  ///< the way back
  std::uint64_t asked = 0;    ///< operations of this rank's parts
  std::uint64_t sent = 0;     ///< of those, to any rank: finds of one key are sent once
  std::uint64_t carried_out = 0;  ///< operations that this rank carried out, for all

  ExchangeStats& operator+=(const ExchangeStats& other) {
    split_seconds += other.split_seconds;
    send_seconds += other.send_seconds;
    local_seconds += other.local_seconds;
    return_seconds += other.return_seconds;
    asked += other.asked;
    sent += other.sent;
    carried_out += other.carried_out;
    return *this;
  }
};

/// One rank's side of a store over several pools that several processes have open together: each
/// rank has some of the shards, and a part of every batch (docs/SHARDS.md). The folder is that of a
/// ShardedStore, which can open it too, when nobody else has it, as can other numbers of ranks.
///
/// All parts of a batch are one batch: operations on one key take effect in the order of the ranks,
/// and of one rank's in the order of its part. When the call returns, on any rank, all operations
/// of all parts are durable.
///
/// Calls that are *collective* are made by all ranks, in the same order. (Where they are not the
/// same, all throw kInvalidArgument, and nothing was done; but of a batch on one rank beside what
/// is no batch on another it may be the exchange's timeout that tells.) When one of them throws, or
/// a rank is gone, they throw on all (Exchange); then each operation of the batch has happened or
/// not. After an error of the exchange only Close is of use; what the ranks have is sound, and the
/// store can be opened again.
///
/// Options: those of OpenOptions that ShardedStore divides are for this rank's shards together. For
/// one process a GPU, each rank gives its own OpenOptions::device and no ShardOptions::devices; or
/// all give the same devices, one for each shard of all ranks, which also says where Create has
/// pools. A rank divides batches in GPU memory on its first shard's device.
///
/// Memory: arrays of batches are host memory. Where the exchange takes GPU memory and all ranks
/// have executor cuda, each array of each part may be in that of any GPU; one is enough for all
/// ranks to carry out the batch in their GPUs' memory. Results there are not counted (kNotCounted).
///
/// How long a rank may take for its part of a call that is not a batch (to open, restore, reserve,
/// compact, change, write a snapshot) beside the others is up to the exchange's timeout.
///
/// The log is told when a call, or the wait for a ticket, has let go of all locks. It names shards,
/// as errors do, by their numbers among those of all ranks.
///
/// Thread safety: one thread at a time on each rank, but for tickets. Threads of the store's use
/// the exchange, and its twins, while batches are in flight, and no other then.
///
/// Processes: as Store's.
class DistributedStore {
 public:
  DistributedStore() noexcept;  ///< empty

  /// Collective: rank 0 creates the store, and all open it.
  /// @param folder that all ranks reach by this name
  /// @param exchange belongs to the store from now on; not null, as below: kInvalidArgument
  /// @throws Error as ShardedStore::Create and Open, on all ranks
  static DistributedStore Create(const std::string& folder, std::unique_ptr<Exchange> exchange,
                                 const CreateOptions& create, const ShardOptions& shards,
                                 const OpenOptions& open = {});
  /// Collective. @throws Error as ShardedStore::Open, on all ranks; kInvalidArgument (there are
  /// more ranks than shards)
  static DistributedStore Open(const std::string& folder, std::unique_ptr<Exchange> exchange,
                               const OpenOptions& open = {}, const ShardOptions& shards = {});

  /// Collective: Open, where rank 0 finds a store, and else Create. @throws as those
  static DistributedStore OpenOrCreate(const std::string& folder,
                                       std::unique_ptr<Exchange> exchange,
                                       const CreateOptions& create, const ShardOptions& shards,
                                       const OpenOptions& open = {});

  /// Collective: rank 0 makes a store of a snapshot (ShardedStore::Restore), for which the others
  /// wait, and all open it.
  /// @throws as those, on all ranks; kIo where that takes longer than the exchange's timeout: the
  ///         store is there then, to be opened
  static DistributedStore Restore(const std::string& snapshot, const std::string& folder,
                                  std::unique_ptr<Exchange> exchange, const OpenOptions& open = {},
                                  const ShardOptions& shards = {});

  DistributedStore(DistributedStore&&) noexcept;
  DistributedStore& operator=(DistributedStore&&) noexcept;
  ~DistributedStore();  ///< closes; an error is lost

  explicit operator bool() const { return impl_ != nullptr; }  ///< whether it is not empty

  std::uint32_t rank() const;
  std::uint32_t ranks() const;
  std::uint32_t shards() const;                      ///< of all ranks
  std::uint32_t key_size() const;                    ///< bytes
  std::uint32_t value_size() const;                  ///< bytes
  const std::vector<Attribute>& attributes() const;  ///< of the values

  /// Collective. Parts may be of different kinds, and may be empty; those that say of which element
  /// values are, or what initial values are, say the same. Of a batch that only finds, each rank
  /// sends a key once, where many come several times.
  /// @param mine this rank's part
  /// @return how many operations of `mine` were not kOk, as Store::Apply
  /// @throws Error kInvalidArgument (a part, or parts that do not fit together) and kUnsupported
  ///         (an array in GPU memory, which some rank can't take): nothing was applied; kIo
  ///         (Exchange), and as Store::Apply
  std::uint64_t Apply(const Batch& mine);
  /// Collective: Apply, by threads of this rank's. What is called later comes behind it, on all
  /// ranks; another rank may take part by Apply. Where the ranks have more than one exchange
  /// (Exchange::Twin), six batches are under way at once: one is divided and sent, or its answers
  /// are, while another one is carried out; only batches that find are carried out at once. Else
  /// they are one after the other. One more may have begun, and the next one waits. The ticket
  /// throws what Apply would, and may be waited for by any thread. Where the exchange takes one
  /// thread alone (Exchange::AnyThread), the batch has ended when this returns.
  /// @param mine its arrays stay as they are until the ticket was waited for
  /// @throws std::bad_alloc: this rank has left the exchange
  [[nodiscard]] Ticket ApplyAsync(const Batch& mine);
  /// Collective: Store::BulkLoad of all parts. @return and throws as Apply
  std::uint64_t BulkLoad(std::span<const std::byte> keys, std::span<const std::byte> values,
                         std::span<Result> results);
  /// Collective: ShardedStore::Reserve of so many items on all ranks together. @throws as that
  void Reserve(std::uint64_t items);
  /// Collective: Store::Compact of all shards. @throws as that
  void Compact();

  /// Collective: Store::Search of all shards, for each rank's own queries, of which it may have
  /// none. It sees what the collective calls before it left, as no batch runs meanwhile.
  /// @return for `mine`, as ShardedStore::Search
  /// @throws Error kInvalidArgument (a query of some rank), kIo (Exchange), and as Store::Search
  SearchResult Search(std::span<const Query> mine, const SearchOptions& options = {});
  /// Collective: Store::EraseWhere of all shards. @param query the same on all ranks
  /// @return items that were erased, on all ranks together
  /// @throws Error kInvalidArgument (a query; not the same on all ranks): nothing was erased; kIo
  ///         (Exchange), and as Store::EraseWhere: then some are
  std::uint64_t EraseWhere(const Query& query);
  /// Collective: Store::UpdateRowsWhere of all shards. @param query the same on all ranks
  /// @param change is called for the items of this rank's shards, and must not call the store
  /// @return items that were changed, on all ranks together @throws as EraseWhere; what `change` of
  ///         this rank does
  std::uint64_t UpdateRowsWhere(const Query& query, const Store::RowsEditor& change);
  /// The same, of one item at a time.
  std::uint64_t UpdateWhere(const Query& query, const Store::ValueEditor& change);

  /// Collective: ShardedStore::Snapshot, each rank of its shards.
  /// @param folder that does not exist, and that all ranks reach by this name, which is the same on
  ///        all. After kIo of the exchange the snapshot may be there, whole.
  /// @return sums over all ranks; seconds of the rank that took longest @throws as that, on all
  /// ranks
  SnapshotResult Snapshot(const std::string& folder);

  /// Of this rank's shards, behind batches in flight.
  StoreStats Stats() const;
  ExchangeStats Exchanged() const;
  /// Calls `visit` for the items of this rank's shards. Not beside a collective call.
  void ForEach(const Store::Visitor& visit);
  /// With a visitor that returns bool: until it returns false. @return whether it saw all of them
  template <StoppableVisit Visit>
  bool ForEach(Visit&& visit) {
    return ForEachUntil(std::ref(visit));
  }

  /// Ends batches in flight, closes this rank's shards, and leaves the exchange: what the others
  /// call then throws.
  /// @throws as Store::Close
  void Close();

 private:
  class Impl;
  /// @param make what rank 0 makes of the exchange
  template <class Make>
  static DistributedStore MakeAndOpen(const std::string& folder, std::unique_ptr<Exchange> exchange,
                                      const OpenOptions& open, const ShardOptions& shards,
                                      const Make& make);
  explicit DistributedStore(std::unique_ptr<Impl> impl);
  Impl& Opened() const;
  bool ForEachUntil(const Store::StoppableVisitor& visit);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpm

#endif  // GPM_DISTRIBUTED_STORE_H_
