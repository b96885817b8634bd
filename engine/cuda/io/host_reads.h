#ifndef GPM_ENGINE_CUDA_IO_HOST_READS_H_
#define GPM_ENGINE_CUDA_IO_HOST_READS_H_

#include <cstddef>
#include <cstdint>

#include "pm/annotate.h"

namespace gpm {

/// Which of a batch's reads, in the order of addresses, threads of the host make (HostReader): the
/// first ones. A trivially copyable view of pinned memory.
struct HostReads {
  /// Parts, one behind the other: the GPU takes one while the host reads the next.
  static constexpr std::uint32_t kParts = 4;
  /// The GPU makes so many by itself before the host has begun: they take it 100 us.
  static constexpr std::uint32_t kBeforeHost = 4000;

  std::uint32_t* cells = nullptr;     ///< numbers of those to read; null: the host reads nothing
  std::uint32_t* count = nullptr;     ///< how many: RowsOf, for the host
  const std::byte* staged = nullptr;  ///< what was read
  std::uint32_t row_bytes = 0;        ///< from one row to the next there
  std::uint32_t room = 0;             ///< for rows
  std::uint32_t share = 0;            ///< of the host, in 65536ths

  GPM_HD bool enabled() const { return cells != nullptr; }
  /// How many of so many reads the host makes.
  GPM_HD std::uint32_t RowsOf(std::uint32_t reads) const {
    if (!enabled() || reads <= kBeforeHost) return 0;
    const std::uint64_t rows_of_share = std::uint64_t{reads - kBeforeHost} * share >> 16;
    return rows_of_share < room ? static_cast<std::uint32_t>(rows_of_share) : room;
  }
  /// Where a part begins, and the one before it ends.
  GPM_HD static std::uint32_t BeginOf(std::uint32_t part, std::uint32_t rows) {
    return static_cast<std::uint32_t>(std::uint64_t{rows} * part / kParts);
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_HOST_READS_H_
