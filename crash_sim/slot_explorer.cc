#include "crash_sim/slot_explorer.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <functional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "crash_sim/crash_states.h"
#include "crash_sim/grid_media.h"
#include "pm/space.h"
#include "table/operation.h"
#include "table/protocol.h"

namespace gpm::crash {
namespace {

constexpr std::uint32_t kSlots = 2;                            ///< of the only bucket
constexpr std::uint32_t kIndex = TableView::kReservedBuckets;  ///< its, behind those
constexpr std::uint64_t kFirstKey = 100;
constexpr std::uint32_t kInserters = 3;
constexpr int kTries = 3;
constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr std::uint32_t kValueBytes = 16;    ///< where values are in cells
constexpr std::uint32_t kFirstCell = 16;     ///< behind the bucket
constexpr std::uint32_t kCells = 16;         ///< the first ones are the slots'
constexpr std::uint64_t kErasedValue = 500;  ///< what the cells of erased slots have

/// A bucket and its users.
class SlotRunner {
 public:
  void Run(std::uint64_t seed, Step leave_out, SlotReport* report) {
    std::mt19937_64 random(Scramble(seed));
    Shape(random() % 4 == 0, random() % 4 != 0);
    machine_.Begin(8 * pool_.size());
    machine_.Mapped(table_.base, 8 * pool_.size());
    machine_.BeginGrid(random());
    items_ = random() % kSlots;  // in the first slots
    Fill();
    const Image before(pool_.begin(), pool_.end());

    std::vector<std::function<void()>> bodies;
    const std::uint64_t recyclers = 1 + random() % (kSlots - items_);
    for (std::uint64_t i = 0; i < recyclers; ++i) {
      bodies.push_back([this, i, recyclers] {
        MakeOperations().RecycleSlots(i, kSlots - items_, recyclers);
        media_.FenceShared(Step::kOther);  // the kernel ends
      });
    }
    inserts_.fill({});
    for (std::uint32_t i = 0; i < kInserters; ++i) {
      bodies.push_back([this, i] {
        inserts_[i].begun = machine_.trace().events().size();
        for (int k = 0; k < kTries && !inserts_[i].said; ++k) {
          inserts_[i].said = Insert(kFirstKey + i);
        }
        if (inserts_[i].said) inserts_[i].ended = machine_.trace().events().size();
        media_.FenceShared(Step::kOther);
      });
    }
    bodies.push_back([this, first = random() % kInserters] {
      for (std::uint32_t i = 0; i < kInserters; ++i) Find(kFirstKey + (first + i) % kInserters);
    });
    scheduler_.SetOptions(Scheduler::RandomOptions(random));
    machine_.LeaveOut(leave_out);
    try {
      scheduler_.Run(std::move(bodies));
      machine_.LeaveOut(Step::kOther);
      Check(report);
      report->states +=
          ForSomeStates(machine_.trace(), before, random,
                        [&](const Image& image, std::uint64_t event) { CheckImage(image, event); });
    } catch (const std::exception& error) {
      report->violation = fmt::format("seed {}: {}", seed, error.what());
      report->violation_seed = seed;
    }
    machine_.LeaveOut(Step::kOther);
    ++report->schedules;
  }

 private:
  using Tile = Operations<ThreadGroup, GridMedia>;

  /// When an insert began and ended, in events of the trace.
  struct Call {
    std::uint64_t begun = kNever;
    std::uint64_t ended = kNever;
    bool said = false;  ///< that the item is there
  };

  void Shape(bool inline_values, bool directory) {
    Superblock superblock{};
    superblock.key_size = 8;
    superblock.value_size = inline_values ? 8 : kValueBytes;
    superblock.geometry = Geometry{1, 1, kSlots};
    LayLevels(&superblock, {1}, 0);
    table_ = MakeTableView(reinterpret_cast<std::byte*>(pool_.data()), superblock);
    accelerators_ = {};
    if (!directory) return;
    accelerators_.directory.fingerprints = prints_.data();
    accelerators_.directory.stride = DirectoryView::kPrintsInWord;
    accelerators_.directory.entries = reinterpret_cast<std::byte*>(entries_.data());
    accelerators_.directory.entry_bytes = DirectoryView::EntryBytes(1);
  }

  /// The first slots hold items, the others were erased.
  void Fill() {
    pool_.fill(0);
    prints_.fill(0);
    entries_.fill(0);
    locks_words_.fill(0);
    cell_ring_.fill(0);
    slot_ring_.fill(0);
    taken_ = 0;
    counters_ = {kCells, kSlots};
    for (std::uint32_t i = 0; i < kCells; ++i) cell_ring_[i] = kFirstCell + kSlots + i;
    for (std::uint32_t s = 0; s < kSlots; ++s) {
      const bool erased = s >= items_;
      const std::uint64_t value = erased ? kErasedValue : ItemOf(s);
      *table_.State(SlotAt(s)) = erased ? kInsertState : ItemOf(s);
      *table_.Reference(SlotAt(s)) =
          table_.inline_values() ? value : (kFirstCell + s) * table_.cell_bytes;
      if (!table_.inline_values()) pool_[(kFirstCell + s) * table_.cell_bytes / 8] = value;
      if (erased) slot_ring_[s - items_] = table_.SlotId(SlotAt(s));
    }
    if (accelerators_.directory.enabled()) MakeOperations().directory().Build(kIndex);
  }
  static std::uint64_t ItemOf(std::uint32_t s) { return 1 + s; }  ///< its key, and its value

  Slot SlotAt(std::uint32_t s) const { return {table_.Bucket(0, 0), s}; }
  Tile MakeOperations() const {
    return Tile(table_, reclaim_, locks_, accelerators_, ThreadGroup{}, media_);
  }

  bool Insert(std::uint64_t key) const {
    const Tile tile = MakeOperations();
    const std::array<std::uint64_t, kValueBytes / 8> value{key};
    const Outcome outcome =
        tile.Apply(tile.Locate(&key), &key,
                   PlanOf(Op::kInsert, reinterpret_cast<const std::byte*>(value.data())));
    return outcome.shortage == Shortage::kNothing;
  }

  /// While it may be on its way.
  void Find(std::uint64_t key) const {
    const Tile tile = MakeOperations();
    const Outcome outcome = tile.Find(tile.Locate(&key), &key);
    if (!outcome.present || ValueOf(outcome.reference) == key) return;
    throw std::runtime_error(
        fmt::format("key {} was found with {}", key, ValueOf(outcome.reference)));
  }
  /// Of the value that a reference names, the beginning.
  std::uint64_t ValueOf(std::uint64_t reference) const {
    return table_.inline_values() ? reference : media_.Load(&pool_[reference / 8]);
  }

  void Check(SlotReport* report) const {
    const Accelerators none;
    const TableProbe<ThreadGroup, GridMedia> in_pool(table_, none, ThreadGroup{}, media_);
    const Tile tile = MakeOperations();
    for (std::uint32_t i = 0; i < kInserters; ++i) {
      const std::uint64_t key = kFirstKey + i;
      const Outcome stored = in_pool.Find(tile.Locate(&key), &key);
      const Outcome told = tile.Find(tile.Locate(&key), &key, 0);
      const bool said = inserts_[i].said;
      report->inserted += said ? 1 : 0;
      if (stored.present == said && told.present == said &&
          (!said || (ValueOf(stored.reference) == key && ValueOf(told.reference) == key))) {
        continue;
      }
      throw std::runtime_error(fmt::format(
          "key {} was {}; the pool {}, the directory {}", key, said ? "inserted" : "not there",
          stored.present ? fmt::format("says {}", stored.reference) : "has none",
          told.present ? fmt::format("says {}", told.reference) : "has none"));
    }
  }

  /// @param event the image is what is there before this one
  void CheckImage(const Image& image, std::uint64_t event) const {
    const auto fail = [&](std::uint64_t key, const char* what) {
      throw std::runtime_error(fmt::format("before event {}, key {} {}", event, key, what));
    };
    std::array<bool, kInserters> there{};
    for (std::uint32_t s = 0; s < kSlots; ++s) {
      const auto at = static_cast<std::size_t>(table_.State(SlotAt(s)) - pool_.data());
      const std::uint64_t key = image[at];
      const std::uint64_t reference = image[at + 1];
      if (s < items_ && key != ItemOf(s)) fail(ItemOf(s), "is not there");
      if (key == kEmptyState || table_.IsHalf(key, reference)) continue;
      const std::uint64_t cell = reference / 8;
      const std::uint64_t value = table_.inline_values() ? reference
                                  : cell < image.size()  ? image[cell]
                                                         : kNever;
      if (value != key) fail(key, "has another value");
      if (s < items_) continue;
      const std::uint64_t i = key - kFirstKey;
      if (i >= kInserters || inserts_[i].begun >= event) fail(key, "is there, too");
      if (there[i]) fail(key, "is there twice");
      there[i] = true;
    }
    for (std::uint32_t i = 0; i < kInserters; ++i) {
      if (inserts_[i].said && inserts_[i].ended <= event && !there[i]) {
        fail(kFirstKey + i, "is not there");
      }
    }
  }

  Scheduler scheduler_;
  GridMachine machine_{&scheduler_};
  const GridMedia media_{Persist(&machine_)};
  alignas(128) std::array<std::uint64_t, 128> pool_{};
  TableView table_{};
  Accelerators accelerators_;
  alignas(8) std::array<std::uint16_t, (kIndex + 1) * DirectoryView::kPrintsInWord> prints_{};
  std::array<std::uint64_t, (kIndex + 1) * kSlots * 2> entries_{};
  std::array<std::uint32_t, 2> locks_words_{};
  const KeyLocks locks_{locks_words_.data(), 1};
  std::array<std::uint32_t, 2 * kCells> cell_ring_{};
  std::array<std::uint64_t, 2 * kSlots> slot_ring_{};
  ReclaimCounters counters_{};
  std::uint64_t taken_ = 0;
  const Reclaim reclaim_{
      cell_ring_.data(), 2 * kCells - 1, slot_ring_.data(), 2 * kSlots - 1, &counters_,
      {0, kCells},       &taken_};
  std::uint32_t items_ = 0;
  std::array<Call, kInserters> inserts_{};
};

}  // namespace

SlotReport ExploreSlots(const SeedOptions& options) {
  return ExploreSeeds<SlotRunner, SlotReport>(options);
}

}  // namespace gpm::crash
