#include "pm/mapping.h"

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
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/format.h"
#include "pm/gpu_host.h"
#include "pm/memory_nodes.h"

namespace gpm {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
constexpr std::uint64_t kMinDefaultBytes = 64 * kMiB;
constexpr std::uint64_t kMaxDefaultBytes = kMiB * kMiB;
/// More than a process can map, so that reserving it fails, and small enough not to overflow.
constexpr std::uint64_t kAddressableBytes = std::uint64_t{1} << 57;
/// How far a default reservation may shrink where address space is scarce (sanitizers, ulimit -v).
constexpr std::uint64_t kLeastDefaultBytes = 1024 * kMiB;
/// Bytes of what a file system counts its room in: of network file systems not f_bsize.
std::uint64_t BlockBytes(const struct statfs& system) {
  return static_cast<std::uint64_t>(system.f_frsize != 0 ? system.f_frsize : system.f_bsize);
}

/// What a thread populates at a time, at most, and how many threads do.
constexpr std::uint64_t kPartBytes = 32 * kMiB;
constexpr std::uint64_t kMaxPopulatingThreads = 8;
/// A growth by more than this is worth two threads.
constexpr std::uint64_t kOverlappedBytes = 2 * RoomAhead::kStepBytes;

/// Threads that make room that somebody waits for, and that is made ahead, beside batches.
std::uint64_t AllThreads() {
  return std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 1, kMaxPopulatingThreads);
}
std::uint64_t FewThreads() {
  return std::clamp<std::uint64_t>(std::thread::hardware_concurrency() / 2, 1,
                                   kMaxPopulatingThreads);
}

constexpr std::uint64_t RoundDown(std::uint64_t n, std::uint64_t multiple) {
  return n / multiple * multiple;
}

/// Calls work(part) for parts of a range that end at huge pages, by several threads where it is
/// large, and returns when all have ended. @param work throws nothing
template <class Work>
void InParts(const MappedStep& range, std::uint64_t threads, const Work& work) {
  const std::uint64_t part_bytes =
      std::min(RoundUp((range.bytes + threads - 1) / threads, kHugePageBytes), kPartBytes);
  const std::uint64_t first = range.offset / part_bytes;
  const std::uint64_t parts = (range.end() - 1) / part_bytes - first + 1;
  threads = std::min(threads, parts);
  std::atomic<std::uint64_t> taken{0};
  const auto work_on = [&] {
    for (std::uint64_t k; (k = taken++) < parts;) {
      const std::uint64_t from = std::max(range.offset, (first + k) * part_bytes);
      work(MappedStep{from, std::min(range.end(), (first + k + 1) * part_bytes) - from});
    }
  };
  std::vector<std::jthread> helpers;
  try {
    while (helpers.size() + 1 < threads) helpers.emplace_back(work_on);
  } catch (const std::system_error&) {  // as many as there are
  }
  work_on();
}

#ifndef MADV_COLLAPSE  // Linux 6.1
constexpr int MADV_COLLAPSE = 25;
#endif

std::string Reason(int error) { return std::strerror(error); }

[[noreturn]] void ThrowOpenError(const std::string& path, bool create, int error) {
  const auto fail = [&](ErrorCode code, std::string_view what) {
    throw Error(code, fmt::format("{}: {}", path, what));
  };
  switch (error) {
    case ENOENT:
    case ENOTDIR:
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

std::uint64_t PhysicalBytes() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Mapping::Mapping(const std::string& path, const Options& options)
    : process_(getpid()),
      path_(path),
      read_only_(options.read_only),
      anonymous_(path == kPinnedPath) {
  try {
    if (anonymous_ && !options.create) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} is memory that is gone when its store closes: there is nothing to "
                      "open, only to create",
                      path));
    }
    if (!anonymous_) OpenFile(options);
    if (!read_only_ && options.max_bytes != 0 && options.max_bytes < file_bytes_) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the pool's maximum of {} bytes is below the {} bytes that the file "
                      "has already",
                      path, options.max_bytes, file_bytes_));
    }
    DetectMedium();
    Reserve(options.max_bytes);
    const bool persists = device_ && device_->survives_power_loss;
    persist_ = ChoosePersist(persists ? Medium::kDax : medium_.medium, base_,
                             std::max(file_bytes_, kPageBytes));
    medium_ = DescribeMedium(medium_.medium, persist_);
    if (persists) medium_.survives_power_loss = BuiltWithPmem();
    ChooseMemory(options.memory_node);
    if (options.tracer != nullptr) persist_ = Persist(options.tracer);
    if (file_bytes_ > 0) {
      steps_.push_back({0, RoundUp(file_bytes_, kPageBytes)});
      MapStep(steps_.front(), false, 1);
      SetMapped(steps_.front().bytes);
    }
  } catch (...) {
    Release();
    throw;
  }
}

Mapping::~Mapping() { Release(); }

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

void Mapping::Reserve(std::uint64_t max_bytes) {
  const std::uint64_t there = std::max(RoundUp(file_bytes_, kPageBytes), kPageBytes);
  const bool by_default = max_bytes == 0;
  if (read_only_ || device_) {
    max_bytes = there;
  } else if (by_default) {
    struct statfs system {};
    std::uint64_t medium_bytes = PhysicalBytes();
    if (!anonymous_ && fstatfs(fd_, &system) == 0) {
      medium_bytes = system.f_blocks * BlockBytes(system);
    }
    max_bytes = std::clamp(medium_bytes, kMinDefaultBytes, kMaxDefaultBytes);
  }
  max_bytes = std::min(max_bytes, kAddressableBytes);
  max_bytes_ = std::max(RoundDown(max_bytes, kPageBytes), there);
  const std::uint64_t alignment = std::max(kHugePageBytes, device_ ? device_->alignment : 0);
  for (;;) {
    // More than needed, so that the base can be aligned: for huge pages, or as a device wants it.
    reserved_bytes_ = max_bytes_ + alignment;
    void* start = mmap(nullptr, reserved_bytes_, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start != MAP_FAILED) {
      const auto address = reinterpret_cast<std::uintptr_t>(start);
      const std::uint64_t head = RoundUp(address, alignment) - address;
      base_ = static_cast<std::byte*>(start) + head;
      if (head > 0) munmap(start, head);
      if (head < alignment) munmap(base_ + max_bytes_, alignment - head);
      reserved_bytes_ = max_bytes_;
      return;
    }
    const std::uint64_t less = std::max(max_bytes_ / 2 / kPageBytes * kPageBytes, there);
    if (!by_default || less >= max_bytes_ || less < kLeastDefaultBytes) {
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("{}: can't reserve {} bytes of address space: {}; a smaller maximum "
                              "size may do",
                              path_, max_bytes_, Reason(errno)));
    }
    max_bytes_ = less;
  }
}

void Mapping::ChooseMemory(int node) {
  if (node < 0 || read_only_ || !InMemory()) return;
  // What the system refuses for the reserved range it would refuse for each step.
  if (MemoryNodes::Here().Prefer(base_, reserved_bytes_, node)) medium_.memory_node = node;
}

void Mapping::Grow(std::uint64_t bytes) {
  if (bytes <= (anonymous_ ? mapped_bytes_ : std::min(file_bytes_, mapped_bytes_))) return;
  if (read_only_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: opened read only, so it can't grow", path_));
  }
  if (bytes > max_bytes_) {
    throw Error(
        ErrorCode::kNoSpace,
        fmt::format("{}: {} bytes are needed, the pool's maximum is {}", path_, bytes, max_bytes_));
  }
  const Clock::time_point start = Clock::now();
  ++growth_times_.growths;
  const auto lacks = [&] {
    return bytes > (anonymous_ ? mapped_bytes_ : std::min(file_bytes_, mapped_bytes_));
  };
  const auto count_wait = [&] {
    ++growth_times_.waits;
    growth_times_.wait_seconds += SecondsSince(start);
  };
  // Of what is much, one part gets its pages while another is registered. (What can't fit is not
  // begun.)
  if (gpu_registered_ && bytes > mapped_bytes_ + kOverlappedBytes && bytes <= PossibleFileBytes()) {
    MakeReady(bytes, true);
  }
  const bool waited = ahead_ != nullptr && ahead_->Take(bytes, &steps_);
  if (ahead_ != nullptr && !steps_.empty() && steps_.back().end() > mapped_bytes_) {
    SetEnd(steps_.back().end());
  }
  if (!lacks()) {
    want_of_space_.clear();
    if (waited) count_wait();
    return;
  }
  try {
    Extend(bytes);
  } catch (...) {
    count_wait();
    throw;
  }
  count_wait();
}

void Mapping::Extend(std::uint64_t bytes) {
  const std::uint64_t exact = std::max(RoundUp(bytes, kPageBytes), mapped_bytes_);
  const std::uint64_t target = std::min(RoundUp(exact, kHugePageBytes), max_bytes_);
  const auto extend_to = [&](std::uint64_t end) {
    const MappedStep step{mapped_bytes_, end - mapped_bytes_};
    try {
      steps_.reserve(steps_.size() + 1);
      FillStep(file_bytes_, step, AllThreads());
      try {
        RegisterStep(step);
      } catch (...) {
        Discard(file_bytes_, step);
        throw;
      }
      want_of_space_.clear();
    } catch (const Error& error) {
      // A GPU that can't map more is a medium that is full, too.
      if (error.code() == ErrorCode::kNoSpace || error.code() == ErrorCode::kUnsupported) {
        want_of_space_ = fmt::format("no room to grow by {} bytes: {}", step.bytes, error.what());
      }
      throw;
    }
    if (step.bytes > 0) steps_.push_back(step);
    SetEnd(end);
  };
  try {
    extend_to(target);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace || target == exact) throw;
    extend_to(exact);
  }
}

void Mapping::SetEnd(std::uint64_t end) {
  if (!anonymous_) file_bytes_ = end;
  SetMapped(end);
}

void Mapping::SetMapped(std::uint64_t end) {
  mapped_bytes_ = end;
  if (persist_.tracer() != nullptr) persist_.tracer()->Mapped(base_, mapped_bytes_);
}

void Mapping::MakeReady(std::uint64_t bytes, bool surely) noexcept {
  // (A last page that the file has in part is for Grow.)
  if (read_only_ || persist_.tracer() != nullptr) return;
  if (!anonymous_ && file_bytes_ != mapped_bytes_) return;
  std::uint64_t end = std::min(RoundUp(bytes, kHugePageBytes), max_bytes_);
  if (!surely) end = std::min(end, RoundDown(2 * mapped_bytes_, kPageBytes));
  if (end <= mapped_bytes_) return;
  try {
    if (ahead_ == nullptr) {
      // (Half as many steps as threads, so that each has two huge pages for every start.)
      ahead_ = std::make_unique<RoomAhead>(
          RoomAhead::Stages{
              .fill =
                  [this](const MappedStep& range, bool hurry) {
                    FillStep(range.offset, range, hurry ? AllThreads() : FewThreads());
                  },
              .finish =
                  [this](const MappedStep& step) {
                    if (gpu_registered_) UseGpu(gpu_device_);
                    RegisterStep(step);
                  },
              .discard = [this](const MappedStep& range) { Discard(range.offset, range); }},
          std::max<std::uint64_t>(FewThreads() / 2, 1));
    }
  } catch (const std::exception&) {  // no memory, no thread: room is made when it is wanted
    return;
  }
  ahead_->Want(mapped_bytes_, end);
}

std::uint64_t Mapping::PossibleFileBytes() const {
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  if (anonymous_) return most;
  if (device_) return file_bytes_;
  // What is allocated, the step under way included. (First: what is allocated after this is not
  // counted twice.)
  struct stat status {};
  constexpr std::uint64_t kStatBlockBytes = 512;
  const std::uint64_t allocated =
      fstat(fd_, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes : 0;
  const std::uint64_t there = std::max(std::max(file_bytes_, made_bytes()), allocated);
  struct statfs system {};
  if (fstatfs(fd_, &system) == 0 && system.f_blocks > 0) {  // (Without a size there is no limit.)
    most = there + system.f_bavail * BlockBytes(system);
  }
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0) most = std::min<std::uint64_t>(most, limit.rlim_cur);
  return std::max(most, there);
}

void Mapping::FillStep(std::uint64_t file_end, const MappedStep& step,
                       std::uint64_t threads) const {
  if (!anonymous_) AllocateFile(file_end, step.end());
  try {
    MapStep(step, true, threads);
  } catch (...) {
    Discard(file_end, step);
    throw;
  }
}

void Mapping::RegisterStep(const MappedStep& step) const {
  if (gpu_registered_ && step.bytes > 0) RegisterHostMemory(base_ + step.offset, step.bytes);
}

void Mapping::Discard(std::uint64_t file_end, const MappedStep& step) const noexcept {
  Unmap(step.offset, step.bytes);
  // Nothing beyond the old size was used, so that giving it back (or failing to) loses nothing.
  if (!anonymous_) std::ignore = ftruncate(fd_, static_cast<off_t>(file_end));
}

void Mapping::Unmap(std::uint64_t offset, std::uint64_t bytes) const {
  mmap(base_ + offset, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
}

void Mapping::DropReady() noexcept {
  if (ahead_ == nullptr) return;
  const std::vector<MappedStep> ready = ahead_->Drop();
  if (ready.empty()) return;
  for (const MappedStep& step : ready) {
    if (gpu_registered_) UnregisterHostMemory(base_ + step.offset);
  }
  // (A file that stays longer than what is mapped is as good: it holds zeros there.)
  const std::uint64_t first = ready.front().offset;
  Discard(file_bytes_, {first, ready.back().end() - first});
}

void Mapping::Shrink(std::uint64_t bytes) {
  if (read_only_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: opened read only, so it can't shrink", path_));
  }
  if (device_) return;
  DropReady();
  const std::uint64_t end = RoundUp(bytes, kHugePageBytes);
  if (end >= mapped_bytes_) return;
  const auto first = std::find_if(steps_.begin(), steps_.end(),
                                  [&](const MappedStep& step) { return step.end() > end; });
  // Pages that a GPU maps stay until it does not.
  const auto each_registered = [&](const auto& action) {
    if (gpu_registered_) std::for_each(first, steps_.end(), action);
  };
  each_registered([&](const MappedStep& step) { UnregisterHostMemory(base_ + step.offset); });
  if (!anonymous_ && ftruncate(fd_, static_cast<off_t>(end)) != 0) {
    const int error = errno;
    each_registered(
        [&](const MappedStep& step) { RegisterHostMemory(base_ + step.offset, step.bytes); });
    throw Error(ErrorCode::kIo,
                fmt::format("{}: can't cut the file at {} bytes: {}", path_, end, Reason(error)));
  }
  Unmap(end, mapped_bytes_ - end);
  mapped_bytes_ = end;
  if (!anonymous_) file_bytes_ = end;
  const MappedStep rest{first->offset, end - std::min(end, first->offset)};
  steps_.erase(first, steps_.end());
  if (rest.bytes == 0) return;
  if (gpu_registered_) RegisterHostMemory(base_ + rest.offset, rest.bytes);
  steps_.push_back(rest);
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
  // everybody who writes meanwhile; so what can be foreseen is not tried. (Without a size there is
  // no limit.)
  struct statfs system {};
  if (fstatfs(fd_, &system) == 0 && system.f_blocks > 0) {
    const std::uint64_t available = system.f_bavail * BlockBytes(system);
    if (available < end - file_end) {
      throw Error(
          ErrorCode::kNoSpace,
          fmt::format("{}: can't extend the file from {} to {} bytes: the file system has {} "
                      "bytes left",
                      path_, file_end, end, available));
    }
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

void Mapping::MapStep(const MappedStep& step, bool populate, std::uint64_t threads) const {
  if (step.bytes == 0) return;
  int flags = MAP_FIXED;
  if (anonymous_) {
    flags |= MAP_PRIVATE | MAP_ANONYMOUS;
  } else {
    flags |= medium_.medium == Medium::kDax ? MAP_SHARED_VALIDATE | MAP_SYNC : MAP_SHARED;
  }
  std::byte* const address = base_ + step.offset;
  if (mmap(address, step.bytes, read_only_ ? PROT_READ : PROT_READ | PROT_WRITE, flags, fd_,
           static_cast<off_t>(anonymous_ ? 0 : step.offset)) == MAP_FAILED) {
    const int error = errno;
    throw Error(error == ENOMEM ? ErrorCode::kNoSpace : ErrorCode::kIo,
                fmt::format("{}: can't map bytes {} to {}: {}", path_, step.offset, step.end(),
                            Reason(error)));
  }
  // Only a hint: kernels without huge pages for this memory refuse it, and that is as good.
  if (InMemory()) madvise(address, step.bytes, MADV_HUGEPAGE);
  if (medium_.memory_node >= 0) {
    MemoryNodes::Here().Prefer(address, step.bytes, medium_.memory_node);
  }
  if (InMemory() && populate) Populate(step, !anonymous_, threads);
}

void Mapping::MakeHuge(const MappedStep& part) const {
  std::byte* const end = base_ + RoundDown(part.end(), kHugePageBytes);
  std::byte* const start = base_ + RoundUp(part.offset, kHugePageBytes);
  // The kernel collapses what has at least one page; of the others it makes zeros, in place.
  for (std::byte* extent = start; extent < end; extent += kHugePageBytes) {
    if (madvise(extent, kPageBytes, MADV_POPULATE_WRITE) != 0) return;
  }
  if (start < end) madvise(start, static_cast<std::size_t>(end - start), MADV_COLLAPSE);
}

template <class Write>
void Mapping::WriteInParts(Step step, std::uint64_t offset, std::uint64_t bytes,
                           const Write& write) const {
  if (bytes == 0) return;
  const auto write_part = [&](const MappedStep& part) {
    write(part);
    persist_.Flush(step, base_ + part.offset, part.bytes);
  };
  if (persist_.tracer() != nullptr) {
    write_part({offset, bytes});
    return;
  }
  InParts({offset, bytes}, AllThreads(), [&](const MappedStep& part) {
    write_part(part);
    persist_.Fence(step);  // which is for the lines that this thread has flushed
  });
}

void Mapping::Zero(Step step, std::uint64_t offset, std::uint64_t bytes) const {
  WriteInParts(step, offset, bytes,
               [&](const MappedStep& part) { persist_.Zero(base_ + part.offset, part.bytes); });
}

void Mapping::Copy(Step step, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
  WriteInParts(step, to, bytes, [&](const MappedStep& part) {
    persist_.Copy(base_ + part.offset, base_ + (part.offset - to + from), part.bytes);
  });
}

void Mapping::Populate() {
  if (!InMemory()) return;
  for (MappedStep step : steps_) {
    if (!anonymous_) step.bytes = std::min(step.end(), file_bytes_) - step.offset;
    Populate(step, false, AllThreads());
  }
}

void Mapping::Populate(const MappedStep& step, bool make_huge, std::uint64_t threads) const {
  std::atomic<int> failure{0};
  InParts(step, threads, [&](const MappedStep& part) {
    if (make_huge) MakeHuge(part);
    int error = 0;
    do {
      error = madvise(base_ + part.offset, part.bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    if (error != 0) failure = error;
  });
  int error = failure;
  if (error == EINVAL && !anonymous_) {  // kernels before 5.14
    error = posix_fallocate(fd_, static_cast<off_t>(step.offset), static_cast<off_t>(step.bytes));
  } else if (error == EINVAL) {
    error = 0;
  }
  if (error == 0) return;
  // A file system that is full shows as EFAULT here: it would have been SIGBUS.
  throw Error(
      error == ENOMEM || error == EFAULT || error == ENOSPC ? ErrorCode::kNoSpace : ErrorCode::kIo,
      fmt::format("{}: no memory for bytes {} to {}: {}", path_, step.offset, step.end(),
                  error == EFAULT ? "the file system is full" : Reason(error)));
}

void Mapping::RegisterGpu(int device) {
  if (gpu_registered_) return;
  if (!medium_.gpu_can_register || read_only_) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format(
            "{}: a GPU can't map {}; use a file on tmpfs (such as /dev/shm) or on a "
            "DAX file system, or host-pinned memory (\"{}\")",
            path_,
            read_only_ ? "a pool that is opened read only" : "a file on an ordinary file system",
            kPinnedPath));
  }
  std::size_t done = 0;
  try {
    for (; done < steps_.size(); ++done) {
      RegisterHostMemory(base_ + steps_[done].offset, steps_[done].bytes);
    }
  } catch (...) {
    while (done > 0) UnregisterHostMemory(base_ + steps_[--done].offset);
    throw;
  }
  gpu_registered_ = true;
  gpu_device_ = device;
}

bool Mapping::IsAt(const std::string& path) const noexcept {
  struct stat ours {};
  struct stat there {};
  return fstat(fd_, &ours) == 0 && lstat(path.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

void Mapping::Release() noexcept {
  const bool forked = getpid() != process_;
  if (forked) {
    // Its thread is not in this process: nothing of it may be destroyed here. The list keeps it
    // reachable.
    if (ahead_ != nullptr) RoomAhead::Abandon(std::move(ahead_));
  } else {
    DropReady();
    ahead_.reset();
  }
  if (gpu_registered_ && !forked) {
    for (const MappedStep& step : steps_) UnregisterHostMemory(base_ + step.offset);
  }
  if (device_ && remove_on_close_ && !forked) {
    persist_.Zero(base_, 2 * kSuperblockBytes);
    persist_.Flush(Step::kOther, base_, 2 * kSuperblockBytes);
    persist_.Fence(Step::kOther);
  }
  if (base_ != nullptr) munmap(base_, reserved_bytes_);
  if (fd_ >= 0) {
    if (remove_on_close_ && !device_ && !forked && IsAt(path_)) ::unlink(path_.c_str());
    // Closing alone would not, while a child of a fork still has it open.
    if (!forked) flock(fd_, LOCK_UN);
    ::close(fd_);
  }
}

}  // namespace gpm
