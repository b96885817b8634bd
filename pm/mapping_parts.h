#ifndef GPM_PM_MAPPING_PARTS_H_
#define GPM_PM_MAPPING_PARTS_H_

#include <sys/statfs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace gpm {

/// What the files of Mapping share: mapping.cc (its life, and how it grows), mapping_file.cc (its
/// file) and mapping_pages.cc (its pages; of huge ones also for who maps other files).

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

constexpr std::uint64_t RoundDown(std::uint64_t n, std::uint64_t multiple) {
  return n / multiple * multiple;
}

inline std::string Reason(int error) { return std::strerror(error); }

/// Bytes of what a file system counts its room in: of network file systems not f_bsize.
inline std::uint64_t BlockBytes(const struct statfs& system) {
  return static_cast<std::uint64_t>(system.f_frsize != 0 ? system.f_frsize : system.f_bsize);
}

/// Backs what nothing wrote yet of [first, last) with huge pages, also where the mount of a tmpfs
/// has none by itself (they are not the default): a CPU then translates addresses several times as
/// fast. A hint: what the kernel refuses stays as it is.
/// @return false: it has refused
bool MakeHugePages(std::byte* first, std::byte* last);

/// Threads that make room that somebody waits for, and that is made ahead, beside batches.
std::uint64_t AllThreads();
std::uint64_t FewThreads();

}  // namespace gpm

#endif  // GPM_PM_MAPPING_PARTS_H_
