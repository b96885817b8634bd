// Which buckets a loading of the cache chooses.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "pm/thread_pool.h"
#include "table/media/direct.h"
#include "tests/cache_shapes.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::CountedArray;
using test::Fraction;
using test::TableOf;

/// A cache of which only the choice of buckets is looked at: a loading here ends when frames are
/// assigned, and tags then say that they are filled. Steps run on several threads.
class CacheLoaderTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kTop = 8;
  /// Of levels 8 and 7, and the reserved one.
  static constexpr std::uint32_t kBuckets = 384 + TableView::kReservedBuckets;
  static constexpr std::uint32_t kSlots = 8;

  void Make(CachePolicy policy, std::uint32_t frames) {
    table_ = TableOf(8, 16, kTop);
    CacheShape shape = ShapeCache(Fraction(1.0), {}, table_);
    ASSERT_EQ(shape.buckets, kBuckets);
    shape.frames = frames;
    memory_.Reserve(shape, policy);
    std::fill_n(memory_.bucket_of.data(), frames, CacheView::kNoBucket);
    for (std::uint32_t i = 0; i < kBuckets * kSlots; ++i) {
      *memory_.View().cache.TagAt(i) = CacheView::kClosed;
    }
    cached_.clear();
  }

  std::uint32_t& score(std::uint32_t bucket) { return memory_.scores.data()[bucket]; }

  /// Loads and checks that what is kept of frames is consistent.
  /// @return the buckets that have one
  std::set<std::uint32_t> Load(std::uint32_t clock = 1, std::uint64_t uses = 0) {
    CacheView view = memory_.View().cache;
    view.clock = clock;
    const CacheRefresh load =
        memory_.Refresh(view, TinyLfuPolicy::AgeingOf(++loads_, uses, view.size));
    const ThreadGroup group;
    const CacheAccess<ThreadGroup, DirectMedia> access(view, table_, group, media_);
    const std::vector<std::uint32_t> frames_before(view.frame_of, view.frame_of + kBuckets);
    const std::uint32_t fills_before = *view.fills;
    for (std::uint32_t i = 0; i < kBuckets; ++i) load.CountBucket(i, load.histogram);
    load.ChooseThreshold();
    for (std::uint32_t r = 0; r < CacheRefresh::kRanks; ++r) EXPECT_EQ(load.histogram[r], 0u);
    InThreads(view.size, [&](std::uint32_t frame) { load.EvictCold(access, media_, frame); });
    EXPECT_EQ(*view.fills, fills_before);
    InThreads(kBuckets, [&](std::uint32_t bucket) { load.AssignHot(media_, bucket); });
    EXPECT_EQ(*view.fills, fills_before + 1) << "readers are to see that a tag may be back";

    std::set<std::uint32_t> pending;
    filled_.clear();
    for (std::uint32_t i = 0; i < load.ToFill(); ++i) {
      EXPECT_TRUE(pending.insert(load.FrameToFill(i)).second) << "twice";
      filled_.push_back(view.bucket_of[load.FrameToFill(i)]);
    }
    std::set<std::uint32_t> now;
    std::set<std::uint32_t> frames;
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      if (view.frame_of[bucket] == 0) {
        for (std::uint32_t s = 0; s < kSlots; ++s) {
          EXPECT_EQ(*view.TagAt(bucket * kSlots + s), CacheView::kClosed) << "it has no frame";
        }
        continue;
      }
      now.insert(bucket);
      const std::uint32_t frame = view.frame_of[bucket] - 1;
      EXPECT_LT(frame, view.size);
      EXPECT_TRUE(frames.insert(frame).second) << "two buckets have a frame";
      EXPECT_EQ(view.bucket_of[frame], bucket);
      const bool stays = cached_.contains(bucket);
      EXPECT_TRUE(pending.contains(frame)) << "bucket " << bucket;
      if (stays) {
        EXPECT_EQ(view.frame_of[bucket], frames_before[bucket]);
      }
      for (std::uint32_t s = 0; s < kSlots; ++s) {
        std::uint32_t& tag = *view.TagAt(bucket * kSlots + s);
        EXPECT_EQ(tag, stays ? bucket * kSlots + s : CacheView::kClosed)
            << (stays ? "it was touched" : "it can't be filled yet");
        tag = bucket * kSlots + s;  // as if filled
      }
    }
    for (std::uint32_t frame = 0; frame < view.size; ++frame) {
      if (frames.contains(frame)) continue;
      EXPECT_EQ(view.bucket_of[frame], CacheView::kNoBucket);
      EXPECT_FALSE(pending.contains(frame));
    }
    new_ = static_cast<std::size_t>(std::count_if(
        now.begin(), now.end(), [&](std::uint32_t bucket) { return !cached_.contains(bucket); }));
    return cached_ = now;
  }

  /// Opens a cache with a frame for each bucket.
  void Open() {
    const CacheRefresh open = memory_.Refresh(memory_.View().cache, {});
    *open.state = {};
    InThreads(open.cache.size, [&](std::uint32_t frame) { open.OpenFrame(frame); });
    InThreads(kBuckets, [&](std::uint32_t bucket) { open.OpenBucket(media_, bucket); });
    InThreads(kBuckets, [&](std::uint32_t bucket) { open.OpenSlots(media_, bucket, kSlots); });
  }

  template <class Step>
  void InThreads(std::uint32_t count, const Step& step) {
    pool_.Run(count, [&](std::size_t i) { step(static_cast<std::uint32_t>(i)); });
  }

  /// How much an LFU cache makes of a bucket, whose count is its score.
  std::uint32_t LfuRank(std::uint32_t bucket) {
    const std::uint64_t uses = score(bucket);
    const std::uint64_t rank = cached_.contains(bucket) ? uses + uses / 4 : uses;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(rank, CacheRefresh::kRanks - 1));
  }

  /// The buckets with a frame are those with the highest ranks; of equal ones any, of rank 0 none.
  void ExpectBest(const std::set<std::uint32_t>& cached, const std::vector<std::uint32_t>& ranks,
                  std::uint32_t frames) {
    std::vector<std::uint32_t> sorted;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(sorted),
                 [](std::uint32_t rank) { return rank > 0; });
    std::sort(sorted.rbegin(), sorted.rend());
    const std::size_t expected = std::min<std::size_t>(frames, sorted.size());
    EXPECT_EQ(cached.size(), expected);
    const std::uint32_t least = expected == 0 ? 1 : sorted[expected - 1];
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      if (ranks[bucket] > least) {
        EXPECT_TRUE(cached.contains(bucket)) << bucket;
      }
      if (ranks[bucket] < least) {
        EXPECT_FALSE(cached.contains(bucket)) << bucket;
      }
    }
  }

  const DirectMedia media_{Persist()};
  ThreadPool pool_{4};
  TableView table_{};
  CacheMemory<CountedArray> memory_;
  std::set<std::uint32_t> cached_;     ///< buckets that have a frame
  std::vector<std::uint32_t> filled_;  ///< those of the last load, in the order of their filling
  std::uint32_t loads_ = 0;
  std::size_t new_ = 0;  ///< buckets that got one in the last loading
};

TEST_F(CacheLoaderTest, LfuChoosesThoseUsedMost) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t frames : {1u, 10u, 100u, 383u, kBuckets}) {
    for (const std::uint32_t range : {2u, 5u, 300u, 3000u}) {  // few different counts: ties
      SCOPED_TRACE(frames * 10000 + range);
      Make(CachePolicy::kLfu, frames);
      for (int load = 0; load < 6; ++load) {
        std::vector<std::uint32_t> ranks(kBuckets);
        for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
          if (random() % 2 == 0) score(bucket) += random() % range;
          ranks[bucket] = LfuRank(bucket);
        }
        ExpectBest(Load(), ranks, frames);
      }
    }
  }
}

TEST_F(CacheLoaderTest, TheHottestAreFilledFirst) {
  constexpr std::uint32_t kFrames = 4 * CacheRefresh::kFirstShare;
  Make(CachePolicy::kTinyLfu, kFrames);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = bucket % 200;
  const std::set<std::uint32_t> hottest{196, 197, 198, 199};
  Load();
  ASSERT_EQ(filled_.size(), kFrames);
  EXPECT_EQ(std::set<std::uint32_t>(filled_.begin(), filled_.begin() + 4), hottest);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = 5;
  score(0) = 2000;
  Load();
  ASSERT_EQ(filled_.size(), kFrames) << "those that stay may lack something";
  EXPECT_EQ(filled_.front(), 0u);
}

TEST_F(CacheLoaderTest, UnusedBucketsHaveNoBlockThoughThereIsRoom) {
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    Make(policy, 100);
    EXPECT_TRUE(Load().empty());
    score(7) = 1;
    score(300) = 1;
    EXPECT_EQ(Load(), (std::set<std::uint32_t>{7, 300}));
  }
}

TEST_F(CacheLoaderTest, EquallyHotOnesAreLimitedByTheFrames) {
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru}) {
    for (const std::uint32_t frames : {1u, 37u, kBuckets}) {
      Make(policy, frames);
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = 6;
      for (std::uint32_t bucket = 0; bucket < frames / 2; ++bucket) score(bucket * 2) = 7;
      const std::set<std::uint32_t> first = Load(8);
      EXPECT_EQ(first.size(), frames);
      for (std::uint32_t bucket = 0; bucket < frames / 2; ++bucket) {
        EXPECT_TRUE(first.contains(bucket * 2));
      }
      // All are equal to those that have a frame, which keep it.
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = 9;
      EXPECT_EQ(Load(10), first);
      EXPECT_EQ(new_, 0u);
    }
  }
}

TEST_F(CacheLoaderTest, LfuOwnersKeepTheirBlockAgainstOnesThatAreHardlyHotter) {
  Make(CachePolicy::kLfu, 1);
  score(5) = 100;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{5});
  for (const std::uint32_t other : {100u, 124u, 125u}) {  // equally hot: the owner stays
    score(5) = 100;
    score(9) = other;
    EXPECT_EQ(Load(), std::set<std::uint32_t>{5}) << other;
  }
  score(5) = 100;
  score(9) = 126;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{9});
  score(5) = 126;  // now it is the other way round
  score(9) = 101;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{9});
}

TEST_F(CacheLoaderTest, CountsBeyondTheHistogramAreEqual) {
  Make(CachePolicy::kLfu, 50);
  for (std::uint32_t bucket = 0; bucket < 100; ++bucket) score(bucket) = 4000 + 1000 * bucket;
  score(200) = ~0u;
  const std::set<std::uint32_t> cached = Load();
  EXPECT_EQ(cached.size(), 50u);
  EXPECT_FALSE(cached.contains(0));  // 4000 is within it
}

TEST_F(CacheLoaderTest, LfuHalvesCountsAndForgets) {
  Make(CachePolicy::kLfu, 100);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = bucket;
  EXPECT_EQ(Load().size(), 100u);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    EXPECT_EQ(score(bucket), bucket / 2);
  }
  // Nobody uses any: the last counts fade away, and with them the frames.
  for (int i = 0; i < 9; ++i) Load();
  EXPECT_TRUE(cached_.empty());
}

TEST_F(CacheLoaderTest, TinyLfuFillsUnusedBucketsWhereAllHaveAFrame) {
  Make(CachePolicy::kTinyLfu, kBuckets);
  EXPECT_EQ(Load().size(), kBuckets);
  Make(CachePolicy::kTinyLfu, kBuckets - 1);
  score(7) = 1;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{7});
  score(7) = 0;
  score(9) = 1;
  EXPECT_EQ(Load(), (std::set<std::uint32_t>{7, 9})) << "an unused one keeps its frame";
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = bucket == 7 ? 0 : 1;
  EXPECT_EQ(Load().size(), kBuckets - 1);
  EXPECT_FALSE(cached_.contains(7)) << "while no other wants it";
}

TEST_F(CacheLoaderTest, TinyLfuOwnersKeepTheirFrameAgainstOnesThatAreHardlyHotter) {
  Make(CachePolicy::kTinyLfu, 1);
  score(5) = 1;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{5});
  score(9) = 1;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{5});
  score(9) = 2;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{9});
  score(9) = 100;
  for (const std::uint32_t other : {100u, 124u, 125u}) {
    score(5) = other;
    EXPECT_EQ(Load(), std::set<std::uint32_t>{9}) << other;
  }
  score(5) = 126;
  EXPECT_EQ(Load(), std::set<std::uint32_t>{5});
}

TEST(TinyLfuPolicy, RanksAllCounts) {
  std::uint32_t last = 0;
  for (std::uint64_t count = 1; count < std::uint64_t{6} << 30; count += 1 + count / 100) {
    const std::uint32_t rank = TinyLfuPolicy::RankOf(count);
    ASSERT_GE(rank, last) << count;
    ASSERT_LT(rank, CachePolicies::kRanks) << count;
    if (count < 256) {
      ASSERT_EQ(rank, count);
    }
    ASSERT_GT(TinyLfuPolicy::RankOf(count + count / 50 + 1), rank) << count;
    last = rank;
  }
}

TEST_F(CacheLoaderTest, TinyLfuForgetsByUsesAndNotByRefreshes) {
  Make(CachePolicy::kTinyLfu, 100);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = bucket;
  for (int i = 0; i < 20; ++i) Load(1, 0);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) ASSERT_EQ(score(bucket), bucket);
  // As many uses as are remembered: half of each stays, on the whole of single ones too.
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) score(bucket) = 1 + bucket % 2 * 999;
  Load(1, TinyLfuPolicy::kLeastUses);
  std::uint32_t ones = 0;
  for (std::uint32_t bucket = 0; bucket < kBuckets; bucket += 2) ones += score(bucket);
  EXPECT_NEAR(ones, kBuckets / 4, 40);
  for (std::uint32_t bucket = 1; bucket < kBuckets; bucket += 2) {
    ASSERT_NEAR(score(bucket), 500, 1);
  }
  EXPECT_EQ(TinyLfuPolicy::AgeingOf(1, std::uint64_t{1} << 40, 100).keeps, 0u);
  EXPECT_EQ(TinyLfuPolicy::AgeingOf(1, 0, 100).keeps, CacheAgeing::kOne);
  EXPECT_EQ(TinyLfuPolicy::AgeingOf(1, 1u << 24, 1u << 20).keeps, CacheAgeing::kOne / 2);
}

TEST_F(CacheLoaderTest, OpeningGivesAFrameToEachBucketThatHasNone) {
  Make(CachePolicy::kTinyLfu, kBuckets);
  const CacheView view = memory_.View().cache;
  EXPECT_TRUE(view.opens());
  Open();
  const auto frames = [&] { return std::set(view.frame_of, view.frame_of + kBuckets); };
  std::vector<std::uint32_t> all(kBuckets);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(frames(), std::set(all.begin(), all.end()));
  for (std::uint32_t i = 0; i < kBuckets * kSlots; ++i) {
    EXPECT_EQ(*view.TagAt(i), CacheView::kNone);
    *view.TagAt(i) = 7;  // as if values were put there
  }
  const std::vector<std::uint32_t> before(view.frame_of, view.frame_of + kBuckets);
  constexpr std::uint32_t kGone = 100;  // as if new, in the place of those of a drained level
  for (std::uint32_t bucket = 0; bucket < kGone; ++bucket) {
    const std::uint32_t frame = view.frame_of[bucket] - 1;
    for (std::uint32_t s = 0; s < kSlots; ++s) {
      *view.TagAt(bucket * kSlots + s) = CacheView::kClosed;
    }
    view.bucket_of[frame] = CacheView::kNoBucket;
    view.frame_of[bucket] = 0;
  }
  *view.TagAt(kBuckets * kSlots - 1) = CacheView::kClosed;  // as a refresh that failed leaves it
  Open();
  EXPECT_EQ(*view.TagAt(kBuckets * kSlots - 1), CacheView::kNone);
  EXPECT_EQ(frames(), std::set(all.begin(), all.end()));
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    const std::uint32_t frame = view.frame_of[bucket] - 1;
    EXPECT_EQ(view.bucket_of[frame], bucket);
    if (bucket >= kGone) {
      EXPECT_EQ(frame + 1, before[bucket]);
    }
    EXPECT_EQ(*view.TagAt(bucket * kSlots + 1), bucket < kGone ? CacheView::kNone : 7u);
  }
}

TEST_F(CacheLoaderTest, FindsKeepWhatIsCurrentWhereThereIsNothing) {
  Make(CachePolicy::kTinyLfu, kBuckets);
  Open();
  CacheView view = memory_.View().cache;
  const DirectoryView directory = memory_.View().directory;
  const ThreadGroup group;
  constexpr std::uint32_t kBucket = 3;
  constexpr std::uint32_t kSlot = 2;
  constexpr std::uint32_t kCell = 9;
  std::uint32_t& frame = view.frame_of[kBucket];
  std::uint32_t& tag = *view.TagAt(kBucket * kSlots + kSlot);
  std::uint16_t& print = directory.fingerprints[kBucket * directory.stride + kSlot];
  std::uint32_t& cell = *directory.CellAt(kBucket * kSlots + kSlot);
  const auto access = [&] {
    return CacheAccess<ThreadGroup, DirectMedia>(view, table_, group, media_);
  };
  const std::vector<std::byte> value(16, std::byte{7});
  const auto tag_after = [&](std::uint32_t before) {
    tag = before;
    access().Keep(directory, kBucket, kSlot, kCell * table_.cell_bytes, value.data());
    return tag;
  };
  print = 100;
  cell = kCell;
  EXPECT_EQ(tag_after(CacheView::kNone), kCell);
  std::vector<std::byte> read(16);
  EXPECT_TRUE(access().Read(kBucket, kSlot, kCell * table_.cell_bytes, read.data()));
  EXPECT_EQ(read, value);
  for (const std::uint32_t mark : {+CacheView::kErased, +CacheView::kClosed, +CacheView::kBusy,
                                   +CacheView::kFilling, +CacheView::kGivenUp, 8u}) {
    EXPECT_EQ(tag_after(mark), mark) << "it is somebody else's";
  }
  cell = kCell + 1;
  EXPECT_EQ(tag_after(CacheView::kNone), CacheView::kNone) << "it was updated";
  cell = kCell;
  print = DirectoryView::kTaken;
  EXPECT_EQ(tag_after(CacheView::kNone), CacheView::kNone) << "it was erased";
  print = 100;
  view.policy = CachePolicy::kLfu;
  EXPECT_EQ(tag_after(CacheView::kNone), CacheView::kNone) << "that cache is frozen";
  view.policy = CachePolicy::kTinyLfu;

  tag = kCell;
  access().Drop(kBucket, kSlot, kCell);
  EXPECT_EQ(tag, CacheView::kErased);
  EXPECT_FALSE(access().IsToFill(frame - 1, kSlot));
  access().Clear(kBucket, kSlot);
  EXPECT_EQ(tag, CacheView::kNone);
  EXPECT_TRUE(access().IsToFill(frame - 1, kSlot));
  tag = CacheView::kClosed;
  access().Put(kBucket, kSlot, CacheView::kClosed, kCell * table_.cell_bytes, value.data());
  EXPECT_EQ(tag, CacheView::kClosed) << "a cell of that number was not what is there";
}

TEST(CacheView, PublishedPoliciesGiveFramesToWhatWasUsed) {
  CacheView view;
  view.holds_all = true;
  for (const CachePolicy policy : {CachePolicy::kLfu, CachePolicy::kLru, CachePolicy::kRandom}) {
    view.policy = policy;
    EXPECT_FALSE(view.opens());
  }
  view.policy = CachePolicy::kTinyLfu;
  EXPECT_TRUE(view.opens());
  view.holds_all = false;
  EXPECT_FALSE(view.opens());
}

TEST_F(CacheLoaderTest, FramesOfBucketsThatStayHotAreKept) {
  Make(CachePolicy::kLfu, 100);
  for (std::uint32_t bucket = 0; bucket < 100; ++bucket) score(bucket) = 1000;
  EXPECT_EQ(Load().size(), 100u);
  EXPECT_EQ(new_, 100u);
  // Ten others overtake.
  for (std::uint32_t bucket = 0; bucket < 90; ++bucket) score(bucket) = 1000;
  for (std::uint32_t bucket = 200; bucket < 210; ++bucket) score(bucket) = 2000;
  const std::set<std::uint32_t> cached = Load();
  EXPECT_EQ(new_, 10u);
  EXPECT_EQ(cached.size(), 100u);
  for (std::uint32_t bucket = 90; bucket < 100; ++bucket) EXPECT_FALSE(cached.contains(bucket));
}

TEST_F(CacheLoaderTest, LruChoosesThoseUsedLast) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t frames : {1u, 60u, kBuckets}) {
    Make(CachePolicy::kLru, frames);
    std::uint32_t clock = 1;
    for (int load = 0; load < 8; ++load) {
      SCOPED_TRACE(clock);
      for (int batch = 0; batch < 20; ++batch, ++clock) {
        for (int use = 0; use < 5; ++use) score(random() % kBuckets) = clock;
      }
      std::vector<std::uint32_t> ranks(kBuckets);
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) ranks[bucket] = score(bucket);
      ExpectBest(Load(clock), ranks, frames);
      for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
        EXPECT_EQ(score(bucket), ranks[bucket]) << "LRU forgets nothing";
      }
    }
  }
}

TEST_F(CacheLoaderTest, LruUsesLongAgoAreEqualButNotNone) {
  Make(CachePolicy::kLru, 10);
  for (std::uint32_t bucket = 0; bucket < 5; ++bucket) score(bucket) = 1 + bucket;
  EXPECT_EQ(Load(1'000'000).size(), 5u);
  for (std::uint32_t bucket = 100; bucket < 107; ++bucket) score(bucket) = 999'990;
  const std::set<std::uint32_t> cached = Load(1'000'001);
  EXPECT_EQ(cached.size(), 10u);
  for (std::uint32_t bucket = 100; bucket < 107; ++bucket) EXPECT_TRUE(cached.contains(bucket));
}

TEST_F(CacheLoaderTest, LruUsesByBatchesThatBeganAfterTheLoadingAreTheLast) {
  Make(CachePolicy::kLru, 2);
  score(1) = 90;
  score(2) = 99;
  score(3) = 102;
  score(4) = 103;
  EXPECT_EQ(Load(100), (std::set<std::uint32_t>{3, 4}));
}

TEST_F(CacheLoaderTest, RandomChoosesAllAlikeAndOthersEachTime) {
  constexpr std::uint32_t kFrames = 96;  // a quarter
  constexpr int kLoads = 400;
  Make(CachePolicy::kRandom, kFrames);
  std::map<std::uint32_t, int> times;
  std::set<std::uint32_t> last;
  std::size_t kept = 0;
  for (int load = 0; load < kLoads; ++load) {
    const std::set<std::uint32_t> cached = Load();
    EXPECT_EQ(cached.size(), kFrames);
    EXPECT_NE(cached, last);
    for (const std::uint32_t bucket : cached) {
      ++times[bucket];
      kept += last.contains(bucket);
    }
    last = cached;
  }
  // The choice depends on the loading's number alone, but for ties. Binomial: mean 100, standard
  // deviation 8.7; a quarter of 96 stays.
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    EXPECT_GT(times[bucket], 100 - 6 * 9) << bucket;
    EXPECT_LT(times[bucket], 100 + 6 * 9) << bucket;
  }
  EXPECT_NEAR(static_cast<double>(kept) / (kLoads - 1), 24, 3);
  Make(CachePolicy::kRandom, kBuckets);
  EXPECT_EQ(Load().size(), kBuckets);
}

}  // namespace
}  // namespace gpm
