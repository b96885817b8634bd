#ifndef GPM_ENGINE_TABLE_PROBE_CPU_H_
#define GPM_ENGINE_TABLE_PROBE_CPU_H_

#include <cstdint>

namespace gpm {

/// Which of a bucket's state words equal `word`, and which are kEmptyState; bit s is slot s.
struct BucketMatch {
  std::uint32_t match;
  std::uint32_t empty;
};

/// Compares `slots` (a power of two, at most 32) consecutive state words with `word` and with
/// kEmptyState. Each word is read once and atomically.
/// @param states 8-byte aligned; 64-byte aligned when slots >= 8
using MatchBucketFn = BucketMatch (*)(const std::uint64_t* states, std::uint32_t slots,
                                      std::uint64_t word);

/// The widest version this CPU runs: AVX-512, AVX2, or one word at a time (always the last under
/// ThreadSanitizer, which does not see vector loads as atomic).
MatchBucketFn SelectMatchBucket();

/// One word at a time.
BucketMatch MatchBucketScalar(const std::uint64_t* states, std::uint32_t slots, std::uint64_t word);

}  // namespace gpm

#endif  // GPM_ENGINE_TABLE_PROBE_CPU_H_
