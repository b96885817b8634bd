#ifndef GPM_ENGINE_CUDA_KERNELS_ITEM_RANKS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_ITEM_RANKS_CUH_

#include <cooperative_groups.h>

#include <cub/block/block_scan.cuh>

#include "engine/cuda/kernels/grid_stride.cuh"
#include "engine/item_ranks.h"
#include "engine/search_tiers.h"
#include "table/operation.h"

namespace gpm {

/// The kernels of ranks in GPU memory.

/// Ids, each in a place of its own: open addressing. Ids are evenly distributed words and not 0.
struct IdPlaces {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  std::uint64_t* ids = nullptr;  ///< 0: the place is free, as one at least is
  std::uint64_t room = 0;        ///< places; 0: there are no ids

  __device__ std::uint64_t Home(std::uint64_t id) const { return __umul64hi(id, room); }
  __device__ std::uint64_t Next(std::uint64_t place) const {
    return place + 1 == room ? 0 : place + 1;
  }
  __device__ std::uint64_t Find(std::uint64_t id) const {
    if (room == 0) return kNone;
    for (std::uint64_t place = Home(id);; place = Next(place)) {
      const std::uint64_t there = AtomicLoad(ids + place);
      if (there == id) return place;
      if (there == 0) return kNone;
    }
  }
  /// @param added is counted up if it was not there
  __device__ std::uint64_t FindOrAdd(std::uint64_t id, std::uint64_t* added) const {
    for (std::uint64_t place = Home(id);; place = Next(place)) {
      std::uint64_t there = AtomicLoad(ids + place);
      if (there == 0) {
        there = atomicCAS(reinterpret_cast<unsigned long long*>(ids + place), 0ull, id);
        if (there == 0) {
          // One for the threads that are here together: they all write the same word.
          const auto together = cooperative_groups::coalesced_threads();
          if (together.thread_rank() == 0) AtomicAdd(added, together.size());
          return place;
        }
      }
      if (there == id) return place;
    }
  }
};

/// What is known of items, by place.
struct KnownUses {
  IdPlaces places;
  std::uint64_t* batches = nullptr;  ///< that used the item last, or added it; 0: it is not known
  std::uint32_t* uses = nullptr;
  std::uint32_t* anew = nullptr;  ///< of the batch that is taken: 1 + the last operation with which
                                  ///< the item begins anew, or is none; 0: there is none
  std::uint64_t* added = nullptr;  ///< ids that have places
};

/// The operations of a batch, in memory that kernels reach.
struct OperationArrays {
  const std::byte* keys = nullptr;
  const Op* ops = nullptr;  ///< null: all are of kind `op`
  Op op = Op::kFind;
  const Result* results = nullptr;
  std::uint64_t count = 0;
  std::uint32_t key_size = 0;

  __device__ Op Kind(std::uint64_t i) const { return ops == nullptr ? op : ops[i]; }
  __device__ std::uint64_t Id(std::uint64_t i) const {
    return IdOfKey(keys + i * key_size, key_size);
  }
};

__device__ inline UseKind KindOf(std::uint64_t use) {
  return static_cast<UseKind>(use & kUseKindMask);
}
__device__ inline bool BeginsAnew(std::uint64_t use) {
  return KindOf(use) == UseKind::kAdded || KindOf(use) == UseKind::kErased;
}

/// Notes the use that each operation made.
__global__ void NoteUses(const __grid_constant__ OperationArrays batch, std::uint64_t* uses) {
  for (std::uint64_t i = FirstOfGrid(); i < batch.count; i += GridStep()) {
    const UseKind kind = UseOf(batch.Kind(i), batch.results[i]);
    uses[i] = kind == UseKind::kNone ? 0 : batch.Id(i) | static_cast<std::uint64_t>(kind);
  }
}

/// Puts the places of ids instead of them, above the kinds.
__global__ void PlaceUses(const __grid_constant__ KnownUses known, std::uint64_t* uses,
                          std::uint64_t count) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    const std::uint64_t use = uses[i];
    if (use == 0) continue;
    const std::uint64_t place = known.places.FindOrAdd(use & ~kUseKindMask, known.added);
    if (BeginsAnew(use)) atomicMax(known.anew + place, static_cast<std::uint32_t>(i + 1));
    uses[i] = place * (kUseKindMask + 1) | (use & kUseKindMask);
  }
}

/// Forgets what was before the operations with which items begin anew.
__global__ void BeginAnew(const __grid_constant__ KnownUses known, const std::uint64_t* uses,
                          std::uint64_t count) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    const std::uint64_t place = uses[i] / (kUseKindMask + 1);
    if (!BeginsAnew(uses[i]) || known.anew[place] != i + 1) continue;
    known.batches[place] = 0;
    known.uses[place] = 0;
  }
}

/// Counts the uses of a batch. Those of one item may be many: they write the same.
__global__ void CountUses(const __grid_constant__ KnownUses known, const std::uint64_t* uses,
                          std::uint64_t count, std::uint64_t batch, EvictionPolicy policy) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    const UseKind kind = KindOf(uses[i]);
    if (kind == UseKind::kNone || kind == UseKind::kErased) continue;
    const std::uint64_t place = uses[i] / (kUseKindMask + 1);
    if (i + 1 < known.anew[place]) continue;
    auto* const last = const_cast<volatile std::uint64_t*>(known.batches + place);
    if (policy == EvictionPolicy::kOldest) {
      if (kind == UseKind::kUsed) continue;
      if (kind == UseKind::kPut && *last != 0) continue;
    }
    *last = batch;
    if (policy == EvictionPolicy::kLfu && AtomicLoad32(known.uses + place) < kMostUses) {
      atomicAdd(known.uses + place, 1u);
    }
  }
}

__global__ void EndAnew(const __grid_constant__ KnownUses known, const std::uint64_t* uses,
                        std::uint64_t count) {
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    if (BeginsAnew(uses[i])) known.anew[uses[i] / (kUseKindMask + 1)] = 0;
  }
}

/// Puts what is known into more places, or fewer.
__global__ void MoveKnown(const __grid_constant__ KnownUses from,
                          const __grid_constant__ KnownUses to) {
  for (std::uint64_t i = FirstOfGrid(); i < from.places.room; i += GridStep()) {
    if (from.batches[i] == 0) continue;
    const std::uint64_t place = to.places.FindOrAdd(from.places.ids[i], to.added);
    to.batches[place] = from.batches[i];
    to.uses[place] = from.uses[i];
  }
}

/// Keys of items, whole words, the rest of the last one 0.
struct ItemKeys {
  const std::uint64_t* words = nullptr;
  std::uint64_t count = 0;
  std::uint32_t key_words = 1;
  std::uint32_t key_size = 8;

  __device__ const std::uint64_t* Key(std::uint64_t i) const { return words + i * key_words; }
  __device__ std::uint64_t Id(std::uint64_t i) const {
    return IdOfKey(reinterpret_cast<const std::byte*>(Key(i)), key_size);
  }
};

/// The same, of these items alone.
__global__ void MoveKnownOf(const __grid_constant__ ItemKeys items,
                            const __grid_constant__ KnownUses from,
                            const __grid_constant__ KnownUses to) {
  for (std::uint64_t i = FirstOfGrid(); i < items.count; i += GridStep()) {
    const std::uint64_t id = items.Id(i);
    const std::uint64_t place = from.places.Find(id);
    if (place == IdPlaces::kNone || from.batches[place] == 0) continue;
    const std::uint64_t next = to.places.FindOrAdd(id, to.added);
    to.batches[next] = from.batches[place];
    to.uses[next] = from.uses[place];
  }
}

/// Counts the ids of which something is known.
__global__ void CountKnown(const __grid_constant__ KnownUses known, std::uint64_t* count) {
  for (std::uint64_t i = FirstOfGrid(); i < known.places.room; i += GridStep()) {
    if (known.batches[i] != 0) AtomicAdd(count, 1);
  }
}

/// Counts the uses whose ids have no place.
__global__ void CountUnplaced(const __grid_constant__ KnownUses known, const std::uint64_t* uses,
                              std::uint64_t uses_count, std::uint64_t* count) {
  for (std::uint64_t i = FirstOfGrid(); i < uses_count; i += GridStep()) {
    if (uses[i] == 0) continue;
    if (known.places.Find(uses[i] & ~kUseKindMask) == IdPlaces::kNone) AtomicAdd(count, 1);
  }
}

__global__ void HalveUses(const __grid_constant__ KnownUses known) {
  for (std::uint64_t i = FirstOfGrid(); i < known.places.room; i += GridStep()) {
    known.uses[i] = min(known.uses[i], static_cast<std::uint32_t>(kMostUses)) / 2;
  }
}

/// Tells the keys of a batch that are there from those that it may add, by the results of finds.
/// @param counts of `there` and of `missing`, from 0 on
__global__ void TellKeys(const __grid_constant__ OperationArrays batch,
                         const __grid_constant__ IdPlaces there,
                         const __grid_constant__ IdPlaces missing, std::uint64_t* counts) {
  for (std::uint64_t i = FirstOfGrid(); i < batch.count; i += GridStep()) {
    if (batch.results[i] == Result::kOk) {
      there.FindOrAdd(batch.Id(i), counts);
    } else if (Inserts(batch.Kind(i))) {
      missing.FindOrAdd(batch.Id(i), counts + 1);
    }
  }
}

/// Ids and ranks of items. @param ids 0 of those that stay @param ranks with kScore they are there
__global__ void RankItems(const __grid_constant__ ItemKeys items,
                          const __grid_constant__ KnownUses known,
                          const __grid_constant__ IdPlaces kept, EvictionPolicy policy,
                          std::uint64_t* ids, std::uint64_t* ranks) {
  for (std::uint64_t i = FirstOfGrid(); i < items.count; i += GridStep()) {
    const std::uint64_t id = items.Id(i);
    ids[i] = kept.Find(id) == IdPlaces::kNone ? id : 0;
    if (policy == EvictionPolicy::kScore) continue;
    const std::uint64_t place = known.places.Find(id);
    std::uint64_t rank = place == IdPlaces::kNone ? 0 : known.batches[place];
    if (rank != 0 && policy == EvictionPolicy::kLfu) rank = RankOfUses(known.uses[place], rank);
    ranks[i] = rank;
  }
}

/// Of the items that are chosen, the one that goes last: found digit by digit, of its rank and then
/// of its id, by how many items have which.
struct LastChosen {
  static constexpr std::uint32_t kDigitBits = 11;
  static constexpr std::uint32_t kDigits = 1u << kDigitBits;

  std::uint64_t rank = 0;
  std::uint64_t id = 0;
  std::uint64_t lacking = 0;  ///< of those that are chosen, so many are not below what is known
  std::uint64_t counts[kDigits] = {};
};

/// A digit: bits [shift, end) of ranks or ids.
struct Digit {
  bool of_id = false;
  std::uint32_t shift = 0;
  std::uint32_t end = 64;
};

/// Counts the digits of items that agree with what is known of the last one.
__global__ void CountDigits(const std::uint64_t* ranks, const std::uint64_t* ids,
                            std::uint64_t count, const __grid_constant__ Digit digit,
                            LastChosen* last) {
  __shared__ std::uint32_t counts[LastChosen::kDigits];
  for (std::uint32_t d = threadIdx.x; d < LastChosen::kDigits; d += blockDim.x) counts[d] = 0;
  __syncthreads();
  const std::uint64_t known = digit.of_id ? last->id : last->rank;
  for (std::uint64_t i = FirstOfGrid(); i < count; i += GridStep()) {
    if (ids[i] == 0 || (digit.of_id && ranks[i] != last->rank)) continue;
    const std::uint64_t word = digit.of_id ? ids[i] : ranks[i];
    if (digit.end < 64 && (word ^ known) >> digit.end != 0) continue;
    const std::uint64_t bits = (std::uint64_t{1} << (digit.end - digit.shift)) - 1;
    atomicAdd(&counts[word >> digit.shift & bits], 1u);
  }
  __syncthreads();
  for (std::uint32_t d = threadIdx.x; d < LastChosen::kDigits; d += blockDim.x) {
    if (counts[d] > 0) AtomicAdd(&last->counts[d], counts[d]);
  }
}

/// Finds the digit of the last one; if there are not so many items, it comes after all. One block.
__global__ void __launch_bounds__(kStrideThreads)
    PickDigit(const __grid_constant__ Digit digit, LastChosen* last) {
  constexpr std::uint32_t kOfThread = LastChosen::kDigits / kStrideThreads;
  using Scan = cub::BlockScan<std::uint64_t, kStrideThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ bool found;
  if (threadIdx.x == 0) found = false;
  std::uint64_t counts[kOfThread], below[kOfThread];
  for (std::uint32_t d = 0; d < kOfThread; ++d) {
    std::uint64_t& count = last->counts[threadIdx.x * kOfThread + d];
    counts[d] = count;
    count = 0;
  }
  Scan(storage).ExclusiveSum(counts, below);
  const std::uint64_t lacking = last->lacking;
  __syncthreads();
  for (std::uint32_t d = 0; d < kOfThread; ++d) {
    if (below[d] >= lacking || below[d] + counts[d] < lacking) continue;
    const std::uint64_t value = std::uint64_t{threadIdx.x * kOfThread + d} << digit.shift;
    (digit.of_id ? last->id : last->rank) |= value;
    last->lacking = lacking - below[d];
    found = true;
  }
  __syncthreads();
  if (threadIdx.x == 0 && !found) last->rank = last->id = ~std::uint64_t{0};
}

struct ChosenItem {
  std::uint64_t rank;
  std::uint64_t id;
  std::uint64_t item;
};

/// Collects the items that go no later than the last one. @param count of them, from 0 on
__global__ void CollectChosen(const std::uint64_t* ranks, const std::uint64_t* ids,
                              std::uint64_t items, const LastChosen* last, ChosenItem* chosen,
                              std::uint64_t room, std::uint64_t* count) {
  for (std::uint64_t i = FirstOfGrid(); i < items; i += GridStep()) {
    if (ids[i] == 0 || ranks[i] > last->rank) continue;
    if (ranks[i] == last->rank && ids[i] > last->id) continue;
    const std::uint64_t at = AtomicAdd(count, 1);
    if (at < room) chosen[at] = {ranks[i], ids[i], i};
  }
}

/// By rank, then by id, then by key.
struct GoesBefore {
  ItemKeys items;
  __device__ bool operator()(const ChosenItem& a, const ChosenItem& b) const {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.id != b.id) return a.id < b.id;
    for (std::uint32_t w = 0; w < items.key_words; ++w) {
      const std::uint64_t of_a = OrderedWord(items.Key(a.item)[w]);
      const std::uint64_t of_b = OrderedWord(items.Key(b.item)[w]);
      if (of_a != of_b) return of_a < of_b;
    }
    return false;
  }
};

/// The keys of chosen items, one behind the other; a thread for each byte.
__global__ void CopyChosenKeys(const __grid_constant__ ItemKeys items, const ChosenItem* chosen,
                               std::uint64_t count, std::byte* keys) {
  for (std::uint64_t i = FirstOfGrid(); i < count * items.key_size; i += GridStep()) {
    const std::uint64_t* const key = items.Key(chosen[i / items.key_size].item);
    keys[i] = reinterpret_cast<const std::byte*>(key)[i % items.key_size];
  }
}

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_ITEM_RANKS_CUH_
