#ifndef GPM_TESTS_FORK_H_
#define GPM_TESTS_FORK_H_

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace gpm::test {

/// Whether each thread of the process but the caller's is blocked in the kernel.
inline bool OtherThreadsSleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    const std::size_t name_end = stat.rfind(')');  // the state follows: "12 (name) S ..."
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") S") != 0) return false;
  }
  return true;
}

/// fork, for tests whose process has other threads. AddressSanitizer's allocator keeps the locks of
/// a thread that was allocating, for which the child would wait for ever: with it, first all sleep.
inline pid_t Fork() {
#ifdef __SANITIZE_ADDRESS__
  while (!OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
#endif
  return fork();
}

}  // namespace gpm::test

#endif  // GPM_TESTS_FORK_H_
