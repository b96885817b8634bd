#include "engine/epochs.h"

#include <algorithm>
#include <new>

namespace gpm {
namespace {

/// Cells that are sorted at a time: fewer cost more than they save; more take too long.
constexpr std::uint64_t kMinSorted = std::uint64_t{1} << 14;
constexpr std::uint64_t kMaxSorted = std::uint64_t{1} << 22;

}  // namespace

CellGrant Epochs::GrantCells(std::uint64_t cells) {
  CellGrant grant{head_, std::min(cells, available_cells())};
  const std::uint64_t unkept = available_cells() - std::min(available_cells(), kept_);
  grant.kept = grant.count - std::min(grant.count, unkept);
  head_ += grant.count;
  return grant;
}

bool Epochs::TakeBack(const CellGrant& grant, std::uint64_t left) {
  if (grant.first + grant.count != head_) return false;
  head_ -= left;
  return true;
}

CellGrant Epochs::ToSort(std::uint64_t cells) {
  const std::uint64_t first = std::max(sorted_, head_);
  if (cells == 0 || head_ + cells <= first || limit() < first + kMinSorted) return {};
  sorted_ = std::min(limit(), first + kMaxSorted);
  return {first, sorted_ - first};
}

std::uint64_t Epochs::Begin(const Reservation& reservation, SlotRange* recycle, CellGrant* grant) {
  const std::uint64_t count = std::min(slots_waiting(), reservation.given_back);
  const SlotRange slots{slots_recycled_, slots_recycled_ + count};
  running_.emplace(next_id_, Running{reservation, slots});
  *grant = GrantCells(reservation.cells);
  *recycle = slots;
  slots_recycled_ = slots.to;
  return next_id_++;
}

void Epochs::End(std::uint64_t id, const ReclaimPositions& positions) noexcept {
  running_.erase(id);
  known_.cells_tail = std::max(known_.cells_tail, positions.cells_tail);
  known_.slots_tail = std::max(known_.slots_tail, positions.slots_tail);
  try {
    graces_.push_back(Grace{known_.cells_tail, known_.slots_tail, next_id_ - 1});
  } catch (const std::bad_alloc&) {
    // The next batch to end, or Quiesced, tells of these positions too.
  }
  const std::uint64_t oldest = running_.empty() ? next_id_ : running_.begin()->first;
  while (!graces_.empty() && graces_.front().last_id < oldest) {
    limit_ = graces_.front().cells_tail;
    slots_safe_ = graces_.front().slots_tail;
    graces_.pop_front();
  }
}

void Epochs::DiscardCells(const ReclaimPositions& positions) {
  head_ = limit_ = sorted_ = positions.cells_tail;
}

void Epochs::Quiesced(const ReclaimPositions& positions) {
  known_ = positions;
  graces_.clear();
  limit_ = positions.cells_tail;
  slots_safe_ = positions.slots_tail;
  slots_recycled_ = positions.slots_tail;
}

std::uint64_t Epochs::slots_pending() const {
  std::uint64_t oldest = slots_recycled_;
  std::uint64_t newest = known_.slots_tail;
  for (const auto& [id, batch] : running_) {
    // A batch that is still to give slots back holds their positions.
    if (batch.recycle.from != batch.recycle.to) {
      oldest = std::min(oldest, batch.recycle.from);
    }
    newest += batch.reservation.slots;
  }
  return newest - oldest;
}

}  // namespace gpm
