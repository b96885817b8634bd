#ifndef GPM_ENGINE_PARALLEL_SORT_H_
#define GPM_ENGINE_PARALLEL_SORT_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>

#include "pm/thread_pool.h"

namespace gpm {

/// std::sort by several threads: parts of the range are sorted side by side, then merged two by
/// two. It takes memory for half of the range, or more time without. REQUIRES: no two elements are
/// equal, or it does not matter which comes first.
template <class Iterator, class Less>
void SortInParallel(Iterator first, Iterator last, const Less& less, ThreadPool* threads) {
  constexpr std::size_t kFewest = std::size_t{1} << 15;  // of a part
  const auto count = static_cast<std::size_t>(last - first);
  const std::size_t parts =
      std::bit_floor(std::clamp<std::size_t>(count / kFewest, 1, threads->threads()));
  const auto at = [&](std::size_t part) {
    return first + static_cast<std::iter_difference_t<Iterator>>(count * part / parts);
  };
  threads->Run(parts, [&](std::size_t part) { std::sort(at(part), at(part + 1), less); });
  for (std::size_t width = 1; width < parts; width *= 2) {
    threads->Run(parts / (2 * width), [&](std::size_t pair) {
      const std::size_t begin = 2 * width * pair;
      std::inplace_merge(at(begin), at(begin + width), at(begin + 2 * width), less);
    });
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_PARALLEL_SORT_H_
