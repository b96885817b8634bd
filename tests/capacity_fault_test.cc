// What a failed allocation leaves of a store that evicts or exports: it can be used, keeps to its
// capacity, and tells of what went.

#include <map>

#include "tests/fault_injection.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

constexpr std::uint32_t kValueSize = 40;
constexpr std::uint64_t kItems = 64;

class CapacityFaultTest : public PoolTest {
 protected:
  static void Put(Store& store, std::uint64_t first, std::uint64_t count) {
    TestBatch batch(8, kValueSize);
    for (const std::uint64_t key : Numbers(first, count)) batch.Add(Op::kInsert, key, key);
    EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  }
  static std::map<std::uint64_t, std::string> ItemsOf(Store& store) {
    std::map<std::uint64_t, std::string> items;
    store.ForEach([&](auto key, auto value) { items[KeyNumber(key)] = AsString(value); });
    return items;
  }
};

TEST_F(CapacityFaultTest, EveryAllocationOfAnEviction) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLfu, EvictionPolicy::kScore}) {
    bool hit = true;
    for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
      OpenOptions open;
      open.executor = ExecutorKind::kCpu;
      open.threads = 2;
      open.capacity = {.items = kItems, .policy = policy};
      const std::string path = NewPath();
      Store store = Store::Create(path, Shape(8, kValueSize), open);
      Put(store, 0, kItems);
      TestBatch batch(8, kValueSize);
      for (std::uint64_t key = 1000; key < 1010; ++key) batch.Add(Op::kInsert, key, key);
      const Batch call = batch.Mixed();
      Bytes keys(8 * 20);
      Bytes values(kValueSize * 20);
      Evicted evicted{.keys = keys, .values = values};
      {
        const Fault fault(FaultKind::kAllocation, k);
        try {
          const Fault::Armed armed;
          store.InsertAndEvict(call.keys, call.values, call.results, &evicted);
        } catch (const std::bad_alloc&) {
        }
        hit = fault.hit();
      }
      // All that went was told of, with its value.
      const auto items = ItemsOf(store);
      for (std::uint64_t key = 0; key < kItems; ++key) {
        bool told = false;
        for (std::uint64_t i = 0; i < evicted.count; ++i) {
          if (KeyNumber(std::span(keys).subspan(i * 8, 8)) != key) continue;
          told = true;
          EXPECT_EQ(AsString(std::span(values).subspan(i * kValueSize, kValueSize)),
                    MakeValue(key, kValueSize));
        }
        EXPECT_NE(told, items.contains(key)) << "key " << key << ", allocation " << k;
      }
      for (std::uint64_t first = 2000; first < 2200; first += 20) Put(store, first, 20);
      EXPECT_LE(store.Stats().items, kItems);
      const std::uint64_t left = store.Stats().items;
      store.Close();
      ExpectSound(path, left);
    }
    EXPECT_FALSE(hit);
  }
}

TEST_F(CapacityFaultTest, EveryAllocationOfAnExport) {
  bool hit = true;
  OpenOptions open;
  open.executor = ExecutorKind::kCpu;
  open.threads = 2;
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), open);
  Put(store, 0, 100);
  bool failed_once = false;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    Exporter exporter;
    bool failed = false;
    {
      const Fault fault(FaultKind::kAllocation, k);
      try {
        const Fault::Armed armed;
        exporter = store.Export();
      } catch (const std::bad_alloc&) {
        failed = failed_once = true;
      }
      hit = fault.hit();
    }
    EXPECT_TRUE(hit || !failed);
    Bytes keys(8 * 200);
    EXPECT_EQ(exporter.Next(keys, {}), failed ? 0u : 100u);  // (it does without some)
    store.Compact();                                         // nobody holds anything
  }
  EXPECT_FALSE(hit);
  EXPECT_TRUE(failed_once);
}

}  // namespace
}  // namespace gpm::test
