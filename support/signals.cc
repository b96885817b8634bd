#include "support/signals.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <forward_list>
#include <mutex>

namespace gpm {

struct RemovedOnSignal::Name {
  explicit Name(const std::string& text) : path(text) {}
  /// Whether the file with this name may go.
  bool IsOurs() const {
    struct stat there {};
    return !is_made ||
           (lstat(path.c_str(), &there) == 0 && there.st_dev == device && there.st_ino == inode);
  }
  const std::string path;
  std::atomic<bool> has_files{false};  ///< a folder that goes with them
  std::atomic<bool> is_made{false};    ///< and these say which file it is
  std::atomic<dev_t> device{0};
  std::atomic<ino_t> inode{0};
};

namespace {

constexpr std::array<int, 4> kEnding = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};
constexpr std::array<int, 3> kStopping = {SIGHUP, SIGINT, SIGTERM};

/// More names than any command has at once: crash-explore has two for each of 64 processes.
constexpr std::size_t kMaxNames = 512;
std::array<std::atomic<RemovedOnSignal::Name*>, kMaxNames> names{};
static_assert(std::atomic<RemovedOnSignal::Name*>::is_always_lock_free &&
              std::atomic<dev_t>::is_always_lock_free && std::atomic<ino_t>::is_always_lock_free);

std::atomic<std::atomic<bool>*> stop_flag{nullptr};
std::atomic<int> signal_taken{0};
std::array<struct sigaction, kStopping.size()> before_stopping{};

/// Removes a folder and the files in it, also those that other threads make meanwhile.
void RemoveFolder(const char* path) {
  constexpr int kAttempts = 1000;  // there may be a folder in it
  alignas(dirent64) std::array<char, 4096> entries;
  for (int attempt = 0; attempt < kAttempts && rmdir(path) != 0; ++attempt) {
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return;
    ssize_t bytes = 0;
    while ((bytes = getdents64(folder, entries.data(), entries.size())) > 0) {
      for (ssize_t at = 0; at < bytes;) {
        const auto* const entry = reinterpret_cast<const dirent64*>(entries.data() + at);
        unlinkat(folder, entry->d_name, 0);
        at += entry->d_reclen;
      }
    }
    close(folder);
  }
}

void RemoveAndEnd(int signal) {
  const auto for_each = [](const auto& remove) {
    for (const auto& entry : names) {
      const RemovedOnSignal::Name* const name = entry;
      if (name != nullptr && name->IsOurs()) remove(*name);
    }
  };
  using Name = RemovedOnSignal::Name;
  for_each([](const Name& name) {
    if (name.has_files) {
      RemoveFolder(name.path.c_str());
    } else {
      unlink(name.path.c_str());
    }
  });
  for_each([](const Name& name) { rmdir(name.path.c_str()); });  // which are empty now
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Where a signal is not ignored, `handler` gets it. @return what got it before
struct sigaction Install(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  return before;
}

void InstallRemoveAndEnd() {
  static std::once_flag installed;
  // SA_NODEFER: the signal that is raised ends the process inside the handler.
  std::call_once(installed, [] {
    for (const int signal : kEnding) Install(signal, RemoveAndEnd, SA_NODEFER);
  });
}

/// Keeps a name until the process ends: the handler may read it at any time.
RemovedOnSignal::Name* Keep(const std::string& path) {
  static std::mutex mutex;
  static auto* const kept = new std::forward_list<RemovedOnSignal::Name>;
  const std::lock_guard lock(mutex);
  return &kept->emplace_front(path);
}

void RestoreBeforeStopping() {
  for (std::size_t i = 0; i < kStopping.size(); ++i) {
    sigaction(kStopping[i], &before_stopping[i], nullptr);
  }
}

void Stop(int signal) {
  RestoreBeforeStopping();
  signal_taken = signal;
  if (std::atomic<bool>* const flag = stop_flag) *flag = true;
}

}  // namespace

RemovedOnSignal::RemovedOnSignal(const std::string& path, bool made) {
  InstallRemoveAndEnd();
  struct stat status {};
  if (path.empty() || (!made && lstat(path.c_str(), &status) == 0)) return;
  Name* const kept = Keep(path);
  for (auto& name : names) {
    Name* none = nullptr;
    if (name.compare_exchange_strong(none, kept)) {
      entry_ = &name;
      break;
    }
  }
  if (made) Made();
}

void RemovedOnSignal::Made() {
  if (entry_ == nullptr) return;
  Name& name = **entry_;
  struct stat status {};
  name.is_made = false;
  if (lstat(name.path.c_str(), &status) != 0) return;
  name.device = status.st_dev;
  name.inode = status.st_ino;
  name.is_made = true;
}

void RemovedOnSignal::MadeFolder() {
  Made();
  if (entry_ == nullptr) return;
  Name& name = **entry_;
  name.has_files = name.is_made.load();
}

RemovedOnSignal::~RemovedOnSignal() {
  if (entry_ != nullptr) *entry_ = nullptr;
}

StopOnSignal::StopOnSignal(std::atomic<bool>& stop) {
  InstallRemoveAndEnd();  // first, so that it gets the second signal
  signal_taken = 0;
  stop_flag = &stop;
  for (std::size_t i = 0; i < kStopping.size(); ++i) {
    sigaction(kStopping[i], nullptr, &before_stopping[i]);
  }
  for (const int signal : kStopping) Install(signal, Stop, SA_RESTART);
}

StopOnSignal::~StopOnSignal() {
  RestoreBeforeStopping();
  stop_flag = nullptr;
}

int SignalTaken() { return signal_taken; }

void EndBySignalTaken() {
  std::signal(signal_taken, SIG_DFL);
  std::raise(signal_taken);
  std::_Exit(128 + signal_taken);
}

}  // namespace gpm
