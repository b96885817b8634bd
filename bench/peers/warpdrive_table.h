#ifndef GPM_BENCH_PEERS_WARPDRIVE_TABLE_H_
#define GPM_BENCH_PEERS_WARPDRIVE_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "bench/peers/shared_words.h"
#include "bench/peers/tiles.h"
#include "gpmstore/batch.h"
#include "pm/annotate.h"
#include "table/hash.h"

/// WarpDrive's slots, and what a group of threads does with them (what is left out: warpdrive.cu).
namespace gpm::bench::peers::warpdrive {

/// Chaotic probes of 32 slots each, after which a table is said to be full (p_max).
inline constexpr unsigned kMaxProbes = 512;

/// Murmur's finalizer of 32 bits, which the paper uses.
GPM_HD inline std::uint32_t Fmix32(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/// 32 + 32 bits packed into a word (AOS): a compare-and-swap writes key and value at once.
struct PackedSlots {
  using Key = std::uint32_t;
  static constexpr std::uint64_t kEmpty = 0xFFFFFFFF'FFFFFFFFull;
  static constexpr std::uint64_t kTombstone = 0xFFFFFFFE'FFFFFFFFull;
  static constexpr bool IsReserved(Key key) { return key >= 0xFFFFFFFEu; }

  std::uint64_t* words;
  std::uint64_t slots;

  GPM_HD static Key KeyOfWord(std::uint64_t word) { return static_cast<Key>(word >> 32); }
  GPM_HD static std::uint64_t HashOf(Key key, unsigned probe) {
    const std::uint32_t h = Fmix32(key + probe * 0x9E3779B9u);
    return std::uint64_t{h} << 32 | Fmix32(h ^ key);
  }
  GPM_HD static std::uint64_t WordOf(Key key, const KernelBatch& batch, std::uint64_t i) {
    const std::uint32_t value =
        batch.values == nullptr ? 0 : reinterpret_cast<const std::uint32_t*>(batch.values)[i];
    return std::uint64_t{key} << 32 | value;
  }
  /// Finishes what the leader's compare-and-swap of an insert has begun.
  template <class Tile>
  GPM_HD void WriteNew(const Tile&, const KernelBatch&, std::uint64_t, std::uint64_t) const {}
  template <class Tile>
  GPM_HD void Overwrite(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                        std::uint64_t slot) const {
    if (tile.thread_rank() == 0) StoreWord(&words[slot], WordOf(batch.KeyOf<Key>(i), batch, i));
  }
  template <class Tile>
  GPM_HD void Read(const Tile& tile, const KernelBatch& batch, std::uint64_t i, std::uint64_t,
                   std::uint64_t word) const {
    if (tile.thread_rank() == 0) {
      reinterpret_cast<std::uint32_t*>(batch.found)[i] = static_cast<std::uint32_t>(word);
    }
  }
};

/// Keys of 64 bits, and values in an array of their own (SOA), each at its key's slot.
struct SeparateSlots {
  using Key = std::uint64_t;
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static constexpr std::uint64_t kTombstone = ~std::uint64_t{1};
  static constexpr bool IsReserved(Key key) { return key >= kTombstone; }

  std::uint64_t* words;
  std::uint64_t slots;
  std::byte* values;

  GPM_HD static Key KeyOfWord(std::uint64_t word) { return word; }
  GPM_HD static std::uint64_t HashOf(Key key, unsigned probe) {
    return Scramble(key + probe * 0x9E3779B97F4A7C15ull);
  }
  GPM_HD static std::uint64_t WordOf(Key key, const KernelBatch&, std::uint64_t) { return key; }
  template <class Tile>
  GPM_HD void WriteNew(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                       std::uint64_t slot) const {
    CopyValue(tile, values + slot * batch.value_bytes, batch.ValueOf(i), batch.value_bytes);
  }
  template <class Tile>
  GPM_HD void Overwrite(const Tile& tile, const KernelBatch& batch, std::uint64_t i,
                        std::uint64_t slot) const {
    WriteNew(tile, batch, i, slot);
  }
  template <class Tile>
  GPM_HD void Read(const Tile& tile, const KernelBatch& batch, std::uint64_t i, std::uint64_t slot,
                   std::uint64_t) const {
    CopyValue(tile, batch.FoundOf(i), values + slot * batch.value_bytes, batch.value_bytes);
  }
};

/// What kernels see of a table. @tparam Slots says what a slot is
template <class Slots>
struct WarpDriveTable : Slots {
  using Key = typename Slots::Key;
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

  /// Where a walk ended, the same for all lanes.
  struct Place {
    std::uint64_t match = kNowhere;  ///< the key's slot
    std::uint64_t word = 0;          ///< what was read there
    std::uint64_t free = kNowhere;   ///< the first slot without a key, before the walk's end
    std::uint64_t free_word = 0;     ///< what was read there: empty, or a tombstone
  };

  GPM_HD static bool IsFree(std::uint64_t word) {
    return word == Slots::kEmpty || word == Slots::kTombstone;
  }

  /// Walks windows of |g| slots, as long as they are full (paper, figure 3).
  template <class Tile>
  GPM_HD Place Walk(const Tile& tile, Key key) const {
    Place place;
    for (unsigned probe = 0; probe < kMaxProbes; ++probe) {
      const std::uint64_t start = Reduce(Slots::HashOf(key, probe), this->slots);
      for (unsigned q = 0; q < kWarpThreads / tile.size(); ++q) {
        std::uint64_t slot = start + q * tile.size() + tile.thread_rank();
        if (slot >= this->slots) slot -= this->slots;
        const std::uint64_t word = LoadWord(&this->words[slot]);
        const unsigned match = tile.ballot(!IsFree(word) && Slots::KeyOfWord(word) == key);
        if (match != 0) {
          place.match = tile.shfl(slot, FirstOf(match));
          place.word = tile.shfl(word, FirstOf(match));
          return place;
        }
        const unsigned free = tile.ballot(IsFree(word));
        if (free != 0 && place.free == kNowhere) {
          place.free = tile.shfl(slot, FirstOf(free));
          place.free_word = tile.shfl(word, FirstOf(free));
        }
        if (tile.any(word == Slots::kEmpty)) return place;
      }
    }
    return place;
  }

  template <class Tile>
  GPM_HD Result Upsert(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const Key key = batch.KeyOf<Key>(i);
    // Each attempt but the last meets a slot that another operation has just taken.
    for (std::uint64_t attempt = 0; attempt <= batch.n; ++attempt) {
      const Place place = Walk(tile, key);
      if (place.match != kNowhere) {
        this->Overwrite(tile, batch, i, place.match);
        return Result::kOk;
      }
      if (place.free == kNowhere) return Result::kNoSpace;
      bool won = false;
      if (tile.thread_rank() == 0) {
        won = Cas(&this->words[place.free], place.free_word, Slots::WordOf(key, batch, i));
      }
      if (tile.any(won)) {
        this->WriteNew(tile, batch, i, place.free);
        return Result::kOk;
      }
    }
    return Result::kNoSpace;
  }

  template <class Tile>
  GPM_HD Result Find(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const Place place = Walk(tile, batch.KeyOf<Key>(i));
    if (place.match == kNowhere) return Result::kNotFound;
    if (batch.found != nullptr) this->Read(tile, batch, i, place.match, place.word);
    return Result::kOk;
  }

  template <class Tile>
  GPM_HD Result Erase(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    const Place place = Walk(tile, batch.KeyOf<Key>(i));
    if (place.match == kNowhere) return Result::kNotFound;
    bool won = false;
    if (tile.thread_rank() == 0) {
      won = Cas(&this->words[place.match], place.word, Slots::kTombstone);
    }
    return tile.any(won) ? Result::kOk : Result::kNotFound;  // another erase was first
  }

  template <class Tile>
  GPM_HD Result Apply(const Tile& tile, const KernelBatch& batch, std::uint64_t i) const {
    if (Slots::IsReserved(batch.KeyOf<Key>(i))) return Result::kInvalid;
    switch (batch.KindOf(i)) {
      case Op::kFind:
        return Find(tile, batch, i);
      case Op::kUpsert:
        return Upsert(tile, batch, i);
      case Op::kErase:
        return Erase(tile, batch, i);
      default:
        return Result::kInvalid;
    }
  }
};

}  // namespace gpm::bench::peers::warpdrive

#endif  // GPM_BENCH_PEERS_WARPDRIVE_TABLE_H_
