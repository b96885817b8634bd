#ifndef GPM_ENGINE_VICTIMS_H_
#define GPM_ENGINE_VICTIMS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/word_map.h"
#include "pm/thread_pool.h"

namespace gpm {

/// The items of a store that go first, in their order: by rank, among equals by id, and then by
/// key. They are chosen by one look at all items; who evicts takes the next of them, for as long as
/// their ranks are what they were.
///
/// Thread safety: none.
class Victims {
 public:
  /// @param threads outlive it
  Victims(std::uint32_t key_size, ThreadPool& threads) : key_size_(key_size), threads_(threads) {}

  /// Items, in host memory.
  struct Items {
    const std::byte* keys = nullptr;
    std::uint64_t stride = 0;  ///< bytes from one key to the next
    const std::vector<std::uint64_t>& ranks;
  };
  /// Chooses the `count` items that go first, and those that have the same rank as the last of
  /// them. Those that were chosen before are forgotten. @throws std::bad_alloc
  void Choose(const Items& items, std::uint64_t count);

  /// The ranks that ids have now.
  using RanksOf = std::function<std::vector<std::uint64_t>(const std::vector<std::uint64_t>& ids)>;
  /// Takes the next items, at most so many: fewer if there are no more.
  /// @param kept ids of those that stay, also here
  /// @param ranks_of who does not have its rank any more is left out; null: all have
  /// @return their keys @throws std::bad_alloc; then nothing is chosen any more
  std::vector<std::byte> Take(std::uint64_t count, const WordMap& kept, const RanksOf& ranks_of);

  bool empty() const { return heads_.empty(); }
  /// Of the next one. REQUIRES: !empty()
  std::uint64_t NextRank() const { return victims_[heads_.front().next].rank; }
  void Clear();

 private:
  struct Victim {
    std::uint64_t rank;
    std::uint64_t id;
    std::uint64_t row;  ///< of keys_
  };
  /// Victims [next, end), in their order.
  struct Run {
    std::uint64_t next;
    std::uint64_t end;
  };
  const std::byte* KeyOf(const Victim& victim) const {
    return keys_.data() + victim.row * key_size_;
  }
  bool GoesFirst(const Victim& a, const Victim& b) const;
  /// Of a heap of runs.
  bool ComesLater(const Run& a, const Run& b) const {
    return GoesFirst(victims_[b.next], victims_[a.next]);
  }
  void Push(const Run& run);
  Victim Pop();

  const std::uint32_t key_size_;
  ThreadPool& threads_;
  std::vector<Victim> victims_;
  std::vector<std::byte> keys_;
  std::vector<Run> heads_;  ///< a heap, with the run of which the next goes first in front
};

}  // namespace gpm

#endif  // GPM_ENGINE_VICTIMS_H_
