// gpmstore crash-test: processes killed in the middle of their batches, and the command's exit
// status. That what judges them can say no is shown in crash_oracle_test.cc and beside it.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/test_util.h"

namespace gpm::cli {
namespace {

using Json = nlohmann::json;

/// Real kills, on the executor of this run.
class KillTest : public test::PoolTest {
 protected:
  /// Runs crash-test with seeds of this run, and expects that it ends well and cleans up. What a
  /// run meets depends on the moments of its kills, so it is run again, ten times at most, until
  /// each counter of `seen`, and each that any run should move, has been more than 0.
  void CrashTest(int rounds, const std::string& arguments, std::set<std::string> seen = {}) {
    seen.insert({"operations_acknowledged", "keys_compared"});
    for (int run = 0; run < 10 && !seen.empty(); ++run) {
      const Json json = CrashTestOnce(rounds, arguments, test::TestSeed() + run);
      std::erase_if(seen, [&](const std::string& counter) { return json[counter] > 0; });
    }
    EXPECT_TRUE(seen.empty()) << *seen.begin() << " stayed 0 in ten runs of " << arguments;
  }

 private:
  Json CrashTestOnce(int rounds, const std::string& arguments, std::uint64_t seed) {
    const std::string pool = NewPath();
    const std::string command = "'" GPMSTORE_BINARY "' crash-test --json - --pool " + pool +
                                " --seed " + std::to_string(seed) + " --rounds " +
                                std::to_string(rounds) + " --executor " +
                                std::string(ExecutorName(test::TestExecutor())) + " " + arguments;
    FILE* const output = popen(command.c_str(), "r");
    if (output == nullptr) throw std::runtime_error("popen");
    std::string text;
    char part[4096];
    while (const std::size_t bytes = fread(part, 1, sizeof part, output)) text.append(part, bytes);
    const int status = pclose(output);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << ": " << text;
    std::printf("%s\n", text.c_str());
    EXPECT_FALSE(std::filesystem::exists(pool));
    const Json json = Json::parse(text);
    EXPECT_EQ(json["defects"], Json::array());
    EXPECT_EQ(json["rounds"], rounds);
    EXPECT_EQ(json["kills"], rounds);
    return json;
  }
};

TEST_F(KillTest, ShortKeysAndCells) {
  CrashTest(20, "--key-size 8 --value-size 128 --jobs 2",
            {"kills_in_running", "batches_in_flight", "resizes", "compactions"});
}

TEST_F(KillTest, SnapshotsAndRestores) {
  CrashTest(24, "--key-size 8 --value-size 64 --threads 2",
            {"snapshots_restored", "kills_in_snapshots", "kills_in_restores"});
}

TEST_F(KillTest, LongKeysAndManyThreads) {
  CrashTest(8, "--key-size 29 --value-size 100 --threads 5");
}

TEST_F(KillTest, InlineValuesAndOneThread) {
  CrashTest(8, "--key-size 36 --value-size 8 --threads 1");
}

TEST_F(KillTest, LargeBatchesOfSeveralJobs) {
  const bool gpu = test::TestExecutor() == ExecutorKind::kCuda;
  std::set<std::string> seen = {"cache_loadings", "resizes"};
  if (gpu) seen.insert({"batches_of_65536_or_more", "batches_on_scopes"});
  CrashTest(gpu ? 24 : 8,
            "--key-size 8 --value-size 24 --threads 3 --tickets 3 --jobs 3 "
            "--max-batch 262144 --longest 800",
            seen);
}

TEST_F(KillTest, TinyValuesOneLevel) {
  CrashTest(4, "--key-size 5 --value-size 3 --geometry 1L-2H-4S --rounds-per-pool 2");
}

TEST_F(KillTest, AsManyKeysAsAByteHas) { CrashTest(4, "--key-size 1 --value-size 64 --threads 3"); }

TEST_F(KillTest, Shards) {
  CrashTest(20, "--shards 3 --key-size 8 --value-size 40 --rounds-per-pool 3 --longest 150",
            {"kills_in_creation", "kills_in_running", "batches_in_flight", "resizes",
             "snapshots_restored"});
}

TEST_F(KillTest, OneShard) { CrashTest(4, "--shards 1 --key-size 12 --value-size 8"); }

/// Asks again and again, for a minute at most. @return whether it became true
template <class Condition>
bool Becomes(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A child of a process that has but one thread, or 0.
pid_t ChildOf(pid_t process) {
  const std::string number = std::to_string(process);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

/// Whether a process is there and is no zombie.
bool IsRunning(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stat, text, ')');
  char state = 'Z';
  stat >> state;
  return state != 'Z' && state != 'X';
}

/// Starts the command. @return its process, or -1
pid_t Spawn(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "gpmstore");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t process = -1;
  const int error = posix_spawn(&process, GPMSTORE_BINARY, nullptr, nullptr, argv.data(), environ);
  return error == 0 ? process : -1;
}

TEST_F(KillTest, SignalsLeaveNeitherChildNorPool) {
  const std::string executor(ExecutorName(test::TestExecutor()));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGKILL}) {
    const std::filesystem::path directory = NewPath();
    std::filesystem::create_directory(directory);
    const pid_t process = Spawn({"crash-test", "--pool=" + (directory / "pool").string(),
                                 "--longest=60000", "--jobs=2", "--executor=" + executor});
    ASSERT_GT(process, 0);
    pid_t child = 0;
    EXPECT_TRUE(Becomes([&] { return (child = ChildOf(process)) != 0; }));
    EXPECT_TRUE(IsRunning(child));
    EXPECT_TRUE(Becomes([&] { return !std::filesystem::is_empty(directory); }));
    kill(process, signal);
    int status = 0;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_TRUE(Becomes([&] { return !IsRunning(child); }));
    EXPECT_TRUE(signal == SIGKILL || std::filesystem::is_empty(directory));
    std::error_code ignored;  // another job's child may have made a file just now
    std::filesystem::remove_all(directory, ignored);
  }
}

TEST_F(KillTest, ABrokenPromiseIsStatus1) {
  // A child that somebody else ends, in another way than crash-test does, broke one.
  const std::string pool = NewPath();
  const std::string file = NewPath();
  const std::string executor(ExecutorName(test::TestExecutor()));
  const pid_t process = Spawn({"crash-test", "--pool=" + pool, "--longest=60000", "--rounds=1000",
                               "--json=" + file, "--executor=" + executor});
  ASSERT_GT(process, 0);
  int status = 0;
  EXPECT_TRUE(Becomes([&] {
    const pid_t child = std::filesystem::exists(pool) ? ChildOf(process) : 0;
    if (child != 0) kill(child, SIGUSR1);
    return waitpid(process, &status, WNOHANG) == process;
  }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  std::ifstream text(file);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["defects"],
            Json::array({"the child was ended by signal " + std::to_string(SIGUSR1)}));
  ASSERT_EQ(json["replays"].size(), 1u);
  EXPECT_NE(json["replays"][0].get<std::string>().find("--pool " + pool + ".replay"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(pool)) << "it is kept, to be looked at";
}

TEST_F(KillTest, WrongUsageIsStatus2) {
  const std::string pool = NewPath();
  const auto status_of = [&](const std::string& arguments) {
    const std::string command =
        "'" GPMSTORE_BINARY "' crash-test --rounds 1 " + arguments + " 2> /dev/null";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(status_of(""), 2);
  EXPECT_EQ(status_of("--key-size 0 --pool " + pool), 2);
  EXPECT_EQ(status_of("--geometry 3L-2H-8S --pool " + pool), 2);
  EXPECT_EQ(status_of("--executor tpu --pool " + pool), 2);
  EXPECT_EQ(status_of("--pool /nonexistent/pool"), 2);
  EXPECT_FALSE(std::filesystem::exists(pool));
  // A pool that is there is not touched.
  Store::Create(pool, CreateOptions{}, test::TestOpenOptions()).Close();
  EXPECT_EQ(status_of("--pool " + pool), 2);
  EXPECT_TRUE(CheckPool(pool).clean);
}

}  // namespace
}  // namespace gpm::cli
