#ifndef GPM_TESTS_BOUNDED_MODEL_H_
#define GPM_TESTS_BOUNDED_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/item_ranks.h"
#include "tests/test_util.h"

namespace gpm::test {

inline constexpr std::uint32_t kValueSize = 40;
inline constexpr std::uint32_t kScoreAt = 8;

/// A value with a tag, and a score of 4 bytes.
inline std::string ScoredValue(std::uint64_t tag, std::uint32_t score) {
  std::string value = MakeValue(tag, kValueSize);
  std::memcpy(value.data() + kScoreAt, &score, sizeof score);
  return value;
}

/// The policies, written down once more: by a search for the lowest item at each eviction.
class BoundedModel {
 public:
  struct Item {
    std::string value;
    std::uint64_t born = 0;
    std::uint64_t used = 0;
    std::uint64_t uses = 0;
  };
  using Row = std::pair<std::string, std::string>;

  explicit BoundedModel(const Capacity& capacity) : capacity_(capacity) {}

  /// Evicts what a batch wants. @param room rows that may be evicted at most
  std::vector<Row> MakeWay(const TestBatch& batch, std::uint64_t room = ~0ull) {
    std::set<std::string> there;
    std::set<std::string> missing;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::string key = AsString(batch.key(i));
      const Op op = batch.op(i);
      const bool adds = op == Op::kInsert || op == Op::kUpsert || op == Op::kFindOrInsert;
      if (items_.contains(key)) {
        there.insert(key);
      } else if (adds) {
        missing.insert(key);
      }
    }
    std::vector<Row> evicted;
    if (missing.empty() || items_.size() + missing.size() <= capacity_.items) return evicted;
    const std::uint64_t needed = items_.size() + missing.size() - capacity_.items;
    std::vector<std::pair<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>, std::string>>
        order;
    for (const auto& [key, item] : items_) {
      if (there.contains(key)) continue;
      order.push_back({RankOf(key, item), key});
    }
    std::sort(order.begin(), order.end());
    const std::uint64_t count =
        std::min<std::uint64_t>({needed + capacity_.items / 16, room, order.size()});
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto item = items_.find(order[i].second);
      evicted.emplace_back(item->first, item->second.value);
      items_.erase(item);
    }
    for (auto& [key, item] : items_) item.uses /= 2;
    return evicted;
  }

  /// What the operations of a batch do, with the results that they had.
  void Apply(const TestBatch& batch) {
    ++batches_;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::string key = AsString(batch.key(i));
      const auto found = items_.find(key);
      const bool present = found != items_.end();
      const Op op = batch.op(i);
      const bool adds = op == Op::kInsert || op == Op::kUpsert || op == Op::kFindOrInsert;
      if (op == Op::kErase) {
        EXPECT_EQ(batch.result(i), present ? Result::kOk : Result::kNotFound);
        if (present) items_.erase(found);
        continue;
      }
      if (!present && !adds) {
        EXPECT_EQ(batch.result(i), Result::kNotFound);
        continue;
      }
      Item& item = items_[key];
      if (!present || (op == Op::kUpsert && item.born == 0)) item.born = batches_;
      item.used = batches_;
      ++item.uses;
      if (!present || op == Op::kUpsert || op == Op::kUpdate) item.value = AsString(batch.value(i));
      if (op == Op::kFind) {
        EXPECT_EQ(AsString(batch.found(i)), item.value);
      }
    }
  }

  /// As after a reopening.
  void ForgetUses() {
    for (auto& [key, item] : items_) item.born = item.used = item.uses = 0;
  }
  std::map<std::string, Item>& items() { return items_; }
  Model contents() const {
    Model model;
    for (const auto& [key, item] : items_) model.emplace(key, item.value);
    return model;
  }

 private:
  std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> RankOf(const std::string& key,
                                                                 const Item& item) const {
    const std::uint64_t id = IdOfKey(reinterpret_cast<const std::byte*>(key.data()),
                                     static_cast<std::uint32_t>(key.size()));
    switch (capacity_.policy) {
      case EvictionPolicy::kLru:
        return {item.used, 0, id};
      case EvictionPolicy::kLfu:
        return {item.uses, item.used, id};
      case EvictionPolicy::kOldest:
        return {item.born, 0, id};
      case EvictionPolicy::kScore:
        break;
    }
    std::uint32_t score = 0;
    std::memcpy(&score, item.value.data() + kScoreAt, sizeof score);
    return {score, 0, id};
  }

  const Capacity capacity_;
  std::uint64_t batches_ = 0;
  std::map<std::string, Item> items_;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_BOUNDED_MODEL_H_
