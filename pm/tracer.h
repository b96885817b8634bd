#ifndef GPM_PM_TRACER_H_
#define GPM_PM_TRACER_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "pm/steps.h"

namespace gpm {

/// Carries out every access to the persistent memory of one pool, in place of the hardware: what
/// records traces, schedules threads and leaves out steps stands behind this (tests/crash/). A
/// Mapping that was given one passes it on through its Persist; a store on such a pool runs its
/// batches on the traced cpu executor, and reports to it every load, store, compare-and-swap, flush
/// and fence of the protocols, of resizing, of the superblock and of recovery.
///
/// Words are 8 bytes, aligned; a store of fewer bytes is one of the whole word.
class PmTracer {
 public:
  virtual ~PmTracer() = default;

  /// The pool's bytes are now [base, base + bytes): when it is mapped, and when it has grown. New
  /// bytes hold what the file holds; those that growth added to the file are zero, durably.
  virtual void Mapped(std::byte* base, std::uint64_t bytes) = 0;

  virtual std::uint64_t Load(const std::uint64_t* word) = 0;
  virtual void Store(std::uint64_t* word, std::uint64_t value) = 0;
  virtual bool Cas(Step step, std::uint64_t* word, std::uint64_t expected,
                   std::uint64_t desired) = 0;
  virtual void Flush(Step step, const void* address, std::uint64_t bytes) = 0;
  virtual void Fence(Step step) = 0;

  /// Waits for and takes a lock in volatile memory: 0 is free, 1 is taken.
  virtual void Acquire(Step step, std::uint32_t* lock) = 0;
  virtual void Release(Step step, std::uint32_t* lock) = 0;
  /// An access to volatile memory that threads share. @return whether to carry out the step
  virtual bool Shared(Step step) = 0;
  /// The caller waits for another thread; called again and again until that has happened.
  virtual void Pause() = 0;
  /// Runs part(0) ... part(parts - 1), each as a thread of its own, to their ends.
  virtual void RunParts(std::size_t parts, const std::function<void(std::size_t)>& part) = 0;
};

}  // namespace gpm

#endif  // GPM_PM_TRACER_H_
