#include "engine/search_tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>
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
  explicit Tier(const Items& items) {
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
    view.columns[kWide] = {wide.data(), nullptr, Order(wide, &orders[kWide])};
    view.columns[kNarrow] = {nullptr, narrow.data(), Order(narrow, &orders[kNarrow])};
  }
  template <class Number>
  static const std::uint32_t* Order(const std::vector<Number>& numbers,
                                    std::vector<std::uint32_t>* order) {
    order->resize(numbers.size());
    std::iota(order->begin(), order->end(), 0u);
    std::stable_sort(order->begin(), order->end(),
                     [&](std::uint32_t x, std::uint32_t y) { return numbers[x] < numbers[y]; });
    return order->data();
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

TEST_F(SearchTiersTest, FindsWhatAPlainLookDoes) {
  for (int round = 0; round < 200; ++round) {
    // What has changed since the base was made is dead there, and, if it is there still, in the
    // delta.
    Items items = RandomItems(Random(300));
    Tier base(items);
    const Items changes = RandomItems(round % 3 == 0 ? 0 : Random(120));
    Items added;
    for (const auto& [key, numbers] : changes) {
      Key ordered;
      std::transform(key.begin(), key.end(), ordered.begin(), OrderedWord);
      const std::uint32_t row = base.view.RowOf(ordered.data(), kWords);
      EXPECT_EQ(row < base.view.rows, items.count(key) == 1);
      if (row < base.view.rows) base.dead[row / 32] |= 1u << (row % 32);
      items.erase(key);
      if (Random(3) > 0) added[key] = items[key] = numbers;
    }
    const Tier delta(added);
    std::vector<std::uint32_t> places(delta.view.rows);
    for (std::uint32_t d = 0; d < delta.view.rows; ++d) {
      places[d] = base.view.RowsBefore(delta.keys.data() + d * kWords, kWords);
    }
    const SearchTiers tiers{kWords, base.view, delta.view, places.data()};

    std::set<std::uint32_t> all_places;
    for (std::uint32_t row = 0; row < tiers.rows(); ++row) {
      EXPECT_EQ(tiers.RowAt(tiers.PlaceOf(row)), row);
      all_places.insert(tiers.PlaceOf(row));
    }
    EXPECT_EQ(all_places.size(), tiers.rows());

    for (int q = 0; q < 30; ++q) {
      std::vector<std::uint64_t> bounds;
      TierQueries queries;
      for (const std::uint32_t attribute : {kWide, kNarrow}) {
        if (Random(3) == 0) continue;
        queries.attributes[queries.conditions++] = attribute;
        const std::uint64_t least = Random(attribute == kWide ? 31 : 6);
        const std::uint64_t kinds[] = {least, least + Random(4), ~std::uint64_t{0},
                                       Random(least + 1)};
        bounds.insert(bounds.end(), {least, kinds[Random(4)]});
      }
      queries.bounds = bounds.data();
      const TierCandidates candidates = tiers.CandidatesOf(queries, 0);
      const TierCandidates by_lanes = tiers.CandidatesOf(queries, 0, EightLanes{});
      EXPECT_EQ(candidates.attribute, by_lanes.attribute);
      EXPECT_EQ(candidates.count(), by_lanes.count());
      EXPECT_EQ(candidates.base_first, by_lanes.base_first);
      EXPECT_EQ(candidates.delta_first, by_lanes.delta_first);
      std::set<std::uint32_t> found;  // places
      std::uint32_t last = 0;
      for (std::uint64_t i = 0; i < candidates.count(); ++i) {
        const std::uint32_t row = tiers.CandidateAt(candidates, i);
        if (candidates.ordered && i > 0 && i != candidates.base_count) {
          EXPECT_LT(tiers.PlaceOf(last), tiers.PlaceOf(row));
        }
        last = row;
        if (tiers.IsMatch(queries, 0, row)) {
          EXPECT_TRUE(found.insert(tiers.PlaceOf(row)).second);
        }
      }
      std::set<std::string> right;
      for (const auto& [key, numbers] : items) {
        bool met = true;
        for (std::uint32_t c = 0; c < queries.conditions; ++c) {
          const std::uint64_t number = numbers[queries.attributes[c]];
          met = met && bounds[2 * c] <= number && number <= bounds[2 * c + 1];
        }
        if (met) right.insert(BytesOf(key));
      }
      ASSERT_EQ(found.size(), right.size());
      auto key = right.begin();
      for (const std::uint32_t place : found) {
        const std::uint64_t* const words = tiers.KeyOf(tiers.RowAt(place));
        ASSERT_EQ(BytesOf({OrderedWord(words[0]), OrderedWord(words[1])}), *key++);
      }
    }
  }
}

}  // namespace
}  // namespace gpm
