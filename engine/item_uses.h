#ifndef GPM_ENGINE_ITEM_USES_H_
#define GPM_ENGINE_ITEM_USES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "engine/item_ranks.h"
#include "gpmstore/options.h"
#include "pm/mutex.h"

namespace gpm {

/// Hands the uses that batches make of items to the ranks.
///
/// Invariants:
///  1. The uses of batches are taken in the order in which those began, whatever the order in which
///     they ended: those of a batch wait for all that began before it. So the ranks, when all
///     batches have ended, follow from the batches alone.
///
/// Thread safety: any thread.
class ItemUses {
 public:
  ItemUses(EvictionPolicy policy, std::unique_ptr<ItemRanks> ranks)
      : policy_(policy), ranks_(std::move(ranks)) {}

  /// Whether it wants to know of operations of a kind.
  bool Wants(Op op) const;
  bool WantsAny() const { return policy_ != EvictionPolicy::kScore; }

  /// A batch begins. @return its number @throws std::bad_alloc
  std::uint64_t Begin();
  /// It has ended. What fails is as if it had used its items longer ago.
  void End(std::uint64_t number, const Batch& batch) noexcept;
  /// It has ended, and nobody knows how.
  void Forget(std::uint64_t number) noexcept;

  /// Nothing is called any more but this: the executor, whose memory the ranks may be in, goes.
  void Drop() noexcept {
    const MutexLock lock(mutex_);
    waiting_.clear();
    ranks_.reset();
  }

  /// ItemRanks::LookAt. Of who has the turn (Bound).
  std::unique_ptr<KeysOfBatch> LookAt(const Batch& batch, const ItemRanks::Find& find) {
    return ranks_->LookAt(batch, find);
  }
  /// Calls use(ranks) when all that has ended was taken. REQUIRES: all batches that write have
  /// ended. @return what it returns
  template <class Use>
  auto WithRanks(const Use& use) {
    const MutexLock lock(mutex_);
    TakeEnded();
    return use(*ranks_);
  }

 private:
  void TakeEnded() noexcept GPM_REQUIRES(mutex_);

  const EvictionPolicy policy_;
  std::unique_ptr<ItemRanks> ranks_;  ///< mutex_ is held, but for Note and LookAt
  Mutex mutex_;
  std::uint64_t begun_ GPM_GUARDED_BY(mutex_) = 0;
  std::set<std::uint64_t> running_ GPM_GUARDED_BY(mutex_);
  /// Of batches that have ended, before some that began earlier.
  std::map<std::uint64_t, std::unique_ptr<NotedUses>> waiting_ GPM_GUARDED_BY(mutex_);
};

}  // namespace gpm

#endif  // GPM_ENGINE_ITEM_USES_H_
