#ifndef GPM_TESTS_HOST_CELLS_H_
#define GPM_TESTS_HOST_CELLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "bench/peers/cells.h"

namespace gpm::bench::peers {

/// Cells in host memory, as many as a test may take.
struct HostCells {
  HostCells(std::uint64_t bytes, std::uint32_t count)
      : memory(new (std::align_val_t{128}) std::byte[bytes * count]), ring(2 * count) {
    std::memset(memory.get(), 0xFF, bytes * count);
    std::iota(ring.begin(), ring.begin() + count, 1u);
    counters = {0, count};
    view = {memory.get(), bytes, ring.data(), ring.size(), counters.data()};
  }
  std::uint64_t Used() const { return ring.size() / 2 - (counters[1] - counters[0]); }
  struct Free {
    void operator()(std::byte* bytes) const { operator delete[](bytes, std::align_val_t{128}); }
  };
  std::unique_ptr<std::byte[], Free> memory;
  std::vector<std::uint32_t> ring;
  std::array<std::uint64_t, 2> counters{};
  Cells view{};
};

}  // namespace gpm::bench::peers

#endif  // GPM_TESTS_HOST_CELLS_H_
