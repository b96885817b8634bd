#ifndef GPM_TABLE_ELEMENTS_H_
#define GPM_TABLE_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/rows_of_key.h"
#include "table/volatile_ops.h"

namespace gpm {

/// Arithmetic on the elements of values, the same bits on both executors. A sum of two numbers of
/// 16 bits is made in 24, where the processor has no instruction for it, which is enough for it to
/// be rounded as if it were made exactly. What is no number has one representation, since
/// processors differ in which they make.

GPM_HD inline float FloatOfBits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}
/// The bits of a float, as the processor has them.
GPM_HD inline std::uint32_t AnyBitsOfFloat(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}
/// The same, with the one representation of what is no number.
GPM_HD inline std::uint32_t BitsOfFloat(float value) {
  const std::uint32_t bits = AnyBitsOfFloat(value);
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  constexpr std::uint32_t kNan = 0x7FC00000u;
  return (bits & 0x7FFFFFFFu) > kInfinity ? kNan : bits;
}

/// The number that 16 bits stand for, exactly.
GPM_HD inline float FloatOfHalf(std::uint32_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1Fu;
  const std::uint32_t fraction = half & 0x3FFu;
  if (exponent == 0x1Fu) return FloatOfBits(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return FloatOfBits(sign | (exponent + 112) << 23 | fraction << 13);
  // Of 2^-24 each, which is exact.
  const float tiny = static_cast<float>(fraction) * 5.9604644775390625e-8f;
  return FloatOfBits(BitsOfFloat(tiny) | sign);
}
/// The nearest number of 16 bits, ties to even.
GPM_HD inline std::uint32_t HalfOfFloat(float value) {
  const std::uint32_t bits = BitsOfFloat(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7E00u;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // rounds to 2^16 or more: infinite
  if (magnitude < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    if (magnitude < 0x33000000u) return sign;           // below half of one
    const std::uint32_t shift = 126 - (magnitude >> 23);
    const std::uint32_t fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t whole = fraction >> shift;
    const std::uint32_t rest = fraction & ((1u << shift) - 1);
    const std::uint32_t tie = 1u << (shift - 1);
    return sign | (whole + (rest > tie || (rest == tie && (whole & 1u) != 0) ? 1 : 0));
  }
  const std::uint32_t rebased = magnitude - (112u << 23);
  return sign | (rebased + 0xFFFu + (rebased >> 13 & 1u)) >> 13;
}

GPM_HD inline float FloatOfBFloat(std::uint32_t bits) { return FloatOfBits(bits << 16); }
GPM_HD inline std::uint32_t BFloatOfFloat(float value) {
  const std::uint32_t bits = BitsOfFloat(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16;  // without a payload
  return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

/// Adds two pairs of elements of 16 bits, or two of 32. What is no number may come as any that is
/// none (OneNan).
template <Element kElement>
GPM_HD inline std::uint32_t Add4Bytes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  if constexpr (kElement == Element::kFloat32) {
    sum = AnyBitsOfFloat(FloatOfBits(a) + FloatOfBits(b));
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (kElement == Element::kFloat16) {
      asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    } else {  // a times one and b, rounded once
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3F803F80u), "r"(b));
    }
#else
    for (std::uint32_t shift = 0; shift < 32; shift += 16) {
      const std::uint32_t left = a >> shift & 0xFFFFu;
      const std::uint32_t right = b >> shift & 0xFFFFu;
      const std::uint32_t total = kElement == Element::kFloat16
                                      ? HalfOfFloat(FloatOfHalf(left) + FloatOfHalf(right))
                                      : BFloatOfFloat(FloatOfBFloat(left) + FloatOfBFloat(right));
      sum |= total << shift;
    }
#endif
  }
  return sum;
}
/// Adds the elements of two words, the same way.
template <Element kElement>
GPM_HD inline std::uint64_t AddWord(std::uint64_t a, std::uint64_t b) {
  if constexpr (kElement == Element::kUInt64) {
    return a + b;
  } else {
    const std::uint32_t low =
        Add4Bytes<kElement>(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b));
    const std::uint32_t high = Add4Bytes<kElement>(static_cast<std::uint32_t>(a >> 32),
                                                   static_cast<std::uint32_t>(b >> 32));
    return std::uint64_t{high} << 32 | low;
  }
}
/// The word, with the one representation of what is no number. (Once an element is none it stays
/// so, whatever is added: this is for the last sum.)
template <Element kElement>
GPM_HD inline std::uint64_t OneNan(std::uint64_t word) {
  constexpr std::uint32_t kBits = kElement == Element::kFloat32 ? 32 : 16;
  constexpr std::uint64_t kSign = std::uint64_t{1} << (kBits - 1);
  constexpr std::uint64_t kInfinity = kElement == Element::kFloat32   ? 0x7F800000u
                                      : kElement == Element::kFloat16 ? 0x7C00u
                                                                      : 0x7F80u;
  constexpr std::uint64_t kNan = kElement == Element::kFloat32   ? 0x7FC00000u
                                 : kElement == Element::kFloat16 ? 0x7E00u
                                                                 : 0x7FC0u;
  if constexpr (kElement != Element::kUInt64) {
    for (std::uint32_t shift = 0; shift < 64; shift += kBits) {
      const std::uint64_t magnitudes = (kSign - 1) << shift;
      if ((word & magnitudes) > kInfinity << shift) {
        word = (word & ~(magnitudes | kSign << shift)) | kNan << shift;
      }
    }
  }
  return word;
}

/// Up to 8 bytes of an array, at any alignment, as the low bytes of a word.
GPM_HD inline std::uint64_t LoadBytes(const std::byte* bytes, std::uint32_t count) {
  std::uint64_t word = 0;
#ifdef __CUDA_ARCH__
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(bytes) % 8 == 0) {
    return *reinterpret_cast<const std::uint64_t*>(bytes);
  }
  const std::uint32_t all = count < 8 ? count : 8;
#pragma unroll 1
  for (std::uint32_t i = 0; i < all; ++i) {
    word |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  }
#else
  std::memcpy(&word, bytes, count < 8 ? count : 8);
#endif
  return word;
}
/// Stores them.
GPM_HD inline void StoreBytes(std::byte* bytes, std::uint64_t word, std::uint32_t count) {
#ifdef __CUDA_ARCH__
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(bytes) % 8 == 0) {
    *reinterpret_cast<std::uint64_t*>(bytes) = word;
    return;
  }
  const std::uint32_t all = count < 8 ? count : 8;
#pragma unroll 1
  for (std::uint32_t i = 0; i < all; ++i) bytes[i] = static_cast<std::byte>(word >> (8 * i));
#else
  std::memcpy(bytes, &word, count < 8 ? count : 8);
#endif
}

/// What is added to a value, in this order: one row, or those of the operations of a key run.
struct Addends {
  Element element = Element::kNone;
  std::byte* sum = nullptr;              ///< value_size bytes of the executor's memory, for the sum
  const std::byte* rows = nullptr;       ///< the only one, if there is neither `order` nor `of_key`
  const std::uint32_t* order = nullptr;  ///< numbers of rows, `count` of them
  std::uint32_t count = 0;
  RowsOfKey of_key{};  ///< numbers of rows, if it has owners
  /// If not null: `sum` is made already, if the rows are added to the value of this reference.
  const std::uint64_t* made_of = nullptr;

  /// Calls visit(row) for each.
  template <class Visit>
  GPM_HD void ForEachRow(std::uint32_t value_size, const Visit& visit) const {
    if (order != nullptr) {
      for (std::uint32_t k = 0; k < count; ++k) {
        visit(rows + std::uint64_t{order[k]} * value_size);
      }
    } else if (of_key.owners != nullptr) {
      for (std::uint32_t k = 0; k < of_key.words; ++k) {
        for (std::uint32_t rest = of_key.Word(k); rest != 0; rest &= rest - 1) {
          visit(rows + std::uint64_t{32 * k + LowestBit(rest)} * value_size);
        }
      }
    } else {
      visit(rows);
    }
  }
};

/// A kind of elements, as a type.
template <Element kElement>
struct OfElement {
  static constexpr Element kOf = kElement;
};
/// @return what visit(OfElement<element>{}) returns
template <class Visit>
GPM_HD inline auto WithElement(Element element, const Visit& visit) {
  switch (element) {
    case Element::kFloat32:
      return visit(OfElement<Element::kFloat32>{});
    case Element::kFloat16:
      return visit(OfElement<Element::kFloat16>{});
    case Element::kBFloat16:
      return visit(OfElement<Element::kBFloat16>{});
    default:
      return visit(OfElement<Element::kUInt64>{});
  }
}

/// Adds rows to the value that is in Addends::sum. All threads of a group call it. (Few
/// instructions and registers: kernels have it beside much else. AddLongRuns adds many rows.)
template <class Group>
GPM_HD inline void AddRows(const Group& group, const Addends& addends, std::uint32_t value_size) {
  for (std::uint32_t i = 8 * group.Lane(); i < value_size; i += 8 * Group::kSize) {
    std::uint64_t sum = LoadBytes(addends.sum + i, value_size - i);
    addends.ForEachRow(value_size, [&](const std::byte* row) {
      const std::uint64_t word = LoadBytes(row + i, value_size - i);
      sum = WithElement(addends.element,
                        [&](auto of) { return AddWord<decltype(of)::kOf>(sum, word); });
    });
    sum = WithElement(addends.element, [&](auto of) { return OneNan<decltype(of)::kOf>(sum); });
    StoreBytes(addends.sum + i, sum, value_size - i);
  }
}

}  // namespace gpm

#endif  // GPM_TABLE_ELEMENTS_H_
