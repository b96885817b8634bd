#ifndef GPM_TESTS_ALL_ZERO_H_
#define GPM_TESTS_ALL_ZERO_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpm::test {

inline bool AllZero(const std::byte* from, const std::byte* to) {
  return std::all_of(from, to, [](std::byte b) { return b == std::byte{0}; });
}
inline bool AllZero(const std::byte* from, std::uint64_t bytes) {
  return AllZero(from, from + bytes);
}

}  // namespace gpm::test

#endif  // GPM_TESTS_ALL_ZERO_H_
