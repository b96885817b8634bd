#include "pm/pool.h"
#include "recovery/check.h"
#include "tests/levels.h"
#include "tests/pool_editor.h"
#include "tests/recovery_fixture.h"
#include "tests/test_util.h"

/// Recovery of what crashes leave amid a resize: a level was added, and the oldest one is not
/// empty.
namespace gpm::test {
namespace {

/// How far a resize had come: percentages of the oldest level's items, and what else was going on.
struct ResizeStep {
  const char* name;
  unsigned copied;             ///< inserted above
  unsigned erased;             ///< and erased below
  bool half_inserted = false;  ///< INSERT slots above and below
};

constexpr ResizeStep kSteps[] = {
    {"level added", 0, 0},
    {"first item half copied", 0, 0, true},
    {"some copied, none erased", 30, 0},
    {"some moved", 30, 30},
    {"some moved, more copied", 60, 40},
    {"some moved, more copied, some half copied", 60, 40, true},
    {"all copied, none erased", 100, 0},
    {"all copied, most erased", 100, 90},
    {"all moved, oldest not dropped", 100, 100},
    {"all moved, oldest not dropped, half inserted", 100, 100, true},
};

/// A table that fills up badly, with a large level below many of one bucket, as it is while it gets
/// smaller: of the few levels that the superblock still has entries for, the last does.
using RecoveryOfManyLevels = PoolTest;
TEST_F(RecoveryOfManyLevels, TheLastEntryIsForALevelThatDoes) {
  CreateOptions create = Shape(8, 40);
  create.geometry = {32, 1, 1};
  ModelledStore store(NewPath(), create, TestOpenOptions());
  const auto add_levels = [&](std::uint64_t buckets, std::uint32_t count) {
    store.store().Close();
    {
      Editor editor(store.path());
      for (std::uint32_t i = 0; i < count; ++i) editor.pool().AddLevel(buckets);
    }
    store.store() = Store::Open(store.path(), TestOpenOptions());
    store.ExpectContents();
  };
  add_levels(4096, 1);
  store.Apply(Op::kInsert, Numbers(0, 400));
  for (std::uint32_t added = 0; added < 35; added += 7) add_levels(1, 7);
  EXPECT_EQ(store.store().Stats().level_buckets.size(), 32u);
  store.Reopen();
}

TEST_P(RecoveryTest, GoesOnWithAResizeInterruptedAtEveryStep) {
  for (const ResizeStep& step : kSteps) {
    SCOPED_TRACE(step.name);
    MakePool(600);
    std::uint64_t newest = 0;
    std::uint64_t moved = 0;
    {
      Editor editor(path());
      editor.pool().SetClean(false);
      const std::vector<Slot> below = editor.Slots(editor.Oldest(), true);
      ASSERT_FALSE(below.empty());
      AddLevel(editor.pool());  // the oldest level is not addressable any more
      newest = editor.superblock().levels[0].buckets;
      for (std::size_t i = 0; i < below.size() * step.copied / 100; ++i) {
        const KeyBuffer key = editor.Key(below[i]);
        const std::vector<Slot> room = editor.RoomFor(key);
        ASSERT_FALSE(room.empty());
        editor.Place(room.front(), key, *editor.view().Reference(below[i]));
        if (i < below.size() * step.erased / 100) editor.Erase(below[i]);
        ++moved;
      }
      if (step.half_inserted) {
        for (const std::uint32_t level : {editor.Oldest(), 0u}) {
          const std::vector<Slot> empty = editor.Slots(level, false);
          for (std::size_t i = 0; i < empty.size(); i += 7) editor.PlantInsert(empty[i], 12345);
        }
      }
    }
    if (step.copied > 0) {
      EXPECT_GT(moved, 10u);
    }
    EXPECT_TRUE(CheckPool(path()).resizing);
    const RecoveryStats recovery = Recover();
    EXPECT_TRUE(recovery.resize_continued);
    EXPECT_EQ(recovery.insert_slots_cleared > 0, step.half_inserted);
    EXPECT_GE(Editor(path()).superblock().levels[0].buckets, newest);
  }
}

TEST_P(RecoveryTest, GoesOnWithAResizeThatNeededTwoLevels) {
  // Draining found no room, so that a second level was added before the first was drained.
  MakePool(600);
  {
    Editor editor(path());
    editor.pool().SetClean(false);
    AddLevel(editor.pool());
    AddLevel(editor.pool());
    const std::vector<Slot> below = editor.Slots(editor.Oldest(), true);
    for (std::size_t i = 0; i < below.size() / 2; ++i) {
      const KeyBuffer key = editor.Key(below[i]);
      const std::vector<Slot> room = editor.RoomFor(key);
      ASSERT_FALSE(room.empty());
      editor.Place(room.back(), key, *editor.view().Reference(below[i]));
      if (i % 2 == 0) editor.Erase(below[i]);
    }
  }
  EXPECT_TRUE(Recover().resize_continued);
}

TEST_P(ReferenceTest, WhatWasMovedUpLeavesItsReference) {
  MakePool(600);
  std::uint64_t moved = 0;
  {
    Editor editor(path());
    editor.pool().SetClean(false);
    const std::vector<Slot> below = editor.Slots(editor.Oldest(), true);
    AddLevel(editor.pool());
    for (const Slot slot : below) {
      const KeyBuffer key = editor.Key(slot);
      const std::vector<Slot> room = editor.RoomFor(key);
      if (room.empty()) continue;
      editor.Place(room.front(), key, *editor.view().Reference(slot));
      editor.Erase(slot);
      ++moved;
      ASSERT_NE(*editor.view().Reference(slot), 0u);
    }
  }
  ASSERT_GT(moved, 20u);
  EXPECT_EQ(CheckPool(path()).insert_slots, 0u);
  const RecoveryStats recovery = Recover();
  EXPECT_TRUE(recovery.resize_continued);
  EXPECT_EQ(recovery.insert_slots_cleared, 0u);
}

}  // namespace
}  // namespace gpm::test
