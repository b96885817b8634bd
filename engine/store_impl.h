#ifndef GPM_ENGINE_STORE_IMPL_H_
#define GPM_ENGINE_STORE_IMPL_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/cache_manager.h"
#include "engine/epochs.h"
#include "engine/executor.h"
#include "engine/log.h"
#include "gpmstore/store.h"
#include "pm/pool.h"

namespace gpm {

/// What binds a pool, an executor and the batches that run: admission, room, resizing, recovery.
///
/// Thread safety: as Store's.
///
/// Invariants:
///  1. Batches in flight are in `active_`; while `exclusive_` is set there is none, and only its
///     holder touches the pool, the executor's passes and the table's shape.
///  2. A batch is admitted with the queue positions that it may need at most, and with as many
///     cells as it is expected to need (CellsToBegin). What it lacks then, of which it tells
///     exactly how much, is made before it is completed (FinishAfterGrowth): so the pool grows by
///     what runs of operations really write, and by nothing for those that only might.
///  3. Every item in the pool is in an addressable level whenever a batch runs.
///  4. What a batch's results rest on is durable when it ends, where the store promises to survive
///     power loss: its own writes are, and when it ran beside a batch that writes (`beside_writes`)
///     it settles what that may have written.
///  5. What may fail half-way, and would leave the table or the queues in a state that batches do
///     not know, is done by AllOrUnusable: no batch runs from then on, the pool is not marked
///     clean, and opening it again finds every item.
class StoreImpl {
 public:
  /// A batch in flight.
  struct InFlight {
    std::uint64_t id = 0;
    Reservation needs;
    CellGrant grant;
    std::shared_ptr<BatchTask> task;  ///< null until started
    bool mixed = false;              ///< of kinds that the store does not look at
    bool results_on_host = true;
    std::optional<Op> kind;        ///< of all its operations
    std::uint64_t operations = 0;  ///< 0: of a scope
    std::uint64_t cells_left = 0;    ///< of the grant
    bool beside_writes = false;      ///< another batch that ran at the same time may have written
    bool scope = false;              ///< of a DeviceScope
    std::thread::id opener;          ///< of a scope: who opened it
    bool ending = false;             ///< somebody is about to end it
    bool ended = false;              ///< out of `active_`, progress is known
    Progress progress;
    std::exception_ptr error;  ///< what each Wait throws

    bool IsOpenScope() const;  ///< or one that is being opened
  };

  /// @param tracer carries out every access to the pool, for tests; outlives the store
  static std::unique_ptr<StoreImpl> Create(const std::string& path, const CreateOptions& create,
                                           const OpenOptions& open, PmTracer* tracer = nullptr);
  static std::unique_ptr<StoreImpl> Open(const std::string& path, const OpenOptions& open,
                                         PmTracer* tracer = nullptr);
  ~StoreImpl();
  /// Destroys a store; in a child of the process that opened it, lets go of it without touching the
  /// pool, its lock, threads and devices, which are the parent's.
  static void Destroy(StoreImpl* store) noexcept;

  /// @throws Error(kUnsupported) in a child of the process that opened the store
  void CheckProcess() const;
  bool InItsProcess() const;

  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }

  /// @throws Error(kInvalidArgument) saying what of a batch is wrong
  void Validate(const Batch& batch) const;
  std::shared_ptr<InFlight> Start(const Batch& batch, Stream stream);
  void Wait(const std::shared_ptr<InFlight>& in_flight);
  void Reserve(std::uint64_t items);
  void ForEach(const Store::Visitor& visit);
  /// @return false when `visit` stopped it
  bool ForEachUntil(const Store::StoppableVisitor& visit);
  StoreStats Stats();
  /// Executor::CountMisplacedCells, when all batches have ended.
  std::uint64_t CountMisplacedCells();
  /// Asks for the cache to be loaded. @return what AwaitCacheRefresh waits for
  std::uint64_t RefreshCache();
  void AwaitCacheRefresh(std::uint64_t load);
  /// Leaves tickets usable, nothing else; also when it throws, but for Exclusive's error.
  void Close();
  bool closed() const { return pool_ == nullptr; }

  /// What the store knows of a batch's operations.
  struct Admission {
    bool inserts = false;  ///< it may add items
    bool mixed = false;    ///< they may be of any kind
    std::optional<Op> kind{};      ///< to count them by
    std::uint64_t operations = 0;  ///< 0: unknown
  };
  /// Starts a prepared batch, or what a DeviceScope makes of the user's kernels.
  std::shared_ptr<InFlight> StartTask(std::shared_ptr<BatchTask> task, const Reservation& needs,
                                      Admission how);
  Executor& executor() { return *executor_; }

 private:
  /// Above this share of slots in use an insert is likely to find none: a batch of them resizes
  /// first.
  static constexpr double kFullLoad = 0.95;
  /// Below this share nearly every insert finds a slot; what a resize for known inserts aims at.
  static constexpr double kComfortableLoad = 0.85;
  static constexpr std::uint64_t kMinSlotQueue = 4096;
  static constexpr std::uint64_t kReservedSlots = 64;  ///< of the reserved level, at most
  /// Of the cells so large a share, but so many at most, are kept for updates: a full pool can
  /// still be updated, so many items at a time.
  static constexpr std::uint64_t kKeptShare = 64;
  static constexpr std::uint64_t kMostKeptCells = 4096;

  StoreImpl(std::unique_ptr<Pool> pool, const OpenOptions& open);

  /// Waits until no batch runs, and keeps new ones out during its life. Scopes that others hold
  /// open are waited for, while batches go on; new scopes wait for it in turn.
  class Exclusive {
   public:
    /// @throws Error(kBusy) when the caller itself has opened a scope that is open
    explicit Exclusive(StoreImpl& store);
    ~Exclusive();
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    StoreImpl& store_;
  };

  /// Waits until nobody is alone. REQUIRES: `lock` holds mutex_.
  void Enter(std::unique_lock<std::mutex>& lock);
  std::shared_ptr<InFlight> Admit(const Reservation& needs, Admission how, bool scope,
                                  Epochs::SlotRange* recycle);
  /// Where the queues have come to when a batch has failed, which may have used them.
  ReclaimPositions PositionsAfterFailure() noexcept;
  /// Makes as if a batch that could not be started, and was not, had never been admitted.
  void TakeBack(InFlight& in_flight, bool touched, const Epochs::SlotRange& recycle) noexcept;
  void Recover();
  /// What a batch may take and add at most.
  Reservation NeedsOf(const Batch& batch) const;
  /// What a batch is granted, if there is so much: what it is expected to take, and for a scope,
  /// which can't be given more afterwards, all that it may take. REQUIRES: mutex_ held, or
  /// Exclusive.
  Reservation WantsOf(const InFlight& in_flight) const;
  /// Cells without which a batch waits for others to end, and then for growth: what it wants, but,
  /// since it may want far less in the end, of a batch no more than one step of growth.
  std::uint64_t CellsToBegin(const InFlight& in_flight) const;
  /// @param made_room MakeRoom was called for it
  bool HasRoomFor(const InFlight& in_flight, bool inserts, bool made_room) const;
  /// A batch in flight that was started, if there is one. REQUIRES: mutex_ held.
  std::shared_ptr<InFlight> Started() const;
  /// Whether a DeviceScope is open, or being opened, which is for its owner to close: any, or one
  /// of the caller's. REQUIRES: mutex_ held.
  bool HasOpenScope() const;
  bool CallerHasOpenScope() const;
  /// Syncs with the device and takes the batch out of flight. Any thread.
  void End(const std::shared_ptr<InFlight>& in_flight);

  // The rest: REQUIRES Exclusive.
  void MakeRoom(const InFlight& in_flight, bool inserts);
  /// Makes the queue of erased slots hold what a batch may add.
  void MakeRoomForSlots(std::uint64_t slots);
  /// Carries out what was left of a batch. When it throws, the batch has ended with that error.
  void FinishAfterGrowth(std::shared_ptr<InFlight> in_flight);
  void Resume(InFlight& in_flight, bool final_attempt);
  /// Ends batches that were left over and can't be finished any more.
  void FailUnfinished(const std::exception_ptr& error) noexcept;
  /// Makes everything erased and retired usable. @return whether that gave slots back
  bool Reclaim();
  bool AddCells(std::uint64_t cells);
  /// Takes free cells out of the pool's segments, where a new top level would otherwise lie beyond
  /// all that there is: so that it may take their place. REQUIRES: everything was reclaimed.
  void ReleaseCellsForLevel();
  /// After the number of cells has changed.
  void CountCells() noexcept;
  /// Cells that have to be added for so many items, or updates, more, and for what is kept then.
  std::uint64_t MissingCells(std::uint64_t more) const;
  /// Queues the cells that were added last. @return how many
  std::uint64_t QueueAdded();
  /// Pool::AddLevel, timed.
  void AddLevel();
  /// One resize: the top goes up by some levels, and as many at the bottom are drained and dropped.
  /// @return false for want of space; then it may have gone up by fewer
  bool Resize(std::uint32_t levels = 1);
  /// REQUIRES: who calls it keeps batches from running if it throws: items are then left in a level
  /// that is not addressed any more.
  /// @param new_levels so many levels, the highest, hold nothing yet
  void Drain(std::uint32_t new_levels = 0);
  /// Tells the executor of the table. There is no directory, nor a cache, from then on.
  void RefreshTable();
  /// Makes directory and cache for the table as it is now, unless they are there.
  /// @param new_levels as for Drain
  void MakeAccelerators(std::uint32_t new_levels = 0);
  void DropAccelerators();
  std::vector<CellRange> CellRanges() const;
  std::uint64_t Capacity() const;
  /// Erased slots that are not given back, at most.
  std::uint64_t MostErasedSlots() const { return Capacity() + kReservedSlots; }
  /// Tells the log of refreshes of the cache that have ended since the last call.
  void LogRefreshes();
  void CountOperations(const InFlight& in_flight);  ///< REQUIRES: mutex_ held
  /// Learns what batches of mixed kinds take. REQUIRES: mutex_ held.
  void CountTaken(const InFlight& in_flight);
  /// @throws Error once AllOrUnusable has thrown
  void CheckUsable() const;
  /// Keeps batches from running until the pool is opened again, for the exception at hand.
  void SetUnusable(const char* what) noexcept;
  /// Does what must not be left half done: what it throws makes the store unusable.
  /// @param what a literal that says what could not be done
  template <class Action>
  void AllOrUnusable(const char* what, const Action& action) {
    try {
      action();
    } catch (...) {
      SetUnusable(what);
      throw;
    }
  }

  std::unique_ptr<Pool> pool_;
  PmTracer* const tracer_;
  const std::uint32_t key_size_;
  const std::uint32_t value_size_;
  Log log_;
  std::unique_ptr<Executor> executor_;
  RecoveryStats recovery_;
  CacheManager cache_;
  std::atomic<std::uint64_t> resizes_{0};
  std::atomic<std::uint64_t> logged_refreshes_{0};
  double resize_seconds_ = 0;  ///< written by who is alone
  double growth_seconds_ = 0;  ///< likewise
  bool accelerated_ = false;   ///< MakeAccelerators was called for the table as it is
  /// What could not be done, so that no batch can run any more; null when they can.
  std::atomic<const char*> unusable_{nullptr};
  std::atomic<bool> unusable_set_{false};
  std::exception_ptr unusable_cause_;  ///< by who set that, before `unusable_`
  std::optional<CellRange> unqueued_;  ///< cells that were added when their queue could not grow
  const int process_;                  ///< that opened the store
  const std::uint32_t forks_;          ///< Forks() then
  StoreImpl* next_abandoned_ = nullptr;

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  bool exclusive_ = false;
  std::uint64_t entering_ = 0;  ///< threads that wait in Enter
  std::uint64_t first_in_ = 0;  ///< of those, how many go before the next Exclusive: nobody starves
  std::uint64_t alone_asked_ = 0;  ///< Exclusives so far
  std::uint64_t alone_ended_ = 0;  ///< of those, ended: a new scope waits for all asked before it
  bool at_limit_ = false;          ///< the pool could not grow when last asked to
  std::map<std::uint64_t, std::shared_ptr<InFlight>> active_;
  std::map<std::uint64_t, std::shared_ptr<InFlight>>
      unfinished_;            ///< ended, with operations left over
  bool left_behind_ = false;  ///< a batch failed on the GPU: slots or cells may wait for recovery
  Epochs epochs_;
  std::int64_t items_ = 0;
  std::uint64_t found_ = 0;       ///< finds that found their key
  std::array<std::uint64_t, kOpKinds> operations_{};  ///< as in StoreStats
  std::uint64_t mixed_operations_ = 0;
  std::uint64_t cache_hits_ = 0;  ///< of those, with the value in the executor's memory
  std::uint64_t cells_ = 0;       ///< in all segments
  /// Of the cells that batches of mixed kinds might have taken, the share that they did: the most
  /// of late.
  double taken_share_ = 1;
};

}  // namespace gpm

#endif  // GPM_ENGINE_STORE_IMPL_H_
