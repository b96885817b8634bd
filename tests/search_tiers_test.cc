#include "engine/search_tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "tests/test_util.h"

/// What a GPU asks of a search index, on the host, against a plain look at all items.
namespace gpm {
namespace {

constexpr std::uint32_t kWide = 0;  // attributes: of 8 bytes, and of 4
constexpr std::uint32_t kNarrow = 1;
constexpr std::uint32_t kWords = 2;

using Key = std::array<std::uint64_t, kWords>;  // as a table has it
using Numbers = std::array<std::uint64_t, 2>;
using Items = std::map<Key, Numbers>;

std::string BytesOf(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), sizeof key};
}

/// A tier, and what it is a view of.
struct Tier {
  Tier(const Items& items, const AttributePairs& pairs) {
    std::map<std::string, std::pair<Key, Numbers>> by_bytes;
    for (const auto& [key, numbers] : items) by_bytes[BytesOf(key)] = {key, numbers};
    for (const auto& [bytes, item] : by_bytes) {
      for (const std::uint64_t word : item.first) keys.push_back(OrderedWord(word));
      wide.push_back(item.second[kWide]);
      narrow.push_back(static_cast<std::uint32_t>(item.second[kNarrow]));
    }
    view.rows = static_cast<std::uint32_t>(wide.size());
    dead.resize(view.rows / 32 + 1);
    view.keys = keys.data();
    view.dead = dead.data();
    view.columns[kWide] = {wide.data(), nullptr, Order(kWide, pairs)};
    view.columns[kNarrow] = {nullptr, narrow.data(), Order(kNarrow, pairs)};
  }
  std::uint64_t NumberOf(std::uint32_t attribute, std::uint32_t row) const {
    return attribute == kWide ? wide[row] : narrow[row];
  }
  /// As the GPU sorts: by the partner's numbers first.
  const std::uint32_t* Order(std::uint32_t attribute, const AttributePairs& pairs) {
    std::vector<std::uint32_t>& order = orders[attribute];
    order.resize(view.rows);
    std::iota(order.begin(), order.end(), 0u);
    for (const std::uint32_t by : {pairs.PartnerOf(attribute), attribute}) {
      if (by >= kMaxAttributes) continue;
      std::stable_sort(order.begin(), order.end(), [&](std::uint32_t x, std::uint32_t y) {
        return NumberOf(by, x) < NumberOf(by, y);
      });
    }
    return order.data();
  }

  std::vector<std::uint64_t> keys, wide;
  std::vector<std::uint32_t> narrow, dead;
  std::vector<std::uint32_t> orders[2];
  SearchTier view;
};

/// As a tile of the GPU searches.
struct EightLanes {
  static constexpr std::uint32_t kLanes = 8;
  template <class Test>
  std::uint32_t Count(const Test& test) const {
    std::uint32_t count = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) count += test(lane) ? 1 : 0;
    return count;
  }
};

class SearchTiersTest : public testing::Test {
 protected:
  std::uint64_t Random(std::uint64_t below) { return random_() % below; }
  Key RandomKey() { return {Random(3) << 56 | Random(40), Random(2) * (random_() & 0xFF00FF)}; }
  Items RandomItems(std::uint64_t count) {
    Items items;
    for (std::uint64_t i = 0; i < count; ++i) items[RandomKey()] = {Random(30), Random(5)};
    return items;
  }

  std::mt19937_64 random_{test::TestSeed()};
};

TEST_F(SearchTiersTest, OrderedWordsHaveTheOrderOfBytes) {
  EXPECT_EQ(OrderedWord(0x0102030405060708), 0x0807060504030201u);
  for (int i = 0; i < 1000; ++i) {
    const Key x = RandomKey();
    const Key y = RandomKey();
    Key ordered_x;
    Key ordered_y;
    std::transform(x.begin(), x.end(), ordered_x.begin(), OrderedWord);
    std::transform(y.begin(), y.end(), ordered_y.begin(), OrderedWord);
    const int order = CompareOrdered(ordered_x.data(), ordered_y.data(), kWords);
    const int right = BytesOf(x).compare(BytesOf(y));
    EXPECT_EQ(order < 0, right < 0);
    EXPECT_EQ(order == 0, right == 0);
    EXPECT_EQ(OrderedWord(ordered_x[0]), x[0]);
  }
}

TEST_F(SearchTiersTest, LanesFindThePointThatOneFinds) {
  for (std::uint32_t count = 0; count < 300; ++count) {
    for (std::uint32_t point = 0; point <= count; ++point) {
      std::uint32_t steps = 0;
      const auto is_before = [&](std::uint32_t i) {
        EXPECT_LT(i, count);
        ++steps;
        return i < point;
      };
      ASSERT_EQ(PartitionPoint(count, is_before), point) << count;
      EXPECT_LE(steps, static_cast<std::uint32_t>(std::bit_width(count)));
      steps = 0;
      ASSERT_EQ(PartitionPoint(count, is_before, EightLanes{}), point) << count;
      EXPECT_LE(steps, count < 9 ? 8u : count < 81 ? 16u : 24u);
    }
  }
}

/// Tiers of random items, and what is to be found in them.
class RandomTiers {
 public:
  /// What has changed since the base was made is dead there, and, if it is there still, in the
  /// delta.
  RandomTiers(Items items, const Items& changes, const AttributePairs& pairs,
              const std::function<bool()>& stays)
      : base_(items, pairs) {
    Items added;
    for (const auto& [key, numbers] : changes) {
      Key ordered;
      std::transform(key.begin(), key.end(), ordered.begin(), OrderedWord);
      const std::uint32_t row = base_.view.RowOf(ordered.data(), kWords);
      EXPECT_EQ(row < base_.view.rows, items.count(key) == 1);
      if (row < base_.view.rows) base_.dead[row / 32] |= 1u << (row % 32);
      items.erase(key);
      if (stays()) added[key] = items[key] = numbers;
    }
    items_ = std::move(items);
    delta_.emplace(added, pairs);
    places_.resize(delta_->view.rows);
    for (std::uint32_t d = 0; d < delta_->view.rows; ++d) {
      places_[d] = base_.view.RowsBefore(delta_->keys.data() + d * kWords, kWords);
    }
    view_ = {kWords, base_.view, delta_->view, places_.data(), pairs};
  }
  const SearchTiers& view() const { return view_; }
  /// Partners are indexed no more, for all that is known.
  void LosePartners() {
    for (const std::uint32_t attribute : {kWide, kNarrow}) {
      if (view_.partners.Has(attribute)) view_.partners.Set(attribute, AttributePairs::kLost);
    }
  }

  /// Rows of a tier, dead ones too, that meet all conditions.
  static std::uint64_t Meeting(const Tier& tier, const TierQueries& queries) {
    std::uint64_t rows = 0;
    for (std::uint32_t row = 0; row < tier.view.rows; ++row) {
      rows += Meets(queries, {tier.NumberOf(kWide, row), tier.NumberOf(kNarrow, row)}) ? 1 : 0;
    }
    return rows;
  }
  std::uint64_t RowsMeeting(const TierQueries& queries) const {
    return Meeting(base_, queries) + Meeting(*delta_, queries);
  }
  /// What the candidates have that matches is what a plain look finds.
  void Expect(const TierQueries& queries, const TierCandidates& candidates) const {
    std::set<std::uint32_t> found;  // places
    std::uint32_t last = 0;
    for (std::uint64_t i = 0; i < candidates.count(); ++i) {
      const std::uint32_t row = view_.CandidateAt(candidates, i);
      if (candidates.ordered && i > 0 && i != candidates.base_count) {
        EXPECT_LT(view_.PlaceOf(last), view_.PlaceOf(row));
      }
      last = row;
      if (view_.IsMatch(queries, 0, row)) {
        EXPECT_TRUE(found.insert(view_.PlaceOf(row)).second);
      }
    }
    std::set<std::string> right;
    for (const auto& [key, numbers] : items_) {
      if (Meets(queries, numbers)) right.insert(BytesOf(key));
    }
    ASSERT_EQ(found.size(), right.size());
    auto key = right.begin();
    for (const std::uint32_t place : found) {
      const std::uint64_t* const words = view_.KeyOf(view_.RowAt(place));
      ASSERT_EQ(BytesOf({OrderedWord(words[0]), OrderedWord(words[1])}), *key++);
    }
  }

 private:
  static bool Meets(const TierQueries& queries, const Numbers& numbers) {
    const std::uint64_t* bounds = queries.bounds;
    for (std::uint32_t c = 0; c < queries.conditions; ++c, bounds += 2) {
      const std::uint64_t number = numbers[queries.attributes[c]];
      if (number < bounds[0] || number > bounds[1]) return false;
    }
    return true;
  }

  Items items_;
  Tier base_;
  std::optional<Tier> delta_;
  std::vector<std::uint32_t> places_;
  SearchTiers view_;
};

void ExpectSame(const TierCandidates& x, const TierCandidates& y) {
  EXPECT_EQ(x.attribute, y.attribute);
  EXPECT_EQ(x.base_first, y.base_first);
  EXPECT_EQ(x.base_count, y.base_count);
  EXPECT_EQ(x.delta_first, y.delta_first);
  EXPECT_EQ(x.delta_count, y.delta_count);
  EXPECT_EQ(x.ordered, y.ordered);
}

TEST_F(SearchTiersTest, FindsWhatAPlainLookDoes) {
  for (int round = 0; round < 400; ++round) {
    AttributePairs pairs;
    if (Random(2) == 0) pairs.Set(kWide, kNarrow);
    if (Random(2) == 0) pairs.Set(kNarrow, kWide);
    const Items items = RandomItems(Random(300));
    RandomTiers random(items, RandomItems(round % 3 == 0 ? 0 : Random(120)), pairs,
                       [&] { return Random(3) > 0; });
    if (Random(4) == 0) random.LosePartners();
    const SearchTiers& tiers = random.view();
    std::set<std::uint32_t> all_places;
    for (std::uint32_t row = 0; row < tiers.rows(); ++row) {
      EXPECT_EQ(tiers.RowAt(tiers.PlaceOf(row)), row);
      all_places.insert(tiers.PlaceOf(row));
    }
    EXPECT_EQ(all_places.size(), tiers.rows());

    for (int q = 0; q < 30; ++q) {
      std::vector<std::uint64_t> bounds;
      TierQueries queries;
      bool one_of_pair = false;  // wants a number of an attribute whose partner it has a range of
      for (const std::uint32_t attribute : {kWide, kNarrow, Random(4) == 0 ? kWide : kNarrow}) {
        if (Random(3) == 0) continue;
        queries.attributes[queries.conditions++] = attribute;
        const std::uint64_t least = Random(attribute == kWide ? 31 : 6);
        const std::uint64_t kinds[] = {least, least + Random(4), ~std::uint64_t{0},
                                       Random(least + 1), least};
        bounds.insert(bounds.end(), {least, kinds[Random(5)]});
      }
      if (Random(2) == 0) {  // the other way round
        for (std::uint32_t c = 0; c < queries.conditions; ++c) {
          queries.attributes[c] = kWide + kNarrow - queries.attributes[c];
        }
      }
      queries.bounds = bounds.data();
      tiers.FindPairs(&queries);
      for (std::uint32_t p = 0; p < queries.pairs; ++p) {
        const auto [first, partner] = queries.pair[p];
        EXPECT_EQ(tiers.partners.PartnerOf(queries.attributes[first]), queries.attributes[partner]);
        one_of_pair |= bounds[2 * first] == bounds[2 * first + 1];
      }
      const TierCandidates alone = tiers.CandidatesOf<false>(queries, 0);
      ExpectSame(alone, tiers.CandidatesOf<false>(queries, 0, EightLanes{}));
      random.Expect(queries, alone);
      const TierCandidates candidates = tiers.CandidatesOf<true>(queries, 0);
      ExpectSame(candidates, tiers.CandidatesOf<true>(queries, 0, EightLanes{}));
      random.Expect(queries, candidates);
      if (HasFatalFailure()) return;
      EXPECT_LE(candidates.count(), std::max<std::uint64_t>(1, alone.count()));
      if (!one_of_pair) ExpectSame(candidates, alone);
      if (one_of_pair && queries.conditions == 2) {
        EXPECT_EQ(candidates.count(), random.RowsMeeting(queries));
      }
    }
  }
}

/// Numbers at both ends of what there are, in attribute and partner.
TEST_F(SearchTiersTest, PairsOfTheLeastAndMostNumbers) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  constexpr std::uint64_t kMostNarrow = 0xFFFF'FFFF;
  AttributePairs pairs;
  pairs.Set(kWide, kNarrow);
  pairs.Set(kNarrow, kWide);
  Items items;
  for (std::uint64_t i = 0; i < 360; ++i) {
    static constexpr std::uint64_t kWides[] = {0,         1,    kMostNarrow, kMostNarrow + 1,
                                               kMost - 1, kMost};
    static constexpr std::uint64_t kNarrows[] = {0, 1, kMostNarrow - 1, kMostNarrow};
    items[{i, 0}] = {kWides[i % 6], kNarrows[i / 6 % 4]};
  }
  const RandomTiers all(items, RandomItems(30), pairs, [&] { return Random(2) > 0; });
  for (const std::uint64_t number : {std::uint64_t{0}, kMostNarrow, kMostNarrow + 1, kMost}) {
    for (const std::uint64_t least : {std::uint64_t{0}, std::uint64_t{1}, kMostNarrow, kMost}) {
      for (const std::uint64_t most : {std::uint64_t{0}, kMostNarrow - 1, kMostNarrow, kMost}) {
        for (const std::uint32_t first : {kWide, kNarrow}) {
          const std::uint64_t bounds[] = {least, most, number, number};
          TierQueries queries{2, {kWide + kNarrow - first, first}, bounds};
          all.view().FindPairs(&queries);
          ASSERT_EQ(queries.pairs, 2u);
          const TierCandidates candidates = all.view().CandidatesOf<true>(queries, 0);
          ExpectSame(candidates, all.view().CandidatesOf<true>(queries, 0, EightLanes{}));
          EXPECT_EQ(candidates.count(), all.RowsMeeting(queries));
          all.Expect(queries, candidates);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpm
