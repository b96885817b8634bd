#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "pm/pool.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

/// What a store told its log.
class Messages {
 public:
  OpenOptions Options() {
    OpenOptions open = TestOpenOptions();
    open.log = [this](LogLevel level, std::string_view message) {
      {
        const std::lock_guard lock(mutex_);
        messages_.emplace_back(level, message);
      }
      if (store != nullptr) items = store->Stats().items;
      throw std::runtime_error("the log's own error");
    };
    return open;
  }
  int Count(std::string_view text) const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(messages_.begin(), messages_.end(), [&](const auto& one) {
      return one.second.find(text) != std::string::npos;
    }));
  }
  LogLevel LevelOf(std::string_view text) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [level, message] : messages_) {
      if (message.find(text) != std::string::npos) return level;
    }
    ADD_FAILURE() << "no message with: " << text;
    return LogLevel::kInfo;
  }
  Store* store = nullptr;  ///< asked by the log for its statistics
  std::uint64_t items = 0;

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> messages_;
};

class LogTest : public PoolTest {};

TEST_F(LogTest, TellsOfRecovery) {
  const std::string path = NewPath();
  Store::Create(path, {}, TestOpenOptions()).Close();
  Messages clean;
  Store::Open(path, clean.Options()).Close();
  EXPECT_EQ(clean.Count("recovered in"), 1);
  EXPECT_EQ(clean.LevelOf("closed in order"), LogLevel::kInfo);

  Pool::Open(path, {})->SetClean(false);
  Messages crashed;
  Store::Open(path, crashed.Options()).Close();
  EXPECT_EQ(crashed.Count("recovered in"), 1);
  EXPECT_EQ(crashed.LevelOf("closed not in order"), LogLevel::kWarning);
}

TEST_F(LogTest, TellsOfResizesWhenTheStoreCanBeCalled) {
  Messages messages;
  Store store = Store::Create(NewPath(), Shape(8, 16), messages.Options());
  messages.store = &store;
  TestBatch batch(8, 16);
  for (std::uint64_t i = 0; i < 20000; ++i) batch.Add(Op::kInsert, i, i);
  store.Apply(batch.Mixed());
  const auto resizes = static_cast<int>(store.Stats().resizes);
  EXPECT_GT(resizes, 0);
  EXPECT_EQ(messages.Count("resize begun"), resizes);
  EXPECT_EQ(store.Stats().items, 20000u);
  messages.store = nullptr;
  store.Close();
  EXPECT_EQ(messages.Count("resize ended after"), resizes);
}

TEST_F(LogTest, MayCallTheStoreWhileThatCloses) {
  Messages messages;
  Store store = Store::Create(NewPath(), Shape(8, 16), messages.Options());
  messages.store = &store;
  TestBatch batch(8, 16);
  for (std::uint64_t i = 0; i < 20000; ++i) batch.Add(Op::kInsert, i, i);
  const Batch inserts = batch.Mixed();
  Ticket ticket = store.ApplyAsync(inserts);
  store.Close();  // finishes the batch, which resizes
  EXPECT_GT(messages.Count("resize begun"), 0);
  ticket.Wait();
  EXPECT_EQ(std::count(inserts.results.begin(), inserts.results.end(), Result::kOk), 20000);
}

TEST_F(LogTest, MayCloseTheStore) {
  Store store;
  OpenOptions open = TestOpenOptions();
  open.log = [&](LogLevel, std::string_view) { store.Close(); };
  store = Store::Create(NewPath(), Shape(8, 16), open);
  store.Reserve(100000);
  EXPECT_FALSE(store);
  EXPECT_EQ(ErrorOf([&] { store.Stats(); }), ErrorCode::kInvalidArgument);
}

/// Whatever a batch, or Close itself, has to tell.
TEST_F(LogTest, MayCloseTheStoreInTheMiddle) {
  struct Case {
    std::string wanted;
    std::uint64_t capacity = 0;  // items: the batch that tells evicts, too
  };
  const std::string folder = NewPath();
  for (const auto& [wanted, capacity] : std::vector<Case>{
           {"resize ended"}, {"cache refreshed"}, {"cache refreshed", 100}, {"snapshot"}}) {
    SCOPED_TRACE(wanted + ", " + std::to_string(capacity));
    Store store;
    bool told = false;
    OpenOptions open = TestOpenOptions();
    open.growth_pause = 0;
    open.cache = {.directory = true, .fraction = 0.5, .refresh_interval = 1000};
    open.capacity.items = capacity;
    if (wanted == "snapshot") open.snapshot = {.path = folder, .at_close = true};
    open.log = [&](LogLevel, std::string_view message) {
      if (told || message.find(wanted) == std::string_view::npos) return;
      told = true;
      store.Close();
    };
    store = Store::Create(NewPath(), Shape(8, 16), open);
    std::vector<std::uint64_t> keys(20);
    std::vector<std::array<std::byte, 16>> values(keys.size());
    std::vector<Result> results(keys.size());
    for (std::uint64_t round = 0; store && round < 20'000; ++round) {
      std::iota(keys.begin(), keys.end(), round * keys.size());
      store.Upsert(std::as_bytes(std::span(keys)), std::as_bytes(std::span(values)), results);
      EXPECT_EQ(results, std::vector(keys.size(), Result::kOk));
      if (wanted == "snapshot") store.Close();
    }
    EXPECT_FALSE(store);
    EXPECT_TRUE(told);
  }
}

TEST_F(LogTest, TellsOfRefreshes) {
  Messages messages;
  OpenOptions open = messages.Options();
  open.cache = {.directory = true, .fraction = 0.5};
  Store store = Store::Create(NewPath(), Shape(8, 128), open);
  store.RefreshCache().Wait();
  EXPECT_EQ(messages.Count("cache refreshed in"), 1);
  store.RefreshCache().Wait();
  EXPECT_EQ(messages.Count("cache refreshed in"), 2);
}

TEST_F(LogTest, TellsWhyAutoTookTheCpu) {
  Messages messages;
  OpenOptions open = messages.Options();
  open.executor = ExecutorKind::kAuto;
  const Store store = Store::Create(NewPath(), {}, open);
  const bool cpu = store.Stats().executor == ExecutorKind::kCpu;
  EXPECT_EQ(messages.Count("executor cpu: "), cpu ? 1 : 0);
}

TEST_F(LogTest, StatsCountOperationsByKind) {
  Store store = Store::Create(NewPath(), Shape(8, 16), TestOpenOptions());
  const auto apply = [&](Op op, std::uint64_t first, std::uint64_t count) {
    TestBatch batch(8, 16);
    for (std::uint64_t i = first; i < first + count; ++i) batch.Add(op, i, i);
    batch.ApplySingle(store, op);
  };
  apply(Op::kInsert, 0, 10000);  // resizes on the way
  apply(Op::kFind, 5000, 10000);
  apply(Op::kUpdate, 0, 3);
  apply(Op::kUpsert, 0, 4);
  apply(Op::kErase, 0, 5);
  StoreStats stats = store.Stats();
  EXPECT_EQ(stats.operations, (std::array<std::uint64_t, kOpKinds>{10000, 10000, 3, 4, 5}));
  EXPECT_EQ(stats.mixed_operations, 0u);
  EXPECT_EQ(stats.finds_found, 5000u);

  TestBatch mixed(8, 16);
  mixed.Add(Op::kFind, 7000, 0);
  mixed.Add(Op::kErase, 7000, 0);
  store.Apply(mixed.Mixed());
  stats = store.Stats();
  EXPECT_EQ(stats.operations, (std::array<std::uint64_t, kOpKinds>{10000, 10000, 3, 4, 5}));
  EXPECT_EQ(stats.mixed_operations, 2u);
  EXPECT_EQ(stats.finds_found, 5001u);
}

}  // namespace
}  // namespace gpm::test
