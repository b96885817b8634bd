#ifndef GPM_ENGINE_STORE_IMPL_H_
#define GPM_ENGINE_STORE_IMPL_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/admission.h"
#include "engine/bound.h"
#include "engine/cache_manager.h"
#include "engine/draining.h"
#include "engine/executor.h"
#include "engine/found_rows.h"
#include "engine/health.h"
#include "engine/home_process.h"
#include "engine/kept_index.h"
#include "engine/log.h"
#include "engine/match_lists.h"
#include "engine/resizer.h"
#include "engine/snapshot.h"
#include "engine/snapshot_keeper.h"
#include "engine/space.h"
#include "gpmstore/store.h"
#include "pm/mutex.h"
#include "pm/pool.h"
#include "pm/thread_pool.h"

namespace gpm {

class HeldItems;
class QueryPlan;

/// A store: a pool, an executor, and who may use them when. It leads a batch from its admission to
/// its end, and makes room where that lacks.
///
/// Thread safety: as Store's.
class StoreImpl {
 public:
  using InFlight = gpm::InFlight;
  using NextPart = std::function<std::optional<Batch>()>;

  /// @param tracer carries out every access to the pool, for tests; outlives the store
  static std::unique_ptr<StoreImpl> Create(const std::string& path, const CreateOptions& create,
                                           const OpenOptions& open, PmTracer* tracer = nullptr);
  static std::unique_ptr<StoreImpl> Open(const std::string& path, const OpenOptions& open,
                                         PmTracer* tracer = nullptr);
  ~StoreImpl();
  /// Destroys a store; in a child of the process that opened it, lets go of it without touching the
  /// pool, its lock, threads and devices, which are the parent's.
  static void Destroy(StoreImpl* store) noexcept;

  const HomeProcess& process() const { return process_; }
  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }
  const std::vector<Attribute>& attributes() const { return attributes_; }

  /// @param evicted where the batch puts what it evicts, or null
  std::shared_ptr<InFlight> Start(const Batch& batch, Stream stream,
                                  Answers answers = Answers::kOnStream, Evicted* evicted = nullptr);
  /// Starts a prepared batch. @param watch is told of its end, or null
  std::shared_ptr<InFlight> StartTask(std::shared_ptr<BatchTask> task, Demand demand,
                                      std::unique_ptr<BatchWatch> watch = nullptr);
  /// Starts what a DeviceScope makes of the user's kernels.
  std::shared_ptr<InFlight> StartScope(std::shared_ptr<BatchTask> task, const Demand& demand);
  void Wait(const std::shared_ptr<InFlight>& in_flight);  ///< Ticket::Wait
  /// The same within another call, which has more to do with the store: its log, which may close
  /// that, is told later, and the table is not compacted.
  void Await(const std::shared_ptr<InFlight>& in_flight);
  bool Done(InFlight& in_flight) { return admission_.IsDone(in_flight); }
  /// @param keeps whether Compact leaves room for so many items from then on
  void Reserve(std::uint64_t items, bool keeps = false);
  /// What was done so far was to restore the pool: Compact leaves no room for that, and nobody
  /// counts its operations.
  void EndRestoring();
  void Compact();
  /// Whether it pays to begin with Compose: a store without items, and many inserts.
  bool MayCompose(std::uint64_t inserts);
  /// Carries out inserts into a store without items, if the executor composes levels for them.
  /// @param results_on_host set to whether a host can read the results
  /// @return false: nothing was done
  bool Compose(const Batch& inserts, bool* results_on_host);
  /// The same of inserts that come part by part: cells are added as parts need them, while room is
  /// made ready for those that follow. What finds no slot is kNoSpace, and not in the store.
  /// @param inserts in all, at most
  /// @param next the next part, or none. It may throw: none of them is in the store then. A part
  ///        has ended, and its results are in host memory, when `next` is called again
  /// @throws Error(kNoSpace), kGpu, what `next` throws; no item is in the store then
  bool ComposeParts(std::uint64_t inserts, const NextPart& next);
  void ForEach(const Store::Visitor& visit);
  /// @return false when `visit` stopped it
  bool ForEachUntil(const Store::StoppableVisitor& visit);
  SearchResult Search(std::span<const Query> queries, const SearchOptions& options);
  void Search(std::span<const Query> queries, std::uint64_t limit, Matches* matches);
  void Search(const QueryArray& queries, std::uint64_t limit, Matches* matches, Stream stream);
  std::uint64_t EraseWhere(const Query& query);
  std::uint64_t UpdateRowsWhere(const Query& query, const Store::RowsEditor& change);
  SnapshotResult Snapshot(const std::string& path, const SnapshotOptions& options);
  /// The same, for who holds a lock: what there is to be logged, the caller tells later.
  SnapshotResult SnapshotUntold(const std::string& path, const SnapshotOptions& options);
  /// Takes snapshots by a schedule from now on, in a folder that is empty or this pool's.
  /// @param changed whether the store may hold what the folder does not; else it is looked at
  /// @throws Error(kInvalidArgument) the folder is another pool's; kIo, kNoSpace
  void KeepSnapshots(std::unique_ptr<SnapshotFolder> folder, const SnapshotSchedule& schedule,
                     std::optional<bool> changed = {});
  /// The same of a pool that was just made, and goes with the store if that fails.
  void KeepSnapshotsOfNew(std::unique_ptr<SnapshotFolder> folder, const SnapshotSchedule& schedule,
                          std::optional<bool> changed = {});
  SnapshotKeeper* keeper() { return keeper_.get(); }  ///< or null
  SnapshotId PoolId() const;
  /// Syncs the pool's file, and gives it another name, where there is none. @throws as SyncFile,
  /// GiveName; the file may have no name then
  void GiveName(const std::string& path);
  /// Keeps to a capacity from now on. REQUIRES: no batch was started. @throws as CapacityInItems
  void SetCapacity(const Capacity& given);
  /// Items that the store may have.
  std::uint64_t most_items() const;
  StoreStats Stats();
  /// Items that there are. Where a batch has failed since they were counted, reads all slots, and
  /// waits to be alone; not by who has a scope open. REQUIRES: the caller is not alone.
  /// @throws Error(kGpu), std::bad_alloc
  std::uint64_t ItemsNow();
  /// Waits until no room is being made ready, for tests.
  void AwaitReadyRoom();
  /// TableMaintenance::CountMisplacedCells, when all batches have ended.
  std::uint64_t CountMisplacedCells();
  /// Asks for a refresh of the cache. @return what AwaitCacheRefresh waits for
  std::uint64_t RefreshCache();
  void AwaitCacheRefresh(std::uint64_t refresh);
  bool CacheRefreshDone(std::uint64_t refresh);
  /// Leaves tickets usable, nothing else; also when it throws, but for Alone's error.
  void Close();
  bool closed() const { return pool_ == nullptr; }

  Executor& executor() { return *executor_; }
  /// Where the pool is mapped, and what it grows into. REQUIRES: not closed.
  std::span<const std::byte> memory() const {
    return {pool_->base(), pool_->mapping().max_bytes()};
  }

 private:
  StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open);
  void Recover();
  /// CacheManager::Advance with kWait. @throws as Health::Check
  void AdvanceRefresh();
  /// Tells the log of refreshes of the cache that have ended since the last call.
  void LogRefreshes();
  /// What a batch asks for, as far as the host can see it.
  Demand DemandOf(const Batch& batch) const;

  // Of a store with a capacity (engine/evict.cc).

  /// Makes sure that what a batch adds leaves no more than the capacity, by evicting others.
  /// REQUIRES: the caller has the turn (Bound::Turn), and has not begun the batch.
  /// @param batch null: a scope, of which nobody knows the keys
  /// @param adds `most`; what is known beside is added @return whether it evicted any
  bool MakeWay(const Batch* batch, Stream stream, Evicted* evicted, Bound::MayAdd* adds);
  /// Whether nothing has to go for a batch, whatever those in flight still do. If so, sets what is
  /// known of what it adds. REQUIRES: as MakeWay
  bool FitsBeside(const Batch& batch, Stream stream, Bound::MayAdd* adds);
  /// Looks which keys of a batch there are. REQUIRES: as MakeWay
  std::unique_ptr<KeysOfBatch> LookAt(const Batch& batch, Stream stream);
  void TakeTurn(std::optional<Bound::Turn>* turn);
  /// The keys of the items that go first, at most so many. @param kept stay; null: none
  std::vector<std::byte> ChooseVictims(std::uint64_t wanted, const KeysOfBatch* kept);
  /// @param evicted they are added to what it has @return items that were evicted
  std::uint64_t Evict(const std::vector<std::byte>& victims, Evicted* evicted);
  /// Starts a batch of finds and erases of the store's own.
  std::shared_ptr<InFlight> Run(const Batch& batch, Stream stream);

  /// @return false: an export began; to be tried again
  bool TryReserve(std::uint64_t items, bool keeps);
  /// Compacts where OpenOptions::compact_below says so, and it is not in vain.
  void CompactIfSparse() noexcept;

  // Of a search (engine/search.cc, engine/change_where.cc).

  friend class HeldItems;
  void AddSearchesTo(StoreStats* stats);
  /// Calls use(rows, threads) with what queries match. @param values whether they are wanted
  template <class Use>
  void SearchInto(std::span<const Query> queries, bool rows, bool values, std::uint64_t limit,
                  const Use& use);
  /// Calls ask(index) of an index that has what is asked for, or else use_items(items, threads).
  /// @param indexed an index may do
  template <class Ask, class UseItems>
  void SearchBy(KeptIndex::Mask asked, bool indexed, const Ask& ask, const UseItems& use_items);
  /// Finds the values of an index's rows, if nothing has changed since its state. @return whether
  bool FindValues(std::span<const std::byte> keys, std::span<std::byte> values,
                  std::uint64_t version);
  MatchLists::Shape ShapeOf(std::uint64_t queries, bool rows, std::uint64_t limit) const;
  /// For a search that has the turn: holds items, for an index to be of their instant, or else
  /// calls use(items, threads) with all of them.
  /// @param indexed an index may do @param version Admission::changers; set to that of the instant
  /// @return whether there is such an index
  template <class UseItems>
  bool HoldForSearch(bool indexed, KeptIndex::Mask asked, std::uint64_t* version,
                     const UseItems& use);
  /// Rows of values that are read or changed while batches are excluded, at most.
  std::uint64_t RowsAtOnce() const;
  struct MatchingItems {
    std::uint64_t count = 0;
    std::vector<std::byte> keys;    ///< rows
    std::vector<std::byte> values;  ///< rows
  };
  /// Calls change(items) with the items that a query matches, some at a time, alone.
  /// @return what the calls return, in all
  template <class Change>
  std::uint64_t ChangeWhere(const Query& query, const Change& change);
  /// Those of the keys whose values match.
  MatchingItems FindMatching(std::span<const std::byte> keys, const QueryPlan& plan)
      GPM_REQUIRES(store_state);
  /// Runs a batch of finds, updates or erases to its end. @return operations that found their key
  /// in its first phase, which is the only one of finds @throws as Wait
  std::uint64_t RunAlone(const Batch& batch) GPM_REQUIRES(store_state);

  // Of a snapshot, by who has the turn.

  SnapshotHeader BeginHeader(const SnapshotOptions& options);
  /// Makes the last of a chain's files the base of the next increment, whatever was before, by
  /// comparing all items with the chain's. When it throws, there is no base.
  void TrackSince(const std::vector<std::string>& files);
  SnapshotResult TakeSnapshot(const std::string& path, const SnapshotOptions& options);
  /// @param copy made anew where it has too little room @param version of the instant, or null
  /// @return seconds that batches were excluded
  double TakeInstant(const CopyShape& shape, std::unique_ptr<TableCopy>* copy,
                     std::optional<Snapshots::Copying>* copying, std::uint64_t* version = nullptr);
  void ReleaseCells();
  /// Of the cells that are held, those that a copy names are needed. @param copy was fetched
  void NameHeldCells(const TableCopy& copy);

  // By who is alone.

  /// Finishes batches that lacked room; their errors are their own.
  void FinishBatches() GPM_REQUIRES(store_state);
  /// TakeCopy, into one that is made anew where it has too little room.
  void TakeWholeCopy(CopyShape shape, std::unique_ptr<TableCopy>* copy) GPM_REQUIRES(store_state);
  /// An export began after Snapshots::AwaitCopied: to be waited for, by who is not alone.
  bool ExportHoldsCells() GPM_REQUIRES(store_state);
  /// Waits until a snapshot has copied the values of the cells that it holds, if one does; not for
  /// an export, which may want what the caller excludes. @return whether there is more room then
  bool AwaitHeldCells() GPM_REQUIRES(store_state);
  /// @return false when the pool can't grow so far
  bool TryMakeRoom(const Demand& demand) GPM_REQUIRES(store_state);
  void MakeRoom(const Demand& demand) GPM_REQUIRES(store_state);
  /// Up to which the table is filled before it grows.
  double LoadBeforeGrowth() const { return std::max(grow_above_, Space::kComfortableLoad); }
  /// Of the cells that so many more items need, beyond those that there are.
  std::uint64_t MissingCellBytes(std::uint64_t more) const GPM_REQUIRES(store_state);
  /// A resize for want of slots: Resizer::Grow, or GrowTo, which is several of those at once.
  /// @param lacking slots that the batch is known to lack
  bool Grow(const Demand& waiting, std::uint64_t lacking = 0) GPM_REQUIRES(store_state);
  /// Tells the log that the medium is full: once, until the pool could grow again.
  void LogWantOfSpace() GPM_REQUIRES(store_state);
  /// The levels that the items, and what was reserved, need.
  LevelSizes SizesWanted() const GPM_REQUIRES(store_state);
  friend class Compaction;
  /// Whether a table of far fewer slots would do, as OpenOptions::compact_below has it, and it is
  /// not in vain; or a compaction was cut off.
  bool IsToCompact() const GPM_REQUIRES(store_state);
  /// Carries out what was left of a batch. When it throws, the batch has ended with that error.
  void FinishAfterGrowth(std::shared_ptr<InFlight> in_flight) GPM_REQUIRES(store_state);
  void CarryOutRest(InFlight& in_flight) GPM_REQUIRES(store_state);
  /// Frees slots for what is left of a batch. @param room as in BatchTask
  /// @param again it lacks some although it had all before
  /// @return whether it has all that it lacks
  bool MakeSlots(InFlight& in_flight, std::uint64_t room, bool again) GPM_REQUIRES(store_state);
  /// The same, or where that takes too much, the table grows.
  /// @param attempts to do without, since it last grew @return false for want of space
  bool MakeSlotsOrGrow(InFlight& in_flight, unsigned* attempts) GPM_REQUIRES(store_state);
  /// Cells for what is left of a batch: where there is no room for all of them and for larger
  /// levels, no more than there are slots for. (Kernels take them from anywhere among those
  /// granted, so that levels would hardly find room between them.)
  std::uint64_t CellsToAdd(const InFlight& in_flight) const GPM_REQUIRES(store_state);
  /// Runs inserts on levels that are being composed. @return those with operations left over
  /// @param results_on_host set to whether a host can read the results
  std::vector<std::unique_ptr<InFlight>> RunComposing(const Batch& inserts, bool* results_on_host)
      GPM_REQUIRES(store_state);
  /// Begins to fill cells with the values of inserts, where that pays. @param grant set to those
  std::unique_ptr<CellFilling> FillCells(const Batch& inserts, CellGrant* grant)
      GPM_REQUIRES(store_state);
  /// Waits for a part's end, and takes back what it left.
  void EndComposed(InFlight& in_flight) GPM_REQUIRES(store_state);
  void RunParts(const NextPart& next) GPM_REQUIRES(store_state);
  bool PaysToCompose(std::uint64_t inserts) const GPM_REQUIRES(store_state);
  /// Levels for so many inserts, if there may be room for them and the values.
  std::optional<LevelSizes> SizesToCompose(std::uint64_t inserts) GPM_REQUIRES(store_state);
  /// Where the pool ends with those, and the values.
  std::uint64_t EndOfComposed(const LevelSizes& sizes, std::uint64_t inserts) const
      GPM_REQUIRES(store_state);
  /// Composes levels by `run`, which runs inserts, or throws: no item is left then. @return false:
  /// nothing was done, for want of room
  bool ComposeLevels(const LevelSizes& sizes, std::uint64_t inserts,
                     const std::function<void()>& run) GPM_REQUIRES(store_state);
  void Resume(InFlight& in_flight, bool final_attempt) GPM_REQUIRES(store_state);

  std::unique_ptr<Pool> pool_;
  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  const std::vector<Attribute> attributes_;
  Log log_;
  std::unique_ptr<Executor> executor_;
  Health health_;
  CacheManager cache_;
  Space space_;
  Draining draining_;
  Resizer resizer_;
  std::unique_ptr<Bound> bound_;  ///< or null; batches that are in flight tell it of themselves
  Admission admission_;
  Snapshots snapshots_;
  const double grow_above_;
  const double compact_below_;
  RecoveryStats recovery_;
  std::uint64_t opened_sequence_ = 0;  ///< of the superblock, if the pool was closed in order
  std::atomic<std::uint64_t> logged_refreshes_{0};
  std::atomic<std::uint64_t> searches_{0};
  std::atomic<std::uint64_t> search_scans_{0};
  KeptIndex kept_index_;
  std::uint64_t reserved_ GPM_GUARDED_BY(store_state) = 0;  ///< items that there is to be room for
  std::uint64_t given_back_ GPM_GUARDED_BY(store_state) = 0;  ///< bytes, by Compact
  std::uint64_t displaced_items_ GPM_GUARDED_BY(store_state) = 0;
  double displacing_seconds_ GPM_GUARDED_BY(store_state) = 0;
  /// CompactIfSparse compacted in vain: not again with so many items, or more.
  std::uint64_t most_to_compact_ GPM_GUARDED_BY(store_state) = ~std::uint64_t{0};
  std::atomic<unsigned> compactions_{0};  ///< under way, in turns
  bool compaction_cut_off_ GPM_GUARDED_BY(store_state) = false;
  bool logged_want_of_space_ GPM_GUARDED_BY(store_state) = false;
  const HomeProcess process_;
  StoreImpl* next_abandoned_ = nullptr;
  std::unique_ptr<SnapshotKeeper> keeper_;  ///< last: its thread uses the others
};

/// @throws Error(kInvalidArgument) saying what of a batch is wrong, for these sizes in bytes
void ValidateBatch(const Batch& batch, std::uint32_t key_size, std::uint32_t value_size);

}  // namespace gpm

#endif  // GPM_ENGINE_STORE_IMPL_H_
