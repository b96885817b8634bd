#include <algorithm>

#include "recovery/check.h"
#include "tests/files.h"
#include "tests/levels.h"
#include "tests/pool_editor.h"
#include "tests/recovery_fixture.h"
#include "tests/test_util.h"

/// The offline check names what no crash can have left, tells it from what a crash may leave, and
/// writes nothing.
namespace gpm::test {
namespace {

TEST_P(ReferenceTest, CheckNamesTheSlotWithABadReference) {
  const std::uint64_t cell = CellBytes(GetParam().value_size);
  for (const bool clean : {true, false}) {
    for (const std::uint64_t bad : {std::uint64_t{8}, cell + 8, std::uint64_t{1} << 50, kAllOnes}) {
      SCOPED_TRACE("reference " + std::to_string(bad));
      MakePool(600);
      std::string where;
      {
        Editor editor(path());
        const std::vector<Slot> occupied = editor.Slots(0, true);
        const Slot slot = occupied[occupied.size() / 2];
        *editor.view().Reference(slot) = bad;
        where = "level 0 bucket " + std::to_string(editor.BucketOf(slot)) + " slot " +
                std::to_string(slot.index);
        editor.pool().SetClean(clean);
      }
      ExpectDamage(where);
    }
  }
}

TEST_P(ReferenceTest, CheckNamesASharedCell) {
  MakePool(600);
  {
    Editor editor(path());
    const std::vector<Slot> occupied = editor.AllSlots(true);
    *editor.view().Reference(occupied[7]) = *editor.view().Reference(occupied[100]);
    editor.pool().SetClean(false);
  }
  EXPECT_EQ(CheckPool(path()).defects.size(), 1u);
}

TEST_P(RecoveryTest, CheckNamesAMisplacedItem) {
  // An item where no search for its key looks.
  MakePool(600);
  std::string where;
  {
    Editor editor(path());
    const std::vector<Slot> occupied = editor.AllSlots(true);
    const std::vector<Slot> empty = editor.Slots(0, false);
    const KeyBuffer key = editor.Key(occupied[0]);
    const std::vector<Slot> room = editor.RoomFor(key);
    for (const Slot slot : empty) {
      if (std::none_of(room.begin(), room.end(),
                       [&](Slot candidate) { return candidate.bucket == slot.bucket; })) {
        editor.Place(slot, key, *editor.view().Reference(occupied[0]));
        editor.Erase(occupied[0]);
        where = "level 0 bucket " + std::to_string(editor.BucketOf(slot)) + " slot " +
                std::to_string(slot.index);
        break;
      }
    }
  }
  ASSERT_FALSE(where.empty());
  const CheckReport report = CheckPool(path());
  ASSERT_EQ(report.defects.size(), 1u);
  EXPECT_NE(Plain(report.defects.front()).find(where), std::string::npos)
      << report.defects.front() << "\nshould name " << where;
}

TEST_P(RecoveryTest, LeftoversInACleanPoolAreDefects) {
  MakePool(600);
  {
    Editor editor(path());
    editor.PlantInsert(editor.AllSlots(false).front(), 0);
  }
  const CheckReport report = CheckPool(path());
  EXPECT_TRUE(report.clean);
  EXPECT_EQ(report.insert_slots, 1u);
  EXPECT_EQ(report.defects.size(), 1u);
}

TEST_P(RecoveryTest, CheckWritesNothing) {
  MakePool(600);
  {
    Editor editor(path());
    editor.pool().SetClean(false);
    AddLevel(editor.pool());
    const std::vector<Slot> empty = editor.AllSlots(false);
    for (std::size_t i = 0; i < empty.size(); i += 9) editor.PlantInsert(empty[i], 1);
  }
  const std::string before = ReadFile(path());
  EXPECT_TRUE(CheckPool(path()).defects.empty());
  EXPECT_TRUE(ReadFile(path()) == before);
}

}  // namespace
}  // namespace gpm::test
