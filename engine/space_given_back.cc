#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "engine/space.h"

// How a pool's space is given back: to a level that takes the place of free cells, or to the
// medium.

namespace gpm {
namespace {

/// What compaction leaves beyond what is needed: such a part, as a step of growth (Pool).
constexpr std::uint64_t kStepShare = 32;

/// A level smaller than such a part of the pool does not take the place of free cells, which have
/// to be found by a look at all slots: the pool grows.
constexpr std::uint64_t kSmallLevelShare = 32;

}  // namespace

bool Space::HasCellsForLevel(std::uint64_t bytes, std::uint64_t used_end,
                             std::uint64_t most_bytes) const {
  const bool can_grow = used_end + bytes <= most_bytes;
  if (can_grow && bytes < used_end / kSmallLevelShare) return false;
  // So many stay free that it need not grow soon, unless it can't grow.
  const std::uint64_t soon = can_grow ? std::max(cells_ / 8, CellsAhead()) : 0;
  const std::uint64_t stay = soon + epochs_.kept_cells();
  const std::uint64_t free = epochs_.available_cells();
  return has_cells_ && free >= stay && (free - stay) * pool_.cell_bytes() >= bytes;
}

void Space::ReleaseCellsForLevel(std::uint64_t buckets) {
  if (!has_cells_ || epochs_.holds_cells()) return;
  const Superblock& superblock = pool_.superblock();
  const std::uint64_t bytes = LevelBytes(superblock, buckets);
  bool fresh = false;
  PlaceExtent(superblock, bytes, &fresh);
  const std::uint64_t most_bytes = pool_.mapping().PossibleBytes();
  if (!fresh || !HasCellsForLevel(bytes, UsedEnd(superblock), most_bytes)) return;
  ScanCounters found;
  std::vector<std::uint32_t> used;
  try {
    found = executor_.ScanSlots(ScanMode::kTrust, CellRanges());
    used = executor_.UsedCells();
    executor_.GrowQueues(cells_, kMinSlotQueue, epochs_.head());
  } catch (const std::bad_alloc&) {
    return;  // the level does without
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu) throw;
    return;
  }
  health_.AllOrUnusable("free value cells were given back to the pool",
                        [&]() GPM_REQUIRES(store_state) {
                          const Extent extent = FindFreeCells(superblock, used, bytes);
                          if (extent.bytes > 0 && found.bad_references + found.shared_cells == 0) {
                            try {
                              pool_.RemoveCells(extent);
                            } catch (const Error& error) {
                              if (!MeansFull(error)) throw;
                            }
                            CountCells();
                          }
                          // The queue may hold cells of the extent: it is made anew.
                          unqueued_.reset();
                          epochs_.DiscardCells(executor_.Positions());
                          executor_.FreeUnused(CellRanges());
                          epochs_.Quiesced(executor_.Positions());
                        });
}

bool Space::FreeExtent(const Extent& extent, std::uint64_t join) {
  const std::uint64_t cell_bytes = pool_.cell_bytes();
  const CellRange range{extent.offset / cell_bytes, (extent.end() + cell_bytes - 1) / cell_bytes};
  try {
    const ScanCounters found = executor_.ScanSlots(ScanMode::kTrust, CellRanges());
    if (found.bad_references + found.shared_cells > 0) return false;
    executor_.GrowQueues(UsedEnd(pool_.superblock()) / cell_bytes, kMinSlotQueue, epochs_.head());
    pool_.JoinSegments(join);
  } catch (const std::bad_alloc&) {
    return false;  // the pool stays as large as it is
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu && !MeansFull(error)) throw;
    return false;
  }
  CountCells();
  unqueued_.reset();
  epochs_.DiscardCells(executor_.Positions());
  std::vector<CellRange> others;
  for (const CellRange& cells : CellRanges()) {
    const CellRange below{cells.first, std::min(cells.last, range.first)};
    const CellRange above{std::max(cells.first, range.last), cells.last};
    if (below.first < below.last) others.push_back(below);
    if (above.first < above.last) others.push_back(above);
  }
  executor_.FreeUnused(others);
  epochs_.Quiesced(executor_.Positions());
  const bool moved = executor_.MoveCells(range, epochs_.GrantCells(epochs_.available_cells())) == 0;
  if (moved) {
    pool_.RemoveCells(extent);
    CountCells();
  }
  Recount();
  return moved;
}

std::uint64_t Space::CompactCellsFor(std::uint64_t items) const {
  return items + items / kStepShare + KeptBeside(items);
}

bool Space::CanCompactCells(std::uint64_t items) const {
  if (!has_cells_) return false;
  const Superblock& superblock = pool_.superblock();
  const std::uint64_t end = CompactEnd(superblock, CompactCellsFor(items));
  return std::any_of(superblock.segments, superblock.segments + superblock.segment_count,
                     [&](const SegmentEntry& s) { return s.offset + s.bytes > end; });
}

void Space::CompactCells(std::uint64_t items) {
  if (!CanCompactCells(items)) return;
  const std::uint64_t end = CompactEnd(pool_.superblock(), CompactCellsFor(items));
  FreeExtent({end, UsedEnd(pool_.superblock()) - end}, end);
}

bool Space::CanEndLower(const LevelSizes& sizes, std::uint64_t items) const {
  const Superblock& superblock = pool_.superblock();
  const std::uint64_t used_end = UsedEnd(superblock);
  std::uint64_t end =
      FirstExtentOffset(superblock.key_size, superblock.geometry) + LevelsBytes(superblock, sizes);
  if (has_cells_) {  // (One more: the first is aligned.)
    end += RoundUp((CompactCellsFor(items) + 1) * pool_.cell_bytes(), kPageBytes);
  }
  return end + used_end / kStepShare < used_end;
}

void Space::GiveBackMemory() {
  try {
    executor_.ShrinkQueues(cells_, kMinSlotQueue, epochs_.head());
  } catch (const std::bad_alloc&) {  // the smaller ones are made first: all is as it was
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu) throw;
  }
}

}  // namespace gpm
