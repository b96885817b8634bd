#include "engine/resizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "pm/clock.h"

namespace gpm {
namespace {

// Batches insert while a level is being drained, so that some item of it may find no slot: then one
// more level is added, and two are drained into it. Room for it is kept; in tiny levels it may take
// several. In tables that fill up badly, where that would happen often, no batch runs meanwhile.
constexpr std::uint32_t kManySpares = 4;
constexpr std::uint64_t kTinyLevel = 256;  // buckets
// Who makes such a table smaller keeps room for levels that are likely to do: up to so many times
// the present slots, or so many for each pair of items that hardly two of them meet in one.
constexpr double kManySlots = 4;
constexpr double kSlotsOfPair = 8;

}  // namespace

Resizer::Resizer(Pool& pool, Executor& executor, Health& health, Space& space, Draining& draining,
                 CacheManager& cache, Log& log, double growth, double growth_pause)
    : pool_(pool),
      executor_(executor),
      health_(health),
      space_(space),
      draining_(draining),
      cache_(cache),
      log_(log),
      growth_{pool.superblock().geometry, growth},
      growth_pause_(growth_pause) {
  RefreshTable();
}

void Resizer::RefreshTable() {
  cache_.SetTable(MakeTableView(pool_.base(), pool_.superblock()));
  accelerated_ = false;
}

void Resizer::FollowGrowth() {
  const Clock::time_point start = Clock::now();
  accelerated_ =
      accelerated_ && cache_.FollowGrowth(MakeTableView(pool_.base(), pool_.superblock()));
  directory_seconds_ += SecondsSince(start);
  if (accelerated_) return;
  RefreshTable();
  MakeAccelerators(1);
}

void Resizer::MakeAccelerators(std::uint32_t new_levels) {
  if (accelerated_) return;
  const Clock::time_point start = Clock::now();
  cache_.Reset(MakeTableView(pool_.base(), pool_.superblock()), new_levels);
  accelerated_ = true;
  directory_seconds_ += SecondsSince(start);
}

void Resizer::DropAccelerators() {
  cache_.Drop();
  accelerated_ = false;
}

void Resizer::AddLevel(std::uint64_t buckets) {
  space_.ReleaseCellsForLevel(buckets);
  const Clock::time_point start = Clock::now();
  pool_.AddLevel(buckets);
  growth_seconds_ += SecondsSince(start);
}

bool Resizer::Grow(const Demand& waiting) {
  if (draining_.active()) {
    EndDraining();
    return true;
  }
  const std::uint64_t buckets = growth_.Next(pool_.superblock().levels[0].buckets);
  if (PaysToCompose(buckets, waiting)) {
    Outcome outcome = ComposeLevel(buckets);
    bool too_small = false;
    for (std::uint64_t more = buckets; outcome == Outcome::kTooSmall;) {
      too_small = true;
      more = growth_.Next(more);
      outcome = ComposeLevel(more);
    }
    if (outcome == Outcome::kDone) return true;
    if (too_small && outcome == Outcome::kNoRoom) return false;
  }
  return AddLevels({buckets}, true);
}

bool Resizer::GrowTo(double slots, std::uint64_t cell_bytes) {
  if (!(growth_pause_ > 0) || FillsUpBadly(growth_.geometry)) return false;
  const Superblock& superblock = pool_.superblock();
  const LevelSizes wanted = growth_.Reach(SizesOf(superblock), slots);
  if (CountNew(wanted) == 0) return false;
  // One more should an item find no slot in these. (Where only some of them have room, single
  // growths, which can stop at any size, make more of it.)
  if (!HaveRoom(NewAndOneMore(wanted), cell_bytes)) return false;
  const std::uint64_t before = SlotsOf(superblock);
  Resize(wanted);
  return SlotsOf(superblock) > before;
}

LevelSizes Resizer::NewAndOneMore(const LevelSizes& wanted) const {
  LevelSizes added = wanted;
  added.resize(CountNew(wanted));
  added.insert(added.begin(), growth_.Next(wanted.front()));
  return added;
}

bool Resizer::HasRoomToGrow(double slots, std::uint64_t cell_bytes) const {
  const LevelSizes wanted = growth_.Reach(SizesOf(pool_.superblock()), slots);
  return HaveRoom(NewAndOneMore(wanted), cell_bytes);
}

bool Resizer::HaveRoom(const LevelSizes& added, std::uint64_t cell_bytes) const {
  const Superblock& superblock = pool_.superblock();
  const std::uint64_t end = std::max(UsedEnd(superblock), EndOfAddedLevels(superblock, added));
  return end + cell_bytes <= pool_.mapping().PossibleBytes();
}

bool Resizer::CanMoveTo(const LevelSizes& wanted) const {
  const Superblock& superblock = pool_.superblock();
  double slots = 0;  // of the largest for which there is to be room, at least
  if (FillsUpBadly(growth_.geometry)) {
    const auto items = static_cast<double>(space_.items());
    slots = std::min(kManySlots * static_cast<double>(SlotsOf(superblock)),
                     kSlotsOfPair * items * items);
  }
  LevelSizes levels = wanted;
  do {
    if (levels.size() >= kMaxLevels) return false;
    levels.insert(levels.begin(), growth_.Next(levels.front()));
  } while (static_cast<double>(SlotsOf(growth_.geometry, levels)) < slots);
  return EndOfAddedLevels(superblock, levels) <= pool_.mapping().PossibleBytes();
}

bool Resizer::CanDrain(std::uint64_t cells) const { return CanDrainOf(pool_.superblock(), cells); }

bool Resizer::CanDrainOf(const Superblock& superblock, std::uint64_t cells) const {
  if (!executor_.DrainsBesideBatches() || FillsUpBadly(growth_.geometry)) return false;
  std::uint64_t bytes = 0;
  std::uint64_t buckets = superblock.levels[0].buckets;
  const std::uint32_t spares = buckets < kTinyLevel ? kManySpares : 1;
  for (std::uint32_t i = 0; i < spares; ++i) {
    buckets = growth_.Next(buckets);
    bytes += LevelBytes(superblock, buckets);
  }
  if (!InlineValues(superblock.value_size) && cells > 0) {
    bytes += 2 * std::max(cells, pool_.growth_cells()) * pool_.cell_bytes();
  }
  return UsedEnd(superblock) + bytes <= pool_.mapping().PossibleBytes();
}

void Resizer::EndDraining() {
  if (!draining_.active()) return;
  const Clock::time_point start = Clock::now();
  space_.Reclaim();  // erased slots of a level that is dropped are not given back any more
  health_.AllOrUnusable("the table was resized", [&]() GPM_REQUIRES(store_state) {
    if (draining_.IsOver() && !draining_.left_some()) {
      DropOldestLevel();
    } else {
      Drain();
    }
    draining_.End();
  });
  resize_seconds_ += SecondsSince(start);
  LogEnd(SecondsSince(start));
}

void Resizer::DropOldestLevel() {
  pool_.DropOldestLevel();
  cache_.KeepTable(MakeTableView(pool_.base(), pool_.superblock()));
}

void Resizer::LogEnd(double seconds) {
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format("{}: resize ended after {:.3f} s, {} slots", pool_.mapping().path(), seconds,
                       SlotsOf(pool_.superblock()));
  });
}

std::size_t Resizer::CountNew(const LevelSizes& wanted) const {
  const LevelSizes sizes = SizesOf(pool_.superblock());
  auto there = wanted.begin();
  while (!std::equal(there, wanted.end(), sizes.begin())) ++there;
  return static_cast<std::size_t>(there - wanted.begin());
}

bool Resizer::Resize(const LevelSizes& wanted) {
  EndDraining();
  const Superblock& superblock = pool_.superblock();
  std::size_t left = CountNew(wanted);
  if (growth_pause_ > 0 && left == 1 &&
      wanted[0] > superblock.levels[superblock.level_count - 1].buckets &&
      ComposeLevel(wanted[0]) == Outcome::kDone) {
    EndDraining();
    return true;
  }
  while (left > 0) {  // as many as the superblock has entries for, and one that draining may add
    const auto end = wanted.begin() + static_cast<std::ptrdiff_t>(left);
    const std::size_t some = std::min<std::size_t>(left, kMaxLevels - 1 - superblock.level_count);
    if (!AddLevels({end - static_cast<std::ptrdiff_t>(some), end}, false)) return false;
    left -= some;
  }
  return true;
}

bool Resizer::MoveLevels() {
  try {
    pool_.MoveLevels();
  } catch (const Error& error) {
    if (!MeansFull(error)) throw;
    return false;
  }
  RefreshTable();
  return true;
}

bool Resizer::TakeRoomForSpare(const LevelSizes& sizes) {
  LevelSizes more = sizes;
  more.insert(more.begin(), growth_.Next(sizes.front()));
  if (!LevelSizeDefect(growth_.geometry, more.front()).empty()) return false;
  try {
    space_.ReleaseCellsForLevel(std::accumulate(more.begin(), more.end(), std::uint64_t{0}));
    pool_.PlaceLevels(more, false);
  } catch (const Error& error) {
    if (!MeansFull(error)) throw;
    return false;
  }
  return true;
}

bool Resizer::AddLevels(const LevelSizes& sizes, bool beside) {
  if (FillsUpBadly(growth_.geometry) && !TakeRoomForSpare(sizes)) return false;
  const auto levels = static_cast<std::uint32_t>(sizes.size());
  const ProfilerRange range("resize", levels);
  const Clock::time_point start = Clock::now();
  std::uint32_t added = 0;
  std::exception_ptr failure;
  try {
    for (; added < levels; ++added) AddLevel(sizes[levels - 1 - added]);
  } catch (const Error& error) {
    if (!MeansFull(error)) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  if (added > 0) {
    log_.Add(LogLevel::kInfo, [&] {
      return fmt::format("{}: resize begun, by {} levels to {} slots", pool_.mapping().path(),
                         added, SlotsOf(pool_.superblock()));
    });
    health_.AllOrUnusable("the table was resized", [&]() GPM_REQUIRES(store_state) {
      if (beside && added == 1 && CanDrain(0)) {
        FollowGrowth();
        GoOnDraining();
      } else {
        RefreshTable();
        Drain(added);
      }
    });
    MakeAccelerators();
    ++resizes_;
    resize_seconds_ += SecondsSince(start);
    if (!draining_.active()) LogEnd(SecondsSince(start));
  }
  if (failure) std::rethrow_exception(failure);
  return added == levels;
}

void Resizer::Drain(std::uint32_t new_levels) {
  const Superblock& superblock = pool_.superblock();
  while (superblock.level_count > superblock.geometry.levels) {
    MakeAccelerators(new_levels);
    new_levels = 0;
    const std::uint32_t oldest = superblock.level_count - 1;
    if (executor_.DrainLevel(oldest, false) == 0 || executor_.DrainLevel(oldest, true) == 0) {
      DropOldestLevel();
    } else {
      // Even the new levels have no slot for some item: one more.
      AddLevel(SpareLevel());
      new_levels = 1;
      RefreshTable();
    }
  }
}

// The last level that the superblock has an entry for has a multiple of the oldest one's buckets:
// so each of its buckets gets items of one bucket alone, and has room for them. (After crashes
// there may be many levels, all too small.)
std::uint64_t Resizer::SpareLevel() const {
  const Superblock& superblock = pool_.superblock();
  const std::uint64_t next = growth_.Next(superblock.levels[0].buckets);
  const bool is_last = superblock.level_count + 1 == kMaxLevels;
  return is_last ? RoundUp(next, superblock.levels[superblock.level_count - 1].buckets) : next;
}

bool Resizer::FinishResize() {
  const Superblock& superblock = pool_.superblock();
  if (superblock.level_count == superblock.geometry.levels + 1u && CanDrain(0)) return false;
  Drain();
  return true;
}

void Resizer::GoOnDraining() {
  const Superblock& superblock = pool_.superblock();
  if (superblock.level_count == superblock.geometry.levels) return;
  const auto full = static_cast<std::uint64_t>(Space::kComfortableLoad *
                                               static_cast<double>(SlotsOf(superblock)));
  draining_.Begin(superblock.levels[superblock.level_count - 1].buckets, superblock.geometry.slots,
                  full - std::min(full, space_.items()),
                  executor_.rates().drained_slots / superblock.geometry.slots);
  if (!cache_.limited()) executor_.BeginDraining();
}

void Resizer::AddTo(StoreStats* stats) const {
  stats->resizes = resizes_;
  stats->composed_resizes = composed_resizes_;
  stats->resize_seconds = resize_seconds_;
  stats->growth_seconds = growth_seconds_;
  stats->composing_seconds = composing_seconds_;
  stats->directory_seconds = directory_seconds_;
}

}  // namespace gpm
