#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "engine/store_impl.h"
#include "tests/fork.h"
#include "tests/test_util.h"

/// Exports: the items of one instant, page by page, whatever is done to the store meanwhile.
namespace gpm::test {
namespace {

constexpr std::uint32_t kValueSize = 40;

class ExportTest : public PoolTest {
 protected:
  /// What is left of an export. @param rows of a page @param between called behind each page
  static Model Rest(
      Exporter exporter, std::uint32_t key_size, std::uint32_t value_size, std::size_t rows,
      const std::function<void()>& between = [] {}) {
    Bytes keys(rows * key_size);
    Bytes values(rows * value_size);
    Model model;
    while (const std::uint64_t n = exporter.Next(keys, values)) {
      for (std::uint64_t i = 0; i < n; ++i) {
        const bool added =
            model
                .emplace(AsString(std::span(keys).subspan(i * key_size, key_size)),
                         AsString(std::span(values).subspan(i * value_size, value_size)))
                .second;
        EXPECT_TRUE(added) << "a key came twice";
      }
      between();
    }
    return model;
  }
  static void Fill(ModelledStore& store, std::uint64_t items) {
    store.Apply(Op::kInsert, Numbers(0, items));
  }
};

TEST_F(ExportTest, HasTheStateOfTheInstant) {
  for (const auto& [key_size, value_size] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{8, 40}, {32, 8}, {8, 5}, {16, 100}}) {
    OpenOptions open = TestOpenOptions();
    open.growth_pause = key_size == 8 ? 0 : open.growth_pause;
    ModelledStore store(NewPath(), Shape(key_size, value_size), open);
    Fill(store, 3000);
    Exporter exporter = store.store().Export();
    EXPECT_EQ(exporter.items(), 3000u);
    const Model then = store.model();
    std::uint64_t round = 0;
    const Model exported =
        Rest(std::move(exporter), key_size, value_size, 257, [&] {  // batches that use freed cells
          ++round;
          store.Apply(Op::kUpsert, Numbers(round * 100, 600), round * 1'000'000);
          store.Apply(Op::kErase, Numbers(round * 130, 200));
          store.Apply(Op::kInsert, Numbers(10'000 + round * 500, 500));
        });
    EXPECT_GE(round, 11u);
    EXPECT_EQ(exported, then);
    store.ExpectContents();
    store.Reopen();
  }
}

TEST_F(ExportTest, BesideAThreadThatWrites) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  // Each batch gives all of its keys the same tag, so that an instant has one tag alone.
  constexpr std::uint64_t kKeys = 2000;
  const auto put = [&](std::uint64_t tag) {
    TestBatch batch(8, kValueSize);
    for (std::uint64_t key = 0; key < kKeys; ++key) batch.Add(Op::kUpsert, key, tag);
    EXPECT_EQ(batch.CallFor(store, Op::kUpsert), 0u);
  };
  put(0);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t tag = 1; !stop; ++tag) put(tag);
  });
  for (int i = 0; i < 8; ++i) {
    const Model exported = Rest(store.Export(), 8, kValueSize, 300);
    EXPECT_EQ(exported.size(), kKeys);
    std::set<std::string> tags;
    for (const auto& [key, value] : exported) tags.insert(value);
    EXPECT_EQ(tags.size(), 1u);
  }
  stop = true;
  writer.join();
}

/// All that changed since a snapshot, and hardly anything else; and increments on it go on.
TEST_F(ExportTest, HasWhatChangedSinceASnapshot) {
  ModelledStore store(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 4000);
  const std::string whole = NewPath();
  store.store().Snapshot(whole);
  const auto changed = [&] {
    const Model exported = Rest(store.store().Export({.changed_since = whole}), 8, kValueSize, 100);
    for (const auto& [key, value] : exported) EXPECT_EQ(value, store.model().at(key));
    return exported;
  };
  EXPECT_TRUE(changed().empty());
  store.Apply(Op::kUpdate, Numbers(100, 50), 7'000'000);
  store.Apply(Op::kInsert, Numbers(10'000, 50));
  store.Apply(Op::kErase, Numbers(500, 20));
  for (int again = 0; again < 2; ++again) {
    const Model exported = changed();
    for (const auto& [key, value] : exported) {
      EXPECT_EQ(store.model().count(key), 1u) << "was erased";
    }
    std::uint64_t missing = 0;
    std::set<std::uint64_t> numbers;
    for (const auto& [key, value] : exported) {
      numbers.insert(KeyNumber(std::as_bytes(std::span(key))));
    }
    for (std::uint64_t number = 100; number < 150; ++number) missing += !numbers.contains(number);
    for (std::uint64_t number = 10'000; number < 10'050; ++number) {
      missing += !numbers.contains(number);
    }
    EXPECT_EQ(missing, 0u);
    EXPECT_LT(exported.size(), 400u);
  }
  // With a score, both count. The score is the first word: the key's number, or what updates wrote.
  const ExportOptions both{
      .score_bytes = 8, .least = 10'000, .most = 10'049, .changed_since = whole};
  EXPECT_EQ(Rest(store.store().Export(both), 8, kValueSize, 100).size(), 50u);

  const std::string increment = NewPath();
  store.store().Snapshot(increment, {.base = whole});
  const std::vector<std::string> chain = {whole, increment};
  Store restored = Store::Restore(chain, NewPath(), TestOpenOptions());
  EXPECT_EQ(Rest(restored.Export(), 8, kValueSize, 500), store.model());
  restored.Close();

  // Of any other snapshot nobody knows what changed since.
  const auto refused = [&](const std::string& file, ErrorCode code) {
    EXPECT_EQ(ErrorOf([&] { store.store().Export({.changed_since = file}).items(); }), code);
  };
  refused(whole, ErrorCode::kInvalidArgument);
  refused(NewPath(), ErrorCode::kNotFound);
  EXPECT_TRUE(Rest(store.store().Export({.changed_since = increment}), 8, kValueSize, 100).empty());
  store.Reopen();
  refused(increment, ErrorCode::kInvalidArgument);
  store.ExpectContents();
}

TEST_F(ExportTest, AScoreSaysWhichAreWanted) {
  ModelledStore store(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 1000);  // the first word of a value is the key's number
  const ExportOptions some{.score_bytes = 8, .least = 100, .most = 299};
  const Model exported = Rest(store.store().Export(some), 8, kValueSize, 64);
  EXPECT_EQ(exported.size(), 200u);
  for (const auto& [key, value] : exported) {
    const std::uint64_t number = KeyNumber(std::as_bytes(std::span(key)));
    EXPECT_TRUE(number >= 100 && number < 300);
    EXPECT_EQ(value, store.model().at(key));
  }
  const ExportOptions none{.score_bytes = 4, .least = 5000};
  EXPECT_TRUE(Rest(store.store().Export(none), 8, kValueSize, 64).empty());
  const auto refused = [&](const ExportOptions& options) {
    EXPECT_EQ(ErrorOf([&] { store.store().Export(options).items(); }), ErrorCode::kInvalidArgument);
  };
  refused({.score_bytes = 3});
  refused({.score_bytes = 8, .score_offset = 33});
  EXPECT_EQ(Rest(store.store().Export(), 8, kValueSize, 5000).size(), 1000u);
}

TEST_F(ExportTest, KeysAlone) {
  ModelledStore store(NewPath(), Shape(16, kValueSize), TestOpenOptions());
  Fill(store, 100);
  Exporter exporter = store.store().Export();
  Bytes keys(16 * 70);
  std::set<std::string> seen;
  for (const std::uint64_t expected : {70u, 30u, 0u, 0u}) {
    const std::uint64_t n = exporter.Next(keys, {});
    EXPECT_EQ(n, expected);
    for (std::uint64_t i = 0; i < n; ++i) {
      seen.insert(AsString(std::span(keys).subspan(i * 16, 16)));
    }
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(exporter.items(), 0u);
}

TEST_F(ExportTest, AnEmptyStore) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  EXPECT_TRUE(Rest(store.Export(), 8, kValueSize, 10).empty());
  Exporter exporter;
  Bytes key(8);
  EXPECT_EQ(exporter.Next(key, {}), 0u);
  exporter = store.Export();
  exporter = Exporter();
  EXPECT_EQ(store.Snapshot(NewPath()).items, 0u);
}

TEST_F(ExportTest, BadArrays) {
  ModelledStore store(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 10);
  Exporter exporter = store.store().Export();
  Bytes bytes(400);
  const auto refused = [&](std::size_t keys, std::size_t values) {
    EXPECT_EQ(ErrorOf([&] {
                exporter.Next(std::span(bytes).first(keys), std::span(bytes).last(values));
              }),
              ErrorCode::kInvalidArgument);
  };
  refused(0, 0);
  refused(12, 0);
  refused(16, 40);
  EXPECT_EQ(Rest(std::move(exporter), 8, kValueSize, 3), store.model());
}

/// What waits for the end of an export can't be called by who has to end it.
TEST_F(ExportTest, WhoHasItOpenWaitsForNothing) {
  const std::string path = NewPath();
  ModelledStore store(path, Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 500);
  {
    const Exporter exporter = store.store().Export();
    const auto busy = [&](const auto& call) { EXPECT_EQ(ErrorOf(call), ErrorCode::kBusy); };
    busy([&] { store.store().Compact(); });
    busy([&] { store.store().Reserve(100'000); });
    busy([&] { store.store().Snapshot(NewPath()); });
    busy([&] { store.store().Export().items(); });
    busy([&] { store.store().Close(); });
    store.Apply(Op::kUpdate, Numbers(0, 500), 7);
    store.Apply(Op::kInsert, Numbers(1000, 3000));
  }
  store.store().Compact();
  store.store().Reserve(10'000);
  store.store().Snapshot(NewPath());
  store.ExpectContents();
  store.Reopen();
}

TEST_F(ExportTest, OthersWaitForItsEnd) {
  ModelledStore store(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 500);
  const Model then = store.model();
  Exporter exporter = store.store().Export();
  Bytes keys(8 * 10);
  Bytes values(kValueSize * 10);
  EXPECT_EQ(exporter.Next(keys, values), 10u);
  std::atomic<int> ended{0};
  std::vector<std::thread> others;
  others.emplace_back([&] { store.store().Compact(), ++ended; });
  others.emplace_back([&] { store.store().Reserve(5000), ++ended; });
  others.emplace_back([&] { store.store().Snapshot(NewPath()), ++ended; });
  others.emplace_back([&] { Rest(store.store().Export(), 8, kValueSize, 100), ++ended; });
  store.Apply(Op::kUpdate, Numbers(0, 500), 1'000'000);
  EXPECT_EQ(ended, 0);
  const Model rest = Rest(std::move(exporter), 8, kValueSize, 100);
  EXPECT_EQ(rest.size(), 490u);
  for (const auto& [key, value] : rest) EXPECT_EQ(value, then.at(key));
  for (std::thread& other : others) other.join();
  EXPECT_EQ(ended, 4);
  store.ExpectContents();
}

/// Many inserts into a store without items need not be composed: they wait for no export, also
/// where it began when they had looked whether there is one.
TEST_F(ExportTest, WhatIsComposedDoesNotWaitForItsEnd) {
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  TestBatch batch(8, kValueSize);
  for (const std::uint64_t key : Numbers(0, 5000)) batch.Add(Op::kInsert, key, key);
  std::optional<Exporter> exporter = store.Export();
  const Batch inserts = batch.Mixed();
  std::future<bool> composed = std::async(std::launch::async, [&] {
    bool results_on_host = false;
    return store.impl()->Compose(inserts, &results_on_host);
  });
  EXPECT_EQ(composed.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  exporter.reset();
  EXPECT_FALSE(composed.get());
  EXPECT_EQ(store.Stats().items, 0u);
}

/// The system uses the id of a thread again when it has ended.
TEST_F(ExportTest, WhoseThreadHasEndedIsNoOthers) {
  ModelledStore store(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 500);
  for (int i = 0; i < 3; ++i) {
    std::optional<Exporter> exporter;
    std::thread([&] { exporter.emplace(store.store().Export()); }).join();
    std::atomic<bool> ended = false;
    std::optional<ErrorCode> error;
    std::thread other([&] {
      error = ErrorOf([&] { store.store().Reserve(5000); });
      ended = true;
    });
    for (int waits = 0; waits < 500 && !ended && !OtherThreadsSleep(); ++waits) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(ended);
    exporter.reset();
    other.join();
    EXPECT_EQ(error, std::nullopt);
  }
}

/// A pool that can't grow has no cells for updates while an export holds them: they are told so,
/// and have them again afterwards.
TEST_F(ExportTest, InAFullPool) {
  OpenOptions open = TestOpenOptions();
  const CreateOptions create = Shape(8, 4000, 400);
  {
    Store store = Store::Create(NewPath(), create, open);
    open.max_bytes = store.Stats().pm_bytes;
  }
  Store store = Store::Create(NewPath(), create, open);
  TestBatch batch(8, 4000);
  for (std::uint64_t key = 0; key < 400; ++key) batch.Add(Op::kUpsert, key, key);
  EXPECT_EQ(batch.CallFor(store, Op::kUpsert), 0u);
  {
    Exporter exporter = store.Export();
    bool full = false;
    for (int i = 0; i < 10 && !full; ++i) full = batch.CallFor(store, Op::kUpsert) > 0;
    EXPECT_TRUE(full);
    EXPECT_EQ(Rest(std::move(exporter), 8, 4000, 33).size(), 400u);
  }
  EXPECT_EQ(batch.CallFor(store, Op::kUpsert), 0u);
}

TEST_F(ExportTest, EndsAtAnyPage) {
  ModelledStore store(NewPath(), Shape(8, kValueSize), TestOpenOptions());
  Fill(store, 300);
  Bytes keys(8 * 50);
  Bytes values(kValueSize * 50);
  for (int pages = 0; pages <= 6; ++pages) {
    {
      Exporter exporter = store.store().Export();
      for (int i = 0; i < pages; ++i) EXPECT_EQ(exporter.Next(keys, values), 50u);
      store.Apply(Op::kUpdate, Numbers(0, 300), 1000u * pages + 5);
    }
    store.Apply(Op::kUpdate, Numbers(0, 300), 1000u * pages + 6);
  }
  store.ExpectContents();
  const StoreStats stats = store.store().Stats();
  EXPECT_EQ(stats.free_cells + stats.items, stats.value_cells);
  if (TestExecutor() == ExecutorKind::kCpu) {
    EXPECT_EQ(store.store().impl()->CountMisplacedCells(), 0u);
  }
  store.Reopen();
}

TEST_F(ExportTest, WhatIsEvictedMeanwhileIsInIt) {
  OpenOptions open = TestOpenOptions();
  open.capacity.items = 1000;
  Store store = Store::Create(NewPath(), Shape(8, kValueSize), open);
  const auto insert = [&](std::uint64_t first, std::uint64_t count) {
    TestBatch batch(8, kValueSize);
    for (const std::uint64_t key : Numbers(first, count)) batch.Add(Op::kInsert, key, key);
    EXPECT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  };
  insert(0, 1000);
  std::uint64_t next = 5000;
  const Model exported =
      Rest(store.Export(), 8, kValueSize, 100, [&] { insert(next += 500, 500); });
  EXPECT_EQ(exported.size(), 1000u);
  for (std::uint64_t key = 0; key < 1000; ++key) {
    EXPECT_EQ(exported.at(MakeKey(key, 8)), MakeValue(key, kValueSize));
  }
}

}  // namespace
}  // namespace gpm::test
