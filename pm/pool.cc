#include "pm/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "pm/crc32c.h"

namespace gpm {
namespace {

constexpr const char* kEmptyCopy = "empty";
constexpr std::uint64_t kMinSegmentBytes = 64 * 1024;
constexpr std::uint64_t kMinSegmentCells = 16;
/// From here on the segment directory is kept for fresh space, where segments are large.
constexpr std::uint32_t kManySegments = kMaxSegments / 4 * 3;

std::uint32_t SuperblockCrc(Superblock superblock) {
  superblock.crc = 0;
  return Crc32c(&superblock, sizeof superblock);
}

/// Why key size, value size or geometry are not legal, or empty.
std::string ConfigDefect(std::uint32_t key_size, std::uint32_t value_size, Geometry geometry) {
  if (key_size < 8 || key_size > 128 || !std::has_single_bit(key_size)) {
    return fmt::format("key size {} is not one of 8, 16, 32, 64, 128 bytes", key_size);
  }
  if (value_size < 1 || value_size > kMaxValueBytes) {
    return fmt::format("value size {} is not between 1 and {} bytes", value_size, kMaxValueBytes);
  }
  return GeometryDefect(geometry);
}

/// Why a copy is not one that was written whole by this version, or empty.
std::string CopyDefect(const Superblock& copy) {
  if (copy.magic != kPoolMagic) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&copy);
    const bool empty =
        std::all_of(bytes, bytes + sizeof copy, [](unsigned char b) { return b == 0; });
    return empty ? kEmptyCopy : "not a GPMStore superblock";
  }
  if (copy.version != kPoolVersion) {
    return fmt::format("format version {}, this build reads version {}", copy.version,
                       kPoolVersion);
  }
  return copy.crc == SuperblockCrc(copy) ? "" : "checksum mismatch";
}

/// Why a copy that was written whole can't be right, or empty.
std::string ContentsDefect(const Superblock& copy, std::uint64_t pool_bytes) {
  std::string defect = ConfigDefect(copy.key_size, copy.value_size, copy.geometry);
  if (defect.empty() && copy.clean > 1) defect = "the mark of an orderly close is neither 0 nor 1";
  return defect.empty() ? LayoutDefect(copy, pool_bytes) : defect;
}

/// A random (version 4) UUID, RFC 4122.
void MakeUuid(std::uint8_t* uuid) {
  std::random_device random;
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<std::uint8_t>(random());
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0F) | 0x40);
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3F) | 0x80);
}

/// The first superblock of a pool: its levels side by side, no segment.
Superblock FirstSuperblock(const PoolConfig& config) {
  Superblock first{};
  first.magic = kPoolMagic;
  first.version = kPoolVersion;
  first.sequence = 1;
  MakeUuid(first.uuid);
  first.key_size = config.key_size;
  first.value_size = config.value_size;
  first.geometry = config.geometry;
  first.clean = 1;
  first.hash_seed[0] = config.hash_seed[0];
  first.hash_seed[1] = config.hash_seed[1];
  first.top = config.top_level;
  first.bottom = config.top_level + 1 - config.geometry.levels;
  std::uint64_t offset = FirstExtentOffset(config.key_size, config.geometry);
  for (std::uint32_t level = first.bottom; level <= first.top; ++level) {
    first.level_offset[level] = offset;
    offset += LevelBytes(first, level);
  }
  first.crc = SuperblockCrc(first);
  return first;
}

}  // namespace

std::string GeometryDefect(Geometry geometry) {
  const std::uint32_t levels = geometry.levels;
  const std::uint32_t locations = geometry.locations;
  const std::uint32_t slots = geometry.slots;
  if (std::has_single_bit(levels) && std::has_single_bit(locations) && std::has_single_bit(slots) &&
      levels * locations * slots <= 32) {
    return "";
  }
  return fmt::format(
      "geometry {}L-{}H-{}S: levels, locations and slots must be powers of two with a product of "
      "at "
      "most 32, such as 2L-2H-8S",
      levels, locations, slots);
}

void ValidateConfig(const PoolConfig& config) {
  std::string defect = ConfigDefect(config.key_size, config.value_size, config.geometry);
  if (defect.empty() &&
      (config.top_level + 1 < config.geometry.levels || config.top_level >= kMaxLevels)) {
    defect = fmt::format("top level {} is not between {} and {}", config.top_level,
                         config.geometry.levels - 1, kMaxLevels - 1);
  }
  if (!defect.empty()) throw Error(ErrorCode::kInvalidArgument, defect);
}

int ChooseSuperblock(const std::byte* copies, std::uint64_t pool_bytes, const std::string& path) {
  if (pool_bytes == 0) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: not a GPMStore pool: the file is empty", path));
  }
  Superblock copy[2];
  std::memcpy(copy, copies, sizeof copy);
  std::string defect[2] = {CopyDefect(copy[0]), CopyDefect(copy[1])};
  if (!defect[0].empty() && !defect[1].empty()) {
    // Copy A alone is written when a pool is created.
    if (defect[1] == kEmptyCopy) defect[1] += "; perhaps the pool's creation was interrupted";
    if (copy[0].magic != kPoolMagic && copy[1].magic != kPoolMagic) {
      throw Error(ErrorCode::kDamaged,
                  fmt::format("{}: not a GPMStore pool: superblock copy A: {}; "
                              "copy B: {}",
                              path, defect[0], defect[1]));
    }
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged pool: superblock copy A: {}; copy B: {}", path, defect[0],
                            defect[1]));
  }
  int in_force = defect[0].empty() ? 0 : 1;
  // Numbers may wrap, as those of a damaged copy soon do: the change behind another is one ahead.
  const auto ahead = static_cast<std::int64_t>(copy[1].sequence - copy[0].sequence);
  if (defect[0].empty() && defect[1].empty() && ahead > 0) in_force = 1;
  const std::string contents = ContentsDefect(copy[in_force], pool_bytes);
  if (!contents.empty()) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}: damaged pool: superblock copy {}, the one in force: {}", path,
                            in_force == 0 ? 'A' : 'B', contents));
  }
  return in_force;
}

Pool::Pool(std::unique_ptr<Mapping> mapping, const Superblock& superblock, bool read_only)
    : mapping_(std::move(mapping)), superblock_(superblock), read_only_(read_only) {}

std::unique_ptr<Pool> Pool::Create(const std::string& path, const PoolConfig& config,
                                   const Options& options) {
  if (options.read_only) {
    throw Error(ErrorCode::kInvalidArgument, path + ": a pool can't be created read only");
  }
  ValidateConfig(config);
  const Superblock first = FirstSuperblock(config);
  const std::uint64_t needed = UsedEnd(first);
  if (options.max_bytes != 0 && options.max_bytes < needed) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: a maximum of {} bytes is too small for this pool: its first levels "
                    "need {} bytes",
                    path, options.max_bytes, needed));
  }
  auto mapping = std::make_unique<Mapping>(
      path,
      Mapping::Options{.max_bytes = options.max_bytes, .create = true, .tracer = options.tracer});
  mapping->Grow(needed);
  std::unique_ptr<Pool> pool(new Pool(std::move(mapping), first, false));
  pool->WriteCopy(0, first);
  pool->mapping_->RemoveOnClose(false);
  return pool;
}

std::unique_ptr<Pool> Pool::Open(const std::string& path, const Options& options) {
  auto mapping = std::make_unique<Mapping>(path, Mapping::Options{.max_bytes = options.max_bytes,
                                                                  .read_only = options.read_only,
                                                                  .tracer = options.tracer});
  std::vector<std::byte> copies(2 * kSuperblockBytes);
  const std::uint64_t there = std::min<std::uint64_t>(copies.size(), mapping->file_bytes());
  if (there > 0) std::memcpy(copies.data(), mapping->base(), there);
  const int in_force = ChooseSuperblock(copies.data(), mapping->file_bytes(), path);
  Superblock superblock;
  std::memcpy(&superblock, copies.data() + in_force * kSuperblockBytes, sizeof superblock);
  std::unique_ptr<Pool> pool(new Pool(std::move(mapping), superblock, options.read_only));
  pool->in_force_ = in_force;
  if (!options.read_only) {
    pool->mapping_->Populate();
    // The copy in force may be one that a process wrote and did not live to flush. It is durable
    // before anything else is written: recovery's first pass, or the next Commit, fences first.
    pool->mapping_->persist().Flush(Step::kOpenFlush, pool->base(), 2 * kSuperblockBytes);
  }
  return pool;
}

void Pool::RequireWritable() const {
  if (read_only_) {
    throw Error(ErrorCode::kInvalidArgument,
                mapping_->path() + ": the pool was opened read only; open it for writing");
  }
}

void Pool::WriteCopy(int copy, const Superblock& contents) {
  std::byte* const target = base() + copy * kSuperblockBytes;
  const Persist& persist = mapping_->persist();
  persist.Write(target, &contents, sizeof contents);
  persist.Flush(Step::kCommitCopyFlush, target, sizeof contents);
  persist.Fence(Step::kCommitDoneFence);
}

void Pool::Commit(Superblock next) {
  const int other = 1 - in_force_;
  next.sequence = superblock_.sequence + 1;
  next.crc = SuperblockCrc(next);
  // What the new state relies on (zeroed levels, drained items) is durable before the switch. A
  // copy that is torn by a crash has a wrong CRC, and the one in force stays in force.
  mapping_->persist().Fence(Step::kCommitContentsFence);
  WriteCopy(other, next);
  superblock_ = next;
  in_force_ = other;
}

void Pool::AddLevel() {
  RequireWritable();
  Superblock next = superblock_;
  if (++next.top == kMaxLevels) {
    throw Error(ErrorCode::kNoSpace, fmt::format("{}: the table has its largest size, {} levels",
                                                 mapping_->path(), kMaxLevels));
  }
  bool fresh = false;
  const Extent extent = PlaceExtent(superblock_, LevelBytes(next, next.top), &fresh);
  const std::uint64_t mapped_before = mapping_->mapped_bytes();
  mapping_->Grow(extent.end());
  // Only bytes that this call added to the file are surely zero: space beyond UsedEnd may have been
  // a level or a segment once, or that of a change which a crash interrupted.
  if (extent.offset < mapped_before) {
    const std::uint64_t stale = std::min(extent.end(), mapped_before) - extent.offset;
    mapping_->persist().Zero(base() + extent.offset, stale);
    mapping_->persist().Flush(Step::kZeroLevelFlush, base() + extent.offset, stale);
  }
  next.level_offset[next.top] = extent.offset;
  Commit(next);
}

void Pool::DropBottomLevel() {
  RequireWritable();
  if (superblock_.top - superblock_.bottom + 1 <= superblock_.geometry.levels) {
    throw Error(ErrorCode::kInvalidArgument,
                mapping_->path() + ": no resize is under way, so no level can be dropped");
  }
  Superblock next = superblock_;
  next.level_offset[next.bottom++] = 0;
  Commit(next);
}

Extent Pool::AddSegment(std::uint64_t min_cells) {
  RequireWritable();
  if (InlineValues(superblock_.value_size)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: values of {} bytes are inline and have no cells", mapping_->path(),
                            superblock_.value_size));
  }
  const Extent gap = LargestGap(superblock_);
  const bool gap_has_cells = CellsIn(gap, cell_bytes()) > 0 && CanAddSegmentAt(gap.offset);
  if (gap_has_cells && gap.bytes >= kMinSegmentBytes && superblock_.segment_count < kManySegments) {
    return CommitSegment(gap);
  }

  const std::uint64_t start = UsedEnd(superblock_);
  std::string cause = "the segment directory is full";
  if (CanAddSegmentAt(start)) {
    // End of an extent at `start` that holds so many aligned cells.
    const auto end_of = [&](std::uint64_t cells) {
      return RoundUp(RoundUp(start, cell_bytes()) + cells * cell_bytes(), kPageBytes);
    };
    // More than the maximum holds is as good as anything beyond it, and does not overflow.
    const std::uint64_t needed =
        std::clamp(min_cells, std::uint64_t{1}, mapping_->max_bytes() / cell_bytes() + 1);
    const std::uint64_t wanted = std::max(needed, growth_cells());
    // What is left: by the pool's maximum, and, if the medium is full, of what is mapped.
    const std::uint64_t left = std::min(mapping_->max_bytes(), end_of(needed));
    for (const std::uint64_t end :
         {end_of(wanted), end_of(needed), left, mapping_->mapped_bytes()}) {
      if (end <= start || CellsIn(Extent{start, end - start}, cell_bytes()) == 0) continue;
      try {
        mapping_->Grow(end);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNoSpace) throw;
        cause = error.what();
        continue;
      }
      return CommitSegment(Extent{start, end - start});
    }
  }
  if (gap_has_cells) return CommitSegment(gap);
  throw Error(ErrorCode::kNoSpace, fmt::format("{}: no room for another value cell of {} bytes: {}",
                                               mapping_->path(), cell_bytes(), cause));
}

std::uint64_t Pool::growth_cells() const {
  std::uint64_t existing = 0;
  for (std::uint32_t i = 0; i < superblock_.segment_count; ++i) {
    const SegmentEntry& segment = superblock_.segments[i];
    existing += CellsIn(Extent{segment.offset, segment.bytes}, cell_bytes());
  }
  return std::max({existing / 8, kMinSegmentBytes / cell_bytes(), kMinSegmentCells});
}

void Pool::RemoveCells(const Extent& extent) {
  RequireWritable();
  Superblock next = superblock_;
  SegmentEntry* const end = next.segments + next.segment_count;
  SegmentEntry* const segment = std::find_if(next.segments, end, [&](const SegmentEntry& s) {
    return s.offset <= extent.offset && extent.end() <= s.offset + s.bytes;
  });
  if (segment == end || extent.bytes == 0 || extent.offset % kPageBytes != 0 ||
      extent.bytes % kPageBytes != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes from {} on are not pages of one value segment",
                            mapping_->path(), extent.bytes, extent.offset));
  }
  const SegmentEntry behind{extent.end(), segment->offset + segment->bytes - extent.end()};
  segment->bytes = extent.offset - segment->offset;
  if (segment->bytes == 0) {
    *segment = behind;
  } else if (behind.bytes != 0) {
    if (next.segment_count == kMaxSegments) {
      throw Error(ErrorCode::kNoSpace, mapping_->path() + ": the segment directory is full");
    }
    next.segments[next.segment_count++] = behind;
  }
  if (segment->bytes == 0) {  // all of it went
    *segment = next.segments[--next.segment_count];
    next.segments[next.segment_count] = {};
  }
  Commit(next);
}

bool Pool::CanAddSegmentAt(std::uint64_t offset) const {
  if (superblock_.segment_count < kMaxSegments) return true;
  return std::any_of(superblock_.segments, superblock_.segments + superblock_.segment_count,
                     [&](const SegmentEntry& s) { return s.offset + s.bytes == offset; });
}

Extent Pool::CommitSegment(const Extent& extent) {
  Superblock next = superblock_;
  SegmentEntry* const end = next.segments + next.segment_count;
  SegmentEntry* const before = std::find_if(next.segments, end, [&](const SegmentEntry& s) {
    return s.offset + s.bytes == extent.offset;
  });
  std::uint64_t first_byte = extent.offset;
  if (before != end) {
    // The first new cell starts where the segment's last whole one ended.
    first_byte = std::max(before->offset, extent.offset / cell_bytes() * cell_bytes());
    before->bytes += extent.bytes;
  } else {
    *end = SegmentEntry{extent.offset, extent.bytes};
    ++next.segment_count;
  }
  Commit(next);
  return Extent{first_byte, extent.end() - first_byte};
}

void Pool::SetClean(bool clean) {
  RequireWritable();
  if ((superblock_.clean != 0) == clean) return;
  Superblock next = superblock_;
  next.clean = clean ? 1 : 0;
  Commit(next);
}

}  // namespace gpm
