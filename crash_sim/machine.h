#ifndef GPM_CRASH_SIM_MACHINE_H_
#define GPM_CRASH_SIM_MACHINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "crash_sim/scheduler.h"
#include "crash_sim/trace.h"
#include "pm/tracer.h"

namespace gpm::crash {

/// The machine that a store runs on in these tests: carries out each access on the pool's mapped
/// memory, records it, lets a scheduler choose who goes on, and can leave out one step of the
/// protocols.
///
/// Without a scheduler threads run one after another. With one, which its owner runs, every access
/// is a switch point.
///
/// Thread safety: one thread of the operating system at a time (fibers share it).
///
/// Invariants:
///  1. What it recorded, applied to what the file held at Begin, is what the file holds now: every
///     access comes here. (Trace::FirstDifference shows that none escaped.)
///  2. No access outside the pool is carried out: it throws std::logic_error.
class Machine : public PmTracer {
 public:
  /// Thrown through the store when its process is killed.
  struct Killed {};

  explicit Machine(Scheduler* scheduler = nullptr) : scheduler_(scheduler) {}

  /// Forgets what was recorded. `file_bytes` is the file's size now; 0: it does not exist yet.
  void Begin(std::uint64_t file_bytes);
  /// Leaves out a step from now on: a flush or fence is not carried out, a compare-and-swap stores
  /// without comparing and says that it swapped, a lock is not taken. Step::kOther: none.
  void LeaveOut(Step step) { left_out_ = step; }
  Step left_out() const { return left_out_; }
  /// How often a step was met, left out or not.
  std::uint64_t met(Step step) const { return met_[static_cast<std::size_t>(step)]; }
  /// Kills the process at the store, compare-and-swap, flush or fence after this many more: it and
  /// all later accesses throw Killed and do nothing.
  void KillAt(std::uint64_t access) { accesses_left_ = access + 1; }
  /// There is no kill to come, and accesses are those of another process if there was one.
  void Revive();
  /// What comes next is done by another thread, when there is no scheduler: a store's caller may
  /// be any.
  void ChangeThread() { thread_ = next_thread_++; }
  /// Records a mark of the caller's.
  void Mark(std::uint64_t number);
  const Trace& trace() const { return trace_; }

  void Mapped(std::byte* base, std::uint64_t bytes) override;
  std::uint64_t Load(const std::uint64_t* word) override;
  void Store(std::uint64_t* word, std::uint64_t value) override;
  bool Cas(Step step, std::uint64_t* word, std::uint64_t expected, std::uint64_t desired) override;
  void Flush(Step step, const void* address, std::uint64_t bytes) override;
  void Fence(Step step) override;
  void Acquire(Step step, std::uint32_t* lock) override;
  void Release(Step step, std::uint32_t* lock) override;
  bool Shared(Step step) override;
  void Pause() override;
  void RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) override;

 protected:
  /// Before each access: a switch point. @throws Killed
  void Begins();
  /// The same, for one that KillAt counts. @return whether the step is left out
  bool Begins(Step step);
  bool IsLeftOut(Step step) const { return step != Step::kOther && step == left_out_; }
  bool Scheduled() const { return scheduler_ != nullptr && scheduler_->running(); }
  std::uint32_t Thread() const { return Scheduled() ? scheduler_->current() : thread_; }
  /// Offset of [address, address + bytes). @throws std::logic_error when it is not in the pool
  std::uint64_t OffsetOf(const void* address, std::uint64_t bytes) const;
  std::uint64_t WordOffset(const std::uint64_t* word) const;

  Scheduler* const scheduler_;
  Trace trace_;

 private:
  Step left_out_ = Step::kOther;
  std::array<std::uint64_t, static_cast<std::size_t>(Step::kCount)> met_{};
  std::uint64_t accesses_left_ = 0;  ///< until the kill; 0: none comes
  bool killed_ = false;
  const std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t thread_ = 0;       ///< the running one, without a scheduler
  std::uint32_t next_thread_ = 1;  ///< no number is used for two
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_MACHINE_H_
