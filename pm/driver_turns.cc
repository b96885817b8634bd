#include "pm/driver_turns.h"

namespace gpm {
namespace {

/// Turns that this thread has, one within the other.
thread_local int turns_of_thread = 0;

}  // namespace

DriverTurns& DriverTurns::Here() {
  static auto* const turns = new DriverTurns;  // never destroyed: threads may outlive main
  return *turns;
}

void DriverTurns::BeginLaunching() {
  if (turns_of_thread++ > 0) return;
  MutexLock lock(mutex_);
  if (registering_ || wants_to_register_ > 0) {
    const std::uint64_t before = registrations_;
    ++wants_to_launch_;
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) {
      return !registering_ && (wants_to_register_ == 0 || registrations_ > before);
    });
    --wants_to_launch_;
    if (registrations_ > before && first_ > 0) --first_;
  }
  ++launching_;
}

void DriverTurns::EndLaunching() {
  if (--turns_of_thread > 0) return;
  const MutexLock lock(mutex_);
  if (--launching_ == 0) changed_.notify_all();
}

DriverTurns::Break::Break(DriverTurns& turns) : turns_(turns), depth_(turns_of_thread) {
  if (depth_ == 0) return;
  turns_of_thread = 1;
  turns_.EndLaunching();
}

DriverTurns::Break::~Break() {
  if (depth_ == 0) return;
  turns_.BeginLaunching();
  turns_of_thread = depth_;
}

DriverTurns::Registering::Registering(DriverTurns& turns)
    : turns_(turns), is_part_(turns_of_thread++ > 0) {
  if (is_part_) return;
  MutexLock lock(turns_.mutex_);
  ++turns_.wants_to_register_;
  turns_.changed_.wait(lock.native(), [&]() GPM_NOT_CHECKED {
    return turns_.launching_ == 0 && !turns_.registering_ && turns_.first_ == 0;
  });
  --turns_.wants_to_register_;
  turns_.registering_ = true;
}

DriverTurns::Registering::~Registering() {
  --turns_of_thread;
  if (is_part_) return;
  const MutexLock lock(turns_.mutex_);
  turns_.registering_ = false;
  ++turns_.registrations_;
  turns_.first_ = turns_.wants_to_launch_;
  turns_.changed_.notify_all();
}

}  // namespace gpm
