#ifndef GPM_TABLE_LAYOUT_H_
#define GPM_TABLE_LAYOUT_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "pm/format.h"
#include "table/hash.h"

namespace gpm {

/// One slot of one bucket, by address.
struct Slot {
  std::byte* bucket = nullptr;
  std::uint32_t index = 0;
};

/// Where the table's parts are: a trivially copyable, non-owning view of a pool, the same on host
/// and device. It changes only while no batch runs (new levels, moved tops).
struct TableView {
  std::byte* base;
  std::uint64_t hash_seed[2];
  std::uint64_t bucket_bytes;
  std::uint64_t cell_bytes;        ///< 0 when values are inline
  std::uint32_t key_words;         ///< 8-byte words of a key
  std::uint32_t value_size;        ///< bytes
  std::uint32_t key_offset;        ///< of the first key in a bucket (keys longer than 8 bytes)
  std::uint32_t reference_offset;  ///< of the first value reference in a bucket
  std::uint32_t levels;            ///< x of the geometry
  std::uint32_t locations;         ///< y
  std::uint32_t slots;             ///< z
  std::uint32_t location_bits;     ///< log2 of locations
  std::uint32_t slot_bits;         ///< log2 of slots
  std::uint32_t bottom;            ///< lowest physical level
  std::uint32_t top;         ///< highest level; top, top - 1, ... top - levels + 1 are addressable
  std::uint32_t cell_shift;  ///< trailing zeros of cell_bytes
  std::uint32_t cell_inverse;  ///< of cell_bytes >> cell_shift, modulo 2^32
  std::uint64_t level_offset[kMaxLevels];

  GPM_HD bool inline_values() const { return cell_bytes == 0; }
  GPM_HD std::uint32_t candidate_buckets() const { return levels * locations; }

  GPM_HD std::byte* Bucket(std::uint32_t level, std::uint64_t number) const {
    return base + level_offset[level] + number * bucket_bytes;
  }
  GPM_HD std::byte* ReservedBucket(std::uint32_t number) const {
    return base + kReservedOffset + number * bucket_bytes;
  }
  GPM_HD std::uint64_t* State(Slot slot) const {
    return reinterpret_cast<std::uint64_t*>(slot.bucket) + slot.index;
  }
  GPM_HD std::uint64_t* Key(Slot slot) const {
    return reinterpret_cast<std::uint64_t*>(slot.bucket + key_offset) + slot.index * key_words;
  }
  GPM_HD std::uint64_t* Reference(Slot slot) const {
    return reinterpret_cast<std::uint64_t*>(slot.bucket + reference_offset) + slot.index;
  }
  /// A slot as one word: buckets are 128-byte aligned and have at most 32 slots.
  GPM_HD std::uint64_t SlotId(Slot slot) const {
    return static_cast<std::uint64_t>(slot.bucket - base) | slot.index;
  }
  GPM_HD Slot SlotOf(std::uint64_t id) const {
    return Slot{base + (id & ~std::uint64_t{127}), static_cast<std::uint32_t>(id & 127)};
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
  view.key_words = superblock.key_size / 8;
  view.value_size = superblock.value_size;
  view.levels = superblock.geometry.levels;
  view.locations = superblock.geometry.locations;
  view.slots = superblock.geometry.slots;
  view.location_bits = static_cast<std::uint32_t>(std::countr_zero(view.locations));
  view.slot_bits = static_cast<std::uint32_t>(std::countr_zero(view.slots));
  view.key_offset = 8 * view.slots;
  view.reference_offset =
      view.key_offset + (superblock.key_size > 8 ? view.slots * superblock.key_size : 0);
  view.bottom = superblock.bottom;
  view.top = superblock.top;
  for (std::uint32_t i = 0; i < kMaxLevels; ++i) view.level_offset[i] = superblock.level_offset[i];
  return view;
}

/// Where one key may live, and the state word that marks it there.
///
/// Candidate bucket c = i * locations + j is location j in level top - i. Candidate slots are
/// numbered c * slots + s. The valid one of several copies of a key is in the highest level, then
/// the lowest bucket, then the lowest slot (GPHash section 3.2.2): the lowest candidate.
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

/// Number of the bucket at a level: the high bits of the location's hash, so that hash order is
/// address order in every level at once.
///
/// Location j hashes to h + j * g (double hashing) within the j-th of `locations` equal parts of
/// the table. Two locations then share a bucket only in levels with fewer buckets than locations,
/// their order is that of their bucket numbers, and the rule that the first location gets an item
/// when loads are equal fills the table further (Voecking, "How asymmetry helps load balancing",
/// 1999).
GPM_HD inline std::uint64_t BucketNumber(const TableView& table, const KeyHash& hash,
                                         std::uint32_t level, std::uint32_t location) {
  if (level == 0) return 0;
  const std::uint32_t part_bits = table.location_bits;
  const std::uint64_t within = (hash.h + location * hash.g) >> part_bits;
  const std::uint64_t part = part_bits == 0 ? 0 : std::uint64_t{location} << (64 - part_bits);
  return (part | within) >> (64 - level);
}

/// Whether candidate bucket c is the same bucket as one with a lower number: in levels with fewer
/// buckets than locations.
GPM_HD inline bool IsRepeated(const TableView& table, std::uint32_t c) {
  const std::uint32_t level = table.top - (c >> table.location_bits);
  if (level >= table.location_bits) return false;
  const std::uint32_t sharers = 1u << (table.location_bits - level);
  return (c & (sharers - 1)) != 0;
}

/// Candidate bucket c, or null when it is repeated, or when the key lives in the reserved level and
/// c is not 0.
GPM_HD inline std::byte* CandidateBucket(const TableView& table, const Candidates& candidates,
                                         std::uint32_t c) {
  if (candidates.reserved >= 0) {
    return c == 0 ? table.ReservedBucket(static_cast<std::uint32_t>(candidates.reserved)) : nullptr;
  }
  const std::uint32_t level = table.top - (c >> table.location_bits);
  const std::uint32_t location = c & (table.locations - 1);
  if (IsRepeated(table, c)) return nullptr;
  return table.Bucket(level, BucketNumber(table, candidates.hash, level, location));
}

/// A key of up to 128 bytes, in registers or on the stack.
inline constexpr std::uint32_t kMaxKeyWords = 16;
struct KeyBuffer {
  std::uint64_t words[kMaxKeyWords];
};

/// The key stored in a valid slot. 8-byte keys are their own state word, but in the reserved level.
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
