// The windows of the cpu executor: whatever their shape, each operation is prepared and then
// visited once, in order. (What their steps find, tests of stores show, with the shape of this
// CPU.)

#include "engine/cpu/prefetch_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace gpm {
namespace {

/// Takes the place of operations of which nothing is looked up.
struct NothingFound {
  Candidates Locate(const std::uint64_t*) const { return {}; }
  Probe ProbeLevel(const Candidates&, const std::uint64_t*, std::uint32_t,
                   std::byte* const*) const {
    return {};
  }
};
struct NothingMatches {
  void MatchBuckets(const std::byte* const*, std::uint32_t, std::uint32_t, const std::uint64_t*,
                    std::size_t, BucketMatch*) const {}
};

class PrefetchWindowTest : public ::testing::TestWithParam<WindowShape> {
 protected:
  /// @param stop visits before which it ends
  void Run(std::uint32_t levels, std::uint32_t key_words, std::size_t operations,
           std::size_t stop) {
    TableView table{};
    table.levels = levels;
    table.key_words = key_words;
    const NothingFound found;
    const NothingMatches media;
    const std::uint64_t key = 0;
    const auto key_of = [&](std::size_t, KeyBuffer*) { return &key; };
    std::size_t entered = 0;
    std::size_t prepared = 0;
    std::size_t visited = 0;
    const auto next = [&](PrefetchWindow* window, std::size_t at_once) {
      EXPECT_EQ(at_once, GetParam().operations);
      window->count = std::min(at_once, operations - entered);
      std::iota(window->index.begin(), window->index.begin() + window->count, entered);
      entered += window->count;
    };
    const auto prepare = [&](const PrefetchWindow* window, std::size_t ahead) {
      EXPECT_EQ(ahead, prepared - visited);
      for (std::size_t k = 0; k < window->count; ++k) EXPECT_EQ(window->index[k], prepared++);
    };
    const auto visit = [&](const PrefetchWindow& window) {
      for (std::size_t k = 0; k < window.count; ++k) EXPECT_EQ(window.index[k], visited++);
      EXPECT_LE(visited, prepared);
      return visited < stop;
    };
    WindowSearch(table, found, media, false, key_of, GetParam()).ForWindows(next, prepare, visit);
    if (stop > operations) {
      EXPECT_EQ(visited, operations);
    } else {
      EXPECT_GE(visited, stop);
      EXPECT_LT(visited, stop + GetParam().operations);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, PrefetchWindowTest,
                         ::testing::Values(kSmallWindows, kLargeWindows, kMostOfWindows,
                                           WindowShape{1, 1}));

TEST_P(PrefetchWindowTest, OperationsComeOnceAndInOrder) {
  for (const std::uint32_t levels : {1u, 2u, 3u, 8u}) {
    for (const std::uint32_t key_words : {1u, 4u}) {
      for (const std::size_t operations : {0u, 1u, 3u, 12u, 13u, 48u, 500u}) {
        Run(levels, key_words, operations, operations + 1);
        if (operations > 0) Run(levels, key_words, operations, (operations + 1) / 2);
      }
    }
  }
}

}  // namespace
}  // namespace gpm
