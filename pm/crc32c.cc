#include "pm/crc32c.h"

#include <array>
#include <cstring>

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

#ifdef __x86_64__
/// Eight bytes at a time, by the instruction that is there for it.
__attribute__((target("sse4.2"))) std::uint32_t UpdateWords(std::uint32_t remainder,
                                                            const unsigned char* next,
                                                            std::size_t words) {
  std::uint64_t wide = remainder;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, next + 8 * i, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return static_cast<std::uint32_t>(wide);
}
#endif

}  // namespace

std::uint32_t Crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint32_t remainder = ~crc;
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) {
    remainder = UpdateWords(remainder, next, bytes / 8);
    next += bytes / 8 * 8;
    bytes %= 8;
  }
#endif
  for (std::size_t i = 0; i < bytes; ++i) {
    remainder = (remainder >> 8) ^ kTable[(remainder ^ next[i]) & 0xFF];
  }
  return ~remainder;
}

}  // namespace gpm
