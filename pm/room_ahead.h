#ifndef GPM_PM_ROOM_AHEAD_H_
#define GPM_PM_ROOM_AHEAD_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "pm/mutex.h"

namespace gpm {

/// A range of a mapping that was mapped, and registered with the GPU, as one.
struct MappedStep {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t end() const { return offset + bytes; }
};

/// Makes room behind the end of a mapping before it is wanted, by two threads of its own: one gives
/// it its pages, the other registers what has them, step by step, so that both go on at once. What
/// is ready is nobody's until it is taken.
///
/// Thread safety: one owner calls; its threads work beside it.
///
/// Invariants:
///  1. The steps that are ready lie side by side, from the mapping's end to `end_`; behind them
///  lies
///     what has its pages, up to `filled_`. One thread works on the bytes behind `filled_`, the
///     other on those between the two, and on no others.
///  2. What failed has left nothing. It is not tried again until the mapping ends elsewhere: who
///     wants the room then meets the same failure, and tells of it.
///  3. At most what was last wanted is made, and nothing after that was taken or dropped.
class RoomAhead {
 public:
  /// Steps, in bytes: small, so that who waits for one does not wait long, nor does what else asks
  /// the kernel or the driver of the GPU meanwhile (DriverTurns); of pools of more than 4 GiB a
  /// 256th, so that there are few GPU registrations, and a 128th of what is still wanted where that
  /// is more.
  static constexpr std::uint64_t kStepBytes = std::uint64_t{16} << 20;
  static constexpr std::uint64_t kStepsOfPool = 256;
  static constexpr std::uint64_t kStepsOfWant = 128;
  static constexpr std::uint64_t kMostStepBytes = std::uint64_t{256} << 20;

  /// What makes a range ready, in two stages, which run beside each other on different ranges.
  struct Stages {
    /// Gives it its pages, or throws and leaves nothing of it. @param hurry somebody waits for it
    std::function<void(const MappedStep& step, bool hurry)> fill;
    /// Makes a step of what has its pages ready, or throws and leaves it as it was.
    std::function<void(const MappedStep& step)> finish;
    /// Leaves nothing of what has its pages, and is not ready. Throws nothing.
    std::function<void(const MappedStep& range)> discard;
  };

  /// @throws std::bad_alloc, std::system_error (no thread)
  explicit RoomAhead(Stages stages);
  /// Ends what is under way first. REQUIRES: everything was dropped.
  ~RoomAhead();
  RoomAhead(const RoomAhead&) = delete;
  RoomAhead& operator=(const RoomAhead&) = delete;

  /// Makes [from, end) ready, if no more is already. @param from the mapping's end
  void Want(std::uint64_t from, std::uint64_t end);
  /// Hands over the steps that [0, bytes) needs of those that are ready. Waits for those of them
  /// that are wanted, but not ready. If it needs more than those, no step is made from then on.
  /// @param steps they are added to @return whether it waited
  /// @throws std::bad_alloc; then all is as it was
  bool Take(std::uint64_t bytes, std::vector<MappedStep>* steps);
  /// Hands over all steps that are ready, the last ones; no step is made from then on.
  std::vector<MappedStep> Drop() noexcept;
  /// Lets go of one in a child that its process forked, which has no thread of it.
  static void Abandon(std::unique_ptr<RoomAhead> ahead) noexcept;
  /// Waits until what was wanted is ready, or has failed.
  void Await();

  /// Where what ends at `wanted` should end, if `needed` will do: where what is ready does, if that
  /// saves waiting for what is not.
  std::uint64_t EndWithoutWait(std::uint64_t needed, std::uint64_t wanted);
  /// Where the room that is ready ends, and where it will end; `from` when there is none.
  std::uint64_t ReadyEnd(std::uint64_t from);
  std::uint64_t WantedEnd(std::uint64_t from);

 private:
  void Fill();
  void Finish();
  bool TryReserve() noexcept GPM_REQUIRES(mutex_);
  /// How large a step is, that begins at `end_`.
  std::uint64_t StepBytes() const GPM_REQUIRES(mutex_);
  /// Whether there is, or will be, a step that is not ready.
  bool Pending() const GPM_REQUIRES(mutex_) {
    return filling_ || finishing_ || std::max(wanted_, filled_) > end_;
  }

  const Stages stages_;
  Mutex mutex_;
  std::condition_variable changed_;  ///< notified when anything that follows is
  std::vector<MappedStep> ready_ GPM_GUARDED_BY(mutex_);
  std::uint64_t end_ GPM_GUARDED_BY(mutex_) = 0;     ///< of what is ready
  std::uint64_t filled_ GPM_GUARDED_BY(mutex_) = 0;  ///< end of what has its pages
  std::uint64_t wanted_ GPM_GUARDED_BY(mutex_) = 0;  ///< until here
  std::uint64_t failed_at_ GPM_GUARDED_BY(mutex_) = ~std::uint64_t{0};
  bool filling_ GPM_GUARDED_BY(mutex_) = false;
  bool finishing_ GPM_GUARDED_BY(mutex_) = false;
  bool hurry_ GPM_GUARDED_BY(mutex_) = false;
  bool stop_ GPM_GUARDED_BY(mutex_) = false;
  RoomAhead* next_abandoned_ = nullptr;
  std::thread filler_;  // last: they use the others
  std::thread finisher_;
};

}  // namespace gpm

#endif  // GPM_PM_ROOM_AHEAD_H_
