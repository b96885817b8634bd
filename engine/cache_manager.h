#ifndef GPM_ENGINE_CACHE_MANAGER_H_
#define GPM_ENGINE_CACHE_MANAGER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>

#include "cache/policy.h"
#include "engine/executor.h"
#include "engine/profiler_range.h"
#include "engine/refresh_schedule.h"
#include "pm/mutex.h"

namespace gpm {

/// Makes the directory and the cache for a table, and says when the cache is refreshed: who starts
/// a batch begins a refresh when it is due (and on executor cpu carries it out).
///
/// Thread safety: any thread.
class CacheManager {
 public:
  /// @param executor outlives what is done until Stop @throws as ValidateCacheOptions
  CacheManager(Executor& executor, const CacheOptions& options, PmTracer* tracer)
      : executor_(executor),
        options_(options),
        tracer_(tracer),
        schedule_(options.refresh_interval) {
    ValidateCacheOptions(options);
  }

  /// Gives the executor a table, and ends a refresh under way. There are none until Reset: until
  /// then the table changes, and none begins. REQUIRES: the caller is alone until then.
  void SetTable(const TableView& table);

  /// Gives the executor a table of which the addressable levels are the same: both stay.
  void KeepTable(const TableView& table);

  /// Makes them anew for the executor's table: the directory as the table is now, the cache empty.
  /// Without what GPU memory has no room for. REQUIRES: no batch runs. @throws Error
  /// @param new_levels so many levels, the highest, hold nothing yet, and are not read
  void Reset(const TableView& table, std::uint32_t new_levels);

  /// Gives the executor a table that got one more level, of which batches drain the oldest from now
  /// on. The directory follows, and the cache, where that can be. REQUIRES: no batch runs.
  /// @return false where there is nothing to follow: as before the call; or no memory: as SetTable
  bool FollowGrowth(const TableView& table);

  /// Gives their memory back, until Reset, as SetTable. REQUIRES: no batch runs.
  void Drop();

  /// What who takes a refresh further has time for.
  enum class Haste : std::uint8_t {
    kLook,   ///< nothing that takes time: on executor cpu, begins none
    kBegin,  ///< what the executor does when it begins one, which on cpu is all of it
    kWait,   ///< waits for the turn, and for the cache's memory, too
  };
  /// Ends a refresh that is done, and begins one if it is due, or asked for. With kWait one that
  /// was asked for has begun then, unless another is under way.
  /// @param operations that begin now @param totals of the batches that have ended so far
  /// @return false while the table changes: who wants one asks again when that is over
  bool Advance(Haste haste, std::uint64_t operations, const FindTotals& totals);

  /// Ends it all: neither Advance nor Await use the executor any more. A refresh under way ends
  /// early, and whoever waits for one waits no longer.
  void Stop();

  /// Asks for a refresh that begins from now on. @return its number
  std::uint64_t Request();
  bool Ended(std::uint64_t number);
  /// Waits for the refresh under way, if there is one.
  void Await();

  /// Does what no refresh may run beside: none is under way meanwhile, and none begins.
  void WithoutRefresh(const std::function<void()>& action);

  CacheStats Stats();
  /// Whether the executor's memory is limited to so many bytes.
  bool limited() const { return options_.bytes != 0; }

 private:
  /// Waits until nobody asks the executor for anything, and keeps others from it during its life.
  class Turn;

  /// By who has the turn: the executor has made them.
  void SetShape(const CacheShape& shape);
  /// By who has the turn, before what a refresh reads changes: one that is under way ends early, as
  /// if it had not begun yet.
  void CutRefresh();
  /// By who has the turn: a refresh was done.
  void CountRefresh(double now) GPM_REQUIRES(mutex_);
  /// By who has the turn: no refresh is under way any more.
  void EndRefresh() GPM_REQUIRES(mutex_);
  /// By who has the turn: there is no cache until Reset.
  void BeginChange();

  Executor& executor_;
  const CacheOptions options_;
  PmTracer* const tracer_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requested_ GPM_GUARDED_BY(mutex_) = 0;  ///< refreshes asked for, or due
  std::uint64_t begun_ GPM_GUARDED_BY(mutex_) = 0;
  std::uint64_t ended_ GPM_GUARDED_BY(mutex_) = 0;  ///< or given up, as there is no cache any more
  CacheStats stats_ GPM_GUARDED_BY(mutex_);
  std::uint64_t waiting_ GPM_GUARDED_BY(mutex_) =
      0;                                          ///< threads, in the executor, without the turn
  bool busy_ GPM_GUARDED_BY(mutex_) = false;      ///< somebody has the turn
  bool changing_ GPM_GUARDED_BY(mutex_) = false;  ///< the table, so that there is no cache yet
  // Whoever has the turn may change the rest, and ask the executor for anything.
  std::atomic<bool> on_{false};  ///< there is a cache
  bool opened_ = false;          ///< Executor::OpenCache was called, where it can be
  bool refreshing_ = false;
  FindTotals totals_;
  RefreshSchedule schedule_;
  std::uint64_t aged_at_ = 0;  ///< finds that found their key, when scores were aged last
  ProfilerRange range_;        ///< of the refresh under way
};

}  // namespace gpm

#endif  // GPM_ENGINE_CACHE_MANAGER_H_
