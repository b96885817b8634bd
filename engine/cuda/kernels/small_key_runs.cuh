#ifndef GPM_ENGINE_CUDA_KERNELS_SMALL_KEY_RUNS_CUH_
#define GPM_ENGINE_CUDA_KERNELS_SMALL_KEY_RUNS_CUH_

#include "engine/cuda/kernels/other_keys.cuh"
#include "engine/cuda/kernels/run_effects.cuh"
#include "engine/cuda/strategy.h"

namespace gpm {

/// How the key runs of a small batch are found (engine/cuda/kernels/small_batch.cuh): each of its
/// operations is compared with all others.

/// Threads of a block of ApplySmallBatch.
inline constexpr unsigned kSmallThreads = 2 * kBlockThreads;
/// Registers of a multiprocessor that such a block leaves to others are those of so many of its
/// threads: two blocks of kBlockThreads with 32 registers each, of those that refresh the cache,
/// have room. (Without it a batch would wait until they end: all blocks of one begin together.)
inline constexpr unsigned kBesideTogether = 128;

/// How ApplySmallBatch deals out operations: a tile of kLanes to each. Of smaller tiles a block has
/// more, so that one kernel takes larger batches. Smaller batches are spread over as many blocks.
template <std::uint32_t kLanesOfTile>
struct SmallShape {
  static constexpr std::uint32_t kLanes = kLanesOfTile;
  static constexpr std::uint32_t kTiles = kBlockThreads / kLanes;  ///< of a block
  static constexpr std::uint32_t kUpTo = StrategyThresholds::kSmallUpTo / kLanes * kTileLanes;

  using Group = TileGroup<kLanes>;
  static __device__ Group ThisTile() {
    return Group(
        cooperative_groups::tiled_partition<kLanes>(cooperative_groups::this_thread_block()));
  }
};

/// An operation of a small batch in the run of those on its key.
struct OperationInKeyRun {
  KeyRunEffect before;      ///< of those before it; with the run's first position and first find
  std::uint32_t if_absent;  ///< effect of those up to it
  std::uint32_t if_present;
  std::uint32_t uses;  ///< operations up to it
  bool is_last;
  bool reads_old;  ///< the first find meets the value as it was before the run
  bool collides;   ///< it is the last of operations on several keys with the same digest
};

/// The key runs of a block's own operations of a small batch; in shared memory. Digests tell keys
/// apart (DigestKey). Each block looks at all operations, so each has to take few instructions.
/// @tparam Shape a SmallShape
template <class Shape>
struct BlockKeyRuns {
  static constexpr std::uint32_t kTiles = Shape::kTiles;
  static constexpr std::uint32_t kNumberBits = kTiles == 32 ? 5 : 6;
  static_assert(kTiles == 1 << kNumberBits);
  static constexpr std::uint32_t kPlaceBits = 11;  ///< of a hash table of kTiles digests
  static constexpr std::uint32_t kPlaces = 1 << kPlaceBits;
  static constexpr std::uint32_t kWords = Shape::kUpTo / 32;
  static constexpr std::uint32_t kRounds = Shape::kUpTo / kSmallThreads;
  static constexpr std::uint32_t kWarps = kSmallThreads / 32;

  std::uint64_t digests[kTiles];
  std::uint32_t numbers[kTiles];             ///< of each tile's digest: equal for equal digests
  bool several[kTiles];                      ///< of a number: it has more than one operation
  alignas(16) std::uint16_t table[kPlaces];  ///< the digest's number + 1; 0: none
  // Operations, a bit each:
  /// Which are on a key of the block's own, and on which (RowsOfKey). (A row of bits for each key
  /// would be so much that a multiprocessor where somebody else's kernel runs has no room for it:
  /// how it divides its memory is settled while one does.)
  alignas(16) std::uint32_t owners[kNumberBits + 1][kWords];
  alignas(16) std::uint32_t finds[kWords];
  alignas(16) std::uint32_t inserts[kWords];  ///< and so on (KindBits)
  alignas(16) std::uint32_t updates[kWords];
  alignas(16) std::uint32_t erases[kWords];
  alignas(16) std::uint32_t adds[kWords];  ///< of `updates`, those that accumulate
  OperationInKeyRun own[kTiles];
  std::uint32_t writers_in_all;  ///< operations of the batch that write or erase
  bool has_adds;
  std::uint32_t first;     ///< of the block's own operations
  std::uint32_t of_block;  ///< how many there are, but for the last block

  /// The operations on the key of one of the block's own.
  __device__ RowsOfKey OnKeyOf(std::uint32_t own_number) const {
    return RowsOfKey{owners[0], kWords, kNumberBits, numbers[own_number]};
  }
  /// Whether an operation of the block's own writes.
  __device__ bool Writes(std::uint32_t own_number) const {
    return (WritersIn(own_number / 32) >> own_number % 32 & 1) != 0;
  }
  /// How many of the block's own operations before this one write.
  __device__ std::uint32_t WritersBefore(std::uint32_t own_number) const {
    std::uint32_t count = 0;
    for (std::uint32_t word = 0; word < kTiles / 32; ++word) {
      const std::uint32_t at = 32 * word;
      const std::uint32_t before = own_number >= at + 32 ? ~0u
                                   : own_number <= at    ? 0
                                                         : (1u << (own_number - at)) - 1;
      count += PopCount(WritersIn(word) & before);
    }
    return count;
  }

  /// Finds which operations of the batch are on the keys of the block's own operations, and what
  /// they do. All kSmallThreads threads of the block call it.
  /// @param digests_of_all those of all operations @param own_count of each block, up to kTiles
  __device__ void Make(const DeviceBatch& batch, const std::uint64_t* digests_of_all,
                       std::uint32_t own_count) {
    const auto place_of = [](std::uint64_t digest) {
      return static_cast<std::uint32_t>(digest ^ digest >> 32) * 0x9E3779B1u >> (32 - kPlaceBits);
    };
    std::uint64_t digest[kRounds];  // of all operations, in flight while the table is made
    Op kind[kRounds];
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t i = k * kSmallThreads + threadIdx.x;
      digest[k] = i < batch.count ? digests_of_all[i] : 0;
      kind[k] = i < batch.count ? batch.KindOf(i) : Op::kFind;
    }
    Clear(table);
    Clear(owners[kNumberBits]);
    Clear(finds);
    Clear(inserts);
    Clear(updates);
    Clear(erases);
    Clear(adds);
    const std::uint32_t own_first = blockIdx.x * own_count;
    if (threadIdx.x < kTiles) several[threadIdx.x] = false;
    if (threadIdx.x == 0) {
      has_adds = false;
      first = own_first;
      of_block = own_count;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t i = k * kSmallThreads + threadIdx.x;
      if (i - own_first < own_count) digests[i - own_first] = digest[k];
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint32_t i = k * kSmallThreads + threadIdx.x;
      const std::uint32_t own = i - own_first;
      if (own >= own_count) continue;
      for (std::uint32_t at = place_of(digest[k]); i < batch.count; at = (at + 1) % kPlaces) {
        const std::uint32_t there = atomicCAS(&table[at], static_cast<unsigned short>(0),
                                              static_cast<unsigned short>(own + 1));
        if (there != 0 && digests[there - 1] != digest[k]) continue;
        numbers[own] = there == 0 ? own : there - 1;
        break;
      }
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      if (k * kSmallThreads >= batch.count) break;  // the rest have no number, and no kind
      const std::uint32_t i = k * kSmallThreads + threadIdx.x;
      const std::uint32_t word = i / 32;
      const std::uint32_t bits = KindBits::Of(kind[k], batch.HasValueFor(kind[k]));
      const std::uint32_t find = __ballot_sync(~0u, (bits & KindBits::kFinds) != 0);
      const std::uint32_t insert = __ballot_sync(~0u, (bits & KindBits::kInserts) != 0);
      const std::uint32_t update = __ballot_sync(~0u, (bits & KindBits::kUpdates) != 0);
      const std::uint32_t erase = __ballot_sync(~0u, (bits & KindBits::kErases) != 0);
      const std::uint32_t add =
          __ballot_sync(~0u, kind[k] == Op::kAccumulate && (bits & KindBits::kUpdates) != 0);
      std::uint32_t number = kNoNumber;
      if (i < batch.count) {
        std::uint32_t at = place_of(digest[k]);
        for (std::uint32_t there = table[at]; there != 0; there = table[at]) {
          if (digests[there - 1] == digest[k]) {
            number = there - 1;
            break;
          }
          at = (at + 1) % kPlaces;
        }
        if (number != kNoNumber && i != own_first + number) several[number] = true;
      }
      const std::uint32_t owned = __ballot_sync(~0u, number != kNoNumber);
      if (threadIdx.x % 32 == 0) {
        finds[word] = find;
        inserts[word] = insert;
        updates[word] = update;
        erases[word] = erase;
        adds[word] = add;
        if (add != 0) has_adds = true;
        owners[kNumberBits][word] = owned;
      }
      if (owned == 0) continue;  // nobody looks at their numbers
#pragma unroll
      for (std::uint32_t bit = 0; bit < kNumberBits; ++bit) {
        const std::uint32_t plane = __ballot_sync(~0u, (number >> bit & 1) != 0);
        if (threadIdx.x % 32 == 0) owners[bit][word] = plane;
      }
    }
    __syncthreads();
  }

  /// Finds where each of the block's own operations is in its key run, a warp for one at a time.
  __device__ void FindKeyRuns(const DeviceBatch& batch, std::uint32_t key_words) {
    if (threadIdx.x < 32) {
      const Words insert = Load(inserts);
      const Words update = Load(updates);
      const Words erase = Load(erases);
      std::uint32_t writers = 0;
#pragma unroll
      for (std::uint32_t k = 0; k < kFew; ++k) {
        writers += PopCount(insert.of[k] | update.of[k] | erase.of[k]);
      }
      writers = __reduce_add_sync(~0u, writers);
      if (threadIdx.x == 0) writers_in_all = writers;
    }
    // (Unrolled, it would be more instructions than a multiprocessor keeps.)
#pragma unroll 1
    for (std::uint32_t number = threadIdx.x / 32; number < of_block; number += kWarps) {
      const std::uint32_t i = first + number;
      if (i >= batch.count) continue;
      if (!several[numbers[number]]) {
        if (threadIdx.x % 32 == 0) own[number] = RunOfOne(i);
        continue;
      }
      const RowsOfKey on_key = OnKeyOf(number);
      const bool compares = FindRun(i, on_key, &own[number]) && key_words > 1;
      if (!compares || !MeetsOtherKeys<kWords>(batch, key_words, i, on_key)) continue;
      if (threadIdx.x % 32 == 0) own[number].collides = true;
    }
    __syncthreads();
  }

 private:
  static constexpr std::uint32_t kNoNumber = ~0u;

  /// Those of 32 operations from the block's own on that write, a bit each.
  __device__ std::uint32_t WritersIn(std::uint32_t word) const {
    const auto writers = [this](std::uint32_t at) {
      return at < kWords ? inserts[at] | updates[at] : 0;
    };
    const std::uint32_t at = first / 32 + word;
    return __funnelshift_r(writers(at), writers(at + 1), first % 32);
  }

  /// Words that a lane of a warp looks at.
  static constexpr std::uint32_t kFew = kWords / 32;
  struct Words {
    std::uint32_t of[kFew];
  };

  __device__ static Words Load(const std::uint32_t* words) {
    static_assert(kFew % 4 == 0);
    Words few;
#pragma unroll
    for (std::uint32_t k = 0; k < kFew; k += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(words)[(threadIdx.x % 32 * kFew + k) / 4];
      few.of[k] = four.x;
      few.of[k + 1] = four.y;
      few.of[k + 2] = four.z;
      few.of[k + 3] = four.w;
    }
    return few;
  }
  template <class Array>
  __device__ static void Clear(Array& array) {
    static_assert(sizeof(Array) % sizeof(uint4) == 0);
    for (std::uint32_t i = threadIdx.x; i < sizeof(Array) / sizeof(uint4); i += kSmallThreads) {
      reinterpret_cast<uint4*>(&array)[i] = uint4{};
    }
  }

  /// Of an operation that is alone on its key.
  __device__ OperationInKeyRun RunOfOne(std::uint32_t i) const {
    const auto in = [i](const std::uint32_t* words) { return (words[i / 32] >> i % 32 & 1) != 0; };
    const bool gives = in(finds);
    const KeyRunEffect upto = EffectOfOne(i, in(inserts), in(updates), in(erases));
    return OperationInKeyRun{KeyRunEffect{kUnchanged, kUnchanged, i, gives ? i : kNoPosition},
                             in(adds) ? kRemoved : upto.if_absent,
                             upto.if_present,
                             1,
                             true,
                             gives && upto.if_present == kUnchanged,
                             false};
  }
  /// @return whether it is the last one of several
  __device__ bool FindRun(std::uint32_t i, const RowsOfKey& on_key, OperationInKeyRun* run) const {
    Words on = Load(owners[kNumberBits]);
#pragma unroll
    for (std::uint32_t bit = 0; bit < kNumberBits; ++bit) {
      const Words plane = Load(owners[bit]);
#pragma unroll
      for (std::uint32_t k = 0; k < kFew; ++k) on.of[k] &= on_key.Same(plane.of[k], bit);
    }
    const Words find = Load(finds);
    Words insert = Load(inserts);
    Words update = Load(updates);
    Words erase = Load(erases);
    std::uint32_t first = kNoPosition;
    std::uint32_t first_find = kNoPosition;
    std::uint32_t first_change = kNoPosition;  // of a value that was there before
    std::uint32_t last_update = 0;             // before it, + 1
    std::uint32_t uses = 0;
    std::uint32_t behind = 0;
    std::uint32_t inserting = 0;
    std::uint32_t alone = 0;  // that an update behind it does not make up for
#pragma unroll
    for (std::uint32_t k = kFew; k-- > 0;) {
      const std::uint32_t word = threadIdx.x % 32 * kFew + k;
      const std::uint32_t at = 32 * word;
      const std::uint32_t upto = at + 31 <= i ? ~0u : at > i ? 0 : (2u << (i - at)) - 1;
      const std::uint32_t before = at > i || at + 31 < i ? upto : upto >> 1;
      const std::uint32_t bits = on.of[k] & upto;
      behind |= on.of[k] & ~upto;
      uses += PopCount(bits);
      if (bits != 0) first = at + LowestBit(bits);
      if ((bits & find.of[k]) != 0) first_find = at + LowestBit(bits & find.of[k]);
      const std::uint32_t change = bits & (update.of[k] | erase.of[k]);
      if (change != 0) first_change = at + LowestBit(change);
      insert.of[k] &= bits & before;
      update.of[k] &= bits & before;
      erase.of[k] &= bits & before;
      inserting |= insert.of[k];
      alone |= erase.of[k] | (insert.of[k] & ~update.of[k]);
      if (last_update == 0 && update.of[k] != 0) last_update = at + 32 - LeadingZeros(update.of[k]);
    }
    first = __reduce_min_sync(~0u, first);
    first_find = __reduce_min_sync(~0u, first_find);
    first_change = __reduce_min_sync(~0u, first_change);
    uses = __reduce_add_sync(~0u, uses);
    KeyRunEffect effect{kUnchanged, kUnchanged, kNoPosition, kNoPosition};
    if (__any_sync(~0u, alone != 0)) {
      effect = EffectOfWords(insert, update, erase);
    } else {  // the last one counts
      last_update = __reduce_max_sync(~0u, last_update);
      if (last_update != 0) effect.if_present = last_update - 1;
      if (__any_sync(~0u, inserting != 0)) effect.if_absent = last_update - 1;
    }
    const bool is_last = __any_sync(~0u, behind != 0) == 0;
    const std::uint32_t own_bit = 1u << i % 32;
    const KeyRunEffect upto = ComposeEffects{}(
        effect, EffectOfOne(i, (inserts[i / 32] & own_bit) != 0, (updates[i / 32] & own_bit) != 0,
                            (erases[i / 32] & own_bit) != 0));
    effect.first = first;
    effect.find_and_collided = first_find;
    std::uint32_t if_absent = upto.if_absent;
    if (has_adds) NoteAdds(i, on, &effect, &if_absent);
    if (threadIdx.x % 32 == 0) {
      *run = OperationInKeyRun{
          effect, if_absent, upto.if_present, uses, is_last, first_find < first_change, false};
    }
    return is_last && uses > 1;
  }
  /// Sees to it that the effect of a run up to operation i says whether it accumulates, as EffectOf
  /// and ComposeEffects do.
  __device__ GPM_NOINLINE void NoteAdds(std::uint32_t i, Words on, KeyRunEffect* effect,
                                        std::uint32_t* if_absent) const {
    const Words add = Load(adds);
    std::uint32_t adding = 0;
    std::uint32_t others = 0;
#pragma unroll
    for (std::uint32_t k = 0; k < kFew; ++k) {
      const std::uint32_t at = 32 * (threadIdx.x % 32 * kFew + k);
      const std::uint32_t upto = at + 31 <= i ? ~0u : at > i ? 0 : (2u << (i - at)) - 1;
      adding |= on.of[k] & upto & add.of[k];
      others |= on.of[k] & upto & ~add.of[k];
    }
    if (!__any_sync(~0u, adding != 0)) return;
    if (__any_sync(~0u, others != 0)) {
      effect->find_and_collided |= ~kNoPosition;
    } else {
      *if_absent = kRemoved;
    }
  }
  __device__ static KeyRunEffect EffectOfOne(std::uint32_t position, bool inserts, bool updates,
                                             bool erases) {
    return KeyRunEffect{inserts ? position : kUnchanged,
                        updates  ? position
                        : erases ? kRemoved
                                 : kUnchanged,
                        kNoPosition, kNoPosition};
  }
  /// The effect of the operations of a warp's words.
  __device__ GPM_NOINLINE static KeyRunEffect EffectOfWords(Words insert, Words update,
                                                            Words erase) {
    KeyRunEffect effect{kUnchanged, kUnchanged, kNoPosition, kNoPosition};
#pragma unroll
    for (std::uint32_t k = 0; k < kFew; ++k) {
      const std::uint32_t at = 32 * (threadIdx.x % 32 * kFew + k);
#pragma unroll 1
      for (std::uint32_t rest = insert.of[k] | update.of[k] | erase.of[k]; rest != 0;
           rest &= rest - 1) {
        const std::uint32_t bit = rest & (~rest + 1);
        effect = ComposeEffects{}(effect,
                                  EffectOfOne(at + LowestBit(rest), (insert.of[k] & bit) != 0,
                                              (update.of[k] & bit) != 0, (erase.of[k] & bit) != 0));
      }
    }
#pragma unroll 1
    for (std::uint32_t step = 1; step < 32; step *= 2) {
      // Of two neighbours of lanes' ranges, the lower one comes first.
      const std::uint32_t absent = __shfl_xor_sync(~0u, effect.if_absent, step);
      const std::uint32_t present = __shfl_xor_sync(~0u, effect.if_present, step);
      const bool lower = (threadIdx.x & step) == 0;
      const KeyRunEffect left{lower ? effect.if_absent : absent,
                              lower ? effect.if_present : present, kNoPosition, kNoPosition};
      const KeyRunEffect right{lower ? absent : effect.if_absent,
                               lower ? present : effect.if_present, kNoPosition, kNoPosition};
      effect = ComposeEffects{}(left, right);
    }
    return effect;
  }
};

}  // namespace gpm

#endif  // GPM_ENGINE_CUDA_KERNELS_SMALL_KEY_RUNS_CUH_
