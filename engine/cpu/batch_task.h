#ifndef GPM_ENGINE_CPU_BATCH_TASK_H_
#define GPM_ENGINE_CPU_BATCH_TASK_H_

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "engine/cpu/accelerators.h"
#include "engine/cpu/maintenance.h"
#include "engine/cpu/prefetch_window.h"
#include "table/displacing.h"
#include "table/initial_rows.h"
#include "table/key_rows.h"

namespace gpm {

/// Operations that one thread takes at a time where nothing is prefetched.
inline constexpr std::size_t kChunk = 512;

/// A batch on the cpu executor. Its operations are dealt to workers by key hash, so that those on
/// one key are carried out by one thread, in batch order. A worker that meets an operation without
/// room stops there; Resume goes on from it. (How they are carried out: engine/cpu/batch_runs.h.)
template <class Setup>
class CpuBatchTask : public BatchTask {
 public:
  CpuBatchTask(CpuExecutor<Setup>* executor, const Batch& batch);
  void Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
             const BucketRange& drain) override;
  bool Touched() const override { return touched_; }
  Progress Await() override { return progress_; }
  SlotsMade MakeSlots(std::uint64_t most, std::uint64_t room) override;
  Progress Resume(bool final_attempt, const CellGrant& grant) override;
  void PersistObserved() override;

 private:
  struct alignas(128) Worker {
    std::vector<std::uint32_t> list;  ///< its operations, in batch order
    std::size_t next = 0;             ///< first one not done
    CellGrant grant;                  ///< its part of the batch's cells
    std::uint64_t taken = 0;          ///< of those
    std::vector<std::uint32_t> retired_cells;
    std::vector<std::byte> row;  ///< room for a value that is calculated
    Progress progress;
  };

  using Window = PrefetchWindow;
  using CpuOperations = typename CpuExecutor<Setup>::CpuOperations;

  bool HasWrites() const;
  void Deal();
  template <class Next, class Prepare, class Visit>
  void ForWindows(const CpuOperations& operations, const Next& next, const Prepare& prepare,
                  const Visit& visit) const {
    const auto key_of = [this](std::size_t i, KeyBuffer* buffer) { return KeyAt(i, buffer); };
    WindowSearch(executor_->table_, operations, executor_->media_,
                 !accelerators_.directory.enabled(), key_of, Setup::Windows())
        .ForWindows(next, prepare, visit);
  }
  void RunFinds(const CellGrant& grant);
  void FindOneByOne(const CpuOperations& operations, std::size_t first, std::size_t count,
                    Progress* progress);
  void RunOrdered(bool final_attempt, const Epochs::SlotRange& recycle, const CellGrant& grant,
                  const BucketRange& drain);
  /// Brings the items of its keys up. @return whether the batch can be carried out
  bool BringUpAll() {
    return executor_->BringUpKeys(batch_.results.size(), [this](std::size_t i, KeyBuffer* buffer) {
      return KeyAt(i, buffer);
    });
  }
  void PrefetchForApply(const CpuOperations& operations, const Reclaim& reclaim,
                        const Window& window, std::size_t ahead) const;
  void WorkOn(Worker* worker, bool final_attempt, bool can_run);
  Op KindOf(std::size_t i) const { return batch_.ops.empty() ? batch_.op : batch_.ops[i]; }
  /// The key's words, copied where the row is not aligned or not whole words.
  const std::uint64_t* KeyAt(std::size_t i, KeyBuffer* buffer) const;
  const std::byte* ValueAt(std::size_t i) const;
  /// Whether there is what an operation of this kind writes.
  bool HasValueFor(Op op) const;
  bool CalculatesValues() const { return batch_.element != Element::kNone || DrawsInitialValues(); }
  bool DrawsInitialValues() const { return batch_.initial.from >= InitialValue::From::kUniform; }
  /// Where an operation of a worker's finds the value that it writes: made now, if it is drawn.
  const std::byte* MakeValue(std::size_t i, const std::uint64_t* key, Worker* worker) const;
  std::byte* FoundAt(std::size_t i) const { return batch_.found.data() + i * value_size_; }

  CpuExecutor<Setup>* executor_;
  Batch batch_;
  std::uint32_t key_size_ = 0;
  std::size_t value_size_ = 0;
  std::vector<Worker> workers_;
  Accelerators accelerators_;
  bool touched_ = false;
  Progress progress_;
};

template <class Setup>
CpuBatchTask<Setup>::CpuBatchTask(CpuExecutor<Setup>* executor, const Batch& batch)
    : executor_(executor), batch_(batch) {}

template <class Setup>
void CpuBatchTask<Setup>::Start(const Epochs::SlotRange& recycle, const CellGrant& grant,
                                const BucketRange& drain) {
  accelerators_ = executor_->NextAccelerators();
  key_size_ = executor_->table_.key_size;
  value_size_ = executor_->table_.value_size;
  if (!HasWrites()) {
    touched_ = true;
    executor_->RecycleSlots(recycle);
    const std::uint64_t undrained = executor_->DrainBesideBatches(drain);
    RunFinds(grant);
    progress_.drained = undrained == 0;
    return;
  }
  const std::size_t n = batch_.results.size();
  const std::size_t parts =
      std::min<std::size_t>(executor_->threads(), n / Setup::kMinPerThread + 1);
  workers_.resize(parts);
  if (parts == 1) {
    workers_[0].list.resize(n);
    for (std::size_t i = 0; i < n; ++i) workers_[0].list[i] = static_cast<std::uint32_t>(i);
  } else {
    Deal();
  }
  RunOrdered(false, recycle, grant, drain);
}

/// Deals the operations to the workers: each thread sorts a share of the batch by owner.
template <class Setup>
void CpuBatchTask<Setup>::Deal() {
  const TableView& table = executor_->table_;
  const std::size_t n = batch_.results.size();
  const std::size_t parts = workers_.size();
  std::vector<std::uint32_t> sorted(n);
  std::vector<std::size_t> ends(parts * parts);  // by share, then owner, in `sorted`
  const auto share_begin = [&](std::size_t share) { return n * share / parts; };
  executor_->ForParts(parts, [&](std::size_t share) {
    const std::size_t first = share_begin(share);
    const std::size_t last = share_begin(share + 1);
    std::vector<std::uint8_t> owners(last - first);
    std::vector<std::size_t> next(parts + 1);
    for (std::size_t i = first; i < last; ++i) {
      KeyBuffer buffer;
      const KeyHash hash = HashKey(table.hash_seed, KeyAt(i, &buffer), table.key_words);
      const std::uint64_t owner = ((hash.g >> 32) * parts) >> 32;
      owners[i - first] = static_cast<std::uint8_t>(owner);
      ++next[owner + 1];
    }
    next[0] = first;
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (std::size_t i = first; i < last; ++i) {
      sorted[next[owners[i - first]]++] = static_cast<std::uint32_t>(i);
    }
    std::copy_n(next.begin(), parts, ends.begin() + static_cast<std::ptrdiff_t>(share * parts));
  });
  for (std::size_t share = 0; share < parts; ++share) {
    std::size_t begin = share_begin(share);
    for (std::size_t owner = 0; owner < parts; ++owner) {
      const std::size_t end = ends[share * parts + owner];
      std::vector<std::uint32_t>& list = workers_[owner].list;
      list.insert(list.end(), sorted.begin() + static_cast<std::ptrdiff_t>(begin),
                  sorted.begin() + static_cast<std::ptrdiff_t>(end));
      begin = end;
    }
  }
}

template <class Setup>
Progress CpuBatchTask<Setup>::Resume(bool final_attempt, const CellGrant& grant) {
  accelerators_ = executor_->NextAccelerators();  // the table may have grown, and they with it
  if (workers_.empty()) {
    RunFinds(grant);
  } else {
    RunOrdered(final_attempt, Epochs::SlotRange{}, grant, BucketRange{});
  }
  return progress_;
}

template <class Setup>
SlotsMade CpuBatchTask<Setup>::MakeSlots(std::uint64_t most, std::uint64_t room) {
  constexpr std::size_t kAtOnce = 32;  // keys whose cache misses overlap
  std::uint64_t left = 0;
  for (const Worker& worker : workers_) {
    left += static_cast<std::uint64_t>(
        std::count_if(worker.list.begin() + static_cast<std::ptrdiff_t>(worker.next),
                      worker.list.end(), [this](std::uint32_t i) { return Inserts(KindOf(i)); }));
  }
  if (left > room) return {.lacking = 1};
  accelerators_ = executor_->NextAccelerators();
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim, accelerators_);
  SlotsMade slots;
  executor_->ForParts(workers_.size(), [&](std::size_t part) {
    const Worker& worker = workers_[part];
    for (std::size_t at = worker.next; at < worker.list.size(); at += kAtOnce) {
      const std::size_t n = std::min(kAtOnce, worker.list.size() - at);
      std::array<KeyBuffer, kAtOnce> buffers;
      std::array<const std::uint64_t*, kAtOnce> keys;
      std::array<Candidates, kAtOnce> candidates;
      for (std::size_t k = 0; k < n; ++k) {
        keys[k] = KeyAt(worker.list[at + k], &buffers[k]);
        candidates[k] = operations.Locate(keys[k]);
        if (accelerators_.directory.enabled()) continue;
        for (std::uint32_t c = 0; c < executor_->table_.candidate_buckets(); ++c) {
          if (std::byte* const bucket = operations.BucketAt(candidates[k], c)) PrefetchLine(bucket);
        }
      }
      for (std::size_t k = 0; k < n; ++k) {
        MakeSlotFor(operations, KindOf(worker.list[at + k]), candidates[k], keys[k], most, &slots);
      }
    }
  });
  return slots;
}

template <class Setup>
void CpuBatchTask<Setup>::PersistObserved() {
  if (!executor_->media_needs_flush()) return;
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim);
  executor_->ForRanges(batch_.results.size(), kChunk, [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i < last; ++i) {
      KeyBuffer buffer;
      operations.FlushCandidates(operations.Locate(KeyAt(i, &buffer)));
    }
    FenceBeforeAck(TeamOfOne(ThreadGroup{}), executor_->media_, Step::kSettleFence);
  });
}

template <class Setup>
bool CpuBatchTask<Setup>::HasWrites() const {
  if (batch_.ops.empty()) return batch_.op != Op::kFind;
  return std::any_of(batch_.ops.begin(), batch_.ops.end(), [](Op op) { return op != Op::kFind; });
}

template <class Setup>
const std::uint64_t* CpuBatchTask<Setup>::KeyAt(std::size_t i, KeyBuffer* buffer) const {
  const std::byte* row = batch_.keys.data() + i * key_size_;
  if (!ArePadded(key_size_) &&
      reinterpret_cast<std::uintptr_t>(row) % alignof(std::uint64_t) == 0) {
    return reinterpret_cast<const std::uint64_t*>(row);
  }
  PadKey(row, key_size_, buffer->words);
  return buffer->words;
}

template <class Setup>
const std::byte* CpuBatchTask<Setup>::ValueAt(std::size_t i) const {
  return batch_.values.empty() ? nullptr : batch_.values.data() + i * value_size_;
}

template <class Setup>
bool CpuBatchTask<Setup>::HasValueFor(Op op) const {
  if (op == Op::kFindOrInsert && batch_.initial.from != InitialValue::From::kValues) return true;
  return !batch_.values.empty() && (op != Op::kAccumulate || batch_.element != Element::kNone);
}

template <class Setup>
const std::byte* CpuBatchTask<Setup>::MakeValue(std::size_t i, const std::uint64_t* key,
                                                Worker* worker) const {
  if (KindOf(i) != Op::kFindOrInsert || batch_.initial.from == InitialValue::From::kValues) {
    return ValueAt(i);
  }
  if (!DrawsInitialValues()) return batch_.initial.row.data();
  DrawRow(ThreadGroup{}, RowDrawer::Of(batch_.initial, batch_.element), key,
          executor_->table_.key_words, worker->row.data(), static_cast<std::uint32_t>(value_size_));
  return worker->row.data();
}

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_BATCH_TASK_H_
