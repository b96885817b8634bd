// gpmstore crash-test: what it says of the snapshots that a killed child leaves. That it can say no
// is shown here, one broken promise at a time; kept ones pass.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/crash/snapshot_check.h"
#include "shard/folder.h"
#include "tests/files.h"
#include "tests/pool_editor.h"
#include "tests/test_util.h"

namespace gpm::cli {
namespace {

using test::Bytes;
using Kind = CrashRecord::Kind;
using Defects = std::vector<std::string>;

/// What a child of two writers reports, the even keys being the first's, and what it leaves.
class CrashSnapshotCheckTest : public test::PoolTest {
 protected:
  /// Versions by key.
  using Items = std::map<std::uint64_t, std::uint64_t>;

  CrashSnapshotCheckTest() : items_(8, 64), oracle_(items_) {
    round_.threads = 2;
    round_.key_size = items_.key_size();
    round_.value_size = items_.value_size();
    open_.executor = ExecutorKind::kCpu;
    open_.threads = 1;
  }
  void SetUp() override {
    PoolTest::SetUp();
    pool_ = NewPath();
    std::filesystem::create_directory(CrashSnapshotFolder(pool_));
  }

  // What the child reports.
  void Report(Kind kind, unsigned writer = 0, std::uint64_t place = 0) {
    CrashRecord record;
    record.kind = kind;
    record.writer = writer;
    record.digest[0] = place;
    records_.push_back(record);
    batches_.emplace_back();
  }
  /// A batch that writes these.
  void Start(unsigned writer, const Items& items) {
    Report(Kind::kStarting, writer);
    for (const auto& [key, version] : items) {
      batches_.back().operations.push_back({Op::kUpsert, key, version});
    }
  }
  void Batch(unsigned writer, const Items& items) {
    Start(writer, items);
    Report(Kind::kAcknowledged, writer);
  }

  // What it leaves.
  Bytes Key(std::uint64_t number) const {
    Bytes key(items_.key_size());
    items_.PutKey(number, key.data());
    return key;
  }
  template <class AnyStore>
  void Put(AnyStore& store, const Items& items) const {
    for (const auto& [number, version] : items) {
      Bytes value(items_.value_size());
      items_.PutValue(number, version, value.data());
      Result result = Result::kInvalid;
      store.Upsert(Key(number), value, {&result, 1});
      ASSERT_EQ(result, Result::kOk);
    }
  }
  CreateOptions Create() const {
    CreateOptions create;
    create.key_size = items_.key_size();
    create.value_size = items_.value_size();
    create.hash_seed = 1;
    return create;
  }
  void LeaveSnapshot(const Items& items) {
    const std::string file = CrashSnapshotFile(pool_, 0, 0);
    std::filesystem::remove(file);
    Store store = Store::Create(NewPath(), Create(), open_);
    Put(store, items);
    store.Snapshot(file);
    store.Close();
  }
  void LeaveRestored(const Items& items) {
    std::filesystem::remove(CrashRestoredPool(pool_));
    Store store = Store::Create(CrashRestoredPool(pool_), Create(), open_);
    Put(store, items);
    store.Close();
  }

  CrashSnapshotCheck Told() const {
    CrashSnapshotCheck check(round_, pool_, records_, oracle_);
    for (std::size_t i = 0; i < records_.size(); ++i) {
      check.Tell(records_[i], records_[i].kind == Kind::kStarting ? &batches_[i] : nullptr);
    }
    return check;
  }
  Defects Check() const { return Told().Check(); }
  /// What is wrong when the snapshot holds these items.
  Defects CheckOf(const Items& items) {
    LeaveSnapshot(items);
    return Check();
  }
  /// One thing is wrong, and it is this.
  static void ExpectDefect(const Defects& defects, const std::string& what) {
    ASSERT_EQ(defects.size(), 1u) << ::testing::PrintToString(defects) << "\nshould say: " << what;
    EXPECT_NE(defects[0].find(what), std::string::npos) << defects[0];
  }

  const CrashItems items_;
  CrashOracle oracle_;
  CrashRound round_;
  OpenOptions open_;
  std::string pool_;
  std::vector<CrashRecord> records_;
  std::vector<CrashBatch> batches_;  ///< by record
};

TEST_F(CrashSnapshotCheckTest, WholeBatchesUpToOneMoment) {
  Batch(0, {{2, 100}, {4, 101}});
  Report(Kind::kSnapshotBegun);
  Start(1, {{3, 102}, {5, 103}});
  Report(Kind::kSnapshotTaken);
  Report(Kind::kAcknowledged, 1);
  Batch(0, {{2, 104}});
  EXPECT_EQ(CheckOf({{2, 100}, {4, 101}}), Defects{});
  EXPECT_EQ(CheckOf({{2, 100}, {4, 101}, {3, 102}, {5, 103}}), Defects{});
  EXPECT_TRUE(Told().has_snapshot());
  EXPECT_FALSE(Told().in_snapshot());
  // Without a batch that was acknowledged before; with half of one; with one that began later; with
  // a value that never was, and a key that nobody wrote.
  const std::string first = "snapshot, writer 0: its keys are as after none";
  ExpectDefect(CheckOf({}), first);
  ExpectDefect(CheckOf({{2, 100}}), first);
  ExpectDefect(CheckOf({{2, 100}, {4, 101}, {3, 102}}), "snapshot, writer 1: ");
  ExpectDefect(CheckOf({{2, 104}, {4, 101}}), first);
  ExpectDefect(CheckOf({{2, 100}, {4, 107}}), first);
  ExpectDefect(CheckOf({{2, 100}, {4, 101}, {6, 108}}), first);
}

TEST_F(CrashSnapshotCheckTest, SeesABatchWithoutAnEarlierOne) {
  Report(Kind::kSnapshotBegun);
  Batch(0, {{2, 100}});
  Batch(1, {{3, 101}});
  Report(Kind::kSnapshotTaken);
  for (const Items& right : {Items{}, Items{{2, 100}}, Items{{2, 100}, {3, 101}}}) {
    EXPECT_EQ(CheckOf(right), Defects{});
  }
  ExpectDefect(CheckOf({{3, 101}}), "there is no moment, while the snapshot was taken");
}

TEST_F(CrashSnapshotCheckTest, BeginsWithWhatThePoolHeldBefore) {
  oracle_.Start(0, 0, CrashBatch{false, {{Op::kUpsert, 2, 99}}});
  CrashDigest ok;
  ok.Add(Result::kOk, {});
  oracle_.Acknowledge(0, ok);
  Report(Kind::kSnapshotBegun);
  Report(Kind::kSnapshotTaken);
  EXPECT_EQ(CheckOf({{2, 99}}), Defects{});
  ExpectDefect(CheckOf({}), "snapshot, writer 0: ");
}

TEST_F(CrashSnapshotCheckTest, SeesAKeyThatNoOperationHas) {
  Report(Kind::kSnapshotBegun);
  Report(Kind::kSnapshotTaken);
  EXPECT_EQ(CheckOf({}), Defects{});
  ExpectDefect(CheckOf({{kCrashKeys, 100}}), "a key is in the snapshot that no operation has");
}

TEST_F(CrashSnapshotCheckTest, SeesAKeyTwice) {
  // It is in both shards.
  round_.shards = 2;
  const std::string folder = NewPath();
  ShardedStore::Create(folder, Create(), {.shards = 2}, open_).Close();
  for (const std::string& shard : ShardFolder::PoolsIn(folder)) {
    Store one = Store::Open(shard, open_);
    Put(one, {{2, 100}});
    one.Close();
  }
  ShardedStore store = ShardedStore::Open(folder, open_);
  store.Snapshot(CrashSnapshotFile(pool_, 0, 0));
  store.Close();
  Batch(0, {{2, 100}});
  Report(Kind::kSnapshotBegun);
  Report(Kind::kSnapshotTaken);
  ExpectDefect(Check(), "key 2 is in the snapshot twice");
}

TEST_F(CrashSnapshotCheckTest, OperationsOfAScopeAreThereEachByItself) {
  round_.threads = 1;
  round_.scopes = true;
  ASSERT_TRUE(round_.IsInScope(1));
  Batch(1, {{3, 100}, {5, 101}});
  Report(Kind::kSnapshotBegun);
  Start(1, {{3, 102}, {5, 103}});
  Report(Kind::kSnapshotTaken);
  for (const std::uint64_t three : {100u, 102u}) {
    for (const std::uint64_t five : {101u, 103u}) {
      EXPECT_EQ(CheckOf({{3, three}, {5, five}}), Defects{});
    }
  }
  ExpectDefect(CheckOf({{3, 100}, {5, 104}}),
               "key 5, of kernels, is in the snapshot as it never was");
  ExpectDefect(CheckOf({{5, 101}}), "key 3, of kernels, ");
  ExpectDefect(CheckOf({{3, 100}, {5, 101}, {7, 105}}), "key 7, of kernels, ");
}

TEST_F(CrashSnapshotCheckTest, WhatTheChildRestoredIsTheSame) {
  Batch(0, {{2, 100}, {4, 101}});
  Report(Kind::kSnapshotBegun);
  Report(Kind::kSnapshotTaken);
  Report(Kind::kRestoring);
  EXPECT_TRUE(Told().in_restore());
  LeaveSnapshot({{2, 100}, {4, 101}});
  LeaveRestored({{2, 100}, {4, 101}});
  EXPECT_EQ(Check(), Defects{});
  for (const Items& other :
       {Items{{2, 100}}, Items{{2, 100}, {4, 102}}, Items{{2, 100}, {4, 101}, {6, 103}}}) {
    LeaveRestored(other);
    ExpectDefect(Check(), "what the child restored is not what the snapshots hold");
  }
  LeaveRestored({{2, 100}, {4, 101}});
  {
    test::Editor editor(CrashRestoredPool(pool_));
    *editor.view().Reference(editor.AllSlots(true).front()) = 8;
    editor.pool().SetClean(true);
  }
  const Defects defects = Check();
  ASSERT_FALSE(defects.empty());
  EXPECT_EQ(defects[0].rfind("restored by the child: level", 0), 0u) << defects[0];
}

TEST_F(CrashSnapshotCheckTest, SeesAPoolThatWasRestoredOfNothing) {
  Report(Kind::kSnapshotBegun);
  EXPECT_EQ(Check(), Defects{});
  LeaveRestored({});
  ExpectDefect(Check(), "a pool was restored of nothing");
}

TEST_F(CrashSnapshotCheckTest, SeesASnapshotThatIsGoneOrDamaged) {
  Batch(0, {{2, 100}});
  Report(Kind::kSnapshotBegun);
  Report(Kind::kSnapshotTaken);
  ExpectDefect(Check(), "a snapshot that was complete can't be restored");
  LeaveSnapshot({{2, 100}});
  const std::string file = CrashSnapshotFile(pool_, 0, 0);
  const std::string whole = test::ReadFile(file);
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 1;
  test::WriteFile(file, damaged);
  ExpectDefect(Check(), "a snapshot that was complete can't be restored");
  test::WriteFile(file, whole);
  EXPECT_EQ(Check(), Defects{});
}

TEST_F(CrashSnapshotCheckTest, OneThatWasBeingTakenIsCompleteOrNotThere) {
  Batch(0, {{2, 100}});
  Report(Kind::kSnapshotBegun);
  EXPECT_TRUE(Told().in_snapshot());
  EXPECT_FALSE(Told().has_snapshot());
  EXPECT_EQ(Check(), Defects{});
  LeaveSnapshot({{2, 100}});
  EXPECT_TRUE(Told().has_snapshot());
  EXPECT_EQ(Check(), Defects{});
  LeaveSnapshot({});
  ExpectDefect(Check(), "snapshot, writer 0: ");
  // Then the one before it is the newest, with what it held.
  LeaveSnapshot({{2, 100}});
  Report(Kind::kSnapshotTaken);
  Batch(0, {{2, 101}});
  Report(Kind::kSnapshotBegun, 0, 1);
  EXPECT_TRUE(Told().in_snapshot());
  EXPECT_EQ(Check(), Defects{});
  LeaveSnapshot({{2, 101}});
  ExpectDefect(Check(), "snapshot, writer 0: ");
}

}  // namespace
}  // namespace gpm::cli
