#ifndef GPM_TABLE_INITIAL_ROWS_H_
#define GPM_TABLE_INITIAL_ROWS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpmstore/batch.h"
#include "table/elements.h"
#include "table/hash.h"

namespace gpm {

/// Initial values that are drawn (InitialValue). Each element comes from a counter-based generator:
/// a hash of the seed, the key and the element's place. What follows is calculated in binary64 by
/// operations that IEEE 754 rounds in one way, products and sums as fma, so that no compiler has a
/// choice and both executors get the same bits.

/// How values are drawn. Trivially copyable, for kernels.
struct RowDrawer {
  bool is_normal = false;
  Element element = Element::kNone;
  std::uint64_t seed = 0;
  float first = 0;
  float second = 0;
  std::uint32_t drawn_bytes = 0;

  static RowDrawer Of(const InitialValue& initial, Element element) {
    return {initial.from == InitialValue::From::kNormal,
            element,
            initial.seed,
            initial.first,
            initial.second,
            initial.drawn_bytes};
  }
};

/// What a key's elements are drawn from.
GPM_HD inline std::uint64_t DrawBase(std::uint64_t seed, const std::uint64_t* key,
                                     std::uint32_t key_words) {
  std::uint64_t base = Scramble(seed + 0x9E3779B97F4A7C15ull);
  for (std::uint32_t i = 0; i < key_words; ++i) {
    base = Scramble((base ^ key[i]) + 0x9E3779B97F4A7C15ull * (i + 1));
  }
  return base;
}

/// Natural logarithm of a positive normal number, to some 1e-14.
GPM_HD inline double LogOf(double x) {
  // x = 2^e * m, m from sqrt(1/2) to sqrt(2); log m = 2 atanh s, s = (m - 1) / (m + 1).
#ifdef __CUDA_ARCH__
  auto bits = static_cast<std::uint64_t>(__double_as_longlong(x));
#else
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
#endif
  std::int32_t exponent = static_cast<std::int32_t>(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
#ifdef __CUDA_ARCH__
  double m = __longlong_as_double(static_cast<long long>(bits));
#else
  double m = 0;
  std::memcpy(&m, &bits, sizeof m);
#endif
  if (m > 1.4142135623730951) {
    m = m / 2;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double series = 1.0 / 15;
  series = fma(series, s2, 1.0 / 13);
  series = fma(series, s2, 1.0 / 11);
  series = fma(series, s2, 1.0 / 9);
  series = fma(series, s2, 1.0 / 7);
  series = fma(series, s2, 1.0 / 5);
  series = fma(series, s2, 1.0 / 3);
  series = fma(series, s2, 1.0);
  return fma(static_cast<double>(exponent), 0.69314718055994530942, 2 * s * series);
}

/// The number below which a standard normal variable is with probability p, 0 < p < 1, to some
/// 1e-7: rational functions of Wichura, "Algorithm AS 241: The Percentage Points of the Normal
/// Distribution", 1988 (PPND7).
GPM_HD inline double NormalQuantile(double p) {
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) {
    const double r = fma(-q, q, 0.180625);
    double above = 59.109374720;
    above = fma(above, r, 159.29113202);
    above = fma(above, r, 50.434271938);
    above = fma(above, r, 3.3871327179);
    double below = 67.187563600;
    below = fma(below, r, 78.757757664);
    below = fma(below, r, 17.895169469);
    below = fma(below, r, 1.0);
    return q * above / below;
  }
  double r = sqrt(-LogOf(q < 0 ? p : 1 - p));
  double above = 0;
  double below = 0;
  if (r <= 5) {
    r = r - 1.6;
    above = 0.17023821103;
    above = fma(above, r, 1.3067284816);
    above = fma(above, r, 2.7568153900);
    above = fma(above, r, 1.4234372777);
    below = 0.12021132975;
    below = fma(below, r, 0.73700164250);
    below = fma(below, r, 1.0);
  } else {
    r = r - 5;
    above = 0.017337203997;
    above = fma(above, r, 0.42868294337);
    above = fma(above, r, 3.0812263860);
    above = fma(above, r, 6.6579051150);
    below = 0.012258202635;
    below = fma(below, r, 0.24197894225);
    below = fma(below, r, 1.0);
  }
  return q < 0 ? -(above / below) : above / below;
}

/// Draws the element at a place.
GPM_HD inline float DrawElement(const RowDrawer& drawer, std::uint64_t base, std::uint32_t place) {
  const std::uint64_t hash = Scramble(base + 0x9E3779B97F4A7C15ull * (place + 1));
  // (k + 1/2) / 2^32: exact, and neither 0 nor 1.
  const double share = (static_cast<double>(hash >> 32) + 0.5) * (1.0 / 4294967296.0);
  const auto first = static_cast<double>(drawer.first);
  const auto second = static_cast<double>(drawer.second);
  return static_cast<float>(drawer.is_normal ? fma(NormalQuantile(share), second, first)
                                             : fma(share, second - first, first));
}

/// Draws the 8 bytes of a value from byte 8 * `word` on.
GPM_HD inline std::uint64_t DrawWord(const RowDrawer& drawer, std::uint64_t base,
                                     std::uint32_t word) {
  std::uint64_t drawn = 0;
  if (drawer.element == Element::kFloat32) {
    for (std::uint32_t k = 0; k < 2; ++k) {
      const float element = DrawElement(drawer, base, 2 * word + k);
      drawn |= std::uint64_t{BitsOfFloat(element)} << (32 * k);
    }
    return drawn;
  }
  for (std::uint32_t k = 0; k < 4; ++k) {
    const float element = DrawElement(drawer, base, 4 * word + k);
    drawn |= std::uint64_t{drawer.element == Element::kFloat16 ? HalfOfFloat(element)
                                                               : BFloatOfFloat(element)}
             << (16 * k);
  }
  return drawn;
}

/// Draws a key's initial value, of which what lies behind the drawn bytes is 0. All threads of a
/// group call it.
template <class Group>
GPM_HD inline void DrawRow(const Group& group, const RowDrawer& drawer, const std::uint64_t* key,
                           std::uint32_t key_words, std::byte* row, std::uint32_t value_size) {
  const std::uint64_t base = DrawBase(drawer.seed, key, key_words);
  for (std::uint32_t i = 8 * group.Lane(); i < value_size; i += 8 * Group::kSize) {
    std::uint64_t word = 0;
    if (i < drawer.drawn_bytes) {
      word = DrawWord(drawer, base, i / 8);
      const std::uint32_t left = drawer.drawn_bytes - i;
      if (left < 8) word &= (std::uint64_t{1} << (8 * left)) - 1;
    }
    StoreBytes(row + i, word, value_size - i);
  }
}

}  // namespace gpm

#endif  // GPM_TABLE_INITIAL_ROWS_H_
