#include "engine/search_index.h"

namespace gpm {

void SearchIndex::Pair(std::uint32_t attribute, std::uint32_t partner, ThreadPool* threads) {
  if (pairs_.PartnerOf(attribute) == partner) return;
  SortByPair(attribute, partner, threads);
  pairs_.Set(attribute, partner);
}

void SearchIndex::Drop(std::uint32_t attribute, ThreadPool* threads) {
  for (std::uint32_t a = 0; a < kMaxAttributes; ++a) {
    if (pairs_.PartnerOf(a) == attribute) pairs_.Set(a, LosePartner(a, threads));
  }
  pairs_.Set(attribute, AttributePairs::kNone);
  DropOrder(attribute);
  mask_ &= ~(Mask{1} << attribute);
}

}  // namespace gpm
