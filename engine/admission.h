#ifndef GPM_ENGINE_ADMISSION_H_
#define GPM_ENGINE_ADMISSION_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>

#include "engine/batch_executor.h"
#include "engine/draining.h"
#include "engine/health.h"
#include "engine/log.h"
#include "engine/profiler_range.h"
#include "engine/refresh_schedule.h"
#include "engine/space.h"
#include "engine/thread_number.h"
#include "pm/mutex.h"
#include "pm/tracer.h"

namespace gpm {

/// Who wants to know when a batch has done all that it can. Destroyed when it is over: before that,
/// if it ended well, its results are known and its arrays still there.
class BatchWatch {
 public:
  virtual ~BatchWatch() = default;
  virtual void Ended() noexcept = 0;
};

/// A batch in flight, or a DeviceScope. Admission's mutex guards what changes while it is one.
struct InFlight {
  explicit InFlight(const Demand& demanded) : demand(demanded) {}

  const Demand demand;
  const std::uint64_t opener = ThreadNumber();  ///< that began it
  ProfilerRange range;                          ///< until its end is known to who waits for it
  std::uint64_t id = 0;
  CellGrant grant;
  BucketRange drain;
  std::shared_ptr<BatchTask> task;    ///< null until started
  std::unique_ptr<BatchWatch> watch;  ///< or null; until it is over
  bool results_on_host = true;
  bool evicted = false;          ///< items, to make way for it
  std::int64_t items_added = 0;  ///< in all phases
  std::uint64_t cells_left = 0;  ///< of the grant, not needed
  bool beside_writes = false;    ///< another batch that ran at the same time may have written
  /// A scope goes in when so many turns alone have ended.
  std::optional<std::uint64_t> goes_after;
  bool ending = false;  ///< somebody is about to end it, or looks whether it is done
  bool ended = false;   ///< out of flight, progress is known
  Progress progress;
  std::exception_ptr error;  ///< what each Wait throws

  bool IsOpenScope() const;  ///< or one that is being opened
};

/// Who may run beside whom: batches run side by side, and who needs to be alone waits for them.
/// Also takes batches out of flight, and knows those that found no room for all they had to do.
///
/// Invariants:
///  1. Batches in flight are in `active_`; while `exclusive_` is set there is none, and only its
///     holder touches the pool, the executor's maintenance and the table's shape.
///  2. What a batch's results rest on is durable when it ends, where the store promises to survive
///     power loss: its own writes are, and when it ran beside a batch that writes
///     (`beside_writes`), what that may have written is made so.
///
/// Thread safety: any thread, but where store_state is required.
class Admission {
 public:
  Admission(BatchExecutor& executor, Health& health, Space& space, Draining& draining, Log& log,
            PmTracer* tracer)
      : executor_(executor),
        health_(health),
        space_(space),
        draining_(draining),
        log_(log),
        tracer_(tracer) {}

  enum class Telling : std::uint8_t { kAtEnd, kLater };
  /// What who wants to be alone does about scopes that are open, or opened before its turn.
  enum class Scopes : std::uint8_t {
    kAwait,
    kYield,  ///< does without: their owners may wait for the caller. New ones do not wait for it
  };

  /// Waits until no batch runs, and keeps new ones out during its life. Scopes that others hold
  /// open are waited for, while batches go on; new scopes wait for it in turn.
  class GPM_SCOPED_CAPABILITY Alone {
   public:
    /// @param telling whether the log is told at the end
    /// @throws Error(kBusy) when the caller itself has opened a scope that is open, but for kYield
    explicit Alone(Admission& admission, Telling telling = Telling::kAtEnd,
                   Scopes scopes = Scopes::kAwait) GPM_ACQUIRE(store_state);
    ~Alone() GPM_RELEASE();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;
    /// False only with kYield: the caller is not alone, and may do nothing.
    bool holds() const { return holds_; }
    /// Whether anybody waits for its end, to enter or to be alone.
    bool IsAwaited() const;

   private:
    Admission& admission_;
    const Telling telling_;
    const bool counts_;  ///< new scopes wait for it
    bool holds_ = true;
  };

  /// Waits until nobody is alone, and holds the mutex during its life.
  class GPM_SCOPED_CAPABILITY Entered {
   public:
    explicit Entered(Admission& admission) GPM_ACQUIRE(admission.mutex_, store_state);
    ~Entered() GPM_RELEASE() {}
    /// Whether who is alone next would have to wait for a DeviceScope.
    bool HasOpenScope() const GPM_NOT_CHECKED { return admission_.HasOpenScope(); }
    bool HasBatches() const GPM_NOT_CHECKED { return !admission_.active_.empty(); }  ///< in flight
    bool CallerHasOpenScope() const GPM_NOT_CHECKED { return admission_.CallerHasOpenScope(); }

   private:
    friend class Admission;
    Admission& admission_;
    MutexLock lock_;
  };

  /// To be called by a thread that will be alone, before it waits for another one that may have to
  /// be alone first.
  /// @throws Error(kBusy) as Alone
  void RefuseScope();

  enum class Admitted : std::uint8_t {
    kYes,
    kAfterRoom,        ///< that has to be made first, or the draining of a level be ended
    kAfterSlots,       ///< the same, for those that it may erase (Space::HasSlotsFor)
    kAfterSpareCells,  ///< that pays, but not to wait for a scope
  };
  /// Takes a batch into flight, with what it is granted and what it has to drain, if there is room
  /// for it.
  /// @param made_room room was made for it, or refused
  /// @param recycle set to the erased slots that it is to give back
  /// @throws Error, std::bad_alloc; then it is not in flight
  Admitted TryAdmit(const std::shared_ptr<InFlight>& in_flight, bool made_room,
                    Epochs::SlotRange* recycle);
  /// Its task has begun: any thread may end it.
  void SetStarted(InFlight& in_flight, std::shared_ptr<BatchTask> task);
  /// Makes as if a batch that could not be started, and was not, had never been admitted.
  /// @param touched it may have used what it was granted
  void Withdraw(InFlight& in_flight, bool touched, const Epochs::SlotRange& recycle) noexcept;
  /// Waits until a batch has done what it could, and takes it out of flight. Idempotent.
  void End(const std::shared_ptr<InFlight>& in_flight);
  /// Whether End would not wait.
  bool IsDone(InFlight& in_flight);

  // Batches that ended with operations left over, for want of room.

  bool IsUnfinished(const InFlight& in_flight);
  /// Any one of them, or null.
  std::shared_ptr<InFlight> FirstUnfinished();
  /// It is finished, or has failed: until then, who waits for it too waits to be alone.
  /// @return false when it was not there any more
  bool EraseUnfinished(const InFlight& in_flight);
  /// They can't be finished any more.
  void FailUnfinished(const std::exception_ptr& error) noexcept;

  /// A batch failed on the executor: slots or cells may wait for recovery, and what it added and
  /// erased was not counted.
  void SetLeftBehind() GPM_REQUIRES(store_state) {
    left_behind_ = true;
    space_.LoseCount();
  }
  bool left_behind() const GPM_REQUIRES(store_state) { return left_behind_; }

  /// What a phase of a batch found, and items that it added.
  void Count(InFlight& in_flight) GPM_REQUIRES(store_state);
  /// A batch that has ended.
  void CountOperations(const InFlight& in_flight) GPM_REQUIRES(store_state);
  /// Those that were counted were none of the store's user.
  void ForgetOperations() GPM_REQUIRES(store_state) {
    operations_ = {};
    mixed_operations_ = 0;
  }

  /// Batches and scopes that may change items, begun so far. Where it is what who was alone saw
  /// when no batch was left unfinished, the items are as they were then.
  std::uint64_t changers() const { return changers_; }
  /// Who is alone is about to change items by itself.
  void CountChanger() GPM_REQUIRES(store_state) { ++changers_; }

  /// Of the batches that have ended.
  FindTotals Totals() const {
    const std::uint64_t hits = cache_hits_.load();  // first: never more than what was found
    return {found_.load(), hits};
  }
  /// Of StoreStats: operations, and what finds found.
  void AddTo(StoreStats* stats) const GPM_REQUIRES(store_state);

 private:
  using Batches = std::map<std::uint64_t, std::shared_ptr<InFlight>>;

  void Enter(MutexLock& lock) GPM_REQUIRES(mutex_);
  std::shared_ptr<InFlight> Started() const GPM_REQUIRES(mutex_);
  bool HasOpenScope() const GPM_REQUIRES(mutex_);
  bool CallerHasOpenScope() const GPM_REQUIRES(mutex_);
  void RefuseCallersScope() const GPM_REQUIRES(mutex_);
  ReclaimPositions PositionsAfterFailure() noexcept;
  /// Holds the mutex while some batch is in flight, so that nobody is alone.
  class InFlightLock;

  BatchExecutor& executor_;
  Health& health_;
  Space& space_;
  Draining& draining_;
  Log& log_;
  PmTracer* const tracer_;

  Mutex mutex_;
  std::condition_variable changed_;  ///< notified when anything that follows is
  bool exclusive_ GPM_GUARDED_BY(mutex_) = false;
  std::uint64_t entering_ GPM_GUARDED_BY(mutex_) = 0;  ///< threads that wait in Enter
  /// Of those, how many go before who is alone next: nobody starves.
  std::uint64_t first_in_ GPM_GUARDED_BY(mutex_) = 0;
  std::uint64_t alone_asked_ GPM_GUARDED_BY(mutex_) = 0;
  /// Of those, ended: a new scope waits for all asked before it.
  std::uint64_t alone_ended_ GPM_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> changers_{0};
  Batches active_ GPM_GUARDED_BY(mutex_);
  Batches unfinished_ GPM_GUARDED_BY(mutex_);  ///< ended, with operations left over
  bool left_behind_ GPM_GUARDED_BY(store_state) = false;
  std::array<std::uint64_t, kOpKinds> operations_ GPM_GUARDED_BY(store_state){};
  std::uint64_t mixed_operations_ GPM_GUARDED_BY(store_state) = 0;
  std::atomic<std::uint64_t> found_{0};       ///< finds that found their key
  std::atomic<std::uint64_t> cache_hits_{0};  ///< of those, in volatile memory
  std::atomic<std::uint64_t> read_by_host_{0};
  std::atomic<std::uint64_t> written_by_host_{0};
};

}  // namespace gpm

#endif  // GPM_ENGINE_ADMISSION_H_
