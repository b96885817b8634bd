#include "engine/home_process.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "gpmstore/error.h"

namespace gpm {
namespace {

/// Forks that made this process out of the one that first asked: a load, where asking the system
/// for the process's number would take as long as a launch's arguments do.
std::uint32_t Forks() {
  static std::atomic<std::uint32_t> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  if (registered != 0) return static_cast<std::uint32_t>(getpid());  // no memory for it
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

HomeProcess::HomeProcess() : process_(getpid()), forks_(Forks()) {}

bool HomeProcess::IsThis() const { return Forks() == forks_; }

void HomeProcess::Check() const {
  if (IsThis()) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the store was opened by process {}, of which this one is a fork; use it "
                          "there, or open the pool here when it is closed there",
                          process_));
}

}  // namespace gpm
