// Who waits for a refresh that is cut, and what is counted, with an executor whose refreshes go on
// until they are told to end.

#include "engine/cache_manager.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "engine/cpu/batch_runs.h"
#include "pm/thread_pool.h"
#include "table/layout.h"
#include "table/media/direct.h"
#include "tests/pool_fixture.h"

namespace gpm::test {
namespace {

/// As of a store on host threads (engine/cpu/executor.cc), which names it for itself alone.
struct Setup {
  using Media = DirectMedia;
  class Threads : public ThreadPool {
   public:
    Threads(unsigned threads, const Persist&) : ThreadPool(threads) {}
  };
  static constexpr std::uint64_t kKeyLocks = 1 << 10;
  static constexpr std::uint64_t kBucketsAtATime = 1024;
  static constexpr std::size_t kMinPerThread = 64;
  static WindowShape Windows() { return kSmallWindows; }
};

/// An executor whose refreshes go on until they are told to end, as those of a GPU.
class SlowRefreshes : public CpuExecutor<Setup> {
 public:
  using CpuExecutor::CpuExecutor;
  void RefreshCache(std::uint64_t) override {
    EXPECT_FALSE(under_way);
    under_way = true;
    ++begun;
  }
  bool CacheRefreshEnded() override { return !under_way; }
  double CacheRefreshSeconds() override { return 0.5; }
  void AwaitCacheRefresh() override {
    if (on_await) on_await();
    under_way = false;
  }
  void CutCacheRefresh() override {
    under_way = false;
    ++cut;
  }

  std::function<void()> on_await;
  bool under_way = false;
  int begun = 0;
  int cut = 0;
};

/// A cache whose refreshes come when asked alone.
class CacheManagerTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    CacheOptions options;
    options.directory = true;
    options.fraction = 1;
    options.refresh_interval = 0;
    pool_ = Pool::Create(NewPath(), Config(), {});
    executor_ = std::make_unique<SlowRefreshes>(1, pool_->mapping());
    manager_ = std::make_unique<CacheManager>(*executor_, options, nullptr);
    manager_->SetTable(Table());
    manager_->Reset(Table(), 0);
  }
  TableView Table() const { return MakeTableView(pool_->base(), pool_->superblock()); }
  bool Advance() { return manager_->Advance(CacheManager::Haste::kWait, 0, {}); }
  /// @return the number of one that was asked for now, and has begun
  std::uint64_t Begin() {
    const std::uint64_t number = manager_->Request();
    Advance();
    EXPECT_TRUE(executor_->under_way);
    return number;
  }

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<SlowRefreshes> executor_;
  std::unique_ptr<CacheManager> manager_;
};

TEST_F(CacheManagerTest, WhoWaitsForARefreshThatIsCutWaitsForTheNext) {
  const std::uint64_t asked = Begin();
  manager_->WithoutRefresh([this] { EXPECT_FALSE(executor_->under_way); });
  EXPECT_EQ(executor_->cut, 1);
  EXPECT_FALSE(manager_->Ended(asked));
  Advance();  // begins it again
  EXPECT_TRUE(executor_->under_way);
  EXPECT_EQ(executor_->begun, 2);
  EXPECT_FALSE(manager_->Ended(asked));
  executor_->under_way = false;
  Advance();
  EXPECT_TRUE(manager_->Ended(asked));
  EXPECT_EQ(manager_->Stats().refreshes, 1u);
  Advance();
  EXPECT_EQ(executor_->begun, 2);  // nobody has asked for another
}

TEST_F(CacheManagerTest, WhoAskedWhileItWasCutIsNotForgotten) {
  const std::uint64_t first = Begin();
  const std::uint64_t second = manager_->Request();
  manager_->WithoutRefresh([] {});
  const std::uint64_t third = manager_->Request();
  for (int i = 0; i < 3; ++i) {
    Advance();
    executor_->under_way = false;
  }
  for (const std::uint64_t asked : {first, second, third}) EXPECT_TRUE(manager_->Ended(asked));
}

TEST_F(CacheManagerTest, ANewTableCutsARefreshWhichIsThatOfTheNewOneThen) {
  for (const bool dropped : {false, true}) {
    const std::uint64_t asked = Begin();
    const int cut = executor_->cut;
    if (dropped) {
      manager_->Drop();
    } else {
      manager_->SetTable(Table());
    }
    EXPECT_EQ(executor_->cut, cut + 1);
    manager_->Reset(Table(), 0);
    EXPECT_FALSE(manager_->Ended(asked));
    Advance();
    EXPECT_TRUE(executor_->under_way);
    executor_->under_way = false;
    Advance();
    EXPECT_TRUE(manager_->Ended(asked));
  }
}

TEST_F(CacheManagerTest, OneAskedForWhileTheTableChangesIsOfTheNewOne) {
  for (const bool dropped : {false, true}) {
    const int begun = executor_->begun;
    if (dropped) {
      manager_->Drop();
    } else {
      manager_->SetTable(Table());
    }
    const std::uint64_t asked = manager_->Request();
    EXPECT_FALSE(Advance());
    EXPECT_FALSE(manager_->Ended(asked));
    manager_->Reset(Table(), 0);
    EXPECT_EQ(executor_->begun, begun);
    EXPECT_TRUE(Advance());
    EXPECT_EQ(executor_->begun, begun + 1);
    executor_->under_way = false;
    Advance();
    EXPECT_TRUE(manager_->Ended(asked));
  }
}

TEST_F(CacheManagerTest, OneThatHasEndedIsCountedWhoeverSeesIt) {
  const std::uint64_t asked = Begin();
  executor_->under_way = false;
  manager_->WithoutRefresh([] {});
  EXPECT_EQ(executor_->cut, 0);
  EXPECT_TRUE(manager_->Ended(asked));
  EXPECT_EQ(manager_->Stats().refreshes, 1u);
  EXPECT_EQ(manager_->Stats().refresh_seconds, 0.5);
}

TEST_F(CacheManagerTest, NobodyWaitsAfterTheEnd) {
  const std::uint64_t asked = Begin();
  manager_->Stop();
  EXPECT_EQ(executor_->cut, 1);
  EXPECT_TRUE(manager_->Ended(asked));
}

/// Who waits uses the executor, which goes when Stop returns.
TEST_F(CacheManagerTest, TheEndWaitsForWhoWaitsInTheExecutor) {
  const std::uint64_t asked = Begin();
  std::promise<void> waits;
  std::promise<void> may_end;
  executor_->on_await = [&] {
    waits.set_value();
    may_end.get_future().wait();
  };
  std::future<void> waiter = std::async(std::launch::async, [&] { manager_->Await(); });
  waits.get_future().wait();
  std::future<void> stop = std::async(std::launch::async, [&] { manager_->Stop(); });
  EXPECT_EQ(stop.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  may_end.set_value();
  stop.get();
  waiter.get();
  executor_.reset();
  EXPECT_TRUE(manager_->Ended(asked));
  const std::uint64_t late = manager_->Request();
  for (const auto haste : {CacheManager::Haste::kLook, CacheManager::Haste::kWait}) {
    manager_->Advance(haste, 0, {});
  }
  manager_->Await();
  EXPECT_TRUE(manager_->Ended(late));
}

}  // namespace
}  // namespace gpm::test
