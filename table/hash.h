#ifndef GPM_TABLE_HASH_H_
#define GPM_TABLE_HASH_H_

#include <cstdint>

#include "pm/annotate.h"

namespace gpm {

/// Two 64-bit hashes of a key, keyed by the pool's seed so that nobody who does not know it can
/// craft keys that fill one bucket. BucketNumber makes the locations of both; g is also the
/// fingerprint of keys longer than 8 bytes. Both executors compute the same.
struct KeyHash {
  std::uint64_t h;
  std::uint64_t g;
};

/// The folded 128-bit product: high word xor low word.
GPM_HD inline std::uint64_t FoldMultiply(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#endif
}

/// A bijection that lets every input bit reach every output bit (the multiplication constants are
/// those of Stafford's variant 13 of the MurmurHash3 finalizer).
GPM_HD inline std::uint64_t Scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// @param seed two words, from the superblock
/// @param words the key, `count` 8-byte words
GPM_HD inline KeyHash HashKey(const std::uint64_t* seed, const std::uint64_t* words,
                              std::uint32_t count) {
  std::uint64_t folded = seed[0];
  std::uint64_t summed = seed[1];
#ifdef __CUDA_ARCH__
#pragma unroll 1  // most keys are one word, and code takes time to fetch
#endif
  for (std::uint32_t i = 0; i < count; ++i) {
    folded = FoldMultiply(folded ^ words[i], seed[1] ^ (0x9E3779B97F4A7C15ull * (i + 1)));
    summed = (summed ^ words[i]) * 0xD6E8FEB86659FD93ull;
    summed ^= summed >> 32;
  }
  return KeyHash{Scramble(folded ^ (summed << 1)), Scramble(summed + folded)};
}

/// Key digests tell the keys of a small batch apart: equal for equal keys, cheaper than a hash. A
/// key of one word is its own digest. That of a longer key is DigestOf of the sum of DigestTerm
/// over its words. It has so few bits that tests meet equal digests of different keys.
/// @param seed as for HashKey
GPM_HD inline std::uint64_t DigestTerm(const std::uint64_t* seed, std::uint64_t word,
                                       std::uint32_t index) {
  // Factors that nobody knows, so that nobody can craft keys with equal digests; and what differs
  // in high bits alone, as text and big-endian numbers do, differs in low ones too.
  return (word ^ word >> 32) * (Scramble(seed[1] + 0x9E3779B97F4A7C15ull * (index + 1)) | 1);
}
GPM_HD inline std::uint64_t DigestOf(std::uint64_t sum) { return sum >> 24; }
GPM_HD inline std::uint64_t DigestKey(const std::uint64_t* seed, const std::uint64_t* words,
                                      std::uint32_t count) {
  if (count == 1) return words[0];
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < count; ++i) sum += DigestTerm(seed, words[i], i);
  return DigestOf(sum);
}

}  // namespace gpm

#endif  // GPM_TABLE_HASH_H_
