// Room ahead of need: what the next growth takes of the medium is made ready beside batches, is
// never much, and goes with who wanted it.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "engine/store_impl.h"
#include "pm/mapping.h"
#include "tests/all_zero.h"
#include "tests/file_size_limit.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Of mappings, in memory and on an ordinary file system.
class RoomAheadTest : public PoolTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    path_ = NewPath();
    if (!GetParam()) return;
    std::string pattern = "/dev/shm/gpmstore_test_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "no /dev/shm";
    in_memory_ = pattern;
    if (std::filesystem::space(in_memory_).available < 512 * kMiB) {
      GTEST_SKIP() << "/dev/shm is small, or full";
    }
    path_ = in_memory_ + "/pool";
  }
  void TearDown() override {
    std::error_code ignored;
    if (!in_memory_.empty()) std::filesystem::remove_all(in_memory_, ignored);
    PoolTest::TearDown();
  }
  std::unique_ptr<Mapping> Make(std::uint64_t bytes, std::uint64_t max_bytes = 512 * kMiB) {
    auto mapping =
        std::make_unique<Mapping>(path_, Mapping::Options{.max_bytes = max_bytes, .create = true});
    mapping->RemoveOnClose(false);
    mapping->Grow(bytes);
    return mapping;
  }
  std::uint64_t FileBytes() const { return std::filesystem::file_size(path_); }

  std::string path_;
  std::string in_memory_;
};

std::string PlaceName(const ::testing::TestParamInfo<bool>& place) {
  return place.param ? "Shm" : "TemporaryDirectory";
}

INSTANTIATE_TEST_SUITE_P(Places, RoomAheadTest, ::testing::Bool(), PlaceName);

TEST_P(RoomAheadTest, GrowTakesWhatIsReady) {
  const auto mapping = Make(8 * kMiB);
  mapping->MakeReady(11 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 12 * kMiB);
  mapping->AwaitReady();
  EXPECT_EQ(mapping->mapped_bytes(), 8 * kMiB);
  EXPECT_EQ(mapping->file_bytes(), 8 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 12 * kMiB);
  EXPECT_EQ(FileBytes(), 12 * kMiB);
  mapping->MakeReady(10 * kMiB);  // there is more already
  mapping->Grow(9 * kMiB);
  EXPECT_EQ(mapping->mapped_bytes(), 12 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 12 * kMiB);
  EXPECT_EQ(mapping->growth_times().growths, 2u);
  EXPECT_EQ(mapping->growth_times().waits, 1u) << "that of the first growth";
  EXPECT_TRUE(AllZero(mapping->base() + 8 * kMiB, mapping->base() + 12 * kMiB));
  std::memset(mapping->base(), 1, 12 * kMiB);
}

/// Errors of the threads that make room name the file.
TEST_P(RoomAheadTest, TheNameChangesWhenNoRoomIsBeingMade) {
  const auto mapping = Make(64 * kMiB);
  mapping->MakeReady(128 * kMiB);
  mapping->SetPath(path_ + "2");
  EXPECT_EQ(mapping->made_bytes(), 128 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 128 * kMiB);
  mapping->SetPath(path_);
}

TEST_P(RoomAheadTest, GrowWaitsForNoMoreThanItNeeds) {
  const std::uint64_t step = RoomAhead::kStepBytes;
  const auto mapping = Make(4 * step);
  mapping->MakeReady(6 * step + 2 * kMiB);
  mapping->Grow(4 * step + 1);
  EXPECT_EQ(mapping->mapped_bytes(), 5 * step);
  EXPECT_EQ(mapping->pool_bytes(), 6 * step + 2 * kMiB);
  mapping->Grow(7 * step);  // more than was wanted
  EXPECT_EQ(mapping->mapped_bytes(), 7 * step);
  EXPECT_EQ(mapping->pool_bytes(), 7 * step);
  EXPECT_EQ(FileBytes(), 7 * step);
  EXPECT_TRUE(AllZero(mapping->base() + 4 * step, mapping->base() + 7 * step));
  mapping->MakeReady(7 * step + 1);
  mapping->AwaitReady();
  mapping->Grow(7 * step + 2 * kMiB);
  EXPECT_EQ(mapping->growth_times().growths, 4u);
  EXPECT_LE(mapping->growth_times().waits, 3u);
}

TEST_P(RoomAheadTest, NoMoreThanTheMaximumAndThanThereIs) {
  const auto mapping = Make(2 * kMiB, 5 * kMiB);
  mapping->MakeReady(100 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 4 * kMiB);
  mapping->Grow(4 * kMiB);
  mapping->MakeReady(100 * kMiB);
  mapping->AwaitReady();
  EXPECT_EQ(mapping->pool_bytes(), 5 * kMiB);
  EXPECT_EQ(FileBytes(), 5 * kMiB);
  mapping->Grow(5 * kMiB);
  mapping->MakeReady(6 * kMiB);
  EXPECT_EQ(ErrorOf([&] { mapping->Grow(5 * kMiB + 1); }), ErrorCode::kNoSpace);
  EXPECT_EQ(mapping->pool_bytes(), 5 * kMiB);
}

TEST_P(RoomAheadTest, FailsQuietlyAndOnce) {
  const auto mapping = Make(8 * kMiB);
  {
    const FileSizeLimit limit(8 * kMiB);
    mapping->MakeReady(10 * kMiB);
    mapping->AwaitReady();
    EXPECT_EQ(mapping->pool_bytes(), 8 * kMiB);
    EXPECT_EQ(FileBytes(), 8 * kMiB);
    EXPECT_TRUE(mapping->want_of_space().empty());
    EXPECT_EQ(ErrorOf([&] { mapping->Grow(10 * kMiB); }), ErrorCode::kNoSpace);
    EXPECT_FALSE(mapping->want_of_space().empty());
  }
  mapping->MakeReady(10 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 8 * kMiB) << "tried again";
  mapping->Grow(10 * kMiB);
  EXPECT_TRUE(mapping->want_of_space().empty());
  mapping->MakeReady(12 * kMiB);
  EXPECT_EQ(mapping->pool_bytes(), 12 * kMiB);
  mapping->AwaitReady();
  EXPECT_EQ(FileBytes(), 12 * kMiB);
}

TEST_P(RoomAheadTest, WhatIsReadyIsGrownIntoWhereNoMoreFits) {
  const auto mapping = Make(8 * kMiB);
  mapping->MakeReady(10 * kMiB);
  mapping->AwaitReady();
  const FileSizeLimit limit(10 * kMiB);
  EXPECT_EQ(ErrorOf([&] { mapping->Grow(12 * kMiB); }), ErrorCode::kNoSpace);
  EXPECT_EQ(mapping->mapped_bytes(), 10 * kMiB);
  EXPECT_EQ(FileBytes(), 10 * kMiB);
}

TEST_P(RoomAheadTest, ShrinkingAndTheEndGiveItBack) {
  for (const bool wait : {true, false}) {
    auto mapping = Make(8 * kMiB);
    mapping->MakeReady(16 * kMiB);
    if (wait) mapping->AwaitReady();
    mapping->Shrink(8 * kMiB);
    EXPECT_EQ(mapping->mapped_bytes(), 8 * kMiB);
    EXPECT_EQ(FileBytes(), 8 * kMiB);
    EXPECT_EQ(mapping->pool_bytes(), 8 * kMiB);
    mapping->MakeReady(16 * kMiB);
    if (wait) mapping->AwaitReady();
    mapping->Shrink(4 * kMiB);
    EXPECT_EQ(mapping->pool_bytes(), 4 * kMiB);
    mapping->MakeReady(6 * kMiB);
    mapping->Grow(5 * kMiB);
    EXPECT_EQ(mapping->mapped_bytes(), 6 * kMiB);
    EXPECT_TRUE(AllZero(mapping->base() + 4 * kMiB, mapping->base() + 6 * kMiB));
    mapping->MakeReady(12 * kMiB);
    if (wait) mapping->AwaitReady();
    mapping.reset();
    EXPECT_EQ(FileBytes(), 6 * kMiB);
    std::filesystem::remove(path_);
  }
}

TEST_P(RoomAheadTest, AForkedChildLeavesItAlone) {
  auto mapping = Make(64 * kMiB);
  mapping->MakeReady(128 * kMiB);
  const pid_t child = Fork();
  if (child == 0) {
    alarm(200);
    mapping.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  mapping->Grow(128 * kMiB);
  EXPECT_EQ(FileBytes(), 128 * kMiB);
  std::memset(mapping->base() + 64 * kMiB, 1, 64 * kMiB);
}

TEST(PinnedRoomAhead, IsTakenAsOfAFile) {
  Mapping mapping(std::string(Mapping::kPinnedPath), {.max_bytes = 64 * kMiB, .create = true});
  mapping.Grow(8 * kMiB);
  mapping.MakeReady(10 * kMiB);
  mapping.Grow(10 * kMiB);
  EXPECT_EQ(mapping.mapped_bytes(), 10 * kMiB);
  EXPECT_TRUE(AllZero(mapping.base(), mapping.base() + 10 * kMiB));
  mapping.MakeReady(12 * kMiB);
  mapping.Shrink(4 * kMiB);
  EXPECT_EQ(mapping.pool_bytes(), 4 * kMiB);
}

/// Stages that note what they did to each step's bytes, and fail where they are told to.
class NotingStages {
 public:
  static constexpr std::uint64_t kStep = RoomAhead::kStepBytes;
  enum class State { kNothing, kFilled, kReady };

  RoomAhead::Stages stages() {
    return {.fill = [this](const MappedStep& range, bool) { Change(range, State::kFilled); },
            .finish = [this](const MappedStep& step) { Change(step, State::kReady); },
            .discard = [this](const MappedStep& range) { Change(range, State::kNothing); }};
  }
  /// The steps, of kStep, at which each stage fails from now on.
  void FailAt(std::set<std::uint64_t> fills, std::set<std::uint64_t> finishes) {
    const std::lock_guard lock(mutex_);
    fails_[0] = std::move(fills);
    fails_[1] = std::move(finishes);
  }
  /// Nobody has what lies behind `end` any more.
  void Forget(std::uint64_t end) {
    const std::lock_guard lock(mutex_);
    states_.resize(end / kStep);
  }
  std::vector<State> states() {
    const std::lock_guard lock(mutex_);
    return states_;
  }
  int wrong() {
    const std::lock_guard lock(mutex_);
    return wrong_;
  }

 private:
  void Change(const MappedStep& range, State to) {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t s = range.offset / kStep; s < range.end() / kStep; ++s) {
      if (to != State::kNothing && fails_[to == State::kReady ? 1 : 0].contains(s)) {
        throw Error(ErrorCode::kNoSpace, "as told");
      }
    }
    for (std::uint64_t s = range.offset / kStep; s < range.end() / kStep; ++s) {
      if (to == State::kFilled && states_.size() == s) states_.push_back(State::kNothing);
      const State from = to == State::kFilled ? State::kNothing : State::kFilled;
      if (s >= states_.size() || states_[s] != from)
        ++wrong_;
      else
        states_[s] = to;
    }
    while (!states_.empty() && states_.back() == State::kNothing) states_.pop_back();
  }
  std::mutex mutex_;
  std::vector<State> states_;
  std::set<std::uint64_t> fails_[2];
  int wrong_ = 0;
};

constexpr std::uint64_t kStep = NotingStages::kStep;

TEST(RoomAheadStages, OneStepIsFilledWhileAnotherIsFinished) {
  std::promise<void> second_begun;
  std::future<void> begun = second_begun.get_future();
  bool beside = false;
  RoomAhead ahead({.fill =
                       [&](const MappedStep& range, bool) {
                         if (range.offset == kStep) second_begun.set_value();
                       },
                   .finish =
                       [&](const MappedStep& step) {
                         if (step.offset > 0) return;
                         beside =
                             begun.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
                       },
                   .discard = [](const MappedStep&) {}});
  ahead.Want(0, 2 * kStep);
  ahead.Await();
  EXPECT_TRUE(beside);
  EXPECT_EQ(ahead.ReadyEnd(0), 2 * kStep);
  EXPECT_EQ(ahead.Drop().size(), 2u);
}

TEST(RoomAheadStages, WhatCanNotBeFinishedIsDiscardedWithAllBehindIt) {
  NotingStages notes;
  notes.FailAt({}, {3});
  RoomAhead ahead(notes.stages());
  ahead.Want(0, 8 * kStep);
  ahead.Await();
  EXPECT_EQ(ahead.ReadyEnd(0), 3 * kStep);
  EXPECT_EQ(ahead.WantedEnd(0), 3 * kStep);
  EXPECT_EQ(notes.states(), std::vector(3, NotingStages::State::kReady));
  notes.FailAt({}, {});
  ahead.Want(0, 8 * kStep);
  EXPECT_EQ(ahead.WantedEnd(0), 3 * kStep) << "tried again";
  std::vector<MappedStep> steps;
  ahead.Take(8 * kStep, &steps);
  EXPECT_EQ(steps.size(), 3u);
  notes.Forget(5 * kStep);
  ahead.Want(5 * kStep, 6 * kStep);  // who wanted the room has made it
  ahead.Await();
  EXPECT_EQ(ahead.ReadyEnd(0), 6 * kStep);
  EXPECT_EQ(ahead.Drop().size(), 1u);
  EXPECT_EQ(notes.wrong(), 0);
}

TEST(RoomAheadStages, AnyOrderOfCallsAndFailuresLeavesStepsSideBySide) {
  std::mt19937_64 random(7);
  const auto draw = [&](std::uint64_t n) { return random() % n; };
  NotingStages notes;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    notes.Forget(0);
    RoomAhead ahead(notes.stages());
    std::uint64_t end = 0;  // of the mapping
    for (int call = 0; call < 12; ++call) {
      if (draw(3) == 0) notes.FailAt({end / kStep + draw(9)}, {end / kStep + draw(9)});
      ahead.Want(end, end + (1 + draw(8)) * kStep);
      if (draw(2) == 0) ahead.Await();
      std::vector<MappedStep> steps;
      if (draw(4) == 0) {
        steps = ahead.Drop();
      } else {
        ahead.Take(end + draw(9) * kStep, &steps);
      }
      std::uint64_t next = end;
      for (const MappedStep& step : steps) {
        ASSERT_EQ(step.offset, next);
        next = step.end();
      }
      const std::vector<NotingStages::State> states = notes.states();
      ASSERT_GE(states.size(), next / kStep);
      for (std::uint64_t s = end / kStep; s < next / kStep; ++s) {
        ASSERT_EQ(states[s], NotingStages::State::kReady) << "step " << s;
      }
      end = next;
    }
    const std::vector<MappedStep> rest = ahead.Drop();
    ASSERT_EQ(notes.states().size(), rest.empty() ? end / kStep : rest.back().end() / kStep);
    ASSERT_EQ(notes.wrong(), 0);
  }
}

/// Of stores.
class StoreRoomTest : public PoolTest {
 protected:
  static CreateOptions Sizes(std::uint32_t value_size) {
    CreateOptions create;
    create.value_size = value_size;
    return create;
  }
  static std::uint64_t FileBytes(const ModelledStore& store) {
    return std::filesystem::file_size(store.path());
  }
};

TEST_F(StoreRoomTest, GrowthFindsItsRoomReady) {
  for (const std::uint32_t value_size : {8u, 100u}) {
    for (const double growth : {2.0, 1.25}) {
      SCOPED_TRACE(testing::Message() << "values of " << value_size << ", growth " << growth);
      OpenOptions open = TestOpenOptions();
      open.growth = growth;
      ModelledStore store(NewPath(), Sizes(value_size), open);
      const StoreStats before = store.store().Stats();
      for (std::uint64_t first = 0; first < 200'000; first += 2000) {
        store.Apply(Op::kInsert, Numbers(first, 2000));
        store.store().impl()->AwaitReadyRoom();
      }
      const StoreStats after = store.store().Stats();
      EXPECT_GE(after.pool_growths, before.pool_growths + 2);
      // (A table that has to grow far earlier than ever before is not foreseen.)
      EXPECT_LE(after.pool_growth_waits, before.pool_growth_waits + 1);
      store.Reopen();
    }
  }
}

TEST_F(StoreRoomTest, AStoreThatNobodyWritesToDoesNotGrow) {
  ModelledStore store(NewPath(), Sizes(100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 50'000));
  store.Apply(Op::kErase, Numbers(0, 2000));  // so that there are cells to begin an update with
  store.Reopen();
  const std::uint64_t bytes = store.store().Stats().pm_bytes;
  EXPECT_EQ(FileBytes(store), bytes) << "closed, a pool has nothing ready";
  for (int round = 0; round < 5; ++round) {
    store.Apply(Op::kFind, Numbers(0, 60'000));
    store.Apply(Op::kErase, Numbers(60'000, 1000));
    // (On executor cuda a small batch that only writes takes cells before it knows of its keys.)
    if (TestExecutor() == ExecutorKind::kCpu) store.Apply(Op::kUpdate, Numbers(60'000, 1000));
  }
  EXPECT_EQ(store.store().Stats().pm_bytes, bytes);
  EXPECT_EQ(store.store().Stats().pm_bytes_ready, 0u);
}

TEST_F(StoreRoomTest, IsAtMostOneStepOfGrowth) {
  std::mt19937_64 random(TestSeed());
  for (const std::uint32_t value_size : {8u, 64u, 1000u}) {
    SCOPED_TRACE("values of " + std::to_string(value_size));
    ModelledStore store(NewPath(), Sizes(value_size), TestOpenOptions());
    for (int round = 0; round < 60; ++round) {
      const std::uint64_t first = random() % 40'000;
      constexpr Op kOps[] = {Op::kInsert, Op::kInsert, Op::kUpsert, Op::kUpdate, Op::kErase};
      store.Apply(kOps[random() % 5], Numbers(first, 1 + random() % 4000), random());
      const StoreStats stats = store.store().Stats();
      const std::uint64_t cells =
          value_size == 8 ? 0 : std::max<std::uint64_t>(stats.value_cells / 32, 8000) * value_size;
      const std::uint64_t level = stats.level_buckets[0] * 2 * 8 * 16;
      EXPECT_LE(stats.pm_bytes_ready, cells + level + 2 * kMiB);
      EXPECT_LE(2 * stats.pm_bytes_ready, stats.pm_bytes) << "more than doubled";
      if (HasFailure()) return;
    }
    store.store().Compact();
    EXPECT_EQ(store.store().Stats().pm_bytes_ready, 0u);
    EXPECT_EQ(FileBytes(store), store.store().Stats().pm_bytes);
  }
}

TEST_F(StoreRoomTest, ManyUpdatesHaveTheCellsThatTheyTake) {
  constexpr std::uint64_t kItems = 60'000;
  ModelledStore store(NewPath(), Sizes(100), TestOpenOptions());
  for (std::uint64_t first = 0; first < kItems; first += 2000) {
    store.Apply(Op::kInsert, Numbers(first, 2000));
  }
  const std::uint64_t updates = kItems / 6;
  ASSERT_LT(store.store().Stats().free_cells, updates);
  for (int round = 0; round < 12; ++round) store.Apply(Op::kUpdate, Numbers(0, updates));
  const StoreStats many = store.store().Stats();
  EXPECT_GE(many.free_cells, updates) << "a batch of them is carried out at once";
  EXPECT_LE(many.value_cells, kItems + kItems / 3);
  for (int round = 0; round < 5; ++round) store.Apply(Op::kUpdate, Numbers(7, updates));
  EXPECT_EQ(store.store().Stats().value_cells, many.value_cells) << "they give back what they take";
  store.Reopen();
}

TEST_F(StoreRoomTest, ClosesWhileRoomIsBeingMade) {
  ModelledStore store(NewPath(), Sizes(100), TestOpenOptions());
  unsigned underway = 0;
  for (std::uint64_t first = 0; first < 100'000; first += 2500) {
    store.Apply(Op::kInsert, Numbers(first, 2500));
    const StoreStats stats = store.store().Stats();
    underway += stats.pm_bytes_ready > 0;
    store.Reopen();
    EXPECT_EQ(FileBytes(store), stats.pm_bytes - stats.pm_bytes_ready);
  }
  EXPECT_GT(underway, 2u);
}

TEST_F(StoreRoomTest, AFullMediumIsMetByWhoNeedsTheRoom) {
  ModelledStore store(NewPath(), Sizes(100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 20'000));
  std::uint64_t items = 20'000;
  {
    const FileSizeLimit limit(8 * kMiB);
    TestBatch batch = store.NewBatch();
    do {
      batch = store.NewBatch();
      for (int i = 0; i < 1000; ++i) batch.Add(Op::kInsert, items++, 7);
      batch.ApplySingle(store.store(), Op::kInsert);
      batch.Compare(store.model(), true);
    } while (batch.result(999) != Result::kNoSpace);
    store.store().impl()->AwaitReadyRoom();
    EXPECT_LE(store.store().Stats().pm_bytes, 8 * kMiB);
    EXPECT_GE(store.store().Stats().items, 40'000u);
    store.Apply(Op::kUpdate, Numbers(0, 1000), 3);
    store.Apply(Op::kErase, Numbers(0, 1000));
  }
  store.Apply(Op::kInsert, Numbers(1'000'000, 30'000));
  store.Reopen();
}

TEST_F(StoreRoomTest, AForkedChildClosesAStoreThatGrows) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "its allocator keeps the locks of threads that a child has not";
#endif
  ModelledStore store(NewPath(), Sizes(100), TestOpenOptions());
  for (std::uint64_t round = 0; round < 30; ++round) {
    store.Apply(Op::kInsert, Numbers(round * 4000, 4000));
    const pid_t child = Fork();
    if (child == 0) {
      alarm(200);
      store.store().Close();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  store.Reopen();
}

}  // namespace
}  // namespace gpm::test
