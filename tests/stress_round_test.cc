// gpmstore stress: what it says at the end of a round, and of snapshots taken meanwhile. That it
// can say no is shown here: behind its back a store is changed, one item at a time.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "cli/stress/round_end.h"
#include "cli/stress/snapshots.h"
#include "cli/stress/watchdog.h"
#include "tests/pool_editor.h"
#include "tests/test_util.h"

namespace gpm::stress {
namespace {

using test::Bytes;

/// No lane's.
constexpr std::uint64_t kForeign = std::uint64_t{0xAB} << 48;

/// A store, and one lane that ran some batches on it.
class StressRoundTest : public test::PoolTest {
 protected:
  StressRoundTest() : findings_([this](const std::string& text) { told_ = text; }) {
    plan_.seed = 1;
    plan_.shape.key_size = plan_.create.key_size = 16;
    plan_.shape.value_size = plan_.create.value_size = 64;
    plan_.create.hash_seed = 1;
    plan_.open.executor = plan_.reopen.executor = ExecutorKind::kCpu;
    plan_.open.threads = plan_.reopen.threads = 1;
    plan_.private_keys = 32;
    plan_.shared_keys = 16;
    plan_.max_batch = 64;
    plan_.batch_sizes = {16, 64};
  }

  void SetUp() override {
    PoolTest::SetUp();
    Begin();
  }

  void Begin() {
    lanes_.clear();
    path_ = NewPath();
    store_.emplace(Store::Create(path_, plan_.create, plan_.open));
    round_.emplace(plan_, 1, *store_, totals_, findings_);
    lanes_.push_back(std::make_unique<Lane>(*round_, 0, 0, memory_, nullptr));
    lanes_[0]->Start(true);
    lanes_[0]->Finish();
    for (int batch = 0; batch < 60; ++batch) {
      lanes_[0]->Start();
      lanes_[0]->Finish();
    }
    EXPECT_EQ(told_, "");
  }

  /// Gives the store an operation that nobody knows of. @param whole else its value is torn
  void Behind(Op op, std::uint64_t id, bool whole = true) {
    const std::uint64_t plan = Planned(op, id);
    Bytes key(plan_.shape.key_size), value(plan_.shape.value_size);
    Rows rows;
    rows.shape = plan_.shape;
    rows.n = 1;
    rows.plan = &plan;
    rows.first_version = kForeign;
    rows.keys = key.data();
    rows.values = value.data();
    FillRows(rows);
    if (!whole) value.back() ^= std::byte{1};
    Result result = Result::kInvalid;
    store_->Apply({.op = op, .keys = key, .values = value, .results = {&result, 1}});
    EXPECT_EQ(result, Result::kOk);
  }
  /// And one on a key that is none.
  void InsertNobodysKey() {
    const Bytes key(plan_.shape.key_size, std::byte{0x77}), value(plan_.shape.value_size);
    Result result = Result::kInvalid;
    store_->Insert(key, value, {&result, 1});
    EXPECT_EQ(result, Result::kOk);
  }

  /// A key of the lane that is there, or that is not.
  std::uint64_t Own(bool present) const {
    const KeyModel& model = lanes_[0]->model();
    for (std::uint64_t number = 0; number < model.keys(); ++number) {
      if (model[number].present == present) return IdIn(kFirstLane, number);
    }
    ADD_FAILURE() << "all keys are so";
    return 0;
  }

  /// Does `change`, after which the end of the round says `what`; then all begins anew.
  template <class Change>
  void ExpectWrongEnd(const std::string& what, const Change& change) {
    change();
    const std::string wrong = CheckRoundEnd(*round_, lanes_, path_);
    EXPECT_NE(wrong.find(what), std::string::npos) << wrong << "\nshould say: " << what;
    Begin();
  }

  RoundPlan plan_;
  Totals totals_;
  std::string told_;
  Findings findings_;
  std::string path_;
  LaneMemory memory_{false};
  std::optional<Store> store_;
  std::optional<RoundState> round_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

using RoundEndTest = StressRoundTest;

TEST_F(RoundEndTest, OfARightRoundSaysNothing) {
  EXPECT_EQ(CheckRoundEnd(*round_, lanes_, path_), "");
  EXPECT_GT(totals_.histories, 0u);
  EXPECT_GT(totals_.history_operations, totals_.histories);
}

TEST_F(RoundEndTest, OpensThePoolAgain) {
  plan_.reopen.max_bytes = 1;
  EXPECT_EQ(test::ErrorOf([&] { CheckRoundEnd(*round_, lanes_, path_); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(RoundEndTest, SeesLanesKeysThatAreOther) {
  const std::string where = "the lanes' keys at the end: ";
  ExpectWrongEnd(where, [&] { Behind(Op::kErase, Own(true)); });
  ExpectWrongEnd(where, [&] { Behind(Op::kInsert, Own(false)); });
  ExpectWrongEnd(where, [&] { Behind(Op::kUpdate, Own(true)); });
  ExpectWrongEnd(where, [&] { Behind(Op::kUpdate, Own(true), false); });
}

TEST_F(RoundEndTest, SeesWatchedKeysThatAreOtherThanTheirHistory) {
  const crash::History history = round_->watched.Histories();
  ASSERT_FALSE(history.empty());
  ExpectWrongEnd("no order explains the operations on key",
                 [&] { Behind(Op::kUpsert, IdIn(kWatched, history[0].key)); });
}

TEST_F(RoundEndTest, SeesValuesThatAreNotWhole) {
  for (const std::uint64_t id : {IdIn(kShared, 2), IdIn(kWatched, 2)}) {
    ExpectWrongEnd("finds at the end: " + KeyName(id) + " holds what is not a whole value",
                   [&] { Behind(Op::kUpsert, id, false); });
  }
}

TEST_F(RoundEndTest, SeesItemsThatOnlyAVisitMeets) {
  ExpectWrongEnd("a visit at the end: a visit meets a key that nobody inserted",
                 [&] { InsertNobodysKey(); });
  ExpectWrongEnd("a visit at the end: ", [&] {
    Behind(Op::kInsert, IdIn(kShared, plan_.shared_keys));  // which no find asks for
  });
}

TEST_F(RoundEndTest, SeesWhatIsOtherWhenThePoolIsOpenedAgain) {
  Contents contents = VisitAll(*store_, plan_.shape);
  std::vector<std::uint64_t> ids;
  for (const auto& item : contents.items) ids.push_back(item.first);
  store_->Close();
  const auto expect = [&](const std::string& what) {
    const std::string wrong = CheckOpenedAgain(*round_, ids, contents, path_);
    EXPECT_EQ(wrong.substr(0, what.size()), what);
    EXPECT_EQ(wrong.empty(), what.empty()) << wrong;
  };
  expect("");
  ++contents.items.back().second;
  expect("finds, opened again: ");
  contents.items.emplace_back(IdIn(kFirstLane + 1, 0), 1);
  expect("opened again: Stats counts ");
  test::Editor(path_).pool().SetClean(false);
  expect("opened again: recovery says that it was not closed");
}

TEST_F(RoundEndTest, AStoreThatIsGivenUpHoldsWholeItemsAlone) {
  EXPECT_EQ(CheckUnusable(*round_, path_), "");
  EXPECT_EQ(totals_.given_up, 1u);
  Begin();
  InsertNobodysKey();
  EXPECT_NE(CheckUnusable(*round_, path_).find("given up, opened again: a visit meets a key"),
            std::string::npos);
  Begin();
  Behind(Op::kUpsert, IdIn(kShared, 2), false);
  EXPECT_NE(CheckUnusable(*round_, path_).find("given up, opened again: shared key 2"),
            std::string::npos);
}

TEST(CheckFiguresTest, SeesItemsThatAreNotCountedAndCellsThatAreLost) {
  StoreStats stats;
  stats.items = 10;
  stats.value_cells = 100;
  stats.free_cells = 90;
  const auto says = [&](std::uint64_t items, std::uint32_t value_size, const std::string& what) {
    const std::string wrong = CheckFigures(stats, items, value_size);
    return wrong.find(what) != std::string::npos && wrong.empty() == what.empty();
  };
  EXPECT_TRUE(says(10, 64, ""));
  EXPECT_TRUE(says(9, 64, "Stats counts 10 items, and there are 9"));
  EXPECT_TRUE(says(11, 64, "Stats counts 10 items"));
  stats.free_cells = 89;
  EXPECT_TRUE(says(10, 64, "1 are lost"));
  stats.free_cells = 91;
  EXPECT_TRUE(says(10, 64, "-1 are lost"));
  // Values of 8 bytes are in the slots.
  EXPECT_TRUE(says(10, 8, "9 are lost"));
  stats.value_cells = stats.free_cells = 0;
  EXPECT_TRUE(says(10, 8, ""));
}

TEST_F(RoundEndTest, SeesAFileThatIsOtherThanItMustBe) {
  store_->Close();
  const std::uint64_t items = CheckPool(path_).items;
  const auto check = [&](std::uint64_t of, std::uint32_t value_size) {
    return CheckFile(path_, of, value_size);
  };
  const std::uint32_t value_size = plan_.shape.value_size;
  EXPECT_EQ(check(items, value_size), "");
  EXPECT_NE(check(items + 1, value_size), "");
  EXPECT_NE(check(items - 1, value_size), "");
  EXPECT_NE(check(items, 8).find(" cells in use"), std::string::npos);
  test::Editor(path_).pool().SetClean(false);
  EXPECT_NE(check(items, value_size).find("clean false"), std::string::npos);
  {
    test::Editor editor(path_);
    *editor.view().Reference(editor.AllSlots(true).front()) = 8;
    editor.pool().SetClean(true);
  }
  EXPECT_EQ(check(items, value_size).rfind("check: level", 0), 0u) << check(items, value_size);
  // Of values in the slots, items alone are counted.
  plan_.shape.value_size = plan_.create.value_size = 8;
  Begin();
  store_->Close();
  const std::uint64_t in_slots = CheckPool(path_).items;
  EXPECT_EQ(check(in_slots, 8), "");
  EXPECT_NE(check(in_slots + 1, 8), "");
}

/// Snapshots of a store that has no lanes, and so no moment at which it must have been so.
class StressSnapshotsTest : public StressRoundTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    store_.emplace(Store::Create(NewPath(), plan_.create, plan_.open));
    round_.emplace(plan_, 1, *store_, totals_, findings_);
  }
  /// Until two were compared, or something was wrong.
  void Run() {
    std::jthread snapshots([&] { RunSnapshots(*round_, {}); });
    while (totals_.snapshots < 2 && !findings_.failed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    round_->stop = true;
  }
  void ExpectTold(const std::string& what) {
    EXPECT_EQ(told_.rfind("snapshot 1, number 1 of its chain: ", 0), 0u) << told_;
    EXPECT_NE(told_.find(what), std::string::npos) << told_;
  }
};

TEST_F(StressSnapshotsTest, SeeAKeyThatNobodyInserted) {
  InsertNobodysKey();
  Run();
  ExpectTold("a visit meets a key that nobody inserted");
}

TEST_F(StressSnapshotsTest, SeeAKeyOfNoLane) {
  Behind(Op::kInsert, IdIn(kFirstLane, 3));
  Run();
  ExpectTold("key 3 of lane 0 is in it, which nobody inserted");
}

TEST_F(StressSnapshotsTest, SeeAValueThatIsNotWhole) {
  Behind(Op::kInsert, IdIn(kShared, 3), false);
  Run();
  ExpectTold("shared key 3 holds what is not a whole value");
}

TEST_F(StressSnapshotsTest, AreReadsOfTheWatchedKeys) {
  Behind(Op::kInsert, IdIn(kShared, 3));
  Behind(Op::kInsert, IdIn(kWatched, 2));
  const std::uint64_t begun = Now();
  Run();
  EXPECT_EQ(told_, "");
  const crash::History reads = round_->watched.Histories();
  std::size_t of_two = 0;
  for (const crash::HistoryOp& read : reads) {
    EXPECT_EQ(read.op, Op::kFind);
    EXPECT_EQ(read.result, read.key == 2 ? Result::kOk : Result::kNotFound);
    EXPECT_EQ(read.found, read.key == 2 ? TokenOf(plan_.shape.value_size, kForeign) : 0u);
    EXPECT_GE(read.invoked_at, begun);
    EXPECT_LE(read.invoked_at, read.returned_at);
    EXPECT_LE(read.returned_at, Now());
    of_two += read.key == 2 ? 1 : 0;
  }
  EXPECT_GE(of_two, 2u);
  EXPECT_EQ(reads.size(), of_two * WatchedKeys::kKeys);
  // So that a history tells whether they may have found that.
  crash::HistoryOp insert;
  insert.key = 2;
  insert.op = Op::kInsert;
  insert.written = TokenOf(plan_.shape.value_size, kForeign);
  insert.returned_at = begun;
  crash::History history = reads;
  EXPECT_NE(crash::FindNonlinearizable(history), "");
  history.push_back(insert);
  EXPECT_EQ(crash::FindNonlinearizable(history), "");
}

TEST(WatchdogTest, TellsWhenNothingGoesOnAndElseNothing) {
  std::binary_semaphore told{0};
  {
    const auto stops = [count = 0]() mutable { return count == 2 ? 2 : ++count; };
    const Watchdog watchdog(0.001, stops, [&] { told.release(); });
    EXPECT_TRUE(told.try_acquire_for(std::chrono::seconds(20)));
  }
  std::binary_semaphore looked{0};
  const auto goes_on = [&, count = 0]() mutable {
    if (++count == 4) looked.release();
    return count;
  };
  const Watchdog watchdog(0.001, goes_on, [&] { told.release(); });
  EXPECT_TRUE(looked.try_acquire_for(std::chrono::seconds(20)));
  EXPECT_FALSE(told.try_acquire());
}

}  // namespace
}  // namespace gpm::stress
