#include "cli/work_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "pm/mapping.h"

namespace gpm::cli {
namespace {

/// A new directory for a temporary pool. GPUs register tmpfs but not ordinary files.
std::string MakeTemporaryDirectory(ExecutorKind executor) {
  const bool gpu =
      executor == ExecutorKind::kCuda || (executor == ExecutorKind::kAuto && GpuCount() > 0);
  std::error_code ignored;
  std::filesystem::path base = "/dev/shm";
  if (!gpu || !std::filesystem::is_directory(base, ignored)) {
    base = std::filesystem::temp_directory_path();
  }
  std::string pattern = (base / "gpmstore-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: can't make a directory for a temporary pool: {}; name a place "
                            "with --pool or TMPDIR",
                            pattern, std::strerror(errno)));
  }
  return pattern;
}

}  // namespace

WorkPool::WorkPool(std::string path, bool keep, ExecutorKind executor)
    : path_(std::move(path)), executor_(executor), keep_(keep) {
  std::error_code ignored;
  existed_ =
      !path_.empty() && path_ != Mapping::kPinnedPath && std::filesystem::exists(path_, ignored);
}

WorkPool::~WorkPool() {
  if (!keep_) Remove();
  if (fd_ >= 0) ::close(fd_);
}

std::string WorkPool::name() const { return directory_.empty() || keep_ ? path_ : "(temporary)"; }

Store WorkPool::Open(const OpenOptions& options) const { return Store::Open(path_, options); }

Store WorkPool::Create(const CreateOptions& create, const OpenOptions& options) {
  if (path_.empty()) {
    directory_ = MakeTemporaryDirectory(executor_);
    path_ = directory_ + "/pool";
  }
  try {
    Store store = Store::Create(path_, create, options);
    created_ = true;
    if (!directory_.empty() && !keep_) {
      fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
      Remove();
      path_ = fmt::format("/proc/self/fd/{}", fd_);
    }
    return store;
  } catch (...) {
    // Store::Create left no file, but our directory would stay behind.
    Remove();
    throw;
  }
}

void WorkPool::Remove() noexcept {
  std::error_code ignored;
  if (!directory_.empty()) {
    std::filesystem::remove_all(directory_, ignored);
  } else if (created_ && path_ != Mapping::kPinnedPath) {
    std::filesystem::remove(path_, ignored);
  }
  created_ = false;
}

}  // namespace gpm::cli
