// Scopes that are open, and who wants to be alone: none waits for itself, nor longer than for those
// before it.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "engine/store_impl.h"
#include "tests/failure_util.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

class FakeScope {
 public:
  explicit FakeScope(StoreImpl& store) : store_(store) {
    run_->closed = false;
    in_flight_ = store.StartTask(run_, {.most = {4, 4}, .writes = true, .inserts = true});
  }
  ~FakeScope() { Close(); }
  void Close() {
    run_->closed = true;
    store_.Wait(in_flight_);
  }

 private:
  StoreImpl& store_;
  std::shared_ptr<FakeTask> run_ = std::make_shared<FakeTask>();
  std::shared_ptr<StoreImpl::InFlight> in_flight_;
};

/// A scope that is open, but not for the next ones that look: as if it were opened behind those.
class LateScope : public FakeTask {
 public:
  LateScope() { closed = false; }
  bool Complete() const override { return closed || looks-- > 0; }

  mutable std::atomic<int> looks{0};
};

/// Scopes wait for all that asked before them to be alone, whoever else did without meanwhile.
TEST_F(FailureTest, WhoDoesWithoutBeingAloneLetsNoScopeInBeforeOthers) {
  const auto store = StoreImpl::Create(NewPath(), Shape(kKeySize, kValueSize), Options());
  std::optional<FakeScope> first(std::in_place, *store);
  std::future<void> reserves = std::async(std::launch::async, [&] { store->Reserve(100'000); });
  while (!OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::optional<FakeScope> second;
  std::future<void> opens = std::async(std::launch::async, [&] { second.emplace(*store); });
  while (!OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  TestBatch inserts = Inserts(0, 5000);
  bool results_on_host = false;
  EXPECT_FALSE(store->Compose(inserts.Mixed(), &results_on_host));
  const auto soon = std::chrono::milliseconds(200);
  EXPECT_EQ(opens.wait_for(soon), std::future_status::timeout) << "before who asked first";
  first.reset();
  EXPECT_EQ(reserves.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  opens.get();
  reserves.get();
  second.reset();
}

/// Its owner may wait for who does what is optional: that does without being alone.
TEST_F(FailureTest, WhatIsOptionalDoesNotWaitForAScopeThatIsOpenedMeanwhile) {
  OpenOptions options = Options();
  options.compact_below = 0.3;
  const auto store = StoreImpl::Create(NewPath(), Shape(kKeySize, kValueSize), options);
  ApplyTo(*store, Inserts(0, 5000));
  const auto erase = [&](std::uint64_t first, std::uint64_t end) {
    TestBatch batch(kKeySize, kValueSize);
    for (std::uint64_t key = first; key < end; ++key) batch.Add(Op::kErase, key, 0);
    ApplyTo(*store, std::move(batch));
  };
  const auto scope = std::make_shared<LateScope>();
  const auto in_flight = store->StartTask(scope, {.most = {4, 4}, .writes = true, .inserts = true});
  const std::uint64_t slots = store->Stats().capacity_slots;
  const auto returns = [&](const std::function<void()>& call) {
    std::future<void> done = std::async(std::launch::async, call);
    const bool returned = done.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    if (!returned) {
      scope->closed = true;
      store->Wait(in_flight);
    }
    done.get();
    return returned;
  };
  scope->looks = 1;  // of CompactIfSparse, before it wants to be alone
  EXPECT_TRUE(returns([&] { erase(0, 4900); }));
  EXPECT_LT(scope->looks, 0) << "nothing wanted to be alone";
  EXPECT_EQ(store->Stats().capacity_slots, slots);
  TestBatch inserts = Inserts(10'000, 5000);
  const Batch batch = inserts.Mixed();
  EXPECT_TRUE(returns([&] {
    bool results_on_host = false;
    EXPECT_FALSE(store->Compose(batch, &results_on_host));
  }));
  EXPECT_TRUE(returns([&] { const FakeScope other(*store); })) << "waits for who has given up";
  scope->closed = true;
  store->Wait(in_flight);
  erase(4900, 4901);
  EXPECT_LT(store->Stats().capacity_slots, slots);
}

TEST_F(FailureTest, ScopesThatOverlapDoNotKeepAResizeWaiting) {
  const auto store = NewImpl(NewPath());
  ApplyTo(*store, Inserts(0, 10));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> opened{0};
  std::vector<std::thread> openers;
  for (int t = 0; t < 2; ++t) {  // each keeps its scope open until the other has opened one
    openers.emplace_back([&] {
      using Clock = std::chrono::steady_clock;
      while (!stop) {
        const FakeScope scope(*store);
        const std::uint64_t number = ++opened;
        ApplyTo(*store, Inserts(0, 3));
        const Clock::time_point patience = Clock::now() + std::chrono::milliseconds(100);
        while (!stop && opened == number && Clock::now() < patience) std::this_thread::yield();
      }
    });
  }
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t round = 1; round <= 10; ++round) {
    while (opened < 3 * round) std::this_thread::yield();
    store->ForEach([](auto, auto) {});
    store->Reserve(100u << round % 5);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  stop = true;
  for (std::thread& opener : openers) opener.join();
  EXPECT_EQ(store->CountMisplacedCells(), 0u);
  store->Close();
}

TEST_F(FailureTest, BatchesGoOnWhileSomebodyWaitsForAScope) {
  const auto store = NewImpl(NewPath());
  ApplyTo(*store, Inserts(0, 10));
  auto scope = std::make_unique<FakeScope>(*store);
  std::atomic<bool> visited{false};
  std::thread waiter([&] {
    store->ForEach([](auto, auto) {});
    visited = true;
  });
  while (!OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ApplyTo(*store, Inserts(0, 5));
  std::thread([&] { ApplyTo(*store, Inserts(5, 5)); }).join();
  { const FakeScope own(*store); }  // would wait for itself if it waited
  auto other = std::async(std::launch::async, [&] { const FakeScope later(*store); });
  EXPECT_EQ(other.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
      << "a new scope goes before one who has waited longer";
  EXPECT_FALSE(visited);
  scope.reset();
  waiter.join();
  other.get();
  store->Close();
}

TEST_F(FailureTest, ThreadThatWouldWaitForItsOwnScopeIsTold) {
  const std::string path = NewPath();
  const auto store = NewImpl(path);
  ApplyTo(*store, Inserts(0, 10));
  {
    const FakeScope scope(*store);
    std::string message;
    EXPECT_EQ(ErrorOf([&] { store->Reserve(100000); }, &message), ErrorCode::kBusy);
    EXPECT_NE(message.find("device scope"), std::string::npos) << message;
    EXPECT_EQ(ErrorOf([&] { store->ForEach([](auto, auto) {}); }), ErrorCode::kBusy);
    EXPECT_EQ(ErrorOf([&] { ApplyTo(*store, Inserts(10, 20000)); }), ErrorCode::kBusy);
    EXPECT_EQ(ErrorOf([&] { store->Close(); }), ErrorCode::kBusy);
    TestBatch finds(kKeySize, kValueSize);
    for (std::uint64_t key = 0; key < 10; ++key) finds.Add(Op::kFind, key, key);
    Batch batch = finds.Mixed();
    batch.ops = {};  // all are finds, which need no room, and go on
    batch.values = {};
    store->Wait(store->Start(batch, nullptr));
  }
  ApplyTo(*store, Inserts(10, 20000));
  EXPECT_EQ(store->Stats().items, 20010u);
  store->Close();
  ExpectSoundPool(path);
}

/// The same where another thread has a snapshot's or an export's turn, and waits for that scope.
TEST_F(FailureTest, ThreadThatWouldWaitForWhoWaitsForItsScopeIsTold) {
  using Call = std::function<void(Store&)>;
  const std::string file = NewPath();
  std::promise<void> others_began;
  std::promise<void> scope_is_open;
  const auto await_scope = [&] {
    others_began.set_value();
    scope_is_open.get_future().wait();
  };
  const Call snapshot = [&](Store& store) {
    await_scope();
    store.Snapshot(file);
  };
  const Call grow_beside_export = [&](Store& store) {
    Exporter exporter = store.Export();
    await_scope();
    TestBatch inserts = Inserts(1000, 20000);
    store.Apply(inserts.Mixed());
  };
  const std::vector<Call> own = {
      [](Store& store) { std::ignore = store.Search(std::vector<Query>(1)); },
      [](Store& store) { std::ignore = store.Export(); },
      [&](Store& store) { store.Snapshot(file + ".own"); },
      [](Store& store) { store.Reserve(1'000'000); },
      [](Store& store) { store.Compact(); },
      [](Store& store) { store.Close(); },
  };
  for (const Call& others : {snapshot, grow_beside_export}) {
    for (const Call& call : own) {
      std::filesystem::remove(file);
      Store store =
          Store::Create(NewPath(), {.key_size = kKeySize, .value_size = kValueSize}, Options());
      store.Apply(Inserts(0, 10).Mixed());
      others_began = {};
      scope_is_open = {};
      std::thread other([&] { others(store); });
      others_began.get_future().wait();
      std::optional<FakeScope> scope(std::in_place, *store.impl());
      scope_is_open.set_value();
      while (!OtherThreadsSleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      // (Who hangs here is ended by the test's time limit.)
      EXPECT_EQ(ErrorOf([&] { call(store); }), ErrorCode::kBusy);
      scope.reset();
      other.join();
      store.Close();
    }
  }
  std::filesystem::remove(file);
}

TEST_F(FailureTest, ScopeOfAPoolThatWasFullGetsWhatWasErased) {
  const std::string path = NewPath();
  OpenOptions options = Options();
  options.max_bytes = 4 << 20;
  const auto store =
      StoreImpl::Create(path, {.key_size = kKeySize, .value_size = kValueSize}, options);
  std::uint64_t items = 0;
  for (std::uint64_t before = 1; items != before;) {
    before = items;
    TestBatch batch = Inserts(items, 2000);
    const Batch mixed = batch.Mixed();
    store->Wait(store->Start(mixed, nullptr));
    items = store->Stats().items;
  }
  ASSERT_GT(items, 4000u);
  TestBatch erases(kKeySize, kValueSize);
  for (std::uint64_t key = 0; key < 1000; ++key) erases.Add(Op::kErase, key, key);
  ApplyTo(*store, std::move(erases));
  const auto scope = std::make_shared<FakeTask>();
  scope->closed = false;
  const auto in_flight =
      store->StartTask(scope, {.most = {500, 500}, .writes = true, .inserts = true});
  EXPECT_EQ(scope->free_for_inserts, 500u) << "it can't be given more afterwards";
  scope->closed = true;
  store->Wait(in_flight);
  EXPECT_EQ(store->CountMisplacedCells(), 0u);
  store->Close();
}

/// Whoever waits for a batch while Close finishes it returns when it is finished.
TEST_F(FailureTest, CloseBesideWaitOfABatchThatLacksRoom) {
  for (int round = 0; round < 20; ++round) {
    const std::string path = NewPath();
    const auto store = NewImpl(path);
    constexpr std::uint64_t kItems = 5000;
    TestBatch batch = Inserts(0, kItems);
    const Batch inserts = batch.Mixed();
    const auto in_flight = store->Start(inserts, nullptr);
    std::thread closer([&] { store->Close(); });
    store->Wait(in_flight);
    EXPECT_EQ(std::count(inserts.results.begin(), inserts.results.end(), Result::kOk),
              static_cast<std::ptrdiff_t>(kItems));
    closer.join();
    EXPECT_EQ(CheckPool(path).items, kItems);
  }
}

/// A batch that ran and found no room in part, whose owner then can't make any.
TEST_F(FailureTest, BatchThatLacksRoomWhileItsOwnersScopeIsOpenFailsForGood) {
  const auto store = NewImpl(NewPath());
  TestBatch batch = Inserts(0, 900);  // the table has some 1500 slots: a few find none in theirs
  {
    const FakeScope scope(*store);
    for (std::uint64_t first = 0;; first += 900) {
      batch = Inserts(first, 900);
      const Batch mixed = batch.Mixed();
      std::shared_ptr<StoreImpl::InFlight> in_flight;
      if (ErrorOf([&] { in_flight = store->Start(mixed, nullptr); })) break;
      if (!ErrorOf([&] { store->Wait(in_flight); })) continue;
      EXPECT_EQ(ErrorOf([&] { store->Wait(in_flight); }), ErrorCode::kBusy);
      break;
    }
  }
  EXPECT_EQ(store->CountMisplacedCells(), 0u);
  store->Close();
}

}  // namespace
}  // namespace gpm::test
