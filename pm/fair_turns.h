#ifndef GPM_PM_FAIR_TURNS_H_
#define GPM_PM_FAIR_TURNS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <optional>

#include "pm/mutex.h"

namespace gpm {

/// Turns at something that one uses at a time, in the order in which they asked for it. (A mutex
/// has no order: who unlocks it and locks it again at once mostly comes before those who wait.)
///
/// Thread safety: any thread. A thread has one turn at a time.
class FairTurns {
 public:
  /// Waits for it, and has it during its life.
  class Turn {
   public:
    explicit Turn(FairTurns& turns) : turns_(turns) { turns_.Take(); }
    ~Turn() { turns_.End(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Whether anybody waits. Once that is so, it stays so until the turn ends.
    bool IsAwaited() const { return turns_.waiting() > 0; }

   private:
    FairTurns& turns_;
  };

  /// Those who wait.
  std::uint64_t waiting() {
    const MutexLock lock(mutex_);
    return asked_ - ended_ - (asked_ > ended_ ? 1 : 0);
  }

 private:
  void Take() {
    MutexLock lock(mutex_);
    const std::uint64_t before = asked_++;
    ended_changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) { return ended_ == before; });
  }
  void End() {
    const MutexLock lock(mutex_);
    ++ended_;
    ended_changed_.notify_all();
  }

  Mutex mutex_;
  std::condition_variable ended_changed_;
  std::uint64_t asked_ GPM_GUARDED_BY(mutex_) = 0;  ///< turns; each has its number
  std::uint64_t ended_ GPM_GUARDED_BY(mutex_) = 0;
};

/// The pieces of an array that are worked on in one turn: all that are left, but if others wait,
/// only so many bytes.
///
/// Thread safety: any thread, while the turn lasts.
class PiecesOfTurn {
 public:
  /// @param turn outlives it @param first where it begins @param last the array ends
  /// @param piece bytes @param if_awaited bytes, at least, before it ends for others
  PiecesOfTurn(const FairTurns::Turn& turn, std::uint64_t first, std::uint64_t last,
               std::uint64_t piece, std::uint64_t if_awaited)
      : turn_(turn), last_(last), piece_(piece), awaited_from_(first + if_awaited), next_(first) {}

  /// The next piece's place; none: the turn is over.
  std::optional<std::uint64_t> Take() {
    std::uint64_t at = next_.load(std::memory_order_relaxed);
    do {
      if (at >= last_ || (at >= awaited_from_ && turn_.IsAwaited())) return std::nullopt;
    } while (!next_.compare_exchange_weak(at, at + piece_, std::memory_order_relaxed));
    return at;
  }
  /// Where the next turn begins. REQUIRES: this one is over for all who took pieces.
  std::uint64_t next() const { return next_.load(std::memory_order_relaxed); }

 private:
  const FairTurns::Turn& turn_;
  const std::uint64_t last_;
  const std::uint64_t piece_;
  const std::uint64_t awaited_from_;
  std::atomic<std::uint64_t> next_;
};

}  // namespace gpm

#endif  // GPM_PM_FAIR_TURNS_H_
