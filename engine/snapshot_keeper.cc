#include "engine/snapshot_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "engine/store_impl.h"
#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/gpu_host.h"

namespace gpm {
namespace {

/// Restoring keeps each increment's ranges in memory.
constexpr std::uint64_t kMostIncrements = 64;
constexpr double kLongestInterval = 1e9;  // seconds; more overflow the clock

}  // namespace

void ValidateSchedule(const SnapshotSchedule& schedule) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "snapshot: " + why);
  };
  if (schedule.path.empty()) {
    if (schedule.restore) refuse("a folder to restore from is missing: name its path");
    return;
  }
  if (!(schedule.interval > 0) || schedule.interval > kLongestInterval) {
    refuse(fmt::format("an interval of {} s; it must be more than 0, and at most {}",
                       schedule.interval, kLongestInterval));
  }
  if (schedule.chains == 0) refuse("0 chains to keep; it must be 1 at least");
}

SnapshotKeeper::SnapshotKeeper(std::unique_ptr<SnapshotFolder> folder,
                               const SnapshotSchedule& schedule, bool changed, Take take, Log& log,
                               int device)
    : folder_(std::move(folder)),
      schedule_(schedule),
      take_(std::move(take)),
      log_(log),
      device_(device),
      changed_(changed) {}

SnapshotKeeper::~SnapshotKeeper() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SnapshotKeeper::Start() {
  try {
    thread_ = std::thread([this] { Work(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: no thread for snapshots: {}", folder_->path(), error.what()));
  }
}

void SnapshotKeeper::Work() {
  try {
    if (device_ >= 0) UseGpu(device_);
  } catch (const Error&) {  // each snapshot will say so
  }
  const auto interval = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(schedule_.interval));
  Clock::time_point next = Clock::now() + interval;
  MutexLock lock(mutex_);
  const auto stops = [&]() GPM_NOT_CHECKED { return stop_; };
  while (!stopping_.wait_until(lock.native(), next, stops)) {
    next = Clock::now() + interval;
    lock.Unlock();
    Keep();
    log_.Tell();
    lock.Lock();
  }
}

void SnapshotKeeper::Keep() noexcept {
  const MutexLock lock(working_);
  if (!changed_.exchange(false)) return;
  try {
    TakeNext();
    const MutexLock failures(mutex_);
    error_.clear();
  } catch (const std::exception& error) {
    changed_ = true;
    NoteFailure(error.what());
  }
}

void SnapshotKeeper::TakeNext() {
  try {
    folder_->Trim(schedule_.chains);  // for the room
  } catch (const std::exception&) {   // Add tries that again, and says so
  }
  bool begins =
      newest_.empty() || increments_ >= kMostIncrements || increment_bytes_ >= whole_bytes_;
  std::string file;
  SnapshotResult result;
  for (int attempt = 1;; ++attempt) {
    file = folder_->NextFile(begins);
    try {
      result = take_(file, begins ? "" : newest_);
      break;
    } catch (const Error& error) {
      constexpr int kAttempts = 3;
      const bool in_the_way = error.code() == ErrorCode::kExists;
      // Somebody else took a snapshot that is the base of increments now; or the base is gone.
      const bool no_base =
          !begins && (error.code() == ErrorCode::kInvalidArgument ||
                      error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kDamaged);
      if (attempt == kAttempts || (!in_the_way && !no_base)) throw;
      if (in_the_way) folder_->SkipNumber();
      begins = true;
    }
  }
  if (begins) {
    increments_ = increment_bytes_ = 0;
    whole_bytes_ = result.bytes;
  } else {
    ++increments_;
    increment_bytes_ += result.bytes;
  }
  newest_ = std::move(file);
  folder_->Add(begins, schedule_.chains);
}

void SnapshotKeeper::NoteFailure(const char* error) noexcept {
  {
    const MutexLock lock(mutex_);
    ++failures_;
    try {
      error_ = error;
    } catch (...) {  // no memory for it
    }
  }
  log_.Add(LogLevel::kWarning,
           [&] { return fmt::format("{}: no snapshot: {}", folder_->path(), error); });
}

void SnapshotKeeper::Finish() {
  if (std::this_thread::get_id() == thread_.get_id()) {
    throw Error(ErrorCode::kBusy,
                "the store can't be closed by its log, on the thread that takes its snapshots");
  }
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (schedule_.at_close) Keep();
}

void SnapshotKeeper::NoteClosed(const SnapshotFolder::Saved& state) noexcept {
  if (changed_) return;
  try {
    folder_->SetSaved(state);
  } catch (const std::exception&) {  // the next session takes a snapshot that is none too many
  }
}

void SnapshotKeeper::AddTo(StoreStats* stats) {
  const MutexLock lock(mutex_);
  stats->snapshot_failures = failures_;
  stats->snapshot_error = error_;
}

void StoreImpl::KeepSnapshots(std::unique_ptr<SnapshotFolder> folder,
                              const SnapshotSchedule& schedule, std::optional<bool> changed) {
  const SnapshotId id = PoolId();
  if (!folder->chains().empty() && !folder->IsOf(id)) {
    throw Error(ErrorCode::kInvalidArgument,
                folder->path() +
                    ": has the snapshots of another pool; name a folder of its own, "
                    "or restore from this one where the pool is gone");
  }
  folder->RemovePartialFiles();  // which may take the room that the manifest wants
  folder->Admit(id);
  for (const std::string& warning : folder->warnings()) {
    log_.Add(LogLevel::kWarning, [&] { return warning; });
  }
  if (!changed) changed = SnapshotFolder::Saved{id, opened_sequence_} != folder->saved();
  const auto take = [this](const std::string& file, const std::string& base) {
    return SnapshotUntold(file, {.base = base});
  };
  keeper_ = std::make_unique<SnapshotKeeper>(std::move(folder), schedule, *changed, take, log_,
                                             executor_->device());
  keeper_->Start();
  log_.Tell();
}

void StoreImpl::KeepSnapshotsOfNew(std::unique_ptr<SnapshotFolder> folder,
                                   const SnapshotSchedule& schedule, std::optional<bool> changed) {
  try {
    KeepSnapshots(std::move(folder), schedule, changed);
  } catch (...) {
    pool_->mapping().RemoveOnClose(true);
    throw;
  }
}

}  // namespace gpm
