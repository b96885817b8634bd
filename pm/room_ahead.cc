#include "pm/room_ahead.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

namespace gpm {

RoomAhead::RoomAhead(Make make) : make_(std::move(make)), thread_([this] { Work(); }) {}

RoomAhead::~RoomAhead() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void RoomAhead::Want(std::uint64_t from, std::uint64_t end) {
  const MutexLock lock(mutex_);
  if (ready_.empty() && !Pending()) end_ = wanted_ = from;
  if (end <= wanted_ || failed_at_ == end_) return;
  wanted_ = end;
  changed_.notify_all();
}

bool RoomAhead::Take(std::uint64_t bytes, std::vector<MappedStep>* steps) {
  MutexLock lock(mutex_);
  const bool waits = end_ < bytes && Pending();
  hurry_ = waits;
  changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return end_ >= bytes || !Pending(); });
  hurry_ = false;
  const auto last = std::find_if(ready_.begin(), ready_.end(),
                                 [&](const MappedStep& step) { return step.offset >= bytes; });
  steps->insert(steps->end(), ready_.begin(), last);
  ready_.erase(ready_.begin(), last);
  return waits;
}

std::vector<MappedStep> RoomAhead::Drop() noexcept {
  MutexLock lock(mutex_);
  wanted_ = end_;  // (The thread sees it when the step under way is made.)
  changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return !making_; });
  end_ = wanted_ = 0;
  return std::exchange(ready_, {});
}

void RoomAhead::Abandon(std::unique_ptr<RoomAhead> ahead) noexcept {
  static std::atomic<RoomAhead*> abandoned{nullptr};
  RoomAhead* const last = ahead.release();
  last->next_abandoned_ = abandoned.exchange(last);
}

void RoomAhead::Await() {
  MutexLock lock(mutex_);
  changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return !Pending(); });
}

std::uint64_t RoomAhead::EndWithoutWait(std::uint64_t needed, std::uint64_t wanted) {
  const MutexLock lock(mutex_);
  return Pending() && end_ >= needed ? std::min(end_, wanted) : wanted;
}

std::uint64_t RoomAhead::ReadyEnd(std::uint64_t from) {
  const MutexLock lock(mutex_);
  return std::max(from, end_);
}

std::uint64_t RoomAhead::WantedEnd(std::uint64_t from) {
  const MutexLock lock(mutex_);
  return std::max({from, end_, wanted_});
}

bool RoomAhead::TryMake(const MappedStep& step, bool hurry) const noexcept {
  try {
    make_(step, hurry);
    return true;
  } catch (...) {  // who wants the room meets it too
    return false;
  }
}

bool RoomAhead::TryReserve() noexcept {
  try {
    ready_.reserve(ready_.size() + 1);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void RoomAhead::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return stop_ || wanted_ > end_; });
    if (stop_) return;
    // Of a large pool in larger steps, since each is a GPU registration; and where much is wanted.
    const std::uint64_t much = std::max(end_ / kStepsOfPool, (wanted_ - end_) / kStepsOfWant);
    const std::uint64_t most =
        std::clamp(much / kStepBytes * kStepBytes, kStepBytes, kMostStepBytes);
    const MappedStep step{end_, std::min(wanted_ - end_, most)};
    const bool hurry = hurry_;
    bool made = TryReserve();
    making_ = true;
    if (made) {
      lock.Unlock();
      made = TryMake(step, hurry);
      lock.Lock();
    }
    making_ = false;
    if (made) {
      ready_.push_back(step);  // for which memory was reserved: nobody else adds any
      end_ = step.end();
      wanted_ = std::max(wanted_, end_);
    } else {
      wanted_ = failed_at_ = end_;
    }
    changed_.notify_all();
  }
}

}  // namespace gpm
