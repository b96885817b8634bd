#ifndef GPM_TABLE_ELEMENTS_H_
#define GPM_TABLE_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/volatile_ops.h"

namespace gpm {

/// Arithmetic on the elements of values, the same bits on both executors. A sum of two numbers of
/// 16 bits is made in 24, which is enough for it to be rounded as if it were made exactly. What is
/// no number has one representation, since processors differ in which they make.

GPM_HD inline float FloatOfBits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}
GPM_HD inline std::uint32_t BitsOfFloat(float value) {
#ifdef __CUDA_ARCH__
  std::uint32_t bits = __float_as_uint(value);
#else
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
#endif
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

/// Adds the elements of two words.
GPM_HD inline std::uint64_t AddWord(Element element, std::uint64_t a, std::uint64_t b) {
  if (element == Element::kUInt64) return a + b;
  std::uint64_t sum = 0;
  if (element == Element::kFloat32) {
    for (std::uint32_t shift = 0; shift < 64; shift += 32) {
      const float total = FloatOfBits(static_cast<std::uint32_t>(a >> shift)) +
                          FloatOfBits(static_cast<std::uint32_t>(b >> shift));
      sum |= std::uint64_t{BitsOfFloat(total)} << shift;
    }
    return sum;
  }
  for (std::uint32_t shift = 0; shift < 64; shift += 16) {
    const auto left = static_cast<std::uint32_t>(a >> shift) & 0xFFFFu;
    const auto right = static_cast<std::uint32_t>(b >> shift) & 0xFFFFu;
    const std::uint32_t total = element == Element::kFloat16
                                    ? HalfOfFloat(FloatOfHalf(left) + FloatOfHalf(right))
                                    : BFloatOfFloat(FloatOfBFloat(left) + FloatOfBFloat(right));
    sum |= std::uint64_t{total} << shift;
  }
  return sum;
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
  const std::byte* rows = nullptr;       ///< the only one, if neither of the next two is there
  const std::uint32_t* order = nullptr;  ///< numbers of rows, `count` of them
  const std::uint32_t* bits = nullptr;   ///< a bit for each row that is one, in `count` words
  std::uint32_t count = 0;
};

/// Goes through the rows of addends, a few at a time, so that loads of many are in flight.
template <class Group>
class AddendRows {
 public:
  GPM_HD AddendRows(const Group& group, const Addends& addends)
      : group_(group), addends_(addends) {}

  /// The numbers of the next kMost rows, or of those that are left. By the whole group.
  /// @return how many
  template <std::uint32_t kMost>
  GPM_HD std::uint32_t Next(std::uint32_t (&rows)[kMost]) {
    std::uint32_t taken = 0;
    if (addends_.order != nullptr) {
      const std::uint32_t left = addends_.count - next_;
      taken = left < kMost ? left : kMost;
      for (std::uint32_t r = 0; r < kMost; ++r) {
        if (r < taken) rows[r] = addends_.order[next_ + r];
      }
      next_ += taken;
    } else if (addends_.bits != nullptr) {
      for (std::uint32_t r = 0; r < kMost; ++r) {
        if (taken != r || !FindBit()) continue;
        rows[r] = 32 * word_ + LowestBit(rest_);
        rest_ &= rest_ - 1;
        ++taken;
      }
    } else if (next_ == 0) {
      rows[0] = 0;
      taken = next_ = 1;
    }
    return taken;
  }

 private:
  /// Goes on to the next word of bits that has any. @return false: there is none
  GPM_HD bool FindBit() {
    while (rest_ == 0) {
      while (words_ == 0) {  // the group's threads look at a word each
        if (next_ >= addends_.count) return false;
        const std::uint32_t own = next_ + group_.Lane();
        words_ = group_.Ballot(own < addends_.count && addends_.bits[own] != 0);
        first_ = next_;
        next_ += Group::kSize;
      }
      word_ = first_ + LowestBit(words_);
      words_ &= words_ - 1;
      rest_ = addends_.bits[word_];
    }
    return true;
  }

  const Group& group_;
  const Addends& addends_;
  std::uint32_t next_ = 0;   ///< of `order`, or words of `bits`
  std::uint32_t first_ = 0;  ///< of the words that `words_` tells of
  std::uint32_t words_ = 0;  ///< a bit for each of them that has bits
  std::uint32_t word_ = 0;
  std::uint32_t rest_ = 0;  ///< its bits
};

/// LoadBytes and StoreBytes of what is aligned to kAlignment bytes, and as many of these.
template <std::uint32_t kAlignment>
GPM_HD inline std::uint64_t LoadAligned(const std::byte* bytes, std::uint32_t count) {
  if constexpr (kAlignment == 8) {
    return *reinterpret_cast<const std::uint64_t*>(bytes);
  } else if constexpr (kAlignment == 4) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(bytes);
    return words[0] | (count > 4 ? std::uint64_t{words[1]} << 32 : 0);
  } else {
    return LoadBytes(bytes, count);
  }
}
template <std::uint32_t kAlignment>
GPM_HD inline void StoreAligned(std::byte* bytes, std::uint64_t word, std::uint32_t count) {
  if constexpr (kAlignment == 8) {
    *reinterpret_cast<std::uint64_t*>(bytes) = word;
  } else if constexpr (kAlignment == 4) {
    auto* const words = reinterpret_cast<std::uint32_t*>(bytes);
    words[0] = static_cast<std::uint32_t>(word);
    if (count > 4) words[1] = static_cast<std::uint32_t>(word >> 32);
  } else {
    StoreBytes(bytes, word, count);
  }
}

/// Adds rows to the words of a value from `begin` on: kWords for each thread of the group, of kRows
/// rows at a time. A word's sum is made in the order of the rows.
template <std::uint32_t kAlignment, std::uint32_t kWords, std::uint32_t kRows, class Group>
GPM_HD inline void AddRowsTo(const Group& group, const Addends& addends, std::uint32_t value_size,
                             std::uint32_t begin) {
  const auto for_words = [&](const auto& visit) {
    for (std::uint32_t w = 0; w < kWords; ++w) {
      const std::uint32_t at = begin + 8 * (w * Group::kSize + group.Lane());
      if (at < value_size) visit(w, at);
    }
  };
  std::uint64_t sum[kWords] = {};
  for_words([&](std::uint32_t w, std::uint32_t at) {
    sum[w] = LoadAligned<kAlignment>(addends.sum + at, value_size - at);
  });
  AddendRows<Group> rows(group, addends);
  std::uint32_t row[kRows] = {};
  for (std::uint32_t count = rows.Next(row); count != 0; count = rows.Next(row)) {
    std::uint64_t words[kRows][kWords] = {};
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (r >= count) continue;
      const std::byte* const from = addends.rows + std::uint64_t{row[r]} * value_size;
      for_words([&](std::uint32_t w, std::uint32_t at) {
        words[r][w] = LoadAligned<kAlignment>(from + at, value_size - at);
      });
    }
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (r >= count) continue;
      for_words([&](std::uint32_t w, std::uint32_t) {
        sum[w] = AddWord(addends.element, sum[w], words[r][w]);
      });
    }
  }
  for_words([&](std::uint32_t w, std::uint32_t at) {
    StoreAligned<kAlignment>(addends.sum + at, sum[w], value_size - at);
  });
}
template <std::uint32_t kAlignment, class Group>
GPM_HD inline void AddAlignedRows(const Group& group, const Addends& addends,
                                  std::uint32_t value_size) {
  constexpr std::uint32_t kWords = 4;
  if (value_size <= 8 * Group::kSize) {
    AddRowsTo<kAlignment, 1, 8>(group, addends, value_size, 0);
    return;
  }
  for (std::uint32_t begin = 0; begin < value_size; begin += 8 * Group::kSize * kWords) {
    AddRowsTo<kAlignment, kWords, 2>(group, addends, value_size, begin);
  }
}

/// Adds rows to the value that is in Addends::sum. All threads of a group call it.
template <class Group>
GPM_HD inline void AddRows(const Group& group, const Addends& addends, std::uint32_t value_size) {
#ifdef __CUDA_ARCH__
  const std::uintptr_t aligned = reinterpret_cast<std::uintptr_t>(addends.sum) |
                                 reinterpret_cast<std::uintptr_t>(addends.rows) | value_size;
  if (aligned % 8 == 0) return AddAlignedRows<8>(group, addends, value_size);
  if (aligned % 4 == 0) return AddAlignedRows<4>(group, addends, value_size);
#endif
  for (std::uint32_t begin = 0; begin < value_size; begin += 8 * Group::kSize) {
    AddRowsTo<1, 1, 1>(group, addends, value_size, begin);
  }
}

}  // namespace gpm

#endif  // GPM_TABLE_ELEMENTS_H_
