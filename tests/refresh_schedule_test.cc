#include "engine/refresh_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gpm {
namespace {

constexpr std::uint64_t kMillion = 1'000'000;

/// A store that finds in batches, with refreshes that end at once, or take some time.
struct Workload {
  RefreshSchedule schedule;
  FindSums sums;
  double now = 100;
  double seconds_per_million = 0.01;
  double refresh_seconds = 0;
  std::vector<std::uint64_t> refreshes;  ///< operations before each

  explicit Workload(std::optional<std::uint64_t> interval = std::nullopt,
               std::uint64_t slots = std::uint64_t{1} << 24)
      : schedule(interval) {
    schedule.Reset(slots, sums);
  }
  /// @param rate rate() is the hit rate as of now
  template <class Rate>
  void Find(std::uint64_t operations, const Rate& rate, double found = 1) {
    constexpr std::uint64_t kBatch = 4096;
    for (std::uint64_t done = 0; done < operations; done += kBatch) {
      sums.operations += kBatch;
      const auto some = static_cast<std::uint64_t>(found * kBatch);
      sums.found += some;
      sums.hits += static_cast<std::uint64_t>(rate() * static_cast<double>(some));
      now += seconds_per_million * kBatch / kMillion;
      if (!schedule.IsDue(sums, now)) continue;
      refreshes.push_back(sums.operations);
      schedule.Begin(sums, now);
      now += refresh_seconds;
      schedule.End(sums, now);
    }
  }
};

TEST(RefreshScheduleTest, SoonAfterAColdStartAndRarelyOnAStationaryWorkload) {
  Workload run;
  run.Find(2000 * kMillion, [&] { return run.refreshes.empty() ? 0.0 : 0.8; });
  ASSERT_FALSE(run.refreshes.empty());
  EXPECT_LE(run.refreshes.front(), 2 * kMillion);
  EXPECT_LE(run.refreshes.size(), 12u);
  for (std::size_t i = 2; i + 1 < run.refreshes.size(); ++i) {
    EXPECT_GE(run.refreshes[i + 1] - run.refreshes[i],
              3 * (run.refreshes[i] - run.refreshes[i - 1]) / 2);
  }
}

TEST(RefreshScheduleTest, GoesOnWhileEachOnePays) {
  Workload run;
  run.Find(30 * kMillion,
           [&] { return std::min(0.8, 0.1 * static_cast<double>(run.refreshes.size())); });
  EXPECT_GE(run.refreshes.size(), 8u);
}

TEST(RefreshScheduleTest, SoonAfterOtherItemsBecameHot) {
  Workload run;
  double rate = 0;
  run.Find(300 * kMillion, [&] { return run.refreshes.empty() ? 0.0 : 0.8; });
  const std::size_t before = run.refreshes.size();
  const std::uint64_t moved = run.sums.operations;
  run.Find(4 * kMillion, [&] { return run.refreshes.size() == before ? 0.3 : 0.75; });
  ASSERT_EQ(run.refreshes.size(), before + 1);
  EXPECT_LE(run.refreshes.back() - moved, 3 * kMillion);
  // One that is as it is for good is left in peace again.
  rate = 0.1;
  run.Find(1000 * kMillion, [&] { return rate; });
  EXPECT_LE(run.refreshes.size(), before + 14);
}

TEST(RefreshScheduleTest, InsertsAbsentKeysAndHitsAreNoEvidence) {
  Workload run;
  run.Find(
      1000 * kMillion, [] { return 0.0; }, 0);
  EXPECT_TRUE(run.refreshes.empty());
  run.Find(1000 * kMillion, [] { return 1.0; });
  EXPECT_TRUE(run.refreshes.empty());
}

TEST(RefreshScheduleTest, SmallTablesNeedLessEvidence) {
  Workload run(std::nullopt, 100'000);
  run.Find(kMillion, [&] { return run.refreshes.empty() ? 0.0 : 0.9; });
  ASSERT_FALSE(run.refreshes.empty());
  EXPECT_LE(run.refreshes.front(), 30'000u);
}

TEST(RefreshScheduleTest, TakesASmallShareOfTheTime) {
  Workload run;
  run.refresh_seconds = 0.5;  // of what 50 M operations take
  run.Find(10'000 * kMillion, [&] { return 0.1 * static_cast<double>(run.refreshes.size() % 9); });
  EXPECT_GE(run.refreshes.size(), 3u);
  const double in_all = static_cast<double>(run.refreshes.size()) * run.refresh_seconds;
  EXPECT_LE(in_all, 0.5 + (run.now - 100) / (RefreshSchedule::kShareOfTime - 1));
}

TEST(RefreshScheduleTest, ByOperationsWhereThatIsAskedFor) {
  Workload every(std::uint64_t{8 * kMillion});
  every.Find(100 * kMillion, [] { return 1.0; });
  ASSERT_EQ(every.refreshes.size(), 13u);
  EXPECT_NEAR(static_cast<double>(every.refreshes.front()), 1e6, 5000) << "an eighth, at first";
  EXPECT_NEAR(static_cast<double>(every.refreshes[1] - every.refreshes[0]), 8e6, 5000);
  Workload never(std::uint64_t{0});
  never.Find(100 * kMillion, [] { return 0.0; });
  EXPECT_TRUE(never.refreshes.empty());
}

}  // namespace
}  // namespace gpm
