#include "crash_sim/slot_explorer.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <functional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "crash_sim/grid_media.h"
#include "pm/space.h"
#include "table/operation.h"
#include "table/protocol.h"

namespace gpm::crash {
namespace {

constexpr std::uint32_t kSlots = 2;  ///< of the only bucket
constexpr std::uint64_t kFirstKey = 100;
constexpr std::uint32_t kInserters = 3;
constexpr int kTries = 3;

/// A bucket and its users. Values are in the slots.
class SlotRunner {
 public:
  SlotRunner() {
    Superblock superblock{};
    superblock.key_size = 8;
    superblock.value_size = 8;
    superblock.geometry = Geometry{1, 1, kSlots};
    LayLevels(&superblock, {1}, 0);
    table_ = MakeTableView(reinterpret_cast<std::byte*>(pool_.data()), superblock);
    accelerators_.directory.fingerprints = prints_.data();
    accelerators_.directory.references = references_.data();
    accelerators_.directory.keys = keys_.data();
    accelerators_.directory.stride = DirectoryView::kPrintsInWord;
  }

  void Run(std::uint64_t seed, Step leave_out, SlotReport* report) {
    std::mt19937_64 random(Scramble(seed));
    machine_.Begin(8 * pool_.size());
    machine_.Mapped(table_.base, 8 * pool_.size());
    machine_.BeginGrid(random());
    pool_.fill(0);
    references_.fill(0);
    keys_.fill(0);
    locks_words_.fill(0);
    const std::uint32_t erased = 1 + random() % kSlots;
    // The slots before those hold other items.
    for (std::uint32_t s = 0; s < kSlots; ++s) {
      *table_.State(SlotAt(s)) = s < kSlots - erased ? 1 + s : kInsertState;
    }
    MakeOperations().directory().Build(0);

    std::vector<std::function<void()>> bodies;
    for (std::uint32_t s = kSlots - erased; s < kSlots; ++s) {
      bodies.push_back([this, s] {
        MakeOperations().RecycleSlot(table_.SlotId(SlotAt(s)));
        media_.FenceShared(Step::kOther);  // the kernel ends
      });
    }
    said_.fill(false);
    for (std::uint32_t i = 0; i < kInserters; ++i) {
      bodies.push_back([this, i] {
        for (int k = 0; k < kTries && !said_[i]; ++k) said_[i] = Insert(kFirstKey + i);
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
    } catch (const std::exception& error) {
      report->violation = fmt::format("seed {}: {}", seed, error.what());
      report->violation_seed = seed;
    }
    machine_.LeaveOut(Step::kOther);
    ++report->schedules;
  }

 private:
  using Tile = Operations<ThreadGroup, GridMedia>;

  Slot SlotAt(std::uint32_t s) const { return {table_.Bucket(0, 0), s}; }
  Tile MakeOperations() const {
    return Tile(table_, reclaim_, locks_, accelerators_, ThreadGroup{}, media_);
  }

  bool Insert(std::uint64_t key) const {
    const Tile tile = MakeOperations();
    const auto* const value = reinterpret_cast<const std::byte*>(&key);
    const Outcome outcome = tile.Apply(tile.Locate(&key), &key, PlanOf(Op::kInsert, value));
    return outcome.shortage == Shortage::kNothing;
  }

  /// While it may be on its way.
  void Find(std::uint64_t key) const {
    const Tile tile = MakeOperations();
    const Outcome outcome = tile.Find(tile.Locate(&key), &key);
    if (!outcome.present || outcome.reference == key) return;
    throw std::runtime_error(fmt::format("key {} was found with {}", key, outcome.reference));
  }

  void Check(SlotReport* report) const {
    const Accelerators none;
    const TableProbe<ThreadGroup, GridMedia> in_pool(table_, none, ThreadGroup{}, media_);
    const Tile tile = MakeOperations();
    for (std::uint32_t i = 0; i < kInserters; ++i) {
      const std::uint64_t key = kFirstKey + i;
      const Outcome stored = in_pool.Find(tile.Locate(&key), &key);
      const Outcome told = tile.Find(tile.Locate(&key), &key, 0);
      report->inserted += said_[i] ? 1 : 0;
      if (stored.present == said_[i] && told.present == said_[i] &&
          (!said_[i] || (stored.reference == key && told.reference == key))) {
        continue;
      }
      throw std::runtime_error(fmt::format(
          "key {} was {}; the pool {}, the directory {}", key, said_[i] ? "inserted" : "not there",
          stored.present ? fmt::format("says {}", stored.reference) : "has none",
          told.present ? fmt::format("says {}", told.reference) : "has none"));
    }
  }

  Scheduler scheduler_;
  GridMachine machine_{&scheduler_};
  const GridMedia media_{Persist(&machine_)};
  alignas(128) std::array<std::uint64_t, 64> pool_{};
  TableView table_{};
  Accelerators accelerators_;
  alignas(8) std::array<std::uint16_t, DirectoryView::kPrintsInWord> prints_{};
  std::array<std::uint64_t, kSlots> references_{};
  std::array<std::uint64_t, kSlots> keys_{};
  std::array<std::uint32_t, 2> locks_words_{};
  const KeyLocks locks_{locks_words_.data(), 1};
  const Reclaim reclaim_{};
  std::array<bool, kInserters> said_{};
};

}  // namespace

SlotReport ExploreSlots(const SeedOptions& options) {
  return ExploreSeeds<SlotRunner, SlotReport>(options);
}

}  // namespace gpm::crash
