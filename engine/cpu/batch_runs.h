#ifndef GPM_ENGINE_CPU_BATCH_RUNS_H_
#define GPM_ENGINE_CPU_BATCH_RUNS_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "engine/cpu/batch_task.h"

// How a batch on the cpu executor is carried out: finds dealt to whoever is free, and else each
// worker's operations in order.

namespace gpm {

/// Finds that one thread takes at a time where buckets are prefetched: so few that all threads end
/// at about the same time.
inline constexpr std::size_t kDealt = 48;

/// Takes out of `rest` the share of a worker with `own` of the `left` operations that the rest is
/// for: `own` cells, where there is one for each operation. Of the cells that are not kept for
/// updates it gets one at least, if there is any.
inline CellGrant TakeShare(CellGrant* rest, std::uint64_t own, std::uint64_t left) {
  if (own == 0) return {rest->first, 0, 0};
  const auto share = [&](std::uint64_t cells) { return (cells * own + left - 1) / left; };
  const std::uint64_t count = share(rest->count);
  const CellGrant taken{rest->first, count, count - share(rest->count - rest->kept)};
  *rest = CellGrant{rest->first + count, rest->count - count, rest->kept - taken.kept};
  return taken;
}

template <class Setup>
void CpuBatchTask<Setup>::RunFinds(const CellGrant& grant) {
  const Reclaim reclaim = executor_->queues_.View();
  const CpuOperations operations = executor_->MakeOperations(reclaim, accelerators_);
  const std::size_t n = batch_.results.size();
  progress_ = Progress{};
  progress_.cells_left = grant.count;
  progress_.positions = executor_->Positions();
  if (!BringUpAll()) {
    std::fill(batch_.results.begin(), batch_.results.end(),
              Result::kNoSpace);  // until it is finished
    progress_.short_of_slots = 1;
    return;
  }
  const std::size_t share =
      std::max(Setup::kMinPerThread, (n + executor_->threads() - 1) / executor_->threads());
  if (accelerators_.directory.enabled()) {
    executor_->ForRanges(n, std::min(kChunk, share), [&](std::uint64_t first, std::uint64_t last) {
      Progress progress;
      FindOneByOne(operations, first, last - first, &progress);
      AtomicAdd(&progress_.found, progress.found);
      AtomicAdd(&progress_.cache_hits, progress.cache_hits);
    });
    return;
  }
  const TableView& table = executor_->table_;
  std::uint64_t dealt = 0;  // operations that some thread took
  const auto prepare = [&](Window* window, std::size_t) {
    if (batch_.found.empty()) return;
    for (std::size_t k = 0; k < window->count; ++k) {
      if (window->Found(k)) window->references[k] = operations.LoadReference(window->found[k].slot);
    }
    if (table.inline_values()) return;
    // In loops of their own, as AimAt does.
    for (std::size_t k = 0; k < window->count; ++k) {
      if (window->Found(k)) PrefetchBytes(table.Cell(window->references[k]), value_size_);
    }
    for (std::size_t k = 0; k < window->count; ++k) {
      if (window->Found(k)) PrefetchBytes(FoundAt(window->index[k]), value_size_);
    }
  };
  executor_->ForParts((n + share - 1) / share, [&](std::size_t) {
    std::uint64_t found = 0;
    std::uint64_t first = 0;  // of those that the thread took, the next one
    std::uint64_t last = 0;
    const auto next = [&](Window* window, std::size_t at_once) {
      if (first == last) {
        const std::uint64_t most = std::min(kDealt, share);
        first = std::min<std::uint64_t>(AtomicAdd(&dealt, most), n);
        last = std::min(first + most, n);
      }
      window->count = std::min<std::size_t>(at_once, last - first);
      std::iota(window->index.begin(), window->index.begin() + window->count, first);
      first += window->count;
    };
    const auto answer = [&](const Window& window) {
      for (std::size_t k = 0; k < window.count; ++k) {
        const std::size_t i = window.index[k];
        if (window.Found(k) && !batch_.found.empty()) {
          operations.ReadValue(window.references[k], FoundAt(i));
        }
        batch_.results[i] = ResultOf(Op::kFind, window.Found(k));
        found += window.Found(k) ? 1 : 0;
      }
      return true;
    };
    ForWindows(operations, next, prepare, answer);
    AtomicAdd(&progress_.found, found);
  });
}

/// With a directory: nothing is prefetched.
template <class Setup>
void CpuBatchTask<Setup>::FindOneByOne(const CpuOperations& operations, std::size_t first,
                                       std::size_t count, Progress* progress) {
  for (std::size_t i = first; i < first + count; ++i) {
    KeyBuffer buffer;
    const std::uint64_t* key = KeyAt(i, &buffer);
    const Candidates candidates = operations.Locate(key);
    const Outcome outcome = operations.Find(candidates, key);
    if (outcome.present) {
      const bool hit =
          batch_.found.empty() || operations.ReadAndKeep(candidates, outcome, FoundAt(i));
      ++progress->found;
      progress->cache_hits += hit ? 1 : 0;
    }
    batch_.results[i] = ResultOf(Op::kFind, outcome.present);
  }
}

template <class Setup>
void CpuBatchTask<Setup>::RunOrdered(bool final_attempt, const Epochs::SlotRange& recycle,
                                     const CellGrant& grant, const BucketRange& drain) {
  touched_ = false;
  std::uint64_t left = 0;  // operations
  for (const Worker& worker : workers_) left += worker.list.size() - worker.next;
  CellGrant rest = grant;
  for (Worker& worker : workers_) {
    const std::uint64_t own = worker.list.size() - worker.next;
    worker.grant = TakeShare(&rest, own, left);
    left -= own;
    // An operation retires one cell at most.
    worker.retired_cells.reserve(worker.list.size() - worker.next + worker.grant.count);
    if (CalculatesValues()) worker.row.resize(value_size_);
  }
  // Everything is allocated: from here on nothing fails.
  touched_ = true;
  executor_->RecycleSlots(recycle);
  const std::uint64_t undrained = executor_->DrainBesideBatches(drain);
  const bool can_run = BringUpAll();
  executor_->ForParts(workers_.size(),
                      [&](std::size_t part) { WorkOn(&workers_[part], final_attempt, can_run); });
  progress_ = Progress{};
  progress_.drained = undrained == 0;
  for (const Worker& worker : workers_) {
    progress_.items_added += worker.progress.items_added;
    progress_.short_of_slots += worker.progress.short_of_slots;
    progress_.short_of_cells += worker.progress.short_of_cells;
    progress_.carried_out += worker.progress.carried_out;
    progress_.found += worker.progress.found;
    progress_.cache_hits += worker.progress.cache_hits;
  }
  progress_.positions = executor_->Positions();
}

/// Prefetches what operations will read and write besides buckets: values and cells.
template <class Setup>
void CpuBatchTask<Setup>::PrefetchForApply(const CpuOperations& operations, const Reclaim& reclaim,
                                           const Window& window, std::size_t ahead) const {
  const TableView& table = executor_->table_;
  const auto writes = [&](std::size_t k) {
    const Op op = KindOf(window.index[k]);
    return Writes(op) && !(op == Op::kFindOrInsert && window.Found(k));
  };
  // In a loop of their own, as AimAt does: cells first, which are the furthest away.
  std::array<const std::byte*, 2 * Window::kWindow> cells;
  std::size_t count = 0;
  for (std::size_t k = 0; k < window.count; ++k) {
    const Op op = KindOf(window.index[k]);
    std::uint32_t cell = 0;
    if (writes(k) && reclaim.PeekCell(ahead++, &cell)) {
      cells[count++] = table.Cell(cell * table.cell_bytes);
    }
    if (window.Found(k) && (GivesValue(op) || op == Op::kAccumulate) && !table.inline_values()) {
      cells[count++] = table.Cell(operations.LoadReference(window.found[k].slot));
    }
  }
  for (std::size_t i = 0; i < count; ++i) PrefetchBytes(cells[i], value_size_);
  for (std::size_t k = 0; k < window.count; ++k) {
    if (writes(k) && !batch_.values.empty()) PrefetchBytes(ValueAt(window.index[k]), value_size_);
    if (window.Found(k) && GivesValue(KindOf(window.index[k])) && !batch_.found.empty() &&
        !table.inline_values()) {
      PrefetchBytes(FoundAt(window.index[k]), value_size_);
    }
  }
}

/// Carries out a worker's operations one after another; the buckets, references and values of
/// those to come are prefetched.
/// @param can_run else none is: slots are short
template <class Setup>
void CpuBatchTask<Setup>::WorkOn(Worker* worker, bool final_attempt, bool can_run) {
  worker->progress = Progress{};
  worker->taken = 0;
  worker->retired_cells.resize(worker->list.size() - worker->next + worker->grant.count);
  RetiredCells retired{worker->retired_cells.data(), 0};
  const Reclaim reclaim = executor_->queues_.View(worker->grant, &worker->taken, &retired);
  const CpuOperations operations = executor_->MakeOperations(reclaim, accelerators_);
  // Of each kind, but for the values; of what is no kind, at the end. One that is made anew is
  // stored byte by byte and then read as a word, which waits for all stores before it.
  std::array<Plan, kOpKinds + 1> plans;
  for (std::uint32_t op = 0; op < kOpKinds; ++op) {
    const std::byte some{};
    plans[op] = PlanOf(static_cast<Op>(op), HasValueFor(static_cast<Op>(op)) ? &some : nullptr);
  }
  Addends addends;
  addends.element = batch_.element;
  addends.sum = worker->row.data();
  std::size_t entered = worker->next;
  const auto next = [&](Window* window, std::size_t at_once) {
    window->count = std::min(at_once, worker->list.size() - entered);
    std::copy_n(worker->list.begin() + static_cast<std::ptrdiff_t>(entered), window->count,
                window->index.begin());
    entered += window->count;
  };
  const auto prepare = [&](const Window* window, std::size_t ahead) {
    PrefetchForApply(operations, reclaim, *window, ahead);
  };
  const auto carry_out = [&](const Window& window) {
    for (std::size_t k = 0; k < window.count; ++k) {
      const std::size_t i = window.index[k];
      const Op op = KindOf(i);
      Plan plan = plans[std::min<std::uint32_t>(static_cast<std::uint8_t>(op), kOpKinds)];
      Outcome outcome;
      // Most values that would be drawn are not needed.
      if (op == Op::kFindOrInsert && window.Found(k)) {
        outcome = operations.FindAgain(window.candidates[k], window.found[k]);
      } else if (op == Op::kFindOrInsert && DrawsInitialValues()) {
        outcome = operations.Find(window.candidates[k], window.keys[k]);
      }
      if (!outcome.present) {
        const std::byte* const value = MakeValue(i, window.keys[k], worker);
        plan.absent_value = plan.present_value = value;
        if (plan.if_present == Action::kAdd) {
          addends.rows = value;
          plan.addends = &addends;
        }
        outcome = operations.Apply(window.candidates[k], window.keys[k], plan, window.found[k]);
      }
      worker->progress.items_added += ItemsAdded(plan, outcome);
      if (outcome.shortage != Shortage::kNothing && !final_attempt) {
        // What comes after it may not lack anything: it is not counted.
        (outcome.shortage == Shortage::kSlot ? worker->progress.short_of_slots
                                             : worker->progress.short_of_cells) = 1;
        return false;
      }
      if (GivesValue(op, HasValueFor(op)) && outcome.present) {
        const bool hit = batch_.found.empty() ||
                         operations.ReadAndKeep(window.candidates[k], outcome, FoundAt(i));
        ++worker->progress.found;
        worker->progress.cache_hits += hit ? 1 : 0;
      } else if (plan.absent_value != nullptr && op == Op::kFindOrInsert && !batch_.found.empty()) {
        std::memcpy(FoundAt(i), plan.absent_value, value_size_);
      }
      batch_.results[i] = outcome.shortage != Shortage::kNothing
                              ? Result::kNoSpace
                              : ResultOf(op, outcome.present, HasValueFor(op));
      ++worker->next;
      ++worker->progress.carried_out;
    }
    return true;
  };
  if (can_run) {
    ForWindows(operations, next, prepare, carry_out);
  } else {
    worker->progress.short_of_slots = 1;
  }
  for (std::size_t k = worker->next; k < worker->list.size(); ++k) {  // until it is finished
    batch_.results[worker->list[k]] = Result::kNoSpace;
  }
  reclaim.ReturnCells(0, 1);
  reclaim.QueueRetired();
}

}  // namespace gpm

#endif  // GPM_ENGINE_CPU_BATCH_RUNS_H_
