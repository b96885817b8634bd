// The file of a mapping: what it is, and its room.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string_view>
#include <thread>

#include "gpmstore/error.h"
#include "pm/format.h"
#include "pm/mapping.h"
#include "pm/mapping_parts.h"

namespace gpm {
namespace {

[[noreturn]] void ThrowOpenError(const std::string& path, bool create, int error) {
  const auto fail = [&](ErrorCode code, std::string_view what) {
    throw Error(code, fmt::format("{}: {}", path, what));
  };
  switch (error) {
    case ENODEV:
      fail(ErrorCode::kNotFound, "there is no such device");
      break;
    case ENOENT:
    case ENOTDIR:
      if (path.empty()) throw Error(ErrorCode::kNotFound, "the pool's path is empty");
      fail(ErrorCode::kNotFound, create ? "the directory for the new pool does not exist"
                                        : "no such file; create the pool first");
      break;
    case EEXIST:
      fail(ErrorCode::kExists, "exists already; open it, or create the pool under another name");
      break;
    case EISDIR:
      fail(ErrorCode::kInvalidArgument, "is a directory; a pool is a regular file");
      break;
    case ENOSPC:
    case EDQUOT:
      fail(ErrorCode::kNoSpace, "no space left on the file system");
      break;
    default:
      break;
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{}: can't {}: {}", path, create ? "create" : "open", Reason(error)));
}

std::uint64_t AllocatedBytes(int file) {
  constexpr std::uint64_t kStatBlockBytes = 512;
  struct stat status {};
  return fstat(file, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes
                                   : 0;
}

}  // namespace

std::uint64_t Mapping::DeviceBytes(const Options& options) const {
  const std::uint64_t most =
      options.max_bytes == 0 ? device_->bytes : std::min(options.max_bytes, device_->bytes);
  const std::uint64_t bytes = RoundDown(most, device_->alignment);
  if (bytes > 0) return bytes;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: a maximum of {} bytes is below the {} bytes in which this device of "
                          "{} can be mapped",
                          path_, most, device_->alignment, device_->bytes));
}

void Mapping::OpenFile(const Options& options) {
  device_ = FindDaxDevice(path_);
  const bool create = options.create && !device_;
  const bool is_device = path_.starts_with("/dev/dax") && path_.find('/', 5) == std::string::npos;
  if (create && is_device) {  // of which there is none; a file there would be lost with the system
    ThrowOpenError(path_, false, ENODEV);
  }
  // O_NONBLOCK: a pipe under this name must give an error, not a wait. Files are not affected.
  const int flags = (read_only_ ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
  fd_ = ::open(path_.c_str(), create ? flags | O_CREAT | O_EXCL : flags, options.mode);
  if (fd_ < 0) ThrowOpenError(path_, create, errno);
  remove_on_close_ = create;

  struct stat status {};
  if (fstat(fd_, &status) != 0) ThrowOpenError(path_, create, errno);
  if (S_ISDIR(status.st_mode)) ThrowOpenError(path_, create, EISDIR);
  if (!S_ISREG(status.st_mode) && !device_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: is a device, pipe or socket; a pool is a regular file, or a DAX "
                            "device (/dev/dax0.0)",
                            path_));
  }
  // Another process may look at a file that is being created. It finds that this is no pool, and
  // closes it: its lock is gone soon.
  constexpr int kAttempts = 1000;
  constexpr auto kPause = std::chrono::milliseconds(2);
  const auto lock = [&] { return flock(fd_, (read_only_ ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0; };
  bool locked = lock();
  for (int attempt = 1; create && !locked && attempt < kAttempts; ++attempt) {
    std::this_thread::sleep_for(kPause);
    locked = lock();
  }
  if (!locked) {
    if (errno == EWOULDBLOCK) {
      throw Error(
          ErrorCode::kBusy,
          fmt::format("{}: in use by another process or store; close it there first", path_));
    }
    throw Error(ErrorCode::kIo, fmt::format("{}: can't lock: {}", path_, Reason(errno)));
  }
  // Only now is the size certain: the holder of the lock is the one who changes it.
  if (fstat(fd_, &status) != 0) ThrowOpenError(path_, create, errno);
  // And who had the lock may have replaced the file since this opened it.
  struct stat named {};
  const int error = create || stat(path_.c_str(), &named) == 0 ? 0 : errno;
  if (error != 0 && error != ENOENT) ThrowOpenError(path_, create, error);
  if (!create && (named.st_ino != status.st_ino || named.st_dev != status.st_dev)) {
    throw Error(ErrorCode::kBusy, path_ + ": was moved or replaced meanwhile; try again");
  }
  file_bytes_ = device_ ? DeviceBytes(options) : static_cast<std::uint64_t>(status.st_size);
}

void Mapping::DetectMedium() {
  medium_.medium = Medium::kHostPinned;
  if (anonymous_) return;
  if (device_) {
    medium_.medium = Medium::kDaxDevice;
    return;
  }
  struct statfs system {};
  if (fstatfs(fd_, &system) != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: can't tell its file system: {}", path_, Reason(errno)));
  }
  medium_.medium = Medium::kTmpfs;
  if (system.f_type == TMPFS_MAGIC) return;
  // MAP_SYNC is granted for files on DAX only. Mapping a page that the file may not have is fine as
  // long as nobody touches it.
  void* probe = mmap(nullptr, kPageBytes, read_only_ ? PROT_READ : PROT_READ | PROT_WRITE,
                     MAP_SHARED_VALIDATE | MAP_SYNC, fd_, 0);
  medium_.medium = probe != MAP_FAILED ? Medium::kDax : Medium::kFile;
  if (probe != MAP_FAILED) munmap(probe, kPageBytes);
}

std::uint64_t Mapping::AvailableBytes() const {
  struct statfs system {};
  const bool limited = fstatfs(fd_, &system) == 0 && system.f_blocks > 0;
  return limited ? system.f_bavail * BlockBytes(system) : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t Mapping::HoleBytes() const {
  if (anonymous_ || device_) return 0;
  const std::uint64_t allocated = AllocatedBytes(fd_);
  return allocated < file_bytes_ ? file_bytes_ - allocated : 0;
}

void Mapping::RequireRoomForHoles() const {
  const std::uint64_t holes = HoleBytes();
  if (holes == 0) return;
  const std::uint64_t available = AvailableBytes();
  if (holes <= available) return;
  throw Error(ErrorCode::kNoSpace,
              fmt::format("{}: the file has holes of {} bytes, and its file system has {} left",
                          path_, holes, available));
}

std::uint64_t Mapping::PossibleFileBytes() const {
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  if (anonymous_) return most;
  if (device_) return file_bytes_;
  // What is allocated, the step under way included. (First: what is allocated after this is not
  // counted twice.)
  const std::uint64_t there = std::max({file_bytes_, made_bytes(), AllocatedBytes(fd_)});
  const std::uint64_t available = AvailableBytes();
  if (available < most - there) most = there + available;
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0) most = std::min<std::uint64_t>(most, limit.rlim_cur);
  return std::max(most, there);
}

void Mapping::AllocateFile(std::uint64_t file_end, std::uint64_t end) const {
  // Going beyond it would raise SIGXFSZ, which ends a process that does not expect it.
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && end > limit.rlim_cur) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: can't extend the file from {} to {} bytes: this process may write "
                            "files of {} bytes at most (ulimit -f)",
                            path_, file_end, end, limit.rlim_cur));
  }
  // Some file systems fill up before they find that there is not enough, at the expense of
  // everybody who writes meanwhile; so what can be foreseen is not tried.
  const std::uint64_t available = AvailableBytes();
  if (available < end - file_end) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: can't extend the file from {} to {} bytes: the file system has {} "
                            "bytes left",
                            path_, file_end, end, available));
  }
  int error;
  do {
    // On tmpfs the blocks come when the step is mapped (Populate), so that they can be huge pages,
    // which allocating them by file offset never gives.
    if (medium_.medium == Medium::kTmpfs) {
      error = ftruncate(fd_, static_cast<off_t>(end)) == 0 ? 0 : errno;
      continue;
    }
    error = posix_fallocate(fd_, static_cast<off_t>(file_end), static_cast<off_t>(end - file_end));
  } while (error == EINTR);
  // On DAX, growth is durable before anything refers to it: stores are, and may be flushed without
  // the file system's help. Also makes the directory entry of a new file durable.
  if (error == 0 && medium_.medium == Medium::kDax && fsync(fd_) != 0) error = errno;
  if (error == 0) return;
  // What was allocated before it failed is given back.
  const bool restored = ftruncate(fd_, static_cast<off_t>(file_end)) == 0;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(
      full ? ErrorCode::kNoSpace : ErrorCode::kIo,
      fmt::format("{}: can't extend the file from {} to {} bytes: {}{}", path_, file_end, end,
                  Reason(error), restored ? "" : "; its old size could not be restored either"));
}

void Mapping::FillHoles() const {
  int error;
  do {
    error = posix_fallocate(fd_, 0, static_cast<off_t>(file_bytes_));
  } while (error == EINTR);
  if (error == 0 && medium_.medium == Medium::kDax && fsync(fd_) != 0) error = errno;
  if (error == 0) return;
  throw Error(error == ENOSPC || error == EDQUOT ? ErrorCode::kNoSpace : ErrorCode::kIo,
              fmt::format("{}: the file has holes, and there is no room to fill them: {}", path_,
                          Reason(error)));
}

}  // namespace gpm
