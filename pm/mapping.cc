#include "pm/mapping.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "pm/clock.h"
#include "pm/format.h"
#include "pm/gpu_host.h"
#include "pm/mapping_parts.h"
#include "pm/memory_nodes.h"
#include "pm/text.h"
#include "pm/thread_pool.h"

namespace gpm {
namespace {

constexpr std::uint64_t kMinDefaultBytes = 64 * kMiB;
constexpr std::uint64_t kMaxDefaultBytes = kMiB * kMiB;
/// More than a process can map, so that reserving it fails, and small enough not to overflow.
constexpr std::uint64_t kAddressableBytes = std::uint64_t{1} << 57;
/// How far a default reservation may shrink where address space is scarce (sanitizers, ulimit -v).
constexpr std::uint64_t kLeastDefaultBytes = 1024 * kMiB;
/// A growth by more than this is worth two threads.
constexpr std::uint64_t kOverlappedBytes = 2 * RoomAhead::kStepBytes;

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
  if (path.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, Quoted(path) + ": no path has a zero byte");
  }
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
      MapStep(steps_.front(), false, 1, nullptr);
      SetMapped(steps_.front().bytes);
    }
    // (There, to read a hole takes a page, and where there is none raises SIGBUS.)
    if (read_only_ && InMemory()) RequireRoomForHoles();
  } catch (...) {
    Release();
    throw;
  }
}

Mapping::~Mapping() { Release(); }

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

std::uint64_t Mapping::GrownEnd(std::uint64_t bytes) const {
  const std::uint64_t rather =
      std::min(RoundUp(bytes, kHugePageBytes), RoundDown(soft_max_, kPageBytes));
  return std::min(std::max(RoundUp(bytes, kPageBytes), rather), max_bytes_);
}

void Mapping::Extend(std::uint64_t bytes) {
  const std::uint64_t exact = std::max(RoundUp(bytes, kPageBytes), mapped_bytes_);
  const std::uint64_t target = GrownEnd(exact);
  const auto extend_to = [&](std::uint64_t end) {
    const MappedStep step{mapped_bytes_, end - mapped_bytes_};
    try {
      steps_.reserve(steps_.size() + 1);
      FillStep(file_bytes_, step, AllThreads(), nullptr);
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
  std::uint64_t end = GrownEnd(bytes);
  if (!surely) end = std::min(end, RoundDown(2 * mapped_bytes_, kPageBytes));
  if (end <= mapped_bytes_) return;
  try {
    if (ahead_ == nullptr) {
      const auto workers = std::make_shared<std::optional<ThreadPool>>();  // of its first thread
      ahead_ = std::make_unique<RoomAhead>(RoomAhead::Stages{
          .fill =
              [this, workers](const MappedStep& step, bool hurry) {
                if (!*workers) workers->emplace(static_cast<unsigned>(AllThreads()));
                FillStep(step.offset, step, hurry ? AllThreads() : FewThreads(), &**workers);
              },
          .finish =
              [this](const MappedStep& step) {
                if (gpu_registered_) UseGpu(gpu_device_);
                RegisterStep(step);
              },
          .discard = [this](const MappedStep& range) { Discard(range.offset, range); }});
    }
  } catch (const std::exception&) {  // no memory, no thread: room is made when it is wanted
    return;
  }
  ahead_->Want(mapped_bytes_, end);
}

void Mapping::FillStep(std::uint64_t file_end, const MappedStep& step, std::uint64_t threads,
                       ThreadPool* workers) const {
  if (!anonymous_) AllocateFile(file_end, step.end());
  try {
    MapStep(step, true, threads, workers);
  } catch (...) {
    Discard(file_end, step);
    throw;
  }
}

std::uint64_t Mapping::EndOfStep(std::uint64_t offset) const {
  return std::upper_bound(steps_.begin(), steps_.end(), offset,
                          [](std::uint64_t at, const MappedStep& step) { return at < step.end(); })
      ->end();
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
