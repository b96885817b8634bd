#ifndef GPM_ENGINE_CPU_MAINTENANCE_H_
#define GPM_ENGINE_CPU_MAINTENANCE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "engine/cpu/executor.h"
#include "engine/cpu/prefetch_window.h"
#include "recovery/slot_scan.h"
#include "table/composing.h"
#include "table/draining.h"

/// The passes of the cpu executor: recovery, copies of the items, and what growing and shrinking
/// move.
namespace gpm {

template <class Setup>
ScanCounters CpuExecutor<Setup>::ScanSlots(ScanMode mode, const std::vector<CellRange>& ranges) {
  std::uint64_t cells = 0;
  for (const CellRange& range : ranges) cells = std::max(cells, range.last);
  if (mode != ScanMode::kRepair) used_.assign((cells + 31) / 32, 0);
  ScanCounters total;
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForEachScanned(table_, accelerators_.directory, [&](const ScannedBuckets& buckets) {
    ForRanges(buckets.count, Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
      ScanCounters counters;
      const SlotScan pass{mode, &counters, used_.data(), ranges.data(),
                          static_cast<std::uint32_t>(ranges.size())};
      for (std::uint64_t b = first; b < last; ++b) {
        for (std::uint32_t s = 0; s < table_.slots; ++s) ScanSlot(operations, pass, buckets, b, s);
      }
      FenceBeforeAck(TeamOfOne(ThreadGroup{}), media_, Step::kRepairFence,
                     mode == ScanMode::kRepair);
      if (mode == ScanMode::kInspect) {
        // What is taken for the state of things may be what a process stored and did not live to
        // flush. Cells are durable before anything names them. (The reserved level comes first and
        // is one part, which the caller runs: its fence is also that of Pool::Open's flush.)
        media_.Flush(Step::kInspectFlush, buckets.first + first * table_.bucket_bytes,
                     (last - first) * table_.bucket_bytes);
        FenceBeforeAck(TeamOfOne(ThreadGroup{}), media_, Step::kInspectFence);
      }
      AtomicAdd(&total.items, counters.items);
      AtomicAdd(&total.insert_slots, counters.insert_slots);
      AtomicAdd(&total.duplicates, counters.duplicates);
      AtomicAdd(&total.bad_references, counters.bad_references);
      AtomicAdd(&total.shared_cells, counters.shared_cells);
      AtomicAdd(&total.bad_keys, counters.bad_keys);
    });
  });
  return total;
}

template <class Setup>
std::uint64_t CpuExecutor<Setup>::CountMisplacedCells(const std::vector<CellRange>& ranges,
                                                      std::uint64_t head) {
  const ScanCounters found = ScanSlots(ScanMode::kTrust, ranges);
  std::uint64_t misplaced = found.bad_references + found.shared_cells;
  const Reclaim reclaim = queues_.View();
  for (std::uint64_t i = head; i < Positions().cells_tail; ++i) {
    const std::uint32_t cell = reclaim.cell_ring[i & reclaim.cell_mask];
    const std::uint32_t bit = 1u << (cell % 32);
    misplaced += (used_[cell / 32] & bit) != 0 ? 1 : 0;  // an item's, or queued twice
    used_[cell / 32] |= bit;
  }
  for (const CellRange& range : ranges) {
    for (std::uint64_t cell = range.first; cell < range.last; ++cell) {
      misplaced += (used_[cell / 32] >> (cell % 32) & 1) == 0 ? 1 : 0;  // leaked
    }
  }
  return misplaced;
}

template <class Setup>
bool CpuExecutor<Setup>::TakeCopy(TableCopy* copy) {
  auto* const taken = static_cast<CpuTableCopy*>(copy);
  taken->total = taken->items = 0;
  taken->log_whole = LogIsWhole();
  taken->of_logged = taken->shape.logged_only && taken->log_whole;
  if (taken->of_logged) {
    CopyLogged(taken);
  } else {
    CopyItems(taken);
  }
  if (taken->items > taken->shape.room) return false;
  if (taken->shape.log_room > 0) {
    std::swap(log_, taken->log);
    table_.log = &log_->view();
    if (taken->log_whole) {
      taken->logged = taken->log->view().count();
      taken->logged_keys = taken->log->view().keys;
    }
  }
  if (taken->shape.range_bits == 0) return true;
  std::swap(marks_, taken->next_marks);
  taken->range_bits = taken->next_marks.range_bits;
  table_.changes = marks_.View();
  return true;
}

template <class Setup>
void CpuExecutor<Setup>::CopyItems(CpuTableCopy* taken) {
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  const ChangeMap changes = marks_.View();
  const bool all = !taken->shape.changes_only;
  ForEachScanned(table_, accelerators_.directory, [&](const ScannedBuckets& buckets) {
    ForRanges(buckets.count, Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
      CpuTableCopy::Part part(taken);
      for (std::uint64_t b = first; b < last; ++b) {
        for (std::uint32_t s = 0; s < table_.slots; ++s) {
          if (!ReadItem(operations, buckets, b, s, part.key(), part.reference())) continue;
          part.Add(all ? nullptr
                       : changes.MarkOf(HashKey(table_.hash_seed, part.key(), table_.key_words)));
        }
      }
    });
  });
}

template <class Setup>
void CpuExecutor<Setup>::CopyLogged(CpuTableCopy* taken) {
  constexpr std::uint64_t kAtOnce = 16;  // keys whose cache misses overlap
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  const ChangeLog& log = log_->view();
  ForRanges(log.count(), std::max<std::uint64_t>(Setup::kMinPerThread, kAtOnce),
            [&](std::uint64_t first, std::uint64_t last) {
              CpuTableCopy::Part part(taken);
              for (std::uint64_t at = first; at < last; at += kAtOnce) {
                const std::uint64_t n = std::min(kAtOnce, last - at);
                std::array<Candidates, kAtOnce> candidates;
                for (std::uint64_t k = 0; k < n; ++k) {
                  candidates[k] = operations.Locate(log.KeyAt(at + k));
                  for (std::uint32_t c = 0; c < table_.candidate_buckets(); ++c) {
                    std::byte* const bucket = operations.BucketAt(candidates[k], c);
                    if (bucket != nullptr) PrefetchLine(bucket);
                  }
                }
                for (std::uint64_t k = 0; k < n; ++k) {
                  const std::uint64_t* const key = log.KeyAt(at + k);
                  if (!FindItem(operations, candidates[k], key, part.reference())) continue;
                  std::copy_n(key, table_.key_words, part.key());
                  part.Add(nullptr);
                }
              }
            });
}

template <class Setup>
void CpuExecutor<Setup>::AddMarks(const std::uint8_t* marks, std::uint32_t range_bits) {
  const ChangeMap changes = marks_.View();
  for (std::uint64_t i = 0; i >> range_bits == 0; ++i) {
    if (marks[i] != 0) changes.MarkAll(i, range_bits);
  }
}

template <class Setup>
std::uint64_t CpuExecutor<Setup>::DrainLevel(std::uint32_t level, bool displaces) {
  std::atomic<std::uint64_t> left{0};
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(table_.Buckets(level), Setup::kBucketsAtATime,
            [&](std::uint64_t first, std::uint64_t last) {
              for (std::uint64_t b = first; b < last; ++b) {
                left += DrainBucket(operations, table_.Bucket(level, b), displaces);
              }
            });
  return left;
}

template <class Setup>
std::uint64_t CpuExecutor<Setup>::ComposeNewest() {
  constexpr std::uint64_t kAtOnce = 4;  // buckets whose items' cache misses overlap
  using Unnamed = UnnamedMedia<Media>;
  std::atomic<std::uint64_t> left{0};
  const TableView& table = table_;
  const std::uint32_t oldest = table.level_count - 1;
  const Reclaim reclaim = queues_.View();
  const Operations<ThreadGroup, Unnamed> operations(table, reclaim, locks_, accelerators_,
                                                    ThreadGroup{}, Unnamed(media_));
  const auto for_each_slot = [&](std::uint64_t first, std::uint64_t last, const auto& visit) {
    for (std::uint64_t b = first; b < last; ++b) {
      for (std::uint32_t s = 0; s < table.slots; ++s) visit(Slot{table.Bucket(oldest, b), s});
    }
  };
  ForRanges(
      table.Buckets(oldest), Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
        std::uint64_t stayed = 0;
        for (std::uint64_t at = first; at < last; at += kAtOnce) {
          const std::uint64_t end = std::min(last, at + kAtOnce);
          for_each_slot(at, end, [&](Slot slot) {
            const std::uint64_t word = operations.LoadState(slot);
            if (word == kEmptyState || word == kInsertState) return;
            KeyBuffer key;
            LoadSlotKey(table, operations.media(), slot, word, key.words);
            const Candidates candidates = operations.Locate(key.words);
            for (std::uint32_t c = 0; c < table.candidate_buckets(); ++c) {
              PrefetchLine(operations.BucketAt(candidates, c));
            }
          });
          for_each_slot(at, end,
                        [&](Slot slot) { stayed += ComposeSlot(operations, slot, slot) ? 0 : 1; });
        }
        left += stayed;
      });
  if (!media_needs_flush()) return left;
  ForRanges(table.Buckets(0), Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
    media_.Flush(Step::kComposeFlush, table.Bucket(0, first), (last - first) * table.bucket_bytes);
    FenceBeforePublish(TeamOfOne(ThreadGroup{}), media_, Step::kComposeFence);
  });
  return left;
}

template <class Setup>
std::uint64_t CpuExecutor<Setup>::DrainBesideBatches(const BucketRange& buckets) {
  if (buckets.count() == 0) return 0;
  std::atomic<std::uint64_t> left{0};
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(buckets.count(), Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t b = buckets.first + first; b < buckets.first + last; ++b) {
      left += DrainBucketBesideBatches(operations, table_.Bucket(table_.levels, b));
    }
  });
  return left;
}

template <class Setup>
template <class KeyOf>
bool CpuExecutor<Setup>::BringUpKeys(std::size_t count, const KeyOf& key_of) {
  constexpr std::size_t kAtOnce = 8;  // keys whose cache misses overlap
  if (!table_.draining()) return true;
  std::atomic<bool> all{true};
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(count, std::max(Setup::kMinPerThread, kAtOnce),
            [&](std::uint64_t first, std::uint64_t last) {
              for (std::uint64_t at = first; at < last; at += kAtOnce) {
                const std::size_t n = std::min<std::uint64_t>(kAtOnce, last - at);
                KeyBuffer buffer;
                std::array<Candidates, kAtOnce> candidates;
                for (std::size_t k = 0; k < n; ++k) {
                  candidates[k] = operations.Locate(key_of(at + k, &buffer));
                  if (operations.directory().knows_drained()) continue;
                  operations.ForEachDrained(candidates[k],
                                            [](std::byte* bucket) { PrefetchLine(bucket); });
                }
                for (std::size_t k = 0; k < n; ++k) {
                  if (!BringUp(operations, candidates[k])) all = false;
                }
              }
            });
  return all;
}

template <class Setup>
std::uint64_t CpuExecutor<Setup>::MoveCells(CellRange range, const CellGrant& cells) {
  std::atomic<std::uint64_t> left{0};
  std::uint64_t taken = 0;
  const Reclaim reclaim = queues_.View(cells, &taken);
  ForEachScanned(table_, DirectoryView{}, [&](const ScannedBuckets& buckets) {
    ForRanges(buckets.count, Setup::kBucketsAtATime, [&](std::uint64_t from, std::uint64_t to) {
      for (std::uint64_t b = from; b < to; ++b) {
        left += gpm::MoveCells(table_, reclaim, ThreadGroup{}, media_,
                               buckets.first + b * table_.bucket_bytes, range);
      }
    });
  });
  return left;
}

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_MAINTENANCE_H_
