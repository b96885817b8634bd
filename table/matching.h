#ifndef GPM_TABLE_MATCHING_H_
#define GPM_TABLE_MATCHING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "pm/annotate.h"
#include "pm/format.h"

namespace gpm {

/// Which of a bucket's state words equal `word`, and which are kEmptyState; bit s is slot s.
struct BucketMatch {
  std::uint32_t match;
  std::uint32_t empty;
};

/// Candidate slots of a key that hold it, and that are empty; bit c * slots + s.
struct Probe {
  std::uint32_t match = 0;
  std::uint32_t empty = 0;  ///< not of all levels where a thread has found the key (ProbeSlots)
  std::uint32_t cell = 0;   ///< number of the key's value cell; 0: not known
  bool tagged = false;      ///< the cell is known, and the slot's tag (if there is a cache) equal
};

/// Compares the state words of `slots` (a power of two, at most 32) consecutive pairs of state word
/// and value reference with `word` and with kEmptyState. Each word is read once and atomically.
/// @param pairs 16-byte aligned; 64-byte aligned when slots >= 8
using MatchBucketFn = BucketMatch (*)(const std::uint64_t* pairs, std::uint32_t slots,
                                      std::uint64_t word);

/// The same for `count` words, each compared with `locations` buckets of its own, of which null
/// ones are none: in matches[i], bit j * slots + s is slot s of buckets[i * locations + j].
/// @param slots slots * locations is at most 32
using MatchBucketsFn = void (*)(const std::byte* const* buckets, std::uint32_t slots,
                                std::uint32_t locations, const std::uint64_t* words,
                                std::size_t count, BucketMatch* matches);

struct MatchVersion {
  const char* name;
  MatchBucketFn one;
  MatchBucketsFn many;
};
/// The versions that this CPU runs, the widest first: AVX-512, AVX2, and one word at a time (always
/// the last alone under ThreadSanitizer, which does not see vector loads as atomic).
std::span<const MatchVersion> MatchVersions();

/// The buckets in which words may be: those of words[i] from buckets[i * locations] on.
struct CandidateBuckets {
  const std::byte* const* buckets;
  std::uint32_t slots;      ///< of a bucket
  std::uint32_t locations;  ///< buckets of a word
};

/// MatchBucketsFn by means of match(pairs, slots, word).
template <class Match>
void MatchEachBucket(const Match& match, const CandidateBuckets& candidates,
                     const std::uint64_t* words, std::size_t count, BucketMatch* matches) {
  const auto [buckets, slots, locations] = candidates;
  for (std::size_t i = 0; i < count; ++i) {
    matches[i] = BucketMatch{0, 0};
    for (std::uint32_t j = 0; j < locations; ++j) {
      const auto* pairs = reinterpret_cast<const std::uint64_t*>(buckets[i * locations + j]);
      if (pairs == nullptr) continue;
      const BucketMatch bits = match(pairs, slots, words[i]);
      matches[i].match |= bits.match << (j * slots);
      matches[i].empty |= bits.empty << (j * slots);
    }
  }
}

/// A media policy that compares many buckets in one call: those of the cpu executor.
template <class Media>
concept MatchesManyBuckets = requires {
  &Media::MatchBuckets;
};

/// One word at a time, each by the media's Load.
template <class Media>
GPM_HD BucketMatch MatchBucketBy(const Media& media, const std::uint64_t* pairs,
                                 std::uint32_t slots, std::uint64_t word) {
  BucketMatch bits{0, 0};
  for (std::uint32_t s = 0; s < slots; ++s) {
    const std::uint64_t state = media.Load(pairs + 2 * s);
    bits.match |= static_cast<std::uint32_t>(state == word) << s;
    bits.empty |= static_cast<std::uint32_t>(state == kEmptyState) << s;
  }
  return bits;
}
/// Likewise, atomically.
BucketMatch MatchBucketScalar(const std::uint64_t* pairs, std::uint32_t slots, std::uint64_t word);

}  // namespace gpm

#endif  // GPM_TABLE_MATCHING_H_
