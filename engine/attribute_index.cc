#include "engine/attribute_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/indexed_lists.h"
#include "engine/item_parts.h"
#include "engine/match_lists.h"
#include "engine/query_plan.h"
#include "table/hash.h"
#include "table/key_rows.h"

namespace gpm {
namespace {

constexpr std::uint64_t kRowsForHead = 4;  // at most
constexpr std::uint64_t kFewestHeads = 16;

std::uint64_t HeadsFor(std::uint64_t rows) {
  return std::bit_ceil(std::max(kFewestHeads, (rows + kRowsForHead - 1) / kRowsForHead));
}

}  // namespace

std::uint64_t AttributeIndex::BytesFor(std::uint64_t items, std::uint32_t key_size,
                                       std::span<const Attribute> attributes, Mask mask) {
  std::uint64_t bytes =
      items * (key_size + sizeof(std::uint32_t)) + HeadsFor(items) * sizeof(std::uint32_t);
  for (std::uint32_t a = 0; a < attributes.size(); ++a) {
    if ((mask >> a & 1) != 0) bytes += AttributeColumn::BytesFor(items, attributes[a].bytes);
  }
  return bytes;
}

std::uint64_t AttributeIndex::bytes() const {
  std::uint64_t bytes =
      keys_.capacity() +
      (heads_.capacity() + next_.capacity() + free_rows_.capacity()) * sizeof(std::uint32_t);
  for (const auto& column : columns_) bytes += column == nullptr ? 0 : column->bytes();
  return bytes;
}

std::vector<std::uint32_t> AttributeIndex::ColumnsOf() const {
  std::vector<std::uint32_t> columns;
  for (std::uint32_t a = 0; a < columns_.size(); ++a) {
    if (columns_[a] != nullptr) columns.push_back(a);
  }
  return columns;
}

AttributeIndex::AttributeIndex(const HeldItems& items, std::uint32_t key_size,
                               const std::uint64_t* hash_seed,
                               std::span<const Attribute> attributes, Mask mask,
                               ThreadPool* threads)
    : SearchIndex(items.version(), mask),
      key_size_(key_size),
      hash_seed_{hash_seed[0], hash_seed[1]},
      attributes_(attributes),
      items_(items.count()),
      made_rows_(items.count()),
      columns_(attributes.size()) {
  // All items, in the order of their keys.
  const Query all;
  const MatchLists lists(items, QueryPlan({&all, 1}, attributes),
                         {.queries = 1, .key_size = key_size, .limit = items_}, threads);
  keys_.resize(items_ * key_size);
  lists.CopyRows(items_, keys_.data(), nullptr, threads);
  next_.resize(items_);
  SetHeads(HeadsFor(items_));
  for (std::uint32_t a = 0; a < attributes.size(); ++a) {
    if ((mask >> a & 1) == 0) continue;
    columns_[a] = std::make_unique<AttributeColumn>(attributes[a].bytes);
    columns_[a]->SetRows(items_);
  }
  const std::vector<std::uint32_t> columns = ColumnsOf();
  threads->Run(PartsOf(items_, kItemsAtOnce), [&](std::size_t part) {
    const std::uint64_t end = std::min(items_, (part + 1) * kItemsAtOnce);
    for (std::uint64_t row = part * kItemsAtOnce; row < end; ++row) {
      for (const std::uint32_t a : columns) {
        const Attribute& attribute = attributes[a];
        if (row + kAhead < end) {
          __builtin_prefetch(items.ValueOf(lists.ItemOf(row + kAhead)) + attribute.offset);
        }
        std::uint64_t number = 0;
        std::memcpy(&number, items.ValueOf(lists.ItemOf(row)) + attribute.offset, attribute.bytes);
        columns_[a]->SetNumber(static_cast<std::uint32_t>(row), number);
      }
    }
  });
  for (const std::uint32_t a : columns) columns_[a]->PutAll(threads);
}

std::uint32_t* AttributeIndex::HeadOf(const std::uint64_t* words) {
  const KeyHash hash = HashKey(hash_seed_, words, KeyWords(key_size_));
  return &heads_[hash.h & (heads_.size() - 1)];
}

std::uint32_t AttributeIndex::RowOf(const std::uint64_t* words) {
  std::uint32_t row = *HeadOf(words);
  while (row != kNone && std::memcmp(KeyOf(row), words, key_size_) != 0) row = next_[row];
  return row;
}

void AttributeIndex::Link(std::uint32_t row, const std::uint64_t* words) {
  std::uint32_t* const head = HeadOf(words);
  next_[row] = *head;
  *head = row;
}

void AttributeIndex::SetHeads(std::uint64_t heads) {
  heads_.clear();
  heads_.shrink_to_fit();
  heads_.resize(heads, kNone);
  for (std::uint32_t row = 0; row < next_.size(); ++row) {
    if (IsVacant(row)) continue;
    KeyBuffer key;
    PadKey(KeyOf(row), key_size_, key.words);
    Link(row, key.words);
  }
}

std::uint32_t AttributeIndex::AddRow(const std::uint64_t* words) {
  std::uint32_t row = 0;
  if (!free_rows_.empty()) {
    row = free_rows_.back();
    free_rows_.pop_back();
  } else {
    row = static_cast<std::uint32_t>(next_.size());
    GrowTo(&keys_, (std::uint64_t{row} + 1) * key_size_, std::byte{});
    GrowTo(&next_, std::uint64_t{row} + 1, kVacant);
  }
  std::memcpy(keys_.data() + std::uint64_t{row} * key_size_, words, key_size_);
  Link(row, words);
  ++items_;
  if (HeadsFor(items_) > heads_.size()) SetHeads(HeadsFor(items_));
  return row;
}

void AttributeIndex::RemoveRow(std::uint32_t row) {
  KeyBuffer key;
  PadKey(KeyOf(row), key_size_, key.words);
  std::uint32_t* link = HeadOf(key.words);
  while (*link != row) link = &next_[*link];
  *link = next_[row];
  next_[row] = kVacant;
  --items_;
  if (IsLate(row)) {
    free_rows_.push_back(row);
  } else {
    ++vacant_;
  }
}

std::unique_ptr<SearchIndex::Changes> AttributeIndex::Read(HeldItems& items, ThreadPool* threads) {
  items.BringToHost();
  const std::vector<std::uint32_t> columns = ColumnsOf();
  auto changes = std::make_unique<ReadChanges>();
  changes->items = &items;
  changes->numbers.resize(items.count() * columns.size());
  threads->Run(PartsOf(items.count(), kItemsAtOnce), [&](std::size_t part) {
    const std::uint64_t end = std::min(items.count(), (part + 1) * kItemsAtOnce);
    std::uint64_t* number = changes->numbers.data() + part * kItemsAtOnce * columns.size();
    for (std::uint64_t i = part * kItemsAtOnce; i < end; ++i) {
      for (const std::uint32_t a : columns) {
        const Attribute& attribute = attributes_[a];
        if (i + kAhead < end) __builtin_prefetch(items.ValueOf(i + kAhead) + attribute.offset);
        std::memcpy(number++, items.ValueOf(i) + attribute.offset, attribute.bytes);
      }
    }
  });
  return changes;
}

std::vector<AttributeIndex::Step> AttributeIndex::StepsOf(const HeldItems& items) {
  std::vector<std::uint32_t> changed;  // rows that there were, of logged keys
  for (std::uint64_t i = 0; i < items.logged(); ++i) {
    const std::uint32_t row = RowOf(items.LoggedKey(i));
    if (row != kNone) changed.push_back(row);
  }
  std::vector<Step> steps;
  for (std::uint32_t i = 0; i < items.count(); ++i) {
    KeyBuffer key;
    std::memcpy(key.words, items.KeyOf(i), KeyWords(key_size_) * sizeof *key.words);
    const std::uint32_t row = RowOf(key.words);
    steps.push_back({row == kNone ? AddRow(key.words) : row, i, row == kNone});
  }
  // Of an item that is there twice, the first step says whether its row is new.
  const auto is_before = [](const Step& x, const Step& y) { return x.row < y.row; };
  std::stable_sort(steps.begin(), steps.end(), is_before);
  const auto is_same = [](const Step& x, const Step& y) { return x.row == y.row; };
  steps.erase(std::unique(steps.begin(), steps.end(), is_same), steps.end());
  const std::uint64_t kept = steps.size();
  for (const std::uint32_t row : changed) {
    const auto end = steps.begin() + static_cast<std::ptrdiff_t>(kept);
    if (IsVacant(row) || std::binary_search(steps.begin(), end, Step{row, 0, false}, is_before)) {
      continue;
    }
    RemoveRow(row);
    steps.push_back({row, kNone, false});
  }
  return steps;
}

void AttributeIndex::Follow(const Changes& read, ThreadPool* threads) {
  const auto& changes = static_cast<const ReadChanges&>(read);
  const HeldItems& items = *changes.items;
  const std::vector<std::uint32_t> columns = ColumnsOf();
  const std::vector<Step> steps = StepsOf(items);
  const auto number_of = [&](const Step& step, std::size_t c) {
    return changes.numbers[step.item * columns.size() + c];
  };
  const auto changes_number = [&](const Step& step, std::size_t c) {
    return columns_[columns[c]]->NumberOf(step.row) != number_of(step, c);
  };
  // A row leaves the order of an attribute before its number, or the partner's, changes.
  std::vector<std::vector<std::uint32_t>> moved(columns.size());
  threads->Run(columns.size(), [&](std::size_t c) {
    AttributeColumn& column = *columns_[columns[c]];
    const auto partner = static_cast<std::size_t>(
        std::find(columns.begin(), columns.end(), pairs().PartnerOf(columns[c])) - columns.begin());
    for (const Step& step : steps) {
      if (step.item != kNone) {
        const bool moves = step.is_new || changes_number(step, c) ||
                           (partner < columns.size() && changes_number(step, partner));
        if (!moves) continue;
        moved[c].push_back(step.row);
      }
      if (!step.is_new) column.Take(step.row);
    }
  });
  threads->Run(columns.size(), [&](std::size_t c) {
    AttributeColumn& column = *columns_[columns[c]];
    column.SetRows(next_.size());
    for (const Step& step : steps) {
      if (step.item != kNone) column.SetNumber(step.row, number_of(step, c));
    }
  });
  threads->Run(columns.size(), [&](std::size_t c) {
    for (const std::uint32_t row : moved[c]) columns_[columns[c]]->Put(row);
  });
  version_ = items.version();
}

std::unique_ptr<MatchedRows> AttributeIndex::Ask(std::span<const Query> queries, bool rows,
                                                 std::uint64_t limit, ThreadPool* threads) const {
  return std::make_unique<IndexedLists>(*this, queries, rows, limit, threads);
}

}  // namespace gpm
