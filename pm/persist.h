#ifndef GPM_PM_PERSIST_H_
#define GPM_PM_PERSIST_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pm/steps.h"

namespace gpm {

class PmTracer;

/// How CPU stores to a mapping become durable, in order. Chosen once, when the pool is mapped
/// (the idea is PMDK's): on persistent memory without eADR, cache lines are flushed and drained
/// through libpmem; everywhere else (page cache, eADR, DRAM) stores persist in the order in which
/// they become visible, and x86 keeps that order by itself. A pool that is traced hands all of it
/// to its tracer.
///
/// Thread safety: immutable after construction.
class Persist {
 public:
  using FlushFn = void (*)(const void*, std::size_t);
  using DrainFn = void (*)();

  Persist() = default;
  Persist(FlushFn flush, DrainFn drain) : explicit_(true), flush_(flush), drain_(drain) {}
  explicit Persist(PmTracer* tracer) : explicit_(true), tracer_(tracer) {}

  /// True when lines must be flushed explicitly to survive power loss.
  bool needs_flush() const { return explicit_; }
  /// Who carries out every access to the pool; null: the hardware.
  PmTracer* tracer() const { return tracer_; }

  /// Starts writing back the lines of [address, address + bytes). Durable after the next Fence.
  void Flush(Step step, const void* address, std::size_t bytes) const {
    if (explicit_) FlushExplicitly(step, address, bytes);
  }

  /// Orders the stores and flushes before it ahead of the stores after it. Where nothing has to be
  /// drained this only holds the compiler back: protocol stores have release semantics already
  /// (DirectMedia), which is all the order that page cache, DRAM and eADR need.
  void Fence(Step step) const {
    if (explicit_) FenceExplicitly(step);
    std::atomic_signal_fence(std::memory_order_acq_rel);
  }

  /// Write, copy within the pool, or fill with zeros, bytes of it: for its administration
  /// (superblock, levels). Addresses and lengths are multiples of 8.
  void Write(void* target, const void* source, std::size_t bytes) const;
  void Copy(void* target, const void* source, std::size_t bytes) const;
  void Zero(void* target, std::size_t bytes) const;

 private:
  void FlushExplicitly(Step step, const void* address, std::size_t bytes) const;
  void FenceExplicitly(Step step) const;

  bool explicit_ = false;  ///< there is a tracer, or lines are flushed
  FlushFn flush_ = nullptr;
  DrainFn drain_ = nullptr;
  PmTracer* tracer_ = nullptr;
};

}  // namespace gpm

#endif  // GPM_PM_PERSIST_H_
