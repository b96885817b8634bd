#include "engine/cuda/strategy.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "engine/cuda/io/host_reads.h"

namespace gpm {
namespace {

using Kernels = Strategy::Kernels;

/// An H200 with a pool that its translations reach.
StrategyInputs Inputs(std::uint64_t operations, bool finds_only) {
  StrategyInputs in;
  in.operations = operations;
  in.finds_only = finds_only;
  in.reads_cells = finds_only;
  in.has_directory = true;
  in.has_cache = true;
  in.tiles = 132 * 32;
  in.pool_bytes = std::uint64_t{3} << 30;
  in.access.dealt_up_to = std::uint64_t{132 * 28} << 20;
  return in;
}

TEST(StrategyTest, FindsOfEachSize) {
  const auto choose = [](std::uint64_t n) { return ChooseStrategy(Inputs(n, true)); };
  for (const std::uint64_t n : {1u, 4096u, 1u << 14}) {
    const Strategy tiles = choose(n);
    EXPECT_EQ(tiles.kernels, Kernels::kFindTiles) << n;
    EXPECT_TRUE(tiles.queues_reads);
    EXPECT_FALSE(tiles.plans_reads || tiles.shares_reads || tiles.copies_rows);
    EXPECT_EQ(tiles.first_slice, 0u);
  }
  const Strategy threads = choose((1u << 14) + 1);
  EXPECT_EQ(threads.kernels, Kernels::kFindThreads);
  EXPECT_TRUE(threads.plans_reads && threads.shares_reads && threads.copies_rows);
  EXPECT_FALSE(threads.orders_reads);
  EXPECT_EQ(threads.first_slice, 0u);
  EXPECT_EQ(choose((1u << 18) - 1).first_slice, 0u);
  EXPECT_EQ(choose(3u << 17).first_slice, 1u << 17);
}

TEST(StrategyTest, AFewFindsOfLongValuesHaveABlockEach) {
  StrategyInputs in = Inputs(StrategyThresholds::kSharedFrom - 1, true);
  in.value_size = StrategyThresholds::kLongFromBytes;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindLong);
  EXPECT_FALSE(ChooseStrategy(in).queues_reads);
  ++in.operations;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindTiles);
  --in.operations;
  --in.value_size;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindTiles);
  ++in.value_size;
  in.reads_cells = false;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindTiles) << "only existence is asked";
}

TEST(StrategyTest, WhatIsMostlyCachedIsCopiedByWhoLooksItUp) {
  StrategyInputs in = Inputs(1u << 20, true);
  in.reads_cells = in.has_cache = true;
  EXPECT_FALSE(ChooseStrategy(in).copies_cached);
  in.mostly_cached = true;
  EXPECT_TRUE(ChooseStrategy(in).copies_cached);
  EXPECT_EQ(ChooseStrategy(in).first_slice, 0u) << "there is little to be read meanwhile";
  in.finds_only = false;
  EXPECT_FALSE(ChooseStrategy(in).copies_cached);
  EXPECT_EQ(ChooseStrategy(in).first_slice, 0u);
  in.mostly_cached = false;
  EXPECT_NE(ChooseStrategy(in).first_slice, 0u);
  in.finds_only = in.mostly_cached = true;
  in.has_cache = false;
  EXPECT_FALSE(ChooseStrategy(in).copies_cached);

  FindHistory history;
  EXPECT_FALSE(history.MostlyCached());
  history.AddHits(4096, 4000);
  EXPECT_TRUE(history.MostlyCached());
  history.AddHits(1000, 0);
  EXPECT_TRUE(history.MostlyCached()) << "a few finds say nothing";
  history.AddHits(4096, 3900);
  EXPECT_FALSE(history.MostlyCached());
}

TEST(FindHistoryTest, LongRunsAreExpectedAfterABatchWithMany) {
  FindHistory history;
  EXPECT_FALSE(history.AddsLongRuns());
  history.AddLongRuns(4096, 511);
  EXPECT_FALSE(history.AddsLongRuns());
  history.AddLongRuns(4096, 512);
  EXPECT_TRUE(history.AddsLongRuns());
  history.AddLongRuns(1023, 0);  // which says nothing
  EXPECT_TRUE(history.AddsLongRuns());
  history.AddLongRuns(1024, 0);
  EXPECT_FALSE(history.AddsLongRuns());
}

TEST(StrategyTest, WritesOfEachSize) {
  const auto choose = [](std::uint64_t n, bool reads) {
    StrategyInputs in = Inputs(n, false);
    in.reads_cells = reads;
    return ChooseStrategy(in);
  };
  EXPECT_EQ(choose(4096, true).kernels, Kernels::kSmall);
  EXPECT_FALSE(choose(2047, true).queues_reads);
  EXPECT_TRUE(choose(2048, true).queues_reads);
  EXPECT_FALSE(choose(4096, true).plans_reads);
  EXPECT_EQ(choose(4096, true).small_part, 4096u);
  EXPECT_FALSE(choose(4096, true).half_tiles);
  for (const std::uint64_t n : {4097u, 8191u, 8192u}) {
    EXPECT_EQ(choose(n, true).kernels, Kernels::kSmall);
    EXPECT_EQ(choose(n, true).small_part, n);
    EXPECT_TRUE(choose(n, true).half_tiles);
  }
  for (const std::uint64_t n : {4097u, 8192u, 8193u, 12289u, 16384u}) {
    StrategyInputs in = Inputs(n, false);
    in.writes_only = true;
    EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kSmall);
    EXPECT_EQ(ChooseStrategy(in).half_tiles, n <= 8192);
    EXPECT_LE(ChooseStrategy(in).small_part, n <= 8192 ? n : 4096u);
    in.accumulates = true;
    EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kSmall);
    EXPECT_LE(ChooseStrategy(in).small_part, 4096u);
    EXPECT_FALSE(ChooseStrategy(in).half_tiles);
    in.adds_long_runs = true;
    EXPECT_TRUE(ChooseStrategy(in).one_kernel());
    in.operations = 1024;
    EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kSmall);
    in.operations = 1025;
    EXPECT_TRUE(ChooseStrategy(in).one_kernel());
  }
  const Strategy searched = choose(8193, true);
  EXPECT_EQ(searched.kernels, Kernels::kSearched);
  EXPECT_TRUE(searched.plans_reads && searched.copies_rows && searched.groups);
  EXPECT_FALSE(searched.shares_reads);
  EXPECT_TRUE(choose(1u << 17, false).groups);
  EXPECT_TRUE(choose(1u << 17, false).one_kernel());
  EXPECT_FALSE(choose((1u << 17) + 1, false).groups);
  EXPECT_FALSE(choose((1u << 17) + 1, false).one_kernel());
  StrategyInputs small_gpu = Inputs(1u << 17, false);
  small_gpu.tiles = 4096 - 32;
  EXPECT_FALSE(ChooseStrategy(small_gpu).groups) << "a block has no room for its share";
  EXPECT_EQ(choose(1u << 18, true).first_slice, 1u << 16);
  EXPECT_EQ(choose(1u << 18, false).first_slice, 0u) << "nothing is read";
  EXPECT_EQ(choose(1u << 18, false).kernels, Kernels::kSearched);
  EXPECT_EQ(choose((std::uint64_t{1} << 30) + 1, true).kernels, Kernels::kUnsearched);
}

TEST(StrategyTest, APoolBeyondReachIsReadInOrder) {
  for (const bool finds : {false, true}) {
    StrategyInputs in = Inputs(1u << 20, finds);
    in.reads_cells = true;
    in.pool_bytes = in.access.dealt_up_to + 1;
    const Strategy large = ChooseStrategy(in);
    EXPECT_TRUE(large.orders_reads);
    EXPECT_FALSE(large.one_kernel());
    EXPECT_EQ(large.first_slice, 0u) << "one order for all";
    in.operations = 1u << 14;
    EXPECT_FALSE(ChooseStrategy(in).orders_reads) << "a few are dealt out";
  }
}

TEST(StrategyTest, TheHostMakesSomeOfManyReadsInOrder) {
  StrategyInputs in = Inputs(1u << 20, true);
  in.reads_cells = true;
  in.value_size = StrategyThresholds::kByHostUpToBytes;
  const auto by_host = [&] { return ChooseStrategy(in).reads_by_host; };
  EXPECT_FALSE(by_host()) << "they are dealt out";
  in.pool_bytes = in.access.dealt_up_to + 1;
  EXPECT_TRUE(by_host()) << "nothing is known";
  in.access.by_host = false;
  EXPECT_FALSE(by_host());
  in.access.by_host = true;
  ++in.value_size;
  EXPECT_FALSE(by_host()) << "the link is the bound";
  --in.value_size;
  FindHistory history;
  history.AddHits(1000, 1000);
  EXPECT_EQ(history.ReadShare(), 1) << "a few finds say nothing";
  const std::uint64_t kFrom = StrategyThresholds::kByHostFrom;
  history.AddHits(1u << 20, (1u << 20) - kFrom);
  in.read_share = history.ReadShare();
  EXPECT_TRUE(by_host());
  in.operations /= 2;
  EXPECT_FALSE(by_host()) << "half as many";
  in = Inputs(1u << 20, false);
  in.reads_cells = true;
  in.pool_bytes = in.access.dealt_up_to + 1;
  EXPECT_TRUE(by_host()) << "of a batch that writes, too";
}

TEST(StrategyTest, TheHostWritesValuesOfLargeBatchesThatOnlyWrite) {
  StrategyInputs in = Inputs(1u << 20, false);
  in.writes_only = in.host_can_write = true;
  in.value_size = StrategyThresholds::kByHostUpToBytes;
  FindHistory history;
  const auto writes = [&] {
    in.writes_most = history.WritesMost();
    return ChooseStrategy(in).writes_by_host;
  };
  EXPECT_FALSE(writes()) << "nothing is known";
  history.AddWrites(1000, 750);
  EXPECT_TRUE(writes());
  for (const std::uint64_t operations :
       {StrategyThresholds::kHostWritesFrom, StrategyThresholds::kHostWritesUpTo}) {
    in.operations = operations;
    EXPECT_TRUE(writes());
  }
  ++in.operations;
  EXPECT_FALSE(writes());
  in.operations = StrategyThresholds::kHostWritesFrom - 1;
  EXPECT_FALSE(writes());
  in.operations = 1u << 20;
  ++in.value_size;
  EXPECT_FALSE(writes()) << "the link is the bound";
  --in.value_size;
  in.access.by_host = false;
  EXPECT_FALSE(writes());
  in.access.by_host = true;
  in.has_directory = false;
  EXPECT_FALSE(writes()) << "a thread would read buckets over the link";
  in.has_directory = true;
  in.host_can_write = false;
  EXPECT_FALSE(writes());
  in.host_can_write = true;
  in.writes_only = false;
  EXPECT_FALSE(writes());
  in.writes_only = true;
  history.AddWrites(1000, 749);
  EXPECT_FALSE(writes()) << "too many are overwritten at once";
}

TEST(StrategyTest, TheHostsShareIsThatOfItsRate) {
  std::uint32_t cells = 0;
  HostReads reads{.cells = &cells, .room = 100'000, .share = 65536 * 3 / 4};
  constexpr std::uint32_t kBefore = HostReads::kBeforeHost;
  EXPECT_EQ(reads.RowsOf(0), 0u);
  EXPECT_EQ(reads.RowsOf(kBefore), 0u);
  EXPECT_EQ(reads.RowsOf(kBefore + 4000), 3000u);
  EXPECT_EQ(reads.RowsOf(~0u), reads.room);
  std::uint32_t all = 0;
  for (std::uint32_t part = 0; part < HostReads::kParts; ++part) {
    all += HostReads::BeginOf(part + 1, 99'999) - HostReads::BeginOf(part, 99'999);
  }
  EXPECT_EQ(all, 99'999u);
  reads.cells = nullptr;
  EXPECT_EQ(reads.RowsOf(~0u), 0u) << "off";
}

TEST(StrategyTest, FindsOfAKeyAreCombinedWhereThatSavesReads) {
  StrategyInputs in = Inputs(4096, true);
  in.has_directory = in.has_cache = false;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kSmall);
  in.operations = 1u << 20;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kUnsearched);
  in.access.combine = false;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindThreads);
  in.access.by_address = false;
  EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindTiles) << "each reads its own value";
  for (const bool has_cache : {false, true}) {  // a hot key's value is not in GPU memory
    in = Inputs(1024, true);
    in.has_cache = has_cache;
    in.shares = true;
    EXPECT_EQ(ChooseStrategy(in).kernels, Kernels::kFindTiles) << "read together, each cell once";
    EXPECT_TRUE(ChooseStrategy(in).shares_reads && ChooseStrategy(in).plans_reads);
    in.access.combine = false;
    EXPECT_FALSE(ChooseStrategy(in).shares_reads || ChooseStrategy(in).plans_reads);
    in.access.combine = true;
    in.operations = 1023;
    EXPECT_EQ(ChooseStrategy(in).kernels, has_cache ? Kernels::kFindTiles : Kernels::kSmall);
    EXPECT_FALSE(ChooseStrategy(in).shares_reads);
  }
}

TEST(StrategyTest, ValuesForTheHostAreFoundInChunks) {
  StrategyInputs in = Inputs(1u << 17, true);
  in.to_host = true;
  EXPECT_EQ(ChooseStrategy(in).chunk, 0u) << "one";
  in.operations = (1u << 17) + 1;
  EXPECT_EQ(ChooseStrategy(in).chunk, 1u << 17);
  EXPECT_EQ(ChooseStrategy(in).first_slice, 0u);
  in.operations = (1u << 23) + 1;
  EXPECT_EQ(ChooseStrategy(in).chunk, (1u << 20) + 1) << "no more than eight";
  in.pool_bytes = in.access.dealt_up_to + 1;
  EXPECT_EQ(ChooseStrategy(in).chunk, 0u) << "one order for all";
}

TEST(StrategyTest, ReadsAreSharedWhereThatPays) {
  FindHistory history;
  const auto shares_again_after = [&] {
    std::uint32_t batches = 0;
    while (!history.Shares()) ++batches;
    return batches;
  };
  EXPECT_TRUE(history.Shares()) << "nothing is known";
  history.Add(4096, 4096, 100, true, 1500);
  EXPECT_TRUE(history.Shares()) << "skewed";
  history.Add(4096, 4096, 100, true, 3);
  EXPECT_EQ(shares_again_after(), FindHistory::kUntilNextTry) << "uniform";
  history.Add(4096, 4096, 100, true, 3);
  EXPECT_FALSE(history.Shares());
  history.Add(4096, 4096, 100, false, 0);
  EXPECT_EQ(shares_again_after(), FindHistory::kUntilNextTry - 1)
      << "who did not share says little";
  history.Add(4096, 4096, 4000, true, 3);
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(history.Shares()) << "warm";
  history.Add(1000, 1000, 0, false, 0);
  EXPECT_FALSE(history.Shares()) << "a few finds say nothing";
  history.Add(4096, 4096, 100, false, 0);
  EXPECT_TRUE(history.Shares()) << "cold again";
  history.Add(4096, 10, 0, true, 0);
  EXPECT_FALSE(history.Shares()) << "keys that are not there";
}

/// What the kernels rely on, for all inputs.
TEST(StrategyTest, Invariants) {
  for (std::uint32_t bits = 0; bits < 2048; ++bits) {
    for (std::uint64_t n = 1; n < std::uint64_t{1} << 32; n = n * 3 / 2 + 1) {
      StrategyInputs in = Inputs(n, (bits & 1) != 0);
      in.reads_cells = (bits & 2) != 0;
      in.has_directory = (bits & 4) != 0;
      in.has_cache = in.has_directory && (bits & 8) != 0;
      in.access.by_address = (bits & 16) != 0;
      in.access.combine = (bits & 32) != 0;
      in.shares = (bits & 128) != 0;
      in.to_host = (bits & 256) != 0;
      in.writes_only = !in.finds_only && (bits & 512) != 0;
      in.accumulates = in.writes_only && (bits & 1024) != 0;
      if ((bits & 64) != 0) in.pool_bytes = in.access.dealt_up_to + 1;
      const Strategy s = ChooseStrategy(in);
      SCOPED_TRACE(testing::Message() << "bits " << bits << ", " << n << " operations");
      EXPECT_TRUE(in.finds_only || !s.finds());
      EXPECT_TRUE(in.has_directory || !s.searches());
      EXPECT_TRUE(s.kernels != Kernels::kSmall ||
                  (s.small_part <= StrategyThresholds::kSmallUpTo * (s.half_tiles ? 2 : 1) &&
                   s.small_part <= in.tiles * (s.half_tiles ? 2 : 1) &&
                   n <= StrategyThresholds::kSmallWritingParts * s.small_part));
      EXPECT_TRUE(in.reads_cells || !s.queues_reads);
      EXPECT_TRUE(s.queues_reads || !(s.plans_reads || s.orders_reads || s.copies_rows));
      EXPECT_TRUE(s.orders_reads || !s.reads_by_host);
      EXPECT_TRUE(s.plans_reads || !(s.orders_reads || s.shares_reads || s.copies_rows));
      EXPECT_TRUE(s.kernels != Kernels::kFindThreads || !in.reads_cells || s.plans_reads);
      EXPECT_TRUE(s.kernels != Kernels::kSearched || !in.reads_cells || s.copies_rows);
      EXPECT_TRUE(s.first_slice == 0 || (!s.orders_reads && s.chunk == 0));
      EXPECT_TRUE(s.chunk == 0 || (s.kernels == Kernels::kFindThreads && s.queues_reads &&
                                   !s.orders_reads && s.chunk * 8ull >= n));
      EXPECT_LT(s.first_slice, n);
    }
  }
}

TEST(StrategyTest, ASmallBatchIsSpreadOverAllBlocks) {
  for (const std::uint32_t blocks : {1u, 16u, 132u}) {
    for (const std::uint32_t of_warp : {4u, 8u}) {
      const std::uint32_t most = 8 * of_warp;
      for (std::uint32_t n = 1; n <= blocks * most; ++n) {
        const std::uint32_t of_block = OperationsOfBlock(n, blocks, of_warp, most);
        EXPECT_TRUE(of_block > 0 && of_block <= most && of_block % of_warp == 0) << n;
        EXPECT_GE(of_block * blocks, n);
        EXPECT_LT((of_block - of_warp) * blocks, n) << "fewer would do";
      }
      EXPECT_EQ(OperationsOfBlock(blocks * most + 1, blocks, of_warp, most), most);
    }
  }
}

TEST(StrategyTest, EveryReaderIsABlock) {
  for (unsigned multiprocessors = 1; multiprocessors <= 200; ++multiprocessors) {
    for (const bool ordered : {false, true}) {
      for (const bool copies : {false, true}) {
        const ReadingBlocks blocks = ReadingBlocks::Of(ordered, copies, multiprocessors);
        EXPECT_GT(blocks.readers, 0u);
        EXPECT_GE(blocks.all, blocks.readers) << multiprocessors << " multiprocessors";
      }
    }
  }
}

}  // namespace
}  // namespace gpm
