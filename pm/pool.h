#ifndef GPM_PM_POOL_H_
#define GPM_PM_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "pm/format.h"
#include "pm/mapping.h"
#include "pm/space.h"

namespace gpm {

/// What is fixed when a pool is created.
struct PoolConfig {
  std::uint32_t key_size = 8;      ///< bytes: 8, 16, 32, 64 or 128
  std::uint32_t value_size = 128;  ///< bytes: 1 to 64 KiB
  Geometry geometry;
  std::uint64_t hash_seed[2] = {0, 0};
  std::uint32_t top_level = 1;  ///< first top level, >= geometry.levels - 1
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
    PmTracer* tracer = nullptr;   ///< carries out every access to the pool's bytes; outlives it
  };

  /// Creates a pool with its first levels and no value segment. On an error no file is left. A
  /// crash in the middle leaves a file that Open refuses: its superblock has no right checksum.
  /// @param path a file that does not exist, or "pinned:" for volatile host-pinned memory
  /// @throws Error kInvalidArgument (configuration; max_bytes below the first levels), kExists,
  ///         kNoSpace, kIo
  static std::unique_ptr<Pool> Create(const std::string& path, const PoolConfig& config,
                                      const Options& options);
  /// Opens an existing pool. A pool that is damaged, truncated, of another version or in use gives
  /// a precise error and is not touched.
  /// @throws Error kNotFound, kBusy, kDamaged, kIo, kInvalidArgument (a directory; max_bytes below
  ///         the file's size)
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

  /// Adds level top + 1, empty, as the new top (a resize is then under way).
  /// @throws Error(kNoSpace)
  void AddLevel();
  /// Drops the bottom level, which the caller has drained; its space is free from then on.
  /// REQUIRES: there are more levels than the geometry addresses.
  void DropBottomLevel();
  /// Adds value cells, at least one: a gap (of at least 64 KiB, so that segments stay few),
  /// whatever it holds, where there is one; else fresh space for at least `min_cells` and at least
  /// an eighth of the cells there are (growth_cells); when min_cells do not fit any more, what
  /// does. Call again for more. One call adds one range. REQUIRES: values are not inline.
  /// @return the range whose cells are the ones added: the new extent, and when it was joined to
  /// the
  ///         segment that ends where it starts, with the cell across that border
  /// @throws Error(kNoSpace) when not one cell fits
  Extent AddSegment(std::uint64_t min_cells);
  /// Cells by which AddSegment grows the pool at least, where there is room.
  std::uint64_t growth_cells() const;
  /// Takes pages of one segment out of it: they are free space from then on. The cells that lie in
  /// them, also in part, are no item's and in no queue (FindFreeCells).
  /// @throws Error(kNoSpace) when the segment would be cut in two and there are too many
  void RemoveCells(const Extent& extent);
  /// Records an orderly close (true), or that the pool is in use (false).
  void SetClean(bool clean);

 private:
  Pool(std::unique_ptr<Mapping> mapping, const Superblock& superblock, bool read_only);
  void RequireWritable() const;
  void Commit(Superblock next);
  void WriteCopy(int copy, const Superblock& contents);
  bool CanAddSegmentAt(std::uint64_t offset) const;
  Extent CommitSegment(const Extent& extent);

  std::unique_ptr<Mapping> mapping_;
  Superblock superblock_;
  int in_force_ = 0;  ///< which copy, 0 or 1
  bool read_only_ = false;
};

/// Pure part of Open: chooses the copy in force, that with the higher sequence number of those that
/// were written whole (magic, version, CRC), and validates it. A copy in force whose contents can't
/// be right, such as one that names more space than the file has, is an error: the older copy may
/// name space that was since used for something else.
/// @param copies the pool's first 2 * kSuperblockBytes; zeros where the file is shorter
/// @param pool_bytes size of the file
/// @throws Error(kDamaged) saying what is wrong with each copy
/// @return index of the copy in force, 0 or 1
int ChooseSuperblock(const std::byte* copies, std::uint64_t pool_bytes, const std::string& path);

/// Why a geometry is not legal and what would be right, or empty.
std::string GeometryDefect(Geometry geometry);

/// @throws Error(kInvalidArgument) saying which key size, value size or geometry would be right
void ValidateConfig(const PoolConfig& config);

}  // namespace gpm

#endif  // GPM_PM_POOL_H_
