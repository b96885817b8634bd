#include "bench/pm_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "bench/kv_adapter.h"
#include "gpmstore/error.h"
#include "pm/format.h"
#include "pm/gpu_host.h"
#include "pm/mapping_parts.h"
#include "pm/thread_pool.h"

namespace gpm::bench {

namespace {

/// Gives all pages memory, huge ones where it can, as pools have them, by all cores: one takes
/// seconds for gigabytes. @return errno
int Populate(std::byte* address, std::uint64_t bytes) {
  constexpr std::uint64_t kPart = std::uint64_t{64} << 20;
  std::atomic<int> error{0};
  ThreadPool threads(ThreadsOf(0));
  threads.Run((bytes + kPart - 1) / kPart, [&](std::size_t part) {
    const std::uint64_t first = part * kPart;
    const std::uint64_t count = std::min(kPart, bytes - first);
    MakeHugePages(address + first, address + first + count);
    if (madvise(address + first, count, MADV_POPULATE_WRITE) != 0) {
      error = errno;
    }
  });
  return error;
}

/// Maps a file at an address at which it can have huge pages. @return MAP_FAILED, and errno
void* MapAligned(int fd, std::uint64_t bytes) {
  void* const room = mmap(nullptr, bytes + kHugePageBytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return room;
  auto* const begin = static_cast<std::byte*>(room);
  auto* const first =
      reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<std::uintptr_t>(room), kHugePageBytes));
  const std::uint64_t before = static_cast<std::uint64_t>(first - begin);
  std::byte* const last = first + RoundUp(bytes, kPageBytes);
  if (before > 0) munmap(begin, before);
  munmap(last, static_cast<std::uint64_t>(begin + bytes + kHugePageBytes - last));
  return mmap(first, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
}

}  // namespace

PmFile::PmFile(std::uint64_t bytes, For user) : bytes_(bytes), user_(user) {
  const std::string folder = std::filesystem::path(TemporaryPoolPath()).parent_path();
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  int error = fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ? errno : 0;
  void* address = MAP_FAILED;
  if (error == 0) {
    address = MapAligned(fd, bytes);
    if (address == MAP_FAILED) error = errno;
  }
  if (fd >= 0) close(fd);
  if (error == 0) error = Populate(static_cast<std::byte*>(address), bytes);
  if (error != 0) {
    if (address != MAP_FAILED) munmap(address, bytes);
    throw Error(ErrorCode::kIo,
                fmt::format("a file of {} bytes in {}: {}", bytes, folder, std::strerror(error)));
  }
  memory_ = static_cast<std::byte*>(address);
  if (user_ == For::kCpu) return;
  try {
    RegisterHostMemory(memory_, bytes_);
  } catch (...) {
    munmap(memory_, bytes_);
    throw;
  }
}

PmFile::~PmFile() {
  if (user_ == For::kGpu) UnregisterHostMemory(memory_);
  munmap(memory_, bytes_);
}

}  // namespace gpm::bench
