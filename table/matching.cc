#include "table/matching.h"

#include "pm/format.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gpm {
namespace {

struct AtomicLoads {
  std::uint64_t Load(const std::uint64_t* word) const {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
};

}  // namespace

BucketMatch MatchBucketScalar(const std::uint64_t* pairs, std::uint32_t slots, std::uint64_t word) {
  return MatchBucketBy(AtomicLoads{}, pairs, slots, word);
}

namespace {

template <MatchBucketFn kMatch>
void MatchBuckets(const std::byte* const* buckets, std::uint32_t slots, std::uint32_t locations,
                  const std::uint64_t* words, std::size_t count, BucketMatch* matches) {
  MatchEachBucket(kMatch, {buckets, slots, locations}, words, count, matches);
}

}  // namespace

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
namespace {

// An aligned vector load that stays in one cache line reads each of its 8-byte words atomically on
// every x86 with these extensions, and x86 loads are acquire loads.

__attribute__((target("avx512f"), always_inline)) inline __m512i StatesOfEight(const void* pairs) {
  const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
  return _mm512_permutex2var_epi64(_mm512_load_si512(pairs), even,
                                   _mm512_load_si512(static_cast<const std::byte*>(pairs) + 64));
}

__attribute__((target("avx512f"))) BucketMatch MatchBucketAvx512(const std::uint64_t* pairs,
                                                                 std::uint32_t slots,
                                                                 std::uint64_t word) {
  if (slots < 8) return MatchBucketScalar(pairs, slots, word);
  const __m512i wanted = _mm512_set1_epi64(static_cast<long long>(word));
  BucketMatch result{0, 0};
  for (std::uint32_t s = 0; s < slots; s += 8) {
    const __m512i eight = StatesOfEight(pairs + 2 * s);
    result.match |= static_cast<std::uint32_t>(_mm512_cmpeq_epi64_mask(eight, wanted)) << s;
    result.empty |= static_cast<std::uint32_t>(_mm512_testn_epi64_mask(eight, eight)) << s;
  }
  return result;
}

__attribute__((target("avx2"), always_inline)) inline __m256i StatesOfFour(const void* pairs) {
  const auto* two = static_cast<const __m256i*>(pairs);
  // The low words of each 128 bits: of pairs 0, 2, 1, 3; then in order.
  const __m256i mixed = _mm256_unpacklo_epi64(_mm256_load_si256(two), _mm256_load_si256(two + 1));
  return _mm256_permute4x64_epi64(mixed, 0b11'01'10'00);
}
__attribute__((target("avx2"), always_inline)) inline std::uint32_t EqualOfFour(__m256i a,
                                                                                __m256i b) {
  const __m256d equal = _mm256_castsi256_pd(_mm256_cmpeq_epi64(a, b));
  return static_cast<std::uint32_t>(_mm256_movemask_pd(equal));
}

__attribute__((target("avx2"))) BucketMatch MatchBucketAvx2(const std::uint64_t* pairs,
                                                            std::uint32_t slots,
                                                            std::uint64_t word) {
  if (slots < 8) return MatchBucketScalar(pairs, slots, word);
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(word));
  BucketMatch result{0, 0};
  for (std::uint32_t s = 0; s < slots; s += 4) {
    const __m256i four = StatesOfFour(pairs + 2 * s);
    result.match |= EqualOfFour(four, wanted) << s;
    result.empty |= EqualOfFour(four, _mm256_setzero_si256()) << s;
  }
  return result;
}

/// In one piece for the usual 8 slots: searches spend much of their time here.
__attribute__((target("avx512f"))) void MatchBucketsAvx512(
    const std::byte* const* buckets, std::uint32_t slots, std::uint32_t locations,
    const std::uint64_t* words, std::size_t count, BucketMatch* matches) {
  if (slots != 8) {
    MatchEachBucket(MatchBucketAvx512, {buckets, slots, locations}, words, count, matches);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const __m512i wanted = _mm512_set1_epi64(static_cast<long long>(words[i]));
    BucketMatch all{0, 0};
    for (std::uint32_t j = 0; j < locations; ++j) {
      const std::byte* bucket = *buckets++;
      if (bucket == nullptr) continue;
      const __m512i eight = StatesOfEight(bucket);
      all.match |= static_cast<std::uint32_t>(_mm512_cmpeq_epi64_mask(eight, wanted)) << (8 * j);
      all.empty |= static_cast<std::uint32_t>(_mm512_testn_epi64_mask(eight, eight)) << (8 * j);
    }
    matches[i] = all;
  }
}

__attribute__((target("avx2"))) void MatchBucketsAvx2(const std::byte* const* buckets,
                                                      std::uint32_t slots, std::uint32_t locations,
                                                      const std::uint64_t* words, std::size_t count,
                                                      BucketMatch* matches) {
  if (slots != 8) {
    MatchEachBucket(MatchBucketAvx2, {buckets, slots, locations}, words, count, matches);
    return;
  }
  const __m256i zero = _mm256_setzero_si256();
  for (std::size_t i = 0; i < count; ++i) {
    const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(words[i]));
    BucketMatch all{0, 0};
    for (std::uint32_t j = 0; j < locations; ++j) {
      const std::byte* bucket = *buckets++;
      if (bucket == nullptr) continue;
      const __m256i low = StatesOfFour(bucket);
      const __m256i high = StatesOfFour(bucket + 64);
      all.match |= (EqualOfFour(low, wanted) | EqualOfFour(high, wanted) << 4) << (8 * j);
      all.empty |= (EqualOfFour(low, zero) | EqualOfFour(high, zero) << 4) << (8 * j);
    }
    matches[i] = all;
  }
}

}  // namespace

std::span<const MatchVersion> MatchVersions() {
  static constexpr MatchVersion kVersions[] = {
      {"AVX-512", MatchBucketAvx512, MatchBucketsAvx512},
      {"AVX2", MatchBucketAvx2, MatchBucketsAvx2},
      {"one word", MatchBucketScalar, MatchBuckets<MatchBucketScalar>}};
  const std::span<const MatchVersion> all(kVersions);
  if (__builtin_cpu_supports("avx512f")) return all;
  return all.subspan(__builtin_cpu_supports("avx2") ? 1 : 2);
}
#else
std::span<const MatchVersion> MatchVersions() {
  static constexpr MatchVersion kVersions[] = {
      {"one word", MatchBucketScalar, MatchBuckets<MatchBucketScalar>}};
  return kVersions;
}
#endif

}  // namespace gpm
