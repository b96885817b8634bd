#ifndef GPM_CACHE_CACHE_OPTIONS_H_
#define GPM_CACHE_CACHE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpm {

/// Which buckets are cached.
enum class CachePolicy : std::uint8_t {
  kOff,
  kLfu,     ///< those used most; uses before the last loading count half, and so on
  kLru,     ///< those used last
  kRandom,  ///< any
};
std::string_view CachePolicyName(CachePolicy policy);  ///< "off", "lfu", "lru", "random"
/// @throws Error(kInvalidArgument) naming the policies
CachePolicy CachePolicyOf(std::string_view name);

/// The frozen bucket cache of a store.
struct CacheOptions {
  CachePolicy policy = CachePolicy::kLfu;
  /// The cache takes as many bytes as the copies of this share of the addressable buckets, with all
  /// their values, would: 0 to 1. Default: 0.2 on executor cuda, 0 (no cache) on cpu.
  std::optional<double> fraction{};
  /// If not 0: what the store may take of GPU memory, in bytes, at the moment when the cache is
  /// made (at open, and after each resize): the cache gets what is left of it then (on executor
  /// cpu: all of it, of DRAM). Workspaces of later batches come on top. `fraction` is then an upper
  /// bound only if it is set too.
  std::uint64_t bytes = 0;
  /// It is loaded anew after so many operations (and first when it is new, and again after an
  /// eighth of them); 0: only when asked to (Store::LoadCache).
  std::uint64_t load_interval = 64'000'000;
};

struct CacheStats {
  CachePolicy policy = CachePolicy::kOff;
  std::uint64_t copies = 0;  ///< buckets that may have a copy
  std::uint64_t blocks = 0;  ///< of those, that may have their values cached, too
  std::uint64_t bytes = 0;   ///< of the executor's memory, in all
  std::uint64_t loads = 0;   ///< completed
  double load_seconds = 0;   ///< of the last one, from its start to its end
  std::uint64_t found = 0;   ///< operations that found their key, while there was a cache
  std::uint64_t hits = 0;    ///< of those, in a copy of its bucket, and the value in it
};

}  // namespace gpm

#endif  // GPM_CACHE_CACHE_OPTIONS_H_
