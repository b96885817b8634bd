#ifndef GPM_CACHE_POLICY_H_
#define GPM_CACHE_POLICY_H_

#include "gpmstore/options.h"

namespace gpm {

/// @throws Error(kInvalidArgument) for a fraction that is not between 0 and 1
void ValidateCacheOptions(const CacheOptions& options);

}  // namespace gpm

#endif  // GPM_CACHE_POLICY_H_
