#ifndef GPM_PM_FORMAT_H_
#define GPM_PM_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpmstore/options.h"
#include "pm/annotate.h"

namespace gpm {

/// Pool format, version 3. Little-endian; every offset counts bytes from the pool's start; there
/// is no absolute pointer and no mapping hint in a pool.
///
///     0       superblock copy A (4 KiB)
///     4096    superblock copy B (4 KiB)
///     8192    reserved level: two buckets, for the keys of one word that equal a reserved state
///     word
///             (bucket 0: key kEmptyState, bucket 1: key kInsertState); padded to a page
///     ...     extents, page-aligned, in any order: levels and value segments
///
/// What is not covered by the superblocks, the reserved level, a level or a value segment that the
/// superblock in force names is free. Which value cells are free follows from the slots. There is
/// no other allocator state.
///
/// A *bucket* of S slots is S pairs of state word and value reference, then (keys longer than 8
/// bytes) S keys, padded to 128 bytes. A key is stored in whole 8-byte words: zeros follow its own
/// bytes.
///
/// A *state word* is kEmptyState (0: fresh space is an empty level), kInsertState (claimed: being
/// written, or erased and not yet given back; recovery clears it), or the fingerprint of a valid
/// item. For keys of up to 8 bytes the key itself is the word.
///
/// A *value reference* is the value itself, zero-extended, when values have at most 8 bytes; else
/// the offset of a value cell, or 0 in a slot that is empty. Cells are CellBytes(value_size) long
/// and sit at multiples of that (so offset / cell_bytes is the cell's number).

inline constexpr std::uint64_t kPoolMagic = 0x31'52'4F'54'53'4D'50'47ull;  // "GPMSTOR1"
inline constexpr std::uint32_t kPoolVersion = 3;
inline constexpr std::uint64_t kSuperblockBytes = 4096;
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kReservedOffset = 2 * kSuperblockBytes;

inline constexpr std::uint64_t kEmptyState = 0;
inline constexpr std::uint64_t kInsertState = ~std::uint64_t{0};
/// State word of the valid items in the reserved level, whose own keys can't serve as words.
inline constexpr std::uint64_t kReservedWord = 1;

inline constexpr std::uint32_t kMaxLevels = 40;
/// Of one level; a multiple of the geometry's locations.
inline constexpr std::uint64_t kMaxLevelBuckets = 0xFFFF'FFFF;
inline constexpr std::uint32_t kMaxSegments = 200;

/// A level of the table, of any size: the bucket of a hash is its share of the buckets
/// (BucketNumber), so that hash order is address order in every level.
struct LevelEntry {
  std::uint64_t offset;
  std::uint64_t buckets;
};

/// A value segment: `bytes` of value cells. The cells in it are those whose whole extent
/// [n * cell_bytes, (n + 1) * cell_bytes) lies in [offset, offset + bytes).
struct SegmentEntry {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// A field of the values (Attribute). Those that there are come first.
struct AttributeEntry {
  char name[15];       ///< zeros behind it
  std::uint8_t bytes;  ///< 4 or 8; 0: there is none, and all of the entry is 0
  std::uint32_t offset;
};

struct Superblock {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t crc;       ///< CRC-32C of the 4096 bytes with this field 0
  std::uint64_t sequence;  ///< the valid copy with the higher one (modulo 2^64) is in force
  std::uint8_t uuid[16];
  std::uint32_t key_size;    ///< bytes: 1 to 255
  std::uint32_t value_size;  ///< bytes: 1 to 16 MiB
  Geometry geometry;
  std::uint8_t clean;  ///< 1: closed in order, no slot is in state kInsertState, no duplicates
  std::uint32_t reserved0;
  std::uint64_t hash_seed[2];
  std::uint32_t level_count;
  std::uint32_t segment_count;
  std::uint64_t reserved1;
  /// The newest level is level 0. The table addresses the first `geometry.levels` of them; when
  /// there are more, a resize is under way and the others are being drained, the oldest first.
  LevelEntry levels[kMaxLevels];  ///< zeros behind the last
  SegmentEntry segments[kMaxSegments];
  AttributeEntry attributes[kMaxAttributes];
  std::uint8_t padding[8];
};

static_assert(sizeof(Geometry) == 3);
static_assert(sizeof(LevelEntry) == 16);
static_assert(sizeof(SegmentEntry) == 16);
static_assert(sizeof(AttributeEntry) == 20);
static_assert(std::is_trivially_copyable_v<Superblock>);
static_assert(sizeof(Superblock) == kSuperblockBytes);
static_assert(offsetof(Superblock, magic) == 0);
static_assert(offsetof(Superblock, version) == 8);
static_assert(offsetof(Superblock, crc) == 12);
static_assert(offsetof(Superblock, sequence) == 16);
static_assert(offsetof(Superblock, uuid) == 24);
static_assert(offsetof(Superblock, key_size) == 40);
static_assert(offsetof(Superblock, value_size) == 44);
static_assert(offsetof(Superblock, geometry) == 48);
static_assert(offsetof(Superblock, clean) == 51);
static_assert(offsetof(Superblock, hash_seed) == 56);
static_assert(offsetof(Superblock, level_count) == 72);
static_assert(offsetof(Superblock, segment_count) == 76);
static_assert(offsetof(Superblock, levels) == 88);
static_assert(offsetof(Superblock, segments) == 88 + 16 * kMaxLevels);
static_assert(offsetof(Superblock, attributes) == 88 + 16 * kMaxLevels + 16 * kMaxSegments);

GPM_HD constexpr std::uint64_t RoundUp(std::uint64_t n, std::uint64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

inline constexpr std::uint32_t kMaxKeyBytes = 255;

/// 8-byte words that a key takes where it is stored.
GPM_HD constexpr std::uint32_t KeyWords(std::uint32_t key_size) { return (key_size + 7) / 8; }

/// Bytes of a bucket; a multiple of 128.
GPM_HD constexpr std::uint64_t BucketBytes(std::uint32_t key_size, Geometry geometry) {
  const std::uint64_t slot = 16 + (key_size > 8 ? 8 * KeyWords(key_size) : 0);
  return RoundUp(slot * geometry.slots, 128);
}

/// True when values live in the reference word itself, so that the pool has no value cells.
GPM_HD constexpr bool InlineValues(std::uint32_t value_size) { return value_size <= 8; }

/// Bytes of a value cell: 16, or a multiple of 32 so that a cell is read in whole sectors.
GPM_HD constexpr std::uint64_t CellBytes(std::uint32_t value_size) {
  return value_size <= 16 ? 16 : RoundUp(value_size, 32);
}

/// Cells beyond this number are not used: queues of free cells hold 32-bit numbers.
inline constexpr std::uint64_t kMaxCellNumber = std::uint64_t{1} << 32;

/// First byte that extents may use.
constexpr std::uint64_t FirstExtentOffset(std::uint32_t key_size, Geometry geometry) {
  return RoundUp(kReservedOffset + 2 * BucketBytes(key_size, geometry), kPageBytes);
}

}  // namespace gpm

#endif  // GPM_PM_FORMAT_H_
