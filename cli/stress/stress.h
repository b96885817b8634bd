#ifndef GPM_CLI_STRESS_STRESS_H_
#define GPM_CLI_STRESS_STRESS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/stress/arrays.h"
#include "cli/stress/round_plan.h"
#include "cli/stress/round_state.h"

namespace gpm::stress {

/// Rounds of batches on stores of all configurations, from several threads at once, each answer
/// checked; see round_plan.h, batch_plan.h, answer_check.h and round_end.h for what is drawn and
/// what is checked. Each round has a temporary pool, which has no name once it is made.
///
/// Thread safety: one thread.
class Stress {
 public:
  /// @param interrupted ends the round, and the rounds, when set; outlives this
  /// @param tell is given, once, a report of what was wrong, with the seed that begins with that
  ///        round; on any thread
  Stress(const StressOptions& options, const std::atomic<bool>& interrupted,
         std::function<void(const std::string& report)> tell);
  ~Stress();

  /// Ends the process with status 1 when nothing goes on any more.
  /// @param progress is called before each round
  /// @return false when something was wrong, and was told
  bool Run(const std::function<void()>& progress);

  const Totals& totals() const { return totals_; }

 private:
  void RunRound(const RoundPlan& plan);
  void Tell(const std::string& wrong) const;

  const StressOptions options_;
  const std::atomic<bool>& interrupted_;
  const std::function<void(const std::string&)> tell_;
  Totals totals_;
  Findings findings_;
  std::vector<std::unique_ptr<LaneMemory>> memory_;  ///< by lane
  std::atomic<std::uint64_t> seed_;                  ///< of the round that is running
};

}  // namespace gpm::stress

#endif  // GPM_CLI_STRESS_STRESS_H_
