#ifndef GPM_CACHE_POLICY_H_
#define GPM_CACHE_POLICY_H_

#include "gpmstore/options.h"

namespace gpm {

/// @throws Error(kInvalidArgument) for a fraction that is not between 0 and 1, or a policy that is
///         none
void ValidateCacheOptions(const CacheOptions& options);

/// @throws Error(kInvalidArgument) when they ask for a cache on a store that has no directory: by a
///         share of the buckets, an interval of refreshes, or a policy other than the default
///         (policy off, or a fraction of 0, ask for none)
void RequireCacheCanBe(const CacheOptions& options, ExecutorKind executor);

}  // namespace gpm

#endif  // GPM_CACHE_POLICY_H_
