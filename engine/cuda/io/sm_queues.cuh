#ifndef GPM_ENGINE_CUDA_IO_SM_QUEUES_CUH_
#define GPM_ENGINE_CUDA_IO_SM_QUEUES_CUH_

#include <cstdint>

#include "engine/cuda/sync/barriers.cuh"
#include "table/volatile_ops.h"

namespace gpm {

/// Accesses to persistent memory, dealt out to the multiprocessors by address.
///
/// An access costs its address translation. A GPU keeps the translations of some 512 MiB near each
/// of its clusters of multiprocessors. Any other access waits for a walk of the page table, of
/// which there are about 60 million a second, or 42 when other traffic has driven the table out of
/// the L2.
///
/// So the pool is dealt out, 2 MiB at a time, to *queues*. Two neighbouring multiprocessors share
/// one (fewer queues are evener), and make the accesses to its regions in every batch. Up to some
/// GiB, translations then stay where they are needed, and accesses take what the link takes for
/// their bytes. (On an H200, 77,000 reads of 128 bytes over 2 GiB, behind other traffic: 1.28 ms as
/// they come, 0.68 in the order of addresses, 0.20 dealt out. Over 6 GiB, in order is faster.)
///
/// All items are added before any is taken: by an earlier kernel (SmQueueConsumer), or before
/// blocks meet (FewItemsConsumer). A trivially copyable view.
template <class Item>
struct SmQueues {
  static constexpr std::uint32_t kMaxQueues = 256;
  static constexpr std::uint32_t kSharers = 2;       ///< multiprocessors of a queue
  static constexpr std::uint32_t kListsOfQueue = 8;  ///< so that few add to the same one at a time
  static constexpr std::uint32_t kMaxLists = kMaxQueues * kListsOfQueue;
  static constexpr std::uint32_t kRegionBits = 21;
  // Places in `counts`, behind those of the lists:
  static constexpr std::uint32_t kSurplus = kMaxLists;    ///< items that had no room in their list
  static constexpr std::uint32_t kTaken = kMaxLists + 1;  ///< of each queue, and of the surplus
  static constexpr std::uint32_t kBlocksDone = kTaken + kMaxQueues + 1;
  static constexpr std::uint32_t kAsked = kBlocksDone + 1;  ///< items that somebody wanted so far
  static constexpr std::uint32_t kCounts = kAsked + 1;

  Item* items = nullptr;  ///< `room` for each list, then the surplus
  /// kCounts; all 0 but from the kernel that adds to the one that takes.
  std::uint32_t* counts = nullptr;
  std::uint32_t queues = 0;
  std::uint32_t room = 0;

  /// Items that a list has room for: twice what it gets when items are spread evenly.
  static constexpr std::uint32_t RoomFor(std::uint64_t items, std::uint32_t queues) {
    return static_cast<std::uint32_t>(2 * items / (queues * kListsOfQueue) + 16) & ~1u;
  }
  std::uint64_t SizeFor(std::uint64_t most_items) const {
    return std::uint64_t{queues} * kListsOfQueue * room + most_items;
  }

  GPM_HD bool enabled() const { return items != nullptr; }
  /// @param offset in the pool, of the address that the item is about
  __device__ void Add(std::uint64_t offset, Item item) const {
    const auto region = static_cast<std::uint32_t>(offset >> kRegionBits);
    const std::uint32_t list = region % queues * kListsOfQueue + blockIdx.x % kListsOfQueue;
    // One addition for the threads of a warp that add to the same list: neighbours often do.
    const std::uint32_t same = __match_any_sync(__activemask(), list);
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t first = LowestBit(same);
    std::uint32_t at = 0;
    if (lane == first) at = atomicAdd(&counts[list], PopCount(same));
    at = __shfl_sync(same, at, first) + PopCount(same & ((1u << lane) - 1));
    if (at < room) {
      items[list * room + at] = item;
    } else {
      items[queues * kListsOfQueue * room + atomicAdd(&counts[kSurplus], 1u)] = item;
    }
  }
  /// Queues for so many multiprocessors.
  static constexpr std::uint32_t QueuesFor(std::uint32_t multiprocessors) {
    const std::uint32_t pairs = (multiprocessors + kSharers - 1) / kSharers;
    return pairs < kMaxQueues ? pairs : kMaxQueues;
  }
  /// Empties the queues, by all threads of the last team that takes items.
  template <class Team = WholeBlock>
  __device__ void Clear() const {
    for (std::uint32_t k = Team::Rank(); k < kCounts; k += Team::Size()) counts[k] = 0;
  }
  /// The queue of the multiprocessor that the thread runs on.
  __device__ std::uint32_t OwnQueue() const {
    std::uint32_t multiprocessor = 0;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return multiprocessor / kSharers % queues;
  }
};

/// Where a block is in the queues; in shared memory. All threads of the team call all functions.
template <class Item, class Team = WholeBlock>
struct SmQueueCursor {
  using Lists = SmQueues<Item>;
  static constexpr std::uint32_t kNone = ~0u;

  std::uint32_t ends[Lists::kListsOfQueue];  ///< of the queue's lists, one behind the other
  std::uint32_t queue;     ///< `queues` is the surplus; kNone before the first one
  std::uint32_t own;       ///< the multiprocessor's, for all threads the same
  std::uint32_t first;     ///< item that was taken
  std::uint32_t surplus;   ///< items
  std::uint32_t distance;  ///< of queues

  /// By one thread, and a barrier follows.
  __device__ void Begin(const Lists& lists) {
    queue = kNone;
    own = lists.OwnQueue();
  }
  /// Takes `most` items of a queue. @return whether there were any, from `first` on
  __device__ bool Take(const Lists& lists, std::uint32_t p, std::uint32_t most) {
    return Taken(lists, p, Asked(lists, p, most));
  }
  /// Asks for up to `most` items, for TakeSome, until which threads may do something else.
  __device__ std::uint32_t Ask(const Lists& lists, std::uint32_t most) const {
    return Asked(lists, Next(), most);
  }
  /// Takes up to `most` items of the queue that it is at, or else of the next one that has any.
  /// @param asked Ask's answer @return how many, from `first` on; 0: there are none
  __device__ std::uint32_t TakeSome(const Lists& lists, std::uint32_t most, std::uint32_t asked) {
    bool any = Taken(lists, Next(), asked);
    while (!any) {
      const std::uint32_t p = Find(lists, queue, false);
      if (p == kNone) return 0;
      any = Take(lists, p, most);
    }
    return min(most, End() - first);
  }
  __device__ std::uint32_t TakeSome(const Lists& lists, std::uint32_t most) {
    return TakeSome(lists, most, Ask(lists, most));
  }
  /// Whether any items are left.
  __device__ bool HasMore(const Lists& lists) { return Find(lists, Next(), false) != kNone; }
  __device__ std::uint32_t End() const { return ends[Lists::kListsOfQueue - 1]; }
  __device__ Item At(const Lists& lists, std::uint32_t k) const {
    std::uint32_t list = 0;
    while (k >= ends[list]) ++list;
    const std::uint32_t begin = list == 0 ? 0 : ends[list - 1];
    return lists.items[(queue * Lists::kListsOfQueue + list) * lists.room + k - begin];
  }
  /// The next queue behind `from` that has items left, or kNone.
  /// @param untouched it has to be one of which nothing was taken
  __device__ std::uint32_t Find(const Lists& lists, std::uint32_t from, bool untouched) {
    const std::uint32_t all_queues = lists.queues + 1;  // with the surplus
    Team::Sync();
    if (Team::Rank() == 0) distance = kNone;
    Team::Sync();
    for (std::uint32_t p = Team::Rank(); p < all_queues; p += Team::Size()) {
      const std::uint32_t taken = AtomicLoad32(&lists.counts[Lists::kTaken + p]);
      std::uint32_t all = 0;
      for (std::uint32_t list = 0; list < Lists::kListsOfQueue; ++list) {
        all += Length(lists, p, list);
      }
      if (all > taken && (taken == 0 || !untouched)) {
        atomicMin(&distance, (p + all_queues - from) % all_queues);
      }
    }
    Team::Sync();
    return distance == kNone ? kNone : (from + distance) % all_queues;
  }

 private:
  __device__ std::uint32_t Next() const { return queue == kNone ? own : queue; }
  /// What a thread has to know to take items, in flight: one asks for them, and others, so that
  /// nobody waits for the others' loads, for what a queue has that the block is not at yet.
  __device__ std::uint32_t Asked(const Lists& lists, std::uint32_t p, std::uint32_t most) const {
    if (Team::Rank() == 32) return atomicAdd(&lists.counts[Lists::kTaken + p], most);
    if (queue == p) return 0;
    if (Team::Rank() == 64) return AtomicLoad32(&lists.counts[Lists::kSurplus]);
    return Team::Rank() < Lists::kListsOfQueue ? Length(lists, p, Team::Rank()) : 0;
  }
  /// @param asked of the thread @return whether there were any
  __device__ bool Taken(const Lists& lists, std::uint32_t p, std::uint32_t asked) {
    constexpr std::uint32_t kLists = Lists::kListsOfQueue;
    constexpr std::uint32_t kLanes = (1u << kLists) - 1;
    const bool opens = queue != p;
    Team::Sync();  // what is about to be overwritten has been read
    if (Team::Rank() == 32) {
      first = asked;
    } else if (opens && Team::Rank() == 64) {
      surplus = asked;
    } else if (opens && Team::Rank() < kLists) {
      std::uint32_t end = asked;
      for (std::uint32_t step = 1; step < kLists; step *= 2) {
        const std::uint32_t before = __shfl_up_sync(kLanes, end, step);
        if (Team::Rank() >= step) end += before;
      }
      ends[Team::Rank()] = end;
      queue = p;
    }
    Team::Sync();
    return first < End();
  }
  __device__ static std::uint32_t Length(const Lists& lists, std::uint32_t p, std::uint32_t list) {
    if (p < lists.queues) {
      return min(AtomicLoad32(&lists.counts[p * Lists::kListsOfQueue + list]), lists.room);
    }
    return list == 0 ? AtomicLoad32(&lists.counts[Lists::kSurplus]) : 0;
  }
};

/// Hands all items to the blocks of a kernel; in shared memory.
template <class Item>
struct SmQueueConsumer {
  using Lists = SmQueues<Item>;

  SmQueueCursor<Item> at;
  bool is_last;

  /// Calls visit(item, has_one) in all threads; `kGroups` groups of threads get an item at a time.
  /// A block takes the items of its multiprocessor's queue, then the surplus, then those of queues
  /// that no block has begun with, since their multiprocessors run none. Blocks share them. All
  /// blocks that take items call it once, and IsLast then.
  template <std::uint32_t kGroups, class Visit>
  __device__ void ForEach(const Lists& lists, const Visit& visit) {
    if (threadIdx.x == 0) at.Begin(lists);
    __syncthreads();
    const std::uint32_t own = at.own;
    for (std::uint32_t p = own; p != SmQueueCursor<Item>::kNone;) {
      while (at.Take(lists, p, kGroups)) {
        const std::uint32_t end = at.End();
        const std::uint32_t k = at.first + threadIdx.x / (blockDim.x / kGroups);
        const bool is_end = at.first + kGroups >= end;
        visit(k < end ? at.At(lists, k) : Item{}, k < end);
        if (is_end) break;
      }
      p = p == own && at.surplus != 0 ? lists.queues : at.Find(lists, own, true);
    }
  }
  /// @param blocks that take items
  /// @return whether this is the last one: it sees what the others did, and has to clear the queues
  __device__ bool IsLast(const Lists& lists, std::uint32_t blocks = gridDim.x) {
    return IsLastBlock(&lists.counts[Lists::kBlocksDone], &is_last, blocks);
  }
};

/// The same for few items, whose number is known. A block that has done its own queue, and the
/// surplus with the others (of items side by side that is most of them), does not look for queues
/// that no block has begun with: the last block takes those. In shared memory. All threads of the
/// team, of all blocks of a kernel, call all functions.
template <class Item, class Team = WholeBlock>
struct FewItemsConsumer {
  using Lists = SmQueues<Item>;
  /// kBlocksDone has the number of blocks, and above that those of items that they handled.
  static constexpr std::uint32_t kBlockBits = 11;
  static constexpr std::uint32_t kMaxBlocks = (1u << kBlockBits) - 1;

  SmQueueCursor<Item, Team> at;
  std::uint32_t items;    ///< in the lists; 0 when the last block knows that all are handled
  std::uint32_t handled;  ///< by the block
  bool is_end;            ///< of the block's own queue
  bool is_last;

  /// @param all items in the lists: 1 to 2^21 - 1
  __device__ void Begin(const Lists& lists, std::uint32_t all) {
    Team::Sync();
    if (Team::Rank() == 0) {
      at.Begin(lists);
      items = all;
      handled = 0;
      is_end = is_last = false;
    }
    Team::Sync();
  }
  /// Takes items, one for each of `kGroups` groups of threads.
  /// @param item of the thread's group, `has_one` whether there is one
  /// @return whether the block has any. If the last block (IsLast) has none, all were handled, it
  ///         sees what was done with them, and it has to clear the queues
  template <std::uint32_t kGroups>
  __device__ bool Next(const Lists& lists, Item* item, bool* has_one) {
    const std::uint32_t group = Team::Rank() / (Team::Size() / kGroups);
    std::uint32_t taken = 0;
    Team::Sync();
    if (!is_end && at.Take(lists, at.own, kGroups)) taken = min(kGroups, at.End() - at.first);
    if (taken == 0 && !is_last && at.surplus != 0 && at.Take(lists, lists.queues, kGroups)) {
      taken = min(kGroups, at.End() - at.first);
    }
    if (taken == 0 && !is_last) Arrive(lists);
    if (taken == 0 && is_last && items != 0) taken = at.TakeSome(lists, kGroups);
    if (Team::Rank() == 0) {
      handled += taken;
      is_end = taken < kGroups || is_last;
      if (taken == 0 && is_last) __threadfence();
    }
    *has_one = group < taken;
    *item = group < taken ? at.At(lists, at.first + group) : Item{};
    return taken != 0;
  }
  __device__ bool IsLast() const { return is_last; }

 private:
  __device__ void Arrive(const Lists& lists) {
    Team::Sync();
    if (Team::Rank() == 0) {
      __threadfence();
      const std::uint32_t own = handled << kBlockBits | 1;
      const std::uint32_t done = atomicAdd(&lists.counts[Lists::kBlocksDone], own) + own;
      is_last = done % (1u << kBlockBits) == gridDim.x;
      if (done >> kBlockBits == items) items = 0;  // nothing is left
    }
    Team::Sync();
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_IO_SM_QUEUES_CUH_
