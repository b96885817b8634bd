#ifndef GPM_CACHE_SIZING_H_
#define GPM_CACHE_SIZING_H_

#include "cache/policy.h"
#include "cache/refresh.h"
#include "table/layout.h"

namespace gpm {

/// The directory and the cache that options ask for, on a table.
/// @param defaults for `directory` and `fraction` where the options leave them open
/// @throws Error(kInvalidArgument) for a fraction that is not between 0 and 1
CacheShape ShapeCache(const CacheOptions& options, const CacheOptions& defaults,
                      const TableView& table);

}  // namespace gpm

#endif  // GPM_CACHE_SIZING_H_
