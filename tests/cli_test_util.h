#ifndef GPM_TESTS_CLI_TEST_UTIL_H_
#define GPM_TESTS_CLI_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/files.h"
#include "tests/test_util.h"

/// Runs the gpmstore command as a user runs it.
namespace gpm {

using Json = nlohmann::json;
using test::ReadFile;
using test::WriteFile;

/// Name of the executor that this run of the tests is for.
inline std::string Executor() { return std::string(ExecutorName(test::TestExecutor())); }

class CliTest : public test::PoolTest {
 protected:
  struct Ran {
    int status = -1;
    std::string out;
    std::string err;
  };

  /// Runs `gpmstore ARGUMENTS`, which the shell takes apart.
  /// @param before what stands before the command: an environment, or commands that end with ';'
  /// @param output where its standard output goes; empty: to Ran::out
  Ran Run(const std::string& arguments, const std::string& before = "",
          const std::string& output = "") {
    const std::string out = output.empty() ? NewPath() : output;
    const std::string err = NewPath();
    const std::string command =
        before + " '" GPMSTORE_BINARY "' " + arguments + " > " + out + " 2> " + err;
    const int status = std::system(command.c_str());
    Ran ran;
    if (WIFEXITED(status)) ran.status = WEXITSTATUS(status);
    if (output.empty()) ran.out = ReadFile(out);
    ran.err = ReadFile(err);
    return ran;
  }

  /// Runs it and expects status 2, nothing on stdout, and a message that names `reason`.
  void ExpectRefused(const std::string& arguments, const std::string& reason) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.status, 2) << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_EQ(ran.err.rfind("gpmstore: ", 0), 0u) << arguments << ": " << ran.err;
    EXPECT_NE(ran.err.find(reason), std::string::npos) << arguments << ": " << ran.err;
  }

  /// Runs it with `--json -`, expects status 0 and nothing but JSON.
  Json RunJson(const std::string& arguments) {
    const Ran ran = Run(arguments + " --json -");
    EXPECT_EQ(ran.status, 0) << arguments << ": " << ran.err;
    const Json json = Json::parse(ran.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << arguments << ": " << ran.out;
    return json;
  }

  std::string OnExecutor() { return " --executor " + Executor() + " "; }
};

}  // namespace gpm

#endif  // GPM_TESTS_CLI_TEST_UTIL_H_
