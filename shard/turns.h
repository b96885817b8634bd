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

/// In which order batches that are under way at once take their steps on this rank. Ranks agree on
/// one after the other, as they are numbered, and so they are carried out, but for those that only
/// find, which may be carried out at once.
///
/// Thread safety: any thread, one for each batch.
class Turns {
 public:
  /// Batches from the first one that has not ended to the last one that has begun, at most.
  static constexpr std::uint64_t kMost = 8;

  /// A batch's. Numbers begin at 0, and each is used once. The steps may be left out, at the end.
  class Turn {
   public:
    Turn(Turns& turns, std::uint64_t number) : turns_(turns), number_(number) {}
    ~Turn() { End(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Waits until those before have been agreed on: so no rank waits for another to agree for
    /// longer than that works on a batch.
    void BeginToAgree() { turns_.BeginToAgree(number_); }
    void Agreed() { turns_.Mark(number_, &Batch::agreed); }
    /// Waits until those before have ended, or, of a batch that only finds, have begun such ones.
    /// @throws Error(kIo) when one of them was lost
    void Begin(bool only_finds) { turns_.Begin(number_, only_finds); }
    /// Whether it began or not. May be called again.
    void End() { turns_.Mark(number_, &Batch::ended); }
    /// It ends, if it has not yet, without having been carried out on all ranks: so no later one
    /// is.
    void Break(const char* why) { turns_.Break(number_, why); }

   private:
    Turns& turns_;
    const std::uint64_t number_;
  };

 private:
  struct Batch {
    bool agreed = false;
    bool finds = false;  ///< has begun to, and does nothing else
    bool ended = false;
  };

  void BeginToAgree(std::uint64_t number) {
    MutexLock lock(mutex_);
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) {
      return broken_ || AllBefore(number, [](const Batch& b) { return b.agreed || b.ended; });
    });
  }
  void Begin(std::uint64_t number, bool only_finds) {
    MutexLock lock(mutex_);
    changed_.wait(lock.native(), [&]() GPM_REQUIRES(mutex_) {
      return broken_ ||
             AllBefore(number, [&](const Batch& b) { return b.ended || (only_finds && b.finds); });
    });
    if (broken_) throw Error(ErrorCode::kIo, *broken_);
    if (only_finds) MarkLocked(number, &Batch::finds);
  }
  void Mark(std::uint64_t number, bool Batch::*what) {
    const MutexLock lock(mutex_);
    if (number >= first_) MarkLocked(number, what);
  }
  void Break(std::uint64_t number, const char* why) {
    const MutexLock lock(mutex_);
    if (number < first_ || At(number).ended) return;
    if (!broken_) broken_ = fmt::format("a batch before was lost: {}", why);
    MarkLocked(number, &Batch::ended);
  }

  void MarkLocked(std::uint64_t number, bool Batch::*what) GPM_REQUIRES(mutex_) {
    At(number).*what = true;
    for (; At(first_).ended; ++first_) At(first_) = {};
    changed_.notify_all();
  }
  template <class Has>
  bool AllBefore(std::uint64_t number, const Has& has) GPM_REQUIRES(mutex_) {
    for (std::uint64_t before = first_; before < number; ++before) {
      if (!has(At(before))) return false;
    }
    return true;
  }
  /// REQUIRES: it is not before first_.
  Batch& At(std::uint64_t number) GPM_REQUIRES(mutex_) {
    assert(number - first_ < kMost);
    return batches_[number % kMost];
  }

  Mutex mutex_;
  std::condition_variable changed_;                            ///< when what follows does
  std::uint64_t first_ GPM_GUARDED_BY(mutex_) = 0;             ///< all before have ended
  std::array<Batch, kMost> batches_ GPM_GUARDED_BY(mutex_){};  ///< from first_ on
  std::optional<std::string> broken_ GPM_GUARDED_BY(mutex_);   ///< why no batch is carried out
};

}  // namespace gpm

#endif  // GPM_SHARD_TURNS_H_
