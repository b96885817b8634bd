// Options that would have no effect beside others, or on a pool that is there already, are refused.

#include <fmt/format.h>

#include <string>

#include "cli/common.h"
#include "table/geometry.h"

namespace gpm::cli {

void OpenArguments::RequireEffect(const StoreStats& stats) const {
  RequireCacheEffect(stats.executor);
  if (Given(cache_fraction_option) && cache_fraction > 0 && InlineValues(stats.value_size)) {
    RefuseArgument(
        "--cache has no effect: values of up to 8 bytes are in the slots themselves, and need no "
        "cache");
  }
}

void OpenArguments::RequireCacheEffect(ExecutorKind kind) const {
  if (directory_option == nullptr) return;  // this command has no options of a cache
  const bool cpu = kind == ExecutorKind::kCpu;
  const bool has_directory = Given(directory_option) ? directory : !cpu;
  const bool wants_cache = Given(cache_fraction_option) && cache_fraction > 0;
  const bool wants_policy = Given(cache_policy_option) && cache_policy != "off";
  const auto refuse = [](const CLI::Option* option, const std::string& reason) {
    RefuseArgument(fmt::format("{} has no effect: {}", option->get_name(), reason));
  };
  if (!has_directory) {
    const std::string reason =
        Given(directory_option)
            ? "there is no cache without a directory; leave --no-directory out, or say --directory"
            : "there is no cache without a directory, which executor cpu has only when asked for; "
              "add --directory";
    if (wants_cache) refuse(cache_fraction_option, reason);
    if (Given(cache_bytes_option)) refuse(cache_bytes_option, reason);
    if (wants_policy) refuse(cache_policy_option, reason);
    if (Given(cache_interval_option)) refuse(cache_interval_option, reason);
    return;
  }
  if (cache_policy == "off") {
    const std::string reason = "--cache-policy off means that there is no cache";
    if (wants_cache) refuse(cache_fraction_option, reason);
    if (Given(cache_interval_option)) refuse(cache_interval_option, reason);
  }
  const bool none_asked = Given(cache_fraction_option) && cache_fraction == 0;
  const bool none_by_default = cpu && !wants_cache && !Given(cache_bytes_option);
  if (none_asked || none_by_default) {
    const std::string reason =
        none_asked
            ? "--cache 0 means that there is no cache"
            : "executor cpu has a cache only when asked for; add --cache, such as --cache 0.2";
    if (wants_policy) refuse(cache_policy_option, reason);
    if (Given(cache_interval_option)) refuse(cache_interval_option, reason);
  }
}

void CreateArguments::RequireMatch(const std::string& pool, const StoreStats& stats) const {
  const auto require = [&](const CLI::Option* option, const std::string& asked,
                           const std::string& is) {
    if (Given(option) && asked != is) {
      RefuseArgument(
          fmt::format("{}: the pool has {} {}, not {}; leave the option out, or use another pool",
                      pool, option->get_name(), is, asked));
    }
  };
  require(key_size_option, std::to_string(key_size), std::to_string(stats.key_size));
  require(value_size_option, std::to_string(value_size), std::to_string(stats.value_size));
  require(geometry_option, GeometryName(ParseGeometry(geometry)), GeometryName(stats.geometry));
  if (Given(initial_capacity_option)) {
    RefuseArgument(fmt::format(
        "--initial-capacity has no effect: {} is there already, and grows by itself", pool));
  }
}

}  // namespace gpm::cli
