#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>

#include "crash_sim/drain_explorer.h"
#include "crash_sim/frame_explorer.h"
#include "crash_sim/schedule_explorer.h"
#include "crash_sim/slot_explorer.h"
#include "tests/test_util.h"

/// The GPU executor's protocols on a simulated GPU (docs/CRASH_CONSISTENCY.md): concurrent batches
/// under seeded schedules, with crashes.
///
/// Environment:
///   GPM_TEST_SEED         of the first schedule; a violation names the one that replays it
///   GPM_TEST_GRID_STATES  crash states of the team's commit
namespace gpm::crash {
namespace {

constexpr std::uint64_t kDefaultStates = 100'000;
constexpr std::uint64_t kStatesOfSchedule = 32;

std::uint64_t Seed() { return test::TestSeed() % 1'000'000'000; }

TEST(GridTest, HistoriesAreDurablyLinearizable) {
  const std::uint64_t states = test::EnvironmentNumber("GPM_TEST_GRID_STATES", kDefaultStates);
  ScheduleOptions options;
  options.seed = Seed();
  options.count = ~std::uint64_t{0} >> 1;
  options.threads = 2;
  options.crash_states = kStatesOfSchedule;
  options.grid = true;
  options.max_team_states = states;
  const ScheduleReport report = ExploreSchedules(options);
  std::printf(
      "%llu schedules, %llu distinct, %llu accesses, %llu resizes, %llu items displaced, %llu "
      "crash "
      "states, %llu of a team's commit\n",
      static_cast<unsigned long long>(report.schedules),
      static_cast<unsigned long long>(report.distinct),
      static_cast<unsigned long long>(report.steps),
      static_cast<unsigned long long>(report.resizes),
      static_cast<unsigned long long>(report.displaced),
      static_cast<unsigned long long>(report.crash_states),
      static_cast<unsigned long long>(report.team_states));
  EXPECT_EQ(report.violation, "");
  EXPECT_GE(report.team_states, states);
  if (report.schedules >= 10'000) {
    EXPECT_GT(report.displaced, report.schedules / 2000);  // few have tables where it can be
  }
  EXPECT_GT(report.distinct, report.schedules / 100 * 99);
}

TEST(GridTest, FramesOfTheCacheHaveWhatTheyAreTakenFor) {
  const std::uint64_t count = 2 * test::EnvironmentNumber("GPM_TEST_GRID_STATES", kDefaultStates);
  const FrameReport report = ExploreFrames({.seed = Seed(), .count = count, .grid = true});
  EXPECT_EQ(report.violation, "");
  EXPECT_GT(report.hits, count / 10);
}

TEST(GridTest, ItemsThatAreMovedUpAreNeitherLostNorComeBack) {
  const std::uint64_t count = 2 * test::EnvironmentNumber("GPM_TEST_GRID_STATES", kDefaultStates);
  const DrainReport report = ExploreDraining({.seed = Seed(), .count = count, .grid = true});
  EXPECT_EQ(report.violation, "");
  EXPECT_GT(report.states, 20 * count);
}

TEST(GridTest, SlotsThatAreGivenBackAreUsedAgain) {
  const std::uint64_t count = 2 * test::EnvironmentNumber("GPM_TEST_GRID_STATES", kDefaultStates);
  const SlotReport report = ExploreSlots({.seed = Seed(), .count = count});
  EXPECT_EQ(report.violation, "");
  EXPECT_GT(report.inserted, count / 10);
}

}  // namespace
}  // namespace gpm::crash
