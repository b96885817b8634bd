#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include "crash_sim/crash_explorer.h"
#include "tests/test_util.h"

namespace gpm::crash {
namespace {

/// Crashes at every point of random workloads leave what was promised. GPM_TEST_STATES: how many
/// different states to try.
TEST(CrashTest, EveryCrashStateRecovers) {
  CrashOptions options;
  options.seed = test::TestSeed() % 1'000'000'000;
  options.max_states = test::EnvironmentNumber("GPM_TEST_STATES", 300'000);
  options.processes = std::thread::hardware_concurrency();
  const CrashReport report = ExploreCrashes(options);
  std::printf("first seed            %llu\n%s", static_cast<unsigned long long>(options.seed),
              Describe(report).c_str());
  EXPECT_EQ(report.violation, "");
  EXPECT_GE(report.images, options.max_states);
  EXPECT_GT(report.nested_states, 0u);
  EXPECT_GT(report.repaired, 0u);
  if (report.images < 50'000) return;  // too few to meet everything
  for (std::size_t i = 1; i < report.steps.size(); ++i) {
    const auto step = static_cast<Step>(i);
    EXPECT_EQ(report.steps[i] == 0, IsNeverMet(step))
        << StepName(step) << " was met " << report.steps[i] << " times";
  }
}

TEST(CrashTest, EndsWhenItIsTold) {
  CrashOptions options;
  options.max_states = ~std::uint64_t{0};
  options.progress = [](std::uint64_t states) { return states < 100; };
  EXPECT_GE(ExploreCrashes(options).states, 100u);
}

}  // namespace
}  // namespace gpm::crash
