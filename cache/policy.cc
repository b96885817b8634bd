#include "cache/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

std::vector<std::string> CachePolicyNames() {
  std::vector<std::string> names = {"off"};
  AllCachePolicies::ForEach([&](auto type) { names.emplace_back(type.kName); });
  return names;
}

CachePolicy CachePolicyOf(std::string_view name) {
  if (name == "off") return CachePolicy::kOff;
  CachePolicy found = CachePolicy::kOff;
  AllCachePolicies::ForEach([&](auto type) {
    if (name == type.kName) found = type.kPolicy;
  });
  if (found != CachePolicy::kOff) return found;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cache policy {} is none of {}", Quoted(name),
                          fmt::join(CachePolicyNames(), ", ")));
}

void ValidateCacheOptions(const CacheOptions& options) {
  if (!options.fraction || (*options.fraction >= 0 && *options.fraction <= 1)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cache: a fraction of {} of the buckets; it must be between 0 and 1",
                          *options.fraction));
}

}  // namespace gpm
