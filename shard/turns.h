#ifndef GPM_SHARD_TURNS_H_
#define GPM_SHARD_TURNS_H_

#include <array>
#include <condition_variable>
#include <cstdint>

#include "pm/mutex.h"

namespace gpm {

/// In which order batches that are under way at once are carried out on this rank: one after the
/// other, as they are numbered, but for those that only find, which may run at once.
///
/// Thread safety: any thread, one for each batch.
class Turns {
 public:
  /// Batches that may be under way at once.
  static constexpr std::uint64_t kMost = 8;

  /// A batch's. Numbers begin at 0, and each is used once.
  class Turn {
   public:
    Turn(Turns& turns, std::uint64_t number) : turns_(turns), number_(number) {}
    ~Turn() { End(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Waits until those before have ended, or, of a batch that only finds, have begun such ones.
    void Begin(bool only_finds) { turns_.Begin(number_, only_finds); }
    /// Whether it began or not. May be called again.
    void End() { turns_.End(number_); }

   private:
    Turns& turns_;
    const std::uint64_t number_;
  };

 private:
  enum class State : std::uint8_t { kAwaited, kFinds, kEnded };

  void Begin(std::uint64_t number, bool only_finds) {
    MutexLock lock(mutex_);
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) {
      for (std::uint64_t before = first_; before < number; ++before) {
        const State state = states_[before % kMost];
        if (state != State::kEnded && !(only_finds && state == State::kFinds)) return false;
      }
      return true;
    });
    if (!only_finds) return;
    states_[number % kMost] = State::kFinds;
    changed_.notify_all();
  }
  void End(std::uint64_t number) {
    const MutexLock lock(mutex_);
    if (number < first_) return;
    states_[number % kMost] = State::kEnded;
    for (; states_[first_ % kMost] == State::kEnded; ++first_) {
      states_[first_ % kMost] = State::kAwaited;
    }
    changed_.notify_all();
  }

  Mutex mutex_;
  std::condition_variable changed_;                 ///< when a state does
  std::uint64_t first_ GPM_GUARDED_BY(mutex_) = 0;  ///< all before have ended
  /// Of the batches from first_ on.
  std::array<State, kMost> states_ GPM_GUARDED_BY(mutex_){};
};

}  // namespace gpm

#endif  // GPM_SHARD_TURNS_H_
