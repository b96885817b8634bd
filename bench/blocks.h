#ifndef GPM_BENCH_BLOCKS_H_
#define GPM_BENCH_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pm/thread_pool.h"

namespace gpm::bench {

/// Rows that a thread makes or checks at once.
inline constexpr std::uint64_t kBlockRows = 1 << 14;

/// Calls block(first, end) for blocks of [0, rows), by several threads. The blocks are the same
/// however many threads there are.
template <class Block>
void ForBlocks(ThreadPool& threads, std::uint64_t rows, const Block& block) {
  threads.Run((rows + kBlockRows - 1) / kBlockRows, [&](std::size_t part) {
    block(part * kBlockRows, std::min<std::uint64_t>(rows, (part + 1) * kBlockRows));
  });
}

}  // namespace gpm::bench

#endif  // GPM_BENCH_BLOCKS_H_
