#include "crash_sim/frame_explorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "crash_sim/explore_seeds.h"
#include "crash_sim/grid_media.h"
#include "crash_sim/machine.h"
#include "crash_sim/schedule_workload.h"
#include "crash_sim/scheduler.h"
#include "pm/space.h"
#include "table/media/traced.h"
#include "table/value_cache.h"

namespace gpm::crash {
namespace {

constexpr std::uint32_t kBuckets = 2;  ///< of one slot each
constexpr std::uint32_t kValueBytes = 24;
constexpr std::uint32_t kValueStride = 32;
constexpr std::uint32_t kCells = 16;
constexpr std::uint16_t kPrint = 7;  ///< of an item

/// Two buckets, one frame and their users.
/// @tparam Memory a Machine, with the media on it
template <class Memory, class Media>
class FrameRunner {
 public:
  FrameRunner() {
    Superblock superblock{};
    superblock.key_size = 8;
    superblock.value_size = kValueBytes;
    superblock.geometry = Geometry{1, 1, 1};
    LayLevels(&superblock, {kBuckets}, 0);
    auto* const base = reinterpret_cast<std::byte*>(pool_.data());
    table_ = MakeTableView(base, superblock);
    directory_.fingerprints = prints_.data();
    directory_.stride = DirectoryView::kPrintsInWord;
    directory_.entries = reinterpret_cast<std::byte*>(entries_.data());
    directory_.entry_bytes = DirectoryView::EntryBytes(0);
    cache_.frame_of = frame_of_.data();
    cache_.bucket_of = &bucket_of_;
    cache_.tags = directory_.TagAt(0);
    cache_.tag_stride = directory_.entry_bytes / sizeof(std::uint32_t);
    cache_.values = values_.data();
    cache_.fills = &fills_;
    cache_.value_stride = kValueStride;
    cache_.size = 1;
    cache_.policy = CachePolicy::kTinyLfu;
    cache_.holds_all = true;  // so that finds keep what they read
  }

  void Run(std::uint64_t seed, Step leave_out, FrameReport* report) {
    std::mt19937_64 random(Scramble(seed));
    // No item's values, nor what the schedule before this one left.
    pool_.fill(~std::uint64_t{0});
    values_.fill(std::byte{0xff});
    machine_.Begin(8 * pool_.size());
    machine_.Mapped(reinterpret_cast<std::byte*>(pool_.data()), 8 * pool_.size());
    if constexpr (std::is_same_v<Memory, GridMachine>) machine_.BeginGrid(random());
    clock_ = 0;
    busy_since_.fill(kNotBusy);
    retired_.clear();
    prints_.fill(DirectoryView::kEmpty);
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      prints_[bucket * directory_.stride] = kPrint;
      *directory_.CellAt(bucket) = bucket;
      *directory_.TagAt(bucket) = CacheView::kClosed;
      frame_of_[bucket] = 0;
    }
    for (next_cell_ = 0; next_cell_ < kBuckets; ++next_cell_) {
      numbers_[next_cell_] = next_cell_;
      PutValue(next_cell_, std::span(table_.Cell(next_cell_ * table_.cell_bytes), kValueBytes));
    }
    next_number_ = kBuckets;
    bucket_of_ = CacheView::kNoBucket;
    if (random() % 2 == 0) {  // by nobody else's leave
      Load(0);
    } else {
      Open(0);
    }

    const std::uint32_t loads = 1 + random() % 3;
    constexpr std::uint32_t kAgain = kBuckets;  // as it is
    std::vector<std::uint32_t> bucket_of_load(loads);
    for (std::uint32_t& bucket : bucket_of_load) bucket = random() % (kBuckets + 1);
    std::vector<std::function<void()>> bodies;
    bodies.push_back([&] {
      for (const std::uint32_t bucket : bucket_of_load) {
        if (bucket == kAgain) {
          MakeAccess().Fill(directory_, 0);
          EndKernel();
        } else {
          Load(bucket);
        }
      }
    });
    // A key's lock lets one at a time write it.
    for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      const std::uint32_t writes = 1 + random() % 3;
      const bool erases = random() % 4 == 0;
      bodies.push_back([this, bucket, writes, erases] {
        for (std::uint32_t i = 0; i < writes; ++i) Write(bucket, erases);
      });
    }
    for (std::uint32_t reader = 0; reader < 2; ++reader) {
      const std::uint32_t first = random() % kBuckets;
      const std::uint32_t reads = 1 + random() % 3;
      const bool early = random() % 2 == 0;
      bodies.push_back([this, first, reads, early, report] {
        for (std::uint32_t i = 0; i < reads; ++i) Read((first + i) % kBuckets, early, report);
      });
    }
    scheduler_.SetOptions(Scheduler::RandomOptions(random));
    machine_.LeaveOut(leave_out);
    try {
      scheduler_.Run(std::move(bodies));
    } catch (const std::exception& error) {
      report->violation = fmt::format("seed {}: {}", seed, error.what());
      report->violation_seed = seed;
    }
    machine_.LeaveOut(Step::kOther);
    ++report->schedules;
    report->steps += scheduler_.steps();
  }

 private:
  using Access = CacheAccess<ThreadGroup, Media>;

  /// What Epochs is to a store: who began before a cell was retired keeps it from its next use. The
  /// loader does not.
  class Operation {
   public:
    explicit Operation(FrameRunner* runner)
        : since_(&runner->busy_since_[runner->scheduler_.current()]) {
      *since_ = ++runner->clock_;
    }
    ~Operation() { *since_ = kNotBusy; }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    std::uint64_t* since_;
  };
  static constexpr std::uint64_t kNotBusy = ~std::uint64_t{0};

  Access MakeAccess() const { return Access(cache_, table_, group_, media_); }

  /// What the thread has stored is seen by all.
  void EndKernel() { media_.FenceShared(Step::kOther); }

  /// Gives the frame to a bucket, as EvictCold and AssignHot do (cache/refresh.h).
  void Load(std::uint32_t bucket) {
    const Access access = MakeAccess();
    if (bucket_of_ != CacheView::kNoBucket) {
      access.Close(0);
      media_.StoreShared(&frame_of_[bucket_of_], 0u);
      EndKernel();
    }
    bucket_of_ = bucket;
    media_.StoreShared(&fills_, media_.LoadShared(&fills_) + 1);
    media_.StoreShared(&frame_of_[bucket], 1u);
    EndKernel();
    access.Fill(directory_, 0);
    EndKernel();
  }

  /// Gives it to a bucket before anything is filled, as OpenBucket and OpenSlots do.
  void Open(std::uint32_t bucket) {
    bucket_of_ = bucket;
    media_.StoreShared(&frame_of_[bucket], 1u);
    EndKernel();
    media_.StoreShared(directory_.TagAt(bucket), +CacheView::kNone);
    EndKernel();
  }

  /// Updates a bucket's item, or erases it and inserts another, as Operations does.
  void Write(std::uint32_t bucket, bool erases) {
    const Access access = MakeAccess();
    std::uint16_t* const fingerprint = &prints_[bucket * directory_.stride];
    const Operation operation(this);
    const std::uint32_t cell = TakeCell();
    std::array<std::byte, kValueBytes> value{};
    numbers_[cell] = next_number_++;
    PutValue(numbers_[cell], value);
    media_.WriteCell(group_, table_.Cell(cell * table_.cell_bytes), value.data(), kValueBytes);
    const std::uint32_t old = media_.LoadShared(directory_.CellAt(bucket));
    if (erases) {
      access.Drop(bucket, 0, old);
      media_.StoreShared(fingerprint, DirectoryView::kTaken);
      media_.FenceShared(Step::kDirectoryErasedFence);
    }
    media_.Fence(Step::kUpdateCellFence);
    access.Put(bucket, 0, erases ? CacheView::kNone : old, cell * table_.cell_bytes, value.data());
    media_.Fence(Step::kUpdateDoneFence);
    media_.StoreShared(directory_.CellAt(bucket), cell);
    media_.FenceShared(Step::kDirectoryUpdatedFence);
    if (erases) media_.StoreShared(fingerprint, kPrint);
    EndKernel();
    retired_.emplace_back(old, ++clock_);
  }

  /// What an operation may remember until it ends is not used again before.
  std::uint32_t TakeCell() {
    for (auto it = retired_.begin(); it != retired_.end(); ++it) {
      const auto [cell, at] = *it;
      if (*std::min_element(busy_since_.begin(), busy_since_.end()) <= at) continue;
      retired_.erase(it);
      return cell;
    }
    return next_cell_++;
  }

  /// @param early notes the tag with what it has of the directory
  void Read(std::uint32_t bucket, bool early, FrameReport* report) {
    const Operation operation(this);
    const Access access = MakeAccess();
    typename Access::Value cached = access.Begin();
    access.FenceBegin();
    if (media_.LoadShared(&prints_[bucket * directory_.stride]) <= DirectoryView::kTaken) return;
    const std::uint32_t cell = media_.LoadShared(directory_.CellAt(bucket));
    std::array<std::byte, kValueBytes> value{};
    const std::uint64_t reference = cell * table_.cell_bytes;
    if (!early) {
      cached = access.Find(bucket, 0, reference);
    } else if (media_.LoadShared(directory_.TagAt(bucket)) == cell) {
      access.Tagged(bucket, 0, reference, &cached);
    }
    if (cached.bytes == nullptr || !access.Read(cached, value.data())) {
      media_.ReadCell(group_, value.data(), table_.Cell(reference), kValueBytes);
      access.Keep(directory_, bucket, 0, reference, value.data());
      EndKernel();
      return;
    }
    ++report->hits;
    if (ValueNumber(value) == numbers_[cell]) return;
    throw std::runtime_error(
        fmt::format("bucket {} has cell {} with value {:#x}, in the cache {:#x}", bucket, cell,
                    numbers_[cell], ValueNumber(value)));
  }

  Scheduler scheduler_;
  Memory machine_{&scheduler_};
  const ThreadGroup group_{};
  const Media media_{Persist(&machine_)};
  std::array<std::uint64_t, kCells * 16> pool_{};  ///< value cells alone
  TableView table_{};
  DirectoryView directory_;
  CacheView cache_;
  alignas(8) std::array<std::uint16_t, kBuckets * DirectoryView::kPrintsInWord> prints_{};
  std::array<std::uint64_t, kBuckets> entries_{};
  std::array<std::uint32_t, kBuckets> frame_of_{};
  std::uint32_t bucket_of_ = CacheView::kNoBucket;
  std::uint32_t fills_ = 0;
  alignas(8) std::array<std::byte, kValueStride> values_{};
  std::uint32_t next_cell_ = 0;                  ///< that no bucket had
  std::array<std::uint64_t, kCells> numbers_{};  ///< of the cells' values
  std::uint64_t next_number_ = 0;
  std::uint64_t clock_ = 0;
  std::array<std::uint64_t, 8> busy_since_{};                     ///< by fiber
  std::vector<std::pair<std::uint32_t, std::uint64_t>> retired_;  ///< cells, and when
};

}  // namespace

FrameReport ExploreFrames(const SeedOptions& options) {
  return options.grid ? ExploreSeeds<FrameRunner<GridMachine, GridMedia>, FrameReport>(options)
                      : ExploreSeeds<FrameRunner<Machine, TracedMedia>, FrameReport>(options);
}

}  // namespace gpm::crash
