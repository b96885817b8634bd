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
/// Words of each of three stretches that are worked on side by side: the instruction takes three
/// cycles, and one can begin in each.
constexpr std::size_t kStretchWords = 512;

/// What becomes of a remainder when a stretch of zeros follows: that of a sum is the sum of those
/// of its bytes.
using Shifts = std::array<std::array<std::uint32_t, 256>, 4>;
constexpr Shifts MakeShifts() {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < of_bit.size(); ++bit) of_bit[bit] = std::uint32_t{1} << bit;
  const auto sum_of = [&](std::uint32_t remainder) {
    std::uint32_t sum = 0;
    for (std::size_t bit = 0; bit < of_bit.size(); ++bit) {
      if ((remainder >> bit & 1) != 0) sum ^= of_bit[bit];
    }
    return sum;
  };
  // One byte of zeros, and then twice as many by applying it twice.
  for (std::uint32_t& shifted : of_bit) shifted = (shifted >> 8) ^ kTable[shifted & 0xFF];
  for (std::size_t bytes = 1; bytes < 8 * kStretchWords; bytes *= 2) {
    std::array<std::uint32_t, 32> twice{};
    for (std::size_t bit = 0; bit < of_bit.size(); ++bit) twice[bit] = sum_of(of_bit[bit]);
    of_bit = twice;
  }
  Shifts shifts{};
  for (std::size_t byte = 0; byte < shifts.size(); ++byte) {
    for (std::uint32_t value = 0; value < 256; ++value) {
      shifts[byte][value] = sum_of(value << (8 * byte));
    }
  }
  return shifts;
}
constexpr Shifts kShifts = MakeShifts();

std::uint32_t Shift(std::uint64_t remainder) {
  return kShifts[0][remainder & 0xFF] ^ kShifts[1][remainder >> 8 & 0xFF] ^
         kShifts[2][remainder >> 16 & 0xFF] ^ kShifts[3][remainder >> 24 & 0xFF];
}

std::uint64_t WordAt(const unsigned char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

/// Eight bytes at a time, by the instruction that is there for it.
__attribute__((target("sse4.2"))) std::uint32_t UpdateWords(std::uint32_t remainder,
                                                            const unsigned char* next,
                                                            std::size_t words) {
  constexpr std::size_t kStretch = 8 * kStretchWords;
  std::uint64_t wide = remainder;
  for (; words >= 3 * kStretchWords; words -= 3 * kStretchWords, next += 3 * kStretch) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < kStretch; at += 8) {
      wide = __builtin_ia32_crc32di(wide, WordAt(next + at));
      second = __builtin_ia32_crc32di(second, WordAt(next + kStretch + at));
      third = __builtin_ia32_crc32di(third, WordAt(next + 2 * kStretch + at));
    }
    wide = Shift(Shift(wide) ^ second) ^ third;
  }
  for (std::size_t i = 0; i < words; ++i) {
    wide = __builtin_ia32_crc32di(wide, WordAt(next + 8 * i));
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
