#include "engine/refresh_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace gpm {
namespace {

constexpr std::uint64_t kMillion = 1'000'000;

/// A store that finds in batches; refreshes end some batches later.
struct Workload {
  RefreshSchedule schedule;
  FindTotals totals;
  std::uint64_t operations = 0;
  double now = 100;
  double seconds_per_million = 0.01;
  double refresh_seconds = 0;
  int batches_of_refresh = 0;            ///< that begin while it is under way
  int left_of_refresh = -1;              ///< of those; -1: none is under way
  double pause = 0;                      ///< between a refresh and the next batch
  std::vector<std::uint64_t> refreshes;  ///< operations before each
  int ageings = 0;

  explicit Workload(std::optional<std::uint64_t> interval = std::nullopt,
                    std::uint64_t slots = std::uint64_t{1} << 24)
      : schedule(interval) {
    schedule.Reset(slots);
  }
  /// @param rate rate() is the hit rate as of now
  template <class Rate>
  void Find(std::uint64_t count, const Rate& rate, double found = 1) {
    constexpr std::uint64_t kBatch = 4096;
    for (std::uint64_t done = 0; done < count; done += kBatch) {
      const CacheNeed need = schedule.Advance(kBatch, totals, now);
      ageings += need == CacheNeed::kAgeing ? 1 : 0;
      if (need == CacheNeed::kRefresh) {
        refreshes.push_back(operations);
        schedule.Begin();
        left_of_refresh = batches_of_refresh;
      }
      if (left_of_refresh >= 0 && left_of_refresh-- == 0) {
        now += refresh_seconds + pause;
        schedule.End(totals, now, refresh_seconds);
      }
      operations += kBatch;
      const auto some = static_cast<std::uint64_t>(found * kBatch);
      totals.found += some;
      totals.hits += static_cast<std::uint64_t>(rate() * static_cast<double>(some));
      now += seconds_per_million * kBatch / kMillion;
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

TEST(RefreshScheduleTest, SoonAlsoWhereALoadLeftMostOfItCached) {
  Workload run;
  run.Find(2 * kMillion, [&] { return 0.87; });  // of 4 M operations of YCSB A
  EXPECT_FALSE(run.refreshes.empty());
}

TEST(RefreshScheduleTest, GoesOnWhileEachOnePays) {
  Workload run;
  run.Find(30 * kMillion,
           [&] { return std::min(0.8, 0.1 * static_cast<double>(run.refreshes.size())); });
  EXPECT_GE(run.refreshes.size(), 8u);
}

TEST(RefreshScheduleTest, SoonAfterOtherItemsBecameHot) {
  Workload run;
  run.Find(300 * kMillion, [&] { return run.refreshes.empty() ? 0.0 : 0.8; });
  const std::size_t before = run.refreshes.size();
  const std::uint64_t moved = run.operations;
  run.Find(4 * kMillion, [&] { return run.refreshes.size() == before ? 0.3 : 0.75; });
  ASSERT_GT(run.refreshes.size(), before);
  EXPECT_LE(run.refreshes[before] - moved, 3 * kMillion);
  // (A budget of 131,072 misses doubles thrice within the million that are left.)
  EXPECT_LE(run.refreshes.size(), before + 4) << "those behind it did not pay";
  EXPECT_EQ(run.ageings, 1) << "what was counted before is to count less";
  // One that is as it is for good is left in peace again.
  run.Find(1000 * kMillion, [] { return 0.1; });
  EXPECT_LE(run.refreshes.size(), before + 17);
  EXPECT_LE(run.ageings, 3) << "a fall may lie in two windows";
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
  // Each one hardly pays, and then other items become hot.
  run.Find(10'000 * kMillion, [&] { return 0.06 * static_cast<double>(run.refreshes.size() % 9); });
  EXPECT_GE(run.refreshes.size(), 3u);
  const double in_all = static_cast<double>(run.refreshes.size()) * run.refresh_seconds;
  EXPECT_LE(in_all, 0.5 + (run.now - 100) / (RefreshSchedule::kShareOfTime / 2));
}

TEST(RefreshScheduleTest, WhatSavesMuchIsFollowedSoon) {
  Workload run;
  run.refresh_seconds = 0.5;
  std::vector<double> ends;
  run.Find(2'000 * kMillion, [&] {  // 20 s; each of the first four saves half of the misses
    if (ends.size() < run.refreshes.size()) ends.push_back(run.now);
    return 1 - std::pow(0.5, static_cast<double>(std::min<std::size_t>(run.refreshes.size(), 4)));
  });
  ASSERT_GE(ends.size(), 5u);
  for (std::size_t i = 1; i < ends.size(); ++i) {
    const double waited = ends[i] - ends[i - 1] - run.refresh_seconds;
    EXPECT_GE(waited, RefreshSchedule::kPayback / 0.5 * run.refresh_seconds) << i;
    if (i < 5) {
      EXPECT_LE(waited, RefreshSchedule::kPayback / 0.5 * run.refresh_seconds + 0.1) << i;
    } else {
      EXPECT_GE(waited, RefreshSchedule::kShareOfTime * run.refresh_seconds) << i;
    }
  }
}

TEST(RefreshScheduleTest, IdleTimeIsNotARefreshs) {
  Workload run;
  run.refresh_seconds = 0.0001;
  run.pause = 3600;
  run.Find(4 * kMillion, [&] { return run.refreshes.empty() ? 0.0 : 0.5; });
  EXPECT_GE(run.refreshes.size(), 2u);
}

TEST(RefreshScheduleTest, IsJudgedByWhatIsFoundBehindIt) {
  std::size_t at_once = 0;
  for (const int batches : {0, 1, 200}) {  // 200 are several windows
    Workload run;
    run.batches_of_refresh = batches;
    run.Find(20 * kMillion, [&] {
      const auto ended = run.refreshes.size() - (run.left_of_refresh >= 0 ? 1 : 0);
      return std::min(0.8, 0.2 * static_cast<double>(ended));
    });
    if (batches == 0) at_once = run.refreshes.size();
    EXPECT_GE(run.refreshes.size() + 1, at_once) << batches << " batches beside each";
  }
  EXPECT_GE(at_once, 5u);
}

TEST(RefreshScheduleTest, AnEmptyCacheWaitsForNothing) {
  Workload run;
  run.refresh_seconds = 10;
  run.Find(2 * kMillion, [] { return 0.0; });
  ASSERT_EQ(run.refreshes.size(), 1u);
  run.schedule.Reset(std::uint64_t{1} << 24);
  run.Find(2 * kMillion, [] { return 0.0; });
  EXPECT_EQ(run.refreshes.size(), 2u);
}

TEST(RefreshScheduleTest, WhatWasFoundBeforeThereWasACacheIsNoEvidence) {
  Workload run;
  run.totals.found = 1000 * kMillion;
  run.Find(kMillion / 8, [] { return 0.0; });
  EXPECT_TRUE(run.refreshes.empty());
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
