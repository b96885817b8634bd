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
  if (options.policy > CachePolicy::kRandom) {
    throw Error(ErrorCode::kInvalidArgument, "cache: its policy is none of CachePolicy's");
  }
  if (!options.fraction || (*options.fraction >= 0 && *options.fraction <= 1)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cache: a fraction of {} of the buckets; it must be between 0 and 1",
                          *options.fraction));
}

void RequireCacheCanBe(const CacheOptions& options, ExecutorKind executor) {
  if (options.directory.value_or(executor == ExecutorKind::kCuda)) return;
  if (options.policy == CachePolicy::kOff || options.fraction == 0) return;
  std::string asked;
  if (options.fraction) {
    asked = fmt::format("a fraction of {} of the buckets", *options.fraction);
  } else if (options.refresh_interval.value_or(0) > 0) {
    asked = fmt::format("a refresh after {} operations", *options.refresh_interval);
  } else if (options.policy != CacheOptions{}.policy) {
    asked = fmt::format("policy {}", CachePolicyName(options.policy));
  } else {
    return;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("cache: {} is asked for, and without a directory there is no cache; {}", asked,
                  options.directory ? "switch the directory on, or the cache off"
                                    : "executor cpu has a directory only when asked for: "
                                      "switch it on, or the cache off"));
}

}  // namespace gpm
