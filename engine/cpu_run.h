#ifndef GPM_ENGINE_CPU_RUN_H_
#define GPM_ENGINE_CPU_RUN_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "engine/cpu_executor.h"

namespace gpm {

/// Operations in flight in one thread: enough cache misses to keep its fill buffers busy.
inline constexpr std::size_t kBlock = 24;
/// Operations that one thread takes at a time from a batch of finds.
inline constexpr std::size_t kFindChunk = 512;
inline constexpr std::uint64_t kMaxPrefetchBytes = 512;

inline void PrefetchBytes(const std::byte* address, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < std::min(bytes, kMaxPrefetchBytes); i += 64) {
    __builtin_prefetch(address + i);
  }
}

/// A batch on the cpu executor. Its operations are dealt to workers by key hash, so that those on
/// one key are carried out by one thread, in batch order. A worker that meets an operation without
/// room stops there; Resume goes on from it.
template <class Setup>
class CpuRun : public Run {
 public:
  CpuRun(CpuExecutor<Setup>* executor, const Batch& batch);
  void Start(const Epochs::SlotRange& give_back, const CellGrant& grant) override;
  Progress Await() override { return progress_; }
  Progress Resume(bool give_up, const CellGrant& grant) override;
  void Settle() override;

 private:
  struct Worker {
    std::vector<std::uint32_t> list;  ///< its operations, in batch order
    std::size_t next = 0;             ///< first one not done
    CellGrant grant;                  ///< its part of the batch's cells
    std::uint64_t taken = 0;          ///< of those
    Progress progress;
  };

  /// Operations on their way through a thread.
  struct Block {
    std::array<KeyBuffer, kBlock> buffers;
    std::array<const std::uint64_t*, kBlock> keys;
    std::array<Candidates, kBlock> candidates;
    std::array<Slot, kBlock> slots;
    std::array<bool, kBlock> found;
  };

  using CpuOperations = typename CpuExecutor<Setup>::CpuOperations;

  bool HasWrites() const;
  void LookUp(const CpuOperations& operations, const std::uint32_t* list, std::size_t first,
              std::size_t count, Block* block) const;
  void RunFinds();
  void FindOneByOne(const CpuOperations& operations, std::size_t first, std::size_t count,
                    Progress* progress);
  void RunOrdered(bool give_up, const CellGrant& grant);
  void FindBlock(const CpuOperations& operations, std::size_t first, std::size_t count);
  void WorkOn(Worker* worker, bool give_up);
  Op KindOf(std::size_t i) const { return batch_.ops.empty() ? batch_.op : batch_.ops[i]; }
  /// The key's words, copied where the row is not aligned.
  const std::uint64_t* KeyAt(std::size_t i, KeyBuffer* buffer) const;
  const std::byte* ValueAt(std::size_t i) const;

  CpuExecutor<Setup>* executor_;
  Batch batch_;
  std::size_t key_size_ = 0;
  std::size_t value_size_ = 0;
  std::vector<Worker> workers_;
  CacheView cache_;
  Progress progress_;
};

template <class Setup>
CpuRun<Setup>::CpuRun(CpuExecutor<Setup>* executor, const Batch& batch)
    : executor_(executor), batch_(batch) {}

template <class Setup>
void CpuRun<Setup>::Start(const Epochs::SlotRange& give_back, const CellGrant& grant) {
  executor_->GiveBack(give_back);
  cache_ = executor_->NextCacheView();
  key_size_ = 8 * executor_->table_.key_words;
  value_size_ = executor_->table_.value_size;
  if (!HasWrites()) {
    RunFinds();
    std::uint64_t taken = 0;
    executor_->queues_.View(grant, &taken).ReturnCells(0, 1);
    progress_.positions = executor_->Positions();
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
    std::vector<std::uint8_t> owner(n);
    const TableView& table = executor_->table_;
    executor_->ForRanges(n, 4096, [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t i = first; i < last; ++i) {
        KeyBuffer buffer;
        const KeyHash hash = HashKey(table.hash_seed, KeyAt(i, &buffer), table.key_words);
        owner[i] = static_cast<std::uint8_t>(((hash.g >> 32) * parts) >> 32);
      }
    });
    std::vector<std::size_t> sizes(parts);
    for (const std::uint8_t part : owner) ++sizes[part];
    for (std::size_t part = 0; part < parts; ++part) workers_[part].list.reserve(sizes[part]);
    executor_->pool_.Run(parts, [&](std::size_t part) {
      for (std::size_t i = 0; i < n; ++i) {
        if (owner[i] == part) workers_[part].list.push_back(static_cast<std::uint32_t>(i));
      }
    });
  }
  RunOrdered(false, grant);
}

template <class Setup>
Progress CpuRun<Setup>::Resume(bool give_up, const CellGrant& grant) {
  cache_ = executor_->NextCacheView();  // the table may have grown, and the cache with it
  RunOrdered(give_up, grant);
  return progress_;
}

template <class Setup>
void CpuRun<Setup>::Settle() {
  if (!executor_->media_needs_flush()) return;
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim);
  executor_->ForRanges(batch_.results.size(), kFindChunk,
                       [&](std::uint64_t first, std::uint64_t last) {
                         for (std::uint64_t i = first; i < last; ++i) {
                           KeyBuffer buffer;
                           operations.FlushCandidates(operations.Locate(KeyAt(i, &buffer)));
                         }
                         executor_->media_.Fence(Step::kSettleFence);
                       });
}

template <class Setup>
bool CpuRun<Setup>::HasWrites() const {
  if (batch_.ops.empty()) return batch_.op != Op::kFind;
  return std::any_of(batch_.ops.begin(), batch_.ops.end(), [](Op op) { return op != Op::kFind; });
}

template <class Setup>
const std::uint64_t* CpuRun<Setup>::KeyAt(std::size_t i, KeyBuffer* buffer) const {
  const std::byte* row = batch_.keys.data() + i * key_size_;
  if (reinterpret_cast<std::uintptr_t>(row) % alignof(std::uint64_t) == 0) {
    return reinterpret_cast<const std::uint64_t*>(row);
  }
  std::memcpy(buffer->words, row, key_size_);
  return buffer->words;
}

template <class Setup>
const std::byte* CpuRun<Setup>::ValueAt(std::size_t i) const {
  return batch_.values.empty() ? nullptr : batch_.values.data() + i * value_size_;
}

template <class Setup>
void CpuRun<Setup>::RunFinds() {
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim, cache_);
  const std::size_t n = batch_.results.size();
  const std::size_t chunk = std::min(
      kFindChunk,
      std::max(Setup::kMinPerThread, (n + executor_->threads() - 1) / executor_->threads()));
  executor_->ForRanges(n, chunk, [&](std::uint64_t first, std::uint64_t last) {
    if (cache_.enabled()) {
      Progress progress;
      FindOneByOne(operations, first, last - first, &progress);
      AtomicAdd(&progress_.found, progress.found);
      AtomicAdd(&progress_.cache_hits, progress.cache_hits);
      return;
    }
    for (std::uint64_t i = first; i < last; i += kBlock) {
      FindBlock(operations, i, std::min<std::size_t>(kBlock, last - i));
    }
  });
}

/// Looks a block of keys up in lockstep, so that the misses of all of them overlap: level by level,
/// each stage's lines prefetched by the one before. Prefetches the references of what it finds.
template <class Setup>
void CpuRun<Setup>::LookUp(const CpuOperations& operations, const std::uint32_t* list,
                           std::size_t first, std::size_t count, Block* block) const {
  const TableView& table = executor_->table_;
  const auto prefetch = [&](std::size_t k, std::uint32_t level) {
    operations.VisitBucketsOfLevel(block->candidates[k], level, [&](const std::byte* bucket) {
      PrefetchBytes(bucket, 8 * table.slots);
    });
  };
  for (std::size_t k = 0; k < count; ++k) {
    block->keys[k] = KeyAt(list == nullptr ? first + k : list[k], &block->buffers[k]);
    block->candidates[k] = operations.Locate(block->keys[k]);
    block->found[k] = false;
    prefetch(k, 0);
  }
  for (std::uint32_t level = 0; level < table.levels; ++level) {
    for (std::size_t k = 0; k < count; ++k) {
      if (block->found[k]) continue;
      block->found[k] =
          operations.FindSlotInLevel(block->candidates[k], block->keys[k], level, &block->slots[k]);
      if (block->found[k]) {
        __builtin_prefetch(table.Reference(block->slots[k]));
      } else if (level + 1 < table.levels) {
        prefetch(k, level + 1);
      }
    }
  }
}

template <class Setup>
void CpuRun<Setup>::FindBlock(const CpuOperations& operations, std::size_t first,
                              std::size_t count) {
  const TableView& table = executor_->table_;
  Block block;
  LookUp(operations, nullptr, first, count, &block);
  if (!batch_.found.empty()) {
    std::array<std::uint64_t, kBlock> references;
    for (std::size_t k = 0; k < count; ++k) {
      if (!block.found[k]) continue;
      references[k] = operations.LoadReference(block.slots[k]);
      if (!table.inline_values()) PrefetchBytes(table.Cell(references[k]), value_size_);
    }
    for (std::size_t k = 0; k < count; ++k) {
      if (!block.found[k]) continue;
      operations.ReadValue(references[k], batch_.found.data() + (first + k) * value_size_);
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    batch_.results[first + k] = ResultOf(Op::kFind, block.found[k]);
  }
}

/// With a cache: most finds end in it, and nothing is prefetched for them.
template <class Setup>
void CpuRun<Setup>::FindOneByOne(const CpuOperations& operations, std::size_t first,
                                 std::size_t count, Progress* progress) {
  for (std::size_t i = first; i < first + count; ++i) {
    KeyBuffer buffer;
    const std::uint64_t* key = KeyAt(i, &buffer);
    const Outcome outcome = operations.Apply(operations.Locate(key), key, Plan{});
    progress->found += outcome.present ? 1 : 0;
    progress->cache_hits += outcome.cached ? 1 : 0;
    if (outcome.present && !batch_.found.empty()) {
      operations.ReadFound(outcome, batch_.found.data() + i * value_size_);
    }
    batch_.results[i] = ResultOf(Op::kFind, outcome.present);
  }
}

template <class Setup>
void CpuRun<Setup>::RunOrdered(bool give_up, const CellGrant& grant) {
  CellGrant rest = grant;
  for (Worker& worker : workers_) {
    const bool last = &worker == &workers_.back();
    const std::uint64_t share =
        last ? rest.count : std::min<std::uint64_t>(rest.count, worker.list.size() - worker.next);
    worker.grant = CellGrant{rest.first, share};
    rest = CellGrant{rest.first + share, rest.count - share};
  }
  executor_->pool_.Run(workers_.size(),
                       [&](std::size_t part) { WorkOn(&workers_[part], give_up); });
  progress_ = Progress{};
  for (const Worker& worker : workers_) {
    progress_.items_added += worker.progress.items_added;
    progress_.lack_slots += worker.progress.lack_slots;
    progress_.lack_cells += worker.progress.lack_cells;
    progress_.carried_out += worker.progress.carried_out;
    progress_.found += worker.progress.found;
    progress_.cache_hits += worker.progress.cache_hits;
  }
  progress_.positions = executor_->Positions();
}

/// Carries out a worker's operations one after another; the buckets, references and old values of
/// those to come are prefetched.
template <class Setup>
void CpuRun<Setup>::WorkOn(Worker* worker, bool give_up) {
  worker->progress = Progress{};
  worker->taken = 0;
  const Reclaim reclaim = executor_->queues_.View(worker->grant, &worker->taken);
  const CpuOperations operations = executor_->MakeOperations(reclaim, cache_);
  const TableView& table = executor_->table_;
  Block block;
  while (worker->next < worker->list.size()) {
    const std::size_t count = std::min(kBlock, worker->list.size() - worker->next);
    const std::uint32_t* list = worker->list.data() + worker->next;
    LookUp(operations, list, 0, count, &block);
    for (std::size_t k = 0; k < count; ++k) {
      if (block.found[k] && KindOf(list[k]) == Op::kFind && !table.inline_values()) {
        PrefetchBytes(table.Cell(operations.LoadReference(block.slots[k])), value_size_);
      }
    }
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = list[k];
      const Op op = KindOf(i);
      const Plan plan = PlanOf(op, ValueAt(i));
      const Outcome outcome = operations.Apply(block.candidates[k], block.keys[k], plan);
      worker->progress.items_added += ItemsAdded(plan, outcome);
      if (outcome.lack != Lack::kNothing && !give_up) {
        // What comes after it may not lack anything: it is not counted.
        (outcome.lack == Lack::kSlot ? worker->progress.lack_slots : worker->progress.lack_cells) =
            1;
        reclaim.ReturnCells(0, 1);
        return;
      }
      if (op == Op::kFind && outcome.present && !batch_.found.empty()) {
        operations.ReadFound(outcome, batch_.found.data() + i * value_size_);
      }
      worker->progress.found += outcome.present ? 1 : 0;
      worker->progress.cache_hits += outcome.cached ? 1 : 0;
      batch_.results[i] = outcome.lack != Lack::kNothing
                              ? Result::kNoSpace
                              : ResultOf(op, outcome.present, !batch_.values.empty());
      ++worker->next;
      ++worker->progress.carried_out;
    }
  }
  reclaim.ReturnCells(0, 1);
}

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_RUN_H_
