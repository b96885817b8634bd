#ifndef GPM_CACHE_POLICY_H_
#define GPM_CACHE_POLICY_H_

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

/// The directory and the frozen bucket cache of a store, in the executor's memory.
struct CacheOptions {
  /// Whether there is a directory; by default on executor cuda. Without one there is no cache.
  std::optional<bool> directory{};
  CachePolicy policy = CachePolicy::kLfu;
  /// The share of the addressable buckets of which the values are cached, 0 to 1. Default: 0.2 on
  /// executor cuda, 0 (no cache) on cpu. Values that the slots hold themselves need no cache.
  std::optional<double> fraction{};
  /// If not 0: what the store may take of GPU memory, in bytes, but for the workspaces of batches
  /// (on executor cpu: what the two may take of DRAM). The directory comes first: without keys of
  /// more than 8 bytes if only then it fits, and not at all if it does not. The cache gets what is
  /// left; `fraction` is then an upper bound, by default 1.
  std::uint64_t bytes = 0;
  /// The cache is loaded anew after so many operations (first after an eighth of them); 0: when
  /// asked to alone (Store::LoadCache).
  std::uint64_t load_interval = 64'000'000;
};

/// @throws Error(kInvalidArgument) for a fraction that is not between 0 and 1
void ValidateCacheOptions(const CacheOptions& options);

struct CacheStats {
  bool directory = false;
  std::uint64_t directory_bytes = 0;  ///< of the executor's memory
  CachePolicy policy = CachePolicy::kOff;
  std::uint64_t blocks = 0;  ///< buckets whose values may be cached
  std::uint64_t bytes = 0;   ///< of the executor's memory that they take, in all
  std::uint64_t loads = 0;   ///< completed
  double load_seconds = 0;   ///< of the last one, from its start to its end
  std::uint64_t found = 0;   ///< finds that found their key, while there was a directory
  std::uint64_t hits = 0;    ///< of those, that read no persistent memory for the value
};

}  // namespace gpm

#endif  // GPM_CACHE_POLICY_H_
