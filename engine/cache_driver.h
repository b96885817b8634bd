#ifndef GPM_ENGINE_CACHE_DRIVER_H_
#define GPM_ENGINE_CACHE_DRIVER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "cache/cache_options.h"
#include "engine/executor.h"

namespace gpm {

/// When the cache is loaded: leads the executor through the steps of a loading, none of which waits
/// for another. Nobody's thread is blocked for it; whoever starts a batch takes it a step further.
///
/// Thread safety: any thread.
class CacheDriver {
 public:
  /// What the driver asks about batches.
  struct Batches {
    std::function<std::uint64_t()> newest;            ///< id of the newest batch
    std::function<bool(std::uint64_t id)> run_up_to;  ///< whether one runs that is not newer
  };

  CacheDriver(const CacheOptions& options, Batches batches, PmTracer* tracer)
      : options_(options), batches_(std::move(batches)), tracer_(tracer) {}

  /// Gives the executor a table, and makes the cache anew, empty, for it: the store is opened, or
  /// was resized. Ends a loading under way. REQUIRES: no batch runs.
  void Reset(Executor& executor, const TableView& table);

  /// Goes on as far as is possible now. @param operations that begin now
  void Advance(Executor& executor, std::uint64_t operations);

  /// Ends it all: the executor is not used any more. Whoever waits for a loading waits no longer.
  void Stop(Executor& executor);

  /// Asks for a loading that begins from now on. @return its number
  std::uint64_t Request();
  bool Ended(std::uint64_t number);
  /// Id of the newest batch that the loading waits for, or 0.
  std::uint64_t WaitsFor();
  /// Waits for the step under way, if there is one.
  void AwaitStep(Executor& executor);

  CacheStats Stats();

 private:
  enum class Phase { kIdle, kAssigning, kGrace, kFilling };
  void Step(Executor& executor);
  void SetPhase(Phase phase);
  /// Waits until no step is being started, and keeps others from it during its life.
  class Turn;

  const CacheOptions options_;
  const Batches batches_;
  PmTracer* const tracer_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::uint64_t requested_ = 0;  ///< loadings asked for, or due
  bool busy_ = false;  ///< somebody has the turn: who alone changes what follows, or asks the
                       ///< executor for anything
  std::atomic<bool> on_{false};  ///< there is a cache
  CacheShape shape_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t grace_id_ = 0;    ///< kGrace: batches up to this one have to end
  std::uint64_t operations_ = 0;  ///< since the last loading began
  std::uint64_t due_at_ = 0;      ///< of them, with a load_interval: when the next one begins
  bool fresh_ = true;             ///< no loading filled it yet
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;  ///< completed, or cut off by a new table
  std::chrono::steady_clock::time_point start_;
  CacheStats stats_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_CACHE_DRIVER_H_
