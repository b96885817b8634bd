// What a failed allocation, or CUDA call, leaves of a store that is searched: it can be used, and
// nothing is gone that did not match.
// Environment: GPM_TEST_FAULTS, so that SearchesByPairs tries one of so many k, by seed.

#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "tests/fault_injection.h"
#include "tests/search_test_util.h"

namespace gpm::test {
namespace {

constexpr std::uint32_t kValueSize = 40;
constexpr std::uint64_t kItems = 90;

class SearchFaultTest : public PoolTest {
 protected:
  static Store MakeStore(const std::string& path) {
    OpenOptions open;
    open.executor = ExecutorKind::kCpu;
    open.threads = 2;
    open.search_index_bytes = 1 << 20;
    CreateOptions create = Shape(8, kValueSize);
    create.attributes = {{"third", 0, 8}};
    Store store = Store::Create(path, create, open);
    TestBatch batch(8, kValueSize);
    for (std::uint64_t key = 0; key < kItems; ++key) batch.Add(Op::kInsert, key, key % 3);
    EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
    return store;
  }
  static Query Third(std::uint64_t third) {
    return {{.attribute = 0, .least = third, .most = third}};
  }
  /// @return whether the k-th allocation of the action failed
  template <class Action>
  bool FailsAt(std::uint64_t k, const Action& action) {
    const Fault fault(FaultKind::kAllocation, k);
    try {
      const Fault::Armed armed;
      action();
    } catch (const std::bad_alloc&) {
      ++failures_;
    }
    return fault.hit();
  }
  /// Actions that threw.
  std::uint64_t failures_ = 0;
};

/// The first search looks at all items, the second one makes an index, the third one uses it.
TEST_F(SearchFaultTest, EveryAllocationOfASearch) {
  const std::vector<Query> queries{Third(1), {}, Third(5)};
  for (int before = 0; before < 3; ++before) {
    failures_ = 0;
    bool hit = true;
    for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
      const std::string path = NewPath();
      Store store = MakeStore(path);
      for (int i = 0; i < before; ++i) (void)store.Search(queries);
      hit = FailsAt(k, [&] { (void)store.Search(queries, {.values = before == 0}); });
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(store.Search(queries).counts, (std::vector<std::uint64_t>{30, kItems, 0}));
      }
      store.Compact();  // nobody holds anything
      store.Close();
      ExpectSound(path, kItems);
    }
    EXPECT_FALSE(hit);
    EXPECT_GT(failures_, 10u) << "after " << before << " searches";
  }
}

TEST_F(SearchFaultTest, EveryAllocationOfAnErase) {
  bool hit = true;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const std::string path = NewPath();
    {
      Store store = MakeStore(path);
      hit = FailsAt(k, [&] { EXPECT_EQ(store.EraseWhere(Third(1)), 30u); });
      std::map<std::uint64_t, std::uint64_t> thirds;
      store.ForEach([&](auto key, auto value) {
        EXPECT_EQ(ValueTag(value), KeyNumber(key) % 3);
        ++thirds[KeyNumber(key) % 3];
      });
      EXPECT_EQ(thirds[0], 30u);
      EXPECT_EQ(thirds[2], 30u);
      EXPECT_EQ(store.EraseWhere(Third(1)), thirds[1]);
      EXPECT_EQ(store.EraseWhere(Third(0)), 30u);
      store.Close();
    }
    Store::Open(path, {.executor = ExecutorKind::kCpu}).Close();
    ExpectSound(path, 30);
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(failures_, 20u);
}

TEST_F(SearchFaultTest, EveryAllocationOfAnUpdate) {
  bool hit = true;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const std::string path = NewPath();
    {
      Store store = MakeStore(path);
      const auto change = [](auto, std::span<std::byte> value) {
        const std::uint64_t seven = 7;
        std::memcpy(value.data(), &seven, sizeof seven);
      };
      hit = FailsAt(k, [&] { EXPECT_EQ(store.UpdateWhere(Third(1), change), 30u); });
      const std::uint64_t changed = store.Search(std::vector<Query>{Third(7)}).counts[0];
      EXPECT_LE(changed, 30u);
      EXPECT_EQ(store.UpdateWhere(Third(1), change), 30 - changed);
      EXPECT_EQ(store.Search(std::vector<Query>{Third(0), Third(1), Third(2), Third(7)}).counts,
                (std::vector<std::uint64_t>{30, 0, 30, 30}));
      store.Close();
    }
    ExpectSound(path, kItems);
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(failures_, 20u);
}

/// Searches between which batches change items, so that the index follows.
TEST_F(SearchFaultTest, EveryAllocationOfFollowing) {
  const std::vector<Query> queries{Third(1), {}, Third(5)};
  bool hit = true;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    Store store = MakeStore(NewPath());
    for (int i = 0; i < 2; ++i) (void)store.Search(queries);
    TestBatch batch(8, kValueSize);
    for (std::uint64_t key = 0; key < 60; ++key) {
      batch.Add(key < 20 ? Op::kErase : Op::kUpsert, key < 40 ? 3 * key : 1000 + key, 5);
    }
    (void)store.Apply(batch.Mixed());
    hit = FailsAt(k, [&] { (void)store.Search(queries); });
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(store.Search(queries).counts, (std::vector<std::uint64_t>{30, 100, 40}));
    }
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(failures_, 20u);
}

Query Both(std::uint64_t session, std::uint64_t model) {
  return {{.attribute = kSession, .least = session, .most = session},
          {.attribute = kModel, .least = model, .most = model}};
}
Query OfModel(std::uint64_t least, std::uint64_t most) {
  return {{.attribute = kModel, .least = least, .most = most}};
}

/// Searches of a store with an index, of which one meets a fault. A pair is fixed, another one is
/// made, and its partner goes when items have come and the budget is too small.
class PairSession {
 public:
  static constexpr std::uint64_t kGrid = 1000;
  static constexpr std::uint64_t kLate = 150;

  PairSession(const std::string& path, std::uint64_t index_bytes) : path_(path) {
    open_ = TestOpenOptions();
    open_.threads = 2;
    open_.search_index_bytes = index_bytes;
    open_.search_indexed = {"both+model"};
    store_ = Store::Create(path_, SearchedShape(8, kValueSize), open_);
    Insert(0, kGrid);
  }

  /// Makes the index, which has the fixed pair, and then the other pair.
  void MakePairs() {
    std::vector<Query> queries{OfModel(7, 7)};
    for (std::uint64_t i = 0; i < 60; ++i) queries.push_back(Both(i % kSessions, i % kModels));
    for (int i = 0; i < 3; ++i) Search(queries);
  }
  /// Attribute session goes, the partner of model; then it is wanted again.
  void LosePartner() {
    Insert(kGrid, kLate);
    Search({OfModel(7, 7), OfModel(8, 9)});
    pairs_left_ = Pairs();
    for (int i = 0; i < 2; ++i) Search({OfModel(7, 7), Both(3, 7), {}});
  }
  std::uint64_t Pairs() const { return store_->Stats().search_pairs; }
  std::uint64_t pairs_left() const { return pairs_left_; }
  std::uint64_t IndexBytes() const { return store_->Stats().search_index_bytes; }

  void End() {
    store_.reset();
    ExpectSound(path_, kGrid + kLate);
    std::filesystem::remove(path_);
  }

 private:
  static constexpr std::uint64_t kSessions = 20;
  static constexpr std::uint64_t kModels = kGrid / kSessions;
  static constexpr std::uint64_t kLimit = 6;

  /// Items of the grid have each session with each model, later ones have others.
  void Insert(std::uint64_t first, std::uint64_t count) {
    TestBatch batch(8, kValueSize);
    for (const std::uint64_t key : Numbers(first, count)) {
      const std::uint64_t tag = key < kGrid ? Tag(key % kSessions, key / kSessions)
                                            : Tag(kSessions + key % 90, kModels + key % 70);
      batch.Add(Op::kInsert, key, tag);
      items_[MakeKey(key, 8)] = MakeValue(tag, kValueSize);
    }
    EXPECT_EQ(batch.CallFor(*store_, Op::kInsert), 0u);
  }
  /// What it finds is right, or it fails, and the next one is right.
  void Search(const std::vector<Query>& queries) {
    const SearchOptions options{.limit = kLimit};
    SearchResult result;
    bool failed = false;
    try {
      const Fault::Armed armed;
      result = store_->Search(queries, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGpu) << error.what();
      failed = true;
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    if (failed) {
      try {
        result = store_->Search(queries, options);
      } catch (const Error& error) {  // it says from then on that it has to be opened again
        EXPECT_EQ(TestExecutor(), ExecutorKind::kCuda) << error.what();
        store_.reset();
        store_ = Store::Open(path_, open_);
        result = store_->Search(queries, options);
      }
    }
    std::vector<std::uint64_t> counts;
    std::vector<std::uint64_t> offsets{0};
    std::string keys;
    for (const Query& query : queries) {
      const Rows rows = PlainScan(query, TestAttributes(), items_);
      counts.push_back(rows.size());
      offsets.push_back(offsets.back() + std::min<std::uint64_t>(rows.size(), kLimit));
      for (auto row = rows.begin(); keys.size() < 8 * offsets.back(); ++row) keys += row->first;
    }
    EXPECT_EQ(result.counts, counts);
    EXPECT_EQ(result.offsets, offsets);
    EXPECT_EQ(AsString(result.keys), keys);
  }

  const std::string path_;
  OpenOptions open_;
  std::optional<Store> store_;
  Model items_;
  std::uint64_t pairs_left_ = 0;
};

TEST_F(SearchFaultTest, SearchesByPairs) {
  const std::uint64_t every = EnvironmentNumber("GPM_TEST_FAULTS", 5);
  const std::uint64_t seed = TestSeed();
  PairSession first(NewPath(), std::uint64_t{1} << 30);
  first.MakePairs();
  const std::uint64_t index_bytes = first.IndexBytes() + 3000;  // kLate more items take more
  for (const FaultKind kind : {FaultKind::kAllocation, FaultKind::kCudaCall}) {
    if (kind == FaultKind::kCudaCall && TestExecutor() != ExecutorKind::kCuda) continue;
    bool hit = true;
    std::uint64_t faults = 0;
    for (std::uint64_t k = 1 + seed % every; hit && !HasFailure(); k += every) {
      PairSession session(NewPath(), index_bytes);
      const Fault fault(kind, k);
      session.MakePairs();
      const std::uint64_t pairs = session.Pairs();
      session.LosePartner();
      hit = fault.hit();
      SCOPED_TRACE(testing::Message() << FaultKindName(kind) << " " << k << " ("
                                      << (hit ? fault.call() : "none") << "), seed " << seed);
      if (!hit) {
        EXPECT_EQ(pairs, 2u);
        EXPECT_LT(session.pairs_left(), pairs);
      }
      session.End();
      faults += hit ? 1 : 0;
    }
    EXPECT_FALSE(hit);
    EXPECT_GT(faults, 0u);
  }
}

}  // namespace
}  // namespace gpm::test
