// What chooses the items that go first, without a store around it.

#include "engine/victims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/item_ranks.h"
#include "engine/word_map.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

TEST(WordMapTest, IsAMap) {
  WordMap map;
  std::unordered_map<std::uint64_t, std::uint64_t> model;
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    // Few homes, so that ids stand one behind the other.
    const std::uint64_t id = (random() % 4000 + 1) << (random() % 2 == 0 ? 14 : 40);
    switch (random() % 3) {
      case 0:
        map.At(id) = model[id] = random();
        break;
      case 1:
        map.Erase(id);
        model.erase(id);
        break;
      default: {
        const std::uint64_t* const word = std::as_const(map).Find(id);
        const auto expected = model.find(id);
        ASSERT_EQ(word != nullptr, expected != model.end());
        if (word != nullptr) {
          ASSERT_EQ(*word, expected->second);
        }
      }
    }
    ASSERT_EQ(map.size(), model.size());
  }
  map.ForEach([&](std::uint64_t id, std::uint64_t word) { ASSERT_EQ(model.at(id), word); });
}

/// Chosen on several threads, and taken some at a time, while ranks change and some are kept.
TEST(VictimsTest, GoInTheirOrder) {
  constexpr std::uint64_t kItems = 200'000;  // more than one thread looks at at a time
  const std::uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  ThreadPool threads(3);
  for (const std::uint64_t ranks_there : {std::uint64_t{1}, std::uint64_t{50}, ~std::uint64_t{0}}) {
    std::vector<std::uint64_t> keys(kItems), ranks(kItems);
    std::map<std::uint64_t, std::uint64_t> rank_now;  // by id
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> order;
    for (std::uint64_t i = 0; i < kItems; ++i) {
      keys[i] = random();
      ranks[i] = random() % ranks_there;
      const std::uint64_t id = IdOfKey(reinterpret_cast<const std::byte*>(&keys[i]), 8);
      rank_now[id] = ranks[i];
      order.emplace_back(ranks[i], id, keys[i]);
    }
    std::sort(order.begin(), order.end());
    Victims victims(8, threads);
    victims.Choose({reinterpret_cast<const std::byte*>(keys.data()), 8, ranks}, kItems / 2);
    const auto ranks_of = [&](const std::vector<std::uint64_t>& ids) {
      std::vector<std::uint64_t> now;
      for (const std::uint64_t id : ids) now.push_back(rank_now.at(id));
      return now;
    };
    std::set<std::uint64_t> taken_before;
    for (int turn = 0; turn < 20; ++turn) {
      WordMap kept;
      std::vector<std::uint64_t> expected;
      const std::uint64_t wanted = random() % 3000;
      for (std::uint64_t i = 0; expected.size() < wanted; ++i) {
        const auto& [rank, id, key] = order[i];
        if (taken_before.contains(key) || rank_now.at(id) != rank) continue;
        if (random() % 50 == 0) {
          kept.At(id) = 1;
        } else if (random() % 50 == 0) {
          rank_now[id] = rank + 1;
        } else {
          expected.push_back(key);
        }
      }
      const std::vector<std::byte> taken = victims.Take(wanted, kept, ranks_of);
      std::vector<std::uint64_t> got(taken.size() / 8);
      if (!got.empty()) std::memcpy(got.data(), taken.data(), taken.size());
      ASSERT_EQ(got, expected) << "turn " << turn << ", seed " << seed;
      taken_before.insert(got.begin(), got.end());
    }
    // What is left of those that were chosen, and no more.
    ASSERT_FALSE(victims.empty());
    const std::uint64_t last_rank = std::get<0>(order[kItems / 2 - 1]);
    const auto left = std::count_if(order.begin(), order.end(), [&](const auto& item) {
      const auto& [rank, id, key] = item;
      return rank <= last_rank && rank_now.at(id) == rank && !taken_before.contains(key);
    });
    EXPECT_EQ(victims.Take(kItems, {}, ranks_of).size() / 8, left);
    EXPECT_TRUE(victims.empty());
    EXPECT_TRUE(victims.Take(1, {}, ranks_of).empty());
  }
}

}  // namespace
}  // namespace gpm::test
