// Levels that Resizer composes: those of a store without items, which batches fill, and one that
// takes the items of the oldest when the table grows.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "engine/resizer.h"
#include "pm/clock.h"

namespace gpm {
namespace {

/// So many times as long as its own operations take, a batch may wait for a level to be composed:
/// less than for a level that is drained while it waits, and the batches after it drain nothing.
constexpr double kWaitOfBatch = 3;

}  // namespace

bool Resizer::PaysToCompose(std::uint64_t buckets, const Demand& waiting) const {
  if (!(growth_pause_ > 0)) return false;
  if (!CanDrain(0)) return true;  // the other way, no batch would run meanwhile, either
  const Superblock& superblock = pool_.superblock();
  const std::uint64_t oldest = superblock.levels[superblock.level_count - 1].buckets;
  const auto bytes = static_cast<double>((oldest + buckets) * pool_.bucket_bytes());
  const ExecutorRates rates = executor_.rates();
  const double of_batch = static_cast<double>(waiting.operations) / rates.operations;
  return bytes / rates.composed_bytes <= std::max(growth_pause_, kWaitOfBatch * of_batch);
}

Resizer::Outcome Resizer::ComposeLevel(std::uint64_t buckets) {
  // (Of limited memory there may be none for an image.)
  const bool in_place = executor_.ComposesInPlace();
  if (!(in_place || executor_.Composes()) || cache_.limited()) return Outcome::kNoMemory;
  if (!LevelSizeDefect(growth_.geometry, buckets).empty()) return Outcome::kNoRoom;
  const ProfilerRange range("resize", 1);
  const Clock::time_point start = Clock::now();
  space_.Reclaim();  // erased slots of a level that is dropped are not given back any more
  Extent place{};
  try {
    space_.ReleaseCellsForLevel(buckets);
    // (Where the medium was full of late, it is looked first: what is composed in vain costs the
    // cache.)
    if (in_place || !pool_.mapping().want_of_space().empty()) {
      place = pool_.PlaceLevels({buckets}, in_place);
    } else {  // room is made while the level is composed elsewhere
      if (!HaveRoom({buckets}, 0)) return Outcome::kNoRoom;
      place = pool_.BeginPlacing({buckets});
    }
  } catch (const Error& error) {
    if (!MeansFull(error)) throw;
    return Outcome::kNoRoom;
  }
  double growth_seconds = SecondsSince(start);
  Clock::time_point composing = Clock::now();
  std::unique_ptr<LevelImage> image;
  if (!in_place) image = executor_.MakeLevelImage(place.bytes);
  if (!in_place && image == nullptr) return Outcome::kNoMemory;
  // (Offsets from the pool's base, as any; the image is elsewhere.)
  const std::uint64_t offset =
      in_place ? place.offset : static_cast<std::uint64_t>(image->data() - pool_.base());
  const TableView larger =
      MakeTableView(pool_.base(), WithNewest(pool_.superblock(), {offset, buckets}));
  const auto give_up = [&]() GPM_REQUIRES(store_state) {
    health_.AllOrUnusable("the composing of a level was given up", [&]() GPM_REQUIRES(store_state) {
      RefreshTable();
      image.reset();
      MakeAccelerators();
    });
  };
  std::uint64_t left = 0;
  bool too_small = false;
  try {
    const Clock::time_point directory = Clock::now();
    accelerated_ = accelerated_ && cache_.FollowGrowth(larger);
    if (!accelerated_) cache_.SetTable(larger);
    const Clock::duration taken = Clock::now() - directory;
    directory_seconds_ += std::chrono::duration<double>(taken).count();
    composing += taken;
    left = executor_.ComposeNewest();
    too_small = left > 0 && !CanDrainOf(WithNewest(pool_.superblock(), {place.offset, buckets}), 0);
    if (!too_small && image != nullptr) {
      const Clock::time_point placing = Clock::now();
      place = pool_.PlaceLevels({buckets}, false);
      const Clock::duration waited = Clock::now() - placing;
      growth_seconds += std::chrono::duration<double>(waited).count();
      composing += waited;
      image->WriteTo(pool_.base() + place.offset);
    }
    composing_seconds_ += SecondsSince(composing);
    if (!too_small) pool_.AddLevelAt(place, buckets, left == 0);
  } catch (const Error& error) {
    give_up();
    if (!MeansFull(error)) throw;
    return Outcome::kNoRoom;
  } catch (...) {
    give_up();
    throw;
  }
  if (too_small) {
    give_up();
    return Outcome::kTooSmall;
  }
  health_.AllOrUnusable("the table was resized", [&]() GPM_REQUIRES(store_state) {
    if (accelerated_) {
      cache_.KeepTable(MakeTableView(pool_.base(), pool_.superblock()));
    } else {
      RefreshTable();
    }
    cache_.Await();  // a refresh may have begun, which reads the levels
    image.reset();
    if (left == 0) return;
    MakeAccelerators();
    GoOnDraining();
  });
  MakeAccelerators();
  ++resizes_;
  ++composed_resizes_;
  growth_seconds_ += growth_seconds;
  resize_seconds_ += SecondsSince(start);
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format("{}: resize begun, by a composed level to {} slots{}",
                       pool_.mapping().path(), SlotsOf(pool_.superblock()),
                       left == 0 ? "" : fmt::format("; {} items found no slot in it", left));
  });
  if (!draining_.active()) LogEnd(SecondsSince(start));
  return Outcome::kDone;
}

void Resizer::ShrinkEmptyLevels() {
  const LevelSizes smallest = growth_.Smallest();
  if (SlotsOf(pool_.superblock()) <= SlotsOf(growth_.geometry, smallest)) return;
  const Extent place = pool_.PlaceLevels(smallest, true);
  health_.AllOrUnusable("empty levels were replaced", [&]() GPM_REQUIRES(store_state) {
    pool_.ReplaceLevels(smallest, place);
    RefreshTable();
  });
}

TableView Resizer::ComposedView() const {
  Superblock superblock = pool_.superblock();
  // (Offsets from the pool's base, as any; the memory is elsewhere.)
  LayLevels(&superblock, composed_->sizes,
            static_cast<std::uint64_t>(composed_->image->data() - pool_.base()));
  TableView view = MakeTableView(pool_.base(), superblock);
  view.composed = true;
  return view;
}

bool Resizer::BeginComposing(const LevelSizes& sizes) {
  auto image = executor_.MakeLevelImage(LevelsBytes(pool_.superblock(), sizes));
  if (image == nullptr) return false;
  former_ = SizesOf(pool_.superblock());
  try {
    ShrinkEmptyLevels();
    pool_.PlaceLevels(sizes, false);  // so that there is room
    composed_ = Composed{std::move(image), sizes};
    const TableView view = ComposedView();
    cache_.SetTable(view);
    cache_.Reset(view, view.levels);
    accelerated_ = true;
  } catch (const Error& error) {
    AbandonComposing();
    if (!MeansFull(error)) throw;
    return false;
  } catch (...) {
    AbandonComposing();
    throw;
  }
  return true;
}

void Resizer::EndComposing() {
  // (Where cells were added since, they took the place that there was.)
  const Extent place = pool_.PlaceLevels(composed_->sizes, false);
  composed_->image->WriteTo(pool_.base() + place.offset);
  pool_.ReplaceLevels(composed_->sizes, place);
  cache_.KeepTable(MakeTableView(pool_.base(), pool_.superblock()));
  ++resizes_;
  ++composed_resizes_;
  cache_.Await();  // a refresh may have begun, which reads the levels
  composed_.reset();
}

void Resizer::AbandonComposing() {
  std::optional<Composed> given_up = std::exchange(composed_, std::nullopt);
  health_.AllOrUnusable("the composing of levels was given up", [&]() GPM_REQUIRES(store_state) {
    if (SizesOf(pool_.superblock()) != former_) {
      try {
        pool_.ReplaceLevels(former_, pool_.PlaceLevels(former_, true));
      } catch (const Error& error) {
        if (!MeansFull(error)) throw;  // they stay small
      }
    }
    RefreshTable();
    given_up.reset();
    MakeAccelerators();
  });
}

}  // namespace gpm
