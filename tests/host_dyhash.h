#ifndef GPM_TESTS_HOST_DYHASH_H_
#define GPM_TESTS_HOST_DYHASH_H_

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "bench/peers/dyhash_table.h"
#include "tests/host_cells.h"
#include "tests/host_warp.h"
#include "tests/peer_batches.h"

namespace gpm::bench::peers::dyhash {

/// A table of DyHash in host memory.
struct HostDyHash {
  static constexpr std::uint32_t kCells = 4 * kMaxBatch;
  struct Memory {
    std::vector<Bucket> buckets;
    std::vector<std::uint32_t> references, locks;
  };

  /// @param size buckets of a subtable
  explicit HostDyHash(std::uint64_t size) : left_over(2 * kMaxBatch), cells(kValueBytes, kCells) {
    table.cells = cells.view;
    table.counters = &counters;
    table.left_over = left_over.data();
    for (unsigned t = 0; t < kTables; ++t) Allocate(t, size);
  }
  void Allocate(unsigned t, std::uint64_t size) {
    memory[t] = {std::vector<Bucket>(size), std::vector<std::uint32_t>(size * kSlots, 0xFFFFFFFFu),
                 std::vector<std::uint32_t>(size)};
    table.tables[t] = {memory[t].buckets.data(), memory[t].references.data(),
                       memory[t].locks.data(), size};
  }
  /// A subtable of twice its size, as the kernel MoveItems makes it.
  void Double(unsigned t) {
    const Memory old = std::move(memory[t]);
    const Subtable from = table.tables[t];
    Allocate(t, 2 * from.size);
    RunTiles<1>(2, [&](const auto&, unsigned number) {
      for (std::uint64_t i = number; i < from.size * kSlots; i += 2) {
        MoveItem(from, table, t, i);
      }
    });
  }
  /// One of half its size, as the kernel MergeItems makes it.
  void Halve(unsigned t) {
    const Memory old = std::move(memory[t]);
    const Subtable from = table.tables[t];
    Allocate(t, from.size / 2);
    RunTiles<1>(2, [&](const auto&, unsigned number) {
      for (std::uint64_t bucket = number; bucket < from.size / 2; bucket += 2) {
        MergeBuckets(from, table, t, bucket);
      }
    });
  }
  /// Inserts what was left over, as the kernel InsertItems does.
  void InsertLeftOver() {
    const auto items = LeftOver();
    counters.left_over = 0;
    RunTiles<kWarpThreads>(2, [&](const auto& warp, unsigned number) {
      for (std::uint64_t first = number * kWarpThreads; first < items.size();
           first += 2 * kWarpThreads) {
        InsertItem(warp, table, items.data(), items.size(), first + warp.thread_rank());
      }
    });
  }
  /// Inserts an item a lane by one warp.
  void Insert(const std::vector<Pending>& items) {
    RunTiles<kWarpThreads>(1, [&](const auto& warp, unsigned) {
      const unsigned lane = warp.thread_rank();
      unsigned placed[kTables] = {};
      InsertPending(warp, table, lane < items.size() ? items[lane] : Pending{}, placed);
      CountPlaced(table, placed);
    });
  }
  std::vector<Item> LeftOver() const {
    return {left_over.begin(), left_over.begin() + static_cast<std::ptrdiff_t>(counters.left_over)};
  }
  /// The cells of the keys in subtables. Each is there once, in a bucket of its own; the counts of
  /// items are right, and nobody has a lock.
  std::map<std::uint64_t, std::uint32_t> Placed() const {
    std::map<std::uint64_t, std::uint32_t> cell_of;
    for (unsigned t = 0; t < kTables; ++t) {
      std::uint64_t items = 0;
      for (std::uint64_t i = 0; i < memory[t].references.size(); ++i) {
        const std::uint64_t bucket = i / kSlots;
        EXPECT_EQ(memory[t].locks[bucket], 0u);
        const std::uint64_t key = memory[t].buckets[bucket].keys[i % kSlots];
        if (key == kEmpty) continue;
        ++items;
        EXPECT_EQ(table.BucketOf(key, t), bucket);
        EXPECT_TRUE(cell_of.emplace(key, memory[t].references[i]).second) << "a key is there twice";
      }
      EXPECT_EQ(counters.items[t], items) << "of subtable " << t;
    }
    return cell_of;
  }

  std::array<Memory, kTables> memory;
  Counters counters{};
  std::vector<Item> left_over;
  HostCells cells;
  DyHashTable table{};
};

}  // namespace gpm::bench::peers::dyhash

#endif  // GPM_TESTS_HOST_DYHASH_H_
