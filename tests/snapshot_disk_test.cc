// Snapshots on a disk that is small: what goes so that the next one has room, and what never goes;
// and where files may not be large, or have a second name.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "engine/store_impl.h"
#include "snapshot/folder.h"
#include "tests/file_size_limit.h"
#include "tests/files.h"
#include "tests/fork.h"
#include "tests/test_util.h"

namespace fs = std::filesystem;

namespace {

/// The disk that all that is written goes to, while there is one.
struct Disk {
  std::string folder;
  std::uint64_t bytes = 0;
};
std::optional<Disk> disk;
std::function<int()> on_link;  ///< called by each, returns its error, or 0: it goes on

std::uint64_t BytesIn(const std::string& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

// NOLINTBEGIN: the names are the linker's
extern "C" {
ssize_t __real_pwrite(int file, const void* data, std::size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  struct stat status {};
  const off_t end = offset + static_cast<off_t>(bytes);
  if (disk && fstat(file, &status) == 0 && end > status.st_size &&
      BytesIn(disk->folder) + static_cast<std::uint64_t>(end - status.st_size) > disk->bytes) {
    errno = ENOSPC;
    return -1;
  }
  return __real_pwrite(file, data, bytes, offset);
}
int __real_link(const char* from, const char* to);
int __wrap_link(const char* from, const char* to) {
  const int error = on_link ? on_link() : 0;
  if (error == 0) return __real_link(from, to);
  errno = error;
  return -1;
}
}
// NOLINTEND

namespace gpm::test {
namespace {

class SnapshotDiskTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    if (IsSkipped()) return;
    folder_ = NewPath();
    pool_ = NewPath();
  }
  void TearDown() override {
    disk.reset();
    on_link = {};
    PoolTest::TearDown();
  }

  /// Snapshots are taken when a test says so, and by Close.
  OpenOptions Scheduled(unsigned chains, bool restore = false) {
    OpenOptions open = TestOpenOptions(64 << 20);
    open.snapshot.path = folder_;
    open.snapshot.interval = 1e8;
    open.snapshot.chains = chains;
    open.snapshot.restore = restore;
    return open;
  }
  /// A session that changes every item, and takes a whole snapshot at its end.
  void Session(unsigned chains) {
    ++sessions_;
    Store store = Store::OpenOrCreate(pool_, Shape(8, 100), Scheduled(chains));
    Change(store);
    store.Close();
  }
  void Change(Store& store) {
    TestBatch batch(8, 100);
    for (std::uint64_t key = 0; key < 1000; ++key) batch.Add(Op::kUpsert, key, sessions_);
    batch.ApplySingle(store, Op::kUpsert);
    batch.Compare(model_);
  }
  void ExpectRestores() {
    fs::remove(pool_);
    Store store = Store::Open(pool_, Scheduled(2, true));
    ExpectContents(store, model_);
  }
  void SetRoom(std::uint64_t beside) { disk = {folder_, BytesIn(folder_) + beside}; }

  std::set<std::string> Files() const { return FilesIn(folder_); }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  std::string pool_;
  Model model_;
  std::uint64_t sessions_ = 0;
};

/// Beyond the limit of a file's size (ulimit -f) a write would end the process.
TEST_F(SnapshotDiskTest, BeyondTheLimitOfAFilesSizeThereIsNoRoom) {
  const std::string file = NewPath();
  ModelledStore store(pool_, Shape(8, 1000), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  for (const unsigned threads : {1u, 8u}) {
    std::optional<ErrorCode> code;
    {
      const FileSizeLimit limit(1 << 20);
      code = ErrorOf([&] { store.store().Snapshot(file, {.threads = threads}); });
    }
    EXPECT_EQ(code, ErrorCode::kNoSpace);
  }
  for (const auto& entry : fs::directory_iterator(fs::path(file).parent_path())) {
    EXPECT_EQ(entry.path().string().rfind(file, 0), std::string::npos) << entry.path();
  }
  std::optional<ErrorCode> code;
  {
    const FileSizeLimit limit(10);  // not for the manifest either
    code = ErrorOf([&] { Store::Create("pinned:", Shape(8, 8), Scheduled(1)); });
  }
  EXPECT_EQ(code, ErrorCode::kNoSpace);
}

/// What a process that was killed left is not in the way of a restore, or of a new pool.
TEST_F(SnapshotDiskTest, WhatACrashLeftMakesRoom) {
  Session(1);
  const std::string left = "000002-0000.snap.partial-0123456789abcdef";
  WriteFile(File(left), std::string(50000, 'x'));
  SetRoom(0);
  ExpectRestores();
  EXPECT_FALSE(Files().contains(left));
  for (const std::string& name : Files()) fs::remove(File(name));
  fs::remove(pool_);
  WriteFile(File(left), std::string(50000, 'x'));
  SetRoom(0);
  Store::Create(pool_, Shape(8, 100), Scheduled(1));
  EXPECT_FALSE(Files().contains(left));
}

/// A process was killed before a chain that is too old was removed. The disk has room for one chain
/// more than are kept, as always.
TEST_F(SnapshotDiskTest, AChainThatIsTooOldGoesBeforeTheNextIsBegun) {
  Session(1);
  const std::string oldest = ReadFile(File("000001-0000.snap"));
  Session(1);
  SetRoom(oldest.size() + 1000);
  WriteFile(File("000001-0000.snap"), oldest);
  Session(1);
  EXPECT_EQ(Files(), (std::set<std::string>{"000003-0000.snap", "MANIFEST"}));
  ExpectRestores();
}

TEST_F(SnapshotDiskTest, AChainThatIsTooOldMakesRoomForTheManifest) {
  Session(1);
  SetRoom(fs::file_size(File("000001-0000.snap")));
  Session(1);
  EXPECT_EQ(Files(), (std::set<std::string>{"000002-0000.snap", "MANIFEST"}));
  ExpectRestores();
}

TEST_F(SnapshotDiskTest, TheOnlyChainThatIsWholeStays) {
  Session(2);
  const Model of_first = model_;
  Session(2);
  std::string damaged = ReadFile(File("000002-0000.snap"));
  damaged[damaged.size() / 2] ^= 1;  // an item's
  WriteFile(File("000002-0000.snap"), damaged);
  SetRoom(0);
  {
    Store store = Store::Open(pool_, Scheduled(1));
    Change(store);
    store.impl()->keeper()->Keep();
    EXPECT_EQ(store.Stats().snapshot_failures, 1u);
    store.Close();
  }
  EXPECT_TRUE(Files().contains("000001-0000.snap"));
  disk.reset();
  model_ = of_first;
  ExpectRestores();
}

/// Names of which no folder's own comes to the numbers.
TEST_F(SnapshotDiskTest, StrayNamesAreNoSnapshots) {
  Session(2);
  const std::string strays[] = {"000001-4000000000.snap", "000001-10000.snap",
                                "18446744073709551615-0000.snap", "18446744073709551616-0000.snap"};
  for (const std::string& name : strays) WriteFile(File(name), "x");
  {
    const SnapshotFolder folder(folder_);
    ASSERT_EQ(folder.chains().size(), 1u);
    ASSERT_EQ(folder.chains()[0].files, 1u);
  }
  ExpectRestores();
  Session(2);
  EXPECT_TRUE(Files().contains("000002-0000.snap"));
  for (const std::string& name : strays) EXPECT_TRUE(Files().contains(name));
  ExpectRestores();
}

/// As file systems in user space may say it.
TEST_F(SnapshotDiskTest, WhereNoFileHasASecondNameItIsRenamed) {
  for (const int error : {EPERM, EOPNOTSUPP, EMLINK, ENOSYS}) {
    on_link = [&] { return error; };
    Session(1);
    ExpectRestores();
  }
  on_link = [] { return EIO; };
  Store store = Store::Open(pool_, TestOpenOptions());
  EXPECT_EQ(ErrorOf([&] { store.Snapshot(NewPath()); }), ErrorCode::kIo);
}

/// Another thread changes the directory before a file gets its name.
TEST_F(SnapshotDiskTest, PathsAreThoseOfTheCall) {
  const fs::path before = fs::current_path();
  const fs::path here = fs::path(pool_).parent_path();
  const std::string elsewhere = NewPath();
  fs::create_directory(elsewhere);
  ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 500));
  on_link = [&] {
    fs::current_path(elsewhere);
    return 0;
  };
  const auto takes = [&](auto&& action) {
    fs::current_path(here);
    EXPECT_EQ(ErrorOf(action), std::nullopt);
    fs::current_path(before);
    EXPECT_TRUE(fs::is_empty(elsewhere));
  };
  takes([&] { store.store().Snapshot("whole"); });
  store.Apply(Op::kInsert, Numbers(500, 500));
  takes([&] { store.store().Snapshot("more", {.base = "whole"}); });
  takes([&] { store.store().Snapshot("again", {.chain = {"whole", "more"}}); });
  takes([&] {
    Store pool = Store::Restore(std::vector<std::string>{"whole", "more"}, "restored.pool",
                                TestOpenOptions());
    ExpectContents(pool, store.model());
    pool.Close();
  });
  ExpectSound(here / "restored.pool", 1000);
  Session(1);
  takes([&] {
    Store pool = Store::OpenOrCreate("reopened.pool", Shape(8, 100), Scheduled(1, true));
    ExpectContents(pool, model_);
  });
  ExpectSound(here / "reopened.pool", 1000);
}

/// What a process leaves that is killed while it restores goes when the pool is restored next.
TEST_F(SnapshotDiskTest, ARestoreThatWasKilledLeavesNothingForGood) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a GPU does not survive a fork";
  Session(1);
  fs::remove(pool_);
  const pid_t child = Fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    on_link = [] { return raise(SIGKILL); };
    try {
      Store::Open(pool_, Scheduled(1, true));
    } catch (...) {
    }
    _exit(1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  const auto count = [&] {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(pool_).parent_path())) {
      files += entry.path().string().starts_with(pool_ + ".restoring-");
    }
    return files;
  };
  EXPECT_EQ(count(), 1);
  // Of another process that is at it: locked, or just made, and not locked yet.
  const std::string locked = pool_ + ".restoring-0123456789abcdef";
  const std::string made = pool_ + ".restoring-0123456789abcde0";
  const std::string of_somebody = pool_ + ".restoring-notes";
  WriteFile(locked, "x");
  WriteFile(made, "");
  WriteFile(of_somebody, "x");
  const int fd = open(locked.c_str(), O_RDONLY);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  ExpectRestores();
  for (const std::string& file : {locked, made, of_somebody}) EXPECT_TRUE(fs::exists(file));
  EXPECT_EQ(count(), 3);
  close(fd);
}

}  // namespace
}  // namespace gpm::test
