#ifndef GPM_STORE_H_
#define GPM_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "gpmstore/batch.h"
#include "gpmstore/batch_calls.h"
#include "gpmstore/error.h"
#include "gpmstore/export.h"
#include "gpmstore/options.h"
#include "gpmstore/search.h"
#include "gpmstore/snapshot.h"
#include "gpmstore/stats.h"

namespace gpm {

class SnapshotFolder;
class StoreImpl;
struct DeviceView;

template <class Visit>
inline constexpr bool kSaysWhetherToGoOn = std::is_same_v<
    std::invoke_result_t<Visit&, std::span<const std::byte>, std::span<const std::byte>>, bool>;

/// A function of an item's key and value that says whether to go on.
template <class Visit>
concept StoppableVisit = kSaysWhetherToGoOn<Visit>;

/// What a batch call returns instead of a count when the results are in device memory, which it
/// does not copy: the results say.
inline constexpr std::uint64_t kNotCounted = ~std::uint64_t{0};

/// A batch in flight. Wait() completes it: makes room for what found no slot, finishes that, copies
/// results that go to host arrays, and returns when everything is durable. Destroying a ticket
/// waits too (errors are then lost). Movable. One thread at a time.
class Ticket {
 public:
  class State;
  Ticket();
  explicit Ticket(std::unique_ptr<State> state);
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;
  ~Ticket();

  /// Want of space is a Result. Only when a resize had to be given up half-way (even the larger top
  /// had no slot for some item, and the pool could not grow once more; memory ran out; the GPU
  /// failed) does this, like every later call, throw: nothing is lost, and opening the pool again,
  /// with a larger maximum if that was short, goes on with the resize.
  ///
  /// When it throws, each operation of the batch has happened or not, as after a crash, and every
  /// later Wait throws the same. (An error of RefreshCache concerns the cache alone.)
  /// @throws Error kGpu, kIo, kNoSpace, kBusy (the batch lacked room, and this thread has a device
  ///         scope open), kUnsupported (in a fork of the store's process); std::bad_alloc
  void Wait();

  /// Whether Wait would not wait for the executor. (It may still have to make room for operations
  /// that found none.) Never blocks.
  /// @throws Error(kUnsupported) in a fork of the store's process; kGpu
  bool Done();

 private:
  std::unique_ptr<State> state_;
};

/// A persistent key-value store in one pool: the owner of the pool, its executor and everything
/// volatile.
///
/// A store outlives its tickets, or was closed: those may still be waited on. After Close, when it
/// was moved from or made by default, it is empty: every call but Close, move, destruction and the
/// conversion to bool throws Error(kInvalidArgument).
///
/// Thread safety: all members except Close, move and destruction may be called from several
/// threads at once. Batches run concurrently; only resizing excludes them. Two batches that run at
/// once and touch the same key are each atomic per operation, in some order.
///
/// Errors: what a call throws beside gpm::Error is std::bad_alloc. A call that threw left the store
/// as it was, but for operations of its own batch, or unusable: then every call but Close throws,
/// with the cause, and opening the pool again finds every item (docs/FAILURES.md).
///
/// Calls that need to be alone (Reserve, ForEach, Close, and a batch that has to make room) wait
/// until the device scopes that are open are closed; new ones wait for them meanwhile. A thread
/// that has opened one that is still open gets Error(kBusy) from such a call: it would wait for
/// itself.
///
/// Processes: a store belongs to the process that opened it. In a child that this forked, Close and
/// destruction let go of it and leave the pool, which is the parent's, alone; every other call
/// throws Error(kUnsupported).
class Store : public BatchCalls<Store> {
 public:
  Store() noexcept;  ///< empty

  /// Creates a pool and opens it.
  /// @param path a file that does not exist, or "pinned:" for volatile host-pinned memory
  /// @throws Error kInvalidArgument, kExists (also: the folder of `open.snapshot` has snapshots),
  ///         kNotFound (the folder that the pool is to be in), kNoSpace, kUnsupported (executor),
  ///         kIo (also: there is none for that of its snapshots), kGpu; no file is left behind
  static Store Create(const std::string& path, const CreateOptions& create,
                      const OpenOptions& open = {});

  /// Opens a pool, recovering it first: clears half-inserted slots, goes on with an interrupted
  /// resize, removes duplicates, derives the free cells (docs/FORMAT.md). A pool that is not there
  /// is restored, where `open.snapshot.restore` says so.
  /// @throws Error kInvalidArgument (options), kNotFound, kBusy, kDamaged, kUnsupported (executor),
  ///         kNoSpace (the resize, or memory), kIo, kGpu
  static Store Open(const std::string& path, const OpenOptions& open = {});

  /// Opens the pool if it exists, and else creates it. Processes may do so at once: one creates the
  /// pool and has it, the others get kBusy while it does. Where `open.snapshot.restore` says so,
  /// and there are snapshots, a pool that is not there is restored, and not created.
  /// @param create of an existing pool, its key size, value size and attributes, if it has some,
  ///        have to be those of the pool
  /// @throws as Create and Open; Error(kInvalidArgument) for a pool of other sizes, or snapshots of
  ///         one, which then is not restored
  static Store OpenOrCreate(const std::string& path, const CreateOptions& create,
                            const OpenOptions& open = {});

  /// Creates a pool with what a chain of snapshots holds (docs/SNAPSHOTS.md), and opens it. All of
  /// the files are checked. The pool has an identity of its own, and gets its name when it is
  /// complete: an error leaves nothing, a crash a file `path`.restoring-*, which goes when a pool
  /// of this name is restored next.
  /// @param files a whole snapshot, then its increments, in the order in which they were taken
  /// @param path a file that does not exist, or "pinned:"; relative to the directory at the call
  /// @throws Error kNotFound, kDamaged (a file that is cut, damaged, of another chain, or not in
  ///         its place: it is named), and as Create
  static Store Restore(std::span<const std::string> files, const std::string& path,
                       const OpenOptions& open = {});

  /// Restore of the newest chain in a folder of OpenOptions::snapshot, as far as that is whole;
  /// else of one before: the log says what could not be used. The store goes on with that folder
  /// where `open.snapshot` names it; where that names another, this one stays as it is.
  /// @throws Error kNotFound (no such folder, or no snapshots), kDamaged (none can be used), kBusy
  ///         (a store has the folder), and as Restore
  static Store RestoreNewest(const std::string& folder, const std::string& path,
                             const OpenOptions& open = {});

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();  ///< closes; an error is lost

  explicit operator bool() const { return impl_ != nullptr; }  ///< whether it is not empty

  std::uint32_t key_size() const;                    ///< bytes
  std::uint32_t value_size() const;                  ///< bytes
  const std::vector<Attribute>& attributes() const;  ///< of the values; stays as it is

  /// Runs a batch to completion.
  /// @return how many of its operations were not kOk; kNotCounted with results in device memory
  /// @throws Error(kInvalidArgument) when array lengths do not match or an array that the
  ///         operations need is missing, or there are more than 2^31 - 1 operations, or more keys
  ///         than the store's capacity (nothing was applied), and as Ticket::Wait
  std::uint64_t Apply(const Batch& batch);

  /// Apply that gives out what is evicted, where the store has a capacity (OpenOptions::capacity).
  /// Each value is the one that its item had last.
  /// @param evicted `evicted->count` is right also when this throws later on
  /// @throws Error(kInvalidArgument) when the arrays have not room for all that has to go: nothing
  ///         was evicted or applied; and as Apply
  std::uint64_t ApplyAndEvict(const Batch& batch, Evicted* evicted);
  /// Likewise, a batch of inserts.
  std::uint64_t InsertAndEvict(std::span<const std::byte> keys, std::span<const std::byte> values,
                               std::span<Result> results, Evicted* evicted);

  /// Starts a batch on `stream`, ordered after what is already on it; the stream lives until
  /// Ticket::Wait has returned. Results in device arrays are there for later work on the stream.
  /// Operations that found no slot or no value cell, and some of those behind them in the batch,
  /// read kNoSpace until Ticket::Wait has made room and finished them. While the table grows, all
  /// of a batch's may, also finds: where an item that is to be moved finds no slot. The cpu
  /// executor runs the batch before it returns.
  /// @throws Error as Apply, and kInvalidArgument for a stream that is being captured (a CUDA
  /// graph), or of another GPU
  [[nodiscard]] Ticket ApplyAsync(const Batch& batch, Stream stream = nullptr);

  /// A batch of inserts; of the other kinds BatchCalls has calls. Many, into a store without items
  /// on executor cuda, are composed as by BulkLoad. @return and throws as Apply
  std::uint64_t Insert(std::span<const std::byte> keys, std::span<const std::byte> values,
                       std::span<Result> results);

  /// Batches of one operation, for convenience: `key` has key_size bytes, `value` value_size.
  /// @throws as Apply
  [[nodiscard]] bool Get(std::span<const std::byte> key, std::span<std::byte> value);
  /// Upsert. @return kOk or kNoSpace
  [[nodiscard]] Result Put(std::span<const std::byte> key, std::span<const std::byte> value);
  bool Delete(std::span<const std::byte> key);  ///< @return whether there was such an item

  /// Makes room for `items` items in all, at once: the levels and value cells that they need, each
  /// item that is there moved once, so that inserts up to there resize nothing (in a table that
  /// fills up badly, of one location or fewer than 8 candidates, they may all the same: nobody
  /// knows how many slots that takes). Excludes batches meanwhile.
  /// @throws Error kNoSpace when the pool can't grow so far (its maximum is looked at before
  ///         anything is done, and gaps that dropped levels left do not count; a medium may fill up
  ///         halfway, which loses nothing), kIo, kGpu, kBusy
  void Reserve(std::uint64_t items);

  /// Gives back what the items do not need: levels of the table, value cells (values are moved, in
  /// a way that survives a crash at any point), the end of the pool's file, and the directory's
  /// memory. What Reserve was last called for since the store was opened, or the pool created for
  /// since it was created, stays. Works in a few turns, which exclude batches; between two of them
  /// the batches that waited run, and others with them, for as long as the turn took. A table that
  /// fills up badly (Reserve) keeps its levels unless the pool has room for far larger ones, should
  /// smaller ones not do.
  /// @throws Error kUnsupported (a batch failed since the store was opened), kIo, kGpu, kBusy
  void Compact();

  /// Insert of many items: makes room for all of them first, as Reserve, and then inserts them in
  /// large batches. Where there is not room for all, the results say which found none. A crash
  /// meanwhile leaves any of the items.
  ///
  /// Into a store without items, executor cuda puts the table's levels together in GPU memory,
  /// which takes as much as they do, and writes them as a whole (after HashGraph, Green 2021, which
  /// builds a table by bins). Insert does so too where the table would have to grow for it. Other
  /// batches wait meanwhile.
  /// @return and throws as Apply
  std::uint64_t BulkLoad(std::span<const std::byte> keys, std::span<const std::byte> values,
                         std::span<Result> results);

  /// Writes a file with all items as they are at one instant of this call (docs/SNAPSHOTS.md),
  /// while other threads' batches go on. They are excluded for the instant alone: until running
  /// batches have ended, and the index is copied. So a batch is in the snapshot, or not, as a
  /// whole. (An operation of a DeviceView is, by itself.)
  ///
  /// What is replaced or erased later keeps its value cells until the values are copied: the pool
  /// may grow meanwhile. Where it can't, a batch that lacks cells waits for that. So do Reserve,
  /// Compact, and BulkLoad; Close waits until the file is there. One
  /// snapshot is taken at a time; another call waits.
  ///
  /// The file has its name when it is complete and synced: an error leaves nothing, a crash a file
  /// `path`.partial-*, which the next snapshot of that name removes. After an error, increments
  /// have the base that they had before (or, where the GPU failed, none). A relative path is that
  /// of the directory at the call.
  /// @param path a file that does not exist
  /// @throws Error kExists; kInvalidArgument (`base` is not the last snapshot with `track_changes`
  ///         of this store since it was opened: take a whole one, or name the `chain`; `chain` is
  ///         of another pool); kNotFound (base, chain, the folder of `path`), kDamaged (base,
  ///         chain); kNoSpace, kIo, kGpu, kBusy
  SnapshotResult Snapshot(const std::string& path, const SnapshotOptions& options = {});

  /// The items as they are at one instant of this call, for the caller to take page by page while
  /// batches go on, its own too: what a snapshot writes to a file. Batches are excluded for the
  /// instant. The keys and references of all items are in host memory until the export ends (on
  /// executor cuda in GPU memory, too), the values are not.
  ///
  /// What is replaced or erased meanwhile keeps its value cells: the pool may grow, and where it
  /// can't, a batch that lacks cells gets kNoSpace. Snapshots, Reserve, BulkLoad, Compact, Close,
  /// and another export wait for its end; by the thread that began it they are kBusy.
  /// @throws Error kInvalidArgument (the score is in no value; changes are not
  ///         tracked since that snapshot), kNotFound, kDamaged (its file), kBusy, kGpu;
  ///         std::bad_alloc
  [[nodiscard]] Exporter Export(const ExportOptions& options = {});

  /// The items whose attributes match each of the queries, as they are at one instant of this call,
  /// while other threads' batches go on: what batches that ended before it left, and nothing of
  /// those that begin after it. Batches are excluded for the instant, as by Export, and the same is
  /// in host memory until it ends; the values of all items are then read once, for all queries. It
  /// takes turns with snapshots, exports and other searches. Until it ends, Reserve, Compact,
  /// Close, and a batch that lacks cells wait for it. A search that finds all in an index
  /// (OpenOptions::search_index_bytes) does nothing of this, but that batches are excluded while
  /// values are found, if any are wanted; one that brings an index up to date does it for the items
  /// that have changed alone.
  /// @throws Error kInvalidArgument (a condition is on no attribute of the pool; values without
  ///         keys), kBusy (the calling thread has an export, or a device scope, open), kGpu;
  ///         std::bad_alloc
  SearchResult Search(std::span<const Query> queries, const SearchOptions& options = {});
  /// The same, in arrays of the caller's. Those that are too small are no error: `matches` says.
  /// @param limit as SearchOptions has it
  /// @throws also Error(kInvalidArgument) (lengths of arrays, or device memory)
  void Search(std::span<const Query> queries, std::uint64_t limit, Matches* matches);
  /// The same for many queries of one shape. On executor cuda each array may be in the memory of
  /// its device, too: those are read and written in the order of `stream`, and the call returns
  /// when they are written. With an index the GPU answers, and neither queries nor rows pass
  /// through host memory where all arrays are in device memory. What `stream` has is waited for
  /// first, unless it is null and all arrays are in host memory.
  /// @throws also Error(kInvalidArgument) (no attribute, or more than kMaxAttributes; a stream as
  ///         ApplyAsync refuses it)
  void Search(const QueryArray& queries, std::uint64_t limit, Matches* matches,
              Stream stream = nullptr);

  /// Erases what a query matches: an item if it matches at one instant of this call, and still does
  /// when it is erased. So every item goes that matches throughout, and none that does not match
  /// when it goes, though other batches change items meanwhile. The items are erased some thousand
  /// at a time, for each of which batches are excluded. An error, or a crash, leaves some erased.
  /// @return how many were erased @throws as Search and Apply
  std::uint64_t EraseWhere(const Query& query);

  /// Changes the values of what a query matches: of an item if it matches at one instant of this
  /// call, and still does when it is changed; which items those are is as for EraseWhere, and so is
  /// what an error or a crash leaves. Where the pool can't grow, those that found no space stay as
  /// they were, and the others are changed.
  /// @param change change(key, value) edits an item's value in place (key_size and value_size bytes
  ///        in host memory, valid during the call), on the calling thread and with batches
  ///        excluded: it must not call the store. What it throws leaves the items that it was not
  ///        yet called for, and up to some thousand others, as they were
  /// @return how many were changed @throws as Search and Apply; kNoSpace (some found none)
  using ValueEditor =
      std::function<void(std::span<const std::byte> key, std::span<std::byte> value)>;
  std::uint64_t UpdateWhere(const Query& query, const ValueEditor& change);
  /// The same, some thousand items at a time.
  /// @param change change(keys, values) edits n rows of value_size bytes in place, those of n >= 1
  ///        keys: contiguous, in host memory, in no order. What it throws leaves those n as they
  ///        were, and what it was not yet called for
  using RowsEditor =
      std::function<void(std::span<const std::byte> keys, std::span<std::byte> values)>;
  std::uint64_t UpdateRowsWhere(const Query& query, const RowsEditor& change);

  /// Refreshes the cache with the buckets that are hot now, while batches go on; also done by
  /// itself, as CacheOptions::refresh_interval says. Without a cache, nothing. On executor cpu, the
  /// call itself carries it out. @throws Error(kGpu)
  [[nodiscard]] Ticket RefreshCache();

  /// Calls `visit(key, value)` for every item, in no order, on the calling thread, with batches
  /// excluded: `visit` must not call the store, which would wait for itself. The spans (key_size
  /// and value_size bytes, host memory) are valid during the call. @throws Error(kBusy)
  using Visitor =
      std::function<void(std::span<const std::byte> key, std::span<const std::byte> value)>;
  void ForEach(const Visitor& visit);
  /// With a visitor that returns bool: until it returns false. @return whether it saw all items
  using StoppableVisitor =
      std::function<bool(std::span<const std::byte> key, std::span<const std::byte> value)>;
  template <StoppableVisit Visit>
  bool ForEach(Visit&& visit) {
    return ForEachUntil(std::ref(visit));
  }

  StoreStats Stats() const;

  /// Completes running batches (tickets keep their outcome), marks the pool clean, unmaps it. The
  /// store can't be used after, also when this throws, but for kBusy. A pool of which not all was
  /// done is not marked clean, and recovered when it is opened next. Takes a last snapshot, where
  /// OpenOptions::snapshot says so; if that fails, the log says it.
  /// @throws Error kIo, kGpu, kNoSpace, kBusy (nothing was done); std::bad_alloc
  void Close();

  std::shared_ptr<StoreImpl> impl() { return Opened(); }  ///< for DeviceScope

 private:
  explicit Store(std::shared_ptr<StoreImpl> impl);
  const std::shared_ptr<StoreImpl>& Opened() const;
  bool ForEachUntil(const StoppableVisitor& visit);
  static Store RestoreFrom(std::unique_ptr<SnapshotFolder> folder, const std::string& path,
                           const OpenOptions& open, const CreateOptions* as_created = nullptr);
  std::shared_ptr<StoreImpl> impl_;
};

}  // namespace gpm

#endif  // GPM_STORE_H_
