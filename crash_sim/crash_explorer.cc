#include "crash_sim/crash_explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <vector>

#include "crash_sim/crash_worker.h"
#include "crash_sim/processes.h"
#include "crash_sim/scratch_pool.h"

namespace gpm::crash {

void CrashCounts::Add(const CrashCounts& other) {
  workloads += other.workloads;
  points += other.points;
  exhausted_points += other.exhausted_points;
  states_possible += other.states_possible;
  states += other.states;
  images += other.images;
  repaired += other.repaired;
  refused += other.refused;
  recoveries += other.recoveries;
  nested_states += other.nested_states;
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] += other.steps[i];
}

CrashReport ExploreCrashes(const CrashOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const unsigned processes = std::clamp(options.processes, 1u, CrashOptions::kMaxProcesses);
  SharedMemory<CrashBoard> board;
  std::vector<std::unique_ptr<ScratchPool>> scratch;  // here, so that they are removed in any case
  for (unsigned i = 0; i < processes; ++i) {
    scratch.push_back(std::make_unique<ScratchPool>(kMaxPoolBytes));
  }
  const std::vector<std::string> deaths = RunProcesses(
      processes,
      [&](unsigned i) {
        CrashBoard::Slot& slot = board->slots[i];
        try {
          CrashWorker(options, *board, slot, *scratch[i]).Run();
        } catch (const std::bad_alloc&) {
          slot.out_of_memory = true;
          board->done = true;
        }
      },
      [&](bool died) {
        if (died || (options.seconds > 0 && seconds() >= options.seconds)) board->done = true;
        if (options.progress && !options.progress(board->images)) board->done = true;
      });
  CrashReport report;
  for (unsigned i = 0; i < processes; ++i) {
    const CrashBoard::Slot& slot = board->slots[i];
    report.Add(slot.counts);
    std::string violation = slot.violation;
    const bool killed = deaths[i] == kKilled;
    if (slot.out_of_memory || killed) {
      report.out_of_memory =
          killed ? "a process was killed, maybe for lack of memory" : "out of memory";
      continue;
    }
    if (violation.empty() && !deaths[i].empty()) violation = "ended by " + deaths[i];
    if (violation.empty()) continue;
    if (report.violation.empty() || slot.seed < report.violation_seed) {
      report.violation = violation;
      report.violation_seed = slot.seed;
    }
  }
  report.seconds = seconds();
  return report;
}

bool IsOfGpu(Step step) {
  switch (step) {
    case Step::kTeamPreparedFence:
    case Step::kTeamPreparedBarrier:
    case Step::kTeamPublishedBarrier:
    case Step::kTeamDoneFence:
    case Step::kTeamDoneBarrier:
    case Step::kHostWrittenFence:
    case Step::kHostWrittenAwait:
    case Step::kDirectoryContentsFence:
    case Step::kDirectoryInsertedFence:
    case Step::kDirectoryUpdatedFence:
    case Step::kDirectoryErasedFence:
    case Step::kDirectoryMovedUpFence:
    case Step::kCachePutFence:
    case Step::kCacheFilledFence:
    case Step::kCacheFillsReadFence:
    case Step::kCacheValueReadFence:
    case Step::kCacheTagReadFence:
      return true;
    default:
      return false;
  }
}

bool IsNeverMet(Step step) {
  if (IsOfGpu(step)) return true;
  switch (step) {
    case Step::kSettleFlush:
    case Step::kSettleFence:
    case Step::kCachePutCas:
    case Step::kCacheKeepCas:
    case Step::kCacheFillingCas:
    case Step::kCacheFillCas:
    case Step::kCacheValidate:
    case Step::kCacheValidateFills:
    case Step::kCacheCloseCas:
      return true;
    default:
      return false;
  }
}

std::string Describe(const CrashReport& report) {
  std::string text;
  if (!report.violation.empty()) {
    text += fmt::format("violation, seed {}: {}\n\n", report.violation_seed, report.violation);
  }
  text += fmt::format(
      "workloads             {}\n"
      "crash points          {}, of which {} exhaustively\n"
      "states possible       {:.4g}\n"
      "states tried          {}, of which {} in {} recoveries\n"
      "distinct pool images  {}\n"
      "with work to recover  {}\n"
      "creation incomplete   {}\n"
      "seconds               {:.1f} ({:.0f} states/s)\n",
      report.workloads, report.points, report.exhausted_points, report.states_possible,
      report.states, report.nested_states, report.recoveries, report.images, report.repaired,
      report.refused, report.seconds,
      static_cast<double>(report.states) / std::max(report.seconds, 1e-9));
  return text;
}

}  // namespace gpm::crash
