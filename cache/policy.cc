#include "cache/policy.h"

#include <fmt/format.h>

#include <string>

#include "gpmstore/error.h"
#include "pm/text.h"
#include "table/cache_policies.h"

namespace gpm {
std::string_view CachePolicyName(CachePolicy policy) {
  std::string_view name = "off";
  AllCachePolicies::With(policy, [&](auto type) { name = type.kName; });
  return name;
}

CachePolicy CachePolicyOf(std::string_view name) {
  if (name == "off") return CachePolicy::kOff;
  CachePolicy found = CachePolicy::kOff;
  std::string names = "off";
  AllCachePolicies::ForEach([&](auto type) {
    if (name == type.kName) found = type.kPolicy;
    names += std::string(", ") + type.kName;
  });
  if (found != CachePolicy::kOff) return found;
  throw Error(ErrorCode::kInvalidArgument, "cache policy " + Quoted(name) + " is none of " + names);
}

void ValidateCacheOptions(const CacheOptions& options) {
  if (!options.fraction || (*options.fraction >= 0 && *options.fraction <= 1)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cache: a fraction of {} of the buckets; it must be between 0 and 1",
                          *options.fraction));
}

}  // namespace gpm
