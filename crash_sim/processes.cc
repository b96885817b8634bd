#include "crash_sim/processes.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>

namespace gpm::crash {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(20);

[[noreturn]] void RunChild(unsigned number, const std::function<void(unsigned)>& work) {
  // An interrupt from the terminal is for the parent, which ends its children in order.
  signal(SIGINT, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int status = 0;
  try {
    work(number);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);
}

std::string Reason(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal: {}", strsignal(WTERMSIG(status)));
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit status {}", WEXITSTATUS(status));
}

}  // namespace

std::vector<std::string> RunProcesses(unsigned processes, const std::function<void(unsigned)>& work,
                                      const std::function<void(bool died)>& meanwhile) {
  std::fflush(nullptr);  // or children would write again what is buffered
  std::vector<pid_t> running(processes);
  for (unsigned i = 0; i < processes; ++i) {
    running[i] = fork();
    if (running[i] == 0) RunChild(i, work);
    if (running[i] < 0) {
      const int error = errno;
      for (unsigned k = 0; k < i; ++k) {
        kill(running[k], SIGKILL);
        waitpid(running[k], nullptr, 0);
      }
      throw std::system_error(error, std::generic_category(), "can't make a process");
    }
  }
  std::vector<std::string> reasons(processes);
  bool died = false;
  for (unsigned left = processes; left > 0;) {
    for (unsigned i = 0; i < processes; ++i) {
      int status = 0;
      if (running[i] == 0 || waitpid(running[i], &status, WNOHANG) != running[i]) continue;
      reasons[i] = Reason(status);
      died |= !reasons[i].empty();
      running[i] = 0;
      --left;
    }
    meanwhile(died);
    if (left > 0) std::this_thread::sleep_for(kInterval);
  }
  return reasons;
}

}  // namespace gpm::crash
