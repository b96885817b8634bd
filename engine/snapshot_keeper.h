#ifndef GPM_ENGINE_SNAPSHOT_KEEPER_H_
#define GPM_ENGINE_SNAPSHOT_KEEPER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/log.h"
#include "gpmstore/options.h"
#include "gpmstore/snapshot.h"
#include "gpmstore/stats.h"
#include "pm/mutex.h"
#include "snapshot/folder.h"

namespace gpm {

/// @throws Error(kInvalidArgument) saying what of a schedule can't be
void ValidateSchedule(const SnapshotSchedule& schedule);

/// Takes the snapshots of OpenOptions::snapshot: increments on a whole one, until they are many or
/// take as many bytes, then a whole one again; none while nothing changes.
///
/// Invariants:
///  1. `changed_` is set, by who changes something, when it can't be in a snapshot that has begun
///     earlier (it is admitted); it is cleared before a snapshot begins. So what is not in the
///     newest one has set it since.
///  2. What fails is counted, logged, and leaves `changed_` set.
///
/// Thread safety: NoteChange, Keep and AddTo from any thread; the others from who closes the store.
class SnapshotKeeper {
 public:
  /// Takes a snapshot of the store. @param base empty: a whole one @throws as Store::Snapshot
  using Take = std::function<SnapshotResult(const std::string& file, const std::string& base)>;

  /// @param changed whether the store may hold what the folder does not @param log outlives this
  /// @param device that the thread uses; -1: none
  SnapshotKeeper(std::unique_ptr<SnapshotFolder> folder, const SnapshotSchedule& schedule,
                 bool changed, Take take, Log& log, int device);
  ~SnapshotKeeper();
  SnapshotKeeper(const SnapshotKeeper&) = delete;
  SnapshotKeeper& operator=(const SnapshotKeeper&) = delete;

  /// Starts its thread. @throws Error(kNoSpace): there can't be one
  void Start();

  /// Something of the store changes.
  void NoteChange() {
    if (!changed_.load(std::memory_order_relaxed)) changed_ = true;
  }
  /// Takes a snapshot now, if anything changed. By its thread, and for tests.
  void Keep() noexcept;
  /// Ends the thread, and takes the last snapshot, if the schedule says so.
  /// @throws Error(kBusy) on that thread; nothing was done
  void Finish();
  /// The pool was closed in order. REQUIRES: Finish was called
  void NoteClosed(const SnapshotFolder::Saved& state) noexcept;
  void AddTo(StoreStats* stats);
  /// In a child that the process forked, which has no thread of it.
  void LetGo() noexcept { folder_->LetGo(); }

 private:
  void Work();
  void TakeNext() GPM_REQUIRES(working_);
  void NoteFailure(const char* error) noexcept;

  const std::unique_ptr<SnapshotFolder> folder_;
  const SnapshotSchedule schedule_;
  const Take take_;
  Log& log_;
  const int device_;
  std::atomic<bool> changed_;

  Mutex working_;                                ///< held while a snapshot is being taken
  std::string newest_ GPM_GUARDED_BY(working_);  ///< file, the next one's base; empty: a whole one
  std::uint64_t increments_ GPM_GUARDED_BY(working_) = 0;
  std::uint64_t whole_bytes_ GPM_GUARDED_BY(working_) = 0;
  std::uint64_t increment_bytes_ GPM_GUARDED_BY(working_) = 0;

  Mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ GPM_GUARDED_BY(mutex_) = false;
  std::uint64_t failures_ GPM_GUARDED_BY(mutex_) = 0;
  std::string error_ GPM_GUARDED_BY(mutex_);
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace gpm

#endif  // GPM_ENGINE_SNAPSHOT_KEEPER_H_
