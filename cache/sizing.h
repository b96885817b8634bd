#ifndef GPM_CACHE_SIZING_H_
#define GPM_CACHE_SIZING_H_

#include "cache/policy.h"
#include "cache/refresh.h"
#include "table/layout.h"

namespace gpm {

/// What options leave open.
struct CacheDefaults {
  bool directory = false;
  /// What a cache may take, in bytes, where neither `fraction` nor `bytes` says how large it is.
  std::uint64_t cache_bytes = 0;
  CacheFillShape fill{};
};

/// The directory and the cache that options ask for, on a table.
/// @throws Error(kInvalidArgument) for a fraction that is not between 0 and 1
CacheShape ShapeCache(const CacheOptions& options, const CacheDefaults& defaults,
                      const TableView& table);

}  // namespace gpm

#endif  // GPM_CACHE_SIZING_H_
