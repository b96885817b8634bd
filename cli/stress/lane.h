#ifndef GPM_CLI_STRESS_LANE_H_
#define GPM_CLI_STRESS_LANE_H_

#include <atomic>
#include <cstdint>

#include "cli/key_log.h"
#include "cli/stress/answer_check.h"
#include "cli/stress/arrays.h"
#include "cli/stress/batch_plan.h"
#include "cli/stress/round_state.h"

namespace gpm::stress {

/// One batch after another, with keys of its own: at most one is in flight, so that it is known
/// what its own keys hold. A thread has several lanes, and so several batches in flight.
///
/// Thread safety: none.
class Lane {
 public:
  /// @param stream of this lane, or of another one of the thread
  Lane(RoundState& round, unsigned number, unsigned thread, LaneMemory& memory, Stream stream);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  bool in_flight() const { return in_flight_; }
  /// Draws a batch and gives it to the store. REQUIRES: !in_flight(). @throws Error
  /// @param loads it is a bulk load of all of the lane's keys
  void Start(bool loads = false);
  /// Waits for it and checks it. REQUIRES: in_flight(). @throws Error
  void Finish();

  /// There is no batch after this one. REQUIRES: !in_flight()
  void Leave() { left_ = true; }

  const KeyModel& model() const { return model_; }

  // For who takes snapshots.

  /// Whether the lane has seen this RoundState::recording, or will see no more.
  bool Follows(std::uint64_t recording) const { return left_ || following_ == recording; }
  /// Of the last time that recording was odd. REQUIRES: it is even, and Follows
  const cli::KeyLog& log() const { return log_; }

 private:
  void FollowRecording();
  void Fill();
  void Run();

  RoundState& round_;
  const Drawer drawer_;
  LaneMemory& memory_;
  const Stream stream_;
  Random random_;
  KeyModel model_;
  std::uint64_t batches_ = 0;
  BatchPlan batch_;
  Rows rows_;
  Interval interval_{};
  bool in_flight_ = false;
  cli::KeyLog log_;
  std::atomic<std::uint64_t> following_{0};
  std::atomic<bool> left_{false};
  Ticket ticket_;  ///< last, so that it is waited for first
};

/// Nanoseconds of a clock that all threads share.
std::uint64_t Now();

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_LANE_H_
