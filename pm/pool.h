#ifndef GPM_PM_POOL_H_
#define GPM_PM_POOL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pm/format.h"
#include "pm/mapping.h"
#include "pm/space.h"
#include "pm/superblock.h"

namespace gpm {

/// What is fixed when a pool is created.
struct PoolConfig {
  std::uint32_t key_size = 8;      ///< bytes: 1 to 255
  std::uint32_t value_size = 128;  ///< bytes: 1 to 16 MiB
  Geometry geometry;
  std::uint64_t hash_seed[2] = {0, 0};
  LevelSizes levels;  ///< the first ones: geometry.levels of them
  std::vector<Attribute> attributes{};
};

/// The PM region of one store: its mapping, its superblock, its space.
///
/// Thread safety: none; the store changes a pool only while no batch runs. Level and cell bytes
/// are read and written by executors directly through base().
///
/// Invariants:
///  1. superblock() equals the copy in force on the medium. Each change below writes the other
///     copy, fences, and is then done: one atomic switch, whatever it changes. A crash leaves the
///     old state or the new one.
///  2. Space that a change starts to use holds zeros where the format needs zeros (levels) before
///     the switch.
///  3. A change that throws leaves the superblock as it was.
class Pool {
 public:
  struct Options {
    std::uint64_t max_bytes = 0;  ///< the pool may grow up to here; 0: what the medium could hold
    bool read_only = false;       ///< nothing is written, not even on close (offline check, dump)
    bool overwrite = false;       ///< create on a device, whatever it holds
    int memory_node = -1;         ///< Mapping::Options
    PmTracer* tracer = nullptr;   ///< carries out every access to the pool's bytes; outlives it
  };

  /// Creates a pool with its first levels and no value segment. On an error no file is left. A
  /// crash in the middle leaves a file that Open refuses: its superblock has no right checksum.
  /// @param path a file that does not exist, a DAX device of which the first 8 KiB are zeros (or
  ///        `overwrite`), or "pinned:" for volatile host-pinned memory
  /// @throws Error kInvalidArgument (configuration; max_bytes below the first levels), kExists,
  ///         kNoSpace, kIo
  static std::unique_ptr<Pool> Create(const std::string& path, const PoolConfig& config,
                                      const Options& options);
  /// Opens an existing pool. A pool that is damaged, truncated, of another version or in use gives
  /// a precise error and is not touched.
  /// @throws Error kNotFound (an empty device, too), kBusy, kDamaged, kIo, kInvalidArgument (a
  ///         directory; max_bytes below the file's size)
  static std::unique_ptr<Pool> Open(const std::string& path, const Options& options);

  std::byte* base() const { return mapping_->base(); }
  const Superblock& superblock() const { return superblock_; }
  Mapping& mapping() { return *mapping_; }
  const Mapping& mapping() const { return *mapping_; }
  std::uint64_t bucket_bytes() const {
    return BucketBytes(superblock_.key_size, superblock_.geometry);
  }
  std::uint64_t cell_bytes() const { return CellBytes(superblock_.value_size); }

  // The changes below throw Error(kInvalidArgument) on a pool that was opened read only.

  /// Adds an empty level, the newest (a resize is then under way).
  /// @param buckets as LevelSizeDefect has it
  /// @throws Error(kNoSpace), also when it would be too large, or one too many
  void AddLevel(std::uint64_t buckets);
  /// Adds the level that PlaceLevels made room for, and drops the oldest if told to: one switch.
  /// REQUIRES: what it holds is flushed; no item is in the oldest one then that it does not hold.
  void AddLevelAt(const Extent& place, std::uint64_t buckets, bool drops_oldest);
  /// Drops the oldest level, which the caller has drained; its space is free from then on.
  /// REQUIRES: there are more levels than the geometry addresses.
  void DropOldestLevel();
  /// Makes room for levels, as LevelsBytes has them. Nothing names them yet: until ReplaceLevels,
  /// or AddLevelAt, does, the next change may take the place for something else.
  /// @param zeroed else they hold anything @throws Error(kNoSpace)
  Extent PlaceLevels(const LevelSizes& sizes, bool zeroed);
  /// Where PlaceLevels will place them, if no change comes before: room is being made there, beside
  /// the caller. Throws nothing for want of it.
  Extent BeginPlacing(const LevelSizes& sizes);
  /// Replaces all levels by those that PlaceLevels placed: one switch. The space of the former is
  /// free from then on. REQUIRES: no item is in those; what the others hold is as the format wants
  /// it, and flushed.
  void ReplaceLevels(const LevelSizes& sizes, const Extent& place);
  /// Copies all levels to where PlaceLevels puts them, side by side, and names them there: one
  /// switch. The space of the former is free from then on. @throws Error(kNoSpace)
  void MoveLevels();
  /// Adds value cells, at least one: a gap (of at least 64 KiB, so that segments stay few),
  /// whatever it holds, where there is one; else fresh space for at least `min_cells` and at least
  /// growth_cells(), or, while room for that is being made, as many as are ready; when min_cells do
  /// not fit any more, what does. Call again for more. One call adds one range, and joins it to the
  /// segments that it touches. REQUIRES: values are not inline.
  /// @return the range whose cells are the ones added: the new extent, with the cells across its
  ///         borders to the segments that it was joined to
  /// @throws Error(kNoSpace) when not one cell fits
  Extent AddSegment(std::uint64_t min_cells);
  /// The gap that AddSegment takes, or empty. REQUIRES: values are not inline.
  Extent GapForCells() const;
  /// Cells by which AddSegment grows the pool at least, where there is room: a small share of those
  /// that there are, since what is added may stay free, and no fewer than 64 KiB have.
  /// @param more cells that are added before
  std::uint64_t growth_cells(std::uint64_t more = 0) const;
  /// Takes pages out of the segments: they are free space from then on. The cells that lie in them,
  /// also in part, are no item's and in no queue (FindFreeCells).
  /// @throws Error(kNoSpace) when a segment would be cut in two and there are too many
  void RemoveCells(const Extent& extent);
  /// Makes all space before `end` that no level takes value cells, and joins segments that touch.
  /// REQUIRES: values are not inline; `end` is page-aligned, at most UsedEnd.
  /// @throws Error(kNoSpace) when that would be too many segments
  void JoinSegments(std::uint64_t end);
  /// Gives back to the medium what lies behind the last level and segment. REQUIRES: no executor's
  /// kernel runs. @throws as Mapping::Shrink
  void GiveBackEnd();
  /// Records an orderly close (true), or that the pool is in use (false).
  void SetClean(bool clean);

 private:
  Pool(std::unique_ptr<Mapping> mapping, const Superblock& superblock, bool read_only);
  void RequireWritable() const;
  void Commit(Superblock next);
  /// Makes room for levels at an extent, and zeros there.
  void GrowTo(const Extent& extent, bool zeroed);
  void WriteCopy(int copy, const Superblock& contents);
  bool CanAddSegment(const Extent& extent) const;
  bool HasCellsFor(const Extent& extent) const;
  Extent CommitSegment(const Extent& extent);
  void SetSegments(const std::vector<SegmentEntry>& segments);

  std::unique_ptr<Mapping> mapping_;
  Superblock superblock_;
  int in_force_ = 0;  ///< which copy, 0 or 1
  bool read_only_ = false;
};

/// @throws Error(kInvalidArgument) saying which key size, value size, geometry or attributes would
/// be right
void ValidateConfig(const PoolConfig& config);

}  // namespace gpm

#endif  // GPM_PM_POOL_H_
