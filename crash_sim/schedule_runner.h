#ifndef GPM_CRASH_SIM_SCHEDULE_RUNNER_H_
#define GPM_CRASH_SIM_SCHEDULE_RUNNER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "crash_sim/crash_states.h"
#include "crash_sim/grid_machine.h"
#include "crash_sim/machine.h"
#include "crash_sim/schedule_explorer.h"
#include "crash_sim/schedule_workload.h"
#include "crash_sim/scratch_pool.h"
#include "engine/store_impl.h"

namespace gpm::crash {

/// Runs schedules one by one, on a pool of its own, and checks each (ExploreSchedules says what).
///
/// Thread safety: none; one for each thread.
class ScheduleRunner {
 public:
  explicit ScheduleRunner(const ScheduleOptions& options)
      : options_(options), machine_(options.grid ? grid_ : cpu_) {}

  /// Runs the schedule of a seed and adds to the counts of the report.
  /// @return what is wrong with it, or empty
  std::string Run(std::uint64_t seed, ScheduleReport* report);
  std::uint64_t hash() const { return hash_; }  ///< of the schedule that Run ran last

 private:
  /// When a call was made and returned: by the clock of the history, and by the trace.
  struct CallTimes {
    std::uint64_t invoked_at = 0;  ///< 0: it was not made
    std::uint64_t returned_at = kPending;
    std::size_t invoked_event = 0;  ///< the first event that it may have caused
    std::size_t returned_event = 0;
  };
  /// Room enough to finish any resize that a smaller maximum stopped.
  static constexpr std::uint64_t kAmpleBytes = 256 << 10;
  static constexpr std::uint64_t kIndexBytes = 1 << 20;  ///< likewise, for an index

  void RunSchedule(std::uint64_t seed, ScheduleReport* report);
  const BasePool& BaseOf(std::size_t table);
  void RunClient(StoreImpl& store, std::vector<ClientCall>& calls);
  void Invoke(const ClientCall& call);
  void Return(const ClientCall& call);
  void Snapshot(StoreImpl& store, ClientCall& call);
  History HistoryUntil(std::size_t crash_event) const;
  void CheckContents(StoreImpl& store, History history);
  void CheckClosed(const std::string& path) const;
  void Crash(std::uint64_t seed, ScheduleReport* report);
  bool IsOfTeam(const CrashPoints& point) const;
  void Recover(const CrashPoints& point, const CrashState& state);

  const ScheduleOptions& options_;
  Scheduler scheduler_;
  Machine cpu_{&scheduler_};
  GridMachine grid_{&scheduler_};
  Machine& machine_;  ///< one of them
  ScratchPool pool_{kAmpleBytes};
  ScratchPool crashed_{kAmpleBytes};
  std::map<std::size_t, BasePool> bases_;

  // Of the schedule that runs, or ran last:
  Workload workload_;
  TableSetup setup_;
  const BasePool* base_ = nullptr;
  std::uint64_t most_number_ = 0;  ///< of its values, and their sums
  std::uint64_t clock_ = 0;
  std::vector<CallTimes> times_;  ///< by call
  bool stuck_ = false;            ///< there was no room to finish a resize
  std::uint64_t items_ = 0;       ///< what CheckContents found
  std::uint64_t hash_ = 0;
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_SCHEDULE_RUNNER_H_
