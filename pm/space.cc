#include "pm/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace gpm {
namespace {

/// No pool is as large; keeps sums of offsets and lengths from a damaged superblock from wrapping.
constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{1} << 56;

struct NamedExtent {
  Extent extent;
  std::string name;
};

/// Free space between the used extents, by offset.
std::vector<Extent> Gaps(const Superblock& superblock) {
  std::vector<Extent> gaps;
  std::uint64_t end = 0;
  for (const Extent& used : UsedExtents(superblock)) {
    if (used.offset > end) gaps.push_back(Extent{end, used.offset - end});
    end = std::max(end, used.end());
  }
  return gaps;
}

/// Space that no level takes, by offset: the last reaches to UsedEnd, and may be empty.
std::vector<Extent> BesideLevels(const Superblock& superblock) {
  Superblock levels_alone = superblock;
  levels_alone.segment_count = 0;
  std::vector<Extent> beside = Gaps(levels_alone);
  const std::uint64_t end = UsedEnd(levels_alone);
  beside.push_back({end, UsedEnd(superblock) - end});
  return beside;
}

/// What can be wrong with one extent by itself.
std::string ExtentDefect(const Superblock& superblock, const NamedExtent& named) {
  const Extent& extent = named.extent;
  if (extent.bytes == 0) return named.name + " is empty";
  if (extent.offset % kPageBytes != 0 || extent.bytes % kPageBytes != 0) {
    return named.name + " is not aligned to pages";
  }
  if (extent.offset < FirstExtentOffset(superblock.key_size, superblock.geometry)) {
    return named.name + " lies in the superblocks or the reserved level";
  }
  if (extent.offset > kMaxPoolBytes || extent.bytes > kMaxPoolBytes) {
    return named.name + " lies beyond any possible pool";
  }
  return "";
}

}  // namespace

std::uint64_t LevelBytes(const Superblock& superblock, std::uint64_t buckets) {
  return RoundUp(BucketBytes(superblock.key_size, superblock.geometry) * buckets, kPageBytes);
}

std::uint64_t LevelsBytes(const Superblock& superblock, const LevelSizes& sizes) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t buckets : sizes) bytes += LevelBytes(superblock, buckets);
  return bytes;
}

void LayLevels(Superblock* superblock, const LevelSizes& sizes, std::uint64_t offset) {
  std::fill(std::begin(superblock->levels), std::end(superblock->levels), LevelEntry{});
  superblock->level_count = static_cast<std::uint32_t>(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    superblock->levels[i] = {offset, sizes[i]};
    offset += LevelBytes(*superblock, sizes[i]);
  }
}

Superblock WithNewest(Superblock superblock, const LevelEntry& level) {
  LevelEntry* const levels = superblock.levels;
  std::copy_backward(levels, levels + superblock.level_count, levels + superblock.level_count + 1);
  levels[0] = level;
  ++superblock.level_count;
  return superblock;
}

std::string LevelSizeDefect(Geometry geometry, std::uint64_t buckets) {
  if (buckets >= 1 && buckets <= kMaxLevelBuckets && buckets % geometry.locations == 0) return "";
  return fmt::format("{} buckets are not a multiple of {} between 1 and {}", buckets,
                     geometry.locations, kMaxLevelBuckets);
}

std::uint64_t CellsIn(const Extent& extent, std::uint64_t cell_bytes) {
  const std::uint64_t first = (extent.offset + cell_bytes - 1) / cell_bytes;
  const std::uint64_t last = extent.end() / cell_bytes;
  return last > first ? last - first : 0;
}

std::vector<Extent> UsedExtents(const Superblock& superblock) {
  std::vector<Extent> used;
  used.push_back(Extent{0, FirstExtentOffset(superblock.key_size, superblock.geometry)});
  for (std::uint32_t i = 0; i < superblock.level_count; ++i) {
    const LevelEntry& level = superblock.levels[i];
    used.push_back(Extent{level.offset, LevelBytes(superblock, level.buckets)});
  }
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    used.push_back(Extent{superblock.segments[i].offset, superblock.segments[i].bytes});
  }
  std::sort(used.begin(), used.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  return used;
}

std::uint64_t UsedBytes(const Superblock& superblock) {
  std::uint64_t bytes = 0;
  for (const Extent& used : UsedExtents(superblock)) bytes += used.bytes;
  return bytes;
}

std::uint64_t UsedEnd(const Superblock& superblock) {
  std::uint64_t end = 0;
  for (const Extent& used : UsedExtents(superblock)) end = std::max(end, used.end());
  return end;
}

Extent PlaceExtent(const Superblock& superblock, std::uint64_t bytes, bool* fresh) {
  const std::uint64_t wanted = RoundUp(bytes, kPageBytes);
  for (const Extent& gap : Gaps(superblock)) {
    if (gap.bytes >= wanted) {
      *fresh = false;
      return Extent{gap.offset, wanted};
    }
  }
  *fresh = true;
  return Extent{UsedEnd(superblock), wanted};
}

std::uint64_t EndOfAddedLevels(Superblock superblock, const LevelSizes& sizes) {
  std::uint64_t end = 0;
  for (std::size_t i = sizes.size(); i-- > 0 && superblock.level_count < kMaxLevels;) {
    bool fresh = false;
    const Extent place = PlaceExtent(superblock, LevelBytes(superblock, sizes[i]), &fresh);
    superblock.levels[superblock.level_count++] = {place.offset, sizes[i]};
    end = std::max(end, place.end());
  }
  return end;
}

Extent LargestGap(const Superblock& superblock) {
  Extent largest{0, 0};
  for (const Extent& gap : Gaps(superblock)) {
    if (gap.bytes > largest.bytes) largest = gap;
  }
  return largest;
}

Extent FindFreeCells(const Superblock& superblock, const std::vector<std::uint32_t>& used,
                     std::uint64_t bytes) {
  const std::uint64_t cell_bytes = CellBytes(superblock.value_size);
  const std::uint64_t pool_end = UsedEnd(superblock);
  Extent best{0, 0};
  Extent tail{0, 0};
  std::uint64_t best_run = ~std::uint64_t{0};
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const Extent segment{superblock.segments[i].offset, superblock.segments[i].bytes};
    const std::uint64_t last = std::min(segment.end() / cell_bytes, kMaxCellNumber);
    std::uint64_t begin = segment.offset;  // of a run of free bytes
    const auto end_run = [&](std::uint64_t end) {
      begin = RoundUp(begin, kPageBytes);
      end = end / kPageBytes * kPageBytes;
      if (end <= begin) return;
      if (end - begin >= bytes && end - begin < best_run) {  // the smallest run that does
        best_run = end - begin;
        // At a border of the segment, so that it is not cut in two, if the run comes to one.
        best = Extent{end == segment.end() ? end - bytes : begin, bytes};
      }
      if (end == pool_end) tail = Extent{begin, end - begin};
    };
    for (std::uint64_t cell = (segment.offset + cell_bytes - 1) / cell_bytes; cell < last; ++cell) {
      const std::uint32_t word = used[cell / 32];
      if (word == 0 && cell % 32 == 0) {  // 32 free ones
        cell += 31;
        continue;
      }
      if ((word >> (cell % 32) & 1) == 0) continue;
      end_run(cell * cell_bytes);
      begin = (cell + 1) * cell_bytes;
    }
    end_run(segment.end());
  }
  return best.bytes != 0 ? best : tail;
}

std::uint64_t CompactEnd(const Superblock& superblock, std::uint64_t cells) {
  const std::uint64_t cell_bytes = CellBytes(superblock.value_size);
  std::uint64_t missing = cells;
  for (const Extent& extent : BesideLevels(superblock)) {
    const std::uint64_t there = CellsIn(extent, cell_bytes);
    if (there >= missing) {
      const std::uint64_t first = (extent.offset + cell_bytes - 1) / cell_bytes;
      const std::uint64_t end = RoundUp((first + missing) * cell_bytes, kPageBytes);
      return std::min(end, UsedEnd(superblock));
    }
    missing -= there;
  }
  return UsedEnd(superblock);
}

std::vector<SegmentEntry> JoinedSegments(const Superblock& superblock, std::uint64_t end) {
  std::vector<SegmentEntry> parts(superblock.segments,
                                  superblock.segments + superblock.segment_count);
  for (const Extent& extent : BesideLevels(superblock)) {
    const std::uint64_t last = std::min(extent.end(), end);
    if (last > extent.offset) parts.push_back({extent.offset, last - extent.offset});
  }
  std::sort(parts.begin(), parts.end(),
            [](const SegmentEntry& a, const SegmentEntry& b) { return a.offset < b.offset; });
  std::vector<SegmentEntry> joined;
  for (const SegmentEntry& part : parts) {
    if (!joined.empty() && part.offset <= joined.back().offset + joined.back().bytes) {
      const std::uint64_t last =
          std::max(joined.back().offset + joined.back().bytes, part.offset + part.bytes);
      joined.back().bytes = last - joined.back().offset;
    } else {
      joined.push_back(part);
    }
  }
  return joined;
}

std::string LayoutDefect(const Superblock& superblock, std::uint64_t pool_bytes) {
  const std::uint32_t level_count = superblock.level_count;
  if (level_count > kMaxLevels || level_count < superblock.geometry.levels) {
    return fmt::format("{} levels, there can be {} to {}", level_count, superblock.geometry.levels,
                       kMaxLevels);
  }
  if (superblock.segment_count > kMaxSegments) {
    return fmt::format("{} value segments, there can be {}", superblock.segment_count,
                       kMaxSegments);
  }
  if (superblock.segment_count > 0 && InlineValues(superblock.value_size)) {
    return fmt::format("{} value segments, but values of {} bytes need none",
                       superblock.segment_count, superblock.value_size);
  }

  std::vector<NamedExtent> used;
  for (std::uint32_t i = 0; i < kMaxLevels; ++i) {
    const LevelEntry& level = superblock.levels[i];
    if (i >= level_count) {
      if (level.offset == 0 && level.buckets == 0) continue;
      return fmt::format("level {} is named, but there are {}", i, level_count);
    }
    if (std::string defect = LevelSizeDefect(superblock.geometry, level.buckets); !defect.empty()) {
      return fmt::format("level {}: {}", i, defect);
    }
    used.push_back(
        {Extent{level.offset, LevelBytes(superblock, level.buckets)}, fmt::format("level {}", i)});
  }
  for (std::uint32_t i = 0; i < superblock.segment_count; ++i) {
    const SegmentEntry& segment = superblock.segments[i];
    used.push_back({Extent{segment.offset, segment.bytes}, fmt::format("value segment {}", i)});
  }
  for (const NamedExtent& named : used) {
    if (std::string defect = ExtentDefect(superblock, named); !defect.empty()) return defect;
  }

  std::sort(used.begin(), used.end(), [](const NamedExtent& a, const NamedExtent& b) {
    return a.extent.offset < b.extent.offset;
  });
  for (std::size_t i = 1; i < used.size(); ++i) {
    if (used[i].extent.offset < used[i - 1].extent.end()) {
      return fmt::format("{} and {} overlap", used[i - 1].name, used[i].name);
    }
  }
  if (const std::uint64_t end = used.back().extent.end(); end > pool_bytes) {
    return fmt::format("truncated: the superblock names {} bytes, the file has {}", end,
                       pool_bytes);
  }
  return "";
}

}  // namespace gpm
