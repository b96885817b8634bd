#ifndef GPM_BENCH_PEERS_SLABHASH_TABLE_H_
#define GPM_BENCH_PEERS_SLABHASH_TABLE_H_

#include <cstdint>

#include "bench/peers/cells.h"
#include "bench/peers/keys.h"
#include "bench/peers/shared_words.h"
#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"
#include "table/volatile_ops.h"

/// SlabHash-GPM's slabs, and what a warp does with them (what is left out: slabhash_gpm.cu).
namespace gpm::bench::peers::slabhash {

inline constexpr unsigned kSlots = 15;              ///< of a slab
inline constexpr unsigned kRow = kWarpThreads / 2;  ///< words of one kind, side by side
inline constexpr unsigned kReferenceLane = kRow;    ///< of slot 0
inline constexpr unsigned kNextLane = kWarpThreads - 1;
inline constexpr unsigned kSlotLanes = (1u << kSlots) - 1;
inline constexpr std::uint64_t kEmpty = 0;         ///< first word of a key: a free slot
inline constexpr std::uint64_t kErased = ~kEmpty;  ///< the same: not used again
inline constexpr unsigned kMaxSlabs = 256;         ///< of a chain
inline constexpr unsigned kMaxAttempts = 4096;  ///< of an insert; each but the last meets another
inline constexpr std::uint64_t kClaimed = ~kEmpty;            ///< a next slab that is being added
inline constexpr std::uint64_t kNothing = ~std::uint64_t{0};  ///< that is to be done again

/// Rows of 16 words: the first words of the keys; the references and, last, the next slab; then the
/// second words of the keys, the third ones and so on. All words are 0 at first, and those of a key
/// are written once.
template <unsigned kWords>
struct alignas(128) Slab {
  static constexpr unsigned kSlabWords = kRow * (kWords + 1);
  std::uint64_t words[kSlabWords];

  /// Where word k of a slot's key is.
  GPM_HD static unsigned IndexOf(unsigned slot, unsigned k) {
    return k == 0 ? slot : kRow * (k + 1) + slot;
  }
};
static_assert(sizeof(Slab<1>) == 256 && sizeof(Slab<4>) == 640);

/// What is to be done again after a crash: the slab's slot has the key, or kErased for its first
/// word, and the reference.
template <unsigned kWords>
struct alignas(16) LogRecord {
  static constexpr unsigned kRecordWords = (kWords + 4) / 2 * 2;
  /// The place, slab * kWarpThreads + slot, or kNothing; the key; the reference; a checksum.
  std::uint64_t words[kRecordWords];
};

/// What kernels see of a table. Slabs [0, buckets) begin a chain each.
template <unsigned kWords>
struct SlabHashTable {
  using KeyType = Key<kWords>;
  /// Loads of a slab by a warp, behind the first.
  static constexpr unsigned kMoreLoads = kWords / 2;

  Slab<kWords>* slabs;     ///< PM
  LogRecord<kWords>* log;  ///< PM, a record for each operation of a batch
  std::uint64_t buckets;
  std::uint64_t max_slabs;
  std::uint64_t* slab_count;  ///< in use
  Cells cells;

  /// A slab of a key's chain, words of it by each lane. The first load has the first words of the
  /// keys in the lower lanes, references and the next slab in the upper ones; each other load has
  /// two more rows.
  struct Visit {
    std::uint64_t word;
    std::uint64_t more[kMoreLoads + 1];
  };

  GPM_HD std::uint64_t BucketOf(const KeyType& key) const {
    return Reduce(Scramble(key.Fold()), buckets);
  }
  template <class Tile>
  GPM_HD Visit Read(const Tile& tile, std::uint64_t slab) const {
    const std::uint64_t* const words = slabs[slab].words;
    const unsigned lane = tile.thread_rank();
    Visit visit;
    visit.word = LoadWord(&words[lane]);
    if constexpr (kWords > 1) {
      for (unsigned m = 0; m < kMoreLoads; ++m) {
        const unsigned at = kWarpThreads * (m + 1) + lane;
        visit.more[m] = at < Slab<kWords>::kSlabWords ? LoadWord(&words[at]) : 0;
      }
    }
    return visit;
  }
  /// Slots of which the key begins so, as bits.
  template <class Tile>
  GPM_HD static unsigned SlotsBeginning(const Tile& tile, const Visit& visit, std::uint64_t word) {
    return tile.ballot(visit.word == word) & kSlotLanes;
  }
  /// Slots with a key, as bits: all its words are as in the visit.
  template <class Tile>
  GPM_HD static unsigned SlotsWith(const Tile& tile, const Visit& visit, const KeyType& key) {
    unsigned slots = SlotsBeginning(tile, visit, key.words[0]);
    if constexpr (kWords > 1) {
      const bool upper = tile.thread_rank() >= kRow;
      for (unsigned m = 0; m < kMoreLoads; ++m) {
        const unsigned k = 2 * m + 1;
        const bool last = k + 1 == kWords;  // then the upper lanes have no words any more
        const std::uint64_t wanted = upper ? key.words[last ? k : k + 1] : key.words[k];
        const unsigned same = tile.ballot((upper && last) || visit.more[m] == wanted);
        slots &= same & same >> kRow;
      }
    }
    return slots;
  }

  /// Whether a slot that begins like a key has it. REQUIRES: its reference was seen, behind which
  /// the key is whole.
  GPM_HD bool HasKey(std::uint64_t slab, unsigned slot, const KeyType& key) const {
    Fence();
    bool same = true;
    for (unsigned k = 1; k < kWords; ++k) {
      same &= LoadWord(&slabs[slab].words[Slab<kWords>::IndexOf(slot, k)]) == key.words[k];
    }
    return same;
  }
  /// The same of any slot: waits for the reference. (Who writes it waits for nobody meanwhile, nor
  /// for this warp, which does one operation after another.)
  GPM_HD bool AwaitKey(std::uint64_t slab, unsigned slot, const KeyType& key) const {
    if constexpr (kWords == 1) {
      return true;  // written at once
    } else {
      while (LoadWord(&slabs[slab].words[slot + kReferenceLane]) == 0) {
      }
      return HasKey(slab, slot, key);
    }
  }
  /// Whether a key that a visit saw was whole, whatever the order in which its words were read:
  /// what is not written yet is 0.
  GPM_HD static bool IsWholeWhereSeen(const KeyType& key) {
    bool whole = true;
    for (unsigned k = 1; k < kWords; ++k) whole &= key.words[k] != 0;
    return whole;
  }

  /// Finds a key's slot. @return whether it is there, and its value is
  template <class Tile>
  GPM_HD bool Search(const Tile& tile, const KeyType& key, std::uint64_t* slab, unsigned* slot,
                     std::uint64_t* reference) const {
    std::uint64_t at = BucketOf(key);
    for (unsigned visited = 0; visited < kMaxSlabs; ++visited) {
      const Visit visit = Read(tile, at);
      for (unsigned match = SlotsWith(tile, visit, key); match != 0; match &= match - 1) {
        *slab = at;
        *slot = FirstOf(match);
        *reference = tile.shfl(visit.word, *slot + kReferenceLane);
        if (*reference == 0) continue;  // an insert has not ended
        if (IsWholeWhereSeen(key) || HasKey(at, *slot, key)) return true;
      }
      at = tile.shfl(visit.word, kNextLane);
      if (at == 0 || at == kClaimed) return false;
    }
    return false;
  }

  /// By one thread, before an operation changes the table; a fence follows.
  GPM_HD void Log(std::uint64_t i, std::uint64_t slab, unsigned slot, const KeyType& key,
                  std::uint64_t reference) const {
    constexpr unsigned kRecordWords = LogRecord<kWords>::kRecordWords;
    const std::uint64_t where = slab * kWarpThreads + slot;
    std::uint64_t record[kRecordWords] = {where};
    for (unsigned k = 0; k < kWords; ++k) record[1 + k] = key.words[k];
    record[1 + kWords] = reference;
    record[2 + kWords] = Scramble(where ^ key.Fold()) ^ reference;
    for (unsigned k = 0; k < kRecordWords; k += 2) {
      StorePair(&log[i].words[k], {record[k], record[k + 1]});
    }
  }
  /// By one thread, when what was logged is durable.
  GPM_HD void ClearLog(std::uint64_t i) const { StoreWord(&log[i].words[0], kNothing); }

  template <class Tile>
  GPM_HD Result Find(const Tile& tile, const KeyType& key, std::uint64_t* found) const {
    std::uint64_t slab, cell;
    unsigned slot;
    if (!Search(tile, key, &slab, &slot, &cell)) return Result::kNotFound;
    *found = cell;
    return Result::kOk;
  }

  /// Writes a value to a new cell, by all lanes. Neither logged nor fenced.
  template <class Tile>
  GPM_HD std::uint64_t WriteCell(const Tile& tile, const KernelBatch& batch,
                                 std::uint64_t i) const {
    const std::uint64_t taken = tile.thread_rank() == 0 ? cells.Take() : 0;
    const std::uint64_t cell = tile.shfl(taken, 0);
    CopyValue(tile, cells.AddressOf(cell), batch.ValueOf(i), batch.value_bytes);
    return cell;
  }

  /// By one thread: claims an empty slot by the first word of the key, and writes the others and
  /// then the reference, behind which all of them are seen.
  GPM_HD bool TryFill(std::uint64_t slab, unsigned slot, const KeyType& key,
                      std::uint64_t cell) const {
    std::uint64_t* const words = slabs[slab].words;
    if (!Cas(&words[slot], kEmpty, key.words[0])) return false;
    if constexpr (kWords > 1) {
      for (unsigned k = 1; k < kWords; ++k) {
        StoreWord(&words[Slab<kWords>::IndexOf(slot, k)], key.words[k]);
      }
      SystemFence();
    }
    StoreWord(&words[slot + kReferenceLane], cell);
    SystemFence();
    return true;
  }

  template <class Tile>
  GPM_HD Result Insert(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
    std::uint64_t at = BucketOf(key);
    std::uint64_t cell = 0;
    Result result = Result::kNoSpace;
    for (unsigned attempt = 0; attempt < kMaxAttempts; ++attempt) {
      const Visit visit = Read(tile, at);
      bool exists = false;
      for (unsigned alike = SlotsBeginning(tile, visit, key.words[0]); alike != 0 && !exists;
           alike &= alike - 1) {
        exists = AwaitKey(at, FirstOf(alike), key);
      }
      if (exists) {
        result = Result::kExists;
        break;
      }
      const unsigned empty = SlotsBeginning(tile, visit, kEmpty);
      if (empty == 0) {
        const std::uint64_t next = NextOf(tile, at, tile.shfl(visit.word, kNextLane));
        if (next == 0) break;
        if (next != kClaimed) at = next;  // else the slab is read again
        continue;
      }
      if (cell == 0) cell = WriteCell(tile, batch, i);
      const unsigned slot = FirstOf(empty);
      if (tile.thread_rank() == 0) Log(i, at, slot, key, cell);
      SystemFence();
      tile.sync();
      bool won = false;
      if (tile.thread_rank() == 0) {
        won = TryFill(at, slot, key, cell);
        // Another insert may have the slot now: the record must not be applied any more.
        ClearLog(i);
      }
      if (!tile.any(won)) continue;
      return Result::kOk;
    }
    if (cell != 0 && tile.thread_rank() == 0) cells.Give(cell);
    return result;
  }

  /// The slab behind `at`, which is full; adds one where there is none.
  /// @param next that was read @return 0: there is no room for one; kClaimed: another adds one
  template <class Tile>
  GPM_HD std::uint64_t NextOf(const Tile& tile, std::uint64_t at, std::uint64_t next) const {
    if (next != 0) return next;
    if (tile.thread_rank() == 0) {
      std::uint64_t* const link = &slabs[at].words[kNextLane];
      next = kClaimed;
      if (Cas(link, 0, kClaimed)) {
        next = AtomicAdd(slab_count, 1);
        if (next >= max_slabs) {
          AtomicAdd(slab_count, ~std::uint64_t{0});  // minus one
          next = 0;
        }
        StoreWord(link, next);
        SystemFence();
      }
    }
    return tile.shfl(next, 0);
  }

  template <class Tile>
  GPM_HD Result Update(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       const KeyType& key) const {
    std::uint64_t slab, old;
    unsigned slot;
    if (!Search(tile, key, &slab, &slot, &old)) return Result::kNotFound;
    const std::uint64_t cell = WriteCell(tile, batch, i);
    if (tile.thread_rank() == 0) Log(i, slab, slot, key, cell);
    SystemFence();
    tile.sync();
    if (tile.thread_rank() == 0) {
      cells.Give(Exchange(&slabs[slab].words[slot + kReferenceLane], cell));
      SystemFence();
      ClearLog(i);
    }
    return Result::kOk;
  }

  template <class Tile>
  GPM_HD Result Erase(const Tile& tile, std::uint64_t i, const KeyType& key) const {
    std::uint64_t slab, cell;
    unsigned slot;
    if (!Search(tile, key, &slab, &slot, &cell)) return Result::kNotFound;
    bool won = false;
    if (tile.thread_rank() == 0) {
      KeyType erased = key;
      erased.words[0] = kErased;
      Log(i, slab, slot, erased, 0);
      SystemFence();
      won = Cas(&slabs[slab].words[slot], key.words[0], kErased);
      SystemFence();
      ClearLog(i);
      if (won) cells.Give(cell);
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;
  }

  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                      std::uint64_t* found) const {
    const auto key = batch.KeyOf<KeyType>(i);
    if (key.words[0] == kEmpty || key.words[0] == kErased) return Result::kInvalid;
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, key, found);
      case Op::kInsert:
        return Insert(tile, batch, i, key);
      case Op::kUpdate:
        return Update(tile, batch, i, key);
      case Op::kErase:
        return Erase(tile, i, key);
      default:
        return Result::kInvalid;
    }
  }
};

}  // namespace gpm::bench::peers::slabhash

#endif  // GPM_BENCH_PEERS_SLABHASH_TABLE_H_
