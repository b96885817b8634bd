#ifndef GPM_CACHE_CACHE_SHAPE_H_
#define GPM_CACHE_CACHE_SHAPE_H_

#include "cache/cache_loader.h"
#include "cache/cache_options.h"
#include "engine/table/layout.h"

namespace gpm {

/// The cache that options ask for, on a table; empty when they ask for none, or for less than one
/// copy.
/// @param default_fraction when the options leave it open
/// @throws Error(kInvalidArgument) for a fraction that is not between 0 and 1
CacheShape ShapeCache(const CacheOptions& options, double default_fraction, const TableView& table);

}  // namespace gpm

#endif  // GPM_CACHE_CACHE_SHAPE_H_
