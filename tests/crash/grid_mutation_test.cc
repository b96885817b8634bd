#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "crash_sim/drain_explorer.h"
#include "crash_sim/frame_explorer.h"
#include "crash_sim/schedule_explorer.h"
#include "crash_sim/slot_explorer.h"
#include "tests/crash/mutants.h"
#include "tests/test_util.h"

/// Mutation on the simulated GPU: with any fence, barrier, lock or compare-and-swap of the GPU
/// executor's protocols left out, exploration finds a violation; its seed alone finds it again, and
/// nothing when the step is there.
namespace gpm::crash {
namespace {

/// Many times what it takes.
constexpr std::uint64_t kMaxSchedules = 400'000;
constexpr std::uint64_t kMaxSmallSchedules = 8'000'000;

/// What finds that a step is left out. Schedules of whole stores hardly ever have the switches that
/// some steps take.
enum class Way : std::uint8_t { kSchedules, kFrames, kSlots, kDraining };

Way WayOf(Step step) {
  switch (step) {
    case Step::kCachePutCas:
    case Step::kCacheCloseCas:
    case Step::kCacheKeepCas:
    case Step::kCacheFillingCas:
    case Step::kCacheFillCas:
    case Step::kCacheValidate:
    case Step::kCacheValidateFills:
    case Step::kCachePutFence:
    case Step::kCacheFilledFence:
    case Step::kCacheFillsReadFence:
    case Step::kCacheValueReadFence:
    case Step::kCacheTagReadFence:
      return Way::kFrames;
    case Step::kDirectoryContentsFence:
    case Step::kGiveBackFence:
      return Way::kSlots;
    case Step::kDrainFence:
    case Step::kDirectoryMovedUpFence:
      return Way::kDraining;
    default:
      return Way::kSchedules;
  }
}

/// @param one the schedule of this seed alone
Found Explore(Step left_out, std::uint64_t seed, bool one, Way way) {
  if (way == Way::kFrames) {
    const FrameReport report = ExploreFrames(
        {.seed = seed, .count = one ? 1 : kMaxSmallSchedules, .grid = true, .leave_out = left_out});
    return {report.violation, report.violation_seed, report.schedules};
  }
  if (way == Way::kSlots) {
    const SlotReport report =
        ExploreSlots({.seed = seed, .count = one ? 1 : kMaxSmallSchedules, .leave_out = left_out});
    return {report.violation, report.violation_seed, report.schedules};
  }
  if (way == Way::kDraining) {
    const DrainReport report = ExploreDraining(
        {.seed = seed, .count = one ? 1 : kMaxSmallSchedules, .grid = true, .leave_out = left_out});
    return {report.violation, report.violation_seed, report.schedules};
  }
  ScheduleOptions options;
  options.seed = seed;
  options.count = one ? 1 : kMaxSchedules;
  options.threads = one ? 1 : 2;
  options.crash_states = 8;
  options.grid = true;
  options.leave_out = left_out;
  const ScheduleReport report = ExploreSchedules(options);
  return {report.violation, report.violation_seed, report.schedules};
}

void ExpectCaught(Step step, Way way) {
  const std::uint64_t seed = test::TestSeed() % 1'000'000'000;
  const Found found = Explore(step, seed, false, way);
  Print(found, "schedules");
  ASSERT_NE(found.violation, "") << StepName(step) << " can be left out unnoticed";
  EXPECT_NE(Explore(step, found.seed, true, way).violation, "");
  EXPECT_EQ(Explore(Step::kOther, found.seed, true, way).violation, "");
}

class GridMutationTest : public ::testing::TestWithParam<Step> {};
TEST_P(GridMutationTest, IsCaught) { ExpectCaught(GetParam(), WayOf(GetParam())); }

/// What a block takes to drain slots together.
class DrainingTeamMutationTest : public ::testing::TestWithParam<Step> {};
TEST_P(DrainingTeamMutationTest, IsCaught) { ExpectCaught(GetParam(), Way::kDraining); }

INSTANTIATE_TEST_SUITE_P(
    EachStep, GridMutationTest,
    ::testing::Values(
        Step::kKeyLock, Step::kInsertClaimCas, Step::kInsertContentsFence, Step::kInsertDoneFence,
        Step::kUpdateCellFence, Step::kUpdateReferenceCas, Step::kUpdateDoneFence,
        Step::kEraseStateCas, Step::kEraseDoneFence, Step::kTeamPreparedFence,
        Step::kTeamPreparedBarrier, Step::kTeamPublishedBarrier, Step::kTeamDoneFence,
        Step::kTeamDoneBarrier, Step::kHostWrittenFence, Step::kHostWrittenAwait,
        Step::kDirectoryClaimCas, Step::kDirectoryContentsFence, Step::kDirectoryInsertedFence,
        Step::kDirectoryUpdatedFence, Step::kDirectoryErasedFence, Step::kGiveBackFence,
        Step::kDirectoryMovedUpFence, Step::kDrainFence, Step::kCachePutCas, Step::kCacheCloseCas,
        Step::kCacheKeepCas, Step::kCacheFillingCas, Step::kCacheFillCas, Step::kCacheValidate,
        Step::kCacheValidateFills, Step::kCachePutFence, Step::kCacheFilledFence,
        Step::kCacheFillsReadFence, Step::kCacheValueReadFence, Step::kCacheTagReadFence),
    NameOf);
INSTANTIATE_TEST_SUITE_P(EachStep, DrainingTeamMutationTest,
                         ::testing::Values(Step::kTeamPublishedBarrier, Step::kTeamDoneFence,
                                           Step::kTeamDoneBarrier),
                         NameOf);

}  // namespace
}  // namespace gpm::crash
