#ifndef GPM_SHARD_TURNS_H_
#define GPM_SHARD_TURNS_H_

#include <fmt/format.h>

#include <array>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <optional>
#include <string>

#include "gpmstore/error.h"
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
    /// @throws Error(kIo) when one of them was lost
    void Begin(bool only_finds) { turns_.Begin(number_, only_finds); }
    /// Whether it began or not. May be called again.
    void End() { turns_.End(number_); }
    /// It ends, if it has not yet, without having been carried out on all ranks: so no later one
    /// is.
    void Break(const char* why) { turns_.Break(number_, why); }

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
        const State state = StateOf(before);
        if (state != State::kEnded && !(only_finds && state == State::kFinds)) return false;
      }
      return true;
    });
    if (broken_) throw Error(ErrorCode::kIo, *broken_);
    if (!only_finds) return;
    StateOf(number) = State::kFinds;
    changed_.notify_all();
  }
  void End(std::uint64_t number) {
    const MutexLock lock(mutex_);
    EndLocked(number);
  }
  void Break(std::uint64_t number, const char* why) {
    const MutexLock lock(mutex_);
    if (number < first_ || StateOf(number) == State::kEnded) return;
    if (!broken_) broken_ = fmt::format("a batch before was lost: {}", why);
    EndLocked(number);
  }
  void EndLocked(std::uint64_t number) GPM_REQUIRES(mutex_) {
    if (number < first_) return;
    StateOf(number) = State::kEnded;
    for (; StateOf(first_) == State::kEnded; ++first_) StateOf(first_) = State::kAwaited;
    changed_.notify_all();
  }
  /// REQUIRES: it is not before first_.
  State& StateOf(std::uint64_t number) GPM_REQUIRES(mutex_) {
    assert(number - first_ < kMost);
    return states_[number % kMost];
  }

  Mutex mutex_;
  std::condition_variable changed_;                 ///< when a state does
  std::uint64_t first_ GPM_GUARDED_BY(mutex_) = 0;  ///< all before have ended
  /// Of the batches from first_ on.
  std::array<State, kMost> states_ GPM_GUARDED_BY(mutex_){};
  std::optional<std::string> broken_ GPM_GUARDED_BY(mutex_);  ///< why no batch is carried out
};

}  // namespace gpm

#endif  // GPM_SHARD_TURNS_H_
