#include "snapshot/new_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/file_access.h"
#include "pm/format.h"
#include "pm/mapping_parts.h"
#include "pm/text.h"

namespace gpm {
namespace {

/// A file that so many threads write is mapped on tmpfs; fewer are faster without.
constexpr unsigned kMappingThreads = 4;
/// A huge page that took longer: small ones are faster. Where memory is in pieces, the kernel has
/// to move some of them for each huge page. (On a machine of 16 cores eight threads took 0.6 ms
/// each; on one of two cores one thread took 5 at some times.)
constexpr double kSlowSeconds = 2e-3;
/// If so many are slow of each thread, and most are, the rest of a file gets small ones, as it is
/// written. (All threads may have waited once for somebody who maps or registers memory.)
constexpr unsigned kSlowOfEach = 4;
/// So much is written to the mapping.
constexpr std::uint64_t kMappedFrom = std::uint64_t{1} << 20;

/// Whether this memory of a file has its pages now: else it may not be touched.
bool Populate(std::byte* data, std::uint64_t bytes) {
  int error = 0;
  do {
    error = madvise(data, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  return error == 0;
}

/// Whether the process may write a file of so many bytes. (Going beyond that raises SIGXFSZ, which
/// ends one that does not expect it.)
bool MayHave(std::uint64_t bytes) {
  struct rlimit limit {};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur;
}

#ifndef MAP_FIXED_NOREPLACE  // Linux 4.17; before, only a hint
constexpr int MAP_FIXED_NOREPLACE = 0x100000;
#endif

/// Maps a file where its huge pages can be: at an address that is a multiple of theirs.
/// @return null: it can't be mapped
std::byte* MapAtHugePage(int fd, std::uint64_t bytes) {
  const std::uint64_t room = bytes + kHugePageBytes;
  void* const free_range =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (free_range == MAP_FAILED) return nullptr;
  munmap(free_range, room);
  const auto at = RoundUp(reinterpret_cast<std::uintptr_t>(free_range), kHugePageBytes);
  void* const mapped = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

/// A descriptor that is closed at the end.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) ThrowFileError(path, "open", errno);
  }
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int operator*() const { return fd_; }

 private:
  int fd_;
};

std::string FolderOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

void SyncFolder(const std::string& folder) {
  const Descriptor fd(folder, O_RDONLY | O_DIRECTORY);
  if (fsync(*fd) != 0 && errno != EINVAL) ThrowFileError(folder, "sync", errno);
}

}  // namespace

void ThrowFileError(const std::string& path, const char* what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const ErrorCode code = full              ? ErrorCode::kNoSpace
                         : error == EEXIST ? ErrorCode::kExists
                                           : ErrorCode::kIo;
  throw Error(code, fmt::format("{}: can't {}: {}", path, what, std::strerror(error)));
}

void RequireNoZeroByte(const std::string& path) {
  if (path.find('\0') == std::string::npos) return;
  throw Error(ErrorCode::kInvalidArgument, Quoted(path) + ": no path has a zero byte");
}

std::string AbsolutePath(const std::string& path) {
  if (path.empty()) return path;
  RequireNoZeroByte(path);
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error).string();
  if (error) ThrowFileError(path, "find", error.value());
  return absolute;
}

std::string TemporaryName(const std::string& path, const std::string& what) {
  std::random_device random;
  return fmt::format("{}.{}-{:08x}{:08x}", path, what, random(), random());
}

void RemoveAbandoned(const std::string& path, const std::string& what) noexcept {
  constexpr std::size_t kDigits = 16;
  try {
    const std::string folder = FolderOf(path);
    const std::string start = fmt::format("{}.{}-", path.substr(path.rfind('/') + 1), what);
    for (const std::string& name : NamesIn(folder)) {
      if (!name.starts_with(start) || name.size() != start.size() + kDigits) continue;
      if (name.find_first_not_of("0123456789abcdef", start.size()) != name.npos) continue;
      const std::string file = folder + "/" + name;
      const Descriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
      if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) != 0) continue;
      struct stat status {};
      if (fstat(*fd, &status) == 0 && status.st_size > 0) RemoveFile(file);
    }
  } catch (const std::exception&) {  // they take room, and nothing else
  }
}

void RequireNoFile(const std::string& path) {
  if (path.empty()) throw Error(ErrorCode::kNotFound, "the new file's path is empty");
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    throw Error(ErrorCode::kExists, path + ": there is a file of this name; name a new one");
  }
  if (errno != ENOENT && errno != ENOTDIR) ThrowFileError(path, "look for it", errno);
}

void GiveName(const std::string& temporary, const std::string& path) {
  if (link(temporary.c_str(), path.c_str()) == 0) {
    unlink(temporary.c_str());  // else it has two names
  } else {
    const int error = errno;
    if (error != EPERM && error != EOPNOTSUPP && error != EMLINK && error != ENOSYS) {
      ThrowFileError(path, "name it", error);
    }
    // A file system without links.
    RequireNoFile(path);
    if (std::rename(temporary.c_str(), path.c_str()) != 0) ThrowFileError(path, "name it", errno);
  }
  try {
    SyncFolder(FolderOf(path));
  } catch (...) {
    RemoveFile(path);  // it may be gone after a power failure: nobody is told that it is there
    throw;
  }
}

void RemoveFile(const std::string& path) noexcept { unlink(path.c_str()); }

void SyncFile(const std::string& path) {
  const Descriptor fd(path, O_RDONLY);
  if (fsync(*fd) != 0) ThrowFileError(path, "sync", errno);
}

bool ReadWholeFile(const std::string& path, std::string* contents) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  contents->clear();
  // Without O_NONBLOCK, opening a pipe waits for somebody who writes to it.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (*fd < 0 && errno == ENOENT) return false;
  if (*fd < 0) ThrowFileError(path, "open", errno);
  struct stat status {};
  if (fstat(*fd, &status) != 0) ThrowFileError(path, "look at", errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kDamaged, path + ": a pipe, a device or a folder, where a file must be");
  }
  char part[4096];
  for (;;) {
    const ssize_t n = pread(*fd, part, sizeof part, static_cast<off_t>(contents->size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowFileError(path, "read", errno);
    if (n == 0) return true;
    contents->append(part, static_cast<std::size_t>(n));
    if (contents->size() > kMostBytes) {
      throw Error(ErrorCode::kDamaged, path + ": larger than any that was written");
    }
  }
}

// (The iterators of std::filesystem end the process when memory is short.)
std::vector<std::string> NamesIn(const std::string& folder) {
  const auto close_it = [](DIR* open_folder) { closedir(open_folder); };
  const std::unique_ptr<DIR, decltype(close_it)> entries(opendir(folder.c_str()), close_it);
  if (entries == nullptr) ThrowFileError(folder, "read", errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(entries.get());
    if (entry == nullptr && errno != 0) ThrowFileError(folder, "read", errno);
    if (entry == nullptr) return names;
    names.emplace_back(entry->d_name);
  }
}

void ReplaceFile(const std::string& path, const std::string& temporary, const std::string& contents,
                 bool keeps_access) {
  if (!MayHave(contents.size())) ThrowFileError(temporary, "write", EFBIG);
  {
    const Descriptor fd(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    struct stat status {};
    if (keeps_access && stat(path.c_str(), &status) == 0) {
      CopyAccess(path, temporary);
    } else if (keeps_access && errno != ENOENT) {
      ThrowFileError(path, "look at", errno);
    }
    for (std::size_t done = 0; done < contents.size();) {
      const ssize_t n =
          pwrite(*fd, contents.data() + done, contents.size() - done, static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) ThrowFileError(temporary, "write", n < 0 ? errno : EIO);
      done += static_cast<std::size_t>(n);
    }
    if (fsync(*fd) != 0) ThrowFileError(temporary, "sync", errno);
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) ThrowFileError(temporary, "rename", errno);
  SyncFolder(FolderOf(path));
}

NewFile::NewFile(const std::string& path)
    : path_(path), temporary_(TemporaryName(path, "partial")) {
  RequireNoFile(path);
  RemoveAbandoned(path, "partial");
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  fd_ = open(temporary_.c_str(), kFlags | O_DIRECT, 0666);
  if (fd_ < 0 && errno == EINVAL) {  // the file was made all the same, on some
    RemoveFile(temporary_);
    fd_ = open(temporary_.c_str(), kFlags, 0666);
  }
  if (fd_ < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    throw Error(ErrorCode::kNotFound, path + ": the folder for it does not exist");
  }
  if (fd_ < 0) ThrowFileError(temporary_, "create", errno);
  exists_ = true;
  flock(fd_, LOCK_EX);  // so that RemoveAbandoned leaves it; without locks it leaves all
}

NewFile::~NewFile() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  if (fd_ >= 0) close(fd_);
  if (exists_) RemoveFile(temporary_);
}

// tmpfs takes what is written to a file from one thread at a time, but gives pages to several at
// once: small ones hardly faster than that, huge ones several times as fast (docs/PERFORMANCE.md,
// "Snapshots"). They are made first, as two writers in one of them are in each other's way.
void NewFile::Expect(std::uint64_t bytes, ThreadPool& threads) {
  struct statfs system {};
  if (threads.threads() < kMappingThreads || bytes < kMappedFrom || !MayHave(bytes)) return;
  if (fstatfs(fd_, &system) != 0 || system.f_type != TMPFS_MAGIC) return;
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return;
  mapped_ = MapAtHugePage(fd_, bytes);
  if (mapped_ == nullptr) return;
  mapped_bytes_ = bytes;
  std::atomic<std::uint64_t> next{0};
  std::atomic<unsigned> made{0};
  std::atomic<unsigned> slow{0};  // of those, or refused
  const auto pays = [&] { return slow < kSlowOfEach * threads.threads() || 2 * slow < made; };
  threads.Run(threads.threads(), [&](std::size_t) {
    for (std::uint64_t at; pays() && (at = next.fetch_add(kHugePageBytes)) < bytes;) {
      const auto start = Clock::now();
      const bool is_huge =
          MakeHugePages(mapped_ + at, mapped_ + std::min(at + kHugePageBytes, bytes));
      ++made;
      if (!is_huge || SecondsSince(start) > kSlowSeconds) ++slow;
    }
  });
}

std::byte* NewFile::Mapped(std::uint64_t bytes, std::uint64_t offset) {
  if (bytes < kMappedFrom || offset + bytes > mapped_bytes_) return nullptr;
  return Populate(mapped_ + offset, bytes) ? mapped_ + offset : nullptr;
}

void NewFile::Write(const std::byte* data, std::uint64_t bytes, std::uint64_t offset) {
  if (!MayHave(offset + bytes)) ThrowFileError(path_, "write", EFBIG);
  bool direct = true;
  while (bytes > 0) {
    const ssize_t written = pwrite(fd_, data, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && std::exchange(direct, false)) {
      // Its pages are not what the medium wants: through the page cache, then.
      const int flags = fcntl(fd_, F_GETFL);
      if (flags >= 0 && fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0) continue;
      ThrowFileError(path_, "write", errno);
    }
    if (written <= 0) ThrowFileError(path_, "write", written < 0 ? errno : EIO);
    data += written;
    bytes -= static_cast<std::uint64_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

void NewFile::Finish() {
  if (fsync(fd_) != 0) ThrowFileError(path_, "sync", errno);
  GiveName(temporary_, path_);  // while it is locked
  exists_ = false;
}

}  // namespace gpm
