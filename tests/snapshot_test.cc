// Snapshots: the state of one instant beside batches, increments, what is refused, and restoring.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/store_impl.h"
#include "tests/snapshot_fixture.h"
#include "tests/test_util.h"

namespace {

std::mutex write_mutex;
std::condition_variable write_changed;
bool writes_are_held = false;
std::uint64_t writes_held = 0;  ///< that have come to where they wait
int write_error = 0;            ///< what all of them report, if not 0

/// Holds up what snapshots write during its life: they are in the middle of copying then.
class HeldWrites {
 public:
  HeldWrites() {
    const std::lock_guard lock(write_mutex);
    writes_are_held = true;
    writes_held = 0;
  }
  ~HeldWrites() { Release(); }
  HeldWrites(const HeldWrites&) = delete;
  HeldWrites& operator=(const HeldWrites&) = delete;

  void AwaitFirst() {
    std::unique_lock lock(write_mutex);
    write_changed.wait(lock, [] { return writes_held > 0; });
  }
  void Release(int error = 0) {
    const std::lock_guard lock(write_mutex);
    writes_are_held = false;
    write_error = error;
    write_changed.notify_all();
  }
};

}  // namespace

// NOLINTBEGIN: the names are the linker's
extern "C" {
ssize_t __real_pwrite(int file, const void* data, std::size_t bytes, off_t offset);
/// Writes no more than a part of what it is to write, as the system may.
ssize_t __wrap_pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  {
    std::unique_lock lock(write_mutex);
    ++writes_held;
    write_changed.notify_all();
    write_changed.wait(lock, [] { return !writes_are_held; });
    if (write_error != 0) {
      errno = write_error;
      return -1;
    }
  }
  constexpr std::size_t kPage = 4096;
  const std::size_t part = bytes > 2 * kPage ? bytes / 2 / kPage * kPage : bytes;
  return __real_pwrite(file, data, part, offset);
}
}
// NOLINTEND

namespace gpm::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Shapes, SnapshotShapeTest, ::testing::ValuesIn(kSnapshotShapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

TEST_P(SnapshotShapeTest, HasAllItems) {
  ModelledStore store(NewPath(), Create(), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 5000));  // 0 and ~0 are reserved keys of 8 bytes
  store.Apply(Op::kInsert, {~std::uint64_t{0}});
  store.Apply(Op::kErase, Numbers(100, 500));
  store.Apply(Op::kUpdate, Numbers(1000, 500), 7);
  const std::string file = NewPath();
  const SnapshotResult result = store.store().Snapshot(file);
  EXPECT_EQ(result.items, store.model().size());
  EXPECT_EQ(result.written, store.model().size());
  EXPECT_EQ(result.bytes, std::filesystem::file_size(file));
  EXPECT_EQ(store.store().Stats().snapshots, 1u);
  EXPECT_EQ(store.store().Stats().snapshot_bytes, result.bytes);
  const Model then = store.model();
  store.Apply(Op::kErase, Numbers(0, 50));
  ExpectRestores({file}, then);
  store.Reopen();
}

TEST_P(SnapshotShapeTest, OfAnEmptyStore) {
  ModelledStore store(NewPath(), Create(), TestOpenOptions());
  const std::string file = NewPath();
  EXPECT_EQ(store.store().Snapshot(file).items, 0u);
  ExpectRestores({file}, {});
  const std::string second = NewPath();
  EXPECT_EQ(store.store().Snapshot(second, {.base = file}).items, 0u);
  ExpectRestores({file, second}, {});
}

/// Cells that updates took since the instant are used again while values are still being copied: a
/// pool grows by as many as the snapshot has items, whatever number of updates there are.
TEST_F(SnapshotTest, CellsBornSinceTheInstantAreUsedAgain) {
  constexpr std::uint64_t kItems = 4000;
  constexpr int kTurns = 40;
  const auto update_all = [](ModelledStore& store) {
    for (int turn = 0; turn < kTurns; ++turn) {
      store.Apply(Op::kUpdate, Numbers(0, kItems), 100 + turn);
      store.Apply(Op::kErase, Numbers(0, kItems / 2));
      store.Apply(Op::kInsert, Numbers(0, kItems / 2), 1000 + turn);
    }
  };
  ModelledStore store(NewPath(), Shape(8, 128), TestOpenOptions(256 << 20));
  store.Apply(Op::kInsert, Numbers(0, kItems));
  const Model then = store.model();
  const std::string file = NewPath();
  {
    HeldWrites held;
    std::jthread snapshot([&] { store.store().Snapshot(file); });
    held.AwaitFirst();
    update_all(store);
    EXPECT_LT(store.store().Stats().value_cells, 6 * kItems);
    EXPECT_EQ(store.store().Stats().snapshots, 0u);
    held.Release();
  }
  ExpectRestores({file}, then);
  const Model later = store.model();
  {
    Exporter exporter = store.store().Export({});
    update_all(store);
    EXPECT_LT(store.store().Stats().value_cells, 6 * kItems);
    Model exported;
    std::vector<std::byte> keys(8 * 1000), values(128 * 1000);
    while (const std::uint64_t n = exporter.Next(keys, values)) {
      for (std::uint64_t i = 0; i < n; ++i) {
        exported[AsString(std::span(keys).subspan(8 * i, 8))] =
            AsString(std::span(values).subspan(128 * i, 128));
      }
    }
    EXPECT_EQ(exported, later);
  }
  ExpectContents(store.store(), store.model());
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_EQ(store.store().impl()->CountMisplacedCells(), 0u);
  }
}

/// Writers have keys of their own; each batch gives all of them the next version. A snapshot has
/// one version of a writer's keys, or it has a part of a batch, or values of another instant.
TEST_P(SnapshotShapeTest, IsOfOneInstantBesideBatches) {
  constexpr std::uint64_t kWriters = 3;
  constexpr std::uint64_t kKeys = 600;  // of a writer
  const std::uint32_t key_size = GetParam().key_size;
  const std::uint32_t value_size = GetParam().value_size;
  Store store = Store::Create(NewPath(), Create(), TestOpenOptions());
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> versions[kWriters]{};
  const auto write = [&](std::uint64_t writer) {
    // In turn all keys are updated, and half of them erased and inserted again.
    for (std::uint64_t version = 1; !stop; ++version) {
      TestBatch batch(key_size, value_size);
      for (std::uint64_t key = 0; key < kKeys; ++key) {
        if (version % 3 == 0 && key % 2 == 0) batch.Add(Op::kErase, writer * kKeys + key, 0);
        batch.Add(Op::kUpsert, writer * kKeys + key, version);
      }
      store.Apply(batch.Mixed());
      versions[writer] = version;
    }
  };
  const auto grow = [&] {  // the table, and the pool
    for (std::uint64_t first = 0; !stop && first < 60000; first += 500) {
      TestBatch batch(key_size, value_size);
      for (std::uint64_t i = 0; i < 500; ++i) batch.Add(Op::kInsert, 1000000 + first + i, 1);
      store.Apply(batch.Mixed());
      std::this_thread::yield();
    }
  };
  std::vector<std::jthread> threads;
  for (std::uint64_t writer = 0; writer < kWriters; ++writer) threads.emplace_back(write, writer);
  threads.emplace_back(grow);
  std::vector<std::string> files;
  std::vector<std::array<std::uint64_t, kWriters>> before;
  std::vector<std::array<std::uint64_t, kWriters>> after;
  while (versions[0] == 0 || versions[1] == 0 || versions[2] == 0) std::this_thread::yield();
  for (int i = 0; i < 6; ++i) {
    const std::string file = NewPath();
    for (auto* seen : {&before, &after}) {
      std::array<std::uint64_t, kWriters> now{};
      for (std::uint64_t writer = 0; writer < kWriters; ++writer) now[writer] = versions[writer];
      seen->push_back(now);
      if (seen == &before) {
        store.Snapshot(file, {.base = i % 3 == 0 ? "" : files.back(), .threads = 2});
      }
    }
    files.push_back(file);
  }
  stop = true;
  for (std::jthread& thread : threads) thread.join();
  store.Close();
  const std::uint64_t modulus = value_size >= 8 ? 0 : std::uint64_t{1} << (8 * value_size);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::vector<std::string> chain(files.begin() + static_cast<std::ptrdiff_t>(i / 3 * 3),
                                         files.begin() + static_cast<std::ptrdiff_t>(i + 1));
    Store restored = Store::Restore(chain, NewPath(), TestOpenOptions());
    for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
      TestBatch finds(key_size, value_size);
      for (std::uint64_t key = 0; key < kKeys; ++key) finds.Add(Op::kFind, writer * kKeys + key, 0);
      ASSERT_EQ(finds.CallFor(restored, Op::kFind), 0u);
      const std::string first = AsString(finds.found(0));
      std::uint64_t version = 0;
      std::memcpy(&version, first.data(), std::min<std::size_t>(first.size(), 8));
      if (modulus == 0) {
        EXPECT_GE(version, before[i][writer]);
        EXPECT_LE(version, after[i][writer] + 1);
      }
      for (std::uint64_t key = 0; key < kKeys; ++key) {
        ASSERT_EQ(AsString(finds.found(key)), MakeValue(version, value_size))
            << "key " << key << " of writer " << writer << ", snapshot " << i;
      }
    }
  }
}

/// Batches that need many times the cells that there are go on while a snapshot is being written,
/// and see what they should: the pool grows. Nothing that the snapshot has still to copy is used.
TEST_F(SnapshotTest, ThePoolGrowsBesideASnapshot) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  const Model then = store.model();
  const std::string file = NewPath();
  std::jthread snapshot;
  {
    HeldWrites held;
    snapshot = std::jthread([&] { store.store().Snapshot(file); });
    held.AwaitFirst();
    const std::uint64_t cells = store.store().Stats().value_cells;
    for (int round = 0; round < 5; ++round) {
      store.Apply(Op::kUpdate, Numbers(0, 3000), 100 + round);
      store.Apply(Op::kErase, Numbers(1000, 500));
      store.Apply(Op::kInsert, Numbers(1000, 500), round);
    }
    store.Apply(Op::kInsert, Numbers(10000, 20000));  // and the table
    store.ExpectContents();
    EXPECT_GT(store.store().Stats().value_cells, cells + 10000);
  }
  snapshot.join();
  // What was held is used again: the pool grows no more.
  const std::uint64_t cells = store.store().Stats().value_cells;
  for (int round = 0; round < 6; ++round) {
    store.Apply(Op::kUpdate, Numbers(0, 3000), 200 + round);
  }
  EXPECT_LE(store.store().Stats().value_cells, cells);  // a level may take the place of some
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_EQ(store.store().impl()->CountMisplacedCells(), 0u);
  }
  ExpectRestores({file}, then);
  store.Reopen();
}

/// A batch for which a pool grows in several steps, since there is a gap where a level was: each of
/// them leaves what the snapshot holds behind what is free.
TEST_F(SnapshotTest, ThePoolGrowsInSeveralStepsBesideASnapshot) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  for (std::uint64_t first = 0; first < 20000; first += 500) {
    store.Apply(Op::kInsert, Numbers(first, 500));
  }
  const Model then = store.model();
  const std::string file = NewPath();
  std::jthread snapshot;
  {
    HeldWrites held;
    snapshot = std::jthread([&] { store.store().Snapshot(file); });
    held.AwaitFirst();
    for (int round = 0; round < 4; ++round) {
      store.Apply(Op::kUpdate, Numbers(0, 20000), 100 + round);
      store.ExpectContents();
    }
  }
  snapshot.join();
  ExpectRestores({file}, then);
  store.Reopen();
}

/// A pool that can't grow: batches that lack room wait for the snapshot, and none is refused.
TEST_F(SnapshotTest, AFullPoolWaitsForTheSnapshot) {
  constexpr std::uint64_t kItems = 20000;
  const std::string path = NewPath();
  { Store::Create(path, Shape(8, 256, kItems), TestOpenOptions()).Close(); }
  Store store = Store::Open(path, TestOpenOptions(std::filesystem::file_size(path)));
  const auto apply = [&](Op op, std::uint64_t first, std::uint64_t count, std::uint64_t tag) {
    TestBatch batch(8, 256);
    for (std::uint64_t key = first; key < first + count; ++key) batch.Add(op, key, key + tag);
    return batch.CallFor(store, op);
  };
  ASSERT_EQ(apply(Op::kInsert, 0, kItems, 0), 0u);
  const std::string file = NewPath();
  std::jthread snapshot;
  std::jthread updates;
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> refused{0};
  {
    HeldWrites held;
    snapshot = std::jthread([&] { EXPECT_EQ(store.Snapshot(file).items, kItems); });
    held.AwaitFirst();
    updates = std::jthread([&] {
      for (std::uint64_t round = 0; round < 3; ++round) {
        for (std::uint64_t first = 0; first < kItems; first += 1000) {
          refused += apply(Op::kUpdate, first, 1000, round + 1);
          done += 1000;
        }
        refused += apply(Op::kErase, 0, 1000, 0);
        refused += apply(Op::kInsert, 0, 1000, round);
      }
    });
    // (There are an eighth of the items' number of cells to spare.)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LT(done, kItems);
  }
  snapshot.join();
  updates.join();
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(done, 3 * kItems);
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_EQ(store.impl()->CountMisplacedCells(), 0u);
  }
  store.Close();
  ExpectSound(path, kItems);
  Model then;
  for (std::uint64_t key = 0; key < kItems; ++key) then[MakeKey(key, 8)] = MakeValue(key, 256);
  ExpectRestores({file}, then);
}

/// What moves or gives up cells waits until the values are copied; batches do not.
TEST_F(SnapshotTest, MaintenanceWaitsForTheSnapshot) {
  using Call = std::function<void(Store&)>;
  const Call calls[] = {[](Store& store) { store.Compact(); },
                        [](Store& store) { store.Reserve(100000); }};
  for (const Call& maintain : calls) {
    ModelledStore store(NewPath(), Shape(8, 100), TestOpenOptions());
    store.Apply(Op::kInsert, Numbers(0, 10000));
    const Model then = store.model();
    const std::string file = NewPath();
    std::atomic<bool> returned{false};
    std::jthread snapshot;
    std::jthread call;
    {
      HeldWrites held;
      snapshot = std::jthread([&] { store.store().Snapshot(file); });
      held.AwaitFirst();
      call = std::jthread([&] {
        maintain(store.store());
        returned = true;
      });
      store.Apply(Op::kErase, Numbers(0, 9000));
      store.Apply(Op::kUpdate, Numbers(9000, 1000), 5);
      EXPECT_FALSE(returned);
    }
    snapshot.join();
    call.join();
    ExpectRestores({file}, then);
    store.Reopen();
  }
}

/// A snapshot that fails leaves no file, no held cell, and the base that there was.
TEST_F(SnapshotTest, AfterAnErrorTheChainGoesOn) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 2000));
  std::vector<std::string> chain{NewPath()};
  store.store().Snapshot(chain[0]);
  for (const int error : {ENOSPC, EIO}) {
    for (const bool increment : {true, false}) {
      store.Apply(Op::kUpdate, Numbers(100 * chain.size(), 50), error);
      const std::string file = NewPath();
      std::optional<ErrorCode> code;
      {
        HeldWrites held;
        std::jthread snapshot([&] {
          code = ErrorOf(
              [&] { store.store().Snapshot(file, {.base = increment ? chain.back() : ""}); });
        });
        held.AwaitFirst();
        store.Apply(Op::kErase, Numbers(1000 + 10 * chain.size(), 5));
        store.Apply(Op::kInsert, Numbers(10000 * chain.size() + error, 3000));  // a finer map
        held.Release(error);
        snapshot.join();
        held.Release();
      }
      EXPECT_EQ(code, error == ENOSPC ? ErrorCode::kNoSpace : ErrorCode::kIo);
      for (const std::string& name : Files()) {
        EXPECT_EQ(name.find("partial"), std::string::npos) << name;
      }
      chain.push_back(NewPath());
      store.store().Snapshot(chain.back(), {.base = chain[chain.size() - 2]});
      ExpectRestores(chain, store.model());
    }
  }
  store.Reopen();
}

/// A process that is killed leaves no file under the name, or a whole one.
TEST_F(SnapshotTest, KillsLeaveNothingOrAllOfIt) {
  if (TestExecutor() == ExecutorKind::kCuda) GTEST_SKIP() << "a GPU does not survive a fork";
  ModelledStore store(NewPath(), Shape(8, 2000), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  const std::string whole = NewPath();
  store.store().Snapshot(whole, {.track_changes = false});
  store.store().Close();
  int complete = 0;
  constexpr int kKills = 24;
  for (int i = 0; i < kKills; ++i) {
    const bool restores = i % 2 == 1;
    const std::string target = NewPath();
    int begun[2];
    ASSERT_EQ(pipe(begun), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        Store pool;
        if (!restores) pool = Store::Open(store.path(), TestOpenOptions());
        if (write(begun[1], "b", 1) != 1) _exit(1);
        if (restores) {
          Store::Restore(std::vector{whole}, target, TestOpenOptions());
        } else {
          pool.Snapshot(target);
        }
        pause();
      } catch (...) {
      }
      _exit(1);
    }
    close(begun[1]);
    char byte = 0;
    EXPECT_EQ(read(begun[0], &byte, 1), 1);
    close(begun[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(1500 * i));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed";
    if (!std::filesystem::exists(target)) continue;
    ++complete;
    if (restores) {
      Store pool = Store::Open(target, TestOpenOptions());
      ExpectContents(pool, store.model());
    } else {
      ExpectRestores({target}, store.model());
    }
  }
  std::printf("%d of %d were complete\n", complete, kKills);
}

/// Reserve, Compact and further snapshots from other threads, and no cell is lost or used twice.
TEST_F(SnapshotTest, BesideMaintenance) {
  Store store = Store::Create(NewPath(), Shape(8, 100), TestOpenOptions());
  std::atomic<bool> stop{false};
  std::jthread batches([&] {
    for (std::uint64_t round = 0; !stop; ++round) {
      TestBatch batch(8, 100);
      for (std::uint64_t i = 0; i < 2000; ++i) {
        batch.Add(round % 4 == 3 ? Op::kErase : Op::kUpsert, (round * 977 + i) % 30000, round);
      }
      store.Apply(batch.Mixed());
    }
  });
  std::jthread maintenance([&] {
    while (!stop) {
      store.Compact();
      store.Reserve(10000);
    }
  });
  std::vector<std::string> files[2];
  for (int thread = 0; thread < 2; ++thread) {
    for (int i = 0; i < 4; ++i) files[thread].push_back(NewPath());
  }
  std::jthread snapshots([&] {
    for (const std::string& file : files[1]) store.Snapshot(file, {.track_changes = false});
  });
  for (std::size_t i = 0; i < files[0].size(); ++i) {
    store.Snapshot(files[0][i], {.base = i == 0 ? "" : files[0][i - 1]});
  }
  stop = true;
  for (std::jthread* thread : {&batches, &maintenance, &snapshots}) thread->join();
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_EQ(store.impl()->CountMisplacedCells(), 0u);
  }
  for (const std::string& file : files[1]) {
    Store::Restore(std::vector{file}, NewPath(), TestOpenOptions()).Close();
  }
  Store::Restore(files[0], NewPath(), TestOpenOptions()).Close();
}

/// The log may call what waits for a snapshot.
TEST_F(SnapshotTest, TheLogMayCallTheStore) {
  OpenOptions open = TestOpenOptions();
  Store store;
  std::atomic<int> told{0};
  open.log = [&](LogLevel, std::string_view) {
    if (++told > 20) return;
    store.Compact();
    store.Reserve(1000);
  };
  store = Store::Create(NewPath(), Shape(8, 100), open);
  TestBatch batch(8, 100);
  for (std::uint64_t key = 0; key < 5000; ++key) batch.Add(Op::kInsert, key, key);
  EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  store.Snapshot(NewPath());
  EXPECT_GT(told, 0);
}

TEST_F(SnapshotTest, RestoresToPinnedMemory) {
  ModelledStore store(NewPath(), Shape(16, 100), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  const std::string file = NewPath();
  store.store().Snapshot(file);
  Store restored = Store::Restore(std::vector{file}, "pinned:", TestOpenOptions(64 << 20));
  ExpectContents(restored, store.model());
}

/// Also within the maximum in which the items had no room left.
TEST_F(SnapshotTest, AFullPoolIsRestored) {
  const OpenOptions open = TestOpenOptions(8 << 20);
  for (const std::uint32_t value_size : {100u, 1000u}) {
    ModelledStore store(NewPath(), Shape(8, value_size), open);
    for (std::uint64_t next = 0; store.model().size() == next;) {
      TestBatch batch = store.NewBatch();
      for (int i = 0; i < 500; ++i, ++next) batch.Add(Op::kInsert, next, next);
      store.Apply(batch, true);
    }
    const std::string file = NewPath();
    store.store().Snapshot(file);
    Store restored = Store::Restore(std::vector{file}, NewPath(), open);
    ExpectContents(restored, store.model());
  }
}

TEST_F(SnapshotTest, ARestoreWithoutRoomLeavesNothing) {
  ModelledStore store(NewPath(), Shape(8, 1000), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 3000));
  const std::string file = NewPath();
  store.store().Snapshot(file);
  const std::string target = NewPath();
  EXPECT_EQ(ErrorOf([&] { Store::Restore(std::vector{file}, target, TestOpenOptions(1 << 20)); }),
            ErrorCode::kNoSpace);
  for (const std::string& name : Files()) {
    EXPECT_EQ(name.find("restoring"), std::string::npos) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(target));
}

}  // namespace
}  // namespace gpm::test
