// gpmstore replay: results line by line, real traces, and what it refuses before it changes
// anything.

#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "tests/cli_test_util.h"

namespace gpm {
namespace {

using CliReplayTest = CliTest;

TEST_F(CliReplayTest, ReplayWritesResults) {
  const std::string load = NewPath();
  const std::string run = NewPath();
  const std::string results = NewPath();
  const std::string pool = NewPath();
  WriteFile(load,
            "INSERT usertable user1 [ field0=one ]\nINSERT usertable user2 [ field0=a longer ]\n"
            "INSERT usertable user1 [ field0=again ]\n");
  WriteFile(run,
            "READ usertable user1 [ <all fields>]\nUPDATE usertable user1 [ field0=uno ]\n"
            "READ usertable user1 [ <all fields>]\nDELETE user2\nREAD user2\nUPDATE user2\n"
            "INSERT user7\nREAD user7\nDELETE user2\n");
  const std::string files = "--load " + load + " --run " + run + " --results " + results;
  const std::string expected =
      "INSERT\tuser1\tok\nINSERT\tuser2\tok\nINSERT\tuser1\texists\n"
      "READ\tuser1\tok\tone\nUPDATE\tuser1\tok\nREAD\tuser1\tok\tuno\nDELETE\tuser2\tok\n"
      "READ\tuser2\tnot-found\nUPDATE\tuser2\tnot-found\nINSERT\tuser7\tok\n"
      "READ\tuser7\tok\t\nDELETE\tuser2\tnot-found\n";
  for (const char* batch : {"1", "4", "1048576"}) {
    const Ran ran = Run("replay " + files + " --batch " + batch + OnExecutor());
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ReadFile(results), expected) << batch;
  }
  // A pool that is named is created and kept; it can be replayed onto and read.
  const Json json = RunJson("replay " + files + OnExecutor() + " --pool " + pool);
  EXPECT_EQ(json["load"]["operations"], 3);
  EXPECT_EQ(json["run"]["operations"], 9);
  EXPECT_EQ(json["store"]["value_size"], 8);
  EXPECT_EQ(Run("get " + pool + " 1").out, "uno\n");
  WriteFile(run, "READ 1\n");
  ASSERT_EQ(Run("replay --run " + run + " --results " + results + " --pool " + pool + OnExecutor())
                .status,
            0);
  EXPECT_EQ(ReadFile(results), "READ\t1\tok\tuno\n");
  WriteFile(run, "INSERT usertable user9 [ field0=nine bytes ]\n");
  ExpectRefused("replay --run " + run + " --pool " + pool, "8");
}

TEST_F(CliReplayTest, ReplayOfYcsbTraceEqualsADictionary) {
  const std::string results = NewPath();
  const std::string data = GPM_TEST_DATA "/workloadd";
  const Ran ran = Run("replay --load " + data + ".load.txt.gz --run " + data +
                      ".run.txt.gz --results " + results + OnExecutor());
  ASSERT_EQ(ran.status, 0) << ran.err;
  // Workload D inserts new keys and reads: what a read finds was inserted in an earlier line.
  std::istringstream lines(ReadFile(results));
  std::string line;
  std::map<std::string, int> counts;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string operation;
    std::string key;
    std::string outcome;
    fields >> operation >> key >> outcome;
    ++counts[operation + " " + outcome];
  }
  EXPECT_EQ(counts["INSERT ok"], 6016);
  EXPECT_EQ(counts["READ ok"], 18984);
  EXPECT_EQ(counts.size(), 2u);
}

TEST_F(CliReplayTest, BadTraceChangesNothing) {
  const std::string run = NewPath();
  const std::string pool = NewPath();
  WriteFile(run, "INSERT 1\n\nSCAN usertable user1 5 [ <all fields>]\n");
  ExpectRefused("replay --run " + run + " --pool " + pool, run + ":3: scans");
  EXPECT_FALSE(std::filesystem::exists(pool));
  WriteFile(run, "INSERT 1\nnonsense\n");
  ExpectRefused("replay --run " + run + " --pool " + pool, run + ":2: ");
  WriteFile(run, "INSERT 1\n");
  ExpectRefused("replay --run " + run + " --pool " + pool + " --results /nonexistent/r",
                "/nonexistent/r");
  EXPECT_FALSE(std::filesystem::exists(pool));
  // Nor does one whose second trace has values, or keys, that are too long for the pool.
  const std::string load = NewPath();
  const std::string results = NewPath();
  WriteFile(load, "INSERT table user1 [ field0=one ]\n");
  WriteFile(run, "INSERT table user22 [ field0=longer ]\n");
  WriteFile(results, "old");
  const std::string both =
      "replay --executor cpu --load " + load + " --run " + run + " --results " + results;
  ASSERT_EQ(Run("create --value-size 4 " + pool).status, 0);
  ExpectRefused(both + " --pool " + pool, "longest value has 6 bytes");
  EXPECT_EQ(Run("dump " + pool).out, "");
  const std::string keys = NewPath();
  ASSERT_EQ(Run("create --key-size 5 " + keys).status, 0);
  ExpectRefused(both + " --pool " + keys, "longest key has 6 bytes");
  EXPECT_EQ(Run("dump " + keys).out, "");
  EXPECT_EQ(ReadFile(results), "old");
}

TEST_F(CliReplayTest, ReplayKeepsWhatIsNoResultsFile) {
  const std::string run = NewPath();
  const std::string results = NewPath();
  const std::string link = NewPath();
  const std::string pool = NewPath();
  WriteFile(run, "INSERT 1\n");
  WriteFile(results, "old");
  std::filesystem::create_symlink(run, link);
  const std::string command = "replay --executor cpu --run " + run;
  ExpectRefused(command + " --results " + run, "--results and --run are the same file");
  ExpectRefused(command + " --results " + link, "--results and --run are the same file");
  ExpectRefused(command + " --results " + results + " --json " + results,
                "--results and --json are the same file");
  ExpectRefused(command + " --results " + pool + " --pool " + pool,
                "--results and --pool are the same file");
  EXPECT_FALSE(std::filesystem::exists(pool));
  ASSERT_EQ(Run("create --value-size 32 " + pool).status, 0);
  ExpectRefused(command + " --results " + results + " --key-size 16 --pool " + pool, "key");
  ExpectRefused(command + " --results " + results + " --devices 0", "--devices");
  EXPECT_EQ(ReadFile(run), "INSERT 1\n");
  EXPECT_EQ(ReadFile(results), "old");
}

}  // namespace
}  // namespace gpm
