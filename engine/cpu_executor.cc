#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/executor.h"
#include "engine/operation.h"
#include "engine/table/media_direct.h"
#include "engine/table/operations.h"
#include "engine/thread_pool.h"

namespace gpm {
namespace {

using CpuOperations = Operations<ThreadGroup, DirectMedia>;

/// Operations in flight in one thread: enough cache misses to keep its fill buffers busy.
constexpr std::size_t kBlock = 24;
/// Operations that one thread takes at a time from a batch of finds.
constexpr std::size_t kFindChunk = 512;
/// Batches smaller than this per thread are not worth waking threads for.
constexpr std::size_t kMinPerThread = 64;
constexpr std::uint64_t kMaxPrefetchBytes = 512;

/// Refuses an array that host code can't read, such as one in GPU memory: asking the kernel for its
/// first byte costs far less than a crash. (Where the call is not allowed, nothing is refused.)
void RequireHostMemory(const void* array, std::size_t bytes, const char* name) {
  if (bytes == 0) return;
  std::byte first{};
  iovec to{&first, 1};
  iovec from{const_cast<void*>(array), 1};
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) < 0 && errno == EFAULT) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("batch: '") + name +
                    "' is not in memory that the host can read; the cpu executor takes host memory "
                    "only, the cuda executor also GPU memory");
  }
}

void PrefetchBytes(const std::byte* address, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < std::min(bytes, kMaxPrefetchBytes); i += 64) {
    __builtin_prefetch(address + i);
  }
}

/// The executor's volatile memory behind a Reclaim.
struct Queues {
  std::vector<std::uint32_t> cells = std::vector<std::uint32_t>(2);
  std::vector<std::uint64_t> slots = std::vector<std::uint64_t>(2);
  std::unique_ptr<ReclaimCounters> counters = std::make_unique<ReclaimCounters>();

  /// A view that may take the cells of a grant; `taken` is its user's.
  Reclaim View(const CellGrant& grant = {}, std::uint64_t* taken = nullptr) {
    return Reclaim{
        cells.data(), cells.size() - 1, slots.data(), slots.size() - 1, counters.get(), grant,
        taken};
  }
};

template <class T>
void GrowRing(std::vector<T>* ring, std::uint64_t positions, std::uint64_t from, std::uint64_t to) {
  if (positions <= ring->size()) return;
  std::vector<T> larger(positions);
  for (std::uint64_t i = from; i < to; ++i) {
    larger[i & (positions - 1)] = (*ring)[i & (ring->size() - 1)];
  }
  ring->swap(larger);
}

class CpuExecutor;

/// A batch on the cpu executor. Its operations are dealt to workers by key hash, so that those on
/// one key are carried out by one thread, in batch order. A worker that meets an operation without
/// room stops there; Resume goes on from it.
class CpuRun : public Run {
 public:
  CpuRun(CpuExecutor* executor, const Batch& batch);
  void Start(const Epochs::SlotRange& give_back, const CellGrant& grant) override;
  Progress Await() override { return progress_; }
  Progress Resume(bool give_up, const CellGrant& grant) override;
  Progress RemoveDuplicates() override;

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

  bool HasWrites() const;
  void LookUp(const CpuOperations& operations, const std::uint32_t* list, std::size_t first,
              std::size_t count, Block* block) const;
  void RunFinds();
  void RunOrdered(bool give_up, const CellGrant& grant);
  void FindBlock(const CpuOperations& operations, std::size_t first, std::size_t count);
  void WorkOn(Worker* worker, bool give_up);
  Op KindOf(std::size_t i) const { return batch_.ops.empty() ? batch_.op : batch_.ops[i]; }
  /// The key's words, copied where the row is not aligned.
  const std::uint64_t* KeyAt(std::size_t i, KeyBuffer* buffer) const;
  const std::byte* ValueAt(std::size_t i) const;

  CpuExecutor* executor_;
  Batch batch_;
  std::size_t key_size_ = 0;
  std::size_t value_size_ = 0;
  std::vector<Worker> workers_;
  Progress progress_;
};

class CpuExecutor : public Executor {
 public:
  CpuExecutor(unsigned threads, const Mapping& mapping)
      : pool_(threads), media_(mapping.persist()) {}

  ExecutorKind kind() const override { return ExecutorKind::kCpu; }
  unsigned threads() const override { return pool_.threads(); }
  std::uint64_t gpu_bytes() const override { return 0; }
  void SetTable(const TableView& table) override { table_ = table; }

  void GrowQueues(std::uint64_t cells, std::uint64_t slots, std::uint64_t head) override {
    const ReclaimCounters& at = *queues_.counters;
    GrowRing(&queues_.cells, std::bit_ceil(2 * cells + 2), head, at.cells_tail);
    // What was given back is not looked at again, so all positions can be copied.
    GrowRing(&queues_.slots, std::bit_ceil(slots + 2),
             at.slots_tail - std::min<std::uint64_t>(at.slots_tail, queues_.slots.size()),
             at.slots_tail);
  }
  std::uint64_t slot_queue_room() const override { return queues_.slots.size(); }

  PassCounters Pass(PassMode mode, const std::vector<CellRange>& ranges) override;
  void FreeUnused(const std::vector<CellRange>& ranges) override {
    for (const CellRange& range : ranges) FreeRange(range, used_.data());
    used_ = {};
  }
  void FreeAll(CellRange range) override { FreeRange(range, nullptr); }
  std::uint64_t DrainLevel(std::uint32_t level) override;
  void GiveBack(const Epochs::SlotRange& slots) override {
    const Reclaim reclaim = queues_.View();
    const CpuOperations operations = MakeOperations(reclaim);
    for (std::uint64_t i = slots.from; i < slots.to; ++i) {
      operations.GiveBackSlot(reclaim.slot_ring[i & reclaim.slot_mask]);
    }
  }
  ReclaimPositions Positions() override {
    return {AtomicLoad(&queues_.counters->cells_tail), AtomicLoad(&queues_.counters->slots_tail)};
  }
  std::shared_ptr<Run> Prepare(const Batch& batch, Stream) override {
    RequireHostMemory(batch.ops.data(), batch.ops.size(), "ops");
    RequireHostMemory(batch.keys.data(), batch.keys.size(), "keys");
    RequireHostMemory(batch.values.data(), batch.values.size(), "values");
    RequireHostMemory(batch.found.data(), batch.found.size(), "found");
    RequireHostMemory(batch.results.data(), batch.results.size(), "results");
    return std::make_shared<CpuRun>(this, batch);
  }

 private:
  friend class CpuRun;

  CpuOperations MakeOperations(const Reclaim& reclaim) const {
    return CpuOperations(table_, reclaim, ThreadGroup{}, media_);
  }
  void FreeRange(CellRange range, const std::uint32_t* used) {
    const Reclaim reclaim = queues_.View();
    for (std::uint64_t word = range.first / 32; word * 32 < range.last; ++word) {
      FreeUnusedCells(reclaim, used, word, range);
    }
  }
  /// Calls visit(first, last) for ranges of `count` things, on all threads.
  template <class Visit>
  void ForRanges(std::uint64_t count, std::uint64_t step, const Visit& visit) {
    pool_.Run((count + step - 1) / step, [&](std::size_t part) {
      visit(part * step, std::min<std::uint64_t>(count, (part + 1) * step));
    });
  }

  ThreadPool pool_;
  DirectMedia media_;
  TableView table_{};
  Queues queues_;
  std::vector<std::uint32_t> used_;  ///< between Pass and FreeUnused
};

constexpr std::uint64_t kBucketsAtATime = 1024;

PassCounters CpuExecutor::Pass(PassMode mode, const std::vector<CellRange>& ranges) {
  std::uint64_t cells = 0;
  for (const CellRange& range : ranges) cells = std::max(cells, range.last);
  if (mode != PassMode::kRepair) used_.assign((cells + 31) / 32, 0);
  PassCounters total;
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  const auto visit_level = [&](std::byte* first_bucket, std::uint64_t buckets, bool addressable) {
    ForRanges(buckets, kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
      PassCounters counters;
      const PassView pass{&counters, used_.data(), ranges.data(),
                          static_cast<std::uint32_t>(ranges.size())};
      for (std::uint64_t b = first; b < last; ++b) {
        for (std::uint32_t s = 0; s < table_.slots; ++s) {
          VisitSlot(table_, operations, media_, pass, mode, addressable,
                    Slot{first_bucket + b * table_.bucket_bytes, s});
        }
      }
      AtomicAdd(&total.items, counters.items);
      AtomicAdd(&total.insert_slots, counters.insert_slots);
      AtomicAdd(&total.duplicates, counters.duplicates);
      AtomicAdd(&total.bad_references, counters.bad_references);
      AtomicAdd(&total.shared_cells, counters.shared_cells);
    });
  };
  visit_level(table_.ReservedBucket(0), 2, true);
  for (std::uint32_t level = table_.bottom; level <= table_.top; ++level) {
    visit_level(table_.Bucket(level, 0), std::uint64_t{1} << level,
                level + table_.levels > table_.top);
  }
  if (mode == PassMode::kRepair) media_.Fence();
  return total;
}

std::uint64_t CpuExecutor::DrainLevel(std::uint32_t level) {
  std::atomic<std::uint64_t> left{0};
  const Reclaim reclaim = queues_.View();
  const CpuOperations operations = MakeOperations(reclaim);
  ForRanges(
      std::uint64_t{1} << level, kBucketsAtATime, [&](std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t b = first; b < last; ++b) {
          left += DrainBucket(table_, operations, ThreadGroup{}, media_, table_.Bucket(level, b));
        }
      });
  return left;
}

CpuRun::CpuRun(CpuExecutor* executor, const Batch& batch) : executor_(executor), batch_(batch) {}

void CpuRun::Start(const Epochs::SlotRange& give_back, const CellGrant& grant) {
  executor_->GiveBack(give_back);
  key_size_ = 8 * executor_->table_.key_words;
  value_size_ = executor_->table_.value_size;
  if (!HasWrites()) {
    RunFinds();
    progress_.positions = executor_->Positions();
    return;
  }
  const std::size_t n = batch_.results.size();
  const std::size_t parts = std::min<std::size_t>(executor_->threads(), n / kMinPerThread + 1);
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

Progress CpuRun::Resume(bool give_up, const CellGrant& grant) {
  RunOrdered(give_up, grant);
  return progress_;
}

Progress CpuRun::RemoveDuplicates() {
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim);
  std::atomic<std::int64_t> removed{0};
  executor_->ForRanges(batch_.results.size(), kFindChunk,
                       [&](std::uint64_t first, std::uint64_t last) {
                         for (std::uint64_t i = first; i < last; ++i) {
                           if (!Inserts(KindOf(i))) continue;
                           KeyBuffer buffer;
                           const std::uint64_t* key = KeyAt(i, &buffer);
                           removed += operations.RemoveCopies(operations.Locate(key), key);
                         }
                       });
  progress_.items_added = -removed;
  progress_.positions = executor_->Positions();
  return progress_;
}

bool CpuRun::HasWrites() const {
  if (batch_.ops.empty()) return batch_.op != Op::kFind;
  return std::any_of(batch_.ops.begin(), batch_.ops.end(), [](Op op) { return op != Op::kFind; });
}

const std::uint64_t* CpuRun::KeyAt(std::size_t i, KeyBuffer* buffer) const {
  const std::byte* row = batch_.keys.data() + i * key_size_;
  if (reinterpret_cast<std::uintptr_t>(row) % alignof(std::uint64_t) == 0) {
    return reinterpret_cast<const std::uint64_t*>(row);
  }
  std::memcpy(buffer->words, row, key_size_);
  return buffer->words;
}

const std::byte* CpuRun::ValueAt(std::size_t i) const {
  return batch_.values.empty() ? nullptr : batch_.values.data() + i * value_size_;
}

void CpuRun::RunFinds() {
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim);
  const std::size_t n = batch_.results.size();
  const std::size_t chunk = std::min(
      kFindChunk, std::max(kMinPerThread, (n + executor_->threads() - 1) / executor_->threads()));
  executor_->ForRanges(n, chunk, [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i < last; i += kBlock) {
      FindBlock(operations, i, std::min<std::size_t>(kBlock, last - i));
    }
  });
}

/// Looks a block of keys up in lockstep, so that the misses of all of them overlap: level by level,
/// each stage's lines prefetched by the one before. Prefetches the references of what it finds.
void CpuRun::LookUp(const CpuOperations& operations, const std::uint32_t* list, std::size_t first,
                    std::size_t count, Block* block) const {
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

void CpuRun::FindBlock(const CpuOperations& operations, std::size_t first, std::size_t count) {
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

void CpuRun::RunOrdered(bool give_up, const CellGrant& grant) {
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
  }
  progress_.positions = executor_->Positions();
}

/// Carries out a worker's operations one after another; the buckets, references and old values of
/// those to come are prefetched.
void CpuRun::WorkOn(Worker* worker, bool give_up) {
  worker->progress = Progress{};
  worker->taken = 0;
  const Reclaim reclaim = executor_->queues_.View(worker->grant, &worker->taken);
  const CpuOperations operations = executor_->MakeOperations(reclaim);
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
        operations.ReadValue(outcome.reference, batch_.found.data() + i * value_size_);
      }
      batch_.results[i] = outcome.lack != Lack::kNothing
                              ? Result::kNoSpace
                              : ResultOf(op, outcome.present, !batch_.values.empty());
      ++worker->next;
      ++worker->progress.carried_out;
    }
  }
  reclaim.ReturnCells(0, 1);
}

}  // namespace

std::unique_ptr<Executor> MakeCpuExecutor(unsigned threads, const Mapping& mapping) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  return std::make_unique<CpuExecutor>(std::min(threads, 256u), mapping);
}

}  // namespace gpm
