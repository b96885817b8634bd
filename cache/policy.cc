#include "cache/policy.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "gpmstore/error.h"
#include "pm/text.h"

namespace gpm {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"off", "lfu", "lru", "random"};

}  // namespace

std::string_view CachePolicyName(CachePolicy policy) {
  return kNames[static_cast<std::size_t>(policy)];
}

CachePolicy CachePolicyOf(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<CachePolicy>(i);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "cache policy " + Quoted(name) + " is none of off, lfu, lru, random");
}

void ValidateCacheOptions(const CacheOptions& options) {
  if (!options.fraction || (*options.fraction >= 0 && *options.fraction <= 1)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cache: a fraction of {} of the buckets; it must be between 0 and 1",
                          *options.fraction));
}

}  // namespace gpm
