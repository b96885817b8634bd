#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>

#include "pm/pool.h"
#include "recovery/check.h"
#include "tests/levels.h"
#include "tests/pool_editor.h"
#include "tests/recovery_fixture.h"
#include "tests/test_util.h"

/// Recovery of what crashes leave of single operations: claimed slots, copies, halves of a pair of
/// state word and reference, cells that no item names. The crashes are made by hand: a closed
/// pool's slots are edited the way a crash at that step would have left them.
namespace gpm::test {
namespace {

constexpr RecoveryShape kShapes[] = {{8, 8, "2L-2H-8S"},
                                     {32, 8, "1L-2H-16S"},
                                     {8, 128, "2L-2H-8S"},
                                     {32, 100, "4L-2H-4S"},
                                     {128, 128, "1L-2H-4S"}};
constexpr std::span kCellShapes = std::span(kShapes).subspan(2);  // values that do not fit inline

std::string ShapeName(const ::testing::TestParamInfo<RecoveryShape>& shape) {
  std::string name = shape.param.geometry;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_key" + std::to_string(shape.param.key_size) + "_value" +
         std::to_string(shape.param.value_size);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RecoveryTest, ::testing::ValuesIn(kShapes), ShapeName);
INSTANTIATE_TEST_SUITE_P(Shapes, ReferenceTest,
                         ::testing::ValuesIn(kCellShapes.begin(), kCellShapes.end()), ShapeName);

TEST_P(RecoveryTest, UncleanPoolWithNothingToRepair) {
  MakePool(600);
  Editor(path()).pool().SetClean(false);
  const RecoveryStats recovery = Recover();
  EXPECT_FALSE(recovery.resize_continued);
  EXPECT_EQ(recovery.insert_slots_cleared, 0u);
  EXPECT_EQ(recovery.duplicates_removed, 0u);
  EXPECT_GE(recovery.seconds, 0.0);
}

TEST_P(RecoveryTest, ClearsInsertSlots) {
  MakePool(600);
  std::uint64_t planted = 0;
  {
    Editor editor(path());
    const std::vector<Slot> empty = editor.AllSlots(false);
    for (std::size_t i = 0; i < empty.size(); i += 3, ++planted) {
      // References as a crash can leave them: nothing, an old or a fresh cell, torn-off garbage.
      const std::uint64_t garbage[] = {0, 0xDEADBEEFDEADBEEFull, editor.pool().cell_bytes() * 1000};
      editor.PlantInsert(empty[i], garbage[i % 3]);
    }
    // In the reserved level too: there, the places next to the all-zero and the all-one key.
    if (GetParam().key_size == 8 && editor.view().slots > 1) {
      for (std::uint32_t bucket = 0; bucket < 2; ++bucket, ++planted) {
        const Slot slot{editor.view().ReservedBucket(bucket), editor.view().slots - 1};
        ASSERT_EQ(*editor.view().State(slot), kEmptyState);
        editor.PlantInsert(slot, 0);
      }
    }
    editor.pool().SetClean(false);
  }
  ASSERT_GT(planted, 10u);
  EXPECT_EQ(CheckPool(path()).insert_slots, planted);
  EXPECT_EQ(Recover().insert_slots_cleared, planted);
}

TEST_P(RecoveryTest, InsertThatWasHalfDoneInPlaceOfAnItem) {
  // Items turned into half-inserted slots are gone (as before their insert), and their cells free.
  MakePool(600);
  {
    Editor editor(path());
    const std::vector<Slot> occupied = editor.AllSlots(true);
    for (std::size_t i = 0; i < occupied.size(); i += 5) {
      model().erase(KeyText(editor.Key(occupied[i])));
      *editor.view().State(occupied[i]) = kInsertState;
    }
    for (std::size_t i = 1; i < occupied.size(); i += 5) {  // and erased ones, for their cells
      model().erase(KeyText(editor.Key(occupied[i])));
      editor.Erase(occupied[i]);
    }
    editor.pool().SetClean(false);
  }
  EXPECT_GT(Recover().insert_slots_cleared, 100u);
}

TEST_P(RecoveryTest, RemovesDuplicates) {
  // Copies as two concurrent inserts leave them, each with a value of its own.
  MakePool(600);
  std::uint64_t planted = 0;
  std::uint64_t preceding = 0;
  {
    Editor editor(path());
    const bool inline_values = editor.view().inline_values();
    std::vector<std::uint64_t> cells = editor.FreeCells();
    const std::vector<Slot> occupied = editor.AllSlots(true);
    for (std::size_t i = 0; i < occupied.size(); i += 2) {
      const KeyBuffer key = editor.Key(occupied[i]);
      const std::vector<Slot> room = editor.RoomFor(key);
      if (room.empty() || (!inline_values && cells.empty())) continue;
      const std::string value = MakeValue(Mix(i), GetParam().value_size);
      std::uint64_t reference = 0;
      if (inline_values) {
        std::memcpy(&reference, value.data(), value.size());
      } else {
        reference = cells.back();
        cells.pop_back();
        std::memcpy(editor.view().Cell(reference), value.data(), value.size());
      }
      const Slot copy = room[i / 2 % room.size()];
      editor.Place(copy, key, reference);
      ++planted;
      if (editor.Precedes(copy, occupied[i])) {
        ++preceding;
        model()[KeyText(key)] = value;
      }
    }
    editor.pool().SetClean(false);
  }
  ASSERT_GT(planted, 50u);
  ASSERT_GT(preceding, 5u);
  ASSERT_LT(preceding, planted);
  EXPECT_EQ(CheckPool(path()).duplicates, planted);

  // Offline readers see each key once, too.
  {
    const auto pool = Pool::Open(path(), Pool::Options{0, true});
    Model visited;
    std::uint64_t visits = 0;
    VisitPool(*pool, [&](std::span<const std::byte> key, std::span<const std::byte> value) {
      visited[AsString(key)] = AsString(value);
      ++visits;
    });
    EXPECT_EQ(visits, model().size());
    EXPECT_TRUE(visited == model());
  }
  EXPECT_EQ(Recover().duplicates_removed, planted);
}

TEST_P(RecoveryTest, SecondCrashRightAfterRecovery) {
  // What recovery repaired stays repaired when the process dies before closing.
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "forks, which CUDA does not survive";
  MakePool(600);
  {
    Editor editor(path());
    const std::vector<Slot> empty = editor.AllSlots(false);
    for (std::size_t i = 0; i < empty.size(); i += 4) editor.PlantInsert(empty[i], 1);
    editor.pool().SetClean(false);
    AddLevel(editor.pool());
  }
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Store store = Store::Open(path(), TestOpenOptions());
    _exit(store.Stats().recovery.resize_continued ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const RecoveryStats second = Recover();
  EXPECT_EQ(second.insert_slots_cleared, 0u);
  EXPECT_EQ(second.duplicates_removed, 0u);
}

/// What a torn pair of state word and reference may be in a slot that held nothing before, or that
/// was being freed.
enum class Half : std::uint8_t { kReferenceAlone, kWordAlone, kInsertAlone, kInsertAndReference };
constexpr Half kHalves[] = {Half::kReferenceAlone, Half::kWordAlone, Half::kInsertAlone,
                            Half::kInsertAndReference};

void PlantHalf(Editor& editor, Slot slot, Half half, std::uint64_t word, std::uint64_t reference) {
  const TableView table = editor.view();
  const bool insert = half == Half::kInsertAlone || half == Half::kInsertAndReference;
  const bool refers = half == Half::kReferenceAlone || half == Half::kInsertAndReference;
  *table.State(slot) = insert ? kInsertState : half == Half::kWordAlone ? word : kEmptyState;
  *table.Reference(slot) = refers ? reference : 0;
}

TEST_P(ReferenceTest, ClearsEachHalfOfAPair) {
  for (const Half half : kHalves) {
    for (const bool clean : {false, true}) {
      SCOPED_TRACE(static_cast<int>(half));
      MakePool(600);
      std::uint64_t planted = 0;
      std::vector<std::uint64_t> slots;  // offsets of their pairs
      {
        Editor editor(path());
        const std::vector<Slot> empty = editor.AllSlots(false);
        const std::uint64_t used = *editor.view().Reference(editor.AllSlots(true).front());
        for (std::size_t i = 0; i < empty.size(); i += 3, ++planted) {
          const std::uint64_t references[] = {used, editor.FreeCells().front(), kAllOnes};
          PlantHalf(editor, empty[i], half, 1234567 + i, references[planted % 3]);
          slots.push_back(editor.view().SlotId(empty[i]));
        }
        editor.pool().SetClean(clean);
      }
      const CheckReport report = CheckPool(path());
      EXPECT_EQ(report.insert_slots, planted);
      EXPECT_EQ(report.items, model().size());
      EXPECT_EQ(report.defects.size(), clean ? 16u : 0u);
      if (clean) {
        EXPECT_NE(report.defects.front().find("half-inserted or half-emptied"), std::string::npos);
      }
      {
        Store store = Store::Open(path(), TestOpenOptions());
        EXPECT_EQ(store.Stats().recovery.insert_slots_cleared, planted);
        ExpectContents(store, model());
        store.Close();
      }
      ExpectSound(path(), model().size());
      Editor after(path());
      for (const std::uint64_t id : slots) {
        EXPECT_EQ(*after.view().State(after.view().SlotOf(id)), kEmptyState);
        EXPECT_EQ(*after.view().Reference(after.view().SlotOf(id)), 0u);
      }
    }
  }
}

TEST_P(ReferenceTest, AHalfCopyTakesNoPrecedence) {
  // An item that was being moved aside, or up: its half copy comes first in the table's order.
  MakePool(600);
  std::uint64_t planted = 0;
  std::vector<KeyBuffer> keys;
  {
    Editor editor(path());
    for (const Slot slot : editor.AllSlots(true)) {
      const KeyBuffer key = editor.Key(slot);
      for (const Slot room : editor.RoomFor(key)) {
        if (!editor.Precedes(room, slot)) continue;
        editor.Place(room, key, 0);
        keys.push_back(key);
        ++planted;
        break;
      }
    }
    editor.pool().SetClean(false);
  }
  ASSERT_GT(planted, 20u);
  {
    const auto pool = Pool::Open(path(), Pool::Options{0, true});
    std::uint64_t visits = 0;
    VisitPool(*pool, [&](auto, auto) { ++visits; });
    EXPECT_EQ(visits, model().size());
    for (const KeyBuffer& key : keys) {
      std::string value(GetParam().value_size, '\0');
      const std::string text = KeyText(key);
      EXPECT_TRUE(FindInPool(*pool, std::as_bytes(std::span(text)),
                             std::as_writable_bytes(std::span(value))));
      EXPECT_EQ(value, model()[text]);
    }
  }
  const CheckReport report = CheckPool(path());
  EXPECT_EQ(report.insert_slots, planted);
  EXPECT_EQ(report.duplicates, 0u);
  const RecoveryStats recovery = Recover();
  EXPECT_EQ(recovery.insert_slots_cleared, planted);
  EXPECT_EQ(recovery.duplicates_removed, 0u);
}

class CellRecoveryTest : public PoolTest {};

TEST_F(CellRecoveryTest, CellsThatNoItemNamesAreUsedAgain) {
  // What is inserted after the crash goes into the cells of what the crash took away.
  constexpr std::uint64_t kItems = 2000;
  const std::string path = NewPath();
  CreateOptions create{.key_size = 16, .value_size = 1000, .initial_capacity = 2 * kItems};
  ModelledStore store(path, create, TestOpenOptions());
  store.Apply(Op::kInsert, Numbers(0, kItems));
  store.store().Close();
  Model& model = store.model();
  std::uint64_t cells = 0;
  {
    Editor editor(path);
    cells = editor.FreeCells().size();
    const std::vector<Slot> occupied = editor.AllSlots(true);
    for (std::size_t i = 0; i < kItems / 2; ++i) {
      const KeyBuffer key = editor.Key(occupied[i]);
      model.erase(std::string(reinterpret_cast<const char*>(key.words), 16));
      if (i % 2 == 0) {
        editor.Erase(occupied[i]);
      } else {
        *editor.view().State(occupied[i]) = kInsertState;
      }
      ++cells;
    }
    editor.pool().SetClean(false);
  }
  const std::uint64_t file_bytes = std::filesystem::file_size(path);
  Store again = Store::Open(path, TestOpenOptions());
  EXPECT_EQ(again.Stats().free_cells, cells);
  const std::uint64_t all_cells = again.Stats().value_cells;
  const std::uint64_t kept = all_cells / 64;  // for updates
  TestBatch batch(create.key_size, create.value_size);
  for (std::uint64_t i = 0; i + kept < cells; ++i) batch.Add(Op::kInsert, kItems + i, i);
  again.Apply(batch.Mixed());
  batch.Compare(model);  // every one found a cell
  ExpectContents(again, model);
  EXPECT_EQ(again.Stats().free_cells, kept);
  EXPECT_EQ(again.Stats().value_cells, all_cells);  // and not one that was made for it
  const StoreStats stats = again.Stats();
  EXPECT_EQ(stats.pm_bytes - stats.pm_bytes_ready, file_bytes);
  again.Close();
  ExpectSound(path, model.size());
}

}  // namespace
}  // namespace gpm::test
