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
/// It may have a *partner*, the column of another attribute, by whose numbers those rows are in
/// order that have one number here.
///
/// Invariants:
///  1. Rows are in order by (number, partner's number, row), across all blocks; no block is empty.
///  2. What is in a block is not before its `first` entry, and before that of the next block. (Who
///     goes leaves `first` as it is.)
///  3. A row's number, and its partner's, changes only while it is in no block.
///
/// Thread safety: several threads may read it; who changes it is alone, and nobody changes its
/// partner's numbers meanwhile.
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

  /// Puts all rows in order. REQUIRES: none is, and it has no partner.
  void PutAll(ThreadPool* threads);
  /// Sorts its rows anew. @param partner has numbers of all of them, and outlives this or is
  /// replaced; null: none @throws std::bad_alloc; then nothing has changed
  void SetPartner(const AttributeColumn* partner, ThreadPool* threads);
  const AttributeColumn* partner() const { return partner_; }
  /// Puts a row there. REQUIRES: it is not.
  void Put(std::uint32_t row);
  /// Takes it out. REQUIRES: it is there.
  void Take(std::uint32_t row);

  /// The first row whose number is not less.
  Place First(std::uint64_t number) const { return Find({number, 0, 0}); }
  /// The first one whose number is more.
  Place Behind(std::uint64_t number) const {
    return number == kMost ? Place{blocks_.size(), 0} : Find({number + 1, 0, 0});
  }
  /// The same among rows with this number, by their partner's. REQUIRES: it has one.
  Place FirstOfPair(std::uint64_t number, std::uint64_t least) const {
    return Find({number, least, 0});
  }
  Place BehindPair(std::uint64_t number, std::uint64_t most) const {
    return most == kMost ? Behind(number) : Find({number, most + 1, 0});
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
  static constexpr std::uint64_t kMost = ~std::uint64_t{0};

  /// What a row is in order by.
  struct Rank {
    std::uint64_t number;
    std::uint64_t partner;  ///< its number; 0: there is none
    std::uint32_t row;

    auto operator<=>(const Rank&) const = default;
  };
  struct Block {
    std::unique_ptr<std::uint32_t[]> rows;
    std::uint64_t first_partner = 0;
    std::uint32_t first_row = 0;
    std::uint16_t count = 0;
    std::uint16_t room = 0;
  };

  std::uint64_t PartnerOf(std::uint32_t row) const {
    return partner_ == nullptr ? 0 : partner_->NumberOf(row);
  }
  Rank RankOf(std::uint32_t row) const { return {NumberOf(row), PartnerOf(row), row}; }
  bool IsBefore(std::uint32_t row, const Rank& than) const {
    const std::uint64_t its = NumberOf(row);
    if (its != than.number) return its < than.number;
    const std::uint64_t partner = PartnerOf(row);
    return partner != than.partner ? partner < than.partner : row < than.row;
  }
  /// The block where a row of this rank belongs. REQUIRES: there are blocks.
  std::uint64_t BlockOf(const Rank& rank) const;
  /// How many of a block are before it.
  std::uint32_t PlaceIn(const Block& block, const Rank& rank) const;
  Place Find(const Rank& rank) const;
  void SetFirst(std::uint64_t block, const Rank& rank);
  static void SetRoom(Block* block, std::uint32_t rows);
  void InsertBlock(std::uint64_t at, Block block);
  void RemoveBlock(std::uint64_t at);
  /// Puts a block's rows behind those of the one before it, if they are few.
  void MergeWithPrevious(std::uint64_t at);

  const bool is_wide_;
  std::vector<std::uint64_t> wide_;    ///< numbers by row, of attributes of 8 bytes
  std::vector<std::uint32_t> narrow_;  ///< of those of 4
  const AttributeColumn* partner_ = nullptr;
  std::vector<std::uint64_t> firsts_;  ///< number of each block's `first`
  std::vector<Block> blocks_;
};

}  // namespace gpm

#endif  // GPM_ENGINE_ATTRIBUTE_COLUMN_H_
