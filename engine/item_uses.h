#ifndef GPM_ENGINE_ITEM_USES_H_
#define GPM_ENGINE_ITEM_USES_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "engine/word_map.h"
#include "gpmstore/batch.h"
#include "gpmstore/options.h"
#include "pm/mutex.h"
#include "pm/thread_pool.h"

namespace gpm {

/// A word that stands for a key, the same in every pool; 0 stands for none. Its low bits are free
/// for a UseKind.
std::uint64_t IdOfKey(const std::byte* key, std::uint32_t key_size);

/// What an operation was for its item.
enum class UseKind : std::uint8_t {
  kNone,    ///< it found no item
  kUsed,    ///< it found the item
  kPut,     ///< it found the item, or added it
  kAdded,   ///< it added the item
  kErased,  ///< it removed the item
};
UseKind UseOf(Op op, Result result);

/// How the items of a store were used, as far as a policy wants to know. Volatile: what was in the
/// pool when it was opened is not known.
///
/// Invariants:
///  1. The uses of batches are taken in the order in which those began, whatever the order in which
///     they ended: those of a batch wait for all that began before it. So the ranks, when all
///     batches have ended, follow from the batches alone.
///
/// Thread safety: any thread.
class ItemUses {
 public:
  /// @param threads outlive it
  ItemUses(EvictionPolicy policy, ThreadPool& threads) : policy_(policy), threads_(threads) {}

  /// Whether it wants to know of operations of a kind.
  bool Wants(Op op) const;
  bool WantsAny() const { return policy_ != EvictionPolicy::kScore; }

  /// A batch begins. @return its number @throws std::bad_alloc
  std::uint64_t Begin();
  /// It has ended. @param uses ids with their kinds (Use), in batch order; 0: none
  void End(std::uint64_t batch, std::vector<std::uint64_t> uses) noexcept;
  /// It has ended, and nobody knows how; takes little time.
  void Forget(std::uint64_t batch) noexcept;
  static std::uint64_t Use(std::uint64_t id, UseKind kind) {
    return id | static_cast<std::uint64_t>(kind);
  }

  /// The ranks of items: the lowest go first; 0 of those that are unknown. Forgets all others if
  /// those are many: a DeviceView erased them. Uses so far count half from now on.
  /// @param keys, stride, count of the items, in host memory; bytes
  /// REQUIRES: all batches have ended. @throws std::bad_alloc
  std::vector<std::uint64_t> Rank(const std::byte* keys, std::uint64_t stride, std::uint64_t count,
                                  std::uint32_t key_size);
  /// The ranks that ids have now, 0 of those that are unknown. REQUIRES: all batches have ended.
  /// @throws std::bad_alloc
  std::vector<std::uint64_t> RanksOf(const std::vector<std::uint64_t>& ids);

 private:
  /// Ranks of `count` ids, id_of(i) each.
  template <class IdOf>
  std::vector<std::uint64_t> Look(std::uint64_t count, const IdOf& id_of) GPM_REQUIRES(mutex_);
  void TakeEnded() GPM_REQUIRES(mutex_);
  void Take(std::uint64_t batch, const std::vector<std::uint64_t>& uses) GPM_REQUIRES(mutex_);
  void TakeOne(std::uint64_t batch, std::uint64_t use) GPM_REQUIRES(mutex_);

  /// Threads that take uses have some of the maps each: so those of one item stay in their order.
  static constexpr std::uint64_t kMaps = 16;
  static std::uint64_t MapOf(std::uint64_t id) { return id >> 60; }

  const EvictionPolicy policy_;
  ThreadPool& threads_;
  Mutex mutex_;
  std::uint64_t begun_ GPM_GUARDED_BY(mutex_) = 0;
  std::set<std::uint64_t> running_ GPM_GUARDED_BY(mutex_);
  /// Of batches that have ended, before some that began earlier.
  std::map<std::uint64_t, std::vector<std::uint64_t>> waiting_ GPM_GUARDED_BY(mutex_);
  std::array<WordMap, kMaps> ranks_ GPM_GUARDED_BY(mutex_);
};

}  // namespace gpm

#endif  // GPM_ENGINE_ITEM_USES_H_
