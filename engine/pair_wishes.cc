#include "engine/pair_wishes.h"

#include <algorithm>
#include <cstring>

namespace gpm {

namespace {

bool IsEquality(const Condition& condition) { return condition.least == condition.most; }

}  // namespace

bool PairWishes::IsNarrowed(std::span<const Met> query, std::uint64_t items) const {
  return std::any_of(query.begin(), query.end(), [&](const Met& first) {
    return IsEquality(first.condition) &&
           std::any_of(query.begin(), query.end(), [&](const Met& it) {
             return it.condition.attribute == chosen_.PartnerOf(first.condition.attribute) &&
                    it.rows < items;
           });
  });
}

std::optional<AttributePair> PairWishes::PairFor(std::span<const Met> query,
                                                 std::uint64_t items) const {
  if (IsNarrowed(query, items)) return {};
  const auto is_fewer = [](const Met& x, const Met& y) { return x.rows < y.rows; };
  const Met* first = nullptr;
  const auto is_better = [&](const Met& it) {
    if (first == nullptr) return true;
    const std::uint32_t than = first->condition.attribute;
    if (chosen_.Has(it.condition.attribute) != chosen_.Has(than)) return chosen_.Has(than);
    return is_fewer(it, *first);
  };
  for (const Met& it : query) {
    if (IsEquality(it.condition) && !fixed_.Has(it.condition.attribute) && is_better(it))
      first = &it;
  }
  if (first == nullptr) return {};
  const Met* partner = nullptr;
  for (const Met& it : query) {
    if (it.condition.attribute == first->condition.attribute) continue;
    if (partner == nullptr || is_fewer(it, *partner)) partner = &it;
  }
  if (partner == nullptr || partner->rows >= items) return {};
  return AttributePair{first->condition.attribute, partner->condition.attribute};
}

void PairWishes::Note(std::span<const Met> query, std::uint64_t rows, std::uint64_t items) {
  const std::lock_guard lock(mutex_);
  const auto pair = PairFor(query, items);
  if (!pair) return;
  std::uint64_t& in_vain = in_vain_[pair->first][pair->partner];
  in_vain += std::min(rows, ~std::uint64_t{0} - in_vain);
  const std::uint32_t changes = std::min(changes_[pair->first], 24u);
  if (due_ || in_vain >> changes < items) return;
  const std::uint64_t in_order = in_order_[pair->first].exchange(0, std::memory_order_relaxed);
  if (!chosen_.Has(pair->first) && in_order > in_vain) {
    in_vain = 0;
    return;
  }
  due_ = pair;
  due_items_.store(std::max<std::uint64_t>(items, 1), std::memory_order_relaxed);
}

std::uint64_t PairWishes::RowsToSample(std::uint64_t rows, std::uint64_t items) {
  constexpr std::uint64_t kShareToSample = 16;
  const std::uint64_t all = looked_at_.fetch_add(rows, std::memory_order_relaxed) + rows;
  if (all < items / kShareToSample) return 0;
  return looked_at_.exchange(0, std::memory_order_relaxed);
}

std::optional<AttributePair> PairWishes::Take() {
  const std::lock_guard lock(mutex_);
  const std::optional<AttributePair> pair = due_;
  due_.reset();
  due_items_.store(0, std::memory_order_relaxed);
  if (!pair) return {};
  chosen_.Set(pair->first, pair->partner);
  ++changes_[pair->first];
  // All that was in vain for want of another partner is to be in vain again.
  std::memset(in_vain_[pair->first], 0, sizeof in_vain_[pair->first]);
  return pair;
}

AttributePairs PairWishes::chosen() const {
  const std::lock_guard lock(mutex_);
  return chosen_;
}

}  // namespace gpm
