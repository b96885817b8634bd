// What a thread sees of a directory and of the cache beside it, and what stays of both when the
// table gets a level.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "table/media/direct.h"
#include "table/probe.h"
#include "tests/cache_shapes.h"

namespace gpm {
namespace {

using test::CountedArray;
using test::Defaults;
using test::Fraction;
using test::TableOf;

/// A table of two levels that is only looked up in its directory. The parameter is the size of a
/// key.
class DirectorySearchTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  using Probing = TableProbe<ThreadGroup, DirectMedia>;
  static constexpr std::uint32_t kValueSize = 16;
  static constexpr std::uint64_t kCell = 5;

  DirectorySearchTest() {
    memory_.Reserve(ShapeCache(Fraction(1.0), Defaults(), table_), CachePolicy::kTinyLfu);
    accelerators_ = memory_.View();
    const CacheView& cache = accelerators_.cache;
    for (std::uint32_t i = 0; i < cache.size; ++i) {  // each bucket gets its frame
      cache.bucket_of[i] = i;
      cache.frame_of[i] = i + 1;
      for (std::uint32_t s = 0; s < table_.slots; ++s) {
        *cache.TagAt(i * table_.slots + s) = CacheView::kNone;
      }
    }
  }

  Probing probing() const { return Probing(table_, accelerators_, group_, media_); }
  /// Of slot s of candidate bucket c.
  std::uint32_t Position(std::uint32_t c, std::uint32_t s) const { return c * table_.slots + s; }
  std::uint32_t IndexOf(const Candidates& candidates, std::uint32_t c) const {
    return probing().directory().IndexOf(candidates, c);
  }

  const TableView table_ = TableOf(GetParam(), kValueSize, 4);
  const ThreadGroup group_{};
  const DirectMedia media_{Persist{}};
  CacheMemory<CountedArray> memory_;
  Accelerators accelerators_;
  const std::uint64_t key_[4] = {1000, 1, 2, 3};
};

INSTANTIATE_TEST_SUITE_P(KeySizes, DirectorySearchTest, ::testing::Values(8, 32),
                         ::testing::PrintToStringParamName());

TEST_P(DirectorySearchTest, FindsAKeyOfAnOlderLevelBehindOneThatLooksLikeIt) {
  const Candidates candidates = probing().Locate(key_);
  ASSERT_EQ(table_.candidate_buckets(), 4u);
  const std::uint32_t all = ~0u;
  std::uint32_t empty = 0;
  EXPECT_FALSE(probing().Find(candidates, key_, 0, &empty).present);
  EXPECT_EQ(empty, all) << "those of both levels";

  const std::uint64_t other[] = {1001, 1, 2, 3};  // with the same fingerprint, in the newest level
  const std::uint32_t looks_like_it = Position(1, 2);
  probing().directory().Inserted(candidates, looks_like_it, other, 6 * table_.cell_bytes);
  EXPECT_FALSE(probing().Find(candidates, key_, 0, &empty).present);
  EXPECT_EQ(empty, all & ~(1u << looks_like_it));

  const std::uint32_t old = Position(2, 3);
  probing().directory().Inserted(candidates, old, key_, kCell * table_.cell_bytes);
  Outcome outcome = probing().Find(candidates, key_, 0);
  EXPECT_TRUE(outcome.present);
  EXPECT_EQ(outcome.position, old);
  EXPECT_EQ(outcome.reference, kCell * table_.cell_bytes);

  probing().directory().Cleared(IndexOf(candidates, 2), 3);
  const std::uint32_t newest = Position(0, 7);
  probing().directory().Inserted(candidates, newest, key_, 7 * table_.cell_bytes);
  outcome = probing().Find(candidates, key_, 0);
  EXPECT_TRUE(outcome.present);
  EXPECT_EQ(outcome.position, newest);
  const std::uint32_t taken = 1u << looks_like_it | 1u << newest;
  const Probe whole = probing().directory().Search(candidates, key_, true);
  EXPECT_EQ(whole.match, 1u << newest);
  EXPECT_EQ(whole.empty, all & ~taken) << "where the item can be moved to";
}

TEST_P(DirectorySearchTest, FindsTheValueWithTheKeyWhereItsTagSaysSo) {
  const Candidates candidates = probing().Locate(key_);
  const std::uint32_t position = Position(3, 4);
  const std::uint64_t reference = kCell * table_.cell_bytes;
  probing().directory().Inserted(candidates, position, key_, reference);
  std::uint32_t& tag =
      *accelerators_.cache.TagAt(std::uint64_t{IndexOf(candidates, 3)} * table_.slots + 4);
  const auto find = [&] {
    Probing::CachedValue cached = probing().BeginFind();
    EXPECT_TRUE(probing().Find(candidates, key_, 0, nullptr, &cached).present);
    return cached;
  };
  std::vector<std::byte> row(kValueSize);
  EXPECT_EQ(find().bytes, nullptr);
  EXPECT_FALSE(probing().ReadCached(find(), row.data()));

  const std::vector<std::byte> value(kValueSize, std::byte{9});
  const Outcome outcome = probing().Find(candidates, key_, 0);
  probing().Keep(candidates, outcome, value.data());
  EXPECT_EQ(tag, kCell);
  const Probing::CachedValue cached = find();
  ASSERT_NE(cached.bytes, nullptr);
  EXPECT_TRUE(probing().ReadCached(cached, row.data()));
  EXPECT_EQ(row, value);

  ++*accelerators_.cache.fills;
  EXPECT_FALSE(probing().ReadCached(cached, row.data())) << "it may be another frame's";
  EXPECT_TRUE(probing().ReadCached(find(), row.data()));
  tag = CacheView::kBusy;
  EXPECT_FALSE(probing().ReadCached(cached, row.data())) << "it is being replaced";
  EXPECT_EQ(find().bytes, nullptr);
  tag = kCell;
  accelerators_.cache.size = 0;
  EXPECT_EQ(find().bytes, nullptr) << "there is no cache";
}

TEST_P(DirectorySearchTest, EntriesAndTagsStayWithTheirBucketsWhenALevelIsAdded) {
  // The oldest level, which comes first behind the reserved one, goes; a new one comes last.
  const TableView next_table = TableOf(GetParam(), kValueSize, 5);
  const std::uint32_t drained = static_cast<std::uint32_t>(table_.Buckets(1));
  const std::uint32_t before = memory_.shape.buckets;
  const auto value_of = [](std::uint32_t slot) { return static_cast<std::byte>(slot * 7); };
  const Accelerators old = accelerators_;
  for (std::uint32_t slot = 0; slot < before * table_.slots; ++slot) {
    old.directory.fingerprints[slot] = static_cast<std::uint16_t>(slot + 2);
    *old.directory.CellAt(slot) = 100 + slot;
    *old.directory.KeyAt(slot) = 5000 + slot;
    *old.cache.TagAt(slot) = slot % 3 == 0 ? CacheView::kNone : 100 + slot;
    std::fill_n(old.cache.values + std::uint64_t{slot} * old.cache.value_stride, kValueSize,
                value_of(slot));
  }
  const auto copy = [](auto* to, const auto* from, std::uint64_t count) {
    std::copy_n(from, count, to);
  };
  const auto fill = [](auto* to, int byte, std::uint64_t count) {
    std::memset(to, byte, count * sizeof *to);
  };
  CacheMemory<CountedArray> next;
  const CacheShape shape = ShapeCache(Fraction(1.0), Defaults(), next_table);
  ASSERT_TRUE(memory_.Precedes(shape));
  ASSERT_TRUE(memory_.HasFramesFor(shape));
  next.ReserveDirectory(shape);
  next.ReserveDrained(drained);
  next.TakeOver(memory_, drained, copy, fill);
  next.TakeOverCache(&memory_, drained, copy, fill);
  const Accelerators now = next.View();
  for (std::uint32_t frame = 0; frame < before; ++frame) KeepFrame(now.cache, frame, drained);

  const std::uint32_t stay = before - drained;
  for (std::uint32_t slot = 0; slot < shape.buckets * table_.slots; ++slot) {
    const std::uint32_t bucket = slot / table_.slots;
    const bool reserved = bucket < TableView::kReservedBuckets;
    const std::uint32_t from = slot + (reserved ? 0 : drained * table_.slots);
    if (bucket >= stay) {
      ASSERT_EQ(now.directory.fingerprints[slot], DirectoryView::kEmpty);
      ASSERT_EQ(*now.cache.TagAt(slot), CacheView::kClosed) << "no frame yet";
      ASSERT_EQ(now.cache.frame_of[bucket], 0u);
      continue;
    }
    ASSERT_EQ(now.directory.fingerprints[slot], static_cast<std::uint16_t>(from + 2));
    ASSERT_EQ(*now.directory.CellAt(slot), 100 + from);
    ASSERT_EQ(*now.directory.KeyAt(slot), 5000 + from);
    ASSERT_EQ(*now.cache.TagAt(slot), from % 3 == 0 ? CacheView::kNone : 100 + from);
    const std::uint32_t frame = now.cache.frame_of[bucket] - 1;
    ASSERT_EQ(now.cache.bucket_of[frame], bucket);
    const CacheAccess<ThreadGroup, DirectMedia> access(now.cache, next_table, group_, media_);
    std::byte row[kValueSize];
    const bool has = access.Read(bucket, slot % table_.slots,
                                 std::uint64_t{100 + from} * next_table.cell_bytes, row);
    ASSERT_EQ(has, from % 3 != 0);
    ASSERT_TRUE(!has || row[5] == value_of(from));
  }
  std::uint32_t free = 0;
  for (std::uint32_t frame = 0; frame < shape.frames; ++frame) {
    free += now.cache.bucket_of[frame] == CacheView::kNoBucket ? 1 : 0;
  }
  EXPECT_EQ(free, shape.frames - stay);
}

}  // namespace
}  // namespace gpm
