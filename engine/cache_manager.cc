#include "engine/cache_manager.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/wait_until.h"
#include "pm/clock.h"

namespace gpm {
namespace {

/// On the CPU, memory that is slower than DRAM alone would make them pay.
CacheDefaults DefaultsOf(const Executor& executor) {
  return {.directory = executor.kind() == ExecutorKind::kCuda,
          .cache_bytes = executor.CacheBudget(),
          .fill = executor.CacheFill()};
}

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

/// @return false for want of memory
bool TrySetAccelerators(Executor& executor, const CacheShape& shape, CachePolicy policy,
                        std::uint32_t used) {
  try {
    executor.SetAccelerators(shape, policy, std::min(used, shape.buckets));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu || shape.buckets == 0) throw;
  } catch (const std::bad_alloc&) {
    if (shape.buckets == 0) throw;
  }
  return false;
}

}  // namespace

class CacheManager::Turn {
 public:
  /// @param wait else it may be without the turn
  Turn(CacheManager& manager, bool wait) : manager_(manager) {
    MutexLock lock(manager.mutex_);
    if (wait)
      WaitUntil(lock, manager.changed_, manager.tracer_,
                [&]() GPM_REQUIRES(manager.mutex_) { return !manager.busy_; });
    has_ = !manager.busy_;
    manager.busy_ = true;
  }
  ~Turn() {
    if (!has_) return;
    const MutexLock lock(manager_.mutex_);
    manager_.busy_ = false;
    manager_.changed_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool has() const { return has_; }

 private:
  CacheManager& manager_;
  bool has_ = false;
};

void CacheManager::EndRefresh() {
  refreshing_ = false;
  ended_ = begun_;
  range_.End();
}

void CacheManager::CountRefresh(double now) {
  EndRefresh();
  ++stats_.refreshes;
  stats_.refresh_seconds = executor_.CacheRefreshSeconds();
  schedule_.End(totals_, now, stats_.refresh_seconds);
}

void CacheManager::CutRefresh() {
  if (!refreshing_) return;
  const double now = Now();
  const bool ended = executor_.CacheRefreshEnded();
  if (!ended) executor_.CutCacheRefresh();
  const MutexLock lock(mutex_);
  if (ended) return CountRefresh(now);
  schedule_.End(totals_, now, 0);
  begun_ = ended_;  // who waits for it waits for the next one
  EndRefresh();
}

void CacheManager::BeginChange() {
  const MutexLock lock(mutex_);
  on_ = false;
  changing_ = true;
  EndRefresh();
}

void CacheManager::SetTable(const TableView& table) {
  const Turn turn(*this, true);
  CutRefresh();
  executor_.SetTable(table, false);
  BeginChange();
}

void CacheManager::KeepTable(const TableView& table) {
  const Turn turn(*this, true);
  executor_.SetTable(table, true);
}

void CacheManager::Drop() {
  const Turn turn(*this, true);
  CutRefresh();
  executor_.SetAccelerators(CacheShape{}, options_.policy, 0);
  BeginChange();
}

void CacheManager::Reset(const TableView& table, std::uint32_t new_levels) {
  const Turn turn(*this, true);
  CutRefresh();
  {
    const MutexLock lock(mutex_);
    changing_ = false;  // also if it fails, and there is no cache then
  }
  CacheOptions options = options_;
  if (options.bytes != 0) {  // of all that the store takes
    executor_.SetAccelerators(CacheShape{}, options.policy, 0);
    options.bytes = std::max(options.bytes, executor_.gpu_bytes() + 1) - executor_.gpu_bytes();
  }
  CacheShape shape = ShapeCache(options, DefaultsOf(executor_), table);
  // The new ones come last.
  const std::uint32_t used =
      new_levels == 0 ? shape.buckets
                      : table.level_views[std::min(new_levels, table.levels) - 1].first_index;
  // What there is no memory for is left out: more and more of the cache first, then long keys, then
  // the directory.
  while (!TrySetAccelerators(executor_, shape, options.policy, used)) {
    if (shape.frames != 0) {
      shape.frames /= 2;
    } else if (shape.key_words > 1) {
      shape.key_words = 0;
    } else {
      shape = {};
    }
  }
  SetShape(shape);
}

void CacheManager::SetShape(const CacheShape& shape) {
  const MutexLock lock(mutex_);
  on_ = shape.frames != 0;
  opened_ = false;
  EndRefresh();
  schedule_.Reset(std::uint64_t{shape.buckets} * shape.slots);
  aged_at_ = totals_.found;
  stats_.directory = shape.buckets != 0;
  stats_.directory_bytes = shape.directory_bytes();
  stats_.frames = shape.frames;
  stats_.bytes = shape.cache_bytes();
  stats_.policy = on_ ? options_.policy : CachePolicy::kOff;
}

bool CacheManager::FollowGrowth(const TableView& table) {
  // (Of limited memory there may be none for two directories at once.)
  if (limited()) return false;
  const Turn turn(*this, true);
  CutRefresh();
  const CacheShape shape = ShapeCache(options_, DefaultsOf(executor_), table);
  if (executor_.FollowGrowth(table, shape, options_.policy)) {
    SetShape(shape);
    return true;
  }
  executor_.SetTable(table, false);  // what it had may be gone: nobody refreshes that
  BeginChange();
  return false;
}

void CacheManager::Stop() {
  const Turn turn(*this, true);
  {
    const MutexLock lock(mutex_);
    on_ = changing_ = false;
    ended_ = begun_ = requested_;
  }
  const auto await_others = [&] {
    MutexLock lock(mutex_);
    WaitUntil(lock, changed_, tracer_, [&]() GPM_REQUIRES(mutex_) { return waiting_ == 0; });
  };
  try {
    if (std::exchange(refreshing_, false)) executor_.CutCacheRefresh();
  } catch (...) {
    await_others();
    throw;
  }
  await_others();
}

bool CacheManager::Advance(Haste haste, std::uint64_t operations, const FindTotals& totals) {
  if (!on_ && haste == Haste::kBegin) return true;
  const Turn turn(*this, haste == Haste::kWait);
  if (!turn.has()) return true;
  // (Another thread may have brought later totals already.)
  totals_.found = std::max(totals_.found, totals.found);
  totals_.hits = std::max(totals_.hits, totals.hits);
  const double now = Now();
  const CacheNeed need = on_ && haste != Haste::kLook ? schedule_.Advance(operations, totals_, now)
                                                      : CacheNeed::kNothing;
  const bool ended = refreshing_ && executor_.CacheRefreshEnded();
  const auto may_begin = [&] {
    return haste != Haste::kLook || executor_.kind() == ExecutorKind::kCuda;
  };
  const CacheShape* const shape = on_ && may_begin() && (!refreshing_ || ended)
                                      ? executor_.BackCache(haste == Haste::kWait)
                                      : nullptr;
  if (shape != nullptr && !opened_) {
    if (options_.policy == CachePolicy::kTinyLfu && shape->frames >= shape->buckets) {
      executor_.OpenCache();
    }
    opened_ = true;
  }
  {
    const MutexLock lock(mutex_);
    if (ended) {
      CountRefresh(now);
    } else if (!refreshing_ && need == CacheNeed::kRefresh && requested_ == begun_) {
      ++requested_;
    }
    if (refreshing_) return true;
    if (changing_) return false;
    if (begun_ != requested_ && !on_) {
      ended_ = begun_ = requested_;
      return true;
    }
    if (begun_ != requested_ && shape != nullptr) {
      begun_ = requested_;
      refreshing_ = true;
      stats_.frames = shape->frames;
      stats_.bytes = shape->cache_bytes();
    }
  }
  if (refreshing_) {
    schedule_.Begin();
    range_ = ProfilerRange("refresh");
    try {
      executor_.RefreshCache(totals_.found - std::exchange(aged_at_, totals_.found));
    } catch (...) {  // what it left is for the next one: frames that hold nothing yet
      schedule_.End(totals_, now, 0);
      const MutexLock lock(mutex_);
      EndRefresh();
      throw;
    }
  } else if (need == CacheNeed::kAgeing && options_.policy == CachePolicy::kTinyLfu) {
    executor_.AgeCache(totals_.found - std::exchange(aged_at_, totals_.found));
  }
  return true;
}

std::uint64_t CacheManager::Request() {
  const MutexLock lock(mutex_);
  return requested_ = std::max(requested_, begun_ + 1);  // (one that was cut has not begun)
}

bool CacheManager::Ended(std::uint64_t number) {
  const MutexLock lock(mutex_);
  return ended_ >= number;
}

void CacheManager::Await() {
  {
    MutexLock lock(mutex_);
    WaitUntil(lock, changed_, tracer_, [&]() GPM_REQUIRES(mutex_) { return !busy_; });
    if (!refreshing_) return;
    ++waiting_;
  }
  const auto end = [&] {
    const MutexLock lock(mutex_);
    --waiting_;
    changed_.notify_all();
  };
  try {
    executor_.AwaitCacheRefresh();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void CacheManager::WithoutRefresh(const std::function<void()>& action) {
  const Turn turn(*this, true);
  CutRefresh();
  action();
}

CacheStats CacheManager::Stats() {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace gpm
