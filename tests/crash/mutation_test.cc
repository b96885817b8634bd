#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "crash_sim/crash_explorer.h"
#include "crash_sim/frame_explorer.h"
#include "crash_sim/schedule_explorer.h"
#include "tests/crash/mutants.h"
#include "tests/test_util.h"

/// Mutation: with any one step of the protocols left out (pm/steps.h lists them all), exploration
/// finds a violation; its seed alone finds it again, and nothing when the step is there. A step
/// that could be left out unnoticed would be one that is not needed, or one that is not tested.
namespace gpm::crash {
namespace {

/// Many times what it takes.
constexpr std::uint64_t kMaxStates = 1'000'000;
constexpr std::uint64_t kMaxSchedules = 200'000;
constexpr std::uint64_t kMaxFrameSchedules = 2'000'000;
/// More than one workload has, recoveries that are crashed in turn included.
constexpr std::uint64_t kStatesOfOneWorkload = 100'000;
/// Enough to see that nothing is wrong with the step there.
constexpr std::uint64_t kStatesWithTheStep = 1'000;

/// Steps that matter only when two batches run at once.
bool IsForSchedules(Step step) {
  if (IsNeverMet(step)) return true;
  switch (step) {
    case Step::kKeyLock:
    case Step::kInsertClaimCas:
    case Step::kUpdateReferenceCas:
    case Step::kEraseStateCas:
    case Step::kDirectoryClaimCas:
      return true;
    default:
      return false;
  }
}

/// Steps of the cache that matter only between two accesses of others: schedules of whole stores
/// hardly ever have the switches that this takes.
bool IsForFrames(Step step) {
  switch (step) {
    case Step::kCachePutCas:
    case Step::kCacheCloseCas:
    case Step::kCacheKeepCas:
    case Step::kCacheFillingCas:
    case Step::kCacheFillCas:
    case Step::kCacheValidate:
    case Step::kCacheValidateFills:
      return true;
    default:
      return false;
  }
}

/// What finds that a step is left out.
enum class Way : std::uint8_t { kCrashes, kSchedules, kFrames };

Way WayOf(Step step) {
  if (IsForFrames(step)) return Way::kFrames;
  return IsForSchedules(step) ? Way::kSchedules : Way::kCrashes;
}

/// @param one the workload or schedule of this seed (and, where that has few states, the next ones)
Found Explore(Step left_out, std::uint64_t seed, bool one, Way way) {
  if (way == Way::kFrames) {
    const FrameReport report =
        ExploreFrames({.seed = seed, .count = one ? 1 : kMaxFrameSchedules, .leave_out = left_out});
    return {report.violation, report.violation_seed, report.schedules};
  }
  if (way == Way::kSchedules) {
    ScheduleOptions options;
    options.seed = seed;
    options.count = one ? 1 : kMaxSchedules;
    options.threads = one ? 1 : 2;
    options.crash_states = 8;
    options.leave_out = left_out;
    const ScheduleReport report = ExploreSchedules(options);
    return {report.violation, report.violation_seed, report.schedules};
  }
  CrashOptions options;
  options.seed = seed;
  options.max_states = kMaxStates;
  if (one)
    options.max_states = left_out == Step::kOther ? kStatesWithTheStep : kStatesOfOneWorkload;
  options.processes = one ? 1 : 2;
  options.left_out = left_out;
  const CrashReport report = ExploreCrashes(options);
  return {report.violation, report.violation_seed, report.states};
}

class MutationTest : public ::testing::TestWithParam<Step> {};

TEST_P(MutationTest, IsCaught) {
  const Way way = WayOf(GetParam());
  const std::uint64_t seed = test::TestSeed() % 1'000'000'000;
  const Found found = Explore(GetParam(), seed, false, way);
  Print(found, way == Way::kCrashes ? "states" : "schedules");
  ASSERT_NE(found.violation, "") << StepName(GetParam()) << " can be left out unnoticed";
  EXPECT_EQ(found.violation.find("ended by signal"), std::string::npos) << found.violation;
  EXPECT_NE(Explore(GetParam(), found.seed, true, way).violation, "");
  EXPECT_EQ(Explore(Step::kOther, found.seed, true, way).violation, "");
}

std::vector<Step> AllSteps() {
  std::vector<Step> steps;
  for (int i = 1; i < static_cast<int>(Step::kCount); ++i) {
    if (!IsOfGpu(static_cast<Step>(i))) steps.push_back(static_cast<Step>(i));
  }
  return steps;
}

INSTANTIATE_TEST_SUITE_P(EachStep, MutationTest, ::testing::ValuesIn(AllSteps()), NameOf);

}  // namespace
}  // namespace gpm::crash
