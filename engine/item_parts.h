#ifndef GPM_ENGINE_ITEM_PARTS_H_
#define GPM_ENGINE_ITEM_PARTS_H_

#include <cstdint>

namespace gpm {

inline constexpr std::uint64_t kItemsAtOnce = std::uint64_t{1} << 14;  ///< of a thread
inline constexpr std::uint64_t kAhead = 16;  ///< as many cache misses as overlap

inline std::uint64_t PartsOf(std::uint64_t count, std::uint64_t at_once) {
  return (count + at_once - 1) / at_once;
}

}  // namespace gpm

#endif  // GPM_ENGINE_ITEM_PARTS_H_
