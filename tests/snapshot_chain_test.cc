// Snapshots as files of a chain: increments, bases, order, damage, and reading them in pieces.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "engine/store_impl.h"
#include "pm/crc32c.h"
#include "snapshot/chain_items.h"
#include "snapshot/format.h"
#include "snapshot/reader.h"
#include "tests/files.h"
#include "tests/snapshot_fixture.h"
#include "tests/test_util.h"

namespace gpm::test {
namespace {

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
  // One on a chain that is named: the last of that is the base then.
  const std::string apart = NewPath();
  const std::string third = NewPath();
  store.store().Snapshot(apart, {.chain = {first}, .track_changes = false});
  ExpectRestores({first, apart}, store.model());
  store.Apply(Op::kUpdate, Numbers(300, 20), 3);
  store.store().Snapshot(third, {.base = first});
  ExpectRestores({first, third}, store.model());
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
  EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(NewPath() + "/none/file"); }),
            ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(first + "/file"); }), ErrorCode::kNotFound);
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

/// Changes the header of a file, with a checksum that is right.
template <class Change>
void EditHeader(const std::string& path, const Change& change) {
  std::string contents = ReadFile(path);
  SnapshotHeader header;
  std::memcpy(&header, contents.data(), sizeof header);
  change(header);
  header.crc = 0;
  std::memcpy(contents.data(), &header, sizeof header);
  header.crc = Crc32c(contents.data(), kPageBytes);
  std::memcpy(contents.data(), &header, sizeof header);
  WriteFile(path, contents);
}

/// A file that says it is of this pool, and is of one with other sizes or hashes.
TEST_F(SnapshotTest, AChainOfOtherSizesCantBeCompared) {
  const std::string first = NewPath();
  ModelledStore store(NewPath(), Shape(12, 24), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 20000));
  store.store().Snapshot(first);
  SnapshotId pool{};
  EditHeader(first, [&](SnapshotHeader& header) { pool = header.pool; });
  for (const auto& [key_size, value_size] : {std::pair{12u, 24u}, {250u, 24u}, {12u, 64u}}) {
    const std::string other = NewPath();
    const std::string file = NewPath();
    ModelledStore another(NewPath(), Shape(key_size, value_size), TestOpenOptions());
    another.Apply(Op::kInsert, Numbers(0, 20000));
    another.store().Snapshot(other);
    EditHeader(other, [&](SnapshotHeader& header) { header.pool = pool; });
    std::string message;
    EXPECT_EQ(ErrorOf([&] { store.store().Snapshot(file, {.chain = {other}}); }, &message),
              ErrorCode::kDamaged);
    EXPECT_EQ(message.rfind(other + ":", 0), 0u) << message;
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

/// The sum of what its files have is a bound that is known before there is room for the items.
TEST_F(SnapshotTest, AnIncrementOfMoreItemsThanThereAreIsDamaged) {
  ModelledStore store(NewPath(), Shape(8, 40), TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, 100));
  const std::vector<std::string> chain{NewPath(), NewPath()};
  store.store().Snapshot(chain[0]);
  store.Apply(Op::kInsert, Numbers(100, 100));
  store.store().Snapshot(chain[1], {.base = chain[0]});
  ExpectRestores(chain, store.model());
  EditHeader(chain[1], [](SnapshotHeader& header) { header.total_items = 1ull << 60; });
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Restore(chain, NewPath(), TestOpenOptions(64 << 20)); }, &message),
            ErrorCode::kDamaged);
  EXPECT_EQ(message.rfind(chain[1] + ":", 0), 0u) << message;
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
    EXPECT_EQ(restored.Stats().operations, StoreStats{}.operations) << "they are the restore's";
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
    const std::string right = ReadFile(file);
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
    ASSERT_EQ(ReadFile(file), right);
    put(right.size(), '\0');
    expect_refused(right.size());
    for (std::uint64_t length = right.size(); length-- > 0 && !HasFatalFailure();) {
      std::filesystem::resize_file(file, length);
      expect_refused(length);
    }
    EXPECT_EQ(ErrorOf([&] { Store::Restore(chain, target, TestOpenOptions()); }),
              ErrorCode::kDamaged);
    WriteFile(file, right);
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
  std::string contents = ReadFile(file);
  ASSERT_GT(contents.size(), 2 * kBlockBytes);
  contents.replace(kPageBytes, kBlockBytes, ReadFile(again), kPageBytes, kBlockBytes);
  WriteFile(file, contents);
  EXPECT_EQ(ErrorOf([&] { Store::Restore(std::vector{file}, NewPath(), TestOpenOptions()); }),
            ErrorCode::kDamaged);
  ExpectRestores({again}, store.model());
}

}  // namespace
}  // namespace gpm::test
