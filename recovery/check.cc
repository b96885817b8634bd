#include "recovery/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "pm/thread_pool.h"
#include "table/key_rows.h"
#include "table/media/direct.h"
#include "table/protocol.h"

namespace gpm {
namespace {

constexpr std::size_t kMaxDefects = 16;
constexpr std::uint64_t kBucketsAtATime =
    1 << 13;  ///< by one thread; between calls of a SlotProgress
constexpr std::uint64_t kReservedBuckets = TableView::kReservedBuckets;
constexpr std::size_t kMaxCheckingThreads = 16;

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
  bool Addressable(std::uint32_t level) const { return level < table_.levels; }
  std::uint64_t Word(Slot slot) const { return media_.Load(table_.State(slot)); }
  std::uint64_t Reference(Slot slot) const { return media_.Load(table_.Reference(slot)); }

  /// @param level -1: the reserved one
  bool IsHalf(Slot slot, int level) const {
    return table_.IsHalf(Word(slot), Reference(slot),
                         level < 0 || Addressable(static_cast<std::uint32_t>(level)));
  }

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

  /// Buckets of the reserved level and, behind it, of all physical levels.
  std::uint64_t Buckets() const {
    std::uint64_t buckets = kReservedBuckets;
    for (std::uint32_t i = 0; i < table_.level_count; ++i) buckets += table_.Buckets(i);
    return buckets;
  }
  /// Slots of all physical levels.
  std::uint64_t Slots() const { return (Buckets() - kReservedBuckets) * table_.slots; }

  /// Calls visit(slot, level, bucket) for every slot of buckets [first, last) that is not empty;
  /// level is -1 in the reserved level.
  template <class Visit>
  void ForEachUsedSlot(std::uint64_t first, std::uint64_t last, const Visit& visit) const {
    const auto visit_bucket = [&](std::byte* bucket, int level, std::uint64_t number) {
      for (std::uint32_t s = 0; s < table_.slots; ++s) {
        const Slot slot{bucket, s};
        if (Word(slot) != kEmptyState || IsHalf(slot, level)) visit(slot, level, number);
      }
    };
    std::uint64_t begin = kReservedBuckets;  // of a level
    for (std::uint64_t b = first; b < std::min(begin, last); ++b) {
      visit_bucket(table_.ReservedBucket(static_cast<std::uint32_t>(b)), -1, b);
    }
    for (std::uint32_t level = 0; level < table_.level_count; ++level) {
      const std::uint64_t end = begin + table_.Buckets(level);
      for (std::uint64_t b = std::max(first, begin); b < std::min(end, last); ++b) {
        visit_bucket(table_.Bucket(level, b - begin), static_cast<int>(level), b - begin);
      }
      begin = end;
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
  if (!IsPadded(key.words, table.key_size)) return "not all bytes behind the key's own are zeros";
  if (level < 0) {
    if (table.key_words > 1)
      return "item in the reserved level, which is for keys of up to 8 bytes";
    return word == kReservedWord ? "" : "state word of a reserved key is not the reserved word";
  }
  const Candidates candidates = LocateKey(table, key.words);
  if (candidates.word != word) return "state word is not the fingerprint of the slot's key";
  const std::uint32_t part_buckets = table.level_views[level].part_buckets;
  for (std::uint32_t j = 0; j < table.locations; ++j) {
    if (BucketNumber(candidates.hash, j, part_buckets) == bucket) return "";
  }
  return "the slot's key does not hash to its bucket";
}

/// Checks buckets of a pool; several may do so side by side.
class Checker {
 public:
  explicit Checker(const Reader& reader, const Superblock& superblock)
      : reader_(reader), table_(reader.table()), clean_(superblock.clean != 0) {
    std::uint64_t last_cell = 0;
    for (std::uint32_t i = 0; !table_.inline_values() && i < superblock.segment_count; ++i) {
      const SegmentEntry& segment = superblock.segments[i];
      value_cells_ += CellsIn({segment.offset, segment.bytes}, table_.cell_bytes);
      last_cell = std::max(last_cell, (segment.offset + segment.bytes) / table_.cell_bytes);
    }
    used_ = std::vector<std::atomic<std::uint64_t>>(last_cell / 64 + 1);
  }

  std::uint64_t value_cells() const { return value_cells_; }

  /// @return counts and defects of these buckets alone
  CheckReport Check(std::uint64_t first, std::uint64_t last) {
    CheckReport report;
    report.level_items.resize(table_.level_count);
    reader_.ForEachUsedSlot(first, last, [&](Slot slot, int level, std::uint64_t bucket) {
      CheckSlot(slot, level, bucket, &report);
    });
    return report;
  }

 private:
  void CheckSlot(Slot slot, int level, std::uint64_t bucket, CheckReport* report) {
    const auto defect = [&](const std::string& what) {
      if (report->defects.size() == kMaxDefects) return;
      report->defects.push_back(
          level < 0
              ? fmt::format("reserved level, bucket {}, slot {}: {}", bucket, slot.index, what)
              : fmt::format("level {}, bucket {}, slot {}: {}", level, bucket, slot.index, what));
    };
    const std::uint64_t word = reader_.Word(slot);
    if (reader_.IsHalf(slot, level)) {
      ++report->insert_slots;
      if (clean_) {
        defect(fmt::format(
            "half-inserted or half-emptied, in a pool that was closed in order (state {:#x}, "
            "reference {:#x})",
            word, reader_.Reference(slot)));
      }
      return;
    }
    KeyBuffer key;
    LoadSlotKey(table_, reader_.media(), slot, word, key.words);
    if (const std::string why = WordDefect(table_, key, word, level, bucket); !why.empty()) {
      defect(why);
      return;
    }
    const bool draining = level >= 0 && !reader_.Addressable(static_cast<std::uint32_t>(level));
    const bool copy = reader_.operations().IsDuplicate(slot, key.words);
    if (copy) {
      if (draining) return;  // already moved up; the cell is counted there
      ++report->duplicates;
      if (clean_) defect("second copy of a key, in a pool that was closed in order");
    } else if (draining && reader_.operations().IsDrainedDuplicate(slot, key.words)) {
      ++report->duplicates;
      defect("second copy of a key, in a level that is being drained");
    } else {
      ++report->items;
      if (level >= 0) ++report->level_items[static_cast<std::uint32_t>(level)];
    }
    if (table_.inline_values()) return;
    const std::uint64_t reference = reader_.Reference(slot);
    if (!reader_.NamesCell(reference)) {
      defect(fmt::format("its value reference {:#x} names no value cell", reference));
      return;
    }
    if (copy) return;  // recovery removes it; an item that was being moved aside has the same cell
    const std::uint64_t cell = reference / table_.cell_bytes;
    const std::uint64_t bit = std::uint64_t{1} << cell % 64;
    if ((used_[cell / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0) {
      defect(fmt::format("its value cell at {:#x} belongs to another item too", reference));
    } else {
      ++report->cells_in_use;
    }
  }

  const Reader& reader_;
  const TableView& table_;
  const bool clean_;
  std::uint64_t value_cells_ = 0;
  std::vector<std::atomic<std::uint64_t>> used_;  ///< a bit for each cell
};

}  // namespace

CheckReport CheckPool(const std::string& path, const SlotProgress& progress) {
  return CheckPool(
      *Pool::Open(path, Pool::Options{.max_bytes = 0, .read_only = true, .tracer = nullptr}),
      progress);
}

CheckReport CheckPool(const Pool& pool, const SlotProgress& progress) {
  const Reader reader(pool);
  Checker checker(reader, pool.superblock());
  CheckReport report;
  report.slots = reader.Slots();
  report.level_items.resize(reader.table().level_count);
  report.value_cells = checker.value_cells();
  report.clean = pool.superblock().clean != 0;
  report.resizing = reader.table().level_count > reader.table().levels;
  if (report.clean && report.resizing) {
    report.defects.emplace_back("closed in order, but with an unfinished resize");
  }

  const std::uint64_t buckets = reader.Buckets();
  std::vector<CheckReport> parts((buckets + kBucketsAtATime - 1) / kBucketsAtATime);
  std::mutex mutex;  // guards what follows
  std::uint64_t done = 0;
  const auto check = [&](std::size_t k) {
    const std::uint64_t first = k * kBucketsAtATime;
    const std::uint64_t last = std::min(buckets, first + kBucketsAtATime);
    parts[k] = checker.Check(first, last);
    const std::lock_guard lock(mutex);
    done += (last - first) * reader.table().slots;
    if (progress) progress(std::min(done, report.slots), report.slots);
  };
  ThreadPool(
      static_cast<unsigned>(std::min<std::size_t>(
          {parts.size(), kMaxCheckingThreads, std::max(1u, std::thread::hardware_concurrency())})))
      .Run(parts.size(), check);
  for (CheckReport& part : parts) {
    report.items += part.items;
    for (std::size_t i = 0; i < part.level_items.size(); ++i) {
      report.level_items[i] += part.level_items[i];
    }
    report.insert_slots += part.insert_slots;
    report.duplicates += part.duplicates;
    report.cells_in_use += part.cells_in_use;
    for (std::string& defect : part.defects) {
      if (report.defects.size() < kMaxDefects) report.defects.push_back(std::move(defect));
    }
  }
  return report;
}

bool FindInPool(const Pool& pool, std::span<const std::byte> key, std::span<std::byte> value) {
  const Reader reader(pool);
  const TableView& table = reader.table();
  KeyBuffer wanted;
  PadKey(key.data(), table.key_size, wanted.words);
  const Candidates candidates = LocateKey(table, wanted.words);
  const auto read = [&](std::uint64_t reference) {
    if (!table.inline_values() && !reader.NamesCell(reference)) return false;
    reader.operations().ReadValue(reference, value.data());
    return true;
  };
  const Slot found = reader.operations().FindWhole(candidates, wanted.words);
  if (found.bucket != nullptr) return read(reader.Reference(found));
  if (candidates.reserved >= 0) return false;
  // Levels that a resize was about to drain: the newest copy counts there too.
  for (std::uint32_t level = table.levels; level < table.level_count; ++level) {
    for (std::uint32_t j = 0; j < table.locations; ++j) {
      std::byte* const bucket = table.Bucket(
          level, BucketNumber(candidates.hash, j, table.level_views[level].part_buckets));
      for (std::uint32_t s = 0; s < table.slots; ++s) {
        const Slot slot{bucket, s};
        if (reader.Word(slot) != candidates.word) continue;
        KeyBuffer there;
        LoadSlotKey(table, reader.media(), slot, candidates.word, there.words);
        if (std::equal(there.words, there.words + table.key_words, wanted.words)) {
          return read(reader.Reference(slot));
        }
      }
    }
  }
  return false;
}

bool VisitPoolUntil(const Pool& pool,
                    const std::function<bool(std::span<const std::byte> key,
                                             std::span<const std::byte> value)>& visit,
                    const SlotProgress& progress) {
  const Reader reader(pool);
  const TableView& table = reader.table();
  std::vector<std::byte> value(table.value_size);
  bool go_on = true;
  const auto visit_slot = [&](Slot slot, int level, std::uint64_t) {
    const std::uint64_t word = reader.Word(slot);
    if (reader.IsHalf(slot, level) || !go_on) return;
    KeyBuffer key;
    LoadSlotKey(table, reader.media(), slot, word, key.words);
    if (reader.operations().IsDuplicate(slot, key.words)) return;
    const std::uint64_t reference = reader.Reference(slot);
    if (!table.inline_values() && !reader.NamesCell(reference)) return;
    reader.operations().ReadValue(reference, value.data());
    go_on = visit(std::as_bytes(std::span(key.words)).first(table.key_size), value);
  };
  const std::uint64_t buckets = reader.Buckets();
  for (std::uint64_t first = 0; first < buckets && go_on; first += kBucketsAtATime) {
    const std::uint64_t last = std::min(buckets, first + kBucketsAtATime);
    reader.ForEachUsedSlot(first, last, visit_slot);
    if (progress) progress(std::min(last * table.slots, reader.Slots()), reader.Slots());
  }
  return go_on;
}

void VisitPool(const Pool& pool,
               const std::function<void(std::span<const std::byte> key,
                                        std::span<const std::byte> value)>& visit,
               const SlotProgress& progress) {
  VisitPoolUntil(
      pool,
      [&](std::span<const std::byte> key, std::span<const std::byte> value) {
        visit(key, value);
        return true;
      },
      progress);
}

}  // namespace gpm
