#ifndef GPM_PM_PERSIST_H_
#define GPM_PM_PERSIST_H_

#include <atomic>
#include <cstddef>

namespace gpm {

/// How CPU stores to a mapping become durable, in order. Chosen once, when the pool is mapped
/// (the idea is PMDK's): on persistent memory without eADR, cache lines are flushed and drained
/// through libpmem; everywhere else (page cache, eADR, DRAM) stores persist in the order in which
/// they become visible, and x86 keeps that order by itself.
///
/// Thread safety: immutable after construction.
class Persist {
 public:
  using FlushFn = void (*)(const void*, std::size_t);
  using DrainFn = void (*)();

  Persist() = default;
  Persist(FlushFn flush, DrainFn drain) : flush_(flush), drain_(drain) {}

  /// True when lines must be flushed explicitly to survive power loss.
  bool needs_flush() const { return flush_ != nullptr; }

  /// Starts writing back the lines of [address, address + bytes). Durable after the next Fence.
  void Flush(const void* address, std::size_t bytes) const {
    if (flush_ != nullptr) flush_(address, bytes);
  }

  /// Orders the stores and flushes before it ahead of the stores after it. Where nothing has to be
  /// drained this only holds the compiler back: protocol stores have release semantics already
  /// (DirectMedia), which is all the order that page cache, DRAM and eADR need.
  void Fence() const {
    if (drain_ != nullptr) drain_();
    std::atomic_signal_fence(std::memory_order_acq_rel);
  }

 private:
  FlushFn flush_ = nullptr;
  DrainFn drain_ = nullptr;
};

}  // namespace gpm

#endif  // GPM_PM_PERSIST_H_
