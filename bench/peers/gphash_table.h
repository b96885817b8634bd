#ifndef GPM_BENCH_PEERS_GPHASH_TABLE_H_
#define GPM_BENCH_PEERS_GPHASH_TABLE_H_

#include <cstdint>

#include "bench/peers/cells.h"
#include "bench/peers/keys.h"
#include "bench/peers/shared_words.h"
#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/volatile_ops.h"

/// GPHash's buckets, and what a warp does with them (FAST 2025, section 3; what is left out:
/// gphash.cu).
namespace gpm::bench::peers::gphash {

inline constexpr unsigned kLevels = 2;
inline constexpr unsigned kLocations = 2;
inline constexpr unsigned kSlots = 8;
static_assert(kLevels * kLocations * kSlots == kWarpThreads, "one lane a candidate slot");
inline constexpr std::uint64_t kEmpty = 0;         ///< state: free
inline constexpr std::uint64_t kInsert = ~kEmpty;  ///< state: being written
inline constexpr unsigned kMaxAttempts = 128;      ///< to claim a slot; each but the last loses one
inline constexpr std::uint32_t kNotCached = ~0u;

/// A slot is a state, a reference and, of keys of more than one word, the key (section 3.1). A key
/// of one word is its state; else that is the key's fingerprint, by which most other keys are told
/// apart without reading them. States are side by side, and so are references; so a warp reads the
/// states of a bucket in one access. A key of four words is one sector of 32 bytes.
template <unsigned kWords>
struct alignas(128) Bucket {
  static constexpr unsigned kKeyWords = kWords == 1 ? 0 : kWords;  ///< beside the state
  static constexpr unsigned kBucketWords = kSlots * (2 + kKeyWords);
  std::uint64_t words[kBucketWords];

  GPM_HD std::uint64_t* State(unsigned slot) { return &words[slot]; }
  GPM_HD std::uint64_t* Reference(unsigned slot) { return &words[kSlots + slot]; }
  GPM_HD std::uint64_t* KeyWords(unsigned slot) { return &words[2 * kSlots + kKeyWords * slot]; }
};
static_assert(sizeof(Bucket<1>) == 128 && sizeof(Bucket<4>) == 384);

/// The state of a slot with a key. REQUIRES: a key of one word is no other state.
template <unsigned kWords>
GPM_HD std::uint64_t StateOf(const Key<kWords>& key) {
  const std::uint64_t fold = key.Fold();
  const bool reserved = fold == kEmpty || fold == kInsert;
  return kWords > 1 && reserved ? fold ^ 0x9E3779B97F4A7C15ull : fold;
}

/// BktCache, in GPU memory: frames with copies of the hottest buckets.
template <unsigned kWords>
struct BucketCache {
  std::uint32_t* frame_of;   ///< F(x) of each bucket; kNotCached: none
  std::uint32_t* bucket_of;  ///< G(y) of each frame; kNotCached: none
  std::uint32_t* holders;    ///< of each frame: operations that use it, its reference count
  std::uint32_t* uses;       ///< of each bucket, for LFU
  Bucket<kWords>* frames;
  std::uint64_t* writers;  ///< of each slot of a frame: who exchanges its reference
};

/// What kernels see of a table. Buckets of both levels are numbered in one row, the top level
/// first. Figure 9 takes the design apart:
/// @tparam kInPlace keys are in slots; else a slot has a fingerprint, and the value's cell the key
/// @tparam kCached there is BktCache, and tiles are warps; else tiles of one thread will do, too
template <unsigned kWords, bool kInPlace = true, bool kCached = true>
struct GpHashTable {
  static_assert(kInPlace || (kWords == 1 && !kCached), "as far as figure 9 needs it");
  using KeyType = Key<kWords>;
  /// What a cell has behind its value.
  static constexpr std::uint64_t kKeyBytes = kInPlace ? 0 : 16;

  Bucket<kWords>* buckets;    ///< PM
  std::uint64_t top_buckets;  ///< of the top level; the other one has half as many
  Cells cells;
  BucketCache<kWords> cache;

  /// A candidate slot of a key.
  struct Candidate {
    std::uint64_t bucket;
    std::uint32_t slot;
    bool again;            ///< a candidate before it is the same slot
    std::uint32_t frame;   ///< of the bucket, which the operation holds; or kNotCached
    Bucket<kWords>* read;  ///< from there, in PM or the frame:
    std::uint64_t state;
  };
  /// What a tile sees in the candidate slots, a bit for each by its number.
  struct Seen {
    Candidate own;  ///< the last one that this lane has read
    unsigned with_key = 0;
    unsigned empty = 0;
  };

  GPM_HD static std::uint64_t StateFor(const KeyType& key) {
    if constexpr (kInPlace) {
      return StateOf(key);
    } else {
      const std::uint64_t fingerprint = Scramble(key.Fold());
      return fingerprint == kEmpty || fingerprint == kInsert ? 1 : fingerprint;
    }
  }

  /// @param number by the order in which they are valid: the top level first, then the lower bucket
  ///        number (section 3.2.2)
  GPM_HD Candidate CandidateOf(std::uint64_t state, unsigned number) const {
    const std::uint64_t a = Reduce(Scramble(state), top_buckets);
    const std::uint64_t b = Reduce(Scramble(state ^ 0x9E3779B97F4A7C15ull), top_buckets);
    const bool lower = number >= kLocations * kSlots;
    const bool second = number / kSlots % kLocations != 0;
    const std::uint64_t low = a < b ? a : b;
    const std::uint64_t high = a < b ? b : a;
    const std::uint64_t first_bucket = lower ? low / 2 : low;
    const std::uint64_t second_bucket = lower ? high / 2 : high;
    Candidate candidate{};
    candidate.bucket = (lower ? top_buckets : 0) + (second ? second_bucket : first_bucket);
    candidate.slot = number % kSlots;
    candidate.again = second && first_bucket == second_bucket;
    candidate.frame = kNotCached;
    return candidate;
  }

  /// Holds the frame of a bucket, so that it stays this bucket's until it is let go of. By one
  /// thread. @return kNotCached: it has none, or has just lost it
  GPM_HD std::uint32_t Hold(std::uint64_t bucket) const {
    const std::uint32_t frame = LoadWord(&cache.frame_of[bucket]);
    if (frame == kNotCached) return kNotCached;
    AtomicAdd32(&cache.holders[frame], 1);
    Fence();  // who takes the frame away says so first, and looks for holders then
    if (LoadWord(&cache.frame_of[bucket]) == frame) return frame;
    AtomicAdd32(&cache.holders[frame], ~0u);
    return kNotCached;
  }
  /// Lets go of the frames. All lanes call it, when the operation has ended.
  template <class Tile>
  GPM_HD void LetGo(const Tile& tile, const Seen& seen) const {
    if constexpr (kCached) {
      static_assert(Tile::size() == kWarpThreads, "each bucket has a lane that holds its frame");
      tile.sync();
      if (seen.own.slot != 0 || seen.own.frame == kNotCached) return;
      Fence();
      AtomicAdd32(&cache.holders[seen.own.frame], ~0u);
    }
  }

  /// Reads a candidate slot. All lanes call it. One that two lanes would have is the first one's;
  /// the other reads kInsert, which is neither free nor a key.
  /// @param cached frames are read where there are any
  template <class Tile>
  GPM_HD Candidate Read(const Tile& tile, std::uint64_t state, unsigned number, bool cached) const {
    Candidate candidate = CandidateOf(state, number);
    if constexpr (kCached) {
      std::uint32_t frame = kNotCached;
      if (candidate.slot == 0) {
        frame = Hold(candidate.bucket);
        // All buckets that are read are used, those without the key, too.
        AtomicAdd32(&cache.uses[candidate.bucket], 1);
      }
      candidate.frame = tile.shfl(frame, tile.thread_rank() / kSlots * kSlots);
    }
    candidate.read = cached && candidate.frame != kNotCached ? &cache.frames[candidate.frame]
                                                             : &buckets[candidate.bucket];
    candidate.state = candidate.again ? kInsert : LoadWord(candidate.read->State(candidate.slot));
    return candidate;
  }

  /// Whether a candidate slot has the key. Who writes one writes the key before the state, so that
  /// what is read behind the state is a whole key.
  GPM_HD bool Has(const Candidate& candidate, std::uint64_t state, const KeyType& key) const {
    if (candidate.state != state) return false;
    if constexpr (!kInPlace) {
      Fence();
      return LoadKey<1>(KeyOfCell(LoadWord(candidate.read->Reference(candidate.slot)))) == key;
    } else if constexpr (kWords == 1) {
      return true;
    } else {
      Fence();
      return LoadKey<kWords>(candidate.read->KeyWords(candidate.slot)) == key;
    }
  }

  /// Reads the candidate slots of a key: a warp all at once, one by each lane, a smaller tile in
  /// turns. @param first_only those behind the first one with the key are left out
  template <class Tile>
  GPM_HD Seen Probe(const Tile& tile, std::uint64_t state, const KeyType& key, bool cached,
                    bool first_only) const {
    Seen seen;
    for (unsigned first = 0; first < kWarpThreads; first += tile.size()) {
      seen.own = Read(tile, state, first + tile.thread_rank(), cached);
      seen.with_key |= tile.ballot(Has(seen.own, state, key)) << first;
      seen.empty |= tile.ballot(seen.own.state == kEmpty) << first;
      if (first_only && seen.with_key != 0) break;
    }
    return seen;
  }
  /// A candidate by its number, for the lane that IsOf says.
  template <class Tile>
  GPM_HD Candidate Chosen(const Tile& tile, const Seen& seen, std::uint64_t state,
                          unsigned number) const {
    return tile.size() == kWarpThreads ? seen.own : CandidateOf(state, number);
  }
  template <class Tile>
  GPM_HD static bool IsOf(const Tile& tile, unsigned number) {
    return tile.thread_rank() == number % tile.size();
  }

  /// The key that is in a cell.
  GPM_HD std::uint64_t* KeyOfCell(std::uint64_t cell) const {
    return reinterpret_cast<std::uint64_t*>(cells.AddressOf(cell) + cells.cell_bytes - kKeyBytes);
  }
  /// By all lanes: fills a cell.
  template <class Tile>
  GPM_HD void WriteCell(const Tile& tile, std::uint64_t cell, const KernelBatch& batch,
                        std::uint64_t i, const KeyType& key) const {
    CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
    if constexpr (!kInPlace) {
      if (tile.thread_rank() == 0) StoreKey(KeyOfCell(cell), key);
    }
  }
  /// By one thread: fills a slot of a bucket, but for its state.
  GPM_HD static void WriteItem(Bucket<kWords>* bucket, unsigned slot, const KeyType& key,
                               std::uint64_t cell) {
    if constexpr (kWords > 1) StoreKey(bucket->KeyWords(slot), key);
    StoreWord(bucket->Reference(slot), cell);
  }

  /// The first empty slot of the least loaded bucket. @param empty bits of all candidates, not 0
  GPM_HD static unsigned TargetOf(unsigned empty) {
    constexpr unsigned kBucketMask = (1u << kSlots) - 1;
    unsigned target = 0;
    unsigned most = 0;
    for (unsigned first = 0; first < kWarpThreads; first += kSlots) {
      const unsigned in_bucket = empty >> first & kBucketMask;
      if (PopCount(in_bucket) <= most) continue;
      most = PopCount(in_bucket);
      target = first + FirstOf(in_bucket);
    }
    return target;
  }

  /// Insertion (section 3.2.3, figure 3).
  template <class Tile>
  GPM_HD Result Insert(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
    const std::uint64_t state = StateFor(key);
    Result result = Result::kNoSpace;
    bool again = true;
    for (unsigned attempt = 0; attempt < kMaxAttempts && again; ++attempt) {
      // Who lost a slot has been misled by a frame, perhaps.
      const Seen seen = Probe(tile, state, key, attempt == 0, false);
      again = false;
      if (seen.with_key != 0) {
        result = Result::kExists;
      } else if (seen.empty != 0) {
        again = !InsertInto(tile, TargetOf(seen.empty), seen, batch, i, key);
        if (!again) result = Result::kOk;
      }
      LetGo(tile, seen);
    }
    return result;
  }
  /// @return whether nobody else has taken the slot
  template <class Tile>
  GPM_HD bool InsertInto(const Tile& tile, unsigned target, const Seen& seen,
                         const KernelBatch& batch, std::uint64_t i, const KeyType& key) const {
    const std::uint64_t state = StateFor(key);
    const Candidate candidate = Chosen(tile, seen, state, target);
    Bucket<kWords>* const bucket = &buckets[candidate.bucket];
    std::uint64_t cell = 0;
    bool won = false;
    if (IsOf(tile, target)) {
      won = Cas(bucket->State(candidate.slot), kEmpty, kInsert);
      if (won) cell = cells.Take();
    }
    if (!tile.any(won)) return false;
    cell = tile.shfl(cell, target % tile.size());
    WriteCell(tile, cell, batch, i, key);
    if (IsOf(tile, target)) WriteItem(bucket, candidate.slot, key, cell);
    SystemFence();
    tile.sync();
    if (IsOf(tile, target)) {
      StoreWord(bucket->State(candidate.slot), state);
      SystemFence();
      if (candidate.frame != kNotCached) {
        Bucket<kWords>* const frame = &cache.frames[candidate.frame];
        WriteItem(frame, candidate.slot, key, cell);
        Fence();
        StoreWord(frame->State(candidate.slot), state);
      }
    }
    return true;
  }

  GPM_HD std::uint64_t* PmReference(const Candidate& candidate) const {
    return buckets[candidate.bucket].Reference(candidate.slot);
  }
  GPM_HD std::uint64_t* FrameReference(const Candidate& candidate) const {
    return cache.frames[candidate.frame].Reference(candidate.slot);
  }
  GPM_HD std::uint64_t* Writers(const Candidate& candidate) const {
    return &cache.writers[std::uint64_t{candidate.frame} * kSlots + candidate.slot];
  }

  /// Exchanges a reference in PM, and then in the frame. Of several that are written at once, the
  /// last one in PM has to remain in the frame: the last writer to leave copies it from there, and
  /// again if another writer has come meanwhile. @return the old one
  GPM_HD std::uint64_t ExchangeCached(const Candidate& candidate, std::uint64_t cell) const {
    constexpr std::uint64_t kCame = std::uint64_t{1} << 32;  // below it: how many have not left
    std::uint64_t* const writers = Writers(candidate);
    AtomicAdd(writers, kCame + 1);
    Fence();
    const std::uint64_t old = Exchange(PmReference(candidate), cell);
    SystemFence();
    std::uint64_t now = AtomicAdd(writers, ~std::uint64_t{0}) - 1;
    // (Who goes round again does so for a writer that has come: not more often than a batch has.)
    while (now % kCame == 0) {
      StoreWord(FrameReference(candidate), LoadWord(PmReference(candidate)));
      Fence();
      const std::uint64_t after = AtomicAdd(writers, 0);
      if (after == now) break;
      now = after;
    }
    return old;
  }

  template <class Tile>
  GPM_HD Result Find(const Tile& tile, const KeyType& key, std::uint64_t* found) const {
    const std::uint64_t state = StateFor(key);
    const Seen seen = Probe(tile, state, key, true, true);
    if (seen.with_key != 0) {
      const unsigned valid = FirstOf(seen.with_key);
      const Candidate candidate = Chosen(tile, seen, state, valid);
      std::uint64_t cell = 0;
      if (IsOf(tile, valid)) {
        cell = LoadWord(candidate.frame != kNotCached ? FrameReference(candidate)
                                                      : PmReference(candidate));
      }
      *found = tile.shfl(cell, valid % tile.size());
    }
    LetGo(tile, seen);
    return seen.with_key != 0 ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  GPM_HD Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
    const std::uint64_t state = StateFor(key);
    const Seen seen = Probe(tile, state, key, true, true);
    if (seen.with_key != 0) {
      // (Duplicates would be deleted here. None are made: the keys of a batch of inserts are new.)
      const unsigned valid = FirstOf(seen.with_key);
      const Candidate candidate = Chosen(tile, seen, state, valid);
      std::uint64_t cell = IsOf(tile, valid) ? cells.Take() : 0;
      cell = tile.shfl(cell, valid % tile.size());
      WriteCell(tile, cell, batch, i, key);
      SystemFence();
      tile.sync();
      if (IsOf(tile, valid)) {
        if (candidate.frame != kNotCached) {
          cells.Give(ExchangeCached(candidate, cell));
        } else {
          cells.Give(Exchange(PmReference(candidate), cell));
          SystemFence();
        }
      }
    }
    LetGo(tile, seen);
    return seen.with_key != 0 ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  GPM_HD Result Erase(const Tile& tile, const KeyType& key) const {
    const std::uint64_t state = StateFor(key);
    const Seen seen = Probe(tile, state, key, true, false);
    bool won = false;
    for (unsigned rest = seen.with_key; rest != 0; rest &= rest - 1) {
      const Candidate candidate = Chosen(tile, seen, state, FirstOf(rest));
      if (!IsOf(tile, FirstOf(rest))) continue;
      const std::uint64_t cell = LoadWord(PmReference(candidate));
      const bool erased = Cas(buckets[candidate.bucket].State(candidate.slot), state, kEmpty);
      SystemFence();
      if (!erased) continue;
      won = true;
      cells.Give(cell);
      if (candidate.frame != kNotCached) {
        StoreWord(cache.frames[candidate.frame].State(candidate.slot), kEmpty);
      }
    }
    won = tile.any(won);
    LetGo(tile, seen);
    return won ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                      std::uint64_t* found) const {
    const auto key = batch.KeyOf<KeyType>(i);
    if (StateFor(key) == kEmpty || StateFor(key) == kInsert) return Result::kInvalid;
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, key, found);
      case Op::kInsert:
        return Insert(tile, batch, i, key);
      case Op::kUpdate:
        return Update(tile, batch, i, key);
      case Op::kErase:
        return Erase(tile, key);
      default:
        return Result::kInvalid;
    }
  }

  /// Takes a frame from the bucket that has it and fetches another one into it, by all lanes of a
  /// tile (section 3.3, figure 4). Beside operations that find: of one that writes the other bucket
  /// meanwhile, which is not cached yet, the paper does not say how the frame comes to know.
  template <class Tile>
  GPM_HD void LoadFrame(const Tile& tile, std::uint32_t frame, std::uint32_t bucket) const {
    const bool first = tile.thread_rank() == 0;
    if (first) {
      const std::uint32_t old = cache.bucket_of[frame];
      if (old != kNotCached) Cas(&cache.frame_of[old], frame, kNotCached);
      Fence();
      while (LoadWord(&cache.holders[frame]) != 0) {
      }
    }
    tile.sync();
    for (unsigned word = tile.thread_rank(); word < Bucket<kWords>::kBucketWords;
         word += tile.size()) {
      StoreWord(&cache.frames[frame].words[word], LoadWord(&buckets[bucket].words[word]));
    }
    Fence();
    tile.sync();
    if (!first) return;
    cache.bucket_of[frame] = bucket;
    Exchange(&cache.frame_of[bucket], frame);
  }
};

}  // namespace gpm::bench::peers::gphash

#endif  // GPM_BENCH_PEERS_GPHASH_TABLE_H_
