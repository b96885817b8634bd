#ifndef GPM_TABLE_GEOMETRY_H_
#define GPM_TABLE_GEOMETRY_H_

#include "pm/format.h"
#include "pm/space.h"

namespace gpm {

/// @throws Error(kInvalidArgument) unless all three are powers of two with a product of at most 32
void ValidateGeometry(Geometry geometry);

/// Whether so few buckets may hold an item that some find no slot long before the table is full,
/// and nobody can say when.
inline bool FillsUpBadly(const Geometry& geometry) {
  return geometry.locations == 1 || geometry.candidates() < 8;
}

/// @throws Error(kInvalidArgument) unless a table can grow by this factor, as these options say
void ValidateGrowth(const OpenOptions& open);

/// How a table's levels follow each other in size.
struct Growth {
  Geometry geometry;
  double factor;  ///< how many times the buckets of the newest level the next one has

  /// Levels of a table of which the newest has so many buckets.
  LevelSizes Levels(std::uint64_t newest) const;
  /// Buckets of the level that follows one of so many, at most kMaxLevelBuckets + 1.
  std::uint64_t Next(std::uint64_t newest) const;
  /// Levels of a store that starts small: the newest has some 64 buckets.
  LevelSizes Smallest() const;
  /// The levels of a table that has grown from `sizes` until it has so many slots, or can't grow.
  LevelSizes Reach(LevelSizes sizes, double slots) const;
};

/// Slots of the addressable ones of these levels: of so many as the geometry has, the newest.
std::uint64_t SlotsOf(Geometry geometry, const LevelSizes& sizes);

/// Of the levels of a pool.
LevelSizes SizesOf(const Superblock& superblock);
std::uint64_t SlotsOf(const Superblock& superblock);

}  // namespace gpm

#endif  // GPM_TABLE_GEOMETRY_H_
