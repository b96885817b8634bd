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
  std::uint32_t* frame_of;  ///< F(x) of each bucket; kNotCached: none
  std::uint32_t* uses;      ///< of each bucket, for LFU
  Bucket<kWords>* frames;
  std::uint64_t* writers;  ///< of each slot of a frame: who exchanges its reference
};

/// What kernels see of a table. Buckets of both levels are numbered in one row, the top level
/// first.
template <unsigned kWords>
struct GpHashTable {
  using KeyType = Key<kWords>;

  Bucket<kWords>* buckets;    ///< PM
  std::uint64_t top_buckets;  ///< of the top level; the other one has half as many
  Cells cells;
  BucketCache<kWords> cache;

  /// A lane's candidate slot.
  struct Candidate {
    std::uint64_t bucket;
    std::uint64_t state;   ///< that was read, in PM or in the frame
    Bucket<kWords>* read;  ///< from there
    std::uint32_t frame;   ///< of the bucket, or kNotCached
    std::uint32_t slot;
  };

  /// Reads the states of all candidate slots, one by each lane, in the order in which they are
  /// valid: the top level first, then the lower bucket number (section 3.2.2). A slot that two
  /// lanes would have is the first one's; the other reads kInsert, which is neither free nor a key.
  /// @param state of a key @param cached frames are read where there are any
  template <class Tile>
  GPM_HD Candidate Probe(const Tile& tile, std::uint64_t state, bool cached) const {
    const std::uint64_t a = Reduce(Scramble(state), top_buckets);
    const std::uint64_t b = Reduce(Scramble(state ^ 0x9E3779B97F4A7C15ull), top_buckets);
    const unsigned lane = tile.thread_rank();
    const bool lower = lane >= kLocations * kSlots;
    const bool second = lane / kSlots % kLocations != 0;
    const std::uint64_t low = a < b ? a : b;
    const std::uint64_t high = a < b ? b : a;
    const std::uint64_t first_bucket = lower ? low / 2 : low;
    const std::uint64_t second_bucket = lower ? high / 2 : high;
    Candidate candidate;
    candidate.bucket = (lower ? top_buckets : 0) + (second ? second_bucket : first_bucket);
    candidate.slot = lane % kSlots;
    candidate.frame = LoadWord(&cache.frame_of[candidate.bucket]);
    // All that are read are used, those without the key, too.
    if (candidate.slot == 0) AtomicAdd32(&cache.uses[candidate.bucket], 1);
    candidate.read = cached && candidate.frame != kNotCached ? &cache.frames[candidate.frame]
                                                             : &buckets[candidate.bucket];
    candidate.state = second && first_bucket == second_bucket
                          ? kInsert
                          : LoadWord(candidate.read->State(candidate.slot));
    return candidate;
  }

  /// Whether a candidate slot has the key. Who writes one writes the key before the state, so that
  /// what is read behind the state is a whole key.
  GPM_HD static bool Has(const Candidate& candidate, std::uint64_t state, const KeyType& key) {
    if constexpr (kWords == 1) {
      return candidate.state == state;
    } else {
      if (candidate.state != state) return false;
      Fence();
      return LoadKey<kWords>(candidate.read->KeyWords(candidate.slot)) == key;
    }
  }

  /// By one thread: fills a slot of a bucket, but for its state.
  GPM_HD static void WriteItem(Bucket<kWords>* bucket, unsigned slot, const KeyType& key,
                               std::uint64_t cell) {
    if constexpr (kWords > 1) StoreKey(bucket->KeyWords(slot), key);
    StoreWord(bucket->Reference(slot), cell);
  }

  /// The first empty slot of the least loaded bucket. @param empty votes of all lanes, not 0
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
    const std::uint64_t state = StateOf(key);
    Result result = Result::kNoSpace;
    std::uint64_t cell = 0;
    bool done = false;
    for (unsigned attempt = 0; attempt < kMaxAttempts && !done; ++attempt) {
      // Who lost a slot has been misled by a frame, perhaps.
      const Candidate candidate = Probe(tile, state, attempt == 0);
      if (tile.any(Has(candidate, state, key))) {
        result = Result::kExists;
        break;
      }
      const unsigned empty = tile.ballot(candidate.state == kEmpty);
      if (empty == 0) break;
      const unsigned target = TargetOf(empty);
      Bucket<kWords>* const bucket = &buckets[candidate.bucket];
      bool won = false;
      if (tile.thread_rank() == target) {
        won = Cas(bucket->State(candidate.slot), kEmpty, kInsert);
        if (won) cell = cells.Take();
      }
      done = tile.any(won);
      if (!done) continue;
      cell = tile.shfl(cell, target);
      CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
      if (tile.thread_rank() == target) WriteItem(bucket, candidate.slot, key, cell);
      SystemFence();
      tile.sync();
      if (tile.thread_rank() == target) {
        StoreWord(bucket->State(candidate.slot), state);
        SystemFence();
        if (candidate.frame != kNotCached) {
          Bucket<kWords>* const frame = &cache.frames[candidate.frame];
          WriteItem(frame, candidate.slot, key, cell);
          Fence();
          StoreWord(frame->State(candidate.slot), state);
        }
      }
      result = Result::kOk;
    }
    return result;
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

  /// Looks for a key. @return the valid one of the slots with it, as a lane, or kWarpThreads
  template <class Tile>
  GPM_HD unsigned Locate(const Tile& tile, const KeyType& key, Candidate* candidate) const {
    const std::uint64_t state = StateOf(key);
    *candidate = Probe(tile, state, true);
    const unsigned match = tile.ballot(Has(*candidate, state, key));
    return match == 0 ? kWarpThreads : FirstOf(match);
  }

  template <class Tile>
  GPM_HD Result Find(const Tile& tile, const KeyType& key, std::uint64_t* found) const {
    Candidate candidate;
    const unsigned valid = Locate(tile, key, &candidate);
    if (valid == kWarpThreads) return Result::kNotFound;
    std::uint64_t cell = 0;
    if (tile.thread_rank() == valid) {
      cell = LoadWord(candidate.frame != kNotCached ? FrameReference(candidate)
                                                    : PmReference(candidate));
    }
    *found = tile.shfl(cell, valid);
    return Result::kOk;
  }

  template <class Tile>
  GPM_HD Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
    Candidate candidate;
    const unsigned valid = Locate(tile, key, &candidate);
    if (valid == kWarpThreads) return Result::kNotFound;
    // (Duplicates would be deleted here. None are made: the keys of a batch of inserts are new.)
    std::uint64_t cell = tile.thread_rank() == valid ? cells.Take() : 0;
    cell = tile.shfl(cell, valid);
    CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
    SystemFence();
    tile.sync();
    if (tile.thread_rank() == valid) {
      if (candidate.frame != kNotCached) {
        cells.Give(ExchangeCached(candidate, cell));
      } else {
        cells.Give(Exchange(PmReference(candidate), cell));
        SystemFence();
      }
    }
    return Result::kOk;
  }

  template <class Tile>
  GPM_HD Result Erase(const Tile& tile, const KeyType& key) const {
    const std::uint64_t state = StateOf(key);
    const Candidate candidate = Probe(tile, state, true);
    bool won = false;
    if (Has(candidate, state, key)) {
      const std::uint64_t cell = LoadWord(PmReference(candidate));
      won = Cas(buckets[candidate.bucket].State(candidate.slot), state, kEmpty);
      SystemFence();
      if (won) {
        cells.Give(cell);
        if (candidate.frame != kNotCached) {
          StoreWord(cache.frames[candidate.frame].State(candidate.slot), kEmpty);
        }
      }
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                      std::uint64_t* found) const {
    const auto key = batch.KeyOf<KeyType>(i);
    if (StateOf(key) == kEmpty || StateOf(key) == kInsert) return Result::kInvalid;
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

  /// Copies a bucket to a frame, by all lanes of a tile, and makes it that bucket's (section 3.3).
  template <class Tile>
  GPM_HD void LoadFrame(const Tile& tile, std::uint64_t frame, std::uint32_t bucket) const {
    for (unsigned word = tile.thread_rank(); word < Bucket<kWords>::kBucketWords;
         word += tile.size()) {
      cache.frames[frame].words[word] = LoadWord(&buckets[bucket].words[word]);
    }
    if (tile.thread_rank() == 0) cache.frame_of[bucket] = static_cast<std::uint32_t>(frame);
  }
};

}  // namespace gpm::bench::peers::gphash

#endif  // GPM_BENCH_PEERS_GPHASH_TABLE_H_
