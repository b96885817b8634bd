#include "cli/crash/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace gpm::cli {

CrashProcess::CrashProcess(const std::vector<std::string>& arguments, const CrashAnswers* answers,
                           const std::atomic<bool>& stop)
    : stop_(stop) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("pipe", errno);
  pipe_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (answers != nullptr) {
    posix_spawn_file_actions_adddup2(&actions, answers->file(), CrashAnswers::kInherited);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int error =
      posix_spawn(&process_, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(pipe_);
    ThrowErrno("the process to be killed can't be started", error);
  }
}

CrashProcess::~CrashProcess() {
  Kill();
  close(pipe_);
}

int CrashProcess::Kill() {
  if (process_ < 0) return status_;
  killed_ = true;
  kill(process_, SIGKILL);
  while (Read(Clock::time_point::max(), nullptr)) {
  }
  while (waitpid(process_, &status_, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
  return status_;
}

bool CrashProcess::Read(Clock::time_point deadline, const std::atomic<bool>* stop) {
  constexpr std::chrono::nanoseconds kStep = std::chrono::milliseconds(100);
  pollfd readable{pipe_, POLLIN, 0};
  int ready = 0;
  do {
    if (stop != nullptr && *stop) throw CrashStopped{};
    // The time is asked even when records come without a pause.
    const std::chrono::nanoseconds left = deadline - Clock::now();
    if (left.count() <= 0) return false;
    const timespec wait{0, std::min(left, kStep).count()};
    ready = ppoll(&readable, 1, &wait, nullptr);
  } while (ready == 0 || (ready < 0 && errno == EINTR));
  if (ready < 0) return false;
  CrashRecord record;
  if (read(pipe_, &record, sizeof record) != sizeof record) {  // the child has ended
    if (!killed_) ended_by_itself_ = true;
    return false;
  }
  records_.push_back(record);
  return true;
}

}  // namespace gpm::cli
