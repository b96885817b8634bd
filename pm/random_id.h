#ifndef GPM_PM_RANDOM_ID_H_
#define GPM_PM_RANDOM_ID_H_

#include <array>
#include <cstdint>
#include <string>

namespace gpm {

/// What tells a pool, a snapshot or a store over several pools from any other.
using RandomId = std::array<std::uint8_t, 16>;
RandomId NewId();                       ///< by any thread @throws as std::random_device
std::string HexOf(const RandomId& id);  ///< 32 digits

}  // namespace gpm

#endif  // GPM_PM_RANDOM_ID_H_
