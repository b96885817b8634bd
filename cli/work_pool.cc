#include "cli/work_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "gpmstore/error.h"
#include "pm/gpu_host.h"
#include "pm/mapping.h"
#include "pm/text.h"

namespace gpm::cli {
namespace {

/// A new directory for a temporary pool. GPUs register tmpfs but not ordinary files.
std::string MakeTemporaryDirectory(ExecutorKind executor) {
  const bool gpu =
      executor == ExecutorKind::kCuda || (executor == ExecutorKind::kAuto && GpuCount() > 0);
  std::error_code error;
  std::filesystem::path base = "/dev/shm";
  if (!gpu || !std::filesystem::is_directory(base, error)) {
    base = std::filesystem::temp_directory_path(error);
    if (error) {
      const char* const named = std::getenv("TMPDIR");
      throw Error(
          ErrorCode::kIo,
          fmt::format("no folder for a temporary pool{}; name a place with --pool or TMPDIR",
                      named == nullptr ? "" : ": TMPDIR " + Quoted(named) + " is none"));
    }
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
  std::error_code ignored;
  if (removed_at_end() && IsOurs()) std::filesystem::remove_all(path_, ignored);
  if (fd_ >= 0) ::close(fd_);
}

std::string WorkPool::name() const { return directory_.empty() || keep_ ? path_ : "(temporary)"; }

Store WorkPool::Open(const OpenOptions& options) const { return Store::Open(path_, options); }

template <class Make>
auto WorkPool::CreateBy(bool is_folder, const Make& make) {
  if (path_.empty()) {
    directory_ = MakeTemporaryDirectory(executor_);
    if (!keep_) directory_name_.emplace(directory_, true);
    path_ = directory_ + "/pool";
  }
  if (!keep_) name_.emplace(path_);
  // Made here: while a store makes its shards, a signal has to know that the folder is ours.
  const bool made_folder = is_folder && name_ && mkdir(path_.c_str(), 0777) == 0;
  if (made_folder) name_->MadeFolder();
  try {
    auto store = make(path_);
    created_ = true;
    if (name_ && !made_folder) name_->Made();
    if (path_ != Mapping::kPinnedPath) {
      fd_ = ::open(path_.c_str(), (is_folder ? O_RDONLY : O_RDWR) | O_CLOEXEC);
      if (fd_ < 0) {
        throw Error(ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno)));
      }
    }
    if (!directory_.empty() && !keep_) {
      RemoveDirectory();
      path_ = fmt::format("/proc/self/fd/{}", fd_);
    }
    return store;
  } catch (...) {
    // The creation left no file, but our directories would stay behind. Another's file may have the
    // name.
    name_.reset();
    if (made_folder) rmdir(path_.c_str());
    RemoveDirectory();
    throw;
  }
}

Store WorkPool::Create(const CreateOptions& create, const OpenOptions& options) {
  return CreateBy(false,
                  [&](const std::string& path) { return Store::Create(path, create, options); });
}

AnyStore WorkPool::OpenAny(const OpenOptions& options, const ShardOptions& shards) const {
  return AnyStore::Open(path_, options, shards);
}

AnyStore WorkPool::CreateAny(const CreateOptions& create, const OpenOptions& options,
                             const ShardOptions& shards) {
  return CreateBy(shards.shards > 0, [&](const std::string& path) {
    return AnyStore::Create(path, create, options, shards);
  });
}

void WorkPool::RemoveDirectory() noexcept {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

bool WorkPool::IsOurs() const noexcept {
  struct stat created {};
  struct stat there {};
  return directory_.empty() && fd_ >= 0 && fstat(fd_, &created) == 0 &&
         lstat(path_.c_str(), &there) == 0 && created.st_dev == there.st_dev &&
         created.st_ino == there.st_ino;
}

}  // namespace gpm::cli
