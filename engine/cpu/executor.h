#ifndef GPM_ENGINE_CPU_EXECUTOR_H_
#define GPM_ENGINE_CPU_EXECUTOR_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "cache/memory.h"
#include "engine/cpu/prefetch_window.h"
#include "engine/cpu/table_copy.h"
#include "engine/executor.h"
#include "pm/persist.h"
#include "table/composing.h"
#include "table/draining.h"
#include "table/group.h"
#include "table/operation.h"
#include "table/protocol.h"

namespace gpm {

template <class Setup>
class CpuBatchTask;

/// The executor's volatile memory behind a Reclaim.
struct CpuQueues {
  std::vector<std::uint32_t> cells = std::vector<std::uint32_t>(2);
  std::vector<std::uint64_t> slots = std::vector<std::uint64_t>(2);
  std::unique_ptr<ReclaimCounters> counters = std::make_unique<ReclaimCounters>();

  /// A view that may take the cells of a grant; `taken` and `retired` are its user's.
  Reclaim View(const CellGrant& grant = {}, std::uint64_t* taken = nullptr,
               RetiredCells* retired = nullptr) {
    return Reclaim{
        cells.data(), cells.size() - 1, slots.data(), slots.size() - 1, counters.get(), grant,
        taken,        retired};
  }
};

template <class T>
class HostArray {
 public:
  void Reserve(std::uint64_t count) { elements_ = std::make_unique<T[]>(count); }
  T* data() const { return elements_.get(); }

 private:
  std::unique_ptr<T[]> elements_;
};

/// Gives a ring so many positions, of which those in [from, to) stay.
template <class T>
inline void ResizeRing(std::vector<T>* ring, std::uint64_t positions, std::uint64_t from,
                       std::uint64_t to) {
  std::vector<T> next(positions);
  for (std::uint64_t i = from; i < to; ++i) {
    next[i & (positions - 1)] = (*ring)[i & (ring->size() - 1)];
  }
  ring->swap(next);
}

/// Threads that a pool's tracer runs.
class TracerThreads {
 public:
  TracerThreads(unsigned threads, const Persist& persist)
      : threads_(threads), tracer_(persist.tracer()) {}
  unsigned threads() const { return threads_; }
  void Run(std::size_t parts, const std::function<void(std::size_t)>& part) {
    tracer_->RunParts(parts, part);
  }

 private:
  unsigned threads_;
  PmTracer* tracer_;
};

/// The cpu executor: batches, and the passes of recovery and resizing, on host threads.
///
/// @tparam Setup what it is made of:
///         Media            how it reaches persistent memory; made from a Persist
///         Threads          runs the parts of a job (ThreadPool has the contract); made from a
///                          number of threads and a Persist
///         kKeyLocks        a power of two
///         kBucketsAtATime  buckets of a level that are one part of a pass
///         kMinPerThread    batches with fewer operations per thread are not worth waking threads
///                          for
template <class Setup>
class CpuExecutor : public Executor {
 public:
  using Media = typename Setup::Media;
  using CpuOperations = Operations<ThreadGroup, Media>;

  CpuExecutor(unsigned threads, const Mapping& mapping)
      : pool_(threads, mapping.persist()),
        persist_(mapping.persist()),
        media_(persist_),
        lock_words_(Setup::kKeyLocks) {}

  ExecutorKind kind() const override { return ExecutorKind::kCpu; }
  unsigned threads() const override { return pool_.threads(); }
  std::uint64_t gpu_bytes() const override { return 0; }
  std::uint64_t workspace_bytes() const override { return 0; }
  std::uint64_t CacheBudget() const override { return 0; }
  void SetTable(const TableView& table, bool keep) override {
    table_ = table;
    table_.changes = marks_.View();
    table_.log = log_ == nullptr ? nullptr : &log_->view();
    if (!keep) accelerators_ = {};
    if (!table.draining()) accelerators_.directory.drained = nullptr;
  }

  void GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) override {
    const ReclaimCounters& at = *queues_.counters;
    if (CellPositions(cells) > queues_.cells.size()) {
      ResizeRing(&queues_.cells, CellPositions(cells), head, at.cells_tail);
    }
    if (SlotPositions(slots) > queues_.slots.size()) {
      // What was given back is not looked at again, so all positions can be copied.
      ResizeRing(&queues_.slots, SlotPositions(slots),
                 at.slots_tail - std::min<std::uint64_t>(at.slots_tail, queues_.slots.size()),
                 at.slots_tail);
    }
  }
  void ShrinkQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) override {
    const ReclaimCounters& at = *queues_.counters;
    if (CellPositions(cells) < queues_.cells.size()) {
      ResizeRing(&queues_.cells, CellPositions(cells), head, at.cells_tail);
    }
    if (SlotPositions(slots) < queues_.slots.size()) {
      ResizeRing(&queues_.slots, SlotPositions(slots), at.slots_tail, at.slots_tail);
    }
  }
  std::uint64_t slot_queue_room() const override { return queues_.slots.size(); }
  std::uint64_t queue_bytes() const override {
    return queues_.cells.size() * sizeof(std::uint32_t) +
           queues_.slots.size() * sizeof(std::uint64_t);
  }

  ScanCounters ScanSlots(ScanMode mode, const std::vector<CellRange>& ranges) override;
  std::vector<std::uint32_t> UsedCells() override { return used_; }
  void FreeUnused(const std::vector<CellRange>& ranges) override {
    for (const CellRange& range : ranges) FreeRange(range, used_.data());
    used_ = {};
  }
  void FreeAll(CellRange range) override { FreeRange(range, nullptr); }
  bool DrainsBesideBatches() const override { return true; }
  std::uint64_t DrainLevel(std::uint32_t level, bool displaces) override;
  bool ComposesInPlace() const override { return true; }
  ExecutorRates rates() const override {
    const double threads = pool_.threads();
    return {.composed_bytes = kComposedBytes * threads, .operations = kOperations * threads};
  }
  std::uint64_t ComposeNewest() override;
  std::uint64_t MoveCells(CellRange range, const CellGrant& cells) override;
  void RecycleSlots(const Epochs::SlotRange& slots) override {
    if (slots.from == slots.to) return;
    const Reclaim reclaim = queues_.View();
    const CpuOperations operations = MakeOperations(reclaim);
    ForParts(1, [&](std::size_t) { operations.RecycleSlots(slots.from, slots.to, 1); });
  }
  ReclaimPositions Positions() override {
    return {AtomicLoad(&queues_.counters->cells_tail), AtomicLoad(&queues_.counters->slots_tail)};
  }
  ReclaimPositions ReturnCells(const CellGrant& cells) override {
    std::uint64_t taken = 0;
    queues_.View(cells, &taken).ReturnCells(0, 1);
    return Positions();
  }
  std::uint64_t RequeueCells(const CellGrant& free, const CellGrant& held,
                             const std::vector<std::uint32_t>& names) override {
    ReturnCells(free);
    std::uint64_t taken = 0;
    const Reclaim reclaim = queues_.View(held, &taken);
    reclaim.ReturnNamed(names.data(), names.size(), false, 0, 1);
    const std::uint64_t position = Positions().cells_tail;
    reclaim.ReturnNamed(names.data(), names.size(), true, 0, 1);
    return position;
  }
  void SortCells(const CellGrant&) override {}  // it would take longer than it saves
  std::uint64_t CountMisplacedCells(const std::vector<CellRange>& ranges,
                                    std::uint64_t head) override;
  std::unique_ptr<TableCopy> MakeCopy(const CopyShape& shape) override {
    return std::make_unique<CpuTableCopy>(shape);
  }
  bool TakeCopy(TableCopy* copy) override;
  void MarkAgain(const TableCopy& copy) override {
    if (copy.range_bits > 0) AddMarks(copy.marks, copy.range_bits);
  }
  void AddMarks(const std::uint8_t* marks, std::uint32_t range_bits) override;
  bool LogIsWhole() const override { return log_ != nullptr && log_->view().whole(); }
  std::uint64_t LogBytes(std::uint64_t keys, std::uint32_t key_words) const override {
    return ChangeLog::Bytes(keys, key_words);
  }
  void SetAccelerators(const CacheShape& shape, CachePolicy policy, std::uint32_t used) override;
  bool FollowGrowth(const TableView& table, const CacheShape& shape, CachePolicy policy) override;
  void BeginDraining() override;
  void RefreshCache(std::uint64_t uses) override;
  const CacheShape* BackCache(bool /*wait*/) override { return &cache_memory_.shape; }
  void AgeCache(std::uint64_t uses) override;
  bool CacheRefreshEnded() override { return true; }
  double CacheRefreshSeconds() override { return refresh_seconds_; }
  void AwaitCacheRefresh() override {}
  std::shared_ptr<BatchTask> Prepare(const Batch& batch, Stream) override {
    RequireHostMemory(batch.ops.data(), batch.ops.size(), "ops");
    RequireHostMemory(batch.keys.data(), batch.keys.size(), "keys");
    RequireHostMemory(batch.values.data(), batch.values.size(), "values");
    RequireHostMemory(batch.found.data(), batch.found.size(), "found");
    RequireHostMemory(batch.results.data(), batch.results.size(), "results");
    return std::make_shared<CpuBatchTask<Setup>>(this, batch);
  }

 private:
  friend class CpuBatchTask<Setup>;

  // Of a thread, a second (ExecutorRates), as measured (docs/PERFORMANCE.md).
  static constexpr double kComposedBytes = 0.5e9;
  static constexpr double kOperations = 2e6;

  bool media_needs_flush() const { return persist_.needs_flush(); }
  CpuOperations MakeOperations(const Reclaim& reclaim) const {
    return MakeOperations(reclaim, accelerators_);
  }
  CpuOperations MakeOperations(const Reclaim& reclaim, const Accelerators& accelerators) const {
    return CpuOperations(table_, reclaim, locks_, accelerators, ThreadGroup{}, media_);
  }
  /// For a batch.
  Accelerators NextAccelerators() {
    Accelerators view = accelerators_;
    view.cache.clock = AtomicNext(&clock_) + 1;
    return view;
  }
  void FreeRange(CellRange range, const std::uint32_t* used) {
    const Reclaim reclaim = queues_.View();
    for (std::uint64_t word = range.first / 32; word * 32 < range.last; ++word) {
      FreeUnusedCells(reclaim, used, word, range);
    }
  }
  /// Calls part(0) ... part(parts - 1), on all threads. Allocates nothing.
  template <class Part>
  void ForParts(std::size_t parts, const Part& part) {
    pool_.Run(parts, std::ref(part));
  }
  /// Calls visit(first, last) for ranges of `count` things, likewise.
  template <class Visit>
  void ForRanges(std::uint64_t count, std::uint64_t step, const Visit& visit) {
    ForParts((count + step - 1) / step, [&](std::size_t part) {
      visit(part * step, std::min<std::uint64_t>(count, (part + 1) * step));
    });
  }

  /// Calls visit(i) for i in [0, count), likewise.
  template <class Visit>
  void ForEachOf(std::uint32_t count, const Visit& visit) {
    ForRanges(count, Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
      for (auto i = static_cast<std::uint32_t>(first); i < last; ++i) visit(i);
    });
  }
  /// Copies all items, or those of the marked ranges.
  void CopyItems(CpuTableCopy* taken);
  /// Copies those of the keys in the change log.
  void CopyLogged(CpuTableCopy* taken);
  void ClearCache();
  CacheRefresh NextRefresh(std::uint64_t uses);
  /// Drains buckets of the level that is being drained. @return items left in them
  std::uint64_t DrainBesideBatches(const BucketRange& buckets);
  /// Brings the items of a batch's keys up. @param key_of as CpuBatchTask::KeyAt
  /// @return false when one found no slot
  template <class KeyOf>
  bool BringUpKeys(std::size_t count, const KeyOf& key_of);

  typename Setup::Threads pool_;
  const Persist persist_;
  const Media media_;
  std::vector<std::uint32_t> lock_words_;
  const KeyLocks locks_{lock_words_.data(), Setup::kKeyLocks - 1};
  TableView table_{};
  CpuQueues queues_;
  std::vector<std::uint32_t> used_;  ///< between ScanSlots and FreeUnused
  CpuMarks marks_;
  std::unique_ptr<CpuChangeLog> log_;  ///< or null
  CacheMemory<HostArray> cache_memory_;
  Accelerators accelerators_;
  std::uint32_t refreshes_ = 0;  ///< of the cache, begun
  double refresh_seconds_ = 0;   ///< the last one
  std::uint32_t clock_ = 0;      ///< batches begun
};

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
  taken->marks = taken->next_marks.bytes.get();
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
  constexpr std::uint64_t kAtOnce = 16;  // as many cache misses as overlap
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
void CpuExecutor<Setup>::SetAccelerators(const CacheShape& shape, CachePolicy policy,
                                         std::uint32_t used) {
  accelerators_ = {};
  cache_memory_ = {};
  cache_memory_.Reserve(shape, policy);
  accelerators_ = cache_memory_.View();
  ClearCache();
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(used, Setup::kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i < last; ++i) {
      operations.directory().Build(static_cast<std::uint32_t>(i));
    }
  });
  std::fill_n(accelerators_.directory.fingerprints + std::uint64_t{used} * shape.stride,
              std::uint64_t{shape.buckets - used} * shape.stride, DirectoryView::kEmpty);
}

template <class Setup>
void CpuExecutor<Setup>::ClearCache() {
  const CacheView& cache = accelerators_.cache;
  std::fill_n(cache.bucket_of, cache.size, CacheView::kNoBucket);
  std::fill_n(cache.tags, std::uint64_t{cache.size} * cache_memory_.shape.slots,
              CacheView::kClosed);
}

template <class Setup>
bool CpuExecutor<Setup>::FollowGrowth(const TableView& table, const CacheShape& shape,
                                      CachePolicy policy) {
  if (!accelerators_.directory.enabled() || !cache_memory_.Precedes(shape)) return false;
  const auto drained = static_cast<std::uint32_t>(table.Buckets(table.levels));
  const auto copy = [](auto* to, const auto* from, std::uint64_t count) {
    std::copy_n(from, count, to);
  };
  const auto fill = [](auto* to, int byte, std::uint64_t count) {
    std::memset(to, byte, count * sizeof *to);
  };
  const bool keeps = cache_memory_.HasFramesFor(shape);
  const std::uint32_t frames = cache_memory_.shape.frames;
  CacheMemory<HostArray> next;
  try {
    next.ReserveDirectory(shape);
    next.ReserveDrained(drained);
    next.TakeOver(cache_memory_, drained, copy, fill);
    if (keeps) {
      next.TakeOverCache(&cache_memory_, drained, copy, fill);
    } else {
      next.ReserveCache(policy);
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  SetTable(table, false);
  cache_memory_ = std::move(next);
  accelerators_ = cache_memory_.View();
  accelerators_.directory.drained = cache_memory_.drained.data();
  for (std::uint32_t i = 0; keeps && i < frames; ++i) {
    KeepFrame(accelerators_.cache, shape.slots, i, drained);
  }
  if (!keeps) ClearCache();
  return true;
}

template <class Setup>
void CpuExecutor<Setup>::BeginDraining() {
  if (!accelerators_.directory.enabled() || accelerators_.directory.drained != nullptr) return;
  try {
    cache_memory_.ReserveDrained(table_.Buckets(table_.levels));
  } catch (const std::bad_alloc&) {
    return;
  }
  accelerators_.directory.drained = cache_memory_.drained.data();
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(table_.Buckets(table_.levels), Setup::kBucketsAtATime,
            [&](std::uint64_t first, std::uint64_t last) {
              for (std::uint64_t b = first; b < last; ++b) operations.directory().BuildDrained(b);
            });
}

template <class Setup>
CacheRefresh CpuExecutor<Setup>::NextRefresh(std::uint64_t uses) {
  CacheView view = accelerators_.cache;
  view.clock = AtomicLoad32(&clock_);
  return cache_memory_.Refresh(view, TinyLfuPolicy::AgeingOf(++refreshes_, uses, view.size));
}

template <class Setup>
void CpuExecutor<Setup>::RefreshCache(std::uint64_t uses) {
  const auto start = std::chrono::steady_clock::now();
  const CacheRefresh refresh = NextRefresh(uses);
  const ThreadGroup group;
  const CacheAccess<ThreadGroup, Media> access(refresh.cache, table_, group, media_);
  ForEachOf(refresh.buckets, [&](std::uint32_t bucket) { refresh.CountBucket(bucket); });
  refresh.ChooseThreshold();
  ForEachOf(refresh.cache.size,
            [&](std::uint32_t frame) { refresh.EvictCold(access, media_, frame); });
  ForEachOf(refresh.buckets, [&](std::uint32_t bucket) { refresh.AssignHot(media_, bucket); });
  ForEachOf(refresh.ToFill(),
            [&](std::uint32_t i) { access.Fill(accelerators_.directory, refresh.FrameToFill(i)); });
  refresh_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class Setup>
void CpuExecutor<Setup>::AgeCache(std::uint64_t uses) {
  const CacheRefresh refresh = NextRefresh(uses);
  ForEachOf(refresh.buckets, [&](std::uint32_t bucket) { refresh.AgeBucket(bucket); });
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
  constexpr std::size_t kAtOnce = 32;  // as many cache misses as overlap
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

#endif  // GPM_ENGINE_CPU_EXECUTOR_H_
