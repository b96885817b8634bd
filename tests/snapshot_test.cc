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
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>

#include "engine/store_impl.h"
#include "pm/crc32c.h"
#include "snapshot/chain_items.h"
#include "snapshot/format.h"
#include "snapshot/reader.h"
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

/// Names the tests of each shape of keys and values.
struct SnapshotShape {
  const char* name;
  std::uint32_t key_size;
  std::uint32_t value_size;
};
constexpr SnapshotShape kSnapshotShapes[] = {{"Inline", 8, 8},      {"Cells", 8, 40},
                                             {"LongKeys", 32, 128}, {"LongKeysInline", 32, 5},
                                             {"Padded", 36, 128},   {"PaddedInline", 33, 5}};

class SnapshotTest : public PoolTest {
 protected:
  std::vector<std::string> Files() {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(NewPath()).parent_path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  /// Restores a chain, and expects the model's items, in a sound pool.
  void ExpectRestores(const std::vector<std::string>& files, const Model& model) {
    const std::string path = NewPath();
    {
      Store store = Store::Restore(files, path, TestOpenOptions());
      ExpectContents(store, model);
      if (TestExecutor() == ExecutorKind::kCpu) {
        EXPECT_EQ(store.impl()->CountMisplacedCells(), 0u);
      }
      store.Close();
    }
    ExpectSound(path, model.size());
    std::filesystem::remove(path);
  }
};

class SnapshotShapeTest : public SnapshotTest, public ::testing::WithParamInterface<SnapshotShape> {
 protected:
  CreateOptions Create() const { return Shape(GetParam().key_size, GetParam().value_size); }
};
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

/// A chain, with all that may happen in between; each prefix of it restores what was then.
TEST_P(SnapshotShapeTest, IncrementsHaveWhatChanged) {
  ModelledStore store(NewPath(), Create(), TestOpenOptions());
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> chain;
  std::uint64_t keys = 3000;
  store.Apply(Op::kInsert, Numbers(0, keys));
  for (int round = 0; round < 7; ++round) {
    const std::string file = NewPath();
    const std::string base = chain.empty() ? "" : chain.back();
    const SnapshotResult result = store.store().Snapshot(file, {.base = base});
    chain.push_back(file);
    EXPECT_EQ(result.items, store.model().size());
    if (round == 1 || round == 4) {
      EXPECT_LT(result.written, result.items / 2);
    }
    ExpectRestores(chain, store.model());
    TestBatch batch = store.NewBatch();
    for (int i = 0; i < 300; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), random() % (keys + 100), random());
    }
    store.Apply(batch);
    if (round == 1) {  // growth by several levels
      store.Apply(Op::kInsert, Numbers(keys + 100, 12000));
      keys += 12100;
    }
    if (round == 2) {  // erased and inserted again
      std::vector<std::uint64_t> few;
      for (std::uint64_t key = 0; key < 200; ++key) {
        if (store.model().contains(MakeKey(key, GetParam().key_size))) few.push_back(key);
      }
      store.Apply(Op::kErase, few);
      store.Apply(Op::kInsert, few, 99);
    }
    if (round == 4) {
      std::vector<std::uint64_t> most;
      for (std::uint64_t key = 0; key < keys; ++key) {
        if (key % 16 != 0 && store.model().contains(MakeKey(key, GetParam().key_size))) {
          most.push_back(key);
        }
      }
      store.Apply(Op::kErase, most);
      store.store().Compact();
    }
    if (round == 5) store.store().Reserve(40000);
  }
  store.Reopen();
}

TEST_F(SnapshotTest, AnIncrementIsAsLargeAsWhatChanged) {
  constexpr std::uint64_t kItems = 100000;
  ModelledStore store(NewPath(), Shape(8, 128), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, kItems));
  const std::string file = NewPath();
  const SnapshotResult whole = store.store().Snapshot(file);
  store.Apply(Op::kUpdate, Numbers(5000, kItems / 100), 1);
  const SnapshotResult increment = store.store().Snapshot(NewPath(), {.base = file});
  EXPECT_GE(increment.written, kItems / 100);
  EXPECT_LE(increment.bytes, whole.bytes / 40);
}

TEST_F(SnapshotTest, ASideSnapshotLeavesTheChainAsItIs) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 2000));
  const std::string first = NewPath();
  const std::string side = NewPath();
  const std::string leaf = NewPath();
  const std::string second = NewPath();
  store.store().Snapshot(first);
  store.Apply(Op::kUpdate, Numbers(0, 20), 1);
  store.store().Snapshot(side, {.track_changes = false});
  const Model at_side = store.model();
  store.Apply(Op::kUpdate, Numbers(100, 20), 2);
  store.store().Snapshot(leaf, {.base = first, .track_changes = false});
  const Model at_leaf = store.model();
  store.Apply(Op::kErase, Numbers(200, 20));
  store.store().Snapshot(second, {.base = first});
  ExpectRestores({side}, at_side);
  ExpectRestores({first, leaf}, at_leaf);
  ExpectRestores({first, second}, store.model());
}

TEST_F(SnapshotTest, WrongBasesAreRefused) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 100));
  const std::string untracked = NewPath();
  const std::string first = NewPath();
  const std::string second = NewPath();
  const std::string other = NewPath();
  const auto error = [&](const std::string& base) {
    std::string message;
    const auto code = ErrorOf([&] { store.store().Snapshot(other, {.base = base}); }, &message);
    EXPECT_NE(message.find(base), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(other));
    return code;
  };
  store.store().Snapshot(untracked, {.track_changes = false});
  EXPECT_EQ(error(untracked), ErrorCode::kInvalidArgument);
  store.store().Snapshot(first);
  store.store().Snapshot(second, {.base = first});
  EXPECT_EQ(error(first), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error(other), ErrorCode::kNotFound);
  EXPECT_EQ(error(store.path()), ErrorCode::kDamaged);  // no snapshot
  store.Reopen();
  EXPECT_EQ(error(second), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(first); }), ErrorCode::kExists);
  EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(NewPath() + "/none/file"); }), ErrorCode::kIo);
}

/// Each in a session of its own, which knows what changed since the one before by comparing alone.
TEST_P(SnapshotShapeTest, IncrementsByComparing) {
  ModelledStore store(NewPath(), Create(), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 6000));
  store.Apply(Op::kInsert, {~std::uint64_t{0}});
  std::vector<std::string> chain{NewPath()};
  store.store().Snapshot(chain[0], {.track_changes = false});
  const auto take = [&](const SnapshotOptions& options) {
    const std::string file = NewPath();
    const SnapshotResult result = store.store().Snapshot(file, options);
    EXPECT_EQ(result.items, store.model().size());
    EXPECT_LT(result.written, result.items / 8);
    chain.push_back(file);
    ExpectRestores(chain, store.model());
  };
  for (std::uint64_t session = 1; session <= 3; ++session) {
    store.Reopen();
    if (session == 2) store.store().Reserve(30000);  // moves items
    store.Apply(Op::kUpdate, Numbers(100 * session, 20), session);
    store.Apply(Op::kErase, Numbers(3000 + 100 * session, 20));
    store.Apply(Op::kInsert, Numbers(10000 * session, 20));
    store.Apply(Op::kErase, {4999 + session});
    store.Apply(Op::kInsert, {4999 + session});  // as it was
    if (session == 3) store.Apply(Op::kUpdate, {~std::uint64_t{0}}, 4);
    take({.chain = chain});
  }
  take({.chain = chain});  // nothing changed
  EXPECT_EQ(store.store().Stats().snapshots, 2u);
  // And from there on by marks.
  store.Apply(Op::kUpdate, Numbers(50, 20), 77);
  take({.base = chain.back()});
}

/// What changes between the instant from which changes are marked and that of the snapshot is in
/// it.
TEST_F(SnapshotTest, ComparesBesideBatches) {
  Store store = Store::Create(NewPath(), Shape(8, 40), TestOpenOptions());
  const auto write = [&](std::uint64_t version) {
    TestBatch batch(8, 40);
    for (std::uint64_t key = 0; key < 2000; ++key) {
      if ((key + version) % 7 == 0) batch.Add(Op::kErase, key, 0);
      batch.Add(Op::kUpsert, (key * 31 + version) % 4000, version);
    }
    store.Apply(batch.Mixed());
  };
  write(1);
  std::vector<std::string> chain{NewPath()};
  store.Snapshot(chain[0], {.track_changes = false});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t version = 2; !stop; ++version) write(version);
  });
  for (int i = 0; i < 4; ++i) {
    const std::string file = NewPath();
    store.Snapshot(file, {.chain = chain, .track_changes = i % 2 == 0});
    chain.push_back(file);
  }
  stop = true;
  writer.join();
  Model model;
  store.ForEach([&](auto key, auto value) { model[AsString(key)] = AsString(value); });
  const std::string last = NewPath();
  store.Snapshot(last, {.chain = chain});
  chain.push_back(last);
  ExpectRestores(chain, model);
}

TEST_F(SnapshotTest, ChainsThatCantBeComparedAreRefused) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 500));
  const std::string whole = NewPath();
  const std::string increment = NewPath();
  const std::string file = NewPath();
  store.store().Snapshot(whole);
  store.store().Snapshot(increment, {.base = whole});
  const auto error = [&](Store& of, const std::vector<std::string>& chain) {
    const auto code = ErrorOf([&] { of.Snapshot(file, {.chain = chain}); });
    EXPECT_FALSE(std::filesystem::exists(file));
    return code;
  };
  EXPECT_EQ(error(store.store(), {increment}), ErrorCode::kDamaged);
  EXPECT_EQ(error(store.store(), {whole, NewPath()}), ErrorCode::kNotFound);
  Store restored = Store::Restore(std::vector{whole}, NewPath(), TestOpenOptions());
  EXPECT_EQ(error(restored, {whole}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(whole, {.chain = {whole}}); }),
            ErrorCode::kExists);
  store.Apply(Op::kUpdate, Numbers(0, 5), 1);
  store.store().Snapshot(file, {.chain = {whole, increment}});
  ExpectRestores({whole, increment, file}, store.model());
}

TEST_F(SnapshotTest, ChainsOutOfOrderAreRefusedByName) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  ModelledStore other(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 100));
  std::vector<std::string> files;
  for (int i = 0; i < 4; ++i) {
    const std::string file = NewPath();
    store.store().Snapshot(file, {.base = i == 0 ? "" : files.back()});
    files.push_back(file);
    store.Apply(Op::kUpdate, Numbers(10, 5), i);
  }
  const std::string foreign = NewPath();
  const std::string foreign_increment = NewPath();
  other.store().Snapshot(foreign);
  other.store().Snapshot(foreign_increment, {.base = foreign});
  const std::string target = NewPath();
  const auto expect_refused = [&](const std::vector<std::string>& chain, const std::string& named) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Store::Restore(chain, target, TestOpenOptions()); }, &message),
              ErrorCode::kDamaged);
    EXPECT_EQ(message.rfind(named + ":", 0), 0u) << message;
    EXPECT_FALSE(std::filesystem::exists(target));
  };
  expect_refused({files[1]}, files[1]);
  expect_refused({files[1], files[0]}, files[1]);
  expect_refused({files[0], files[2]}, files[2]);
  expect_refused({files[0], files[2], files[1]}, files[2]);
  expect_refused({files[0], files[1], files[1]}, files[1]);
  expect_refused({files[0], files[0]}, files[0]);
  expect_refused({files[0], foreign_increment}, foreign_increment);
  expect_refused({files[0], files[1], foreign}, foreign);
  expect_refused({store.path()}, store.path());
  EXPECT_EQ(ErrorOf([&] { Store::Restore(std::vector<std::string>{}, target, TestOpenOptions()); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] {
              Store::Restore(std::vector{files[0], target}, target, TestOpenOptions());
            }),
            ErrorCode::kNotFound);
  EXPECT_EQ(
      ErrorOf([&] { Store::Restore(std::vector{files[0]}, store.path(), TestOpenOptions()); }),
      ErrorCode::kExists);
  for (const std::string& name : Files()) {
    EXPECT_EQ(name.find("restoring"), std::string::npos) << name;
    EXPECT_EQ(name.find("partial"), std::string::npos) << name;
  }
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void Write(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
}

/// Calls visit(key, value) for each item of a chain, of which pieces are as small as they can be.
template <class Visit>
void VisitPieces(const std::vector<std::string>& files, unsigned threads, const Visit& visit) {
  const SnapshotChain chain(files);
  const SnapshotHeader& header = chain.newest();
  ChainItems items(chain, threads, 1);
  while (const auto piece = items.Next()) {
    for (std::uint64_t i = 0; i < piece->items; ++i) {
      visit(std::span(piece->keys + i * header.key_size, header.key_size),
            std::span(piece->values + i * header.value_size, header.value_size));
    }
    items.GiveBack();
  }
}
void ReadAll(const std::vector<std::string>& files) {
  VisitPieces(files, 0, [](auto, auto) {});
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

/// More pieces than there are buffers; an increment that leaves whole pieces of the first file
/// empty. With threads that read ahead, and with none.
TEST_F(SnapshotTest, AChainIsReadInPieces) {
  constexpr std::uint32_t kValueBytes = 1 << 20;
  constexpr std::size_t kItems = 8 * ChainItems::kBuffers;
  ModelledStore store(NewPath(), Shape(8, kValueBytes), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, kItems));
  const std::vector<std::string> chain{NewPath(), NewPath()};
  store.store().Snapshot(chain[0]);
  store.Apply(Op::kUpdate, Numbers(0, 5), 1);
  store.Apply(Op::kErase, Numbers(5, kItems - 6));
  store.store().Snapshot(chain[1], {.base = chain[0]});
  for (const unsigned threads : {0u, 1u, 3u}) {
    Model model;
    std::uint64_t items = 0;
    VisitPieces(chain, threads, [&](auto key, auto value) {
      model[AsString(key)] = AsString(value);
      ++items;
    });
    EXPECT_EQ(items, model.size());
    EXPECT_EQ(model, store.model());
  }
}

/// So many that an executor composes levels of them, in several pieces; and the same where the last
/// block is damaged, which is found when most are in the pool.
TEST_F(SnapshotTest, ManyItemsAreRestoredInPieces) {
  constexpr std::uint32_t kValueBytes = 16 << 10;
  constexpr std::size_t kItems = 5000;
  static_assert(kItems * std::uint64_t{kValueBytes} > 2 * ChainItems::kPieceBytes);
  ModelledStore store(NewPath(), Shape(8, kValueBytes), TestOpenOptions(256 << 20));
  store.Apply(Op::kInsert, Numbers(0, kItems));
  const std::vector<std::string> chain{NewPath(), NewPath()};
  store.store().Snapshot(chain[0]);
  store.Apply(Op::kUpdate, Numbers(100, 30), 2);
  store.Apply(Op::kErase, Numbers(4000, 20));
  store.store().Snapshot(chain[1], {.base = chain[0]});
  const std::string target = NewPath();
  {
    Store restored = Store::Restore(chain, target, TestOpenOptions(256 << 20));
    ExpectContents(restored, store.model());
    restored.Snapshot(NewPath());
    restored.Close();
  }
  ExpectSound(target, store.model().size());
  std::filesystem::remove(target);
  {
    const SnapshotChain files{std::span<const std::string>(chain).first(1)};
    const SnapshotLayout& layout = files.file(0).layout();
    std::fstream bytes(chain[0], std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(static_cast<std::streamoff>(layout.At(layout.blocks() - 1).offset + 1000));
    bytes.put('!');
  }
  EXPECT_EQ(ErrorOf([&] { Store::Restore(chain, target, TestOpenOptions(256 << 20)); }),
            ErrorCode::kDamaged);
  for (const std::string& name : Files()) EXPECT_EQ(name.find("restoring"), name.npos) << name;
}

/// Every byte changed, and every length, of a chain of two small files.
TEST_F(SnapshotTest, DamageIsRefusedByName) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 40));
  const std::string whole = NewPath();
  const std::string increment = NewPath();
  store.store().Snapshot(whole);
  store.Apply(Op::kUpdate, Numbers(7, 5), 3);
  store.Apply(Op::kErase, Numbers(20, 2));
  store.store().Snapshot(increment, {.base = whole});
  ExpectRestores({whole, increment}, store.model());
  const std::string target = NewPath();
  const std::vector<std::string> chain{whole, increment};
  for (const std::string& file : chain) {
    const std::string right = Contents(file);
    std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](std::uint64_t at, char byte) {
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(byte);
      bytes.flush();
    };
    const auto expect_refused = [&](std::uint64_t at) {
      std::string message;
      ASSERT_EQ(ErrorOf([&] { ReadAll(chain); }, &message), ErrorCode::kDamaged) << at;
      ASSERT_EQ(message.rfind(file + ":", 0), 0u) << message;
    };
    for (std::uint64_t at = 0; at < right.size() && !HasFatalFailure(); ++at) {
      put(at, static_cast<char>(right[at] ^ (1 << at % 8)));
      expect_refused(at);
      put(at, right[at]);
    }
    ASSERT_EQ(Contents(file), right);
    put(right.size(), '\0');
    expect_refused(right.size());
    for (std::uint64_t length = right.size(); length-- > 0 && !HasFatalFailure();) {
      std::filesystem::resize_file(file, length);
      expect_refused(length);
    }
    EXPECT_EQ(ErrorOf([&] { Store::Restore(chain, target, TestOpenOptions()); }),
              ErrorCode::kDamaged);
    Write(file, right);
  }
  EXPECT_FALSE(std::filesystem::exists(target));
  ExpectRestores({whole, increment}, store.model());
}

/// Several blocks of items; one of another file in the place of one is found.
TEST_F(SnapshotTest, BlocksOfOtherFilesAreRefused) {
  ModelledStore store(NewPath(), Shape(8, 4096), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 2500));
  const std::string file = NewPath();
  const std::string again = NewPath();
  store.store().Snapshot(file);
  store.store().Snapshot(again);
  std::string contents = Contents(file);
  ASSERT_GT(contents.size(), 2 * kBlockBytes);
  contents.replace(kPageBytes, kBlockBytes, Contents(again), kPageBytes, kBlockBytes);
  Write(file, contents);
  EXPECT_EQ(ErrorOf([&] { Store::Restore(std::vector{file}, NewPath(), TestOpenOptions()); }),
            ErrorCode::kDamaged);
  ExpectRestores({again}, store.model());
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
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    for (std::uint64_t round = 0; !stop; ++round) {
      TestBatch batch(8, 100);
      for (std::uint64_t i = 0; i < 2000; ++i) {
        batch.Add(round % 4 == 3 ? Op::kErase : Op::kUpsert, (round * 977 + i) % 30000, round);
      }
      store.Apply(batch.Mixed());
    }
  });
  threads.emplace_back([&] {
    while (!stop) {
      store.Compact();
      store.Reserve(10000);
    }
  });
  std::vector<std::string> files[2];
  for (int thread = 0; thread < 2; ++thread) {
    for (int i = 0; i < 4; ++i) files[thread].push_back(NewPath());
  }
  threads.emplace_back([&] {
    for (const std::string& file : files[1]) store.Snapshot(file, {.track_changes = false});
  });
  for (std::size_t i = 0; i < files[0].size(); ++i) {
    store.Snapshot(files[0][i], {.base = i == 0 ? "" : files[0][i - 1]});
  }
  stop = true;
  for (std::jthread& thread : threads) thread.join();
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
