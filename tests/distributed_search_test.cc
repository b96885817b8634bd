// Searches, and snapshots, of a store that several ranks have open together.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpmstore/distributed_store.h"
#include "gpmstore/sharded_store.h"
#include "shard/together.h"
#include "tests/distributed_test.h"
#include "tests/searched_items.h"
#include "tests/test_util.h"

namespace gpm {
namespace {

using test::ErrorOf;
using test::ExpectSame;
using test::Numbers;
using test::SomeQueries;
using test::TestBatch;

constexpr std::uint32_t kShards = 4;

class DistributedSearchTest : public test::DistributedTest {
 protected:
  DistributedSearchTest() : DistributedTest(test::SearchedShape(13)) {}

  /// Each rank has some of the items, of a store of its own and of one alone.
  void Fill(std::uint64_t items, Store* alone = nullptr) {
    std::vector<TestBatch> parts;
    std::vector<Batch> batches;
    for (std::uint32_t i = 0; i < ranks_; ++i) {
      const std::vector<std::uint64_t> numbers =
          Numbers(1000 + items * i / ranks_, items * (i + 1) / ranks_ - items * i / ranks_);
      if (alone != nullptr) test::ApplyTo(*alone, Op::kInsert, numbers);
      parts.push_back(test::SearchedBatch(stores_[i], Op::kInsert, numbers));
    }
    for (TestBatch& part : parts) batches.push_back(part.Mixed());
    ExpectNoErrors(OnAll([&](std::uint32_t i) { EXPECT_EQ(stores_[i].Apply(batches[i]), 0u); }));
  }
  std::uint64_t Items() {
    std::uint64_t items = 0;
    for (const DistributedStore& store : stores_) items += store.Stats().items;
    return items;
  }
};

TEST_F(DistributedSearchTest, EachRankGetsWhatOneStoreGives) {
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    SCOPED_TRACE(ranks);
    ExpectNoErrors(Open(NewPath(), ranks, kShards, true));
    Store one = Store::Create(NewPath(), test::SearchedShape(13), test::TestOpenOptions());
    for (const DistributedStore& store : stores_) EXPECT_EQ(store.attributes(), one.attributes());
    Fill(2500, &one);
    const std::vector<Query> queries = SomeQueries(one.attributes());
    // Rank r asks for all queries but the first r, each in another way; the last one for none.
    const SearchOptions ways[] = {{.limit = 5, .values = true}, {.keys = false}, {}};
    std::vector<SearchResult> found(ranks);
    const auto asked_by = [&](std::uint32_t rank) {
      return std::span(queries).subspan(rank == 2 ? queries.size() : rank);
    };
    ExpectNoErrors(
        OnAll([&](std::uint32_t i) { found[i] = stores_[i].Search(asked_by(i), ways[i]); }));
    for (std::uint32_t i = 0; i < ranks; ++i)
      ExpectSame(found[i], one.Search(asked_by(i), ways[i]));
  }
}

TEST_F(DistributedSearchTest, WhatMatchesIsErasedAndChanged) {
  ExpectNoErrors(Open(NewPath(), 3, kShards, true));
  Store one = Store::Create(NewPath(), test::SearchedShape(13), test::TestOpenOptions());
  Fill(2500, &one);
  const auto next_model = [](std::span<const std::byte>, std::span<std::byte> value) {
    value[4] = static_cast<std::byte>((static_cast<unsigned>(value[4]) + 1) % 7);
  };
  const auto next_models = [&](std::span<const std::byte>, std::span<std::byte> values) {
    for (std::size_t at = 0; at < values.size(); at += test::kSearchedValueSize) {
      next_model({}, values.subspan(at, test::kSearchedValueSize));
    }
  };
  const std::vector<Query> queries = SomeQueries(one.attributes());
  const auto expect_same = [&] {
    std::vector<SearchResult> found(3);
    ExpectNoErrors(
        OnAll([&](std::uint32_t i) { found[i] = stores_[i].Search(queries, {.values = true}); }));
    for (const SearchResult& each : found) ExpectSame(each, one.Search(queries, {.values = true}));
  };
  for (const Query& query : queries) {
    std::uint64_t changed = one.UpdateWhere(query, next_model);
    ExpectNoErrors(OnAll(
        [&](std::uint32_t i) { EXPECT_EQ(stores_[i].UpdateWhere(query, next_model), changed); }));
    expect_same();
    changed = one.UpdateWhere(query, next_model);
    ExpectNoErrors(OnAll([&](std::uint32_t i) {
      EXPECT_EQ(stores_[i].UpdateRowsWhere(query, next_models), changed);
    }));
    expect_same();
    changed = one.EraseWhere(query);
    ExpectNoErrors(
        OnAll([&](std::uint32_t i) { EXPECT_EQ(stores_[i].EraseWhere(query), changed); }));
    expect_same();
  }
  EXPECT_EQ(Items(), 0u) << "one query matches all";
}

TEST_F(DistributedSearchTest, WhatOneRankCantAskChangesNothing) {
  ExpectNoErrors(Open(NewPath(), 3, kShards, true));
  Fill(300);
  const std::vector<Query> all = {{}};
  const std::vector<Query> unknown = {{{.attribute = 2}}};
  const auto rank_1_else = [&](std::uint32_t rank) { return rank == 1 ? unknown : all; };
  ExpectAll(ErrorCode::kInvalidArgument,
            OnAll([&](std::uint32_t i) { stores_[i].Search(rank_1_else(i)); }), "attribute");
  EXPECT_NE(messages_[0].find("rank 1"), std::string::npos) << messages_[0];
  ExpectAll(ErrorCode::kInvalidArgument,
            OnAll([&](std::uint32_t i) { stores_[i].EraseWhere(rank_1_else(i)[0]); }), "attribute");
  ExpectAll(ErrorCode::kInvalidArgument, OnAll([&](std::uint32_t i) {
              stores_[i].Search(all, {.keys = i == 2, .values = true});
            }),
            "with keys alone");
  // Each is right by itself.
  const std::vector<Query> session = {{{.attribute = 0, .least = 7, .most = 7}}};
  ExpectAll(ErrorCode::kInvalidArgument,
            OnAll([&](std::uint32_t i) { stores_[i].EraseWhere(i == 2 ? session[0] : all[0]); }),
            "rank 2");
  EXPECT_EQ(Items(), 300u);
  ExpectNoErrors(
      OnAll([&](std::uint32_t i) { EXPECT_EQ(stores_[i].Search(all).counts[0], 300u); }));
}

TEST_F(DistributedSearchTest, WhatAnEditorThrowsTheOthersHearOf) {
  ExpectNoErrors(Open(NewPath(), 2, kShards, true));
  Fill(300);
  const Errors errors = OnAll([&](std::uint32_t i) {
    const auto change = [&](std::span<const std::byte>, std::span<std::byte> value) {
      if (i == 1) throw std::runtime_error("enough");
      value[20] = std::byte{0xAA};
    };
    if (i == 1) {
      EXPECT_THROW(stores_[i].UpdateWhere({}, change), std::runtime_error);
    } else {
      stores_[i].UpdateWhere({}, change);
    }
  });
  EXPECT_EQ(errors[0], ErrorCode::kIo);
  EXPECT_EQ(messages_[0], "rank 1: enough");
  for (std::uint32_t i = 0; i < 2; ++i) {
    stores_[i].ForEach([&](auto, std::span<const std::byte> value) {
      EXPECT_EQ(value[20] == std::byte{0xAA}, i == 0);
    });
  }
  Fill(0);  // and the store goes on
}

TEST_F(DistributedSearchTest, ASnapshotIsRestoredByAnyNumberOfRanks) {
  const std::string snapshot = NewPath();
  ExpectNoErrors(Open(NewPath(), 3, kShards, true));
  Fill(2000);
  ExpectNoErrors(OnAll([&](std::uint32_t i) {
    const SnapshotResult result = stores_[i].Snapshot(snapshot);
    EXPECT_EQ(result.items, 2000u);
    EXPECT_EQ(result.written, 2000u);
    EXPECT_GT(result.bytes, 2000u * (13 + test::kSearchedValueSize));
    EXPECT_GT(result.seconds, 0);
    EXPECT_EQ(result.pause_seconds, result.seconds);
  }));
  const std::vector<Query> all = {{}};
  const SearchResult there = [&] {
    std::vector<SearchResult> found(3);
    ExpectNoErrors(
        OnAll([&](std::uint32_t i) { found[i] = stores_[i].Search(all, {.values = true}); }));
    return found[0];
  }();
  ExpectAll(ErrorCode::kExists, OnAll([&](std::uint32_t i) { stores_[i].Snapshot(snapshot); }),
            snapshot);
  ShardedStore one_process = ShardedStore::Restore(snapshot, NewPath(), test::TestOpenOptions());
  ExpectSame(one_process.Search(all, {.values = true}), there);
  for (const std::uint32_t ranks : {1u, 2u, 5u}) {
    SCOPED_TRACE(ranks);
    const std::string folder = NewPath();
    stores_.clear();
    stores_.resize(ranks_ = ranks);
    auto exchanges = MakeThreadExchanges(ranks);
    const Errors errors = OnAll([&](std::uint32_t i) {
      stores_[i] = DistributedStore::Restore(snapshot, folder, std::move(exchanges[i]),
                                             test::TestOpenOptions());
      ExpectSame(stores_[i].Search(all, {.values = true}), there);
    });
    if (ranks <= kShards) {
      ExpectNoErrors(errors);
    } else {
      ExpectAll(ErrorCode::kInvalidArgument, errors, "5 ranks");
      EXPECT_FALSE(std::filesystem::exists(folder));
    }
  }
}

/// Does something when its ranks have met so many times.
class Disturbed final : public Exchange {
 public:
  explicit Disturbed(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  std::uint32_t rank() const override { return exchange_->rank(); }
  std::uint32_t ranks() const override { return exchange_->ranks(); }
  void AllToAll(Send send, Receive receive) override {
    const bool last = meetings > 0 && --meetings == 0;
    if (last && !afterwards) disturb();
    exchange_->AllToAll(send, receive);
    if (last && afterwards) disturb();
  }
  void Leave(const std::string& why) override { exchange_->Leave(why); }
  int meetings = 0;  ///< before, or after, the last of which `disturb` is called; 0: never
  bool afterwards = false;
  std::function<void()> disturb;

 private:
  const std::unique_ptr<Exchange> exchange_;
};

class DisturbedRankTest : public DistributedSearchTest {
 protected:
  /// A store of three ranks, of which rank 1 can be disturbed.
  void OpenFilled() {
    store_ = NewPath();
    ExpectNoErrors(Open(store_, 3, kShards, true));
    Fill(100);
    OpenDisturbed();
  }
  void OpenDisturbed() {
    stores_.clear();
    stores_.resize(3);
    auto exchanges = MakeThreadExchanges(3);
    auto disturbed = std::make_unique<Disturbed>(std::move(exchanges[1]));
    rank_1_ = disturbed.get();
    exchanges[1] = std::move(disturbed);
    ExpectNoErrors(OnAll([&](std::uint32_t i) {
      stores_[i] = DistributedStore::Open(store_, std::move(exchanges[i]), test::TestOpenOptions());
    }));
  }
  void Disturb(int meetings, bool afterwards, std::function<void()> disturb) {
    rank_1_->meetings = meetings;
    rank_1_->afterwards = afterwards;
    rank_1_->disturb = std::move(disturb);
  }
  Errors SnapshotTo(const std::string& folder) {
    return OnAll([&](std::uint32_t i) { stores_[i].Snapshot(folder); });
  }
  static void ExpectWhole(const std::string& snapshot, const std::string& folder) {
    EXPECT_EQ(ShardedStore::Restore(snapshot, folder, test::TestOpenOptions()).Stats().items, 100u);
  }

  std::string store_;
  Disturbed* rank_1_ = nullptr;
};

// The ranks of a snapshot meet when it begins, twice to compare the folder, when that is there,
// when the files are, to add up, and when the manifest is.
constexpr int kFolderIsThere = 4;
constexpr int kFilesAreThere = 5;
constexpr int kManifestIsThere = 7;

TEST_F(DisturbedRankTest, OfASnapshotThatFailsNothingIsLeft) {
  OpenFilled();
  const std::string nowhere = NewPath() + "/of/none";
  ExpectAll(ErrorCode::kNotFound, SnapshotTo(nowhere), nowhere);
  const std::string folder = NewPath();
  Disturb(kFolderIsThere, true, [&] { std::ofstream(folder + "/0001.snap") << "in the way"; });
  ExpectAll(ErrorCode::kExists, SnapshotTo(folder), "0001.snap");
  EXPECT_NE(messages_[2].find("rank 1"), std::string::npos) << messages_[2];
  EXPECT_FALSE(std::filesystem::exists(folder));
  Disturb(kFilesAreThere, true,
          [&] { std::filesystem::create_directories(folder + "/manifest.json/in/the/way"); });
  ExpectAll(ErrorCode::kIo, SnapshotTo(folder), "manifest.json");
  EXPECT_NE(messages_[2].find("rank 0"), std::string::npos) << messages_[2];
  std::filesystem::remove_all(folder + "/manifest.json");
  EXPECT_TRUE(!std::filesystem::exists(folder) || std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
  ExpectNoErrors(SnapshotTo(folder));
  ExpectWhole(folder, NewPath());
}

TEST_F(DisturbedRankTest, ASnapshotIsWholeOrNotThereWhenARankIsLost) {
  for (int meeting = 1; meeting <= kManifestIsThere; ++meeting) {
    SCOPED_TRACE(meeting);
    OpenFilled();
    const std::string folder = NewPath();
    Disturb(meeting, false, [&] {
      rank_1_->Leave("enough");
      throw Error(ErrorCode::kIo, "rank 1 has had enough");
    });
    ExpectAll(ErrorCode::kIo, SnapshotTo(folder), "enough");
    if (meeting == kManifestIsThere) {
      ExpectWhole(folder, NewPath());
    } else {
      EXPECT_FALSE(std::filesystem::exists(folder));
    }
  }
}

TEST_F(DisturbedRankTest, NobodyWaitsForARankThatIsLostInASearch) {
  const std::vector<Query> all = {{}};
  for (int meeting = 1; meeting <= 6; ++meeting) {
    SCOPED_TRACE(meeting);
    OpenFilled();
    Disturb(meeting, false, [&] {
      rank_1_->Leave("enough");
      throw Error(ErrorCode::kIo, "rank 1 has had enough");
    });
    ExpectAll(ErrorCode::kIo, OnAll([&](std::uint32_t i) { stores_[i].Search(all); }), "enough");
  }
}

TEST_F(DistributedSearchTest, SnapshotsGoToOneFolderAndLeaveOthersAlone) {
  ExpectNoErrors(Open(NewPath(), 2, kShards, true));
  Fill(100);
  const std::string old = NewPath();
  const std::string other = NewPath();
  ExpectNoErrors(OnAll([&](std::uint32_t i) { stores_[i].Snapshot(old); }));
  ExpectAll(ErrorCode::kInvalidArgument,
            OnAll([&](std::uint32_t i) { stores_[i].Snapshot(i == 1 ? old : other); }),
            "the folder of rank 1");
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_EQ(ShardedStore::Restore(old, NewPath(), test::TestOpenOptions()).Stats().items, 100u);
}

TEST_F(DistributedSearchTest, RanksThatMakeDifferentCallsAreTold) {
  ExpectNoErrors(Open(NewPath(), 2, kShards, true));
  Fill(100);
  const std::vector<Query> all = {{}};
  const auto keep = [](auto, auto) { FAIL() << "it is not called"; };
  using Call = std::function<void(DistributedStore&)>;
  const std::pair<Call, Call> different[] = {
      {[&](auto& store) { store.EraseWhere({}); },
       [&](auto& store) { store.UpdateWhere({}, keep); }},
      {[&](auto& store) { store.Search(all); }, [&](auto& store) { store.EraseWhere({}); }},
      {[&](auto& store) { store.Reserve(10); }, [&](auto& store) { store.Compact(); }},
      {[&](auto& store) { store.Compact(); }, [&](auto& store) { store.Snapshot("never"); }},
  };
  for (const auto& [first, second] : different) {
    ExpectAll(ErrorCode::kInvalidArgument,
              OnAll([&](std::uint32_t i) { (i == 0 ? first : second)(stores_[i]); }),
              "rank 1 makes another call");
  }
  EXPECT_EQ(Items(), 100u);
}

TEST_F(DistributedSearchTest, WhatIsNoExceptionIsTold) {
  ExpectNoErrors(Open(NewPath(), 2, kShards, true));
  Fill(100);
  const Errors errors = OnAll([&](std::uint32_t i) {
    const auto change = [&](auto, auto) {
      if (i == 1) throw 7;
    };
    if (i == 0) return static_cast<void>(stores_[0].UpdateWhere({}, change));
    EXPECT_THROW(stores_[1].UpdateWhere({}, change), int);
  });
  EXPECT_EQ(errors[0], ErrorCode::kIo);
  EXPECT_NE(messages_[0].find("rank 1: it threw"), std::string::npos) << messages_[0];
}

/// One rank, which is told that it gets more than a vector can have.
class TooMuch final : public Exchange {
 public:
  std::uint32_t rank() const override { return 0; }
  std::uint32_t ranks() const override { return 1; }
  void AllToAll(Send, Receive receive) override {
    std::fill(receive[0].begin(), receive[0].end(), std::byte{0xFF});
  }
  void Leave(const std::string& why) override { left = why; }
  std::string left;
};

TEST(SendBytesTest, WhoHasNoMemoryForItLeaves) {
  TooMuch exchange;
  EXPECT_ANY_THROW(SendBytes(exchange, {{}}));
  EXPECT_NE(exchange.left, "");
}

}  // namespace
}  // namespace gpm
