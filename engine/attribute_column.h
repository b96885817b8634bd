#ifndef GPM_ENGINE_ATTRIBUTE_COLUMN_H_
#define GPM_ENGINE_ATTRIBUTE_COLUMN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "pm/thread_pool.h"

namespace gpm {

/// Makes a vector so long: an empty one has no more room than that, and one that becomes longer a
/// sixteenth.
template <class T>
void GrowTo(std::vector<T>* vector, std::uint64_t count, const T& value) {
  if (count > vector->capacity()) {
    vector->reserve(vector->capacity() == 0 ? count : count + count / 16 + 64);
  }
  vector->resize(count, value);
}

/// The numbers that one attribute has in the rows of an index, and those rows in the order of their
/// numbers: in *blocks* of some hundred rows, so that a row comes and goes at the cost of a binary
/// search and of moving a block's rows. Takes the attribute's bytes and little more than 4 for each
/// row.
///
/// Invariants:
///  1. Rows are in order by (number, row), across all blocks; no block is empty.
///  2. What is in a block is not before its `first` entry, and before that of the next block. (Who
///     goes leaves `first` as it is.)
///  3. A row's number changes only while it is in no block.
///
/// Thread safety: several threads may read it; who changes it is alone.
class AttributeColumn {
 public:
  /// A place in the order: of a row, or behind the last one.
  struct Place {
    std::uint64_t block = 0;
    std::uint32_t at = 0;
  };

  /// @param bytes of the attribute, 4 or 8
  explicit AttributeColumn(std::uint32_t bytes) : is_wide_(bytes > sizeof(std::uint32_t)) {}
  /// Of a column of so many rows, each of which is in the order.
  static std::uint64_t BytesFor(std::uint64_t rows, std::uint32_t bytes);

  /// There are so many rows; new ones have the number 0, and are not in the order.
  void SetRows(std::uint64_t rows);
  /// REQUIRES: the row is not in the order; several threads may set different rows.
  void SetNumber(std::uint32_t row, std::uint64_t number) {
    if (is_wide_) {
      wide_[row] = number;
    } else {
      narrow_[row] = static_cast<std::uint32_t>(number);
    }
  }
  std::uint64_t NumberOf(std::uint32_t row) const { return is_wide_ ? wide_[row] : narrow_[row]; }

  /// Puts all rows in order. REQUIRES: none is.
  void PutAll(ThreadPool* threads);
  /// Puts a row there. REQUIRES: it is not.
  void Put(std::uint32_t row);
  /// Takes it out. REQUIRES: it is there.
  void Take(std::uint32_t row);

  /// The first row whose number is not less.
  Place First(std::uint64_t number) const { return Find(number, 0); }
  /// The first one whose number is more.
  Place Behind(std::uint64_t number) const {
    return number == ~std::uint64_t{0} ? Place{blocks_.size(), 0} : Find(number + 1, 0);
  }
  /// Rows from one place to another that is not before it.
  std::uint64_t Between(Place first, Place last) const;
  /// Calls visit(row) for each.
  template <class Visit>
  void ForEach(Place first, Place last, const Visit& visit) const {
    for (std::uint64_t b = first.block; b < blocks_.size() && b <= last.block; ++b) {
      const Block& block = blocks_[b];
      const std::uint32_t end = b == last.block ? last.at : block.count;
      for (std::uint32_t i = b == first.block ? first.at : 0; i < end; ++i) visit(block.rows[i]);
    }
  }

  /// Of memory.
  std::uint64_t bytes() const;

 private:
  static constexpr std::uint32_t kBlockRows = 512;
  static constexpr std::uint32_t kStep = 32;  ///< of a block's room

  struct Block {
    std::unique_ptr<std::uint32_t[]> rows;
    std::uint32_t first_row = 0;
    std::uint16_t count = 0;
    std::uint16_t room = 0;
  };

  bool IsBefore(std::uint32_t row, std::uint64_t number, std::uint32_t than) const {
    const std::uint64_t its = NumberOf(row);
    return its < number || (its == number && row < than);
  }
  /// The block where a row with this number belongs. REQUIRES: there are blocks.
  std::uint64_t BlockOf(std::uint64_t number, std::uint32_t row) const;
  /// How many of a block are before it.
  std::uint32_t PlaceIn(const Block& block, std::uint64_t number, std::uint32_t row) const;
  Place Find(std::uint64_t number, std::uint32_t row) const;
  static void SetRoom(Block* block, std::uint32_t rows);
  void InsertBlock(std::uint64_t at, Block block);
  void RemoveBlock(std::uint64_t at);
  /// Puts a block's rows behind those of the one before it, if they are few.
  void MergeWithPrevious(std::uint64_t at);

  const bool is_wide_;
  std::vector<std::uint64_t> wide_;    ///< numbers by row, of attributes of 8 bytes
  std::vector<std::uint32_t> narrow_;  ///< of those of 4
  std::vector<std::uint64_t> firsts_;  ///< number of each block's `first`
  std::vector<Block> blocks_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_ATTRIBUTE_COLUMN_H_
