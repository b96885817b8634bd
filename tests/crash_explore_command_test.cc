// gpmstore crash-explore: what it says, and its exit status, when a state is not as promised. A
// step that the store leaves out breaks the promise.

#include "cli/crash_explore_command.h"

#include <gtest/gtest.h>

#include <string>

namespace gpm::cli {
namespace {

/// Exit status of the command, and what it prints.
struct Ran {
  int status;
  std::string out;
};
Ran Explore(Step left_out, std::uint64_t seed, std::uint64_t states) {
  crash::CrashOptions options;
  options.seed = seed;
  options.max_states = states;
  options.left_out = left_out;
  ::testing::internal::CaptureStdout();
  const int status = RunCrashExplore(options);
  return {status, ::testing::internal::GetCapturedStdout()};
}

TEST(CrashExploreCommandTest, AViolationIsStatus1AndItsSeedFindsItAgain) {
  const Ran violated = Explore(Step::kInsertStateFlush, 1, 100'000);
  EXPECT_EQ(violated.status, 1);
  const std::string begin = "violation, seed ";
  ASSERT_EQ(violated.out.rfind(begin, 0), 0u) << violated.out;
  EXPECT_NE(violated.out.find("\nstates tried "), std::string::npos) << violated.out;
  const std::uint64_t seed = std::stoull(violated.out.substr(begin.size()));
  EXPECT_EQ(Explore(Step::kInsertStateFlush, seed, 1000).status, 1);
}

TEST(CrashExploreCommandTest, StatesAsPromisedAreStatus0) {
  const Ran kept = Explore(Step::kOther, 1, 100);
  EXPECT_EQ(kept.status, 0);
  EXPECT_EQ(kept.out.find("violation"), std::string::npos) << kept.out;
  EXPECT_NE(kept.out.find("states tried "), std::string::npos) << kept.out;
}

}  // namespace
}  // namespace gpm::cli
