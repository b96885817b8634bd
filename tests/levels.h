#ifndef GPM_TESTS_LEVELS_H_
#define GPM_TESTS_LEVELS_H_

#include "pm/pool.h"
#include "table/geometry.h"

/// Levels of which each has twice the buckets of the one before, as stores make them by default.
namespace gpm::test {

inline LevelSizes LevelsFrom(Geometry geometry, std::uint64_t newest) {
  return Growth{geometry, 2}.Levels(newest);
}

inline void AddLevel(Pool& pool) {
  const Superblock& superblock = pool.superblock();
  pool.AddLevel(Growth{superblock.geometry, 2}.Next(superblock.levels[0].buckets));
}

}  // namespace gpm::test

#endif  // GPM_TESTS_LEVELS_H_
