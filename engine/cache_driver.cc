#include "engine/cache_driver.h"

#include <algorithm>

#include "engine/wait_until.h"

namespace gpm {
namespace {

/// Of the buckets, where the options leave it open. On the CPU copies in DRAM would pay only on
/// slow media.
constexpr double kCudaFraction = 0.2;

}  // namespace

class CacheDriver::Turn {
 public:
  /// @param wait else it may be without the turn
  Turn(CacheDriver& driver, bool wait) : driver_(driver) {
    std::unique_lock lock(driver.mutex_);
    if (wait) WaitUntil(lock, driver.changed_, driver.tracer_, [&] { return !driver.busy_; });
    has_ = !driver.busy_;
    driver.busy_ = true;
  }
  ~Turn() {
    if (!has_) return;
    const std::lock_guard lock(driver_.mutex_);
    driver_.busy_ = false;
    driver_.changed_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool has() const { return has_; }

 private:
  CacheDriver& driver_;
  bool has_ = false;
};

void CacheDriver::Reset(Executor& executor, const TableView& table) {
  const Turn turn(*this, true);
  if (shape_.copies != 0) executor.AwaitCacheStep();
  executor.SetTable(table);
  executor.SetCache(CacheShape{}, options_.policy);
  CacheOptions options = options_;
  if (options.bytes != 0) {  // of all that the store takes
    options.bytes = std::max(options.bytes, executor.gpu_bytes() + 1) - executor.gpu_bytes();
  }
  const double by_default = executor.kind() == ExecutorKind::kCuda ? kCudaFraction : 0;
  const CacheShape shape = ShapeCache(options, by_default, table);
  executor.SetCache(shape, options.policy);
  const std::lock_guard lock(mutex_);
  shape_ = shape;
  on_ = shape.copies != 0;
  phase_ = Phase::kIdle;
  ended_ = begun_;
  operations_ = 0;
  due_at_ = 0;
  fresh_ = true;
  stats_.copies = shape.copies;
  stats_.blocks = shape.blocks;
  stats_.bytes = shape.bytes();
  stats_.policy = shape.copies == 0 ? CachePolicy::kOff : options_.policy;
}

void CacheDriver::Stop(Executor& executor) {
  const Turn turn(*this, true);
  if (shape_.copies != 0) executor.AwaitCacheStep();
  const std::lock_guard lock(mutex_);
  shape_.copies = 0;
  on_ = false;
  ended_ = begun_ = requested_;
}

void CacheDriver::Advance(Executor& executor, std::uint64_t operations) {
  if (!on_ && operations > 0) return;
  const Turn turn(*this, false);
  if (!turn.has()) return;
  operations_ += operations;
  Step(executor);
}

void CacheDriver::Step(Executor& executor) {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kFilling && executor.CacheStepEnded()) {
      phase_ = Phase::kIdle;
      ended_ = begun_;
      ++stats_.loads;
      stats_.load_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    if (options_.load_interval != 0 && operations_ >= due_at_ && requested_ == begun_) {
      ++requested_;
    }
    due = phase_ == Phase::kIdle && begun_ < requested_;
    if (due) {
      begun_ = requested_;
      if (shape_.copies == 0) {
        ended_ = begun_;
        due = false;
      }
    }
  }
  if (due) {
    start_ = std::chrono::steady_clock::now();
    // The first loading hardly knows what is hot; the second is not to be waited for long.
    due_at_ =
        fresh_ ? std::max<std::uint64_t>(1, options_.load_interval / 8) : options_.load_interval;
    operations_ = 0;
    executor.AssignCopies();
    SetPhase(Phase::kAssigning);
  }
  if (phase_ == Phase::kAssigning && executor.CacheStepEnded()) {
    grace_id_ = batches_.newest();
    SetPhase(Phase::kGrace);
  }
  // A mutant of the protocol does not wait.
  const bool waits = tracer_ == nullptr || tracer_->Shared(gpm::Step::kCacheGrace);
  if (phase_ == Phase::kGrace && !(waits && batches_.run_up_to(grace_id_))) {
    SetPhase(Phase::kFilling);  // first, as it may take long: who waits does not wait for the grace
    executor.FillCopies(fresh_);
    fresh_ = false;
  }
}

void CacheDriver::SetPhase(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
}

std::uint64_t CacheDriver::Request() {
  const std::lock_guard lock(mutex_);
  return requested_ = begun_ + 1;
}

bool CacheDriver::Ended(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  return ended_ >= number;
}

std::uint64_t CacheDriver::WaitsFor() {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kGrace ? grace_id_ : 0;
}

void CacheDriver::AwaitStep(Executor& executor) {
  {
    std::unique_lock lock(mutex_);
    WaitUntil(lock, changed_, tracer_, [&] { return !busy_; });
    if (phase_ != Phase::kAssigning && phase_ != Phase::kFilling) return;
  }
  executor.AwaitCacheStep();
}

CacheStats CacheDriver::Stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace gpm
