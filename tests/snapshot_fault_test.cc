// What a failed system call leaves of a snapshot, and of a restore: a whole file or none, a whole
// pool or none.

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/fault_injection.h"
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
    const std::string path = NewPath();
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
    const std::string path = NewPath();
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
    const std::string file = NewPath();
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
      // Where a mapping or its pages can't be had the file is written.
      const std::string call = hit ? fault.call() : "";
      if (call == "madvise" || call == "mmap") {
        EXPECT_TRUE(taken) << call;
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
