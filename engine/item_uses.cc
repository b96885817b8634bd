#include "engine/item_uses.h"

#include "table/operation.h"

namespace gpm {

bool ItemUses::Wants(Op op) const {
  if (policy_ == EvictionPolicy::kOldest) return Inserts(op) || op == Op::kErase;
  return WantsAny();
}

std::uint64_t ItemUses::Begin() {
  const MutexLock lock(mutex_);
  running_.insert(begun_ + 1);
  return ++begun_;
}

void ItemUses::End(std::uint64_t number, const Batch& batch) noexcept {
  std::unique_ptr<NotedUses> uses;
  try {
    uses = ranks_->Note(batch);
  } catch (...) {  // as is said
  }
  const MutexLock lock(mutex_);
  running_.erase(number);
  try {
    if (uses != nullptr) waiting_.emplace(number, std::move(uses));
  } catch (...) {
  }
  TakeEnded();
}

void ItemUses::Forget(std::uint64_t number) noexcept {
  const MutexLock lock(mutex_);
  running_.erase(number);
}

void ItemUses::TakeEnded() noexcept {
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    if (!running_.empty() && *running_.begin() < first->first) return;
    const auto ended = waiting_.extract(first);
    try {
      ranks_->Take(ended.key(), *ended.mapped());
    } catch (...) {  // as is said of End
    }
  }
}

}  // namespace gpm
