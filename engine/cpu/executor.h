#ifndef GPM_ENGINE_CPU_EXECUTOR_H_
#define GPM_ENGINE_CPU_EXECUTOR_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "cache/memory.h"
#include "engine/cpu/table_copy.h"
#include "engine/executor.h"
#include "pm/persist.h"
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

/// Zero after Reserve.
template <class T>
class HostArray {
 public:
  void Reserve(std::uint64_t count) { elements_ = std::make_unique<T[]>(count); }
  T* data() const { return elements_.get(); }

 private:
  std::unique_ptr<T[]> elements_;
};

/// Cached values. Those of frames that no bucket has had yet take no memory of the system's, until
/// a growth with more frames copies all.
class HostValues {
 public:
  void Reserve(std::uint64_t bytes) { bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes); }
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};
using HostCacheMemory = CacheMemory<HostArray, HostValues>;

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
///         Windows()        how many operations a thread takes at once (PrefetchWindow)
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
  void SortCells(const CellGrant&) override {}
  bool SortsCells() const override { return false; }  // it would take longer than it saves
  std::uint64_t CountMisplacedCells(const std::vector<CellRange>& ranges,
                                    std::uint64_t head) override;
  std::unique_ptr<TableCopy> MakeCopy(const CopyShape& shape) override {
    return std::make_unique<CpuTableCopy>(shape);
  }
  bool TakeCopy(TableCopy* copy) override;
  void MarkAgain(const TableCopy& copy) override {
    if (copy.range_bits == 0) return;
    AddMarks(static_cast<const CpuTableCopy&>(copy).next_marks.bytes.get(), copy.range_bits);
  }
  void AddMarks(const std::uint8_t* marks, std::uint32_t range_bits) override;
  bool LogIsWhole() const override { return log_ != nullptr && log_->view().whole(); }
  std::uint64_t LogBytes(std::uint64_t keys, std::uint32_t key_words) const override {
    return ChangeLog::Bytes(keys, key_words);
  }
  void SetAccelerators(const CacheShape& shape, CachePolicy policy, std::uint32_t used) override;
  bool FollowGrowth(const TableView& table, const CacheShape& shape, CachePolicy policy) override;
  void BeginDraining() override;
  void OpenCache() override;
  void RefreshCache(std::uint64_t uses) override;
  const CacheShape* BackCache(bool /*wait*/) override { return &cache_memory_.shape; }
  void AgeCache(std::uint64_t uses) override;
  bool CacheRefreshEnded() override { return true; }
  double CacheRefreshSeconds() override { return refresh_seconds_; }
  void AwaitCacheRefresh() override {}
  std::shared_ptr<BatchTask> Prepare(const Batch& batch, Stream, Answers) override {
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
  HostCacheMemory cache_memory_;
  Accelerators accelerators_;
  std::uint32_t refreshes_ = 0;  ///< of the cache, begun
  double refresh_seconds_ = 0;   ///< the last one
  std::uint32_t clock_ = 0;      ///< batches begun
};

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_EXECUTOR_H_
