#include "pm/crc32c.h"

#include <array>

namespace gpm {
namespace {

/// The polynomial 0x1EDC6F41, bits reversed.
constexpr std::uint32_t kPolynomial = 0x82F63B78u;

constexpr std::array<std::uint32_t, 256> MakeTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    }
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = MakeTable();

}  // namespace

std::uint32_t Crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint32_t remainder = ~crc;
  for (std::size_t i = 0; i < bytes; ++i) {
    remainder = (remainder >> 8) ^ kTable[(remainder ^ next[i]) & 0xFF];
  }
  return ~remainder;
}

}  // namespace gpm
