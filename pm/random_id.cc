#include "pm/random_id.h"

#include <fmt/ranges.h>

#include <random>

namespace gpm {

RandomId NewId() {
  std::random_device random;
  RandomId id;
  for (std::uint8_t& byte : id) byte = static_cast<std::uint8_t>(random());
  return id;
}

std::string HexOf(const RandomId& id) { return fmt::format("{:02x}", fmt::join(id, "")); }

}  // namespace gpm
