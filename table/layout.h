#ifndef GPM_TABLE_LAYOUT_H_
#define GPM_TABLE_LAYOUT_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "pm/format.h"
#include "pm/steps.h"
#include "table/change_log.h"
#include "table/change_map.h"
#include "table/hash.h"

namespace gpm {

/// One slot of one bucket, by address.
struct Slot {
  std::byte* bucket = nullptr;
  std::uint32_t index = 0;
};

/// A level, in an address space.
struct LevelView {
  std::uint64_t offset;        ///< of its first bucket, from the pool's base
  std::uint32_t part_buckets;  ///< its buckets / locations
  std::uint32_t first_index;   ///< of its buckets in a directory, if it is addressable
};

/// Where the table's parts are: a trivially copyable, non-owning view of a pool, the same on host
/// and device. It changes only while no batch runs (levels that come and go).
struct TableView {
  std::byte* base;
  std::uint64_t hash_seed[2];
  std::uint64_t bucket_bytes;
  std::uint64_t cell_bytes;     ///< 0 when values are inline
  std::uint32_t key_size;       ///< bytes
  std::uint32_t key_words;      ///< 8-byte words of a key, as it is stored
  std::uint32_t value_size;     ///< bytes
  std::uint32_t key_offset;     ///< of the first key in a bucket (keys longer than 8 bytes)
  std::uint32_t levels;         ///< x of the geometry
  std::uint32_t locations;      ///< y
  std::uint32_t slots;          ///< z
  std::uint32_t location_bits;  ///< log2 of locations
  std::uint32_t slot_bits;      ///< log2 of slots
  std::uint32_t level_count;    ///< the first `levels` are addressable
  std::uint32_t cell_shift;     ///< trailing zeros of cell_bytes
  std::uint32_t cell_inverse;   ///< of cell_bytes >> cell_shift, modulo 2^32
  /// The levels are being composed: they are in an executor's own memory, and nothing in the pool
  /// names them. The reserved level is named, and takes nothing meanwhile.
  bool composed;
  ChangeMap changes;                  ///< the executor's
  const ChangeLog* log;               ///< likewise, or null
  LevelView level_views[kMaxLevels];  ///< the newest is level 0

  GPM_HD bool inline_values() const { return cell_bytes == 0; }
  /// Whether there are levels that are not addressable, and whose items are to be moved up.
  GPM_HD bool draining() const { return level_count > levels; }
  GPM_HD std::uint32_t candidate_buckets() const { return levels * locations; }

  GPM_HD std::byte* Bucket(std::uint32_t level, std::uint64_t number) const {
    return base + level_views[level].offset + number * bucket_bytes;
  }
  GPM_HD std::uint64_t Buckets(std::uint32_t level) const {
    return std::uint64_t{level_views[level].part_buckets} << location_bits;
  }
  /// Buckets of the reserved level, one for each of two keys (Candidates).
  static constexpr std::uint32_t kReservedBuckets = 2;
  /// A bucket's *index* counts those of the reserved level, then those of the addressable levels,
  /// the oldest first.
  GPM_HD std::uint32_t BucketIndex(std::uint32_t level, std::uint64_t number) const {
    return level_views[level].first_index + static_cast<std::uint32_t>(number);
  }
  /// REQUIRES: it is not in the reserved level.
  GPM_HD std::uint32_t LevelOf(std::uint32_t index) const {
    std::uint32_t i = 0;
    while (index < level_views[i].first_index) ++i;
    return i;
  }
  GPM_HD std::byte* BucketAt(std::uint32_t index) const {
    if (index < kReservedBuckets) return ReservedBucket(index);
    const std::uint32_t i = LevelOf(index);
    return Bucket(i, index - level_views[i].first_index);
  }
  GPM_HD std::byte* ReservedBucket(std::uint32_t number) const {
    return base + kReservedOffset + number * bucket_bytes;
  }
  GPM_HD std::uint64_t* State(Slot slot) const {
    return reinterpret_cast<std::uint64_t*>(slot.bucket) + 2 * slot.index;
  }
  GPM_HD std::uint64_t* Key(Slot slot) const {
    return reinterpret_cast<std::uint64_t*>(slot.bucket + key_offset) + slot.index * key_words;
  }
  /// Behind the state: a slot's pair is 16 bytes, aligned to that.
  GPM_HD std::uint64_t* Reference(Slot slot) const { return State(slot) + 1; }
  /// Bytes of a bucket's pairs of state word and value reference, at its beginning.
  GPM_HD std::uint64_t pair_bytes() const { return std::uint64_t{16} * slots; }
  /// A slot as one word: buckets are 128-byte aligned and have at most 32 slots.
  GPM_HD std::uint64_t SlotId(Slot slot) const {
    return static_cast<std::uint64_t>(slot.bucket - base) | slot.index;
  }
  GPM_HD Slot SlotOf(std::uint64_t id) const {
    return Slot{base + (id & ~std::uint64_t{127}), static_cast<std::uint32_t>(id & 127)};
  }
  /// Whether a slot that holds these words, read when no batch runs, is half-inserted or
  /// half-emptied. Where values lie in cells, an item has a reference other than 0, and an empty
  /// slot has none.
  /// @param addressable else in a level that is being drained: nothing is inserted there any more,
  ///        and what was moved up may leave its reference behind, or of its word and reference
  ///        only the word, where a crash cut that off: there is a copy above then
  GPM_HD bool IsHalf(std::uint64_t word, std::uint64_t reference, bool addressable = true) const {
    if (word == kInsertState) return true;
    return addressable && !inline_values() && (word == kEmptyState) != (reference == 0);
  }
  GPM_HD std::byte* Cell(std::uint64_t reference) const { return base + reference; }
  /// Number of the cell that a reference names: reference / cell_bytes, which divides it.
  GPM_HD std::uint32_t CellOf(std::uint64_t reference) const {
    return static_cast<std::uint32_t>(reference >> cell_shift) * cell_inverse;
  }
};

/// The view of a pool mapped at `base` with this superblock in force.
inline TableView MakeTableView(std::byte* base, const Superblock& superblock) {
  TableView view{};
  view.base = base;
  view.hash_seed[0] = superblock.hash_seed[0];
  view.hash_seed[1] = superblock.hash_seed[1];
  view.bucket_bytes = BucketBytes(superblock.key_size, superblock.geometry);
  view.cell_bytes = InlineValues(superblock.value_size) ? 0 : CellBytes(superblock.value_size);
  if (!view.inline_values()) {
    view.cell_shift = static_cast<std::uint32_t>(std::countr_zero(view.cell_bytes));
    const auto odd = static_cast<std::uint32_t>(view.cell_bytes >> view.cell_shift);
    view.cell_inverse = odd;  // right in 3 bits; each step of Newton's method doubles that
    for (int step = 0; step < 4; ++step) view.cell_inverse *= 2 - odd * view.cell_inverse;
  }
  view.key_size = superblock.key_size;
  view.key_words = KeyWords(superblock.key_size);
  view.value_size = superblock.value_size;
  view.levels = superblock.geometry.levels;
  view.locations = superblock.geometry.locations;
  view.slots = superblock.geometry.slots;
  view.location_bits = static_cast<std::uint32_t>(std::countr_zero(view.locations));
  view.slot_bits = static_cast<std::uint32_t>(std::countr_zero(view.slots));
  view.key_offset = 16 * view.slots;
  view.level_count = superblock.level_count;
  std::uint64_t index = TableView::kReservedBuckets;
  for (std::uint32_t i = view.level_count; i-- > 0;) {
    const LevelEntry& level = superblock.levels[i];
    view.level_views[i] = {level.offset,
                           static_cast<std::uint32_t>(level.buckets >> view.location_bits),
                           static_cast<std::uint32_t>(index)};
    if (i < view.levels) index += level.buckets;
  }
  return view;
}

/// Where one key may live, and the state word that marks it there.
///
/// Candidate bucket c = i * locations + j is location j in level i. Candidate slots are numbered
/// c * slots + s. The valid one of several copies of a key is in the newest level, then the lowest
/// bucket, then the lowest slot (GPHash section 3.2.2): the lowest candidate.
struct Candidates {
  KeyHash hash;
  std::uint64_t word;
  std::int64_t reserved =
      -1;  ///< bucket of the reserved level, for the two keys that have one; else -1
};

GPM_HD inline Candidates LocateKey(const TableView& table, const std::uint64_t* key) {
  Candidates candidates;
  candidates.hash = HashKey(table.hash_seed, key, table.key_words);
  if (table.key_words == 1) {
    candidates.word = key[0];
    if (key[0] == kEmptyState || key[0] == kInsertState) {
      candidates.word = kReservedWord;
      candidates.reserved = key[0] == kEmptyState ? 0 : 1;
    }
  } else {
    const std::uint64_t g = candidates.hash.g;
    candidates.word = g == kEmptyState || g == kInsertState ? g ^ 0x5555555555555555ull : g;
  }
  return candidates;
}

/// floor(hash * count / 2^64): the share of `count` things that a hash falls to.
GPM_HD inline std::uint64_t ShareOf(std::uint64_t hash, std::uint32_t count) {
#ifdef __CUDA_ARCH__
  return ((hash >> 32) * count + ((hash & 0xFFFF'FFFF) * count >> 32)) >> 32;
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{hash} * count) >> 64);
#endif
}

/// Number of the bucket at a level: in proportion to the location's hash, so that hash order is
/// address order in every level at once. Where a level has 2^i buckets, it is the hash's high bits.
///
/// Location j hashes to h + j * g (double hashing) within the j-th of `locations` equal parts of
/// the level. So two locations never share a bucket, their order is that of their bucket numbers,
/// and the rule that the first location gets an item when loads are equal fills the table further
/// (Voecking, "How asymmetry helps load balancing", 1999).
/// @param part_buckets of the level
GPM_HD inline std::uint64_t BucketNumber(const KeyHash& hash, std::uint32_t location,
                                         std::uint32_t part_buckets) {
  return std::uint64_t{location} * part_buckets + ShareOf(hash.h + location * hash.g, part_buckets);
}

/// Candidate bucket c, or null when the key lives in the reserved level and c is not 0.
GPM_HD inline std::byte* CandidateBucket(const TableView& table, const Candidates& candidates,
                                         std::uint32_t c) {
  if (candidates.reserved >= 0) {
    return c == 0 ? table.ReservedBucket(static_cast<std::uint32_t>(candidates.reserved)) : nullptr;
  }
  const std::uint32_t level = c >> table.location_bits;
  const std::uint32_t location = c & (table.locations - 1);
  return table.Bucket(
      level, BucketNumber(candidates.hash, location, table.level_views[level].part_buckets));
}

/// The words of a key, in registers or on the stack.
inline constexpr std::uint32_t kMaxKeyWords = KeyWords(kMaxKeyBytes);
struct KeyBuffer {
  std::uint64_t words[kMaxKeyWords];
};

/// Makes a slot empty, in the one state or the other: its reference too where an insert may write
/// both words in any order.
template <class Media>
GPM_HD inline void EmptySlot(const TableView& table, const Media& media, Slot slot, Step flush,
                             std::uint64_t word = kEmptyState) {
  std::uint64_t* const state = table.State(slot);
  if (table.inline_values()) {
    media.Store(state, word);  // with 0 as its reference, the item would have that value
  } else {
    media.StorePair(state, word, 0);
  }
  media.Flush(flush, state, (table.inline_values() ? 1 : 2) * sizeof *state);
}

/// The key stored in a valid slot. Keys of one word are their own state word, but in the reserved
/// level.
template <class Media>
GPM_HD inline void LoadSlotKey(const TableView& table, const Media& media, Slot slot,
                               std::uint64_t word, std::uint64_t* key) {
  if (table.key_words == 1) {
    const auto offset = static_cast<std::uint64_t>(slot.bucket - table.base);
    if (offset == kReservedOffset) {
      key[0] = kEmptyState;
    } else if (offset == kReservedOffset + table.bucket_bytes) {
      key[0] = kInsertState;
    } else {
      key[0] = word;
    }
    return;
  }
  const std::uint64_t* stored = table.Key(slot);
  for (std::uint32_t i = 0; i < table.key_words; ++i) key[i] = media.Load(stored + i);
}

}  // namespace gpm

#endif  // GPM_TABLE_LAYOUT_H_
