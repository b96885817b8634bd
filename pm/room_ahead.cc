#include "pm/room_ahead.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

namespace gpm {

RoomAhead::RoomAhead(Stages stages) : stages_(std::move(stages)), filler_([this] { Fill(); }) {
  try {
    finisher_ = std::thread([this] { Finish(); });
  } catch (...) {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    filler_.join();
    throw;
  }
}

RoomAhead::~RoomAhead() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  filler_.join();
  finisher_.join();
}

void RoomAhead::Want(std::uint64_t from, std::uint64_t end) {
  const MutexLock lock(mutex_);
  if (ready_.empty() && !Pending()) end_ = filled_ = wanted_ = from;
  if (end <= wanted_ || failed_at_ == filled_) return;
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
  wanted_ = end_;  // (The threads see it when what is under way is made.)
  changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return !Pending(); });
  end_ = filled_ = wanted_ = 0;
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

bool RoomAhead::TryReserve() noexcept {
  try {
    ready_.reserve(ready_.size() + 1);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::uint64_t RoomAhead::StepBytes() const {
  // Of a large pool in larger steps, since each is a GPU registration; and where much is wanted.
  const std::uint64_t left = std::max(wanted_, filled_) - end_;  // (Drop may want less.)
  const std::uint64_t much = std::max(end_ / kStepsOfPool, left / kStepsOfWant);
  return std::clamp(much / kStepBytes * kStepBytes, kStepBytes, kMostStepBytes);
}

void RoomAhead::Fill() {
  MutexLock lock(mutex_);
  for (;;) {
    std::uint64_t most = 0;
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) {
      most = StepBytes();
      // (Not far ahead of the other thread: who drops all waits for both.)
      return stop_ || (wanted_ > filled_ && filled_ - end_ <= most);
    });
    if (stop_) return;
    const MappedStep step{filled_, std::min(wanted_ - filled_, most)};
    const bool hurry = hurry_;
    filling_ = true;
    lock.Unlock();
    bool made = true;
    try {
      stages_.fill(step, hurry);
    } catch (...) {  // who wants the room meets it too
      made = false;
    }
    lock.Lock();
    filling_ = false;
    if (made) {
      filled_ = step.end();
      wanted_ = std::max(wanted_, filled_);
    } else {
      wanted_ = failed_at_ = filled_;
    }
    changed_.notify_all();
  }
}

void RoomAhead::Finish() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return stop_ || filled_ > end_; });
    if (stop_) return;
    const MappedStep step{end_, std::min(filled_ - end_, StepBytes())};
    finishing_ = true;
    bool made = TryReserve();
    if (made) {
      lock.Unlock();
      try {
        stages_.finish(step);
      } catch (...) {  // who wants the room meets it too
        made = false;
      }
      lock.Lock();
    }
    if (made) {
      ready_.push_back(step);  // for which memory was reserved: nobody else adds any
      end_ = step.end();
    } else {
      wanted_ = filled_;  // so that no more gets pages
      changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return !filling_; });
      stages_.discard({end_, filled_ - end_});
      wanted_ = filled_ = failed_at_ = end_;
    }
    finishing_ = false;
    changed_.notify_all();
  }
}

}  // namespace gpm
