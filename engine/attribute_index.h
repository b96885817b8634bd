#ifndef GPM_ENGINE_ATTRIBUTE_INDEX_H_
#define GPM_ENGINE_ATTRIBUTE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/attribute_column.h"
#include "engine/held_items.h"
#include "engine/search_index.h"
#include "gpmstore/search.h"
#include "pm/format.h"
#include "pm/thread_pool.h"

namespace gpm {

/// A SearchIndex in host memory. It is made of all items, and follows at a cost that depends on the
/// changes alone.
///
/// An item is named by its *row*. An index is made with rows in the order of their keys, so that
/// those in ascending order are as a search gives them back. Items that come later have *late*
/// rows, in no order. A late row that falls vacant is taken again; the others stay vacant.
class AttributeIndex : public SearchIndex {
 public:
  /// Bytes of one of so many items.
  static std::uint64_t BytesFor(std::uint64_t items, std::uint32_t key_size,
                                std::span<const Attribute> attributes, Mask mask);
  /// Whether there can be one.
  static bool CanBe(std::uint64_t items) { return items < kVacant / 2; }
  /// @param items all that there are @param hash_seed the pool's, two words
  /// @param attributes outlive it
  /// REQUIRES: CanBe.
  AttributeIndex(const HeldItems& items, std::uint32_t key_size, const std::uint64_t* hash_seed,
                 std::span<const Attribute> attributes, Mask mask, ThreadPool* threads);

  std::uint64_t bytes() const override;
  /// Many rows are late, or vacant.
  bool IsWorn() const override {
    constexpr std::uint64_t kFew = 4096;
    return vacant_ + (next_.size() - made_rows_) > items_ / 4 + kFew;
  }

  std::unique_ptr<Changes> Read(HeldItems& items, ThreadPool* threads) override;
  void Follow(const Changes& changes, ThreadPool* threads) override;
  std::unique_ptr<MatchedRows> Ask(std::span<const Query> queries, bool rows, std::uint64_t limit,
                                   ThreadPool* threads) const override;

 private:
  friend class IndexedLists;
  struct ReadChanges : Changes {
    const HeldItems* items = nullptr;
    std::vector<std::uint64_t> numbers;  ///< of each item, its indexed attributes
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::uint32_t kVacant = kNone - 1;
  /// What becomes of a row.
  struct Step {
    std::uint32_t row;
    std::uint32_t item;  ///< of the changes, or kNone: it falls vacant
    bool is_new;
  };
  void DropOrder(std::uint32_t attribute) override { columns_[attribute].reset(); }
  void SortByPair(std::uint32_t attribute, std::uint32_t partner, ThreadPool* threads) override {
    columns_[attribute]->SetPartner(columns_[partner].get(), threads);
  }
  std::uint32_t LosePartner(std::uint32_t attribute, ThreadPool* threads) override {
    columns_[attribute]->SetPartner(nullptr, threads);
    return AttributePairs::kNone;
  }
  /// What becomes of each row, once. Those that come, and go, have done so but for the columns.
  std::vector<Step> StepsOf(const HeldItems& items);

  bool IsVacant(std::uint32_t row) const { return next_[row] == kVacant; }
  bool IsLate(std::uint32_t row) const { return row >= made_rows_; }
  const std::byte* KeyOf(std::uint32_t row) const {
    return keys_.data() + std::uint64_t{row} * key_size_;
  }
  /// @param words a key, all words of it
  std::uint32_t* HeadOf(const std::uint64_t* words);
  /// @return kNone: there is none
  std::uint32_t RowOf(const std::uint64_t* words);
  std::uint32_t AddRow(const std::uint64_t* words);
  void RemoveRow(std::uint32_t row);
  void SetHeads(std::uint64_t heads);
  void Link(std::uint32_t row, const std::uint64_t* words);
  std::vector<std::uint32_t> ColumnsOf() const;

  const std::uint32_t key_size_;
  const std::uint64_t hash_seed_[2];
  const std::span<const Attribute> attributes_;
  std::uint64_t items_ = 0;
  std::uint64_t made_rows_ = 0;  ///< those behind them are late
  std::uint64_t vacant_ = 0;     ///< of the rows that it was made with
  std::vector<std::byte> keys_;  ///< by row
  // A hash table of rows by key: lists, each from its head on.
  std::vector<std::uint32_t> heads_;                       ///< a power of two of them
  std::vector<std::uint32_t> next_;                        ///< by row; or kNone, or kVacant
  std::vector<std::uint32_t> free_rows_;                   ///< late ones, vacant
  std::vector<std::unique_ptr<AttributeColumn>> columns_;  ///< by attribute; null: not indexed
};

}  // namespace gpm

#endif  // GPM_ENGINE_ATTRIBUTE_INDEX_H_
