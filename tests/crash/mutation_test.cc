#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/crash/crash_explorer.h"
#include "tests/crash/schedule_explorer.h"
#include "tests/test_util.h"

/// Mutation: with any one step of the protocols left out (pm/steps.h lists them all), exploration
/// finds a violation. A step that could be left out unnoticed would be one that is not needed, or
/// one that is not tested.
namespace gpm::crash {
namespace {

/// Many times what it takes.
constexpr std::uint64_t kMaxStates = 1'000'000;
constexpr std::uint64_t kMaxSchedules = 200'000;

/// Steps that matter only when two batches run at once.
bool IsForSchedules(Step step) {
  switch (step) {
    case Step::kInsertLock:
    case Step::kInsertClaimCas:
    case Step::kUpdateReferenceCas:
    case Step::kEraseStateCas:
    case Step::kSettleFlush:
    case Step::kSettleFence:
      return true;
    default:
      return false;
  }
}

class MutationTest : public ::testing::TestWithParam<Step> {};

TEST_P(MutationTest, IsCaught) {
  const std::uint64_t seed = test::TestSeed() % 1'000'000'000;
  std::string violation;
  if (IsForSchedules(GetParam())) {
    ScheduleOptions options;
    options.seed = seed;
    options.count = kMaxSchedules;
    options.threads = 2;
    options.crash_states = 8;
    options.leave_out = GetParam();
    const ScheduleReport report = ExploreSchedules(options);
    violation = report.violation;
    std::printf("caught after %llu schedules\n", static_cast<unsigned long long>(report.schedules));
  } else {
    CrashOptions options;
    options.seed = seed;
    options.max_states = kMaxStates;
    options.processes = 2;
    options.left_out = GetParam();
    const CrashReport report = ExploreCrashes(options);
    violation = report.violation;
    std::printf("caught after %llu states\n", static_cast<unsigned long long>(report.states));
  }
  EXPECT_NE(violation, "") << StepName(GetParam()) << " can be left out unnoticed";
}

std::vector<Step> AllSteps() {
  std::vector<Step> steps;
  for (int i = 1; i < static_cast<int>(Step::kCount); ++i) steps.push_back(static_cast<Step>(i));
  return steps;
}

/// "insert-claim-cas" as InsertClaimCas.
std::string NameOf(const ::testing::TestParamInfo<Step>& info) {
  std::string name;
  bool begins_word = true;
  for (const char c : StepName(info.param)) {
    if (c != '-') name += begins_word ? static_cast<char>(std::toupper(c)) : c;
    begins_word = c == '-';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(EachStep, MutationTest, ::testing::ValuesIn(AllSteps()), NameOf);

}  // namespace
}  // namespace gpm::crash
