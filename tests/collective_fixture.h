#ifndef GPM_TESTS_COLLECTIVE_FIXTURE_H_
#define GPM_TESTS_COLLECTIVE_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "gpmstore/exchange.h"
#include "shard/collective.h"
#include "shard/turns.h"
#include "tests/ranks.h"
#include "tests/test_util.h"

namespace gpm::test {

inline constexpr Partition kPartition{.seed = {3, 5}, .shards = 7};

/// Ranks that are threads, each with a store for what it owns.
class CollectiveFixture : public PoolTest {
 protected:
  struct Rank {
    std::unique_ptr<Exchange> exchange;
    ThreadPool threads{3};
    SplitterPool splitters{threads, 0};
    std::unique_ptr<Collective> collective;
    Store store;
    Collective::Local local = [this](const Batch& batch) { store.Apply(batch); };

    std::uint64_t Apply(const Batch& batch) { return collective->Apply(batch, local); }
  };

  void MakeRanks(std::uint32_t ranks, std::uint32_t key_size, std::uint32_t value_size,
                 std::chrono::milliseconds timeout = kExchangeTimeout) {
    ranks_.clear();
    for (std::unique_ptr<Exchange>& exchange : MakeThreadExchanges(ranks, timeout)) {
      auto rank = std::make_unique<Rank>();
      rank->exchange = std::move(exchange);
      rank->collective = std::make_unique<Collective>(*rank->exchange, kPartition, key_size,
                                                      value_size, rank->splitters);
      rank->store = Store::Create(NewPath(), {.key_size = key_size, .value_size = value_size},
                                  TestOpenOptions());
      ranks_.push_back(std::move(rank));
    }
  }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }

  std::vector<std::optional<ErrorCode>> OnAll(const std::function<void(std::uint32_t)>& action) {
    return OnAllRanks(ranks(), action, &messages_);
  }

  /// All ranks apply their part of a mixed batch, and are compared with the model.
  void ApplyAndCompare(std::vector<TestBatch>& parts, Model* model) {
    std::vector<Batch> batches;
    for (TestBatch& part : parts) batches.push_back(part.Mixed());
    const auto errors = OnAll([&](std::uint32_t i) {
      const std::uint64_t not_ok = ranks_[i]->Apply(batches[i]);
      EXPECT_EQ(not_ok, std::count_if(batches[i].results.begin(), batches[i].results.end(),
                                      [](Result result) { return result != Result::kOk; }));
    });
    for (std::uint32_t i = 0; i < ranks(); ++i) EXPECT_FALSE(errors[i]) << messages_[i];
    for (const TestBatch& part : parts) part.Compare(*model);
  }
  /// Each item is at the rank that owns its key.
  void ExpectOwned(const Model& model, std::uint32_t key_size) {
    std::uint64_t items = 0;
    for (std::uint32_t i = 0; i < ranks(); ++i) {
      ranks_[i]->store.ForEach(
          [&](std::span<const std::byte> key, std::span<const std::byte> value) {
            const std::uint32_t shard = kPartition.Of(key.data(), key_size);
            EXPECT_GE(shard, Collective::FirstShard(i, ranks(), kPartition.shards));
            EXPECT_LT(shard, Collective::FirstShard(i + 1, ranks(), kPartition.shards));
            const auto item = model.find(AsString(key));
            ASSERT_NE(item, model.end());
            EXPECT_EQ(AsString(value), item->second);
            ++items;
          });
    }
    EXPECT_EQ(items, model.size());
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::string> messages_;
};

}  // namespace gpm::test

#endif  // GPM_TESTS_COLLECTIVE_FIXTURE_H_
