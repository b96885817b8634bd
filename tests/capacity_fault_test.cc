// What a failed allocation, or CUDA call, leaves of a store that evicts or exports: it can be used,
// or opened again, keeps to its capacity, and tells of what went.
// Environment: GPM_TEST_FAULTS, so that BatchesThatEvict tries one of so many k, by seed.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>
#include <vector>

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
  /// On executor cpu, at its capacity.
  static Store FullStore(const std::string& path, EvictionPolicy policy = EvictionPolicy::kLru) {
    OpenOptions open;
    open.executor = ExecutorKind::kCpu;
    open.threads = 2;
    open.capacity = {.items = kItems, .policy = policy};
    Store store = Store::Create(path, Shape(8, kValueSize), open);
    Put(store, 0, kItems);
    return store;
  }
  static std::map<std::uint64_t, std::string> ItemsOf(Store& store) {
    std::map<std::uint64_t, std::string> items;
    store.ForEach([&](auto key, auto value) { items[KeyNumber(key)] = AsString(value); });
    return items;
  }
};

/// A key of the batch that another thread erases while room is made for it.
TEST_F(CapacityFaultTest, WhatOthersEraseMeanwhileIsNoRoom) {
  int came_back = 0;  // erased in the call, which then inserted the key
  bool hit = true;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    SCOPED_TRACE(testing::Message() << "erased at allocation " << k);
    OpenOptions open = TestOpenOptions();
    open.capacity = {.items = 10};
    Store store = Store::Create(NewPath(), Shape(8, kValueSize), open);
    Put(store, 1, 10);
    std::atomic<bool> asked{false};
    std::atomic<bool> erased{false};
    TestBatch erase(8, kValueSize);
    erase.Add(Op::kErase, 1, 0);
    std::thread eraser([&] {
      while (!asked) std::this_thread::yield();
      erase.CallFor(store, Op::kErase);
      erased = true;
    });
    TestBatch batch(8, kValueSize);
    batch.Add(Op::kUpsert, 1, 7);
    batch.Add(Op::kUpsert, 100, 7);
    bool in_call = false;
    {
      const Fault action(FaultKind::kAllocation, k, [&] {
        asked = true;
        // It may have to wait for this call.
        const int most = came_back == 0 ? 200 : 20;
        for (int i = 0; i < most && !erased; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        in_call = erased;
      });
      const Fault::Armed armed;
      EXPECT_EQ(batch.CallFor(store, Op::kUpsert), 0u);
      hit = action.hit();
    }
    asked = true;
    eraser.join();
    EXPECT_LE(store.Stats().items, 10u);
    EXPECT_EQ(ResultName(erase.result(0)), ResultName(Result::kOk)) << "keys of the batch stay";
    TestBatch finds(8, kValueSize);
    finds.Add(Op::kFind, 1, 0);
    finds.Add(Op::kFind, 100, 0);
    finds.CallFor(store, Op::kFind);
    const bool is_there = finds.result(0) == Result::kOk;
    if (is_there) {
      EXPECT_EQ(AsString(finds.found(0)), MakeValue(7, kValueSize));
    }
    EXPECT_EQ(finds.result(1), Result::kOk);
    EXPECT_EQ(AsString(finds.found(1)), MakeValue(7, kValueSize));
    came_back += in_call && is_there ? 1 : 0;
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(came_back, 0) << "nothing was erased in a call";
}

TEST_F(CapacityFaultTest, EveryAllocationOfAnEviction) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLfu, EvictionPolicy::kScore}) {
    bool hit = true;
    std::uint64_t failures = 0;
    for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
      const std::string path = NewPath();
      Store store = FullStore(path, policy);
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
          ++failures;
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
    EXPECT_GT(failures, 20u) << EvictionPolicyName(policy);
  }
}

/// A full store, a batch in flight, and one that finds its keys there.
TEST_F(CapacityFaultTest, EveryAllocationOfABatchThatFitsBesideAnother) {
  bool hit = true;
  std::uint64_t failures = 0;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const std::string path = NewPath();
    Store store = FullStore(path);
    TestBatch first(8, kValueSize);
    TestBatch second(8, kValueSize);
    for (std::uint64_t key = 0; key < 10; ++key) first.Add(Op::kUpsert, key, 1);
    for (std::uint64_t key = 5; key < 15; ++key) second.Add(Op::kUpsert, key, 2);
    const Batch beside = first.Mixed();
    const Batch call = second.Mixed();
    Ticket ticket = store.ApplyAsync({.op = Op::kUpsert,
                                      .keys = beside.keys,
                                      .values = beside.values,
                                      .results = beside.results});
    bool refused = false;
    {
      const Fault fault(FaultKind::kAllocation, k);
      try {
        const Fault::Armed armed;
        store.Upsert(call.keys, call.values, call.results);
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      hit = fault.hit();
    }
    failures += refused ? 1 : 0;
    ticket.Wait();
    const auto items = ItemsOf(store);
    EXPECT_EQ(items.size(), kItems);
    for (std::uint64_t key = 0; key < kItems; ++key) {
      const std::uint64_t tag = key >= 5 && key < 15 && !refused ? 2 : key < 10 ? 1 : key;
      EXPECT_EQ(items.at(key), MakeValue(tag, kValueSize)) << key;
    }
    store.Close();
    ExpectSound(path, kItems);
  }
  EXPECT_FALSE(hit);
  EXPECT_GT(failures, 5u);
}

/// Batches that add, use, remove and evict items, of which one meets a fault, and batches after
/// them.
class EvictingSession {
 public:
  static constexpr std::uint64_t kCapacity = 1500;
  static constexpr std::uint64_t kUsed = 100;

  EvictingSession(const std::string& path, EvictionPolicy policy) : path_(path) {
    open_ = TestOpenOptions();
    open_.threads = 2;
    open_.capacity = {.items = kCapacity, .policy = policy};
    store_ = Store::Create(path_, Shape(8, kValueSize), open_);
    // So many keys that there is soon no room for what is known of more of them.
    for (std::uint64_t first = 1000; first < 4000; first += 500) {
      Insert(Numbers(first, 500));
    }
  }

  void MeetFault() {
    TestBatch mixed(8, kValueSize);
    for (const std::uint64_t key : Numbers(10'000, 600)) mixed.Add(Op::kInsert, key, key);
    for (const std::uint64_t key : Numbers(0, kUsed)) {
      mixed.Add(Op::kInsert, key, key);
      mixed.Add(Op::kErase, key, key);
      mixed.Add(Op::kUpsert, key, key);
    }
    Try([&] { store_->Apply(mixed.Mixed()); });
    TestBatch finds(8, kValueSize);
    for (const std::uint64_t key : Numbers(9'900, 300)) finds.Add(Op::kFind, key, key);
    Try([&] { finds.CallFor(*store_, Op::kFind); });
    TestBatch more(8, kValueSize);
    for (const std::uint64_t key : Numbers(11'000, 400)) more.Add(Op::kInsert, key, key);
    const Batch call = more.Mixed();
    Bytes keys(8 * kCapacity), values(kValueSize * kCapacity);
    Evicted evicted{.keys = keys, .values = values};
    Try([&] { store_->InsertAndEvict(call.keys, call.values, call.results, &evicted); });
  }

  /// Some items are used again and again, and others come: those that are used stay.
  void GoOn() {
    if (failed_) {  // it says so from then on, or nothing is left of the fault
      try {
        Insert({20'000});
      } catch (const Error&) {
        store_.reset();
        store_ = Store::Open(path_, open_);
      }
    }
    TestBatch used(8, kValueSize);
    for (const std::uint64_t key : Numbers(0, kUsed)) used.Add(Op::kUpsert, key, key);
    EXPECT_EQ(used.CallFor(*store_, Op::kUpsert), 0u);
    const bool by_use = open_.capacity.policy == EvictionPolicy::kLru ||
                        open_.capacity.policy == EvictionPolicy::kLfu;
    for (std::uint64_t first = 30'000; first < 33'000; first += 200) {
      Insert(Numbers(first, 200));
      TestBatch finds(8, kValueSize);
      for (const std::uint64_t key : Numbers(0, kUsed)) finds.Add(Op::kFind, key, key);
      const std::uint64_t missing = finds.CallFor(*store_, Op::kFind);
      EXPECT_TRUE(missing == 0 || !by_use) << missing << " at " << first;
    }
    const std::uint64_t left = store_->Stats().items;
    EXPECT_LE(left, kCapacity);
    std::uint64_t seen = 0;
    store_->ForEach([&](auto key, auto value) {
      EXPECT_EQ(AsString(value), MakeValue(KeyNumber(key), kValueSize));
      ++seen;
    });
    EXPECT_EQ(seen, left);
    store_.reset();
    if (failed_) {  // a batch that failed may have left something to recovery
      EXPECT_TRUE(CheckPool(path_).defects.empty());
      Store::Open(path_, open_).Close();
    }
    ExpectSound(path_, left);
  }

 private:
  void Insert(const std::vector<std::uint64_t>& keys) {
    TestBatch batch(8, kValueSize);
    for (const std::uint64_t key : keys) batch.Add(Op::kInsert, key, key);
    batch.CallFor(*store_, Op::kInsert);
  }
  template <class Action>
  void Try(const Action& action) {
    try {
      const Fault::Armed armed;
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGpu) << error.what();
      failed_ = true;
    } catch (const std::bad_alloc&) {
      failed_ = true;
    }
  }

  const std::string path_;
  OpenOptions open_;
  std::optional<Store> store_;
  bool failed_ = false;
};

TEST_F(CapacityFaultTest, BatchesThatEvict) {
  const bool on_cuda = TestExecutor() == ExecutorKind::kCuda;
  const std::uint64_t every = EnvironmentNumber("GPM_TEST_FAULTS", 5);
  const std::uint64_t seed = TestSeed();
  for (const FaultKind kind : {FaultKind::kAllocation, FaultKind::kCudaCall}) {
    if (kind == FaultKind::kCudaCall && !on_cuda) continue;
    for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kLfu,
                                        EvictionPolicy::kOldest, EvictionPolicy::kScore}) {
      bool hit = true;
      std::uint64_t faults = 0;
      for (std::uint64_t k = 1 + seed % every; hit && !HasFailure(); k += every) {
        const std::string path = NewPath();
        EvictingSession session(path, policy);
        const Fault fault(kind, k);
        session.MeetFault();
        hit = fault.hit();
        SCOPED_TRACE(testing::Message()
                     << FaultKindName(kind) << " " << k << " (" << (hit ? fault.call() : "none")
                     << "), " << EvictionPolicyName(policy) << ", seed " << seed);
        session.GoOn();
        std::filesystem::remove(path);
        faults += hit ? 1 : 0;
      }
      EXPECT_FALSE(hit);
      EXPECT_GT(faults, 0u);
    }
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
