#ifndef GPM_PM_SPACE_H_
#define GPM_PM_SPACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pm/format.h"

namespace gpm {

/// Space in a pool, derived from its superblock alone: what no level and no segment covers is free.

struct Extent {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t end() const { return offset + bytes; }
};

/// Buckets of each level of a table, the newest first.
using LevelSizes = std::vector<std::uint64_t>;

/// Space of a level of so many buckets, whole pages.
std::uint64_t LevelBytes(const Superblock& superblock, std::uint64_t buckets);

/// Space of levels that lie side by side, the oldest first.
std::uint64_t LevelsBytes(const Superblock& superblock, const LevelSizes& sizes);
/// Makes these the superblock's levels: they lie so from `offset` on.
void LayLevels(Superblock* superblock, const LevelSizes& sizes, std::uint64_t offset);
/// The superblock with one more level, the newest. REQUIRES: there are fewer than kMaxLevels.
Superblock WithNewest(Superblock superblock, const LevelEntry& level);

/// Why a level can't have so many buckets, or empty.
std::string LevelSizeDefect(Geometry geometry, std::uint64_t buckets);

/// Number of whole value cells in an extent (cells sit at multiples of their size).
std::uint64_t CellsIn(const Extent& extent, std::uint64_t cell_bytes);

/// The extents in use, by offset: the area before the first extent, levels, segments.
std::vector<Extent> UsedExtents(const Superblock& superblock);

/// What those have together.
std::uint64_t UsedBytes(const Superblock& superblock);

/// End of the last used extent: where fresh space begins.
std::uint64_t UsedEnd(const Superblock& superblock);

/// Where an extent of `bytes`, rounded up to pages, can go: the lowest gap that is large enough,
/// else UsedEnd. `*fresh` tells whether it lies wholly beyond UsedEnd.
Extent PlaceExtent(const Superblock& superblock, std::uint64_t bytes, bool* fresh);

/// Where the last of these levels would end, were they added one by one, the oldest first.
std::uint64_t EndOfAddedLevels(Superblock superblock, const LevelSizes& sizes);

/// The largest gap below UsedEnd, page-aligned; bytes == 0 when there is none.
Extent LargestGap(const Superblock& superblock);

/// Value cells that an extent of a level, or of other cells, could take the place of: pages of one
/// segment, `bytes` of them (whole pages), of which no cell, also in part, is in use. Where there
/// are no so many side by side, those free at the pool's end, where fresh space would begin lower;
/// bytes == 0 when there are none.
/// @param used a bit for each cell, by number, up to the last segment's end
Extent FindFreeCells(const Superblock& superblock, const std::vector<std::uint32_t>& used,
                     std::uint64_t bytes);

/// Where so many value cells could end, were they those of all space that no level takes, from the
/// pool's beginning on: page-aligned, at most UsedEnd.
std::uint64_t CompactEnd(const Superblock& superblock, std::uint64_t cells);

/// The superblock's segments, and with them all space before `end` that no level takes; those that
/// touch are one. By offset.
std::vector<SegmentEntry> JoinedSegments(const Superblock& superblock, std::uint64_t end);

/// Why the superblock's directories can't be right (levels or segments that overlap, leave the
/// pool of `pool_bytes`, are misaligned or missing), or empty when they are. REQUIRES: key size,
/// value size and geometry are legal; the directories may hold anything.
std::string LayoutDefect(const Superblock& superblock, std::uint64_t pool_bytes);

}  // namespace gpm

#endif  // GPM_PM_SPACE_H_
