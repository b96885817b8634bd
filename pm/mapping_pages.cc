// The pages of a mapping: made, and written, by several threads.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "gpmstore/error.h"
#include "pm/format.h"
#include "pm/mapping.h"
#include "pm/mapping_parts.h"
#include "pm/memory_nodes.h"
#include "pm/thread_pool.h"

namespace gpm {
namespace {

/// What a thread writes at a time, at most, and how many threads make pages.
constexpr std::uint64_t kPartBytes = 32 * kMiB;
constexpr std::uint64_t kMaxPopulatingThreads = 8;

/// Calls work(part) for parts of a range that end at multiples of `part_bytes`, by several threads
/// where it is large, and returns when all have ended. @param workers whose threads these are;
/// null: they are made @param work throws nothing
template <class Work>
void InParts(const MappedStep& range, std::uint64_t part_bytes, std::uint64_t threads,
             ThreadPool* workers, const Work& work) {
  const std::uint64_t first = range.offset / part_bytes;
  const std::uint64_t parts = (range.end() - 1) / part_bytes - first + 1;
  threads = std::min(threads, parts);
  std::atomic<std::uint64_t> taken{0};
  const auto work_on = [&](std::size_t) {
    for (std::uint64_t k; (k = taken++) < parts;) {
      const std::uint64_t from = std::max(range.offset, (first + k) * part_bytes);
      work(MappedStep{from, std::min(range.end(), (first + k + 1) * part_bytes) - from});
    }
  };
  if (workers != nullptr) return workers->Run(threads, work_on);
  ThreadPool(static_cast<unsigned>(threads)).Run(threads, work_on);
}

#ifndef MADV_COLLAPSE  // Linux 6.1
constexpr int MADV_COLLAPSE = 25;
#endif

}  // namespace

bool MakeHugePages(std::byte* first, std::byte* last) {
  const auto end = RoundDown(reinterpret_cast<std::uintptr_t>(last), kHugePageBytes);
  auto start = RoundUp(reinterpret_cast<std::uintptr_t>(first), kHugePageBytes);
  if (start >= end) return true;
  // The kernel collapses what has at least one page; of the others it makes zeros, in place.
  for (auto extent = start; extent < end; extent += kHugePageBytes) {
    if (madvise(reinterpret_cast<void*>(extent), kPageBytes, MADV_POPULATE_WRITE) != 0)
      return false;
  }
  return madvise(reinterpret_cast<void*>(start), end - start, MADV_COLLAPSE) == 0;
}

std::uint64_t AllThreads() {
  return std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 1, kMaxPopulatingThreads);
}
std::uint64_t FewThreads() {
  return std::clamp<std::uint64_t>(std::thread::hardware_concurrency() / 2, 1,
                                   kMaxPopulatingThreads);
}

void Mapping::MapStep(const MappedStep& step, bool populate, std::uint64_t threads,
                      ThreadPool* workers) const {
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
  if (InMemory() && populate) Populate(step, !anonymous_, threads, workers);
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
  const std::uint64_t threads = AllThreads();
  const std::uint64_t part_bytes =
      std::min(RoundUp((bytes + threads - 1) / threads, kHugePageBytes), kPartBytes);
  InParts({offset, bytes}, part_bytes, threads, nullptr, [&](const MappedStep& part) {
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
  RequireRoomForHoles();
  if (!InMemory()) {
    if (!read_only_ && !device_ && file_bytes_ > 0) FillHoles();
    return;
  }
  for (MappedStep step : steps_) {
    if (!anonymous_) step.bytes = std::min(step.end(), file_bytes_) - step.offset;
    Populate(step, false, AllThreads(), nullptr);
  }
}

void Mapping::Populate(const MappedStep& step, bool make_huge, std::uint64_t threads,
                       ThreadPool* workers) const {
  std::atomic<int> failure{0};
  // (A huge page at a time: docs/TRIED.md, "Pages, and room that comes too late".)
  InParts(step, kHugePageBytes, threads, workers, [&](const MappedStep& part) {
    if (make_huge) MakeHugePages(base_ + part.offset, base_ + part.end());
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

}  // namespace gpm
