#ifndef GPM_CRASH_SIM_CRASH_WORKER_H_
#define GPM_CRASH_SIM_CRASH_WORKER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>

#include "crash_sim/crash_explorer.h"
#include "crash_sim/crash_states.h"
#include "crash_sim/crash_workload.h"
#include "crash_sim/machine.h"
#include "crash_sim/scratch_pool.h"

namespace gpm::crash {

/// What the workers and who waits for them share, in shared memory. Slots are their workers' own
/// until those have ended.
struct CrashBoard {
  static constexpr std::size_t kMaxText = 32 * 1024;
  struct Slot {
    std::uint64_t seed = 0;         ///< of the workload that its worker is at
    CrashCounts counts;             ///< its worker's
    char violation[kMaxText] = {};  ///< found at `seed`; empty: none
  };
  std::atomic<std::uint64_t> workloads{0};  ///< handed out
  std::atomic<std::uint64_t> images{0};     ///< tried
  std::atomic<bool> done{false};            ///< nobody goes on
  std::array<Slot, CrashOptions::kMaxProcesses> slots;
};

/// Explores workloads, one after another, until the board says that it is done. The process is
/// ended by SIGALRM when a workload does not come to an end.
///
/// Thread safety: none.
class CrashWorker {
 public:
  CrashWorker(const CrashOptions& options, CrashBoard& board, CrashBoard::Slot& slot,
              ScratchPool& scratch);

  void Run();

 private:
  using Origin = std::function<std::string()>;

  void RunWorkload(std::uint64_t seed);
  /// Runs a workload and tries the states that crashes leave of it.
  /// @param depth of crashes that came before
  /// @param origin how the workload came about, for a violation
  void Explore(CrashWorkload& workload, int depth, const Origin& origin);
  /// Counts an image. @return false when it is one too many
  bool Take();
  void Try(const CrashWorkload& workload, const CrashPoints& point, const CrashState& state,
           int depth, const Origin& origin);

  const CrashOptions& options_;
  CrashBoard& board_;
  CrashBoard::Slot& slot_;
  CrashCounts& counts_;
  ScratchPool& scratch_;
  Machine machine_;
  std::uint64_t seed_ = 0;                    ///< of this workload
  std::unordered_set<std::uint64_t> tried_;   ///< image and promise, of this workload
  std::unordered_set<std::uint64_t> images_;  ///< of this workload
  std::string where_;                         ///< how what was thrown came about
};

}  // namespace gpm::crash

#endif  // GPM_CRASH_SIM_CRASH_WORKER_H_
