// How a store gives back what its items do not need (StoreImpl::Compact).

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "engine/store_impl.h"
#include "table/geometry.h"

namespace gpm {
namespace {

/// Levels are moved until they lie right behind the cells, or these behind them. The first move
/// puts them side by side, somewhere. What is then free in front of them may be less than they
/// are: the second puts them to the pool's end, and the third to where they were, and lower.
constexpr int kMostMoves = 3;

}  // namespace

void StoreImpl::SetReserved(std::uint64_t items) {
  const Admission::Alone alone(admission_);
  reserved_ = items;
}

LevelSizes StoreImpl::SizesWanted() const {
  const auto items = static_cast<double>(std::max(space_.items(), reserved_));
  const Growth& growth = resizer_.growth();
  return growth.Reach(growth.Smallest(), items / Space::kComfortableLoad);
}

void StoreImpl::Compact() {
  while (!TryCompact()) {
  }
}

bool StoreImpl::TryCompact() {
  snapshots_.AwaitCopied();
  const Admission::Alone alone(admission_);
  if (ExportHoldsCells()) return false;
  CompactAlone();
  return true;
}

void StoreImpl::CompactAlone() {
  const ProfilerRange range("compact");
  const auto start = std::chrono::steady_clock::now();
  health_.Check();
  if (admission_.left_behind()) {
    throw Error(ErrorCode::kUnsupported,
                pool_->mapping().path() +
                    ": a batch failed, and opening the pool again finds what it left behind: "
                    "compact it then");
  }
  AwaitHeldCells();
  space_.Reclaim();
  resizer_.EndDraining();
  const std::uint64_t bytes = pool_->mapping().made_bytes();
  const std::uint64_t items = std::max(space_.items(), reserved_);
  const LevelSizes sizes = SizesWanted();
  const bool fewer_slots = SlotsOf(pool_->superblock().geometry, sizes) < space_.Capacity();
  const auto can_end_lower = [&]() GPM_REQUIRES(store_state) {
    return space_.CanEndLower(SizesOf(pool_->superblock()), items);
  };
  if (fewer_slots || space_.CanCompactCells(items) || can_end_lower()) {
    health_.AllOrUnusable("the store was compacted", [&]() GPM_REQUIRES(store_state) {
      resizer_.DropAccelerators();
      space_.CompactCells(items);
      LevelSizes levels = sizes;  // and one more, should an item find no slot in these
      levels.insert(levels.begin(), resizer_.growth().Next(sizes.front()));
      if (fewer_slots &&
          EndOfAddedLevels(pool_->superblock(), levels) <= pool_->mapping().PossibleBytes()) {
        resizer_.Resize(sizes);
        resizer_.DropAccelerators();
        space_.CompactCells(items);
      }
      for (int move = 0; move < kMostMoves && can_end_lower(); ++move) {
        if (!resizer_.MoveLevels()) break;
        space_.CompactCells(items);
      }
      resizer_.MakeAccelerators();
    });
  }
  try {
    // (A refresh on a GPU reads the pool, of which the GPU lets go for a moment.)
    cache_.WithoutRefresh(*executor_, [&]() GPM_NOT_CHECKED { pool_->GiveBackEnd(); });
  } catch (const Error& error) {
    // (A file that can't be cut is as it was.)
    if (error.code() != ErrorCode::kIo) health_.SetUnusable("the pool's end was given back");
    throw;
  }
  cache_.KeepTable(*executor_, MakeTableView(pool_->base(), pool_->superblock()));
  space_.GiveBackMemory();
  const std::uint64_t left = pool_->mapping().mapped_bytes();
  given_back_ += bytes - std::min(bytes, left);
  space_.SetAtLimit(false);
  log_.Add(LogLevel::kInfo, [&] {
    return fmt::format(
        "{}: compacted from {} to {} bytes in {:.3f} s", pool_->mapping().path(), bytes, left,
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  });
}

bool StoreImpl::IsSparse() const {
  const std::uint64_t slots = space_.Capacity();
  return static_cast<double>(space_.items()) < compact_below_ * static_cast<double>(slots) &&
         4 * SlotsOf(resizer_.growth().geometry, SizesWanted()) <= 3 * slots;
}

void StoreImpl::CompactIfSparse() noexcept {
  try {
    {
      const Admission::Entered entered(admission_);
      // (Who has a scope open may wait for the caller.)
      if (closed() || entered.HasOpenScope() || !health_.usable() || admission_.left_behind() ||
          space_.items() >= most_to_compact_ || !IsSparse()) {
        return;
      }
    }
    const Admission::Alone alone(admission_);
    if (closed() || !health_.usable() || !IsSparse() || space_.epochs().holds_cells()) return;
    const std::uint64_t slots = space_.Capacity();
    most_to_compact_ = space_.items() / 4 * 3;
    CompactAlone();
    if (space_.Capacity() < slots) most_to_compact_ = ~std::uint64_t{0};
  } catch (const std::exception& error) {  // the batch that it came behind has ended well
    log_.Add(LogLevel::kWarning, [&] { return fmt::format("not compacted: {}", error.what()); });
  }
  log_.Tell();
}

}  // namespace gpm
