#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "engine/space.h"

// What a pool will need next: learnt of what batches take, and made ready, or added, before it is
// wanted.

namespace gpm {
namespace {

/// Room is made ready for so many batches as the last ones. That of a level: part by part, from
/// when the table is then so far below the load factor at which it has to grow. All of it is ready
/// a bit below that, which varies. (Each part is a registration with the GPU.)
constexpr std::uint64_t kBatchesAhead = 2;
/// Where a growth had to wait for room, room is made so many times as early for the next ones: less
/// and less so with each that had not.
constexpr double kMostLead = 2;
constexpr double kForgetLead = 0.98;
constexpr double kNearFull = 0.12;
constexpr double kFull = 0.04;
constexpr double kLevelParts = 4;
/// And room for cells is at least this: a small pool may grow by several steps within a batch.
constexpr std::uint64_t kLeastReadyBytes = std::uint64_t{256} << 10;

/// Of batches with so many updates, cells that lie closer together make up for a step of growth
/// more (docs/TRIED.md, "Spare cells").
constexpr double kUpdatesWithSpareCells = 128;
/// Steps of growth of which the cells are spare then: compaction leaves about one.
constexpr double kSpareSteps = 0.75;

/// What the batch before counts in what the last few took: who stops inserting soon looks so.
constexpr double kForgetRecent = 0.5;

}  // namespace

void Space::CountTaken(const Demand& demand, std::uint64_t taken, std::int64_t items) {
  constexpr std::uint64_t kFew = 256;  // of which nothing follows for others
  constexpr double kForget = 0.95;
  if (taken > 0 || items > 0) {
    recent_cells_ = std::max(recent_cells_ * kForgetRecent, static_cast<double>(taken));
    recent_items_ = std::max(recent_items_ * kForgetRecent, static_cast<double>(items));
    // (Inserts alone may leave cells behind, but replace none.)
    const bool inserts = !demand.mixed && demand.kind == Op::kInsert;
    const auto added = static_cast<double>(std::max<std::int64_t>(items, 0));
    const double updates = inserts ? 0 : static_cast<double>(taken) - added;
    recent_updates_ = std::max(recent_updates_ * kForgetRecent, updates);
    LookAhead();
  }
  if (!demand.mixed || demand.most.cells < kFew) return;
  const double share = static_cast<double>(taken) / static_cast<double>(demand.most.cells);
  taken_share_ = std::max(taken_share_ * kForget, std::min(share, 1.0));
}

void Space::LookAtNextGrowth() {
  const Superblock& superblock = pool_.superblock();
  if (next_growth_.sequence == superblock.sequence) return;
  NextGrowth next{.used_end = UsedEnd(superblock)};
  if (has_cells_) {
    next.gap_bytes = pool_.GapForCells().bytes;
    next.cells = pool_.growth_cells(next.gap_bytes / pool_.cell_bytes());
  }
  const std::uint64_t buckets = growth_.Next(superblock.levels[0].buckets);
  if (buckets <= kMaxLevelBuckets) {
    bool fresh = false;
    const Extent place = PlaceExtent(superblock, LevelBytes(superblock, buckets), &fresh);
    if (fresh) next.level_bytes = place.bytes;
  }
  next.sequence = superblock.sequence;
  next_growth_ = next;
}

std::uint64_t Space::CellsAhead() const {
  return kBatchesAhead * static_cast<std::uint64_t>(recent_cells_);
}

void Space::LookAhead() noexcept {
  try {
    LookAtNextGrowth();
  } catch (const std::bad_alloc&) {
    return;  // it grows when it has to
  }
  const GrowthTimes& growth = pool_.mapping().growth_times();
  for (; growths_seen_ < growth.growths; ++growths_seen_)
    lead_ = std::max(lead_ * kForgetLead, 1.0);
  if (std::exchange(waits_seen_, growth.waits) < growth.waits) lead_ = kMostLead;
  std::uint64_t bytes = 0;
  if (has_cells_) {
    const std::uint64_t step = next_growth_.cells;
    const std::uint64_t kept = epochs_.kept_cells();
    const auto early = static_cast<std::uint64_t>(lead_ * static_cast<double>(step / 2));
    const std::uint64_t few = std::max(early, CellsAhead()) + kept;
    // (Who needs more than are free first gives back the slots that wait, each of which has one.)
    const std::uint64_t waiting = epochs_.holds_cells() ? 0 : epochs_.slots_waiting();
    if (epochs_.available_cells() + waiting < few || LacksSpareCells()) {
      bytes += FreshBytesFor(std::max(step, static_cast<std::uint64_t>(recent_cells_) + kept));
    }
  }
  const double slots =
      std::min(static_cast<double>(items()) + double{kBatchesAhead} * recent_items_,
               static_cast<double>(std::max(most_items_, items())));
  const double left = full_load_.value_or(kLeastFull) - slots / static_cast<double>(Capacity());
  const double near = lead_ * kNearFull;
  if (left <= near && !HasCellsForLevel(next_growth_.level_bytes, next_growth_.used_end,
                                        pool_.mapping().max_bytes())) {
    const double part = std::min((near - left) / (near - lead_ * kFull), 1.0);
    bytes += static_cast<std::uint64_t>(std::ceil(part * kLevelParts) / kLevelParts *
                                        static_cast<double>(next_growth_.level_bytes));
  }
  if (bytes == 0) return;
  pool_.mapping().MakeReady(std::min(next_growth_.used_end + bytes, most_ready_));
}

std::uint64_t Space::FreshBytesFor(std::uint64_t cells) const {
  // (Two more: neither end need be aligned to cells.)
  const std::uint64_t bytes = std::max((cells + 2) * pool_.cell_bytes(), kLeastReadyBytes);
  return bytes - std::min(bytes, next_growth_.gap_bytes);
}

bool Space::LacksSpareCells() const {
  // (All that no item has, also what batches in flight were granted: adding such cells is done
  // once. What snapshots hold will be free again.)
  if (recent_updates_ < kUpdatesWithSpareCells || !executor_.SortsCells() || !counted_ ||
      epochs_.holds_cells()) {
    return false;
  }
  const std::uint64_t spare = cells_ - std::min(cells_, items());
  return static_cast<double>(spare) < kSpareSteps * static_cast<double>(next_growth_.cells);
}

bool Space::CanAddSpareCells() const {
  const std::uint64_t sequence = pool_.superblock().sequence;
  return LacksSpareCells() && !at_limit_ && sequence != no_spare_at_ &&
         sequence == next_growth_.sequence &&
         pool_.mapping().made_bytes() >= next_growth_.used_end + FreshBytesFor(next_growth_.cells);
}

void Space::AddSpareCells() {
  if (!CanAddSpareCells()) return;
  bool added = false;
  try {
    Reclaim();
    added = AddCells(next_growth_.cells);
  } catch (const std::bad_alloc&) {  // nobody needs them
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kGpu) throw;
  }
  if (!added) no_spare_at_ = pool_.superblock().sequence;
}

}  // namespace gpm
