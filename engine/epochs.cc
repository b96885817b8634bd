#include "engine/epochs.h"

#include <algorithm>

namespace gpm {

CellGrant Epochs::GrantCells(std::uint64_t cells) {
  const CellGrant grant{head_, std::min(cells, available_cells())};
  head_ += grant.count;
  return grant;
}

std::uint64_t Epochs::Begin(const Reservation& reservation, SlotRange* give_back,
                            CellGrant* grant) {
  *grant = GrantCells(reservation.cells);
  *give_back = SlotRange{slots_given_back_, slots_safe_};
  slots_given_back_ = slots_safe_;
  running_.emplace(next_id_, Running{reservation, *give_back});
  return next_id_++;
}

void Epochs::End(std::uint64_t id, const ReclaimPositions& positions) {
  running_.erase(id);
  known_.cells_tail = std::max(known_.cells_tail, positions.cells_tail);
  known_.slots_tail = std::max(known_.slots_tail, positions.slots_tail);
  graces_.push_back(Grace{known_.cells_tail, known_.slots_tail, next_id_ - 1});
  const std::uint64_t oldest = running_.empty() ? next_id_ : running_.begin()->first;
  while (!graces_.empty() && graces_.front().last_id < oldest) {
    limit_ = graces_.front().cells_tail;
    slots_safe_ = graces_.front().slots_tail;
    graces_.pop_front();
  }
}

void Epochs::Quiesced(const ReclaimPositions& positions) {
  known_ = positions;
  graces_.clear();
  limit_ = positions.cells_tail;
  slots_safe_ = positions.slots_tail;
  slots_given_back_ = positions.slots_tail;
}

std::uint64_t Epochs::slots_pending() const {
  std::uint64_t oldest = slots_given_back_;
  std::uint64_t newest = known_.slots_tail;
  for (const auto& [id, batch] : running_) {
    // A batch that is still to give slots back holds their positions.
    if (batch.give_back.from != batch.give_back.to) {
      oldest = std::min(oldest, batch.give_back.from);
    }
    newest += batch.reservation.slots;
  }
  return newest - oldest;
}

}  // namespace gpm
