#ifndef GPM_ENGINE_BOUND_H_
#define GPM_ENGINE_BOUND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/admission.h"
#include "engine/item_uses.h"
#include "gpmstore/options.h"
#include "gpmstore/stats.h"
#include "pm/mutex.h"
#include "table/geometry.h"

namespace gpm {

/// @throws Error(kInvalidArgument) saying what would be right, for values of so many bytes
void ValidateCapacity(const Capacity& capacity, std::uint32_t value_size);
/// A capacity with its items: if it has bytes instead, as many as such a pool has room for.
/// @param grow_above as in OpenOptions
/// @throws Error(kInvalidArgument) saying what would be right
Capacity CapacityInItems(const Capacity& capacity, std::uint32_t key_size, std::uint32_t value_size,
                         const Growth& growth, double grow_above);

/// What a store with a capacity knows of its items and of the batches that add some.
///
/// Invariants:
///  1. Items, and what batches that run may add, are at most the capacity, but for a pool that had
///     more when it was opened: who begins a batch that may add items has the turn, and has made
///     way for it (StoreImpl::MakeWay).
///  2. While no batch erases, items stay, and a batch that has looked at its keys adds those alone
///     that it missed. One that erases beside it makes no room: what it erases, the other may add
///     again. So from then on, until all that add have ended, nobody trusts such looks
///     (`erased_beside_`).
///
/// Thread safety: any thread.
class Bound {
 public:
  /// @param items of what capacity, in items, and of which pool @param executor outlives it
  Bound(const RankedItems& items, BatchExecutor& executor);

  const Capacity& capacity() const { return capacity_; }
  ItemUses& uses() { return uses_; }

  /// Who begins a batch that may add items.
  class Turn {
   public:
    /// Waits for it. @param wait if not, it is kBusy where another thread has it
    /// @throws Error(kBusy)
    Turn(Bound& bound, bool wait);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    /// This thread had it before: the store's log calls the store.
    bool nested() const { return !lock_.owns_lock(); }

   private:
    Bound& bound_;
    std::unique_lock<std::mutex> lock_;
  };

  /// A look at items beside the batches in flight.
  struct Look {
    bool stays = false;  ///< nobody erases beside it, nor has beside a batch that may add items
    std::uint64_t erasers = 0;   ///< that had begun before
    std::uint64_t reserved = 0;  ///< items that batches in flight may add at most, if it stays
  };
  /// To be called before items are counted, and then looked at.
  Look BeginLook();
  /// Whether what was seen is still so.
  bool Holds(const Look& look);

  /// Items that a batch may add.
  struct MayAdd {
    std::uint64_t most = 0;  ///< in any case
    Look look{};
    std::uint64_t missing = 0;  ///< at most, as long as that holds
  };
  /// For a batch that begins, or a scope if there is no batch.
  /// @return null where nothing has to be known of it
  std::unique_ptr<BatchWatch> Watch(const Batch* batch, const MayAdd& adds);
  /// Items that batches which run may add, in any case.
  std::uint64_t reserved();

  void Count(std::uint64_t evicted, double seconds);
  void AddTo(StoreStats* stats) const;

 private:
  class BatchUses;

  static bool MayErase(const Batch* batch);
  bool HoldsStill(const Look& look) const GPM_REQUIRES(mutex_) {
    return look.stays && look.erasers == erasers_begun_;
  }

  const Capacity capacity_;
  ItemUses uses_;
  std::mutex turn_;
  std::atomic<std::uint64_t> turn_of_ = 0;  ///< a ThreadNumber
  Mutex mutex_;
  std::uint64_t adders_ GPM_GUARDED_BY(mutex_) = 0;    ///< batches in flight that may add items
  std::uint64_t reserved_ GPM_GUARDED_BY(mutex_) = 0;  ///< that those may add, in any case
  std::uint64_t missing_ GPM_GUARDED_BY(mutex_) = 0;   ///< that they may, while their looks hold
  std::uint64_t erasers_ GPM_GUARDED_BY(mutex_) = 0;   ///< batches in flight that may erase items
  std::uint64_t erasers_begun_ GPM_GUARDED_BY(mutex_) = 0;
  bool erased_beside_ GPM_GUARDED_BY(mutex_) = false;  ///< an eraser began while there were adders
  std::atomic<std::uint64_t> evicted_{0};
  std::atomic<std::uint64_t> evictions_{0};
  std::atomic<double> seconds_{0};
};

}  // namespace gpm

#endif  // GPM_ENGINE_BOUND_H_
