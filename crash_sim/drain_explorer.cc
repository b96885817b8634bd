#include "crash_sim/drain_explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "crash_sim/crash_states.h"
#include "crash_sim/explore_seeds.h"
#include "crash_sim/grid_machine.h"
#include "crash_sim/grid_media.h"
#include "crash_sim/machine.h"
#include "pm/space.h"
#include "table/draining.h"
#include "table/media/traced.h"
#include "table/operation.h"

namespace gpm::crash {
namespace {

constexpr std::uint32_t kAbove = 4;  ///< buckets
constexpr std::uint32_t kBelow = 2;
constexpr std::uint32_t kReserved = TableView::kReservedBuckets;  ///< in the directory, and empty
constexpr std::uint32_t kSlots = 2;                               ///< of a bucket
constexpr std::uint64_t kKeys = 3;
constexpr std::uint64_t kFirstKey = 100;
constexpr std::uint64_t kFirstValue = 1000;  ///< of the first key, at first
constexpr std::uint64_t kNewValue = 5000;
constexpr std::uint64_t kNever = ~std::uint64_t{0};

/// Two levels, of which one is being drained. Values are in the slots.
/// @tparam Memory a Machine, with the media on it
template <class Memory, class Media>
class DrainRunner {
 public:
  DrainRunner() {
    Superblock superblock{};
    superblock.key_size = 8;
    superblock.value_size = 8;
    superblock.geometry = Geometry{1, 2, kSlots};
    LayLevels(&superblock, {kAbove, kBelow}, 0);
    superblock.hash_seed[0] = 7;
    superblock.hash_seed[1] = 11;
    table_ = MakeTableView(reinterpret_cast<std::byte*>(pool_.data()), superblock);
  }

  void Run(std::uint64_t seed, Step leave_out, DrainReport* report) {
    std::mt19937_64 random(Scramble(seed));
    machine_.Begin(8 * pool_.size());
    machine_.Mapped(table_.base, 8 * pool_.size());
    if constexpr (kGrid) machine_.BeginGrid(random());
    Fill(Scramble(~seed));
    ChooseAccelerators(random() % 3);
    const Image before(pool_.begin(), pool_.end());
    std::vector<std::function<void()>> bodies;
    if (!kGrid || random() % 2 == 0) {
      for (std::uint64_t b = 0; b < kBelow; ++b) {
        bodies.push_back([this, b] {
          DrainBucketBesideBatches(MakeOperations(), table_.Bucket(1, b));
          EndKernel();
        });
      }
    } else {
      DrainByBlock(&bodies);
    }
    // One key is erased, and something else is done to it, or to another one.
    erased_key_ = kFirstKey + random() % kKeys;
    other_key_ = random() % 2 == 0 ? erased_key_ : kFirstKey + random() % kKeys;
    const Op other = random() % 2 == 0 ? Op::kFind : Op::kUpdate;
    erase_ = update_ = Call{};
    bodies.push_back([this] {
      if (!Apply(Op::kErase, erased_key_, &erase_)) throw std::runtime_error("nothing to erase");
    });
    bodies.push_back([this, other] {
      Call find;
      Call* const call = other == Op::kUpdate ? &update_ : &find;
      const bool there = Apply(other, other_key_, call);
      if (!there && (other_key_ != erased_key_ || erase_.begun == kNever)) {
        throw std::runtime_error("an item was not found");
      }
      if (!there) update_ = Call{};
    });
    scheduler_.SetOptions(Scheduler::RandomOptions(random));
    machine_.LeaveOut(leave_out);
    try {
      scheduler_.Run(std::move(bodies));
      machine_.LeaveOut(Step::kOther);
      Check(Image(pool_.begin(), pool_.end()), machine_.trace().events().size());
      report->states +=
          ForSomeStates(machine_.trace(), before, random,
                        [&](const Image& image, std::uint64_t event) { Check(image, event); });
    } catch (const std::exception& error) {
      report->violation = fmt::format("seed {}: {}", seed, error.what());
      report->violation_seed = seed;
    }
    machine_.LeaveOut(Step::kOther);
    ++report->schedules;
  }

 private:
  static constexpr bool kGrid = std::is_same_v<Memory, GridMachine>;
  using Tile = Operations<ThreadGroup, Media>;
  /// When an operation began and ended, in events of the trace.
  struct Call {
    std::uint64_t begun = kNever;
    std::uint64_t ended = kNever;
  };

  /// A block, of which each thread drains a slot.
  void DrainByBlock(std::vector<std::function<void()>>* bodies) {
    if constexpr (kGrid) {
      const auto block = std::make_shared<GridBlock>(&machine_, kBelow * kSlots, 1);
      for (std::uint32_t i = 0; i < block->size(); ++i) {
        bodies->push_back([this, block, i] {
          block->Enter(i);
          block->Meet(false);  // all have entered
          const TeamOfTiles<GridThreads> team(GridThreads{block.get()});
          DrainSlotsBesideBatches(team, MakeOperations(),
                                  Slot{table_.Bucket(1, i / kSlots), i % kSlots});
          EndKernel();
        });
      }
    }
  }

  Tile MakeOperations() const {
    return Tile(table_, reclaim_, locks_, accelerators_, ThreadGroup{}, media_);
  }

  /// The keys are in the level that is to be drained, and in half of the schedules some are above,
  /// too: as when a level was composed that had no slot for the others.
  void Fill(std::uint64_t random) {
    const std::uint64_t above = random % 2 == 0 ? 0 : random >> 1;
    pool_.fill(0);
    lock_words_.fill(0);
    counters_ = {};
    for (std::uint64_t key = kFirstKey; key < kFirstKey + kKeys; ++key) {
      Put(1, key);
      if ((above >> (key - kFirstKey) & 1) != 0) Put(0, key);
    }
  }
  void Put(std::uint32_t level, std::uint64_t key) {
    const Candidates candidates = LocateKey(table_, &key);
    for (std::uint32_t i = 0;; ++i) {
      const std::uint64_t number =
          BucketNumber(candidates.hash, i / 2, table_.level_views[level].part_buckets);
      const Slot slot{table_.Bucket(level, number), i % 2};
      if (*table_.State(slot) != kEmptyState) continue;
      *table_.State(slot) = key;
      *table_.Reference(slot) = kFirstValue + key;
      return;
    }
  }

  /// A batch of one operation. @return whether the key was there
  bool Apply(Op op, std::uint64_t key, Call* call) {
    call->begun = machine_.trace().events().size();
    const Tile operations = MakeOperations();
    const Candidates candidates = operations.Locate(&key);
    if (!BringUp(operations, candidates)) throw std::runtime_error("no slot for an item");
    EndKernel();
    const std::uint64_t value = kNewValue + key;
    const Plan plan = PlanOf(op, reinterpret_cast<const std::byte*>(&value));
    const Outcome outcome = operations.Apply(candidates, &key, plan);
    if constexpr (!kGrid) {
      // What another operation published, and has not made durable, is made so (PersistObserved).
      operations.FlushCandidates(candidates);
      media_.Fence(Step::kSettleFence);
    }
    EndKernel();
    call->ended = machine_.trace().events().size();
    return outcome.present;
  }

  /// No directory, one, or one that has the fingerprints of the level that is being drained.
  void ChooseAccelerators(std::uint64_t which) {
    accelerators_ = {};
    prints_.fill(0);
    entries_.fill(0);
    drained_.fill(0);
    if (which == 0) return;
    DirectoryView& directory = accelerators_.directory;
    directory.fingerprints = prints_.data();
    directory.stride = DirectoryView::kPrintsInWord;
    directory.entries = reinterpret_cast<std::byte*>(entries_.data());
    directory.entry_bytes = DirectoryView::EntryBytes(1);
    if (which == 2) directory.drained = drained_.data();
    const Tile operations = MakeOperations();
    for (std::uint32_t i = kReserved; i < kReserved + kAbove; ++i) operations.directory().Build(i);
    for (std::uint64_t b = 0; which == 2 && b < kBelow; ++b) operations.directory().BuildDrained(b);
  }

  void EndKernel() const {
    if constexpr (kGrid) media_.FenceShared(Step::kOther);
  }

  /// What an image has of a key: its value, above or else below, or nothing.
  std::uint64_t ValueIn(const Image& image, std::uint64_t key) const {
    const Candidates candidates = LocateKey(table_, &key);
    for (std::uint32_t level = 0; level < 2; ++level) {
      std::uint64_t value = kNever;
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint64_t number =
            BucketNumber(candidates.hash, i / 2, table_.level_views[level].part_buckets);
        const Slot slot{table_.Bucket(level, number), i % 2};
        if (image[WordOf(table_.State(slot))] != key) continue;
        if (value != kNever) throw std::runtime_error(fmt::format("key {} is there twice", key));
        value = image[WordOf(table_.Reference(slot))];
      }
      if (value != kNever) return value;
    }
    return kNever;
  }
  std::size_t WordOf(const std::uint64_t* word) const {
    return static_cast<std::size_t>(word - pool_.data());
  }

  /// @param event the image is what is there before this one
  void Check(const Image& image, std::uint64_t event) const {
    for (std::uint64_t key = kFirstKey; key < kFirstKey + kKeys; ++key) {
      const std::uint64_t value = ValueIn(image, key);
      const bool erased = key == erased_key_ && erase_.ended <= event;
      const bool may_be_erased = key == erased_key_ && erase_.begun < event;
      const bool updated = key == other_key_ && update_.ended <= event;
      const bool may_be_updated = key == other_key_ && update_.begun < event;
      const bool right = value == kNever              ? may_be_erased
                         : value == kNewValue + key   ? may_be_updated && !erased
                         : value == kFirstValue + key ? !updated && !erased
                                                      : false;
      if (right) continue;
      throw std::runtime_error(
          fmt::format("before event {}, key {} {}", event, key,
                      value == kNever ? "is not there" : fmt::format("has {}", value)));
    }
  }

  Scheduler scheduler_;
  Memory machine_{&scheduler_};
  const Media media_{Persist(&machine_)};
  alignas(128) std::array<std::uint64_t, 2 * kPageBytes / 8> pool_{};
  TableView table_{};
  Accelerators accelerators_;
  alignas(
      8) std::array<std::uint16_t, (kReserved + kAbove) * DirectoryView::kPrintsInWord> prints_{};
  alignas(8) std::array<std::uint16_t, kBelow * DirectoryView::kPrintsInWord> drained_{};
  std::array<std::uint64_t, (kReserved + kAbove) * kSlots * 2> entries_{};
  std::array<std::uint32_t, 2> lock_words_{};
  const KeyLocks locks_{lock_words_.data(), 1};
  ReclaimCounters counters_{};
  std::array<std::uint64_t, 8> slot_ring_{};
  const Reclaim reclaim_{nullptr, 0, slot_ring_.data(), 7, &counters_, {}, nullptr};
  std::uint64_t erased_key_ = 0;
  std::uint64_t other_key_ = 0;
  Call erase_;
  Call update_;
};

}  // namespace

DrainReport ExploreDraining(const SeedOptions& options) {
  return options.grid ? ExploreSeeds<DrainRunner<GridMachine, GridMedia>, DrainReport>(options)
                      : ExploreSeeds<DrainRunner<Machine, TracedMedia>, DrainReport>(options);
}

}  // namespace gpm::crash
