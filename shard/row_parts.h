#ifndef GPM_SHARD_ROW_PARTS_H_
#define GPM_SHARD_ROW_PARTS_H_

#include <algorithm>
#include <cstddef>

#include "pm/thread_pool.h"

namespace gpm {

/// The rows of an array in parts, which threads work on side by side; one part, where the rows take
/// no longer than to wake up another thread.
struct RowParts {
  std::size_t rows;
  std::size_t count;

  /// @param row_bytes that are read and written for a row
  static RowParts Of(std::size_t rows, std::size_t row_bytes, const ThreadPool& threads) {
    // Some 60 microseconds of copying. A thread that comes late leaves its parts to the others.
    constexpr std::size_t kLeastBytes = std::size_t{1} << 19;
    constexpr std::size_t kMostOfAThread = 4;
    const std::size_t most = threads.threads() == 1 ? 1 : kMostOfAThread * threads.threads();
    return {rows, std::clamp<std::size_t>(rows * row_bytes / kLeastBytes, 1, most)};
  }
  std::size_t BeginOf(std::size_t part) const { return rows * part / count; }

  /// Calls work(part, begin, end) for each part. @throws what one threw, when all have ended
  template <class Work>
  void Run(ThreadPool& threads, const Work& work) const {
    threads.Run(count, [&](std::size_t part) { work(part, BeginOf(part), BeginOf(part + 1)); });
  }
};

}  // namespace gpm

#endif  // GPM_SHARD_ROW_PARTS_H_
