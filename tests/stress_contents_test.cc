// gpmstore stress: what it says of a store's items, and of a snapshot's. That it can say no is
// shown here, one wrong item at a time; right ones pass.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/stress/contents.h"
#include "cli/stress/snapshots.h"
#include "tests/test_util.h"

namespace gpm::stress {
namespace {

using cli::Interval;
using cli::KeyLog;
using test::Bytes;

std::uint64_t OfLane(std::uint64_t lane, std::uint64_t number) {
  return IdIn(kFirstLane + lane, number);
}

bool Says(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

/// An item as an operation of this version writes it.
std::pair<Bytes, Bytes> Item(const Shape& shape, std::uint64_t id, std::uint64_t version) {
  const std::uint64_t plan = Planned(Op::kUpsert, id);
  std::pair<Bytes, Bytes> item{Bytes(shape.key_size), Bytes(shape.value_size)};
  Rows rows;
  rows.shape = shape;
  rows.n = 1;
  rows.plan = &plan;
  rows.first_version = version;
  rows.keys = item.first.data();
  rows.values = item.second.data();
  FillRows(rows);
  return item;
}

/// What a visit of these items comes to.
Contents Visit(const Shape& shape, const std::vector<std::pair<Bytes, Bytes>>& items) {
  return Visited(shape, [&](const Store::Visitor& visit) {
    for (const auto& [key, value] : items) visit(key, value);
  });
}

class VisitedTest : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, VisitedTest,
                         ::testing::Values(Shape{8, 16}, Shape{3, 100, false, 1 << 20},
                                           Shape{29, 9, true}, Shape{32, 16, false},
                                           Shape{255, 4096, true}));

TEST_P(VisitedTest, WholeItemsAreThereById) {
  const Shape shape = GetParam();
  // (Keys 0 and 1 have all bits 0 and 1.)
  const std::vector<std::uint64_t> ids = {0, 1, 2, IdIn(kWatched, 5), OfLane(1, 7)};
  std::vector<std::pair<Bytes, Bytes>> items;
  for (const std::uint64_t id : ids) items.push_back(Item(shape, id, 100 + id));
  std::reverse(items.begin(), items.end());
  const Contents contents = Visit(shape, items);
  EXPECT_EQ(contents.defect, "");
  ASSERT_EQ(contents.items.size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(contents.items[i].first, ids[i]);
    EXPECT_EQ(contents.items[i].second, TokenOf(shape.value_size, 100 + ids[i]));
  }
}

TEST_P(VisitedTest, SeesAValueOfAnotherKey) {
  const auto [key, value] = Item(GetParam(), 2, 100);
  const Contents contents = Visit(GetParam(), {{key, Item(GetParam(), 3, 100).second}});
  EXPECT_TRUE(Says(contents.defect, "shared key 2 holds what is not a whole value of it"))
      << contents.defect;
}

TEST_P(VisitedTest, SeesATornValue) {
  auto [key, value] = Item(GetParam(), IdIn(kWatched, 2), 100);
  const Bytes other = Item(GetParam(), IdIn(kWatched, 2), 101).second;
  const auto half = static_cast<std::ptrdiff_t>(value.size() / 2);
  std::copy(other.begin() + half, other.end(), value.begin() + half);
  const Contents contents = Visit(GetParam(), {{key, value}});
  EXPECT_TRUE(Says(contents.defect, "watched key 2 holds")) << contents.defect;
  EXPECT_TRUE(contents.items.empty());
}

TEST_P(VisitedTest, SeesAKeyTwice) {
  const auto item = Item(GetParam(), 2, 100);
  const auto again = Item(GetParam(), 2, 101);
  EXPECT_TRUE(Says(Visit(GetParam(), {item, item}).defect, "a visit meets shared key 2 twice"));
  EXPECT_TRUE(Says(Visit(GetParam(), {item, Item(GetParam(), 3, 7), again}).defect, "twice"));
}

/// (Of keys of 8 bytes or less each has an id.)
TEST_P(VisitedTest, SeesAKeyThatNobodyInserted) {
  for (const std::uint32_t byte : {0u, GetParam().key_size / 2, GetParam().key_size - 1}) {
    const std::uint32_t at = GetParam().id_at();
    if (byte >= at && byte < at + GetParam().id_bytes()) continue;
    auto [key, value] = Item(GetParam(), 2, 100);
    key[byte] ^= std::byte{1};
    EXPECT_TRUE(Says(Visit(GetParam(), {{key, value}}).defect, "that nobody inserted"));
  }
}

TEST(DifferenceTest, SeesWhatIsMissingTooMuchOrOther) {
  const Contents expected{{{OfLane(0, 1), 10}, {OfLane(0, 2), 20}}, ""};
  const auto difference = [&](Contents contents) { return Difference(expected, contents); };
  EXPECT_EQ(difference(expected), "");
  EXPECT_TRUE(Says(difference({{expected.items[0]}, ""}),
                   "1 items, and not 2; first difference: nothing more, and not key 2 of lane 0"));
  EXPECT_TRUE(
      Says(difference({{expected.items[1]}, ""}), "key 2 of lane 0 with 0x14, and not key 1"));
  EXPECT_TRUE(Says(difference({{expected.items[0], expected.items[1], {OfLane(0, 3), 30}}, ""}),
                   "key 3 of lane 0 with 0x1e, and not nothing more"));
  EXPECT_TRUE(Says(difference({{expected.items[0], {OfLane(0, 2), 21}}, ""}),
                   "key 2 of lane 0 with 0x15, and not key 2 of lane 0 with 0x14"));
  EXPECT_TRUE(Says(difference({{}, ""}), "0 items"));
  // What is no item, on either side.
  EXPECT_EQ(difference({expected.items, "wrong"}), "wrong");
  EXPECT_EQ(Difference({expected.items, "wrong"}, expected), "wrong");
}

/// Two lanes while a snapshot was taken: a batch of the first that had returned before one of the
/// second began.
class InstantTest : public ::testing::Test {
 protected:
  InstantTest() {
    first_.before = {{true, 1}, {}};
    first_.changes = {{0, {true, 2}}, {1, {true, 3}}};
    first_.batches = {{{10, 20}, 2}};
    second_.before = {{true, 5}};
    second_.changes = {{0, {true, 6}}};
    second_.batches = {{{30, 40}, 1}};
  }

  using Items = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  std::optional<Interval> Of(Items items, Interval taken_at = {5, 50}) {
    const KeyLog* const logs[] = {&first_, &second_};
    wrong_.clear();
    return InstantOf({std::move(items), ""}, logs, taken_at, &wrong_);
  }
  void ExpectInstant(const Items& items, std::uint64_t from, std::uint64_t to) {
    const std::optional<Interval> instant = Of(items);
    ASSERT_TRUE(instant) << wrong_;
    EXPECT_EQ(wrong_, "");
    EXPECT_EQ(instant->invoked_at, from);
    EXPECT_EQ(instant->returned_at, to);
  }
  void ExpectNone(const std::optional<Interval>& instant, const std::string& why) {
    EXPECT_FALSE(instant);
    EXPECT_TRUE(Says(wrong_, why)) << wrong_ << "\nshould say: " << why;
  }

  const Items none_ = {{OfLane(0, 0), 1}, {OfLane(1, 0), 5}};
  const Items one_ = {{OfLane(0, 0), 2}, {OfLane(0, 1), 3}, {OfLane(1, 0), 5}};
  const Items both_ = {{OfLane(0, 0), 2}, {OfLane(0, 1), 3}, {OfLane(1, 0), 6}};
  KeyLog first_, second_;
  std::string wrong_;
};

TEST_F(InstantTest, IsWhenTheLanesWereSo) {
  ExpectInstant(none_, 5, 20);
  ExpectInstant(one_, 10, 40);
  ExpectInstant(both_, 30, 50);
  // Others' keys say nothing of it.
  Items more = none_;
  more.insert(more.begin(), {{IdIn(kShared, 3), 9}, {IdIn(kWatched, 3), 9}});
  ExpectInstant(more, 5, 20);
}

TEST_F(InstantTest, SeesABatchWithoutAnEarlierOne) {
  ExpectNone(Of({{OfLane(0, 0), 1}, {OfLane(1, 0), 6}}), "lanes 0 to 1");
}

TEST_F(InstantTest, SeesHalfABatch) {
  ExpectNone(Of({{OfLane(0, 0), 2}, {OfLane(1, 0), 5}}), "of lane 0, its keys are as after none");
}

TEST_F(InstantTest, SeesALostKeyAndAValueThatNeverWas) {
  ExpectNone(Of({{OfLane(0, 0), 1}}), "of lane 1, its keys");
  ExpectNone(Of({{OfLane(0, 0), 1}, {OfLane(1, 0), 7}}), "of lane 1, its keys");
}

TEST_F(InstantTest, SeesAStateOfBeforeTheSnapshotOrAfterIt) {
  ExpectNone(Of(none_, {21, 50}), "lanes 0 to 0");
  ExpectNone(Of(both_, {5, 29}), "lanes 0 to 1");
}

TEST_F(InstantTest, SeesKeysThatNoLaneHas) {
  for (const std::uint64_t id : {OfLane(2, 0), OfLane(1, 1)}) {
    Items items = none_;
    items.push_back({id, 5});
    ExpectNone(Of(items), KeyName(id) + " is in it, which nobody inserted");
  }
}

}  // namespace
}  // namespace gpm::stress
