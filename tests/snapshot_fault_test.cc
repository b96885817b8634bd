// What a failed system call leaves of a snapshot, and of a restore: a whole file or none, a whole
// pool or none.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "gpmstore/error.h"
#include "snapshot/new_file.h"
#include "tests/fault_injection.h"
#include "tests/files.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

constexpr std::uint32_t kValueSize = 40;

class SnapshotFaultTest : public PoolTest {
 protected:
  static void Put(Store& store, std::uint64_t first, std::uint64_t count) {
    TestBatch batch(8, store.value_size());
    for (const std::uint64_t key : Numbers(first, count)) batch.Add(Op::kInsert, key, key);
    EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  }
  /// A path in a folder of its own: a restore reads the names beside its pool, and a snapshot those
  /// beside its file, so that what faults before left there would be calls of it.
  std::string NewPathAlone() {
    const std::string folder = NewPath();
    std::filesystem::create_directory(folder);
    return folder + "/pool";
  }
};

/// A restore whose snapshots can't be kept leaves no pool.
TEST_F(SnapshotFaultTest, ARestoreThatCantKeepSnapshotsLeavesNoPool) {
  OpenOptions open = TestOpenOptions();
  const std::string file = NewPath();
  const std::string folder = NewPath();
  {
    Store store = Store::Create(NewPath(), Shape(8, kValueSize), open);
    Put(store, 1, 10);
    store.Snapshot(file);
  }
  bool hit = true;
  std::uint64_t failures = 0;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const std::string path = NewPathAlone();
    std::filesystem::remove_all(folder);
    OpenOptions keeps = open;
    keeps.snapshot.path = folder;
    std::optional<Store> store;
    const Fault fault(FaultKind::kSystemCall, k);
    try {
      const Fault::Armed armed;
      store.emplace(Store::Restore({&file, 1}, path, keeps));
    } catch (const std::exception&) {
      ++failures;
    }
    hit = fault.hit();
    EXPECT_EQ(std::filesystem::exists(path), store.has_value()) << "after call " << k;
  }
  EXPECT_GT(failures, 10u);
  std::filesystem::remove_all(folder);
}

/// The same where the newest snapshot is damaged, and has to be set aside.
TEST_F(SnapshotFaultTest, ARestoreFromAFolderLeavesAPoolOrNone) {
  namespace fs = std::filesystem;
  const std::string folder = NewPath();
  const std::string copy = NewPath();
  OpenOptions keeps = TestOpenOptions();
  keeps.snapshot.path = folder;
  const std::string pool = NewPath();
  {
    Store store = Store::Create(pool, Shape(8, kValueSize), keeps);
    Put(store, 1, 10);
    store.Close();  // which takes a snapshot
  }
  std::string newest;
  {
    Store store = Store::Open(pool, keeps);
    Put(store, 11, 10);
    store.Close();
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".snap")) newest = std::max(newest, name);
  }
  fs::resize_file(folder + "/" + newest, 5000);
  keeps.snapshot.path = copy;
  bool hit = true;
  std::uint64_t failures = 0;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const std::string path = NewPathAlone();
    fs::remove_all(copy);
    fs::copy(folder, copy);
    std::optional<Store> store;
    const Fault fault(FaultKind::kSystemCall, k);
    try {
      const Fault::Armed armed;
      store.emplace(Store::RestoreNewest(copy, path, keeps));
    } catch (const std::exception&) {
      ++failures;
    }
    hit = fault.hit();
    EXPECT_EQ(fs::exists(path), store.has_value()) << "after call " << k;
    if (store) {
      EXPECT_EQ(store->Stats().items, 10u);
    }
  }
  EXPECT_GT(failures, 10u);
}

/// What a snapshot has of the executor's memory goes when its file is synced, or could not be.
TEST_F(SnapshotFaultTest, CloseWaitsForTheSync) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Put(store, 1, 500);
  const std::string file = NewPath();
  std::atomic<bool> closed{false};
  bool closed_meanwhile = true;
  std::thread closer;
  {
    const Fault action(
        FaultKind::kSystemCall, 1,
        [&] {
          closer = std::thread([&] {
            store.Close();
            closed = true;
          });
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          closed_meanwhile = closed;
        },
        "fsync");
    const Fault::Armed armed;
    store.Snapshot(file);
    ASSERT_TRUE(action.hit());
  }
  closer.join();
  EXPECT_FALSE(closed_meanwhile);
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(ErrorOf([&] { store.Snapshot(file + ".next"); }), ErrorCode::kInvalidArgument);
}

/// Takes a snapshot, with a fault. @return what was thrown, if that was something
std::optional<ErrorCode> SnapshotError(Store& store, const std::string& file) {
  const Fault::Armed armed;
  return ErrorOf([&] { store.Snapshot(file, {.threads = 1}); });
}

/// What a file can't be opened for, or written by, O_DIRECT is written through the page cache.
TEST_F(SnapshotFaultTest, AMediumThatTakesNoDirectWrites) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Put(store, 1, 500);
  const auto expect_whole = [&](const std::string& file) {
    EXPECT_EQ(Store::Restore({&file, 1}, NewPath(), TestOpenOptions()).Stats().items, 500u);
  };
  {
    const std::string file = NewPath();
    const Fault fault(FaultKind::kSystemCall, 1, EINVAL, "open");
    EXPECT_FALSE(SnapshotError(store, file));
    EXPECT_TRUE(fault.hit());
    expect_whole(file);
  }
  int failures = 0;
  bool hit = true;
  for (std::uint64_t k = 1; hit; ++k) {
    SCOPED_TRACE(k);
    const std::string file = NewPath();
    const NoDirectWrites no_direct_writes;
    const Fault fault(FaultKind::kSystemCall, k, EIO, "fcntl");
    const std::optional<ErrorCode> error = SnapshotError(store, file);
    hit = fault.hit();
    EXPECT_EQ(error, hit ? std::optional(ErrorCode::kIo) : std::nullopt);
    EXPECT_EQ(std::filesystem::exists(file), !hit);
    if (!hit) expect_whole(file);
    EXPECT_EQ(DirectWritesAreRefused(), hit);
    failures += hit ? 1 : 0;
  }
  EXPECT_EQ(failures, 2) << "its flags are asked for, and set";
  const std::string file = NewPath();
  const NoDirectWrites no_direct_writes;
  const Fault fault(FaultKind::kSystemCall, 1, EINVAL, "pwrite");  // nor through the page cache
  EXPECT_EQ(SnapshotError(store, file), ErrorCode::kIo);
  EXPECT_FALSE(std::filesystem::exists(file));
}

/// Without links, a file that can't be looked for may be there.
TEST_F(SnapshotFaultTest, ANameThatCantBeLookedForIsNotTaken) {
  const std::string temporary = NewPath();
  const std::string path = NewPath();
  WriteFile(temporary, "new");
  WriteFile(path, "there");
  const NoLinks no_links;
  const auto give_name = [&](int error) {
    const Fault fault(FaultKind::kSystemCall, error == 0 ? 0 : 1, error, "lstat");
    const Fault::Armed armed;
    return ErrorOf([&] { GiveName(temporary, path); });
  };
  EXPECT_EQ(give_name(EIO), ErrorCode::kIo);
  EXPECT_EQ(give_name(0), ErrorCode::kExists);
  EXPECT_EQ(ReadFile(path), "there");
  EXPECT_EQ(ReadFile(temporary), "new");
  std::filesystem::remove(path);
  EXPECT_FALSE(give_name(0));
  EXPECT_EQ(ReadFile(path), "new");
}

class TmpfsSnapshotFaultTest : public SnapshotFaultTest {
 protected:
  TmpfsSnapshotFaultTest() { parent_ = kTmpfs; }
};

/// Of as many writers as map a file on tmpfs (NewFile::Expect), with blocks that are large enough.
TEST_F(TmpfsSnapshotFaultTest, ASnapshotByManyWritersIsWholeOrNone) {
  constexpr std::uint64_t kMany = 6000;
  constexpr std::uint32_t kLarge = 1000;
  Store store = Store::Create(NewPath(), Shape(8, kLarge), TestOpenOptions());
  Put(store, 0, kMany);
  bool hit = true;
  bool maps_failed = false;
  for (std::uint64_t k = 1; hit && !HasFailure(); ++k) {
    const std::string file = NewPathAlone();
    bool taken = false;
    {
      const Fault fault(FaultKind::kSystemCall, k, ENOSPC);
      try {
        const Fault::Armed armed;
        store.Snapshot(file, {.threads = 4});
        taken = true;
      } catch (const std::exception&) {
      }
      hit = fault.hit();
      // Where a mapping or its pages can't be had the file is written. (On executor cuda memory for
      // what is copied is mapped, too, and is needed.)
      const std::string call = hit ? fault.call() : "";
      if (call == "madvise" || call == "mmap") {
        EXPECT_TRUE(taken || (call == "mmap" && TestExecutor() == ExecutorKind::kCuda)) << call;
        maps_failed = true;
      }
    }
    ASSERT_EQ(std::filesystem::exists(file), taken) << "after call " << k;
    if (!taken) continue;
    const std::string path = NewPath();
    Store restored = Store::Restore({&file, 1}, path, TestOpenOptions());
    EXPECT_EQ(restored.Stats().items, kMany);
    std::uint64_t wrong = 0;
    restored.ForEach([&](auto key, auto value) {
      if (AsString(value) != MakeValue(KeyNumber(key), kLarge)) ++wrong;
    });
    EXPECT_EQ(wrong, 0u);
    restored.Close();
    std::filesystem::remove(path);
    std::filesystem::remove(file);
  }
  EXPECT_TRUE(maps_failed) << "it did not map";
}

}  // namespace
}  // namespace gpm::test
