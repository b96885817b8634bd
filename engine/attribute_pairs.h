#ifndef GPM_ENGINE_ATTRIBUTE_PAIRS_H_
#define GPM_ENGINE_ATTRIBUTE_PAIRS_H_

#include <cstdint>

#include "pm/format.h"

namespace gpm {

/// Two attributes whose numbers are found together: rows that have one number of the first are in
/// the order of the second's, its *partner*.
struct AttributePair {
  std::uint32_t first = 0;
  std::uint32_t partner = 0;

  friend bool operator==(const AttributePair&, const AttributePair&) = default;
};

/// The partner of each attribute that has one: it has at most one, and may be that of several.
/// Trivially copyable, the same on host and device.
class AttributePairs {
 public:
  static constexpr std::uint32_t kNone = kMaxAttributes;
  /// It had one that is indexed no more, or was to get one and its rows may be half sorted: rows
  /// that have one number are in no order.
  static constexpr std::uint32_t kLost = kMaxAttributes + 1;

  GPM_HD constexpr AttributePairs() {
    for (std::uint8_t& partner : partners_) partner = kNone;
  }
  GPM_HD constexpr std::uint32_t PartnerOf(std::uint32_t attribute) const {
    return partners_[attribute];
  }
  /// Whether it has one.
  constexpr bool Has(std::uint32_t attribute) const {
    return partners_[attribute] < kMaxAttributes;
  }
  /// Whether rows that have one number are in order by themselves.
  GPM_HD constexpr bool IsByRow(std::uint32_t attribute) const {
    return partners_[attribute] == kNone;
  }
  /// @param partner or kNone, or kLost
  constexpr void Set(std::uint32_t attribute, std::uint32_t partner) {
    partners_[attribute] = static_cast<std::uint8_t>(partner);
  }
  constexpr std::uint32_t count() const {
    std::uint32_t count = 0;
    for (const std::uint8_t partner : partners_) count += partner < kMaxAttributes ? 1 : 0;
    return count;
  }

 private:
  std::uint8_t partners_[kMaxAttributes] = {};
};

}  // namespace gpm

#endif  // GPM_ENGINE_ATTRIBUTE_PAIRS_H_
