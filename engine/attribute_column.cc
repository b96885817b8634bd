#include "engine/attribute_column.h"

#include <functional>
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

void AttributeColumn::SetPartner(const AttributeColumn* partner, ThreadPool* threads) {
  std::vector<Rank> ranks;
  std::uint64_t count = 0;
  for (const Block& block : blocks_) count += block.count;
  ranks.reserve(count);
  for (const Block& block : blocks_) {
    for (std::uint32_t i = 0; i < block.count; ++i) {
      const std::uint32_t row = block.rows[i];
      ranks.push_back({NumberOf(row), partner == nullptr ? 0 : partner->NumberOf(row), row});
    }
  }
  SortInParallel(ranks.begin(), ranks.end(), std::less<>(), threads);
  partner_ = partner;
  auto rank = ranks.begin();
  for (std::uint64_t b = 0; b < blocks_.size(); ++b) {
    SetFirst(b, *rank);
    for (std::uint32_t i = 0; i < blocks_[b].count; ++i) blocks_[b].rows[i] = (rank++)->row;
  }
}

void AttributeColumn::SetFirst(std::uint64_t block, const Rank& rank) {
  firsts_[block] = rank.number;
  blocks_[block].first_partner = rank.partner;
  blocks_[block].first_row = rank.row;
}

std::uint64_t AttributeColumn::BlockOf(const Rank& rank) const {
  // Blocks [low, high) begin with that number.
  const auto [low, high] = std::equal_range(firsts_.begin(), firsts_.end(), rank.number);
  const auto first = blocks_.begin() + (low - firsts_.begin());
  const auto last = blocks_.begin() + (high - firsts_.begin());
  const auto behind = std::upper_bound(first, last, rank, [](const Rank& it, const Block& block) {
    return it.partner != block.first_partner ? it.partner < block.first_partner
                                             : it.row < block.first_row;
  });
  const auto block = static_cast<std::uint64_t>(behind - blocks_.begin());
  return block == 0 ? 0 : block - 1;
}

std::uint32_t AttributeColumn::PlaceIn(const Block& block, const Rank& rank) const {
  const std::uint32_t* const rows = block.rows.get();
  const auto place =
      std::lower_bound(rows, rows + block.count, rank,
                       [&](std::uint32_t its, const Rank& than) { return IsBefore(its, than); });
  return static_cast<std::uint32_t>(place - rows);
}

AttributeColumn::Place AttributeColumn::Find(const Rank& rank) const {
  if (blocks_.empty()) return {};
  const std::uint64_t block = BlockOf(rank);
  const std::uint32_t at = PlaceIn(blocks_[block], rank);
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
  std::move_backward(firsts_.begin() + static_cast<std::ptrdiff_t>(at), firsts_.end() - 1,
                     firsts_.end());
  const Rank first = RankOf(block.first_row);
  blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(at), std::move(block));
  SetFirst(at, first);
}

void AttributeColumn::RemoveBlock(std::uint64_t at) {
  firsts_.erase(firsts_.begin() + static_cast<std::ptrdiff_t>(at));
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at));
}

void AttributeColumn::Put(std::uint32_t row) {
  const Rank rank = RankOf(row);
  if (blocks_.empty()) {
    Block block;
    block.first_row = row;
    InsertBlock(0, std::move(block));
  }
  std::uint64_t b = BlockOf(rank);
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
    b = BlockOf(rank);
  }
  Block& block = blocks_[b];
  if (block.count == block.room) SetRoom(&block, block.count + 1u);
  std::uint32_t* const rows = block.rows.get();
  const std::uint32_t at = PlaceIn(block, rank);
  std::copy_backward(rows + at, rows + block.count, rows + block.count + 1);
  rows[at] = row;
  ++block.count;
  if (at == 0) SetFirst(b, rank);
}

void AttributeColumn::Take(std::uint32_t row) {
  const Rank rank = RankOf(row);
  const std::uint64_t b = BlockOf(rank);
  Block& block = blocks_[b];
  std::uint32_t* const rows = block.rows.get();
  const std::uint32_t at = PlaceIn(block, rank);
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
