#include "engine/attribute_column.h"

#include <numeric>

#include "engine/parallel_sort.h"

namespace gpm {

std::uint64_t AttributeColumn::BytesFor(std::uint64_t rows, std::uint32_t bytes) {
  const std::uint64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  const std::uint64_t room = (rows + kStep - 1) / kStep * kStep;
  return rows * bytes + room * sizeof(std::uint32_t) +
         blocks * (sizeof(std::uint64_t) + sizeof(Block));
}

std::uint64_t AttributeColumn::bytes() const {
  std::uint64_t room = 0;
  for (const Block& block : blocks_) room += block.room;
  return (wide_.capacity() + firsts_.capacity()) * sizeof(std::uint64_t) +
         (narrow_.capacity() + room) * sizeof(std::uint32_t) + blocks_.capacity() * sizeof(Block);
}

void AttributeColumn::SetRows(std::uint64_t rows) {
  if (is_wide_) {
    GrowTo<std::uint64_t>(&wide_, rows, 0);
  } else {
    GrowTo<std::uint32_t>(&narrow_, rows, 0);
  }
}

void AttributeColumn::PutAll(ThreadPool* threads) {
  struct Entry {
    std::uint64_t number;
    std::uint32_t row;
  };
  std::vector<Entry> entries(is_wide_ ? wide_.size() : narrow_.size());
  for (std::uint32_t row = 0; row < entries.size(); ++row) entries[row] = {NumberOf(row), row};
  SortInParallel(
      entries.begin(), entries.end(),
      [](const Entry& x, const Entry& y) {
        return x.number != y.number ? x.number < y.number : x.row < y.row;
      },
      threads);
  const std::uint64_t blocks = (entries.size() + kBlockRows - 1) / kBlockRows;
  firsts_.reserve(blocks);
  blocks_.reserve(blocks);
  for (std::uint64_t from = 0; from < entries.size(); from += kBlockRows) {
    const std::uint64_t count = std::min<std::uint64_t>(kBlockRows, entries.size() - from);
    Block block;
    SetRoom(&block, static_cast<std::uint32_t>(count));
    block.count = static_cast<std::uint16_t>(count);
    block.first_row = entries[from].row;
    for (std::uint64_t i = 0; i < count; ++i) block.rows[i] = entries[from + i].row;
    firsts_.push_back(entries[from].number);
    blocks_.push_back(std::move(block));
  }
}

std::uint64_t AttributeColumn::BlockOf(std::uint64_t number, std::uint32_t row) const {
  // Blocks [low, high) begin with that number.
  const auto [low, high] = std::equal_range(firsts_.begin(), firsts_.end(), number);
  const auto first = blocks_.begin() + (low - firsts_.begin());
  const auto last = blocks_.begin() + (high - firsts_.begin());
  const auto behind = std::upper_bound(
      first, last, row, [](std::uint32_t it, const Block& block) { return it < block.first_row; });
  const auto block = static_cast<std::uint64_t>(behind - blocks_.begin());
  return block == 0 ? 0 : block - 1;
}

std::uint32_t AttributeColumn::PlaceIn(const Block& block, std::uint64_t number,
                                       std::uint32_t row) const {
  const std::uint32_t* const rows = block.rows.get();
  const auto place = std::lower_bound(
      rows, rows + block.count, row,
      [&](std::uint32_t its, std::uint32_t) { return IsBefore(its, number, row); });
  return static_cast<std::uint32_t>(place - rows);
}

AttributeColumn::Place AttributeColumn::Find(std::uint64_t number, std::uint32_t row) const {
  if (blocks_.empty()) return {};
  const std::uint64_t block = BlockOf(number, row);
  const std::uint32_t at = PlaceIn(blocks_[block], number, row);
  if (at == blocks_[block].count) return {block + 1, 0};
  return {block, at};
}

std::uint64_t AttributeColumn::Between(Place first, Place last) const {
  if (first.block == last.block) return last.at - first.at;
  std::uint64_t rows = last.at;
  for (std::uint64_t b = first.block; b < last.block; ++b) rows += blocks_[b].count;
  return rows - first.at;
}

void AttributeColumn::SetRoom(Block* block, std::uint32_t rows) {
  const std::uint32_t room = (rows + kStep - 1) / kStep * kStep;
  std::unique_ptr<std::uint32_t[]> next(new std::uint32_t[room]);
  std::copy_n(block->rows.get(), block->count, next.get());
  block->rows = std::move(next);
  block->room = static_cast<std::uint16_t>(room);
}

void AttributeColumn::InsertBlock(std::uint64_t at, Block block) {
  GrowTo<std::uint64_t>(&firsts_, firsts_.size() + 1, 0);
  if (blocks_.size() == blocks_.capacity()) blocks_.reserve(firsts_.capacity());
  const std::uint64_t number = NumberOf(block.first_row);
  std::move_backward(firsts_.begin() + static_cast<std::ptrdiff_t>(at), firsts_.end() - 1,
                     firsts_.end());
  firsts_[at] = number;
  blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(at), std::move(block));
}

void AttributeColumn::RemoveBlock(std::uint64_t at) {
  firsts_.erase(firsts_.begin() + static_cast<std::ptrdiff_t>(at));
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at));
}

void AttributeColumn::Put(std::uint32_t row) {
  const std::uint64_t number = NumberOf(row);
  if (blocks_.empty()) {
    Block block;
    block.first_row = row;
    InsertBlock(0, std::move(block));
  }
  std::uint64_t b = BlockOf(number, row);
  if (blocks_[b].count == kBlockRows) {
    Block half;
    constexpr std::uint32_t kHalf = kBlockRows / 2;
    SetRoom(&half, kHalf);
    std::copy_n(blocks_[b].rows.get() + kHalf, kHalf, half.rows.get());
    half.count = kHalf;
    half.first_row = half.rows[0];
    blocks_[b].count = kHalf;
    SetRoom(&blocks_[b], kHalf);
    InsertBlock(b + 1, std::move(half));
    b = BlockOf(number, row);
  }
  Block& block = blocks_[b];
  if (block.count == block.room) SetRoom(&block, block.count + 1u);
  std::uint32_t* const rows = block.rows.get();
  const std::uint32_t at = PlaceIn(block, number, row);
  std::copy_backward(rows + at, rows + block.count, rows + block.count + 1);
  rows[at] = row;
  ++block.count;
  if (at > 0) return;
  firsts_[b] = number;
  block.first_row = row;
}

void AttributeColumn::Take(std::uint32_t row) {
  const std::uint64_t number = NumberOf(row);
  const std::uint64_t b = BlockOf(number, row);
  Block& block = blocks_[b];
  std::uint32_t* const rows = block.rows.get();
  const std::uint32_t at = PlaceIn(block, number, row);
  std::copy(rows + at + 1, rows + block.count, rows + at);
  --block.count;
  if (block.count == 0) {
    RemoveBlock(b);
    return;
  }
  if (block.count + 2u * kStep <= block.room) SetRoom(&block, block.count);
  if (b > 0) MergeWithPrevious(b);
}

void AttributeColumn::MergeWithPrevious(std::uint64_t at) {
  constexpr std::uint32_t kFew = kBlockRows / 8;
  Block& block = blocks_[at];
  Block& previous = blocks_[at - 1];
  const std::uint32_t both = std::uint32_t{previous.count} + block.count;
  if (block.count > kFew || both > kBlockRows / 2) return;
  if (both > previous.room) SetRoom(&previous, both);
  std::copy_n(block.rows.get(), block.count, previous.rows.get() + previous.count);
  previous.count = static_cast<std::uint16_t>(both);
  RemoveBlock(at);
}

}  // namespace gpm
