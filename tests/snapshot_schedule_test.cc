// Snapshots that a store takes of itself (OpenOptions::snapshot): which are kept, what a pool that
// is gone is restored from, and what happens when something of it is damaged or fails.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "engine/store_impl.h"
#include "snapshot/folder.h"
#include "snapshot/reader.h"
#include "tests/files.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

namespace fs = std::filesystem;

class SnapshotScheduleTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    if (IsSkipped()) return;
    folder_ = NewPath();
    pool_ = NewPath();
  }

  /// Snapshots are taken when a test says so, and not by the clock.
  OpenOptions Scheduled(bool restore = false) {
    OpenOptions open = TestOpenOptions(64 << 20);
    open.snapshot.path = folder_;
    open.snapshot.interval = 1e8;
    open.snapshot.restore = restore;
    open.log = [this](LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      if (level == LogLevel::kWarning) warnings_ += std::string(message) + "\n";
    };
    return open;
  }
  std::string TakeWarnings() {
    const std::lock_guard lock(mutex_);
    return std::exchange(warnings_, {});
  }

  std::set<std::string> Files() const { return FilesIn(folder_); }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }

  static void Keep(Store& store) { store.impl()->keeper()->Keep(); }

  /// The folder as it is now holds the model; a copy of it, as a store may have it locked.
  void ExpectRestores(const Model& model) {
    const std::string path = NewPath();
    const std::string copy = NewPath();
    fs::copy(folder_, copy);
    Store store = Store::RestoreNewest(copy, path, TestOpenOptions());
    ExpectContents(store, model);
    store.Close();
    fs::remove(path);
    fs::remove_all(copy);
  }

  /// A store with two chains, of one file and of three; the states that each file has.
  void MakeTwoChains() {
    OpenOptions open = Scheduled();
    open.snapshot.at_close = false;
    ModelledStore store(pool_, Shape(8, 40), open);
    const auto keep = [&] {
      Keep(store.store());
      states_.push_back(store.model());
    };
    store.Apply(Op::kInsert, Numbers(0, 500));
    keep();
    store.Reopen(open);
    store.Apply(Op::kInsert, Numbers(500, 500));
    keep();
    store.Apply(Op::kUpdate, Numbers(3, 5), 9);
    keep();
    store.Apply(Op::kErase, Numbers(100, 5));
    keep();
    store.store().Close();
    ASSERT_EQ(Files(), (std::set<std::string>{"000001-0000.snap", "000002-0000.snap",
                                              "000002-0001.snap", "000002-0002.snap", "MANIFEST"}));
  }
  /// The pool is gone and restored: to this state, with or without a warning that names something.
  void ExpectRestored(std::size_t state, const std::string& warning) {
    fs::remove(pool_);
    TakeWarnings();
    Store store = Store::Open(pool_, Scheduled(true));
    ExpectContents(store, states_[state]);
    const std::string warnings = TakeWarnings();
    EXPECT_EQ(warnings.empty(), warning.empty()) << warnings;
    EXPECT_NE(warnings.find(warning), std::string::npos) << warnings;
    EXPECT_EQ(store.Stats().items, states_[state].size());
    store.Close();
    ExpectSound(pool_, states_[state].size());
  }

  std::string folder_;
  std::string pool_;
  std::vector<Model> states_;

 private:
  std::mutex mutex_;
  std::string warnings_;
};

void Damage(const std::string& path) {
  std::string contents = ReadFile(path);
  contents[contents.size() / 2] ^= 1;
  WriteFile(path, contents);
}

TEST_F(SnapshotScheduleTest, KeepsIncrementsAndTheLastChains) {
  ModelledStore store(pool_, Shape(8, 1000), Scheduled());
  Keep(store.store());  // (Something may have changed.)
  store.Apply(Op::kInsert, Numbers(0, 1000));
  std::set<std::string> whole;
  for (int i = 0; i < 40 && whole.size() < 4; ++i) {
    Keep(store.store());
    ExpectRestores(store.model());
    store.Apply(Op::kUpdate, Numbers(static_cast<std::uint64_t>(i) * 20, 200), i);
    for (const std::string& name : Files()) {
      if (name.ends_with("-0000.snap")) whole.insert(name);
    }
  }
  // The increments' bytes passed those of the whole ones, and the oldest chains are gone.
  EXPECT_EQ(whole.size(), 4u);
  std::set<std::string> chains;
  std::size_t increments = 0;
  for (const std::string& name : Files()) {
    if (name != "MANIFEST") chains.insert(name.substr(0, 6));
    increments += name.ends_with(".snap") && !name.ends_with("-0000.snap");
  }
  EXPECT_EQ(chains, (std::set<std::string>{"000003", "000004"}));
  EXPECT_GT(increments, 1u);
  store.Reopen();
}

TEST_F(SnapshotScheduleTest, TakesNoneWhereNothingChanged) {
  ModelledStore store(pool_, Shape(8, 40), Scheduled());
  store.Apply(Op::kInsert, Numbers(0, 100));
  Keep(store.store());
  const std::uint64_t taken = store.store().Stats().snapshots;
  store.Apply(Op::kFind, Numbers(0, 100));
  store.store().Compact();
  Keep(store.store());
  EXPECT_EQ(store.store().Stats().snapshots, taken);
  store.Apply(Op::kUpdate, Numbers(0, 1), 1);
  Keep(store.store());
  EXPECT_EQ(store.store().Stats().snapshots, taken + 1);
  const std::set<std::string> files = Files();
  for (int i = 0; i < 3; ++i) store.Reopen();  // which reads alone
  EXPECT_EQ(Files(), files);
  ExpectRestores(store.model());
  // A session without a schedule, of which the folder knows nothing.
  store.Reopen(TestOpenOptions());
  store.Apply(Op::kUpdate, Numbers(0, 1), 2);
  store.Reopen();
  store.store().Close();
  EXPECT_NE(Files(), files);
  ExpectRestores(store.model());
}

TEST_F(SnapshotScheduleTest, CloseTakesTheLastOne) {
  {
    ModelledStore store(pool_, Shape(8, 8), Scheduled());
    store.Apply(Op::kInsert, Numbers(0, 300));
    store.store().Close();
    ExpectRestores(store.model());
  }
  OpenOptions open = Scheduled();
  open.snapshot.at_close = false;
  const std::set<std::string> files = Files();
  Store store = Store::Open(pool_, open);
  TestBatch batch(8, 8);
  batch.Add(Op::kErase, 5, 0);
  store.Apply(batch.Mixed());
  store.Close();
  EXPECT_EQ(Files(), files);
}

/// By the clock; no batch is waited for, and none waits for the folder.
TEST_F(SnapshotScheduleTest, ItsThreadTakesThem) {
  OpenOptions open = Scheduled();
  open.snapshot.interval = 1e-3;
  ModelledStore store(pool_, Shape(8, 100), open);
  std::uint64_t round = 0;
  for (; store.store().Stats().snapshots < 5; ++round) {
    store.Apply(Op::kUpsert, Numbers(round % 50 * 10, 200), round);
  }
  EXPECT_EQ(store.store().Stats().snapshot_failures, 0u);
  store.store().Close();
  ExpectRestores(store.model());
}

TEST_F(SnapshotScheduleTest, APoolThatIsGoneIsRestored) {
  OpenOptions open = Scheduled(true);
  EXPECT_EQ(ErrorOf([&] { Store::Open(pool_, open); }), ErrorCode::kNotFound);
  Model model;
  std::uint64_t first = 0;
  for (int boot = 0; boot < 6; ++boot) {
    Store store = Store::OpenOrCreate(pool_, Shape(16, 30), open);
    ExpectContents(store, model);
    TestBatch batch(16, 30);
    for (std::uint64_t i = 0; i < 100; ++i) batch.Add(Op::kInsert, first++, i);
    batch.ApplySingle(store, Op::kInsert);
    batch.Compare(model);
    if (boot % 2 == 0) store.impl()->keeper()->Keep();
    store.Close();
    fs::remove(pool_);
  }
  EXPECT_EQ(TakeWarnings(), "");
  // Of other sizes or attributes than the caller would have: nothing is restored.
  CreateOptions searched = Shape(16, 30);
  searched.attributes = {{.name = "a", .offset = 0, .bytes = 8}};
  const std::string manifest = ReadFile(File("MANIFEST"));
  for (const CreateOptions& other : {Shape(8, 30), Shape(16, 32), searched}) {
    EXPECT_EQ(ErrorOf([&] { Store::OpenOrCreate(pool_, other, open); }),
              ErrorCode::kInvalidArgument);
    EXPECT_FALSE(fs::exists(pool_));
    EXPECT_EQ(ReadFile(File("MANIFEST")), manifest);
  }
  Store store = Store::OpenOrCreate(pool_, Shape(16, 30), open);
  ExpectContents(store, model);
}

TEST_F(SnapshotScheduleTest, APinnedPoolIsRestoredEachTime) {
  OpenOptions open = Scheduled(true);
  Model model;
  for (std::uint64_t boot = 0; boot < 3; ++boot) {
    Store store = Store::OpenOrCreate("pinned:", Shape(8, 24), open);
    ExpectContents(store, model);
    TestBatch batch(8, 24);
    for (std::uint64_t i = 0; i < 50; ++i) batch.Add(Op::kUpsert, 30 * boot + i, boot);
    batch.ApplySingle(store, Op::kUpsert);
    batch.Compare(model);
    store.Close();
  }
}

/// Who gets no store finds no folder either that was not there.
TEST_F(SnapshotScheduleTest, WhatFailsLeavesNoFolder) {
  CreateOptions bad = Shape(8, 40);
  bad.key_size = 0;
  for (const bool restore : {false, true}) {
    EXPECT_EQ(ErrorOf([&] { Store::Create(pool_, bad, Scheduled(restore)); }),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { Store::OpenOrCreate(pool_, bad, Scheduled(restore)); }),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { Store::Open(pool_, Scheduled(restore)); }), ErrorCode::kNotFound);
    EXPECT_FALSE(fs::exists(folder_));
  }
  // Nor under the pool's own name.
  OpenOptions same = Scheduled();
  same.snapshot.path = pool_;
  EXPECT_TRUE(ErrorOf([&] { Store::Create(pool_, Shape(8, 40), same); }).has_value());
  EXPECT_FALSE(fs::exists(pool_));
  // One that was there stays.
  fs::create_directory(folder_);
  EXPECT_EQ(ErrorOf([&] { Store::Create(pool_, bad, Scheduled()); }), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(fs::exists(folder_));
}

TEST_F(SnapshotScheduleTest, NothingBecomesAnEmptyStoreSilently) {
  MakeTwoChains();
  fs::remove(pool_);
  const auto exists = [&](auto&& make) {
    EXPECT_EQ(ErrorOf(make), ErrorCode::kExists);
    EXPECT_FALSE(fs::exists(pool_));
  };
  exists([&] { Store::Create(pool_, Shape(8, 40), Scheduled()); });
  exists([&] { Store::Create(pool_, Shape(8, 40), Scheduled(true)); });
  exists([&] { Store::OpenOrCreate(pool_, Shape(8, 40), Scheduled()); });
  exists([&] { Store::OpenOrCreate("pinned:", Shape(8, 40), Scheduled()); });
  EXPECT_EQ(ErrorOf([&] { Store::Open(pool_, Scheduled()); }), ErrorCode::kNotFound);
  for (const char* name : {"000001-0000.snap", "000002-0000.snap"}) Damage(File(name));
  const std::set<std::string> files = Files();
  const auto damaged = [&](auto&& make) {
    std::string message;
    EXPECT_EQ(ErrorOf(make, &message), ErrorCode::kDamaged);
    EXPECT_NE(message.find("000002-0000.snap"), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(pool_));
    EXPECT_EQ(Files(), files);
  };
  damaged([&] { Store::Open(pool_, Scheduled(true)); });
  damaged([&] { Store::OpenOrCreate(pool_, Shape(8, 40), Scheduled(true)); });
  damaged([&] { Store::RestoreNewest(folder_, pool_, TestOpenOptions()); });
  for (const std::string& name : Files()) {
    if (name != "MANIFEST") fs::remove(File(name));
  }
  EXPECT_EQ(ErrorOf([&] { Store::OpenOrCreate(pool_, Shape(8, 40), Scheduled(true)); }),
            ErrorCode::kDamaged);
}

TEST_F(SnapshotScheduleTest, WholeChainsAreRestoredWithoutAWarning) {
  MakeTwoChains();
  ExpectRestored(3, "");
}
TEST_F(SnapshotScheduleTest, OfADamagedIncrementWhatIsBeforeCounts) {
  MakeTwoChains();
  Damage(File("000002-0002.snap"));
  ExpectRestored(2, "000002-0002.snap");
  EXPECT_TRUE(Files().contains("000002-0002.snap.damaged"));
  // What was set aside is not missed again, and the chain that is left counts.
  ExpectRestored(2, "");
}
TEST_F(SnapshotScheduleTest, AnIncrementBehindADamagedOneIsNotUsed) {
  MakeTwoChains();
  fs::resize_file(File("000002-0001.snap"), 5000);
  ExpectRestored(1, "000002-0001.snap");
  EXPECT_TRUE(Files().contains("000002-0002.snap.damaged"));
}
TEST_F(SnapshotScheduleTest, AMissingFileIsMissed) {
  MakeTwoChains();
  fs::remove(File("000002-0002.snap"));
  ExpectRestored(2, "000002-0002.snap");
}
TEST_F(SnapshotScheduleTest, OfADamagedChainTheOneBeforeCounts) {
  MakeTwoChains();
  Damage(File("000002-0000.snap"));
  ExpectRestored(0, "000002-0000.snap");
  // And goes on with a number of its own.
  Store store = Store::Open(pool_, Scheduled());
  TestBatch batch(8, 40);
  batch.Add(Op::kErase, 0, 0);
  store.Apply(batch.Mixed());
  store.Close();
  EXPECT_TRUE(Files().contains("000003-0000.snap"));
  EXPECT_TRUE(Files().contains("000001-0000.snap"));
}
TEST_F(SnapshotScheduleTest, AFileThatTheManifestDoesNotNameYetCounts) {
  MakeTwoChains();
  const std::string last = ReadFile(File("000002-0002.snap"));
  fs::remove(File("000002-0002.snap"));
  ExpectRestored(2, "000002-0002.snap");  // which it names no more
  WriteFile(File("000002-0002.snap"), last);
  ExpectRestored(3, "");
}

/// Every byte of it, every length, and none.
TEST_F(SnapshotScheduleTest, ADamagedManifestIsMadeAnew) {
  MakeTwoChains();
  const std::string path = File("MANIFEST");
  const std::string right = ReadFile(path);
  const auto expect_read = [&](bool warns) {
    const SnapshotFolder folder(folder_);
    ASSERT_EQ(folder.chains().size(), 2u);
    EXPECT_EQ(folder.chains()[1].files, 3u);
    EXPECT_EQ(folder.warnings().empty(), !warns);
    const SnapshotFile file(File("000001-0000.snap"));
    EXPECT_TRUE(folder.IsOf(file.header().pool));
  };
  expect_read(false);
  for (std::size_t at = 0; at < right.size() && !HasFailure(); ++at) {
    std::string wrong = right;
    wrong[at] = static_cast<char>(wrong[at] ^ 1);
    WriteFile(path, wrong);
    expect_read(true);
    WriteFile(path, right.substr(0, at));
    expect_read(true);
  }
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);  // nobody writes to it
  expect_read(true);
  ExpectRestored(3, "MANIFEST");
  fs::remove(path);
  ExpectRestored(3, "");
}

TEST_F(SnapshotScheduleTest, OfAFolderThatIsNotThereNothingIsRestored) {
  const std::string none = NewPath();
  EXPECT_EQ(ErrorOf([&] { Store::RestoreNewest(none, pool_, TestOpenOptions()); }),
            ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(none));
  ModelledStore store(pool_, Shape(8, 40), TestOpenOptions());
  EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(none + "/whole.snap"); }), ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(none));
}

TEST_F(SnapshotScheduleTest, AFileWithoutANameIsNotFound) {
  MakeTwoChains();
  const std::string file = NewPath();
  Store store = Store::Open(pool_, TestOpenOptions());
  store.Snapshot(file);
  const std::vector<std::string> files{file};
  EXPECT_EQ(ErrorOf([&] { store.Snapshot(""); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([&] { Store::Restore(files, "", TestOpenOptions()); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([&] { Store::RestoreNewest(folder_, "", TestOpenOptions()); }),
            ErrorCode::kNotFound);
}

/// A folder that is restored from stays as it is, where another is for the store's snapshots.
TEST_F(SnapshotScheduleTest, ARestoredStoreKeepsItsSnapshotsInTheFolderThatItIsTold) {
  MakeTwoChains();
  Damage(File("000002-0002.snap"));
  const std::set<std::string> files = Files();
  const std::string manifest = ReadFile(File("MANIFEST"));
  OpenOptions open = Scheduled();
  open.snapshot.path = NewPath();
  Store store = Store::RestoreNewest(folder_, NewPath(), open);
  ExpectContents(store, states_[2]);
  store.Close();
  EXPECT_EQ(Files(), files);
  EXPECT_EQ(ReadFile(File("MANIFEST")), manifest);
  EXPECT_EQ(FilesIn(open.snapshot.path), (std::set<std::string>{"000001-0000.snap", "MANIFEST"}));
  EXPECT_EQ(ErrorOf([&] { Store::RestoreNewest(folder_, NewPath(), open); }), ErrorCode::kExists);
  // It has other names.
  open.snapshot.path = folder_ + "/.";
  Store::RestoreNewest(folder_, NewPath(), open).Close();
  EXPECT_TRUE(Files().contains("000002-0002.snap.damaged"));
}

TEST_F(SnapshotScheduleTest, AFolderIsOfOnePool) {
  MakeTwoChains();
  const std::string other = NewPath();
  Store::Create(other, Shape(8, 40), TestOpenOptions()).Close();
  const std::set<std::string> files = Files();
  EXPECT_EQ(ErrorOf([&] { Store::Open(other, Scheduled()); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Files(), files);
  EXPECT_TRUE(CheckPool(other).clean);
  Store store = Store::Open(pool_, Scheduled());
  EXPECT_EQ(ErrorOf([&] { Store::Open(other, Scheduled()); }), ErrorCode::kBusy);
  EXPECT_EQ(ErrorOf([&] { Store::RestoreNewest(folder_, NewPath(), TestOpenOptions()); }),
            ErrorCode::kBusy);
  store.Close();
  ExpectRestores(states_.back());
}

TEST_F(SnapshotScheduleTest, FailuresAreToldAndDoNotStopTheStore) {
  ModelledStore store(pool_, Shape(8, 40), Scheduled());
  store.Apply(Op::kInsert, Numbers(0, 100));
  Keep(store.store());
  const std::string away = NewPath();
  fs::rename(folder_, away);
  for (std::uint64_t i = 1; i <= 2; ++i) {
    store.Apply(Op::kUpdate, Numbers(0, 10), i);
    Keep(store.store());
    const StoreStats stats = store.store().Stats();
    EXPECT_EQ(stats.snapshot_failures, i);
    EXPECT_NE(stats.snapshot_error.find(folder_), std::string::npos) << stats.snapshot_error;
  }
  store.store().Reserve(10);  // tells the log
  fs::rename(away, folder_);
  Keep(store.store());
  EXPECT_EQ(store.store().Stats().snapshot_failures, 2u);
  EXPECT_EQ(store.store().Stats().snapshot_error, "");
  EXPECT_NE(TakeWarnings().find("no snapshot: "), std::string::npos);
  ExpectContents(store.store(), store.model());
  store.store().Close();
  ExpectRestores(store.model());
}

TEST_F(SnapshotScheduleTest, OtherSnapshotsBeginAnotherChain) {
  ModelledStore store(pool_, Shape(8, 40), Scheduled());
  store.Apply(Op::kInsert, Numbers(0, 100));
  Keep(store.store());
  store.store().Snapshot(NewPath());  // from which changes are tracked now
  store.Apply(Op::kUpdate, Numbers(0, 10), 1);
  Keep(store.store());
  EXPECT_TRUE(Files().contains("000002-0000.snap"));
  store.store().Snapshot(NewPath(), {.track_changes = false});
  store.Apply(Op::kUpdate, Numbers(0, 10), 2);
  Keep(store.store());
  EXPECT_TRUE(Files().contains("000002-0001.snap"));
  // A file in the way of the next.
  WriteFile(File("000002-0002.snap"), "");
  store.Apply(Op::kUpdate, Numbers(0, 10), 3);
  Keep(store.store());
  EXPECT_TRUE(Files().contains("000003-0000.snap") || Files().contains("000004-0000.snap"));
  EXPECT_EQ(store.store().Stats().snapshot_failures, 0u);
  store.store().Close();
  ExpectRestores(store.model());
}

TEST_F(SnapshotScheduleTest, TheFolderStaysWhereItIsWhenTheDirectoryChanges) {
  const fs::path before = fs::current_path();
  const std::string elsewhere = NewPath();
  fs::create_directory(elsewhere);
  fs::current_path(fs::path(folder_).parent_path());
  OpenOptions open = Scheduled();
  open.snapshot.path = fs::path(folder_).filename();
  ModelledStore store(pool_, Shape(8, 40), open);
  fs::current_path(elsewhere);
  store.Apply(Op::kInsert, Numbers(0, 500));
  Keep(store.store());
  store.Apply(Op::kInsert, Numbers(500, 500));
  store.store().Close();
  fs::current_path(before);
  EXPECT_EQ(TakeWarnings(), "");
  EXPECT_TRUE(fs::is_empty(elsewhere));
  ExpectRestores(store.model());
}

TEST_F(SnapshotScheduleTest, WhatACrashLeftIsRemoved) {
  MakeTwoChains();
  const std::set<std::string> files = Files();
  WriteFile(File("000002-0003.snap.partial-0123456789abcdef"), "x");
  WriteFile(File("something else"), "x");
  Store store = Store::Open(pool_, Scheduled());
  EXPECT_FALSE(Files().contains("000002-0003.snap.partial-0123456789abcdef"));
  EXPECT_TRUE(Files().contains("something else"));
  store.Close();
}

TEST_F(SnapshotScheduleTest, SchedulesThatCantBeAreRefused) {
  const auto refused = [&](auto&& change) {
    OpenOptions open = Scheduled();
    change(open.snapshot);
    EXPECT_EQ(ErrorOf([&] { Store::Create(pool_, Shape(8, 8), open); }),
              ErrorCode::kInvalidArgument);
    EXPECT_FALSE(fs::exists(pool_));
  };
  refused([](SnapshotSchedule& s) { s.interval = 0; });
  refused([](SnapshotSchedule& s) { s.interval = -1; });
  refused([](SnapshotSchedule& s) { s.interval = std::numeric_limits<double>::quiet_NaN(); });
  refused([](SnapshotSchedule& s) { s.interval = 1e300; });
  refused([](SnapshotSchedule& s) { s.chains = 0; });
  refused([](SnapshotSchedule& s) {
    s.path.clear();
    s.restore = true;
  });
  OpenOptions open = Scheduled();
  open.snapshot.path = NewPath() + "/no/folder";
  EXPECT_EQ(ErrorOf([&] { Store::Create(pool_, Shape(8, 8), open); }), ErrorCode::kIo);
  EXPECT_FALSE(fs::exists(pool_));
  open.snapshot.path = NewPath();
  WriteFile(open.snapshot.path, "a file");
  EXPECT_TRUE(ErrorOf([&] { Store::Create(pool_, Shape(8, 8), open); }).has_value());
  EXPECT_FALSE(fs::exists(pool_));
}

/// On the thread that takes them the store can't be closed; that says so, and waits for nothing.
TEST_F(SnapshotScheduleTest, TheLogMayCallTheStore) {
  OpenOptions open = Scheduled();
  open.snapshot.interval = 1e-3;
  Store store;
  std::atomic<int> told{0};
  std::atomic<int> busy{0};
  std::atomic<bool> ready{false};
  const std::thread::id mine = std::this_thread::get_id();
  open.log = [&](LogLevel, std::string_view) {
    if (!ready || std::this_thread::get_id() == mine) return;
    ++told;
    store.Stats();
    store.Reserve(100);
    busy += ErrorOf([&] { store.Close(); }) == ErrorCode::kBusy;
  };
  store = Store::Create(pool_, Shape(8, 8), open);
  ready = true;
  std::uint64_t key = 0;
  while (told < 3) {
    TestBatch batch(8, 8);
    ++key;
    batch.Add(Op::kUpsert, key, key);
    store.Apply(batch.Mixed());
    // A batch tells what is there to tell: without a pause, all that the other thread has.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ready = false;
  store.Close();
  EXPECT_GE(busy, 2);
}

TEST_F(SnapshotScheduleTest, AForkLetsGoOfTheFolder) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a GPU does not survive a fork";
  Store store = Store::Create(pool_, Shape(8, 8), Scheduled());
  int ends[2];
  int gone[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(pipe(gone), 0);
  const pid_t child = Fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    store = Store();
    close(ends[1]);
    if (write(gone[1], "g", 1) != 1) _exit(1);
    char byte = 0;
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  char byte = 0;
  EXPECT_EQ(read(gone[0], &byte, 1), 1);
  store.Close();
  Store::Open(pool_, Scheduled()).Close();  // while the child is there
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const int fd : {ends[0], gone[0], gone[1]}) close(fd);
}

TEST_F(SnapshotScheduleTest, ClosingLetsGoOfTheFolderWhileAForkHasItOpen) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a GPU does not survive a fork";
  Store store = Store::Create(pool_, Shape(8, 8), Scheduled());
  const pid_t child = Fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  store.Close();
  EXPECT_EQ(ErrorOf([&] { Store::Open(pool_, Scheduled()).Close(); }), std::nullopt);
  kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

/// A process that is killed: what its folder has is one of its states, and none before one that it
/// knew to be there.
TEST_F(SnapshotScheduleTest, KillsLeaveTheNewestState) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a GPU does not survive a fork";
  constexpr std::uint64_t kKeys = 400;
  OpenOptions open = Scheduled(true);
  open.log = {};
  Store::Create(pool_, Shape(8, 100), open).Close();
  std::uint64_t version = 0;
  for (int kill_number = 0; kill_number < 16; ++kill_number) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        Store store = Store::Open(pool_, open);
        for (std::uint64_t next = version + 1;; ++next) {
          TestBatch batch(8, 100);
          for (std::uint64_t key = 0; key < kKeys; ++key) {
            batch.Add(Op::kUpsert, key, next);
          }
          store.Apply(batch.Mixed());
          Keep(store);
          if (store.Stats().snapshot_failures != 0) _exit(1);
          if (write(told[1], &next, sizeof next) != sizeof next) _exit(1);
        }
      } catch (...) {
      }
      _exit(1);
    }
    close(told[1]);
    std::uint64_t known = version;
    const auto read_one = [&] { return read(told[0], &known, sizeof known) == sizeof known; };
    EXPECT_TRUE(read_one());
    std::this_thread::sleep_for(std::chrono::microseconds(700 * kill_number));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed";
    while (read_one()) {
    }
    close(told[0]);
    fs::remove(pool_);  // a reboot
    Store store = Store::Open(pool_, open);
    TestBatch finds(8, 100);
    for (std::uint64_t key = 0; key < kKeys; ++key) finds.Add(Op::kFind, key, 0);
    ASSERT_EQ(finds.CallFor(store, Op::kFind), 0u);
    std::memcpy(&version, finds.found(0).data(), sizeof version);
    EXPECT_GE(version, known);
    EXPECT_LE(version, known + 1);
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      ASSERT_EQ(AsString(finds.found(key)), MakeValue(version, 100)) << key;
    }
    store.Close();
  }
}

}  // namespace
}  // namespace gpm::test
