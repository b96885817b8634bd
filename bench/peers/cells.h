#ifndef GPM_BENCH_PEERS_CELLS_H_
#define GPM_BENCH_PEERS_CELLS_H_

#include <cstddef>
#include <cstdint>

#include "pm/annotate.h"
#include "table/volatile_ops.h"

namespace gpm::bench::peers {

/// Cells of one size, by number from 1 on; 0 is none. Which are free is kept in a ring: who wants
/// one takes it from the front, and cells that are given back come to the end. This is what kernels
/// see of them; who owns them sees to it that there are so many that none of those that a batch
/// gives back is taken before it ends, and that there is always one.
struct Cells {
  std::byte* memory;  ///< of all cells: GPU memory, PM or, for tests, host memory
  std::uint64_t cell_bytes;
  std::uint32_t* ring;
  std::uint64_t ring_size;
  std::uint64_t* counters;  ///< how many were taken, and were put into the ring, ever

  GPM_HD std::byte* AddressOf(std::uint64_t cell) const { return memory + (cell - 1) * cell_bytes; }
  /// By one thread.
  GPM_HD std::uint32_t Take() const { return ring[AtomicAdd(&counters[0], 1) % ring_size]; }
  GPM_HD void Give(std::uint64_t cell) const {
    ring[AtomicAdd(&counters[1], 1) % ring_size] = static_cast<std::uint32_t>(cell);
  }
};

}  // namespace gpm::bench::peers

#endif  // GPM_BENCH_PEERS_CELLS_H_
