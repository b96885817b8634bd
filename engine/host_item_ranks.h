#ifndef GPM_ENGINE_HOST_ITEM_RANKS_H_
#define GPM_ENGINE_HOST_ITEM_RANKS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/batch_executor.h"
#include "engine/item_ranks.h"
#include "engine/victims.h"
#include "engine/word_map.h"
#include "pm/thread_pool.h"

namespace gpm {

/// Ranks in host memory, 21 to 43 bytes for each item, which threads look through. Where those that
/// are not used keep their order, Choose sees half of the items, and so some evictions do without.
class HostItemRanks : public ItemRanks {
 public:
  HostItemRanks(const RankedItems& of, BatchExecutor& executor);

  std::unique_ptr<NotedUses> Note(const Batch& batch) override;
  void Take(std::uint64_t batch, const NotedUses& uses) override;
  std::unique_ptr<KeysOfBatch> LookAt(const Batch& batch, const Find& find) override;
  std::vector<std::byte> ChooseAgain(std::uint64_t wanted, const KeysOfBatch* kept) override;
  void ForgetSeen() override { victims_.Clear(); }
  void ReadScores(TableCopy* items) override;
  std::vector<std::byte> Choose(TableCopy* items, std::uint64_t wanted,
                                const KeysOfBatch* kept) override;

 private:
  struct Uses;
  struct Keys;
  /// The rank of each of `count` ids, id_of(i); 0 of those that are unknown.
  template <class IdOf>
  std::vector<std::uint64_t> Look(std::uint64_t count, const IdOf& id_of);
  std::vector<std::uint64_t> Rank(const std::byte* keys, std::uint64_t stride, std::uint64_t count);
  void TakeOne(std::uint64_t batch, std::uint64_t use);

  /// Threads that take uses have some of the maps each: so those of one item stay in their order.
  static constexpr std::uint64_t kMaps = 16;
  static std::uint64_t MapOf(std::uint64_t id) { return id >> 60; }

  const RankedItems of_;
  BatchExecutor& executor_;
  ThreadPool threads_;
  Victims victims_;
  std::array<WordMap, kMaps> ranks_;
  std::vector<std::uint64_t> scores_;  ///< ReadScores
};

}  // namespace gpm

#endif  // GPM_ENGINE_HOST_ITEM_RANKS_H_
