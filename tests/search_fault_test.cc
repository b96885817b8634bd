// What a failed allocation leaves of a store that is searched: it can be used, and nothing is gone
// that did not match.

#include <cstring>
#include <map>

#include "tests/fault_injection.h"
#include "tests/test_util.h"

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
  static bool FailsAt(std::uint64_t k, const Action& action) {
    const Fault fault(FaultKind::kAllocation, k);
    try {
      const Fault::Armed armed;
      action();
    } catch (const std::bad_alloc&) {
    }
    return fault.hit();
  }
};

/// The first search looks at all items, the second one makes an index, the third one uses it.
TEST_F(SearchFaultTest, EveryAllocationOfASearch) {
  const std::vector<Query> queries{Third(1), {}, Third(5)};
  for (int before = 0; before < 3; ++before) {
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
}

}  // namespace
}  // namespace gpm::test
