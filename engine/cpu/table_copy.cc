#include "engine/cpu/table_copy.h"

#include <atomic>

#include "engine/snapshot.h"
#include "pm/thread_pool.h"

namespace gpm {

void CpuTableCopy::Fetch() {
  if (!shape.changes_only || range_bits == 0) return;
  const std::uint64_t count = std::uint64_t{1} << range_bits;
  for (std::uint64_t first = 0; first < count; first += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, next_marks.bytes.get() + first, sizeof eight);
    for (std::uint64_t i = first; eight != 0; ++i, eight >>= 8) {
      if ((eight & 0xFF) != 0) ranges_.push_back(static_cast<std::uint32_t>(i));
    }
  }
  ranges = ranges_;
}

std::vector<std::uint32_t> CpuTableCopy::NamedCells(std::uint64_t cell_bytes) const {
  constexpr std::uint64_t kWordBits = 32;
  constexpr std::uint64_t kPart = std::uint64_t{1} << 18;
  const std::uint64_t parts = (items + kPart - 1) / kPart;
  const auto references_of = [&](std::size_t part) {
    return std::span(references, items)
        .subspan(part * kPart)
        .first(std::min(kPart, items - part * kPart));
  };
  ThreadPool threads(static_cast<unsigned>(std::clamp<std::uint64_t>(parts, 1, ThreadsForCopy())));
  std::vector<std::uint64_t> most(parts);
  threads.Run(parts, [&](std::size_t part) { most[part] = std::ranges::max(references_of(part)); });
  std::vector<std::uint32_t> names(
      (parts == 0 ? 0 : std::ranges::max(most) / cell_bytes / kWordBits) + 1);
  threads.Run(parts, [&](std::size_t part) {
    for (const std::uint64_t reference : references_of(part)) {
      const std::uint64_t cell = reference / cell_bytes;
      std::atomic_ref(names[cell / kWordBits])
          .fetch_or(std::uint32_t{1} << (cell % kWordBits), std::memory_order_relaxed);
    }
  });
  return names;
}

}  // namespace gpm
