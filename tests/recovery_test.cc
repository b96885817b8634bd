#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <set>

#include "pm/pool.h"
#include "recovery/check.h"
#include "table/layout.h"
#include "table/media/direct.h"
#include "tests/levels.h"
#include "tests/test_util.h"

/// Recovery of what crashes leave. The crashes are made by hand: a closed pool's slots, levels and
/// references are edited the way a crash at that step would have left them. The last tests kill a
/// process for real.
namespace gpm::test {
namespace {

/// A closed pool, open for editing.
class Editor {
 public:
  explicit Editor(const std::string& path) : pool_(Pool::Open(path, Pool::Options{})) {}

  Pool& pool() { return *pool_; }
  const Superblock& superblock() const { return pool_->superblock(); }
  TableView view() const { return MakeTableView(pool_->base(), superblock()); }

  /// Calls visit(slot) for every slot of a level.
  void ForEachSlot(std::uint32_t level, const std::function<void(Slot)>& visit) const {
    const TableView table = view();
    for (std::uint64_t number = 0; number < table.Buckets(level); ++number) {
      for (std::uint32_t s = 0; s < table.slots; ++s) visit(Slot{table.Bucket(level, number), s});
    }
  }

  std::uint32_t Oldest() const { return superblock().level_count - 1; }

  /// Slots of a level, or of all levels, in some state.
  std::vector<Slot> Slots(std::uint32_t level, bool occupied) const {
    std::vector<Slot> slots;
    ForEachSlot(level, [&](Slot slot) {
      if ((*view().State(slot) != kEmptyState) == occupied) slots.push_back(slot);
    });
    return slots;
  }
  std::vector<Slot> AllSlots(bool occupied) const {
    std::vector<Slot> all;
    for (std::uint32_t level = 0; level < superblock().level_count; ++level) {
      const std::vector<Slot> slots = Slots(level, occupied);
      all.insert(all.end(), slots.begin(), slots.end());
    }
    return all;
  }

  KeyBuffer Key(Slot slot) const {
    KeyBuffer key{};
    LoadSlotKey(view(), DirectMedia(Persist()), slot, *view().State(slot), key.words);
    return key;
  }

  /// Where an insert could put the key of an item: empty candidate slots in the addressable levels.
  std::vector<Slot> RoomFor(const KeyBuffer& key) const {
    const TableView table = view();
    const Candidates candidates = LocateKey(table, key.words);
    std::vector<Slot> room;
    for (std::uint32_t c = 0; c < table.candidate_buckets(); ++c) {
      std::byte* bucket = CandidateBucket(table, candidates, c);
      for (std::uint32_t s = 0; bucket != nullptr && s < table.slots; ++s) {
        if (*table.State({bucket, s}) == kEmptyState) room.push_back({bucket, s});
      }
    }
    return room;
  }

  /// Writes a valid item the way an insert does.
  void Place(Slot slot, const KeyBuffer& key, std::uint64_t reference) {
    const TableView table = view();
    if (table.key_words > 1) std::memcpy(table.Key(slot), key.words, 8 * table.key_words);
    *table.Reference(slot) = reference;
    *table.State(slot) = LocateKey(table, key.words).word;
  }
  /// As a slot is left that was freed; of a level that is being drained, by the state alone.
  void Erase(Slot slot) {
    *view().State(slot) = kEmptyState;
    const bool addressable = LevelOf(slot) < superblock().geometry.levels;
    if (addressable && !view().inline_values()) *view().Reference(slot) = 0;
  }

  /// A slot that was claimed and half written when the crash came.
  void PlantInsert(Slot slot, std::uint64_t garbage) {
    const TableView table = view();
    *table.State(slot) = kInsertState;
    if (table.key_words > 1) std::memset(table.Key(slot), 0xAB, 8 * table.key_words);
    *table.Reference(slot) = garbage;
  }

  /// References of cells that no slot names, of the levels or of the reserved one.
  std::vector<std::uint64_t> FreeCells() const {
    const TableView table = view();
    std::set<std::uint64_t> used;
    for (const Slot slot : AllSlots(true)) used.insert(*table.Reference(slot));
    for (const std::uint32_t bucket : {0u, 1u}) {
      for (std::uint32_t s = 0; s < table.slots; ++s) {
        const Slot slot{table.ReservedBucket(bucket), s};
        if (*table.State(slot) != kEmptyState) used.insert(*table.Reference(slot));
      }
    }
    std::vector<std::uint64_t> free;
    const std::uint64_t cell_bytes = pool_->cell_bytes();
    for (std::uint32_t i = 0; i < superblock().segment_count; ++i) {
      const SegmentEntry segment = superblock().segments[i];
      std::uint64_t at = RoundUp(segment.offset, cell_bytes);
      for (; at + cell_bytes <= segment.offset + segment.bytes; at += cell_bytes) {
        if (!used.contains(at)) free.push_back(at);
      }
    }
    return free;
  }

  /// Which of two places of one key counts: the newer level, then the lower bucket, then slot.
  bool Precedes(Slot a, Slot b) const {
    const std::uint32_t level_a = LevelOf(a);
    const std::uint32_t level_b = LevelOf(b);
    if (level_a != level_b) return level_a < level_b;
    return a.bucket != b.bucket ? a.bucket < b.bucket : a.index < b.index;
  }
  std::uint32_t LevelOf(Slot slot) const {
    for (std::uint32_t level = 0; level < superblock().level_count; ++level) {
      const std::byte* first = view().Bucket(level, 0);
      if (slot.bucket >= first && slot.bucket < view().Bucket(level, view().Buckets(level))) {
        return level;
      }
    }
    ADD_FAILURE() << "slot outside the levels";
    return 0;
  }
  std::uint64_t BucketOf(Slot slot) const {
    return static_cast<std::uint64_t>(slot.bucket - view().Bucket(LevelOf(slot), 0)) /
           pool_->bucket_bytes();
  }

 private:
  std::unique_ptr<Pool> pool_;
};

std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

struct Shape {
  std::uint32_t key_size;
  std::uint32_t value_size;
  const char* geometry;
};

class RecoveryTest : public PoolTest, public ::testing::WithParamInterface<Shape> {
 protected:
  /// A closed pool with items keyed 0, 1, ..., the all-one key, and some value cells to spare.
  void MakePool(std::uint64_t items) {
    const Shape shape = GetParam();
    CreateOptions create;
    create.key_size = shape.key_size;
    create.value_size = shape.value_size;
    create.geometry = ParseGeometry(shape.geometry);
    create.hash_seed = TestSeed();
    ModelledStore store(path_ = NewPath(), create, TestOpenOptions());
    std::vector<std::uint64_t> keys = Numbers(0, items);
    keys.push_back(kAllOnes);
    store.Apply(Op::kInsert, keys);
    store.Apply(Op::kInsert, Numbers(items, 400));
    store.Apply(Op::kErase, Numbers(items, 400));
    store.store().Close();
    model_ = store.model();
    ExpectSound(path_, model_.size());
  }

  /// Opens the crashed pool, compares it with the model, uses it, closes it and checks it.
  RecoveryStats Recover() {
    const CheckReport crashed = CheckPool(path_);
    EXPECT_TRUE(crashed.defects.empty()) << "a crashed pool is sound: " << crashed.defects.front();
    EXPECT_FALSE(crashed.clean);
    EXPECT_EQ(crashed.items, model_.size());
    Store store = Store::Open(path_, TestOpenOptions());
    const StoreStats stats = store.Stats();
    EXPECT_FALSE(stats.recovery.was_clean);
    EXPECT_EQ(stats.recovery.insert_slots_cleared, crashed.insert_slots);
    // (One more where batches are to drain it.)
    EXPECT_LE(stats.level_buckets.size(), stats.geometry.levels + 1u);
    EXPECT_EQ(stats.buckets_to_drain > 0, stats.level_buckets.size() > stats.geometry.levels);
    if (stats.value_cells > 0) {
      EXPECT_EQ(stats.free_cells, stats.value_cells - model_.size()) << "cells leaked";
    }
    ExpectContents(store, model_);

    // The recovered store is a store like any other.
    TestBatch batch(GetParam().key_size, GetParam().value_size);
    std::mt19937_64 random(TestSeed());
    for (int i = 0; i < 3000; ++i) {
      batch.Add(static_cast<Op>(random() % kOpKinds), random() % 1500, random());
    }
    store.Apply(batch.Mixed());
    batch.Compare(model_);
    ExpectContents(store, model_);
    store.Close();
    ExpectSound(path_, model_.size());
    return stats.recovery;
  }

  /// The check names the slot; opening refuses the pool and leaves it as it is.
  void ExpectDamage(const std::string& where) {
    const CheckReport report = CheckPool(path_);
    ASSERT_EQ(report.defects.size(), 1u);
    EXPECT_NE(Plain(report.defects.front()).find(where), std::string::npos)
        << report.defects.front() << "\nshould name " << where;
    const std::string before = FileBytes(path_);
    EXPECT_EQ(ErrorOf([&] { Store::Open(path_, TestOpenOptions()); }), ErrorCode::kDamaged);
    EXPECT_TRUE(FileBytes(path_) == before) << "a damaged pool was changed";
  }
  /// A message without its punctuation.
  static std::string Plain(std::string message) {
    std::erase_if(message, [](char c) { return c == ',' || c == ':'; });
    return message;
  }

  const std::string& path() const { return path_; }
  Model& model() { return model_; }
  std::string KeyText(const KeyBuffer& key) const {
    return std::string(reinterpret_cast<const char*>(key.words), GetParam().key_size);
  }

 private:
  std::string path_;
  Model model_;
};

constexpr Shape kShapes[] = {{8, 8, "2L-2H-8S"},
                             {32, 8, "1L-2H-16S"},
                             {8, 128, "2L-2H-8S"},
                             {32, 100, "4L-2H-4S"},
                             {128, 128, "1L-2H-4S"}};
constexpr std::span kCellShapes = std::span(kShapes).subspan(2);  // values that do not fit inline

std::string ShapeName(const ::testing::TestParamInfo<Shape>& shape) {
  std::string name = shape.param.geometry;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_key" + std::to_string(shape.param.key_size) + "_value" +
         std::to_string(shape.param.value_size);
}

class ReferenceTest : public RecoveryTest {};

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
  const std::string before = FileBytes(path());
  EXPECT_TRUE(CheckPool(path()).defects.empty());
  EXPECT_TRUE(FileBytes(path()) == before);
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

class RealCrashTest : public PoolTest {};

TEST_F(RealCrashTest, AcknowledgedBatchesSurviveAKilledProcess) {
  if (TestExecutor() != ExecutorKind::kCpu) GTEST_SKIP() << "forks, which CUDA does not survive";
  constexpr std::uint32_t kKeySize = 16;
  constexpr std::uint32_t kValueSize = 40;
  const std::string path = NewPath();
  { Store::Create(path, {.key_size = kKeySize, .value_size = kValueSize}, TestOpenOptions()); }
  std::mt19937_64 random(TestSeed());
  Model model;
  std::uint64_t first = 0;  // batch of this round's child
  const auto make_batch = [](std::uint64_t number) {
    TestBatch batch(kKeySize, kValueSize);
    std::mt19937_64 choose(number);
    for (int i = 0; i < 200; ++i) {
      batch.Add(static_cast<Op>(choose() % kOpKinds), choose() % (100 + 20 * number), choose());
    }
    return batch;
  };
  for (int round = 0; round < 8; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // applies batches, one byte for each that is acknowledged, until killed
      Store store = Store::Open(path, TestOpenOptions());
      for (std::uint64_t number = first;; ++number) {
        TestBatch batch = make_batch(number);
        store.Apply(batch.Mixed());
        if (write(ends[1], "+", 1) != 1) _exit(1);
      }
    }
    close(ends[1]);
    std::uint64_t acknowledged = 0;
    char byte;
    const std::uint64_t wanted = 1 + random() % 30;
    while (acknowledged < wanted && read(ends[0], &byte, 1) == 1) ++acknowledged;
    usleep(static_cast<useconds_t>(random() % 3000));
    kill(child, SIGKILL);
    while (read(ends[0], &byte, 1) == 1) ++acknowledged;
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";

    for (std::uint64_t number = first; number < first + acknowledged; ++number) {
      const TestBatch batch = make_batch(number);
      for (std::size_t i = 0; i < batch.size(); ++i) batch.ApplyOne(model, i);
    }
    // The batch that was running: each key is as before it, or as after one of its operations on
    // it. What of the two it is, the reopened store says, and the model follows.
    std::map<std::string, std::set<std::string>> allowed;  // empty value: no item
    const TestBatch running = make_batch(first + acknowledged);
    const auto state = [&](const std::string& key) {
      return model.contains(key) ? model[key] : std::string();
    };
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::string key = AsString(running.key(i));
      allowed[key].insert(state(key));
    }
    const Model before = model;
    for (std::size_t i = 0; i < running.size(); ++i) {
      running.ApplyOne(model, i);
      const std::string key = AsString(running.key(i));
      allowed[key].insert(state(key));
    }
    model = before;
    const CheckReport crashed = CheckPool(path);
    EXPECT_TRUE(crashed.defects.empty());
    EXPECT_FALSE(crashed.clean);
    Store store = Store::Open(path, TestOpenOptions());
    EXPECT_FALSE(store.Stats().recovery.was_clean);
    Model actual;
    store.ForEach([&](std::span<const std::byte> key, std::span<const std::byte> value) {
      actual[AsString(key)] = AsString(value);
    });
    for (const auto& [key, values] : allowed) {
      const std::string value = actual.contains(key) ? actual[key] : std::string();
      EXPECT_TRUE(values.contains(value));
      if (value.empty()) {
        model.erase(key);
      } else {
        model[key] = value;
      }
    }
    ExpectContents(store, model);
    store.Close();
    ExpectSound(path, model.size());
    first += acknowledged + 1;
  }
}

}  // namespace
}  // namespace gpm::test
