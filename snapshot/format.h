#ifndef GPM_SNAPSHOT_FORMAT_H_
#define GPM_SNAPSHOT_FORMAT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "pm/format.h"

namespace gpm {

/// Snapshot files, version 1 (docs/SNAPSHOTS.md). Little-endian. A file is a header, blocks of
/// ranges (of an increment), blocks of items and a footer, all of them whole pages, and nothing
/// behind. The header says how many there are of what, and so where each block is.

inline constexpr std::uint64_t kSnapshotMagic = 0x31'50'41'4E'53'4D'50'47ull;  // "GPMSNAP1"
inline constexpr std::uint32_t kSnapshotVersion = 1;

using SnapshotId = std::array<std::uint8_t, 16>;

struct SnapshotHeader {
  std::uint64_t magic = kSnapshotMagic;
  std::uint32_t version = kSnapshotVersion;
  std::uint32_t crc = 0;       ///< CRC-32C of the header's page with this field 0
  SnapshotId id{};             ///< random
  SnapshotId base{};           ///< of the snapshot that this is an increment on; zeros: none
  SnapshotId pool{};           ///< the pool's UUID
  std::uint64_t sequence = 0;  ///< of the snapshot in its chain: 0 of a whole one
  std::uint32_t key_size = 0;
  std::uint32_t value_size = 0;
  Geometry geometry;  ///< of the pool
  std::uint8_t reserved[5]{};
  std::uint64_t hash_seed[2]{};   ///< of the pool: keys hash to ranges by it
  std::uint64_t total_items = 0;  ///< in the store at the instant
  std::uint64_t items = 0;        ///< in this file
  std::uint64_t ranges = 0;       ///< changed, of an increment; listed in ascending order
  std::uint32_t range_bits = 0;   ///< a key's range: so many high bits of its hash; 0: no increment
  std::uint32_t reserved1 = 0;
  AttributeEntry attributes[kMaxAttributes]{};  ///< of the pool

  bool is_increment() const { return range_bits != 0; }
};
static_assert(std::is_trivially_copyable_v<SnapshotHeader>);
static_assert(sizeof(SnapshotHeader) == 296);

/// Whether keys and values of two snapshots are as long, and their keys hash alike.
inline bool AreAlike(const SnapshotHeader& a, const SnapshotHeader& b) {
  return a.key_size == b.key_size && a.value_size == b.value_size &&
         std::equal(std::begin(a.hash_seed), std::end(a.hash_seed), std::begin(b.hash_seed));
}

enum class BlockKind : std::uint32_t {
  kRanges = 1,  ///< numbers of 4 bytes
  kItems = 2,   ///< all keys of the block, then all values
  kFooter = 3,  ///< the checksums of all blocks before, 4 bytes each
};

struct BlockHeader {
  SnapshotId snapshot{};
  std::uint64_t index = 0;  ///< of the block
  std::uint64_t count = 0;  ///< of ranges, items or checksums
  BlockKind kind = BlockKind::kItems;
  std::uint32_t crc = 0;  ///< CRC-32C of the block's pages with this field 0
};
static_assert(std::is_trivially_copyable_v<BlockHeader>);
static_assert(sizeof(BlockHeader) == 40);

inline constexpr std::uint64_t kBlockHeaderBytes = 64;  ///< zeros behind the header
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
inline constexpr std::uint32_t kMostRangeBits = 32;

/// Where the blocks of a file are.
class SnapshotLayout {
 public:
  explicit SnapshotLayout(const SnapshotHeader& header)
      : ranges_{header.ranges, sizeof(std::uint32_t)},
        items_{header.items, std::uint64_t{header.key_size} + header.value_size},
        footer_{ranges_.blocks() + items_.blocks(), sizeof(std::uint32_t)} {}

  struct Block {
    BlockKind kind;
    std::uint64_t first;  ///< range or item, of those in the file
    std::uint64_t count;
    std::uint64_t offset;  ///< in the file
    std::uint64_t bytes;   ///< whole pages
  };

  /// Blocks but for the footer.
  std::uint64_t blocks() const { return ranges_.blocks() + items_.blocks(); }
  std::uint64_t range_blocks() const { return ranges_.blocks(); }
  Block At(std::uint64_t index) const {
    if (index < ranges_.blocks()) return ranges_.At(BlockKind::kRanges, index, kPageBytes);
    return items_.At(BlockKind::kItems, index - ranges_.blocks(), kPageBytes + ranges_.bytes());
  }
  Block Footer() const {
    const std::uint64_t offset = kPageBytes + ranges_.bytes() + items_.bytes();
    return {BlockKind::kFooter, 0, footer_.count, offset, BytesOf(footer_.count, footer_.each)};
  }
  /// Of the largest block but for the footer: an item that is larger has one of its own.
  std::uint64_t block_bytes() const {
    return std::max(kBlockBytes, BytesOf(items_.in_block(), items_.each));
  }
  std::uint64_t file_bytes() const { return Footer().offset + Footer().bytes; }

 private:
  static std::uint64_t BytesOf(std::uint64_t count, std::uint64_t each) {
    return RoundUp(kBlockHeaderBytes + count * each, kPageBytes);
  }
  /// Things that fill blocks one after the other.
  struct Part {
    std::uint64_t count;
    std::uint64_t each;  ///< bytes

    std::uint64_t in_block() const {
      return std::max<std::uint64_t>((kBlockBytes - kBlockHeaderBytes) / each, 1);
    }
    std::uint64_t blocks() const { return (count + in_block() - 1) / in_block(); }
    std::uint64_t bytes() const {
      if (count == 0) return 0;
      const Block last = At(BlockKind::kItems, blocks() - 1, 0);
      return last.offset + last.bytes;
    }
    Block At(BlockKind kind, std::uint64_t index, std::uint64_t start) const {
      const std::uint64_t first = index * in_block();
      const std::uint64_t n = std::min(in_block(), count - first);
      return {kind, first, n, start + index * BytesOf(in_block(), each), BytesOf(n, each)};
    }
  };
  Part ranges_;
  Part items_;
  Part footer_;
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_FORMAT_H_
