#include "engine/space.h"

#include <algorithm>
#include <new>
#include <utility>

#include "table/geometry.h"

namespace gpm {
namespace {

/// Above this share of slots in use an insert is likely to find none: a batch of them resizes
/// first.
constexpr double kFullLoad = 0.95;

/// Of the cells so large a share, but one at least, unless there is no other, and so many at most,
/// are kept for updates, which give one back for each that they take: a full pool can still be
/// updated, so many items at a time.
constexpr std::uint64_t kKeptShare = 64;
constexpr std::uint64_t kMostKeptCells = 4096;
std::uint64_t KeptOf(std::uint64_t cells) {
  return cells < 2 ? 0 : std::clamp(cells / kKeptShare, std::uint64_t{1}, kMostKeptCells);
}

/// A mixed batch is expected to take at most so many times as many cells as others did, and so many
/// more.
constexpr double kMargin = 1.25;
constexpr double kFewCells = 32;

/// Erased slots that a batch gives back at most: so many for each of its operations, and so many in
/// any case. So no batch takes much longer for what others erased, and yet more are given back than
/// batches erase.
constexpr std::uint64_t kGivenBackForOperation = 4;
constexpr std::uint64_t kFewGivenBack = 4096;

/// The queue of erased slots is made longer until it holds so many batches as the one that found it
/// full.
constexpr std::uint64_t kErasingBatches = 16;

CellRange RangeOf(const Extent& extent, std::uint64_t cell_bytes) {
  const std::uint64_t first = (extent.offset + cell_bytes - 1) / cell_bytes;
  const std::uint64_t last = std::min(extent.end() / cell_bytes, kMaxCellNumber);
  return CellRange{std::min(first, last), last};
}

}  // namespace

bool MeansFull(const Error& error) {
  return error.code() == ErrorCode::kNoSpace || error.code() == ErrorCode::kUnsupported;
}

Space::Space(Pool& pool, Executor& executor, Health& health, const Growth& growth)
    : pool_(pool),
      executor_(executor),
      health_(health),
      has_cells_(!InlineValues(pool.superblock().value_size)),
      growth_(growth) {}

/// What a batch is granted, if there is so much: what it is expected to take, and for a scope,
/// which can't be given more afterwards, all that it may take.
Reservation Space::WantsOf(const Demand& demand) const {
  Reservation wants = demand.most;
  if (demand.mixed) {
    const double expected = static_cast<double>(wants.cells) * taken_share_ * kMargin + kFewCells;
    wants.cells = std::min(wants.cells, static_cast<std::uint64_t>(expected));
  }
  // A slot is erased once before it is given back, which it is not while the batch runs.
  wants.slots = std::min(wants.slots, MostErasedSlots());
  if (!demand.scope) {  // (A scope, which can't be given more afterwards, gives back all.)
    wants.given_back = std::max(kFewGivenBack, kGivenBackForOperation * demand.operations);
  }
  return wants;
}

/// Cells without which a batch waits for others to end, and then for growth: what it wants, but,
/// since it may want far less in the end, of a batch no more than those before it took, or than
/// half a step of growth. (What updates take they give back, so a batch of them that lacks cells
/// goes on with those; but that is twice the work, and where it is as large as a quarter of all
/// cells, still better than to have so many more.)
std::uint64_t Space::CellsToBegin(const Demand& demand) const {
  const std::uint64_t wanted = WantsOf(demand).cells;
  if (wanted == 0) return 0;
  if (demand.scope) return wanted + epochs_.kept_cells();
  // (Half a step: one step is then enough, for which there is more of everything.)
  const std::uint64_t taken = std::min(static_cast<std::uint64_t>(recent_cells_), cells_ / 4);
  const std::uint64_t expected =
      std::max({pool_.growth_cells() / 2, static_cast<std::uint64_t>(recent_items_), taken});
  return std::min(wanted, expected) + epochs_.kept_cells();
}

bool Space::IsFull() const {
  return static_cast<double>(items_) >= kFullLoad * static_cast<double>(Capacity());
}

bool Space::HasSlotsFor(const Demand& demand) const {
  const std::uint64_t slots = WantsOf(demand).slots;
  return slots == 0 || epochs_.slots_pending() + slots <= executor_.slot_queue_room();
}

bool Space::HasRoomFor(const Demand& demand, bool made_room) const {
  if (!HasSlotsFor(demand)) return false;
  // What finds no room will say so; a scope can't be given more afterwards.
  if (at_limit_ && (made_room || !demand.scope)) return true;
  if (epochs_.available_cells() < CellsToBegin(demand)) return false;
  return !demand.inserts || !IsFull();
}

std::uint64_t Space::Begin(const Demand& demand, Epochs::SlotRange* recycle, CellGrant* grant) {
  const Reservation wants = WantsOf(demand);
  // (As many as it is likely to take. A mixed batch may be granted far more, and were these sorted
  // for each batch, a few at a time, those that it takes would lie further apart.)
  const auto likely = static_cast<std::uint64_t>(recent_cells_ * kMargin + kFewCells);
  SortCells(demand.mixed ? std::min(wants.cells, likely) : wants.cells);
  return epochs_.Begin(wants, recycle, grant);
}

void Space::SortCells(std::uint64_t wanted) {
  if (const CellGrant cells = epochs_.ToSort(wanted); cells.count > 0) executor_.SortCells(cells);
}

CellGrant Space::Grant(std::uint64_t cells) {
  SortCells(cells);
  return epochs_.GrantCells(cells);
}

CellGrant Space::GrantToFill(std::uint64_t cells) {
  if (epochs_.holds_cells() || unqueued_ || epochs_.available_cells() != cells_) return {};
  std::vector<CellRange> ranges = CellRanges();
  const auto run = std::find_if(ranges.begin(), ranges.end(), [&](const CellRange& range) {
    return range.last - range.first >= cells;
  });
  if (run == ranges.end()) return {};
  std::iter_swap(run, ranges.begin());
  epochs_.DiscardCells(executor_.Positions());
  for (const CellRange& range : ranges) executor_.FreeAll(range);
  epochs_.Quiesced(executor_.Positions());
  CellGrant grant = epochs_.GrantCells(cells);
  grant.filled_from = static_cast<std::uint32_t>(ranges.front().first);
  return grant;
}

void Space::Recount() {
  const ScanCounters found = executor_.ScanSlots(ScanMode::kTrust, CellRanges());
  executor_.GrowQueues(cells_, kMinSlotQueue, epochs_.head());
  unqueued_.reset();  // all of them are looked at
  epochs_.DiscardCells(executor_.Positions());
  FreeUnused(found.items);
}

void Space::CountItems() {
  if (counted_) return;
  items_ = static_cast<std::int64_t>(executor_.ScanSlots(ScanMode::kTrust, CellRanges()).items);
  counted_ = true;
}

void Space::CountFull() {
  const double load = static_cast<double>(items()) / static_cast<double>(Capacity());
  const double rather = full_load_.value_or(load);
  full_load_ = std::clamp(std::min(load, (load + rather) / 2), kLeastFull, kFullLoad);
}

bool Space::MakeRoomFor(const Demand& demand) {
  Reclaim();
  MakeRoomForSlots(demand.most.slots);
  const std::uint64_t cells = CellsToBegin(demand);
  return epochs_.available_cells() >= cells || AddCells(cells - epochs_.available_cells());
}

void Space::MakeRoomForErases(const Demand& demand) {
  const std::uint64_t slots = WantsOf(demand).slots;
  const std::uint64_t room = executor_.slot_queue_room();
  const std::uint64_t most = std::min(kErasingBatches * slots, MostErasedSlots()) + kMinSlotQueue;
  if (slots + kMinSlotQueue <= room && most > room) {  // it lacked what others had
    try {
      executor_.GrowQueues(cells_, room, epochs_.head());  // (makes it hold more: twice as much)
    } catch (const std::bad_alloc&) {
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kGpu) throw;
    }
  }
  if (HasSlotsFor(demand)) return;
  Reclaim();
  MakeRoomForSlots(slots);
}

void Space::MakeRoomForSlots(std::uint64_t slots) {
  const std::uint64_t room = std::min(slots, MostErasedSlots()) + kMinSlotQueue;
  if (room > executor_.slot_queue_room()) executor_.GrowQueues(cells_, room, epochs_.head());
}

bool Space::Reclaim() {
  const Epochs::SlotRange slots{epochs_.slots_recycled(), executor_.Positions().slots_tail};
  health_.AllOrUnusable("erased slots were given back", [&]() GPM_REQUIRES(store_state) {
    executor_.RecycleSlots(slots);
    epochs_.Quiesced(executor_.Positions());  // so that nobody gives them back again
  });
  return slots.from != slots.to;
}

void Space::ReclaimMany() {
  if (epochs_.slots_waiting() > kFewGivenBack) Reclaim();
}

std::uint64_t Space::QueueAdded() {
  executor_.GrowQueues(cells_, kMinSlotQueue, epochs_.head());
  const CellRange range = *std::exchange(unqueued_, std::nullopt);
  health_.AllOrUnusable("value cells were added", [&]() GPM_REQUIRES(store_state) {
    if (!epochs_.holds_cells()) return executor_.FreeAll(range);
    const std::uint64_t tail = executor_.Positions().cells_tail;
    executor_.FreeAll(range);
    // In front of what is held, and with them what was free before.
    const std::uint64_t head = epochs_.head();
    const std::uint64_t free = epochs_.available_cells();
    const std::uint64_t hold = executor_.ReturnCells({head, free}).cells_tail;
    executor_.ReturnCells({head + free, tail - head - free});
    epochs_.Requeued(tail, hold);
  });
  return range.last - range.first;
}

void Space::NameHeldCells(std::vector<std::uint32_t> names) {
  const MutexLock lock(names_mutex_);
  names_ = std::move(names);
}

void Space::ReleaseCells() {
  epochs_.ReleaseCells();
  named_ = 0;
  const MutexLock lock(names_mutex_);
  names_ = {};
}

std::uint64_t Space::FreeUnnamed() {
  const MutexLock lock(names_mutex_);
  if (!epochs_.holds_cells() || names_.empty()) return 0;
  const std::uint64_t head = epochs_.head();
  const std::uint64_t free = epochs_.available_cells();
  const std::uint64_t tail = executor_.Positions().cells_tail;
  const CellGrant held{head + free, tail - head - free};
  if (held.count < named_ + pool_.growth_cells()) return 0;
  std::uint64_t freed = 0;
  health_.AllOrUnusable("held cells were looked at", [&]() GPM_REQUIRES(store_state, names_mutex_) {
    std::uint64_t hold = 0;
    try {
      hold = executor_.RequeueCells({head, free}, held, names_);
    } catch (const Error&) {
      if (executor_.Positions().cells_tail != tail) throw;
      return;  // no memory for the names: nothing was done
    }
    epochs_.Requeued(tail, hold);
    epochs_.Quiesced(executor_.Positions());
    named_ = executor_.Positions().cells_tail - hold;
    freed = held.count - named_;
  });
  return freed;
}

bool Space::AddCells(std::uint64_t cells) {
  std::uint64_t added = FreeUnnamed();
  while (added < cells) {
    if (!unqueued_) {
      if (UsedEnd(pool_.superblock()) / pool_.cell_bytes() >= kMaxCellNumber) break;
      Extent extent;
      try {
        extent = pool_.AddSegment(cells - added);
      } catch (const Error& error) {
        if (!MeansFull(error)) throw;
        break;
      }
      unqueued_ = RangeOf(extent, pool_.cell_bytes());
      CountCells();
    }
    added += QueueAdded();
    // What was queued again, beside a snapshot, is free at once: the next segment begins behind it.
    epochs_.Quiesced(executor_.Positions());
  }
  epochs_.Quiesced(executor_.Positions());
  return added >= cells;
}

void Space::CountCells() noexcept {
  const Superblock& superblock = pool_.superblock();
  cells_ = 0;
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    const CellRange range = RangeOf({segment.offset, segment.bytes}, pool_.cell_bytes());
    cells_ += range.last - range.first;
  }
  epochs_.KeepCells(KeptOf(cells_));
}

std::uint64_t Space::KeptBeside(std::uint64_t cells) {
  return std::min(cells / (kKeptShare - 1) + 1, kMostKeptCells);
}

std::uint64_t Space::MissingCells(std::uint64_t more) const {
  if (more == 0 || !has_cells_) return 0;
  const std::uint64_t used = cells_ - std::min(cells_, epochs_.available_cells());
  const std::uint64_t kept = KeptBeside(used + more);
  return more + kept - std::min(more + kept, epochs_.available_cells());
}

void Space::Open() {
  CountCells();
  executor_.GrowQueues(cells_, kMinSlotQueue, 0);
}

void Space::FreeUnused(std::uint64_t items) {
  items_ = static_cast<std::int64_t>(items);
  counted_ = true;
  executor_.FreeUnused(CellRanges());
  epochs_.Quiesced(executor_.Positions());
}

std::uint64_t Space::CountMisplacedCells() {
  Reclaim();
  if (unqueued_) QueueAdded();
  return executor_.CountMisplacedCells(CellRanges(), epochs_.head());
}

std::uint64_t Space::items() const {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(items_, 0));
}

std::uint64_t Space::free_cells() const { return has_cells_ ? epochs_.queued() : 0; }

std::vector<CellRange> Space::CellRanges() const {
  std::vector<CellRange> ranges;
  const Superblock& superblock = pool_.superblock();
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    ranges.push_back(RangeOf(Extent{segment.offset, segment.bytes}, pool_.cell_bytes()));
  }
  return ranges;
}

std::uint64_t Space::Capacity() const { return SlotsOf(pool_.superblock()); }

}  // namespace gpm
