#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

#include "crash_sim/drain_explorer.h"
#include "crash_sim/frame_explorer.h"
#include "crash_sim/schedule_explorer.h"
#include "crash_sim/schedule_workload.h"
#include "table/hash.h"
#include "tests/test_util.h"

/// Concurrent batches under seeded schedules, without and with crashes.
///
/// Environment:
///   GPM_TEST_SEED       of the first schedule; a violation names the one that replays it
///   GPM_TEST_SCHEDULES  schedules in all
namespace gpm::crash {
namespace {

constexpr std::uint64_t kDefaultSchedules = 24'000;

std::uint64_t Schedules() {
  return test::EnvironmentNumber("GPM_TEST_SCHEDULES", kDefaultSchedules);
}

ScheduleReport Explore(ScheduleOptions options) {
  options.threads = 2;
  const ScheduleReport report = ExploreSchedules(options);
  std::printf(
      "%llu schedules, %llu distinct, %llu accesses, %llu switches, %llu resizes, %llu items "
      "displaced, "
      "%llu operations without space, %llu crash states recovered\n",
      static_cast<unsigned long long>(report.schedules),
      static_cast<unsigned long long>(report.distinct),
      static_cast<unsigned long long>(report.steps),
      static_cast<unsigned long long>(report.switches),
      static_cast<unsigned long long>(report.resizes),
      static_cast<unsigned long long>(report.displaced),
      static_cast<unsigned long long>(report.no_space),
      static_cast<unsigned long long>(report.crash_states));
  return report;
}

TEST(ScheduleTest, HistoriesAreLinearizable) {
  ScheduleOptions options;
  options.seed = test::TestSeed();
  options.count = Schedules() - Schedules() / 6;
  const ScheduleReport report = Explore(options);
  EXPECT_EQ(report.violation, "");
  EXPECT_EQ(report.schedules, options.count);
  EXPECT_GT(report.distinct, options.count / 100 * 99);
  EXPECT_GT(report.resizes, options.count / 20);
  if (options.count >= 10'000) {
    EXPECT_GT(report.displaced, options.count / 2000);  // few have tables where it can be
  }
  EXPECT_GT(report.no_space, options.count / 20);
}

/// Searches find what batches left, by an index that follows these.
TEST(ScheduleTest, HistoriesWithIndexedSearchesAreLinearizable) {
  ScheduleOptions options;
  options.seed = test::TestSeed() + 2 * Schedules();
  options.count = Schedules() / 6;
  options.indexed_searches = true;
  const ScheduleReport report = Explore(options);
  EXPECT_EQ(report.violation, "");
  EXPECT_EQ(report.schedules, options.count);
  EXPECT_GT(report.index_updates, options.count / 2);
}

TEST(ScheduleTest, HistoriesWithACrashAreDurablyLinearizable) {
  ScheduleOptions options;
  options.seed = test::TestSeed() + Schedules();
  options.count = Schedules() / 6;
  options.crash_states = 8;
  const ScheduleReport report = Explore(options);
  EXPECT_EQ(report.violation, "");
  EXPECT_EQ(report.schedules, options.count);
  EXPECT_GT(report.crash_states, 4 * options.count);
}

TEST(ScheduleTest, FramesOfTheCacheHaveWhatTheyAreTakenFor) {
  const std::uint64_t count = 20 * Schedules();
  const FrameReport report = ExploreFrames({.seed = test::TestSeed(), .count = count});
  EXPECT_EQ(report.violation, "");
  EXPECT_EQ(report.schedules, count);
  EXPECT_GT(report.hits, count / 10);
}

TEST(ScheduleTest, ItemsThatAreMovedUpAreNeitherLostNorComeBack) {
  const std::uint64_t count = Schedules() / 2;
  const DrainReport report = ExploreDraining({.seed = test::TestSeed(), .count = count});
  EXPECT_EQ(report.violation, "");
  EXPECT_EQ(report.schedules, count);
  EXPECT_GT(report.states, 20 * count);
}

TEST(ScheduleTest, StepsOfDrainingAreNeeded) {
  for (const Step step : {Step::kKeyLock, Step::kDrainFlush, Step::kDrainFence}) {
    const DrainReport report =
        ExploreDraining({.seed = test::TestSeed(), .count = 100'000, .leave_out = step});
    EXPECT_NE(report.violation, "") << StepName(step);
    std::printf("%s: after %llu schedules: %s\n", std::string(StepName(step)).c_str(),
                static_cast<unsigned long long>(report.schedules), report.violation.c_str());
  }
}

TEST(ScheduleWorkloadTest, KeysThatHashAlikeDiffer) {
  std::set<std::string> keys;
  std::set<std::uint64_t> fingerprints;
  int tables = 0;
  for (std::size_t index = 0; index < kTableSetups; ++index) {
    const TableSetup setup = MakeTableSetup(index);
    if (!setup.equal_hashes) continue;
    ++tables;
    keys.clear();
    std::set<std::uint64_t> h;
    std::set<std::uint64_t> g;
    for (const std::uint64_t number : {std::uint64_t{0}, test::kAllOnes, std::uint64_t{7}}) {
      std::uint64_t words[4];
      setup.PutKey(number, std::as_writable_bytes(std::span(words)));
      const KeyHash hash = HashKey(setup.config.hash_seed, words, 4);
      h.insert(hash.h);
      g.insert(hash.g);
      keys.insert(test::AsString(std::as_bytes(std::span(words))));
    }
    EXPECT_EQ(keys.size(), 3u);
    EXPECT_EQ(h.size(), 1u);
    EXPECT_EQ(g.size(), 1u);
    fingerprints.insert(*g.begin());
  }
  EXPECT_EQ(tables, static_cast<int>(kTableSetups / 3));
  EXPECT_EQ(fingerprints.size(), 2u);
  EXPECT_TRUE(fingerprints.contains(kEmptyState));
}

TEST(ScheduleWorkloadTest, SeedsGiveTheSameWorkloadAgain) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const Workload workload = MakeWorkload(seed);
    EXPECT_EQ(MakeWorkload(seed).hash, workload.hash);
    EXPECT_EQ(MakeWorkload(seed).schedule.seed, workload.schedule.seed);
    EXPECT_GE(workload.clients.size(), 2u);
    EXPECT_LE(workload.clients.size(), 4u);
    hashes.insert(workload.hash);
  }
  EXPECT_GT(hashes.size(), 990u);
}

TEST(ScheduleWorkloadTest, TornValuesAreSeen) {
  std::vector<std::byte> value(16);
  PutValue(5, value);
  EXPECT_EQ(ValueNumber(value), 5u);
  value[8] ^= std::byte{1};
  EXPECT_EQ(ValueNumber(value), kTorn);
}

}  // namespace
}  // namespace gpm::crash
