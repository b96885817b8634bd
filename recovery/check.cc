#include "recovery/check.h"

#include <fmt/format.h>

#include <vector>

#include "engine/table/media_direct.h"
#include "engine/table/operations.h"

namespace gpm {
namespace {

constexpr std::size_t kMaxDefects = 16;
constexpr std::uint64_t kSlotsAtATime = 1 << 16;  ///< between calls of a SlotProgress

/// A pool as the protocols see it, for reading only.
class Reader {
 public:
  explicit Reader(const Pool& pool)
      : superblock_(pool.superblock()),
        table_(MakeTableView(pool.base(), superblock_)),
        media_(pool.mapping().persist()),
        operations_(table_, reclaim_, locks_, accelerators_, ThreadGroup{}, media_) {}

  const TableView& table() const { return table_; }
  const DirectMedia& media() const { return media_; }
  const Operations<ThreadGroup, DirectMedia>& operations() const { return operations_; }
  bool Addressable(std::uint32_t level) const { return level + table_.levels > table_.top; }
  std::uint64_t Word(Slot slot) const { return media_.Load(table_.State(slot)); }
  std::uint64_t Reference(Slot slot) const { return media_.Load(table_.Reference(slot)); }

  /// Whether `reference` names a whole value cell of some segment.
  bool NamesCell(std::uint64_t reference) const {
    if (reference % table_.cell_bytes != 0 || reference / table_.cell_bytes >= kMaxCellNumber) {
      return false;
    }
    for (std::uint32_t i = 0; i < superblock_.segment_count; ++i) {
      const SegmentEntry& segment = superblock_.segments[i];
      if (reference >= segment.offset && reference < segment.offset + segment.bytes &&
          segment.offset + segment.bytes - reference >= table_.cell_bytes) {
        return true;
      }
    }
    return false;
  }

  /// Slots of all physical levels.
  std::uint64_t Slots() const {
    std::uint64_t slots = 0;
    for (std::uint32_t level = table_.bottom; level <= table_.top; ++level) {
      slots += std::uint64_t{table_.slots} << level;
    }
    return slots;
  }

  /// Calls visit(slot, level, bucket) for every slot that is not empty; level is -1 in the reserved
  /// level.
  template <class Visit>
  void ForEachUsedSlot(const SlotProgress& progress, const Visit& visit) const {
    const std::uint64_t total = Slots();
    std::uint64_t done = 0;
    const auto visit_bucket = [&](std::byte* bucket, int level, std::uint64_t number) {
      for (std::uint32_t s = 0; s < table_.slots; ++s) {
        const Slot slot{bucket, s};
        if (Word(slot) != kEmptyState) visit(slot, level, number);
      }
      done += table_.slots;
      if (progress && done % kSlotsAtATime == 0) progress(done, total);
    };
    for (std::uint32_t b = 0; b < 2; ++b) visit_bucket(table_.ReservedBucket(b), -1, b);
    for (std::uint32_t level = table_.bottom; level <= table_.top; ++level) {
      for (std::uint64_t b = 0; b >> level == 0; ++b) {
        visit_bucket(table_.Bucket(level, b), static_cast<int>(level), b);
      }
    }
  }

 private:
  const Superblock& superblock_;
  const TableView table_;
  const Reclaim reclaim_{};
  const KeyLocks locks_{};
  const Accelerators accelerators_{};
  const DirectMedia media_;
  const Operations<ThreadGroup, DirectMedia> operations_;
};

/// Why a valid slot's word is wrong for its key or its place, or empty.
std::string WordDefect(const TableView& table, const KeyBuffer& key, std::uint64_t word, int level,
                       std::uint64_t bucket) {
  if (level < 0) {
    if (table.key_words > 1) return "item in the reserved level, which is for 8-byte keys only";
    return word == kReservedWord ? "" : "state word of a reserved key is not the reserved word";
  }
  const Candidates candidates = LocateKey(table, key.words);
  if (candidates.word != word) return "state word is not the fingerprint of the slot's key";
  for (std::uint32_t j = 0; j < table.locations; ++j) {
    if (BucketNumber(table, candidates.hash, static_cast<std::uint32_t>(level), j) == bucket)
      return "";
  }
  return "the slot's key does not hash to its bucket";
}

}  // namespace

CheckReport CheckPool(const std::string& path, const SlotProgress& progress) {
  const auto pool = Pool::Open(path, Pool::Options{.max_bytes = 0, .read_only = true});
  const Reader reader(*pool);
  const TableView& table = reader.table();
  const Superblock& superblock = pool->superblock();
  CheckReport report;
  report.clean = superblock.clean != 0;
  report.resizing = table.top - table.bottom + 1 > table.levels;
  const auto defect = [&](std::string text) {
    if (report.defects.size() < kMaxDefects) report.defects.push_back(std::move(text));
  };
  if (report.clean && report.resizing) defect("closed in order, but with an unfinished resize");

  report.slots = reader.Slots();
  std::uint64_t last_cell = 0;
  for (std::uint32_t i = 0; !table.inline_values() && i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    const std::uint64_t first = (segment.offset + table.cell_bytes - 1) / table.cell_bytes;
    const std::uint64_t last = (segment.offset + segment.bytes) / table.cell_bytes;
    report.value_cells += last - first;
    last_cell = std::max(last_cell, last);
  }
  std::vector<bool> used(last_cell);

  reader.ForEachUsedSlot(progress, [&](Slot slot, int level, std::uint64_t bucket) {
    const auto where = [&] {
      return level < 0 ? fmt::format("reserved level, bucket {}, slot {}", bucket, slot.index)
                       : fmt::format("level {}, bucket {}, slot {}", level, bucket, slot.index);
    };
    const std::uint64_t word = reader.Word(slot);
    if (word == kInsertState) {
      ++report.insert_slots;
      if (report.clean) defect(where() + ": half-inserted, in a pool that was closed in order");
      return;
    }
    KeyBuffer key;
    LoadSlotKey(table, reader.media(), slot, word, key.words);
    if (const std::string why = WordDefect(table, key, word, level, bucket); !why.empty()) {
      defect(where() + ": " + why);
      return;
    }
    const bool draining = level >= 0 && !reader.Addressable(static_cast<std::uint32_t>(level));
    if (reader.operations().IsDuplicate(slot, key.words)) {
      if (draining) return;  // already moved up; the cell is counted there
      ++report.duplicates;
      if (report.clean) {
        defect(where() + ": second copy of a key, in a pool that was closed in order");
      }
    } else if (draining && reader.operations().IsDrainedDuplicate(slot, key.words)) {
      ++report.duplicates;
      defect(where() + ": second copy of a key, in a level that is being drained");
    } else {
      ++report.items;
    }
    if (table.inline_values()) return;
    const std::uint64_t reference = reader.Reference(slot);
    if (!reader.NamesCell(reference)) {
      defect(fmt::format("{}: its value reference {:#x} names no value cell", where(), reference));
      return;
    }
    const std::uint64_t cell = reference / table.cell_bytes;
    if (used[cell]) {
      defect(fmt::format("{}: its value cell at {:#x} belongs to another item too", where(),
                         reference));
    } else {
      used[cell] = true;
      ++report.cells_in_use;
    }
  });
  return report;
}

void VisitPool(const Pool& pool,
               const std::function<void(std::span<const std::byte> key,
                                        std::span<const std::byte> value)>& visit,
               const SlotProgress& progress) {
  const Reader reader(pool);
  const TableView& table = reader.table();
  std::vector<std::byte> value(table.value_size);
  reader.ForEachUsedSlot(progress, [&](Slot slot, int, std::uint64_t) {
    const std::uint64_t word = reader.Word(slot);
    if (word == kInsertState) return;
    KeyBuffer key;
    LoadSlotKey(table, reader.media(), slot, word, key.words);
    if (reader.operations().IsDuplicate(slot, key.words)) return;
    const std::uint64_t reference = reader.Reference(slot);
    if (!table.inline_values() && !reader.NamesCell(reference)) return;
    reader.operations().ReadValue(reference, value.data());
    visit(std::as_bytes(std::span(key.words, table.key_words)), value);
  });
}

}  // namespace gpm
