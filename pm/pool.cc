#include "pm/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "gpmstore/error.h"
#include "pm/attributes.h"
#include "pm/random_id.h"

namespace gpm {
namespace {

constexpr std::uint64_t kMinSegmentBytes = 64 * 1024;
constexpr std::uint64_t kMinSegmentCells = 16;
/// But of large cells no more than this many bytes.
constexpr std::uint64_t kMinSegmentCellsBytes = std::uint64_t{1} << 20;
/// A pool grows by so large a share of its cells. Up to that many are free, and as many are made
/// ready: of cells of 128 bytes that is 4 bytes each for an item. Smaller steps would be more
/// registrations with the GPU, of which a pool that grows from 64 MiB to N times as much takes
/// 32 ln N.
constexpr std::uint64_t kGrowthShare = 32;
/// From here on the segment directory is kept for fresh space, where segments are large.
constexpr std::uint32_t kManySegments = kMaxSegments / 4 * 3;

/// A random (version 4) UUID, RFC 4122.
void MakeUuid(std::uint8_t* uuid) {
  const RandomId id = NewId();
  std::copy(id.begin(), id.end(), uuid);
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
  LayLevels(&first, config.levels, FirstExtentOffset(config.key_size, config.geometry));
  WriteAttributes(config.attributes, first.attributes);
  first.crc = SuperblockCrc(first);
  return first;
}

/// Whether a device, which has a length of its own, holds nothing.
bool IsEmptyDevice(const Mapping& mapping) {
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  return mapping.is_device() && mapping.mapped_bytes() >= 2 * kSuperblockBytes &&
         std::all_of(mapping.base(), mapping.base() + 2 * kSuperblockBytes, is_zero);
}

/// Makes a device what a new file is, as far as a pool's first levels reach: zeros. The superblocks
/// go first, so that a crash leaves nothing that names what follows them.
void Clear(Mapping& mapping, std::uint64_t bytes) {
  mapping.Zero(Step::kZeroLevelFlush, 0, 2 * kSuperblockBytes);
  mapping.persist().Fence(Step::kCommitContentsFence);
  mapping.Zero(Step::kZeroLevelFlush, 2 * kSuperblockBytes, bytes - 2 * kSuperblockBytes);
  mapping.persist().Fence(Step::kCommitContentsFence);
}

}  // namespace

void ValidateConfig(const PoolConfig& config) {
  std::string defect = ConfigDefect(config.key_size, config.value_size, config.geometry);
  if (defect.empty() && config.levels.size() != config.geometry.levels) {
    defect = fmt::format("{} first levels, the geometry has {}", config.levels.size(),
                         config.geometry.levels);
  }
  for (std::size_t i = 0; i < config.levels.size() && defect.empty(); ++i) {
    defect = LevelSizeDefect(config.geometry, config.levels[i]);
  }
  if (defect.empty()) defect = AttributesDefect(config.attributes, config.value_size);
  if (!defect.empty()) throw Error(ErrorCode::kInvalidArgument, defect);
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
  auto mapping =
      std::make_unique<Mapping>(path, Mapping::Options{.max_bytes = options.max_bytes,
                                                       .create = true,
                                                       .memory_node = options.memory_node,
                                                       .tracer = options.tracer});
  mapping->Grow(needed);
  if (mapping->is_device()) {
    if (!options.overwrite && !IsEmptyDevice(*mapping)) {
      throw Error(ErrorCode::kExists,
                  fmt::format("{}: the device holds something already; open it, or have it "
                              "overwritten",
                              path));
    }
    mapping->RemoveOnClose(true);
    Clear(*mapping, needed);
  }
  std::unique_ptr<Pool> pool(new Pool(std::move(mapping), first, false));
  pool->WriteCopy(0, first);
  pool->mapping_->RemoveOnClose(false);
  return pool;
}

std::unique_ptr<Pool> Pool::Open(const std::string& path, const Options& options) {
  auto mapping =
      std::make_unique<Mapping>(path, Mapping::Options{.max_bytes = options.max_bytes,
                                                       .read_only = options.read_only,
                                                       .memory_node = options.memory_node,
                                                       .tracer = options.tracer});
  if (IsEmptyDevice(*mapping)) {
    throw Error(ErrorCode::kNotFound, path + ": the device is empty; create the pool first");
  }
  std::vector<std::byte> copies(2 * kSuperblockBytes);
  const std::uint64_t there = std::min<std::uint64_t>(copies.size(), mapping->file_bytes());
  if (there > 0) std::memcpy(copies.data(), mapping->base(), there);
  const int in_force = ChooseSuperblock(copies.data(), mapping->file_bytes(), path);
  Superblock superblock;
  std::memcpy(&superblock, copies.data() + in_force * kSuperblockBytes, sizeof superblock);
  std::unique_ptr<Pool> pool(new Pool(std::move(mapping), superblock, options.read_only));
  pool->in_force_ = in_force;
  if (!options.read_only) {
    // The copy in force may be one that a process wrote and did not live to flush. It is durable
    // before anything else is written: recovery's first pass, or the next Commit, fences first.
    const Persist& persist = pool->mapping_->persist();
    persist.Flush(Step::kOpenFlush, pool->base(), 2 * kSuperblockBytes);
    // A process that was killed while the pool grew has left a hole behind what there is.
    if (options.tracer == nullptr && pool->mapping_->HoleBytes() > 0) {
      persist.Fence(Step::kOther);
      pool->mapping_->Shrink(UsedEnd(superblock));
    }
    pool->mapping_->Populate();
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
  const Persist& persist = mapping_->persist();
  // A crash may have torn the other copy. What it lacks may be in the new one, too: if of that no
  // more than this became durable, the torn one would be whole, and in force, though what it names
  // was used for something else since. Without its CRC it stays what it is.
  std::byte* const target = base() + other * kSuperblockBytes;
  Superblock torn;
  std::memcpy(&torn, target, sizeof torn);
  if (torn.crc != 0 && torn.crc != SuperblockCrc(torn)) {
    torn.crc = 0;
    constexpr std::size_t kVersionAndCrc = offsetof(Superblock, version);
    persist.Write(target + kVersionAndCrc, &torn.version, sizeof(std::uint64_t));
    persist.Flush(Step::kCommitCopyFlush, target + kVersionAndCrc, sizeof(std::uint64_t));
  }
  // What the new state relies on (zeroed levels, drained items) is durable before the switch. A
  // copy that is torn by a crash has a wrong CRC, and the one in force stays in force.
  persist.Fence(Step::kCommitContentsFence);
  WriteCopy(other, next);
  superblock_ = next;
  in_force_ = other;
}

void Pool::AddLevel(std::uint64_t buckets) {
  RequireWritable();
  std::string defect = LevelSizeDefect(superblock_.geometry, buckets);
  if (superblock_.level_count == kMaxLevels) {
    defect = fmt::format("there are {} already", kMaxLevels);
  }
  if (!defect.empty()) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: no further level: {}", mapping_->path(), defect));
  }
  AddLevelAt(PlaceLevels({buckets}, true), buckets, false);
}

void Pool::AddLevelAt(const Extent& place, std::uint64_t buckets, bool drops_oldest) {
  RequireWritable();
  Superblock next = superblock_;
  if (drops_oldest) next.levels[--next.level_count] = {};
  Commit(WithNewest(next, {place.offset, buckets}));
}

void Pool::GrowTo(const Extent& extent, bool zeroed) {
  const std::uint64_t mapped_before = mapping_->mapped_bytes();
  mapping_->Grow(extent.end());
  // Only bytes that this call mapped are surely zero, those that were ready included: other space
  // beyond UsedEnd may have been a level or a segment once, or that of a change which a crash
  // interrupted.
  if (zeroed && extent.offset < mapped_before) {
    mapping_->Zero(Step::kZeroLevelFlush, extent.offset,
                   std::min(extent.end(), mapped_before) - extent.offset);
  }
}

Extent Pool::BeginPlacing(const LevelSizes& sizes) {
  RequireWritable();
  bool fresh = false;
  const Extent place = PlaceExtent(superblock_, LevelsBytes(superblock_, sizes), &fresh);
  mapping_->MakeReady(place.end(), true);
  return place;
}

Extent Pool::PlaceLevels(const LevelSizes& sizes, bool zeroed) {
  RequireWritable();
  bool fresh = false;
  const Extent place = PlaceExtent(superblock_, LevelsBytes(superblock_, sizes), &fresh);
  GrowTo(place, zeroed);
  return place;
}

void Pool::ReplaceLevels(const LevelSizes& sizes, const Extent& place) {
  RequireWritable();
  Superblock next = superblock_;
  LayLevels(&next, sizes, place.offset);
  Commit(next);
}

void Pool::MoveLevels() {
  LevelSizes sizes;
  for (std::uint32_t i = 0; i < superblock_.level_count; ++i) {
    sizes.push_back(superblock_.levels[i].buckets);
  }
  const Extent place = PlaceLevels(sizes, false);
  Superblock next = superblock_;
  LayLevels(&next, sizes, place.offset);
  for (std::uint32_t i = 0; i < superblock_.level_count; ++i) {
    mapping_->Copy(Step::kMoveLevelFlush, next.levels[i].offset, superblock_.levels[i].offset,
                   LevelBytes(next, sizes[i]));
  }
  ReplaceLevels(sizes, place);
}

void Pool::DropOldestLevel() {
  RequireWritable();
  if (superblock_.level_count <= superblock_.geometry.levels) {
    throw Error(ErrorCode::kInvalidArgument,
                mapping_->path() + ": no resize is under way, so no level can be dropped");
  }
  Superblock next = superblock_;
  next.levels[--next.level_count] = {};
  Commit(next);
}

Extent Pool::AddSegment(std::uint64_t min_cells) {
  RequireWritable();
  if (InlineValues(superblock_.value_size)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: values of {} bytes are inline and have no cells", mapping_->path(),
                            superblock_.value_size));
  }
  if (const Extent gap = GapForCells(); gap.bytes > 0) return CommitSegment(gap);

  const std::uint64_t start = UsedEnd(superblock_);
  std::string cause = "the segment directory is full";
  if (CanAddSegment({start, 0})) {
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
    // (While room is being made there will be more: then what is ready does.)
    const std::uint64_t soon = mapping_->EndWithoutWait(end_of(needed), end_of(wanted));
    std::uint64_t ends[] = {soon, end_of(needed), left, 0};
    for (std::uint64_t& end : ends) {
      if (end == 0) end = mapping_->mapped_bytes();  // with what was ready
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
  const Extent gap = LargestGap(superblock_);
  if (HasCellsFor(gap)) return CommitSegment(gap);
  throw Error(ErrorCode::kNoSpace, fmt::format("{}: no room for another value cell of {} bytes: {}",
                                               mapping_->path(), cell_bytes(), cause));
}

Extent Pool::GapForCells() const {
  const Extent gap = LargestGap(superblock_);
  const bool pays = gap.bytes >= kMinSegmentBytes && superblock_.segment_count < kManySegments;
  return pays && HasCellsFor(gap) ? gap : Extent{};
}

std::uint64_t Pool::growth_cells(std::uint64_t more) const {
  std::uint64_t existing = more;
  for (std::uint32_t i = 0; i < superblock_.segment_count; ++i) {
    const SegmentEntry& segment = superblock_.segments[i];
    existing += CellsIn(Extent{segment.offset, segment.bytes}, cell_bytes());
  }
  const std::uint64_t some =
      std::clamp(kMinSegmentCellsBytes / cell_bytes(), std::uint64_t{1}, kMinSegmentCells);
  return std::max({existing / kGrowthShare, kMinSegmentBytes / cell_bytes(), some});
}

void Pool::RemoveCells(const Extent& extent) {
  RequireWritable();
  std::vector<SegmentEntry> left;
  std::uint64_t taken = 0;
  const auto keep = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) left.push_back({begin, end - begin});
  };
  for (std::uint32_t i = 0; i < superblock_.segment_count; ++i) {
    const Extent segment{superblock_.segments[i].offset, superblock_.segments[i].bytes};
    keep(segment.offset, std::min(segment.end(), extent.offset));
    keep(std::max(segment.offset, extent.end()), segment.end());
    taken += segment.bytes;
  }
  for (const SegmentEntry& segment : left) taken -= segment.bytes;
  if (taken == 0 || extent.offset % kPageBytes != 0 || extent.bytes % kPageBytes != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes from {} on are not pages of value segments",
                            mapping_->path(), extent.bytes, extent.offset));
  }
  SetSegments(left);
}

void Pool::JoinSegments(std::uint64_t end) {
  RequireWritable();
  SetSegments(JoinedSegments(superblock_, end));
}

void Pool::SetSegments(const std::vector<SegmentEntry>& segments) {
  if (segments.size() > kMaxSegments) {
    throw Error(ErrorCode::kNoSpace, mapping_->path() + ": the segment directory is full");
  }
  Superblock next = superblock_;
  std::fill(std::begin(next.segments), std::end(next.segments), SegmentEntry{});
  std::copy(segments.begin(), segments.end(), next.segments);
  next.segment_count = static_cast<std::uint32_t>(segments.size());
  Commit(next);
}

void Pool::GiveBackEnd() {
  RequireWritable();
  if (mapping_->persist().tracer() != nullptr) return;  // whose file only grows
  mapping_->Shrink(UsedEnd(superblock_));
}

bool Pool::HasCellsFor(const Extent& extent) const {
  return CellsIn(extent, cell_bytes()) > 0 && CanAddSegment(extent);
}

bool Pool::CanAddSegment(const Extent& extent) const {
  if (superblock_.segment_count < kMaxSegments) return true;
  return std::any_of(superblock_.segments, superblock_.segments + superblock_.segment_count,
                     [&](const SegmentEntry& s) {
                       return s.offset + s.bytes == extent.offset ||
                              (extent.bytes > 0 && s.offset == extent.end());
                     });
}

Extent Pool::CommitSegment(const Extent& extent) {
  Superblock next = superblock_;
  SegmentEntry joined{extent.offset, extent.bytes};
  std::uint64_t first_byte = extent.offset;
  std::uint64_t last_byte = extent.end();
  SegmentEntry* last = next.segments;  // of those that it does not touch
  for (std::uint32_t i = 0; i < superblock_.segment_count; ++i) {
    const SegmentEntry& other = superblock_.segments[i];
    if (other.offset + other.bytes == extent.offset) {
      // The first new cell starts where the segment's last whole one ended.
      first_byte = std::max(other.offset, extent.offset / cell_bytes() * cell_bytes());
      joined = {other.offset, joined.bytes + other.bytes};
    } else if (other.offset == extent.end()) {
      last_byte = std::min(other.offset + other.bytes, RoundUp(extent.end(), cell_bytes()));
      joined.bytes += other.bytes;
    } else {
      *last++ = other;
    }
  }
  *last++ = joined;
  next.segment_count = static_cast<std::uint32_t>(last - next.segments);
  std::fill(last, std::end(next.segments), SegmentEntry{});
  Commit(next);
  return Extent{first_byte, last_byte - first_byte};
}

void Pool::SetClean(bool clean) {
  RequireWritable();
  if ((superblock_.clean != 0) == clean) return;
  Superblock next = superblock_;
  next.clean = clean ? 1 : 0;
  Commit(next);
}

}  // namespace gpm
