// Commands that a signal ends, or that run out of memory: what they leave, and their exit status.

#include "support/signals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/files.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

namespace fs = std::filesystem;
using test::ReadFile;

void MakeFile(const std::string& path) { std::ofstream(path) << "x"; }

std::set<pid_t> ChildrenOf(pid_t process) {
  std::set<pid_t> children;
  std::error_code ignored;
  for (const auto& task :
       fs::directory_iterator("/proc/" + std::to_string(process) + "/task", ignored)) {
    std::ifstream file(task.path() / "children");
    children.insert(std::istream_iterator<pid_t>(file), {});
  }
  return children;
}

/// Whether a process runs; one that nobody has waited for yet does not.
bool Runs(pid_t process) {
  const std::string stat = ReadFile("/proc/" + std::to_string(process) + "/stat");
  const std::size_t end = stat.rfind(") ");
  return end != std::string::npos && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}

class SignalsTest : public test::PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    folder_ = NewPath();
    fs::create_directory(folder_);
  }

  /// Starts a program, for which "POOL" means a new file in the test's folder; temporary files go
  /// there, too.
  pid_t Start(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      if (argument == "POOL") argument = folder_ + "/pool";
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    setenv("TMPDIR", folder_.c_str(), 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    output_ = NewPath();
    posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t process = -1;
    EXPECT_EQ(posix_spawn(&process, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    unsetenv("TMPDIR");
    return process;
  }

  /// Waits until the process, or a child of it, has mapped a file whose name has `text`.
  static bool AwaitMapped(pid_t process, const std::string& text) {
    for (int i = 0; i < 30'000 && Runs(process); ++i) {
      std::set<pid_t> processes = ChildrenOf(process);
      processes.insert(process);
      for (const pid_t p : processes) {
        if (ReadFile("/proc/" + std::to_string(p) + "/maps").find(text) != std::string::npos) {
          return true;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  static int Await(pid_t process) {
    int status = 0;
    while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

  /// Sends each signal to the program when it has its pool mapped, and a moment later.
  void ExpectNothingLeft(const std::vector<std::string>& arguments) {
    for (const int signal : {SIGINT, SIGTERM}) {
      for (const int moment_ms : {0, 300}) {
        const pid_t process = Start(arguments);
        ASSERT_TRUE(AwaitMapped(process, folder_)) << Describe(arguments);
        std::this_thread::sleep_for(std::chrono::milliseconds(moment_ms));
        const std::set<pid_t> children = ChildrenOf(process);
        kill(process, signal);
        const int status = Await(process);
        EXPECT_TRUE(WIFSIGNALED(status)) << Describe(arguments) << ": status " << status;
        EXPECT_EQ(WTERMSIG(status), signal) << Describe(arguments);
        // A child ends when the kernel has told it that its parent did.
        for (int i = 0; i < 5'000; ++i) {
          if (std::ranges::none_of(children, Runs)) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_TRUE(std::ranges::none_of(children, Runs)) << Describe(arguments);
        EXPECT_TRUE(fs::is_empty(folder_)) << Describe(arguments);
        fs::remove_all(folder_);
        fs::create_directory(folder_);
      }
    }
  }

  std::string Describe(const std::vector<std::string>& arguments) const {
    std::string text;
    for (const std::string& argument : arguments) text += argument + " ";
    return text + "\n" + ReadFile(output_);
  }

  std::string folder_;
  std::string output_;
};

TEST_F(SignalsTest, ASignalRemovesWhatHasBeenMadeAndEndsTheProcess) {
  const std::string before = NewPath();
  const std::string made = folder_ + "/made";
  const std::string inside = folder_ + "/directory/made";
  const std::string given_up = NewPath();
  MakeFile(before);
  EXPECT_EXIT(
      {
        const RemovedOnSignal not_ours(before);
        const RemovedOnSignal file(made);
        const RemovedOnSignal file_inside(inside);
        fs::create_directory(folder_ + "/directory");
        const RemovedOnSignal directory(folder_ + "/directory", true);
        { const RemovedOnSignal name(given_up); }
        for (const std::string& path : {made, inside, given_up}) MakeFile(path);
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_TRUE(fs::exists(before));
  EXPECT_TRUE(fs::exists(given_up));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SignalsTest, AFolderGoesWithItsFilesIfItIsOurs) {
  const std::string outer = folder_ + "/outer";
  const std::string inner = outer + "/inner";
  const std::string other = NewPath();
  const std::string kept = NewPath();
  fs::create_directory(kept);
  EXPECT_EXIT(
      {
        fs::create_directory(outer);
        const RemovedOnSignal outer_name(outer, true);
        RemovedOnSignal inner_name(inner);
        fs::create_directory(inner);
        inner_name.MadeFolder();
        for (int i = 0; i < 1000; ++i) MakeFile(inner + "/file" + std::to_string(i));
        MakeFile(kept + "/file");
        fs::create_symlink(kept, inner + "/link");
        RemovedOnSignal other_name(other);
        fs::create_directory(other);
        other_name.MadeFolder();
        fs::rename(other, other + ".moved");
        fs::create_directory(other);
        MakeFile(other + "/file");
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_TRUE(fs::exists(other + "/file")) << "another folder has the name";
  EXPECT_TRUE(fs::exists(kept + "/file"));
}

TEST_F(SignalsTest, AFileThatTookTheNameIsLeftAlone) {
  const std::string path = folder_ + "/pool";
  const std::string directory = folder_ + "/directory";
  EXPECT_EXIT(
      {
        RemovedOnSignal name(path);
        MakeFile(path);
        name.Made();
        fs::create_directory(directory);
        const RemovedOnSignal directory_name(directory, true);
        // Renamed first, so that the new ones do not get the inodes of the old.
        for (const std::string& old : {path, directory}) fs::rename(old, old + ".moved");
        MakeFile(path);
        fs::create_directory(directory);
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_TRUE(fs::exists(path));
  EXPECT_TRUE(fs::exists(directory));
  EXPECT_EXIT(
      {
        fs::remove(path);
        RemovedOnSignal name(path);
        for (int i = 0; i < 2; ++i) {
          MakeFile(path);
          name.Made();
          if (i == 0) fs::rename(path, path + ".first");
        }
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_FALSE(fs::exists(path)) << "made anew";
}

TEST_F(SignalsTest, TheFirstSignalStopsAndTheSecondRemovesAndEnds) {
  const std::string made = folder_ + "/made";
  EXPECT_EXIT(
      {
        std::atomic<bool> stop{false};
        const StopOnSignal signals(stop);
        const RemovedOnSignal name(made);
        MakeFile(made);
        std::raise(SIGINT);
        if (!stop || SignalTaken() != SIGINT || !fs::exists(made)) std::_Exit(1);
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SignalsTest, WhatTheProcessIgnoresStaysIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);
        std::atomic<bool> stop{false};
        {
          const StopOnSignal signals(stop);
          std::raise(SIGHUP);
        }
        const RemovedOnSignal name(folder_ + "/made");
        std::raise(SIGHUP);
        std::_Exit(stop ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(SignalsTest, CommandsLeaveNoPool) {
  for (const char* jobs : {"1", "2"}) {
    ExpectNothingLeft({GPMSTORE_BINARY, "crash-test", "--rounds", "10000", "--longest", "100",
                       "--jobs", jobs, "--pool", "POOL"});
  }
  ExpectNothingLeft({GPMSTORE_BINARY, "stress", "--seconds", "600", "--round-seconds", "0.2"});
  const std::vector<std::string> ycsb = {GPMSTORE_BINARY, "ycsb", "-w",           "a",
                                         "--records",     "1000", "--operations", "1000000000",
                                         "--executor",    "cpu"};
  ExpectNothingLeft(ycsb);
  std::vector<std::string> named = ycsb;
  named.insert(named.end(), {"--pool", "POOL"});
  ExpectNothingLeft(named);
  for (std::vector<std::string> arguments : {ycsb, named}) {
    arguments.insert(arguments.end(), {"--shards", "3"});
    ExpectNothingLeft(arguments);
  }
}

TEST_F(SignalsTest, CrashExploreLeavesNoPoolAndIsNoSuccess) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t process =
        Start({GPMSTORE_BINARY, "crash-explore", "--states", "1000000000", "--processes", "2"});
    ASSERT_TRUE(AwaitMapped(process, "gpmstore_crash_"));
    std::set<std::string> pools;
    for (const pid_t child : ChildrenOf(process)) {
      std::istringstream maps(ReadFile("/proc/" + std::to_string(child) + "/maps"));
      for (std::string line; std::getline(maps, line);) {
        if (line.find("gpmstore_crash_") == std::string::npos) continue;
        pools.insert(fs::path(line.substr(line.find('/'))).parent_path());
      }
    }
    EXPECT_FALSE(pools.empty());
    kill(process, signal);
    const int status = Await(process);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    for (const std::string& pool : pools) EXPECT_FALSE(fs::exists(pool)) << pool;
    EXPECT_NE(ReadFile(output_).find("interrupted"), std::string::npos) << ReadFile(output_);
  }
}

#ifdef GPMSTORE_BENCH_BINARY
TEST_F(SignalsTest, BenchmarksLeaveNoPool) {
  const std::vector<std::vector<std::string>> commands = {
      {"workloads", "--records", "200000", "--executor", "cpu", "--repeats", "100"},
      {"workloads", "--records", "200000", "--executor", "cpu", "--workloads", "insert",
       "--no-roofline", "--repeats", "1000"},
      {"ablation", "--records", "200000", "--executor", "cpu", "--repeats", "100"},
      {"cache", "--records", "200000", "--executor", "cpu"},
      {"recovery", "--records", "200000", "--executor", "cpu", "--repeats", "1000"},
      {"roofline", "--executor", "cpu", "--range-bytes", "64M", "--repeats", "1000"},
      {"cpu", "--records", "200000", "--runs", "1000"}};
  for (std::vector<std::string> arguments : commands) {
    arguments.insert(arguments.begin(), GPMSTORE_BENCH_BINARY);
    arguments.insert(arguments.end(), {"--pool", "POOL"});
    ExpectNothingLeft(arguments);
  }
}
#endif

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(SignalsTest, LackOfMemoryIsNoViolation) {
  const auto run = [&](const std::string& kilobytes, const std::string& arguments) {
    return Start({"/bin/sh", "-c",
                  "ulimit -v " + kilobytes + "; exec '" GPMSTORE_BINARY "' " + arguments + " > " +
                      NewPath()});
  };
  int status = Await(run("1900000",
                         "crash-test --rounds 10 --threads 16 --tickets 4 --max-batch "
                         "262144 --pool " +
                             folder_ + "/pool"));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status << ReadFile(output_);
  EXPECT_TRUE(fs::is_empty(folder_));
  // From too little for the libraries, over too little to begin with, to enough.
  int too_little = 0;
  for (int kilobytes = 8'000; kilobytes <= 64'000; kilobytes += 500) {
    // (Where a library's own beginning fails, it may abort.)
    if (!WIFEXITED(Await(run(std::to_string(kilobytes), "--version")))) continue;
    status = Await(run(std::to_string(kilobytes), "crash-explore --states 100 --processes 2"));
    ASSERT_TRUE(WIFEXITED(status)) << kilobytes << ": " << status << ReadFile(output_);
    constexpr int kNotLoaded = 127;
    if (WEXITSTATUS(status) == kNotLoaded || WEXITSTATUS(status) == 0) continue;
    ASSERT_EQ(WEXITSTATUS(status), 3) << kilobytes << ": " << ReadFile(output_);
    ++too_little;
  }
  EXPECT_GT(too_little, 0);
}
#endif

TEST_F(SignalsTest, AChildThatSomebodyElseKillsIsNoViolation) {
  const pid_t process = Start(
      {GPMSTORE_BINARY, "crash-test", "--rounds", "10000", "--longest", "60000", "--pool", "POOL"});
  while (Runs(process)) {  // the command may be first to kill one
    for (const pid_t child : ChildrenOf(process)) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const int status = Await(process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status << ReadFile(output_);
}

TEST_F(SignalsTest, VolatileMemoryIsRefusedByCrashTest) {
  const int status = Await(Start({GPMSTORE_BINARY, "crash-test", "--pool", "pinned:"}));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
  EXPECT_NE(ReadFile(output_).find("volatile"), std::string::npos) << ReadFile(output_);
}

}  // namespace
}  // namespace gpm
