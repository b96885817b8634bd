#ifndef GPM_TABLE_ROWS_OF_KEY_H_
#define GPM_TABLE_ROWS_OF_KEY_H_

#include <cstdint>

#include "pm/annotate.h"
#include "table/volatile_ops.h"

namespace gpm {

/// The rows of a batch that are on one key, of a few keys that have numbers. All these keys share
/// planes of bits, which have one for each row: plane b has bit b of the number of the row's key,
/// and the last plane says whether that key has a number.
struct RowsOfKey {
  const std::uint32_t* owners = nullptr;  ///< the planes, one behind the other; null: no rows
  std::uint32_t words = 0;                ///< of a plane
  std::uint32_t number_bits = 0;
  std::uint32_t number = 0;  ///< of the key

  /// Those of 32 rows that are the key's, a bit each.
  GPM_HD std::uint32_t Word(std::uint32_t word) const {
    std::uint32_t rows = owners[number_bits * words + word];
    for (std::uint32_t bit = 0; bit < number_bits; ++bit) {
      rows &= Same(owners[bit * words + word], bit);
    }
    return rows;
  }
  /// @param plane 32 bits of the plane `bit` @return those that are as in the key's number
  GPM_HD std::uint32_t Same(std::uint32_t plane, std::uint32_t bit) const {
    return plane ^ ((number >> bit & 1) - 1);
  }
  /// The first one of them behind a row; any number above `last`, if there is none up to that.
  GPM_HD std::uint32_t After(std::uint32_t row, std::uint32_t last) const {
    for (std::uint32_t from = row + 1; from <= last; from = (from / 32 + 1) * 32) {
      const std::uint32_t rest = Word(from / 32) >> from % 32;
      if (rest != 0) return from + LowestBit(rest);
    }
    return last + 1;
  }
};

}  // namespace gpm

#endif  // GPM_TABLE_ROWS_OF_KEY_H_
