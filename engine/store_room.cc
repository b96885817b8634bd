#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/store_impl.h"
#include "table/geometry.h"

namespace gpm {

/// Room in a store's pool: cells and slots that are given back, segments and levels that are added,
/// and batches that lacked them.

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

CellRange RangeOf(const Extent& extent, std::uint64_t cell_bytes) {
  const std::uint64_t first = (extent.offset + cell_bytes - 1) / cell_bytes;
  const std::uint64_t last = std::min(extent.end() / cell_bytes, kMaxCellNumber);
  return CellRange{std::min(first, last), last};
}

/// Whether an error of the pool means that it can't grow: no room, or the GPU can't map more of it.
bool MeansFull(const Error& error) {
  return error.code() == ErrorCode::kNoSpace || error.code() == ErrorCode::kUnsupported;
}

}  // namespace

void StoreImpl::Reserve(std::uint64_t items) {
  const Exclusive exclusive(*this);
  CheckUsable();
  Reclaim();
  const Superblock& superblock = pool_->superblock();
  const auto there = static_cast<std::uint64_t>(std::max<std::int64_t>(items_, 0));
  const std::uint64_t more = items - std::min(items, there);
  const double slots = static_cast<double>(items) / kComfortableLoad;
  std::uint32_t levels = 0;
  double bytes = 0;
  while (static_cast<double>(CapacityAt(superblock.geometry, superblock.top + levels)) < slots) {
    ++levels;
    bytes += std::ldexp(static_cast<double>(pool_->bucket_bytes()),
                        static_cast<int>(superblock.top + levels));
    if (superblock.top + levels + 1 >= kMaxLevels) break;
  }
  std::uint64_t cells = MissingCells(more);
  bytes += static_cast<double>(cells) * static_cast<double>(CellBytes(value_size_));
  const std::uint64_t room = pool_->mapping().max_bytes() - UsedEnd(superblock);
  const auto fail = [&] {
    throw Error(
        ErrorCode::kNoSpace,
        fmt::format("{}: no room for {} items, {} of them new: {:.0f} bytes are needed, the "
                    "pool may grow by {}",
                    pool_->mapping().path(), items, more, bytes, room));
  };
  if (bytes > static_cast<double>(room)) fail();
  if (levels > 0 && !Resize(levels)) fail();
  cells = MissingCells(more);  // again: a level may have taken the place of free ones
  if (cells > 0 && !AddCells(cells)) fail();
}

void StoreImpl::MakeRoomForSlots(std::uint64_t slots) {
  const std::uint64_t room = std::min(slots, MostErasedSlots()) + kMinSlotQueue;
  if (room > executor_->slot_queue_room()) executor_->GrowQueues(cells_, room, epochs_.head());
}

void StoreImpl::MakeRoom(const InFlight& in_flight, bool inserts) {
  Reclaim();
  MakeRoomForSlots(in_flight.needs.slots);
  bool enough = true;
  if (const std::uint64_t cells = CellsToBegin(in_flight); epochs_.available_cells() < cells) {
    enough = AddCells(cells - epochs_.available_cells());
  }
  while (inserts && enough &&
         static_cast<double>(items_) >= kFullLoad * static_cast<double>(Capacity())) {
    enough = Resize();
  }
  at_limit_ = !enough;
}

void StoreImpl::FinishAfterGrowth(std::shared_ptr<InFlight> in_flight) {
  // Until it is finished, who waits for it too waits to be alone.
  const auto erase = [&] {
    const std::lock_guard lock(mutex_);
    unfinished_.erase(in_flight->id);
  };
  try {
    bool advanced = true;
    // Space that erases and updates gave back may do; only then the pool grows. At first it is
    // enough that another batch may have given it back, after this one found none.
    bool try_again = true;
    while (in_flight->progress.shortages() > 0) {
      CheckUsable();
      const Progress before = in_flight->progress;
      bool room = Reclaim() || try_again;
      try_again = false;
      if (before.short_of_slots > 0 && !room) {
        const double needed =
            static_cast<double>(items_) + static_cast<double>(before.short_of_slots);
        do {
          if (!Resize()) break;
          room = true;
        } while (needed > kComfortableLoad * static_cast<double>(Capacity()));
      }
      if (const std::uint64_t cells = MissingCells(before.short_of_cells); cells > 0) {
        room |= AddCells(cells);
      }
      MakeRoomForSlots(in_flight->needs.slots);  // the table may have grown
      const bool final_attempt = !room && !advanced;
      Resume(*in_flight, final_attempt);
      if (final_attempt) at_limit_ = true;
      const Progress& now = in_flight->progress;
      advanced = now.carried_out > 0 || now.shortages() < before.shortages();
    }
    in_flight->task.reset();
    Reclaim();
  } catch (...) {
    in_flight->task.reset();
    in_flight->error = std::current_exception();
    erase();
    throw;
  }
  erase();
}

void StoreImpl::Resume(InFlight& in_flight, bool final_attempt) {
  const CellGrant grant = epochs_.GrantCells(in_flight.needs.cells);
  try {
    in_flight.progress = in_flight.task->Resume(final_attempt, grant);
  } catch (...) {
    if (in_flight.task->Touched()) {
      left_behind_ = true;
    } else {
      epochs_.TakeBack(grant, grant.count);
    }
    throw;
  }
  epochs_.TakeBack(grant, in_flight.progress.cells_left);  // nothing runs beside it
  items_ += in_flight.progress.items_added;
  found_ += in_flight.progress.found;
  cache_hits_ += in_flight.progress.cache_hits;
}

void StoreImpl::FailUnfinished(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, in_flight] : unfinished_) {
    in_flight->task.reset();
    in_flight->error = error;
  }
  unfinished_.clear();
}

bool StoreImpl::Reclaim() {
  const Epochs::SlotRange slots{epochs_.slots_recycled(), executor_->Positions().slots_tail};
  AllOrUnusable("erased slots were given back", [&] {
    executor_->RecycleSlots(slots);
    epochs_.Quiesced(executor_->Positions());  // so that nobody gives them back again
  });
  return slots.from != slots.to;
}

std::uint64_t StoreImpl::QueueAdded() {
  executor_->GrowQueues(cells_, kMinSlotQueue, epochs_.head());
  const CellRange range = *std::exchange(unqueued_, std::nullopt);
  AllOrUnusable("value cells were added", [&] { executor_->FreeAll(range); });
  return range.last - range.first;
}

bool StoreImpl::AddCells(std::uint64_t cells) {
  std::uint64_t added = 0;
  while (added < cells) {
    if (!unqueued_) {
      if (UsedEnd(pool_->superblock()) / pool_->cell_bytes() >= kMaxCellNumber) break;
      Extent extent;
      try {
        extent = pool_->AddSegment(cells - added);
      } catch (const Error& error) {
        if (!MeansFull(error)) throw;
        break;
      }
      unqueued_ = RangeOf(extent, pool_->cell_bytes());
      CountCells();
    }
    added += QueueAdded();
  }
  epochs_.Quiesced(executor_->Positions());
  return added >= cells;
}

void StoreImpl::CountCells() noexcept {
  const Superblock& superblock = pool_->superblock();
  cells_ = 0;
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    const CellRange range = RangeOf({segment.offset, segment.bytes}, pool_->cell_bytes());
    cells_ += range.last - range.first;
  }
  epochs_.KeepCells(std::min(cells_ / kKeptShare, kMostKeptCells));
}

std::uint64_t StoreImpl::MissingCells(std::uint64_t more) const {
  if (more == 0 || InlineValues(value_size_)) return 0;
  const std::uint64_t used = cells_ - std::min(cells_, epochs_.available_cells());
  const std::uint64_t kept = std::min((used + more) / (kKeptShare - 1) + 1, kMostKeptCells);
  return more + kept - std::min(more + kept, epochs_.available_cells());
}

void StoreImpl::ReleaseCellsForLevel() {
  const Superblock& superblock = pool_->superblock();
  if (InlineValues(value_size_) || superblock.top + 1 >= kMaxLevels) return;
  const std::uint64_t bytes = LevelBytes(superblock, superblock.top + 1);
  bool fresh = false;
  PlaceExtent(superblock, bytes, &fresh);
  // So many stay free that it need not grow soon, unless it can't grow.
  const bool can_grow = UsedEnd(superblock) + bytes <= pool_->mapping().max_bytes();
  const std::uint64_t spare = (can_grow ? cells_ / 8 : 0) + epochs_.kept_cells();
  const std::uint64_t free = epochs_.available_cells();
  if (!fresh || free < spare || (free - spare) * pool_->cell_bytes() < bytes) return;
  ScanCounters found;
  std::vector<std::uint32_t> used;
  try {
    found = executor_->ScanSlots(ScanMode::kTrust, CellRanges());
    used = executor_->UsedCells();
    executor_->GrowQueues(cells_, kMinSlotQueue, epochs_.head());
  } catch (const std::bad_alloc&) {
    return;  // the level does without
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu) throw;
    return;
  }
  AllOrUnusable("free value cells were given back to the pool", [&] {
    const Extent extent = FindFreeCells(superblock, used, bytes);
    if (extent.bytes > 0 && found.bad_references + found.shared_cells == 0) {
      try {
        pool_->RemoveCells(extent);
      } catch (const Error& error) {
        if (!MeansFull(error)) throw;
      }
      CountCells();
    }
    // The queue may hold cells of the extent: it is made anew.
    unqueued_.reset();
    epochs_.DiscardCells(executor_->Positions());
    executor_->FreeUnused(CellRanges());
    epochs_.Quiesced(executor_->Positions());
  });
}

void StoreImpl::AddLevel() {
  const Clock::time_point start = Clock::now();
  pool_->AddLevel();
  growth_seconds_ += SecondsSince(start);
}

bool StoreImpl::Resize(std::uint32_t levels) {
  const Clock::time_point start = Clock::now();
  std::uint32_t added = 0;
  std::exception_ptr failure;
  try {
    for (; added < levels; ++added) {
      ReleaseCellsForLevel();
      AddLevel();
    }
  } catch (const Error& error) {
    if (!MeansFull(error)) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  if (added > 0) {
    log_.Add(LogLevel::kInfo, [&] {
      return fmt::format("{}: resize begun, by {} levels to top level {}", pool_->mapping().path(),
                         added, pool_->superblock().top);
    });
    AllOrUnusable("the table was resized", [&] {
      RefreshTable();
      Drain(added);
    });
    MakeAccelerators();
    ++resizes_;
    resize_seconds_ += SecondsSince(start);
    log_.Add(LogLevel::kInfo, [&] {
      return fmt::format("{}: resize ended after {:.3f} s, top level {}", pool_->mapping().path(),
                         SecondsSince(start), pool_->superblock().top);
    });
  }
  if (failure) std::rethrow_exception(failure);
  return added == levels;
}

void StoreImpl::Drain(std::uint32_t new_levels) {
  const Superblock& superblock = pool_->superblock();
  while (superblock.top - superblock.bottom + 1 > superblock.geometry.levels) {
    // It is made by reading the levels that items go to: not for a level far smaller.
    if (superblock.top - superblock.bottom < superblock.geometry.levels + 2u) {
      MakeAccelerators(new_levels);
    }
    new_levels = 0;
    if (executor_->DrainLevel(superblock.bottom) == 0) {
      pool_->DropBottomLevel();
      cache_.KeepTable(*executor_, MakeTableView(pool_->base(), superblock));
    } else {
      AddLevel();  // even the larger top has no slot for some item: one more level
      new_levels = 1;
      RefreshTable();
    }
  }
}

std::vector<CellRange> StoreImpl::CellRanges() const {
  std::vector<CellRange> ranges;
  const Superblock& superblock = pool_->superblock();
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    ranges.push_back(RangeOf(Extent{segment.offset, segment.bytes}, pool_->cell_bytes()));
  }
  return ranges;
}

std::uint64_t StoreImpl::Capacity() const {
  return CapacityAt(pool_->superblock().geometry, pool_->superblock().top);
}

}  // namespace gpm
